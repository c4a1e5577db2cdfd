//! A model of a NIC on threads of the host, for one queue: it executes what the doorbell tells of, checks each WQE, and completes it at once.
//!
//! One core has 10 to 16 lines of memory on their way to it at a time, and a line that the GPU wrote is 130 to 250 ns away: 8 to 16 ns a
//! WQE, as much as a poster takes. So four threads, the NIC's units, check WQEs side by side, a chunk each. The first one completes them.

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
/// How many WQEs ahead memory is asked for: the way from the GPU's last store to this processor is waited for once, not for each.
/// More than a core's buffers for lines on their way to its first cache (10 to 16), so the lines go to the second.
const AHEAD: u64 = 32;
/// One look at the register in so many WQEs, while there are some.
const LOOK: u64 = 8;
/// Looks without a pause, before a unit lets others have its core.
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

/// What a NIC and who started it tell each other.
#[derive(Debug, Default)]
pub struct Signals {
    /// Units that look at the register.
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
    /// Plays until all of `rules.posts` is executed, it is told to stop, or a doorbell tells of what cannot be. `signal_every` is a power
    /// of two.
    pub fn play(&self, rules: &Rules, signals: &Signals) -> NicRun {
        let shared = Shared {
            seen: (0..rules.posts).map(|_| AtomicBool::new(false)).collect(),
            signals,
            impossible: AtomicBool::new(false),
            checked: [const { Line(AtomicU64::new(0)) }; UNITS as usize],
            reached: Line(AtomicU64::new(0)),
            wrong: Mutex::new(None),
        };
        let unit = |number: u64| Unit {
            device: self,
            rules,
            shared: &shared,
            pattern: Pattern::of(rules.queue),
            number,
            register: 0,
            told: 0,
            next: number * CHUNK,
            asked: number * CHUNK,
        };
        let run = std::thread::scope(|scope| {
            for number in 1..UNITS {
                scope.spawn(move || unit(number).check_all());
            }
            unit(0).execute_all()
        });
        NicRun { wrong: shared.wrong.into_inner().unwrap_or_else(PoisonError::into_inner), ..run }
    }
}

/// A word that no other lies beside: a store to it takes no line from a core that reads another one.
#[repr(align(128))]
struct Line(AtomicU64);

/// What the units of a NIC share.
struct Shared<'a> {
    seen: Vec<AtomicBool>,
    signals: &'a Signals,
    /// Whether a doorbell told of what cannot be.
    impossible: AtomicBool,
    /// Of each unit the WQE that it checks next.
    checked: [Line; UNITS as usize],
    /// WQEs that may be completed: those that are, and while some are being completed, those as well.
    reached: Line,
    wrong: Mutex<Option<Wrong>>,
}

struct Unit<'a> {
    device: &'a Device<'a>,
    rules: &'a Rules,
    shared: &'a Shared<'a>,
    pattern: Pattern,
    number: u64,
    /// What the register said last, and up to where it and those before told of WQEs.
    register: u64,
    told: u64,
    /// The next WQE of its own that it checks, and the one that it asks memory for.
    next: u64,
    asked: u64,
}

/// The same unit's WQE behind this one.
fn own_behind(index: u64) -> u64 {
    let next = index + 1;
    if next.is_multiple_of(CHUNK) { next + (UNITS - 1) * CHUNK } else { next }
}

impl Unit<'_> {
    fn is_over(&self) -> bool {
        self.shared.signals.stop.load(Ordering::Relaxed) || self.shared.impossible.load(Ordering::Relaxed)
    }

    /// Checks what is its own.
    fn check_all(mut self) {
        let mut looks = 0;
        self.shared.signals.ready.fetch_add(1, Ordering::Release);
        while self.next < u64::from(self.rules.posts) && !self.is_over() {
            self.look();
            looks = if self.check_some() { 0 } else { pause(looks) };
        }
    }

    /// Checks what is its own, and completes everything that is checked.
    fn execute_all(mut self) -> NicRun {
        let (mut run, mut looks) = (NicRun::default(), 0);
        // Since when it works without a pause. The clock takes as long as a few WQEs: it is read where a pause begins or ends.
        let mut since: Option<Instant> = None;
        self.shared.signals.ready.fetch_add(1, Ordering::Release);
        while run.executed < u64::from(self.rules.posts) && !self.is_over() {
            self.look();
            if self.told == run.executed {
                run.busy += since.take().map_or(Duration::ZERO, |since| since.elapsed());
                looks = pause(looks);
                continue;
            }
            since.get_or_insert_with(Instant::now);
            let did_check = self.check_some();
            let did_complete = self.complete_checked(&mut run);
            looks = if did_check || did_complete { 0 } else { pause(looks) };
        }
        run.busy += since.map_or(Duration::ZERO, |since| since.elapsed());
        run
    }

    /// Looks at the register.
    fn look(&mut self) {
        let register = self.device.register.load(Ordering::Acquire);
        if register == self.register {
            return;
        }
        self.register = register;
        let [_, high, low, ..] = register.to_ne_bytes();
        let behind = u16::from_be_bytes([high, low]).wrapping_add(u16::from(!self.rules.names_next));
        let more = u64::from(behind.wrapping_sub(self.told as u16));
        // Loaded behind the register, by whose store the poster had room.
        let reached = self.shared.reached.0.load(Ordering::Acquire);
        if (self.told + more).saturating_sub(reached) as usize > self.device.ring.len() / WORDS {
            if !self.shared.impossible.swap(true, Ordering::Relaxed) {
                self.note(reached, format!("the register tells of {more} WQEs at once: {register:#018x}"));
            }
            return;
        }
        self.told += more;
    }

    /// Checks what it was told of its chunk, and what it is told of meanwhile: the way of the next doorbell, and of its WQEs, from the GPU
    /// to this processor is not waited for while there is something to do. Whether there was something.
    fn check_some(&mut self) -> bool {
        let (blocks, _) = self.device.ring.as_chunks::<WORDS>();
        let block = |index: u64| &blocks[index as usize & (blocks.len() - 1)];
        let (begin, end) = (self.next, self.next - self.next % CHUNK + CHUNK);
        let mut at = begin;
        while at < self.told.min(end) {
            match at % LOOK {
                0 => prefetch(self.device.register),
                half if half == LOOK / 2 => self.look(),
                _ => {}
            }
            // Ahead in its own chunks, of which there is one in so many.
            while self.asked < self.told.min(at + AHEAD * UNITS) {
                prefetch(&block(self.asked)[0]);
                self.asked = own_behind(self.asked);
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
        self.asked = self.asked.max(self.next);
        // Behind the loads of what is checked: when it is completed it may be overwritten.
        self.shared.checked[self.number as usize].0.store(self.next, Ordering::Release);
        true
    }

    /// Completes what all units have checked. Whether there was something. WQEs that do not ask as they should are wrong already.
    fn complete_checked(&self, run: &mut NicRun) -> bool {
        let checked = (0..UNITS).map(|unit| {
            // A unit that has checked nothing is at its first chunk.
            let next = self.shared.checked[unit as usize].0.load(Ordering::Acquire);
            next.max(unit * CHUNK)
        });
        let end = checked.min().unwrap_or(0).min(self.told);
        if end == run.executed {
            return false;
        }
        // Before the CQEs: a poster that finds one may ring for as many.
        self.shared.reached.0.store(end, Ordering::Release);
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
        // Opcode and QPN of the WQE, its counter, and the owner byte: opcode 0, a requester's, and the lap's bit.
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

/// After a look that found nothing to do: lets the other half of the core go on, and others have the core after a while.
fn pause(looks: u32) -> u32 {
    match looks {
        ..PATIENCE => std::hint::spin_loop(),
        _ => std::thread::yield_now(),
    }
    looks.saturating_add(1)
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

    /// A ring with the first WQEs, and what a NIC makes of them: `change` is done to their words and to register and record.
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
        let told = blocks as u16 - u16::from(!rules.names_next);
        let [high, low] = told.to_be_bytes();
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
    fn what_is_wrong_is_named_and_completed_all_the_same() {
        type Change = fn(&mut [u64], &mut u64);
        let changes: [(Change, &str, u32); 6] = [
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
