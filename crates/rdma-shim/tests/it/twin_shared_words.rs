//! A shared queue's words, in memory that no device reads: where they wrap, and what a ringer makes of what
//! others left. What races elsewhere stands still here: each way through the election is taken on purpose.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::{KERNELS, PLANTED};
use host_twin::{Arguments, GATE, Kernel, Running, start};
use measure::need;
use rdma_shim::sys::*;

use crate::twin_queue::{DEADLINE, Status, Target, compiler, launch};
use rdma_shim::testing::wait_for;

const BLOCKS: u64 = 64;
const TIMED_OUT: u32 = 110;
const EIO: u32 = 5;
/// `DB_FAILED_HOLE`.
const BY_HOLE: u32 = 2;

/// A queue that is nobody's, and all that it points to.
struct Words {
    shared: Box<db_shared_sq>,
    status: Box<Status>,
    payload: Vec<u64>,
    record: Vec<u64>,
    marks: Vec<u128>,
    _ring: Vec<u128>,
    _cqes: Vec<u64>,
    _slots: Vec<db_slot>,
    _register: Vec<u64>,
}

fn address<T>(memory: &mut [T]) -> u64 {
    memory.as_mut_ptr().expose_provenance() as u64
}

impl Words {
    /// Empty, and goes on at that block.
    fn at(producer: u64) -> Words {
        let (mut ring, mut marks) = (vec![0; 4 * BLOCKS as usize], vec![0_u128; BLOCKS as usize / 4]);
        // CQEs that are the device's: nothing completes.
        let mut cqes = vec![u64::MAX / 255 * 0xf0; 8 * 128];
        let (mut record, mut register) = (vec![0; 2], vec![0; 1]);
        let mut slots = vec![db_slot::default(); BLOCKS as usize];
        let sq = db_sq {
            ring: address(&mut ring),
            record: address(&mut record),
            reg: address(&mut register),
            slots: address(&mut slots),
            blocks: BLOCKS as u32,
            max_sge: 1,
            opcodes: 0x7f,
            producer,
            rung: producer,
            consumer: producer,
            ..db_sq::default()
        };
        let cq = db_cq {
            ring: address(&mut cqes),
            record: address(&mut record) + 8,
            entries: 128,
            ..db_cq::default()
        };
        let filled = address(&mut marks);
        let mut shared =
            Box::new(db_shared_sq { sq, cq, filled, signal_mask: 15, ..db_shared_sq::default() });
        // SAFETY: the struct is ours alone.
        assert_eq!(unsafe { db_c_shared_init(&raw mut *shared) }, 0);
        Words {
            shared,
            status: Box::default(),
            payload: vec![0; BLOCKS as usize],
            record,
            marks,
            _ring: ring,
            _cqes: cqes,
            _slots: slots,
            _register: register,
        }
    }

    /// Blocks of others from `begin` on, as they would have left them.
    fn others(&mut self, reserved: u64, published: u64) {
        self.shared.reserved += reserved;
        self.shared.published = self.shared.published.wrapping_add(published << DB_PUBLISHED_SHIFT);
    }

    /// Says that a block is filled, in its lap.
    fn mark(&mut self, block: u64) {
        let word = (&raw mut self.marks[0]).cast::<u32>().wrapping_add((block % BLOCKS) as usize);
        // SAFETY: the word is one of the marks', which kernels reach by atomics as well.
        unsafe { AtomicU32::from_ptr(word) }
            .store(((block / BLOCKS) as u32).wrapping_add(1), Ordering::SeqCst);
    }

    /// A word that a running kernel writes.
    fn word(&mut self, which: fn(&mut db_shared_sq) -> &mut u64) -> &AtomicU64 {
        // SAFETY: an aligned word of ours, which kernels reach by atomics as well.
        unsafe { AtomicU64::from_ptr(std::ptr::from_mut(which(&mut self.shared))) }
    }

    fn start(&mut self, blocks: u32, threads: u32, seed: u64, messages: u32, patience: Duration) -> Running {
        let kernel = KERNELS.find("post_shared").unwrap();
        self.start_as(kernel, blocks, threads, seed, messages, patience)
    }

    fn start_as(
        &mut self,
        kernel: Kernel,
        blocks: u32,
        threads: u32,
        seed: u64,
        messages: u32,
        patience: Duration,
    ) -> Running {
        let target = Target {
            local: address(&mut self.payload),
            remote: 0,
            lkey: 1,
            rkey: 2,
            messages,
            window: messages,
            per_ring: 1,
            signal_every: 1,
            deadline_ns: patience.as_nanos() as u64,
        };
        let arguments =
            Arguments::new().pointer(&raw mut *self.shared).push(target).pointer(&raw mut *self.status);
        let launch = host_twin::Launch { blocks: blocks.into(), ..launch(threads, seed) };
        // SAFETY: the kernel takes these; everything lives in `self`, and each test waits for the end.
        unsafe { start(kernel, &launch, arguments) }.unwrap()
    }

    fn run(&mut self, blocks: u32, threads: u32, seed: u64, messages: u32) {
        self.start(blocks, threads, seed, messages, DEADLINE / 2).wait().unwrap();
        assert_eq!(*self.status, Status::all(messages));
    }
}

/// A queue has no age limit: `published` has the low half of a block's number, and nothing is left unrung
/// where that, or what it once had room for, wraps.
#[test]
fn twin_posts_on_a_shared_queue_go_on_where_words_wrap() {
    need!(compiler(), cc, "a C++ compiler");
    let mut looped = 0;
    for end in [1_u64 << 31, 1 << 32, 1 << 47, 1 << 48, 5 << 32] {
        for seed in 1..4 {
            let mut words = Words::at(end - 32);
            words.run(2, 32, seed, 64);
            let (after, what) = (end + 32, format!("{end:#x} seed {seed}"));
            assert_eq!((words.shared.reserved, words.shared.rung), (after, after), "{what}");
            assert_eq!(words.shared.published, after << DB_PUBLISHED_SHIFT, "{what}");
            assert_eq!(words.record[0] as u32, (after as u32 & 0xffff).to_be(), "{what}");
            looped += 1;
        }
    }
    assert_eq!(looped, 15);
}

/// More threads than an H200 holds have taken blocks and wait behind a stopped ringer: each has added one to
/// the low bits of `published`, and none of that becomes a block.
#[test]
fn twin_a_crowd_that_waits_is_not_counted_as_blocks() {
    need!(compiler(), cc, "a C++ compiler");
    const CROWD: u64 = 2 * 270_336;
    let mut words = Words::at(0);
    words.shared.published += CROWD;
    words.run(1, 1, 1, 1);
    // Taken with a look at the role, and published: somebody else rings.
    assert_eq!(words.shared.published >> DB_PUBLISHED_SHIFT, 1, "blocks, and no carry");
    assert_eq!(words.shared.published, (1 << DB_PUBLISHED_SHIFT) + CROWD + 2);
    assert_eq!((words.shared.rung, words.record[0]), (0, 0));
}

/// All reserved is published, and one mark of it is in flight: no poster is to come, so the ringer retakes
/// the role and waits for the mark. Near the wraps as well.
#[test]
fn twin_a_ringer_takes_the_role_back_for_a_mark_that_is_on_its_way() {
    need!(compiler(), cc, "a C++ compiler");
    for begin in [0, (1 << 32) - 1, (1 << 47) + 1] {
        let mut words = Words::at(begin);
        words.others(1, 1);
        let running = words.start(1, 1, 1, 1, DEADLINE / 2);
        let both = (begin + 2) << DB_PUBLISHED_SHIFT;
        let published = words.word(|queue| &mut queue.published);
        wait_for("the second block", || {
            (published.load(Ordering::SeqCst) >> DB_PUBLISHED_SHIFT == both >> DB_PUBLISHED_SHIFT)
                .then_some(())
        });
        std::thread::sleep(Duration::from_millis(20));
        words.mark(begin);
        running.wait().unwrap();
        assert_eq!((*words.status, words.shared.failed), (Status::all(1), 0), "{begin:#x}");
        assert_eq!((words.shared.rung, words.shared.published), (begin + 2, both), "{begin:#x}");
    }
}

/// The same where it never comes: that fails the queue, which says so.
#[test]
fn twin_a_mark_that_never_comes_fails_a_shared_queue() {
    need!(compiler(), cc, "a C++ compiler");
    let mut words = Words::at(0);
    words.others(1, 1);
    words.start(1, 1, 1, 1, DEADLINE / 2).wait().unwrap();
    assert_eq!((words.status.error, words.shared.failed, words.shared.failure.why), (EIO, 1, BY_HOLE));
    assert_eq!(words.shared.rung, 0);
}

/// A ringer that waits for a mark and was stopped for longer than its patience, even between its looks at
/// marks and clock, looks at the marks once more: what has come meanwhile fails no queue.
#[test]
fn twin_a_mark_that_came_while_the_ringer_was_stopped_is_seen() {
    need!(compiler(), cc, "a C++ compiler");
    let mut words = Words::at(0);
    words.others(1, 1);
    // Looks at the clock: the poster's deadline; the mark's, after the first vain look; whether it is over.
    GATE.let_go(2);
    let kernel = PLANTED.find("post_shared+gated-clock").unwrap();
    let running = words.start_as(kernel, 1, 1, 1, 1, DEADLINE / 2);
    wait_for("the third look at the clock", || (GATE.begun() == 3).then_some(()));
    std::thread::sleep(Duration::from_millis(1100));
    words.mark(0);
    GATE.let_go(u64::MAX);
    running.wait().unwrap();
    assert_eq!((*words.status, words.shared.failed), (Status::all(1), 0));
    assert_eq!((words.shared.rung, words.shared.published), (2, 2 << DB_PUBLISHED_SHIFT));
}

/// Blocks reserved but unpublished have a poster to come: the ringer leaves, neither waiting nor ringing.
#[test]
fn twin_a_ringer_leaves_where_a_poster_is_to_come() {
    need!(compiler(), cc, "a C++ compiler");
    for begin in [0, (1 << 32) - 1, (1 << 47) + 1] {
        let mut words = Words::at(begin);
        words.others(1, 0);
        words.run(1, 1, 1, 1);
        // It has the role, but did not ring last: it is not alone, as a block before its own is missing.
        assert_eq!((words.shared.rung, words.record[0]), (begin, 0), "{begin:#x}");
        assert_eq!(words.shared.published, (begin + 1) << DB_PUBLISHED_SHIFT, "{begin:#x}");
        // The other comes and rings for both.
        words.mark(begin);
        words.shared.published = words.shared.published.wrapping_add(1 << DB_PUBLISHED_SHIFT);
        *words.status = Status::default();
        words.run(1, 1, 1, 1);
        assert_eq!(words.shared.rung, begin + 3, "{begin:#x}");
    }
}

/// A ring full of blocks that no poster rang for. The poster that became the ringer with its blocks rings,
/// and yields the role while it waits for room. It also rings for later posters that saw the role taken.
#[test]
fn twin_who_waits_for_room_rings_for_the_others() {
    need!(compiler(), cc, "a C++ compiler");
    let mut words = Words::at(0);
    words.others(BLOCKS, BLOCKS - 1);
    (0..BLOCKS - 1).for_each(|block| words.mark(block));
    let running = words.start(1, 1, 1, 1, Duration::from_millis(500));
    let rung = words.word(|queue| &mut queue.rung).as_ptr();
    // SAFETY: the word lives in `words`.
    let rung = unsafe { AtomicU64::from_ptr(rung) };
    let is = |wanted| rung.load(Ordering::SeqCst) == wanted;
    while !running.has_ended() && !is(BLOCKS - 1) {
        std::thread::yield_now();
    }
    assert!(is(BLOCKS - 1), "the ringer waits with the role");
    words.mark(BLOCKS - 1);
    words.word(|queue| &mut queue.published).fetch_add(1 << DB_PUBLISHED_SHIFT, Ordering::SeqCst);
    running.wait().unwrap();
    // Nothing completes: it gives up, with the blocks that it has taken.
    assert_eq!((words.status.error, words.shared.failure.why), (TIMED_OUT, BY_HOLE));
    assert_eq!((words.shared.rung, words.shared.published), (BLOCKS, BLOCKS << DB_PUBLISHED_SHIFT));
}
