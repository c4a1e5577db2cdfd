//! A model of a NIC on a host thread, for one queue: it executes what the doorbell tells of, checks each WQE, and completes it at once.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::LENGTH;
use super::content::{BLOCK, Pattern, REMOTE, Wrong, hex};

const WORDS: usize = BLOCK / 8;
/// How many WQEs ahead memory is asked for: the way from the GPU's last store to this processor is waited for once, not for each.
/// More than a core's buffers for lines on their way to its first cache (10 to 16), so the lines go to the second.
const AHEAD: u64 = 32;
/// One look at the register in so many WQEs, while there are some.
const LOOK: u64 = 8;
/// The bit of a WQE that asks for a completion, in its second word; and of the fourth word what [`super::content::Expected`] may leave free.
const ASKS: u64 = 8 << 24;
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

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicRun {
    pub executed: u64,
    pub completed: u64,
    /// Doorbells that told of something.
    pub doorbells: u64,
    /// Time from a doorbell to the first look that finds no other, of all.
    pub busy: Duration,
    /// The first thing that was wrong, and how many WQEs were.
    pub wrong: Option<Wrong>,
}

impl Device<'_> {
    /// Plays until all of `rules.posts` is executed, `stop` is set, or a doorbell tells of what cannot be.
    pub fn play(&self, rules: &Rules, stop: &AtomicBool) -> NicRun {
        let mut run = Run {
            device: self,
            rules,
            pattern: Pattern::of(rules.queue),
            seen: vec![false; rules.posts as usize],
            until_signal: rules.signal_every,
            register: 0,
            told: 0,
            asked: 0,
            played: NicRun::default(),
        };
        // Since when it works without a pause. The clock takes as long as a few WQEs: it is read where a pause begins or ends.
        let mut since: Option<Instant> = None;
        while run.played.executed < u64::from(rules.posts) && !stop.load(Ordering::Relaxed) {
            if !run.look() {
                break;
            }
            if run.told == run.played.executed {
                if let Some(since) = since.take() {
                    run.played.busy += since.elapsed();
                }
                std::hint::spin_loop();
                continue;
            }
            since.get_or_insert_with(Instant::now);
            if !run.execute() {
                break;
            }
        }
        run.played.busy += since.map_or(Duration::ZERO, |since| since.elapsed());
        run.played
    }
}

struct Run<'a> {
    device: &'a Device<'a>,
    rules: &'a Rules,
    pattern: Pattern,
    seen: Vec<bool>,
    /// WQEs up to the next that asks for a completion. Counted: a division for each WQE would take longer than the rest of its check.
    until_signal: u32,
    /// What the register said last, and up to where it and those before told of WQEs.
    register: u64,
    told: u64,
    /// Up to where memory was asked for.
    asked: u64,
    played: NicRun,
}

impl Run<'_> {
    /// Looks at the register. False: it tells of what cannot be.
    fn look(&mut self) -> bool {
        let register = self.device.register.load(Ordering::Acquire);
        if register == self.register {
            return true;
        }
        self.register = register;
        let [_, high, low, ..] = register.to_ne_bytes();
        let behind = u16::from_be_bytes([high, low]).wrapping_add(u16::from(!self.rules.names_next));
        let more = u64::from(behind.wrapping_sub(self.told as u16));
        if (self.told + more - self.played.executed) as usize > self.device.ring.len() / WORDS {
            self.note(format!("the register tells of {more} WQEs at once: {register:#018x}"));
            return false;
        }
        self.told += more;
        self.played.doorbells += u64::from(more > 0);
        true
    }

    /// Executes all that it was told of, and what it is told of meanwhile: the way of the next doorbell, and of its WQEs, from the GPU to
    /// this processor is not waited for while there is something to do. False: as [`Run::look`].
    fn execute(&mut self) -> bool {
        let (blocks, _) = self.device.ring.as_chunks::<WORDS>();
        let block = |index: u64| &blocks[index as usize & (blocks.len() - 1)];
        while self.played.executed < self.told {
            let index = self.played.executed;
            match index % LOOK {
                0 => prefetch(self.device.register),
                half if half == LOOK / 2 && !self.look() => return false,
                _ => {}
            }
            while self.asked < self.told.min(index + AHEAD) {
                prefetch(&block(self.asked)[0]);
                self.asked += 1;
            }
            let words = block(index);
            let wqe = std::array::from_fn(|word| words[word].load(Ordering::Relaxed));
            self.until_signal -= 1;
            let asks = self.until_signal == 0;
            if asks {
                self.until_signal = self.rules.signal_every;
            }
            self.check(&wqe, asks);
            if wqe[1] & ASKS != 0 {
                self.complete();
            }
            self.played.executed += 1;
        }
        true
    }

    fn check(&mut self, found: &[u64; 6], asks: bool) {
        let Rules { in_order, reserved_free, posts, .. } = *self.rules;
        let index = self.played.executed;
        let message = found[2].swap_bytes().wrapping_sub(REMOTE) / u64::from(LENGTH);
        if message >= u64::from(posts) {
            return self.note(format!("remote address {:#x} is of no message", found[2].swap_bytes()));
        }
        let known = std::mem::replace(&mut self.seen[message as usize], true);
        let wanted = self.pattern.wqe(index, message as u32, asks);
        let mut read = *found;
        if reserved_free {
            read[3] &= !RESERVED;
        }
        // Without a call to compare memory.
        if read.iter().zip(&wanted).fold(0, |other, (a, b)| other | (a ^ b)) != 0 {
            self.note(format!(
                "message {message} is {}, the host's shim writes {}",
                words(found),
                words(&wanted)
            ));
        } else if known || (in_order && message != index) {
            self.note(format!("message {message} once more, or not in its place"));
        }
    }

    fn complete(&mut self) {
        let Device { cq, consumer, .. } = self.device;
        let (cqe, entries) = (self.played.completed, (cq.len() / WORDS) as u64);
        let given_back = u64::from(u32::from_be(consumer.load(Ordering::Relaxed)));
        if self.rules.cqes == Cqes::InOrder
            && cqe.wrapping_sub(given_back) & u64::from(CONSUMER_BITS) >= entries
        {
            self.note(format!("the CQ is overrun: {cqe} CQEs, {given_back} given back"));
        }
        let (at, lap) = match self.rules.cqes {
            Cqes::Collapsed => (0, 0),
            _ => (cqe & (entries - 1), u8::from(cqe & entries != 0)),
        };
        let [_, q0, q1, q2] = (super::content::QPN + self.rules.queue).to_be_bytes();
        let [high, low] = (self.played.executed as u16).to_be_bytes();
        let (tail, rest) = cq[at as usize * WORDS..][..WORDS].split_last().expect("an entry has words");
        rest.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // Opcode and QPN of the WQE, its counter, and the owner byte: opcode 0, a requester's, and the lap's bit.
        tail.store(u64::from_ne_bytes([8, q0, q1, q2, high, low, 0, lap]), Ordering::Release);
        self.played.completed += 1;
    }

    #[cold]
    fn note(&mut self, what: String) {
        let Rules { posts: all, queue, .. } = *self.rules;
        let index = self.played.executed;
        match &mut self.played.wrong {
            Some(wrong) => wrong.bad += 1,
            None => self.played.wrong = Some(Wrong { bad: 1, all, queue, block: index as u32, what }),
        }
    }
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

    const POSTS: u32 = 40;
    const BLOCKS: usize = 16;

    /// A ring with the first WQEs, and what a NIC makes of them: `change` is done to their words and to register and record.
    fn played(rules: Rules, cqes: usize, change: impl Fn(&mut [u64], &mut u64)) -> (NicRun, Vec<u64>) {
        let pattern = Pattern::of(rules.queue);
        let mut ring: Vec<u64> = Vec::new();
        for index in 0..BLOCKS as u64 {
            let signaled = (index + 1).is_multiple_of(u64::from(rules.signal_every));
            ring.extend(pattern.wqe(index, index as u32, signaled).into_iter().chain([0, 0]));
        }
        let told = BLOCKS as u16 - u16::from(!rules.names_next);
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
        let played = device.play(&Rules { posts: BLOCKS as u32, ..rules }, &AtomicBool::new(false));
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
