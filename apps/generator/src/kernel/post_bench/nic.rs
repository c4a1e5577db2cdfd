//! A NIC model on host threads, for one queue: executes what the doorbell names; checks and completes WQEs.
//!
//! One core has too few outstanding cache misses to keep up with a poster (`docs/notes/posting-costs.md`). So
//! four threads check WQEs in parallel, a chunk each. The first one completes them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::LENGTH;
use super::content::{BLOCK, Pattern, REMOTE, Wrong, hex};

const WORDS: usize = BLOCK / 8;
/// Threads that play a NIC.
pub const UNITS: u64 = 4;
/// WQEs of a unit, one behind the other, before the next unit's.
const CHUNK: u64 = 32;
/// WQEs prefetched ahead: more than the miss buffers of a core's L1 cache, so that they go to L2.
const AHEAD: u64 = 32;
/// The register is polled once in so many WQEs, while there are some.
const POLL_EVERY: u64 = 8;
/// Polls before a unit yields its core.
const PATIENCE: u32 = 10_000;
/// Of the fourth word what [`super::content::Expected`] may leave free.
const RESERVED: u64 = 0xffff_ffff << 32;
const CONSUMER_BITS: u32 = 0xff_ffff;

/// How CQEs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cqes {
    /// One behind the other; the consumer record gives them back.
    InOrder,
    /// One behind the other; nothing gives them back.
    Overwritten,
    /// All in the first entry.
    Collapsed,
}

/// What the queue is to hold.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub queue: u32,
    pub posts: u32,
    pub signal_every: u32,
    /// Whether the register names the next free block, not the last WQE.
    pub names_next: bool,
    pub in_order: bool,
    /// As [`super::content::Expected::reserved_free`].
    pub reserved_free: bool,
    pub cqes: Cqes,
}

/// The memory of a queue, as words of this processor.
#[derive(Debug)]
pub struct Device<'a> {
    /// 64 bytes a block.
    pub ring: &'a [AtomicU64],
    /// 64 bytes an entry, never written.
    pub cq: &'a [AtomicU64],
    /// The doorbell register, 0 at first.
    pub register: &'a AtomicU64,
    /// The CQ's doorbell record.
    pub consumer: &'a AtomicU32,
}

/// Flags shared by the NIC's threads and the caller of [`Device::play`].
#[derive(Debug, Default)]
pub struct Signals {
    /// Units that poll the register.
    pub ready: AtomicU64,
    /// Whether to end before all is executed.
    pub stop: AtomicBool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicRun {
    pub executed: u64,
    pub completed: u64,
    /// Time from a doorbell to the first look that finds no other, of all.
    pub busy: Duration,
    /// The first thing that was wrong, and how many WQEs were.
    pub wrong: Option<Wrong>,
}

impl Device<'_> {
    /// Plays until all of `rules.posts` is executed, `stop` is set, or a doorbell names more WQEs than the
    /// ring holds. `signal_every` is a power of two.
    pub fn play(&self, rules: &Rules, signals: &Signals) -> NicRun {
        let shared = Shared::new(rules, signals);
        let unit = |number| Unit::new(self, rules, &shared, number);
        let run = std::thread::scope(|scope| {
            for number in 1..UNITS {
                scope.spawn(move || unit(number).check_all());
            }
            unit(0).execute_all()
        });
        NicRun { wrong: shared.wrong.into_inner().unwrap_or_else(PoisonError::into_inner), ..run }
    }
}

/// A counter padded to 128 bytes, so that a store to it does not invalidate another counter.
#[repr(align(128))]
struct Padded(AtomicU64);

/// What the units of a NIC share.
struct Shared<'a> {
    seen: Vec<AtomicBool>,
    signals: &'a Signals,
    /// Whether a doorbell named more WQEs than the ring holds.
    impossible: AtomicBool,
    /// Of each unit the WQE that it checks next: its own before that are checked.
    checked: [Padded; UNITS as usize],
    /// Index behind the last WQE whose CQE is written or about to be.
    completed_end: Padded,
    wrong: Mutex<Option<Wrong>>,
}

impl<'a> Shared<'a> {
    fn new(rules: &Rules, signals: &'a Signals) -> Shared<'a> {
        Shared {
            seen: (0..rules.posts).map(|_| AtomicBool::new(false)).collect(),
            signals,
            impossible: AtomicBool::new(false),
            checked: std::array::from_fn(|unit| Padded(AtomicU64::new(unit as u64 * CHUNK))),
            completed_end: Padded(AtomicU64::new(0)),
            wrong: Mutex::new(None),
        }
    }
}

struct Unit<'a> {
    device: &'a Device<'a>,
    rules: &'a Rules,
    shared: &'a Shared<'a>,
    pattern: Pattern,
    number: u64,
    /// The register's last value.
    register: u64,
    /// Index behind the last WQE that was rung for.
    rung: u64,
    /// The next WQE of its own that it checks.
    next: u64,
    /// The next one that it prefetches.
    prefetched: u64,
}

/// The same unit's WQE behind this one.
fn own_behind(index: u64) -> u64 {
    let next = index + 1;
    if next.is_multiple_of(CHUNK) { next + (UNITS - 1) * CHUNK } else { next }
}

impl<'a> Unit<'a> {
    fn new(device: &'a Device<'a>, rules: &'a Rules, shared: &'a Shared<'a>, number: u64) -> Unit<'a> {
        let (pattern, first) = (Pattern::of(rules.queue), number * CHUNK);
        Unit { device, rules, shared, pattern, number, register: 0, rung: 0, next: first, prefetched: first }
    }

    fn is_over(&self) -> bool {
        self.shared.signals.stop.load(Ordering::Relaxed) || self.shared.impossible.load(Ordering::Relaxed)
    }

    /// Checks what is its own.
    fn check_all(mut self) {
        let mut polls = 0;
        self.shared.signals.ready.fetch_add(1, Ordering::Release);
        while self.next < u64::from(self.rules.posts) && !self.is_over() {
            self.poll_register();
            polls = if self.check_some() { 0 } else { pause(polls) };
        }
    }

    /// Checks what is its own, and completes everything that is checked.
    fn execute_all(mut self) -> NicRun {
        let (mut run, mut polls) = (NicRun::default(), 0);
        // Start of the busy time. A clock read costs a few WQEs: only where idle time begins or ends.
        let mut since: Option<Instant> = None;
        self.shared.signals.ready.fetch_add(1, Ordering::Release);
        while run.executed < u64::from(self.rules.posts) && !self.is_over() {
            self.poll_register();
            if self.rung == run.executed {
                run.busy += since.take().map_or(Duration::ZERO, |since| since.elapsed());
                polls = pause(polls);
                continue;
            }
            since.get_or_insert_with(Instant::now);
            let did_check = self.check_some();
            let did_complete = self.complete_checked(&mut run);
            polls = if did_check || did_complete { 0 } else { pause(polls) };
        }
        run.busy += since.map_or(Duration::ZERO, |since| since.elapsed());
        run
    }

    /// Polls the register.
    fn poll_register(&mut self) {
        let register = self.device.register.load(Ordering::Acquire);
        if register == self.register {
            return;
        }
        self.register = register;
        let [_, high, low, ..] = register.to_ne_bytes();
        let behind = u16::from_be_bytes([high, low]).wrapping_add(u16::from(!self.rules.names_next));
        let more = u64::from(behind.wrapping_sub(self.rung as u16));
        // Loaded behind the register: when the poster stored to it, there was room.
        let completed = self.shared.completed_end.0.load(Ordering::Acquire);
        if (self.rung + more).saturating_sub(completed) as usize > self.device.ring.len() / WORDS {
            if !self.shared.impossible.swap(true, Ordering::Relaxed) {
                self.note(completed, format!("the register tells of {more} WQEs at once: {register:#018x}"));
            }
            return;
        }
        self.rung += more;
    }

    /// Checks the rung WQEs of the current chunk, polling the register. Returns whether there was one.
    fn check_some(&mut self) -> bool {
        let (blocks, _) = self.device.ring.as_chunks::<WORDS>();
        let block = |index: u64| &blocks[index as usize & (blocks.len() - 1)];
        let (begin, end) = (self.next, self.next - self.next % CHUNK + CHUNK);
        let mut at = begin;
        while at < self.rung.min(end) {
            match at % POLL_EVERY {
                0 => prefetch(self.device.register),
                half if half == POLL_EVERY / 2 => self.poll_register(),
                _ => {}
            }
            // Ahead in its own chunks, of which there is one in so many.
            while self.prefetched < self.rung.min(at + AHEAD * UNITS) {
                prefetch(&block(self.prefetched)[0]);
                self.prefetched = own_behind(self.prefetched);
            }
            let words = block(at);
            let wqe = std::array::from_fn(|word| words[word].load(Ordering::Relaxed));
            self.check(&wqe, at);
            at += 1;
        }
        if at == begin {
            return false;
        }
        self.next = if at == end { own_behind(end - 1) } else { at };
        self.prefetched = self.prefetched.max(self.next);
        // Behind the loads of what is checked: when it is completed it may be overwritten.
        self.shared.checked[self.number as usize].0.store(self.next, Ordering::Release);
        true
    }

    /// Completes what all units have checked, signalling included. Returns whether there was any.
    fn complete_checked(&self, run: &mut NicRun) -> bool {
        let checked = self.shared.checked.iter().map(|next| next.0.load(Ordering::Acquire));
        let end = checked.min().unwrap_or(0).min(self.rung);
        if end == run.executed {
            return false;
        }
        // Before the CQEs: a poster that finds one may ring for as many.
        self.shared.completed_end.0.store(end, Ordering::Release);
        let every = u64::from(self.rules.signal_every);
        let mut index = (run.executed + every) & !(every - 1);
        while index <= end {
            self.write_cqe(index - 1, &mut run.completed);
            index += every;
        }
        run.executed = end;
        true
    }

    fn check(&self, found: &[u64; 6], index: u64) {
        let Rules { in_order, reserved_free, posts, signal_every, .. } = *self.rules;
        let message = found[2].swap_bytes().wrapping_sub(REMOTE) / u64::from(LENGTH);
        if message >= u64::from(posts) {
            return self.note(index, format!("remote address {:#x} is of no message", found[2].swap_bytes()));
        }
        let known = self.shared.seen[message as usize].swap(true, Ordering::Relaxed);
        // A division for each WQE would take longer than the rest of its check.
        let asks = (index + 1) & u64::from(signal_every - 1) == 0;
        let wanted = self.pattern.wqe(index, message as u32, asks);
        let mut read = *found;
        if reserved_free {
            read[3] &= !RESERVED;
        }
        // Without a call to compare memory.
        if read.iter().zip(&wanted).fold(0, |other, (a, b)| other | (a ^ b)) != 0 {
            let wanted = words(&wanted);
            self.note(
                index,
                format!("message {message} is {}, the host's shim writes {wanted}", words(found)),
            );
        } else if known || (in_order && message != index) {
            self.note(index, format!("message {message} once more, or not in its place"));
        }
    }

    /// Writes the CQE of the WQE at `index`.
    fn write_cqe(&self, index: u64, completed: &mut u64) {
        let Device { cq, consumer, .. } = self.device;
        let (cqe, entries) = (*completed, (cq.len() / WORDS) as u64);
        let given_back = u64::from(u32::from_be(consumer.load(Ordering::Relaxed)));
        if self.rules.cqes == Cqes::InOrder
            && cqe.wrapping_sub(given_back) & u64::from(CONSUMER_BITS) >= entries
        {
            self.note(index, format!("the CQ is overrun: {cqe} CQEs, {given_back} given back"));
        }
        let (at, lap) = match self.rules.cqes {
            Cqes::Collapsed => (0, 0),
            _ => (cqe & (entries - 1), u8::from(cqe & entries != 0)),
        };
        let [_, q0, q1, q2] = (super::content::QPN + self.rules.queue).to_be_bytes();
        let [high, low] = (index as u16).to_be_bytes();
        let (tail, rest) = cq[at as usize * WORDS..][..WORDS].split_last().expect("an entry has words");
        rest.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // The WQE's opcode and QPN, its counter, and the owner byte: opcode 0 (requester) and the lap's bit.
        tail.store(u64::from_ne_bytes([8, q0, q1, q2, high, low, 0, lap]), Ordering::Release);
        *completed += 1;
    }

    /// Of the WQEs that are wrong the first is named.
    #[cold]
    fn note(&self, index: u64, what: String) {
        let Rules { posts: all, queue, .. } = *self.rules;
        let mut noted = self.shared.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let bad = noted.as_ref().map_or(0, |wrong| wrong.bad) + 1;
        let is_first = noted.as_ref().is_none_or(|wrong| index < u64::from(wrong.block));
        let (block, what) = match noted.take() {
            Some(wrong) if !is_first => (wrong.block, wrong.what),
            _ => (index as u32, what),
        };
        *noted = Some(Wrong { bad, all, queue, block, what });
    }
}

/// Spins for [`PATIENCE`] polls, then yields the core.
fn pause(polls: u32) -> u32 {
    match polls {
        ..PATIENCE => std::hint::spin_loop(),
        _ => std::thread::yield_now(),
    }
    polls.saturating_add(1)
}

/// Asks for a line of memory without waiting for it.
#[inline]
fn prefetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and faults nowhere, and the address is of a word that lives.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(word.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

fn words(wqe: &[u64; 6]) -> String {
    hex(&wqe.map(u64::to_ne_bytes).concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bit of a WQE that asks for a completion, in its second word.
    const ASKS: u64 = 8 << 24;
    const POSTS: u32 = 40;
    const BLOCKS: usize = 16;

    /// A ring with the first WQEs, and what a NIC makes of it. `change` alters words, register and record.
    fn played(rules: Rules, cqes: usize, change: impl Fn(&mut [u64], &mut u64)) -> (NicRun, Vec<u64>) {
        played_of(BLOCKS, rules, cqes, change)
    }

    fn played_of(
        blocks: usize,
        rules: Rules,
        cqes: usize,
        change: impl Fn(&mut [u64], &mut u64),
    ) -> (NicRun, Vec<u64>) {
        let pattern = Pattern::of(rules.queue);
        let mut ring: Vec<u64> = Vec::new();
        for index in 0..blocks as u64 {
            let signaled = (index + 1).is_multiple_of(u64::from(rules.signal_every));
            ring.extend(pattern.wqe(index, index as u32, signaled).into_iter().chain([0, 0]));
        }
        let rung = blocks as u16 - u16::from(!rules.names_next);
        let [high, low] = rung.to_be_bytes();
        let mut register = u64::from_ne_bytes([0, high, low, 0, 0, 0, 0, 0]);
        change(&mut ring, &mut register);
        let ring: Vec<_> = ring.into_iter().map(AtomicU64::new).collect();
        let cq: Vec<_> = (0..cqes * WORDS).map(|_| AtomicU64::new(u64::MAX)).collect();
        let device = Device {
            ring: &ring,
            cq: &cq,
            register: &AtomicU64::new(register),
            consumer: &AtomicU32::new(0),
        };
        let played = device.play(&Rules { posts: blocks as u32, ..rules }, &Signals::default());
        (played, cq.iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    fn rules() -> Rules {
        Rules {
            queue: 1,
            posts: POSTS,
            signal_every: 4,
            names_next: false,
            in_order: true,
            reserved_free: false,
            cqes: Cqes::InOrder,
        }
    }

    #[test]
    fn every_wqe_that_asks_is_completed_in_its_place() {
        for (rules, entries, tails) in [
            (rules(), 4, vec![(0, 3, 0), (1, 7, 0), (2, 11, 0), (3, 15, 0)]),
            (Rules { names_next: true, ..rules() }, 8, vec![(0, 3, 0), (3, 15, 0)]),
            // The second lap's owner bit is the other.
            (Rules { cqes: Cqes::Overwritten, ..rules() }, 2, vec![(0, 11, 1), (1, 15, 1)]),
            (Rules { cqes: Cqes::Collapsed, ..rules() }, 2, vec![(0, 15, 0)]),
        ] {
            let (played, cq) = played(rules, entries, |_, _| {});
            assert_eq!((played.wrong, played.executed, played.completed), (None, 16, 4));
            for (entry, counter, owner) in tails {
                let tail = cq[entry * WORDS + 7].to_ne_bytes();
                assert_eq!(tail, [8, 0x12, 0x34, 1, 0, counter, 0, owner], "{rules:?}: entry {entry}");
            }
        }
    }

    #[test]
    fn what_units_check_side_by_side_is_completed_in_its_order() {
        let blocks = 8 * CHUNK as usize;
        for signal_every in [1, 4, 64] {
            let (rules, count) = (Rules { signal_every, ..rules() }, blocks / signal_every as usize);
            let (played, cq) = played_of(blocks, rules, blocks, |_, _| {});
            assert_eq!((played.wrong, played.executed), (None, blocks as u64));
            assert_eq!(played.completed, count as u64);
            for (at, entry) in cq.chunks(WORDS).take(count).enumerate() {
                let [.., high, low, _, _] = entry[7].to_ne_bytes();
                let counter = (at + 1) * signal_every as usize - 1;
                assert_eq!(usize::from(u16::from_be_bytes([high, low])), counter, "entry {at}");
            }
        }
        let (later, first) = (3 * CHUNK as usize, CHUNK as usize);
        let swapped = |ring: &mut [u64], _: &mut u64| {
            for block in [later, first] {
                ring[block * WORDS + 3] ^= 1 << 8;
            }
        };
        let wrong = played_of(blocks, rules(), blocks, swapped).0.wrong.expect("two are wrong");
        assert_eq!((wrong.bad, wrong.block as usize), (2, first), "{wrong}");
    }

    #[test]
    fn what_one_unit_has_not_checked_is_not_completed() {
        let words = |count: usize| (0..count * WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (ring, cq, rules, signals) =
            (words(128), words(128), Rules { posts: 128, ..rules() }, Signals::default());
        let (register, consumer) = (AtomicU64::new(0), AtomicU32::new(0));
        let device = Device { ring: &ring, cq: &cq, register: &register, consumer: &consumer };
        let shared = Shared::new(&rules, &signals);
        let unit = Unit { rung: 128, ..Unit::new(&device, &rules, &shared, 0) };
        let mut run = NicRun::default();
        assert!(!unit.complete_checked(&mut run), "the first unit has checked nothing");
        for (unit_of, next, executed) in
            [(0, 128, 32), (2, 72, 32), (1, 160, 72), (2, 192, 96), (3, 100, 100), (3, 224, 128)]
        {
            shared.checked[unit_of].0.store(next, Ordering::Release);
            unit.complete_checked(&mut run);
            assert_eq!((run.executed, run.completed), (executed, executed / 4), "unit {unit_of} at {next}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_completed_all_the_same() {
        type Change = fn(&mut [u64], &mut u64);
        let changes: [(Change, &str, u32); 7] = [
            // The last WQE's index in a ring of 16.
            (
                |_, register| *register = u64::from_ne_bytes([0, 0, 16, 0, 0, 0, 0, 0]),
                "tells of 17 WQEs at once",
                1,
            ),
            (|ring, _| ring[3 * WORDS] ^= 1 << 8, "the host's shim writes", 1),
            (|ring, _| ring[5 * WORDS + 3] ^= 1 << 32, "the host's shim writes", 1),
            (|ring, _| ring[5 * WORDS + 1] ^= ASKS, "the host's shim writes", 1),
            (|ring, _| ring[6 * WORDS + 2] = 0, "of no message", 1),
            (|ring, _| ring.copy_within(0..WORDS, WORDS), "the host's shim writes", 1),
            (|_, register| *register = u64::from_ne_bytes([0, 1, 0, 0, 0, 0, 0, 0]), "WQEs at once", 1),
        ];
        for (change, words, bad) in changes {
            let wrong = played(rules(), 8, change).0.wrong.expect(words);
            assert!(wrong.bad == bad && wrong.what.contains(words), "{wrong}");
        }
        let wrong = played(rules(), 2, |_, _| {}).0.wrong.expect("a CQ of two entries for four CQEs");
        assert!(wrong.bad == 2 && wrong.what.contains("overrun"), "{wrong}");
        let free = Rules { reserved_free: true, ..rules() };
        assert_eq!(played(free, 8, |ring, _| ring[5 * WORDS + 3] ^= 1 << 32).0.wrong, None);
    }
}
