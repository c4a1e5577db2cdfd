//! Payloads by reference: how the sender takes one back, and how the receiver holds one while it copies.
//!
//! A record that names memory of the sender carries a word of state. A card does not touch memory any more once
//! `dereg_mr`, `destroy_qp` or a move to RESET or ERR has returned; here the other process copies, so the sender's NIC
//! sets [`VOID`] in what still lies in a ring, and waits while [`HELD`] says that a copy is going on:
//!
//! | bit | set by | says |
//! |---|---|---|
//! | `HELD` | receiver | a copy is going on; cleared at its end |
//! | `DONE` | receiver | copied whole |
//! | `VOID` | sender | taken back: a receiver that has not finished behaves as if the record were lost on the way |
//!
//! Either side may write anything there at any time. A word that makes no sense is a payload taken back; a copy that does
//! not end within [`PATIENCE`] costs the peer its channel and the sender no more time. Its bytes still reach nobody: who sees
//! [`VOID`] after a copy reports none. One compare-and-swap and one more exchange a record, none for payloads in the ring.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::fabric::Process;
use super::shared_memory::Lane;
use crate::dma::{RingMemory, SharedMemory};

/// Words of state in a record by reference, before its segments.
pub const LOAN_WORDS: usize = 1;

pub(super) const HELD: u64 = 1;
pub(super) const DONE: u64 = 2;
pub(super) const VOID: u64 = 4;

/// A receiver looks at the word every few MiB of a copy, which takes it about a millisecond as a rule. Who takes longer than
/// this was stopped, or means harm; but pages that were swapped out, a throttled cgroup or an overloaded machine can take a
/// second too. The sender cannot tell, and gives the channel up: requests to that peer end with RETRY_EXC.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks at the word before the first sleep; the end of a copy is microseconds away as a rule.
const SPINS: u32 = 1_000;

/// How long a wait sleeps between two looks.
const NAP: Duration = Duration::from_micros(50);

/// What sender and loans share of a channel: it is mapped as long as one of them lives.
#[derive(Debug)]
pub(super) struct Lender {
    pub control: SharedMemory,
    pub rings: [RingMemory; 2],
    /// Where the receiver publishes its tails, in `control`.
    pub tails: [usize; 2],
    /// The receiver: nobody holds anything once it has ended. None: it is this process.
    pub receiver: OnceLock<Arc<Process>>,
    /// The receiver broke the rules: nothing more is sent to it, nothing waited for.
    pub given_up: AtomicBool,
}

impl Lender {
    fn tail(&self, lane: Lane) -> u64 {
        self.control.word(self.tails[lane as usize]).load(Ordering::Acquire)
    }
}

/// What became of a payload that was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenBack {
    /// The receiver was done with the record before.
    TooLate,
    /// The receiver has not got it, and will not touch the memory any more.
    InTime,
    /// The receiver holds it and does not let go. It can report nothing of it, and the channel to it is given up.
    Overdue,
}

/// The sender's side of one record by reference.
#[derive(Debug, Clone)]
pub struct Loan {
    lender: Arc<Lender>,
    lane: Lane,
    /// Position of the word of state.
    at: u64,
    /// Where the record ends.
    end: u64,
}

impl Loan {
    pub(super) fn new(lender: &Arc<Lender>, lane: Lane, at: u64, end: u64) -> Loan {
        Loan { lender: Arc::clone(lender), lane, at, end }
    }

    /// The word of state.
    #[cfg(test)]
    pub(super) fn word(&self) -> &AtomicU64 {
        self.lender.rings[self.lane as usize].word(self.at)
    }

    /// Whether the receiver is done with the record.
    pub fn is_over(&self) -> bool {
        // Before its tail is seen to pass here, the sender does not write over the record.
        self.lender.tail(self.lane).wrapping_sub(self.end) as i64 >= 0
    }

    /// Takes the payload back. Afterwards its memory is free for any use.
    pub fn take_back(&self) -> TakenBack {
        if self.is_over() {
            return TakenBack::TooLate;
        }
        let word = self.lender.rings[self.lane as usize].word(self.at);
        let mut seen = word.fetch_or(VOID, Ordering::AcqRel);
        let mut looks = 0;
        let mut began = None;
        loop {
            if seen & DONE != 0 {
                return TakenBack::TooLate;
            }
            if seen & HELD == 0 || self.lender.receiver.get().is_some_and(|process| process.has_ended()) {
                return TakenBack::InTime;
            }
            if self.lender.given_up.load(Ordering::Relaxed) {
                return TakenBack::Overdue;
            }
            looks += 1;
            if looks > SPINS {
                if began.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                    self.lender.given_up.store(true, Ordering::Relaxed);
                    return TakenBack::Overdue;
                }
                std::thread::sleep(NAP);
            }
            std::hint::spin_loop();
            seen = word.load(Ordering::Acquire);
        }
    }
}

impl PartialEq for Loan {
    fn eq(&self, other: &Loan) -> bool {
        Arc::ptr_eq(&self.lender, &other.lender) && (self.lane, self.at) == (other.lane, other.at)
    }
}

impl Eq for Loan {}

/// The receiver's side, while it copies.
#[derive(Debug)]
pub(super) struct Hold<'a>(&'a AtomicU64);

impl<'a> Hold<'a> {
    /// None: the payload was taken back.
    pub fn take(word: &'a AtomicU64) -> Option<Hold<'a>> {
        let seen = word.load(Ordering::Acquire);
        // What was copied and not consumed may be copied again.
        if seen & !DONE != 0 {
            return None;
        }
        word.compare_exchange(seen, HELD, Ordering::AcqRel, Ordering::Acquire).ok().map(|_| Hold(word))
    }

    /// Whether the sender has not asked for it back.
    pub fn is_granted(&self) -> bool {
        self.0.load(Ordering::Acquire) == HELD
    }

    /// Ends the copy. False: the payload was taken back meanwhile, so that whatever was copied counts for nothing.
    pub fn release(self, copied: bool) -> bool {
        let end = if copied { DONE } else { 0 };
        let granted = self.0.compare_exchange(HELD, end, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !granted {
            self.0.store(VOID, Ordering::Release);
        }
        granted
    }
}

/// Whether a record that nobody holds was taken back.
pub(super) fn is_void(word: &AtomicU64) -> bool {
    word.load(Ordering::Acquire) & !DONE != 0
}
