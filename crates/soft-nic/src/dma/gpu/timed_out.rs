//! Timed-out copies the GPU may still execute; their buffers stay quarantined until it reports completion.
//! A separate list and lock: deregistering a region does not wait for the message being copied.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::engine::{LIMIT, on_card};
use super::threads::threads;
use super::worker::Ticket;
use crate::os::{PerProcess, locked};

/// How long an answer is waited for that the driver gives at once when nothing keeps it.
const ANSWER: Duration = Duration::from_millis(250);

/// The engine that executes the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Engine,
    Mover,
}

/// A copy that the NIC waits for no more, and that the GPU may still execute.
#[derive(Debug)]
struct TimedOutCopy {
    card: u32,
    by: By,
    /// First byte written and first byte read, and how many of each; 0 if the copy never begins.
    ends: [u64; 2],
    len: u64,
    since: Instant,
    /// The worker's job, until it is done with it.
    job: Option<Ticket<Result<(), gpu::Error>>>,
    /// Whether the GPU is done with all of ours, and since when that is asked.
    asked: Option<(Ticket<Result<bool, gpu::Error>>, Instant)>,
}

enum CopyState {
    Ended,
    /// Asked just now: the answer comes.
    Asked,
    InFlight,
}

impl TimedOutCopy {
    /// One look; waits for nothing.
    fn look(&mut self) -> CopyState {
        if self.job.as_ref().is_some_and(|job| !job.is_done()) {
            return CopyState::InFlight;
        }
        self.job = None;
        if self.len == 0 {
            return CopyState::Ended;
        }
        let Ok(threads) = threads() else { return CopyState::InFlight };
        let (card, by) = (self.card, self.by);
        let ask = || {
            let idle = match by {
                By::Engine => threads.copies.post(move |cards, _| on_card(cards, card)?.is_idle()),
                By::Mover => threads.launches.post(move |cards, _| on_card(cards, card)?.is_idle()),
            };
            (idle, Instant::now())
        };
        let (ticket, since) = self.asked.get_or_insert_with(ask);
        if !ticket.is_done() {
            return if since.elapsed() < ANSWER { CopyState::Asked } else { CopyState::InFlight };
        }
        match self.asked.take().and_then(|(ticket, _)| ticket.take()) {
            Some(Ok(true)) => CopyState::Ended,
            // Nothing runs in a context that is lost.
            Some(Err(error)) if error.is_context_lost() || error.is_driver_gone() => CopyState::Ended,
            _ => CopyState::InFlight,
        }
    }

    fn touches(&self, start: u64, len: u64) -> bool {
        let overlaps = |at: &u64| *at < start.saturating_add(len) && start < at.saturating_add(self.len);
        self.ends.iter().any(overlaps)
    }
}

static ALL: PerProcess<Mutex<Vec<TimedOutCopy>>> = PerProcess::empty();
/// How many there are: without any, no lock is taken. A fork child may at first see its parent's number.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn with<R>(what: impl FnOnce(&mut Vec<TimedOutCopy>) -> R) -> R {
    let mut all = locked(ALL.get());
    let result = what(&mut all);
    COUNT.store(all.len(), Ordering::Release);
    result
}

fn exist() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Notes one: `ends` are the first bytes written and read, `len` bytes of each; 0 if it never begins.
pub fn note(card: u32, by: By, ends: [u64; 2], len: u64, job: Option<Ticket<Result<(), gpu::Error>>>) {
    with(|all| all.push(TimedOutCopy { card, by, ends, len, since: Instant::now(), job, asked: None }));
}

/// Looks at those that `concern` picks, forgets those that have ended, and shows the others.
fn look_at(concern: impl Fn(&TimedOutCopy) -> bool, mut shown: impl FnMut(&TimedOutCopy, CopyState)) {
    if !exist() {
        return;
    }
    let stays = |one: &mut TimedOutCopy| {
        if !concern(one) {
            return true;
        }
        let state = one.look();
        let has_ended = matches!(state, CopyState::Ended);
        if !has_ended {
            shown(one, state);
        }
        !has_ended
    };
    with(|all| all.retain_mut(stays));
}

/// Whether the engine of a GPU is kept by one. Waits for no more than an answer that comes at once.
pub fn keeps_engine(card: u32) -> bool {
    loop {
        let (mut kept, mut asked) = (false, false);
        look_at(
            |one| one.card == card && one.by == By::Engine,
            |_, state| {
                kept = true;
                asked |= matches!(state, CopyState::Asked);
            },
        );
        if !asked {
            return kept;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Whether one may still read or write there: such memory is used for nothing else, and stays where it is.
pub fn touches(start: u64, len: u64) -> bool {
    exist() && with(|all| all.iter().any(|one| one.touches(start, len)))
}

/// Waits until none reads or writes there any more; for each until two times [`LIMIT`] after it timed out or,
/// if `sure`, for as long as it takes.
pub fn await_end(start: u64, len: u64, sure: bool) {
    let mut rest = Duration::from_millis(1);
    loop {
        let mut waits = false;
        look_at(|one| one.touches(start, len), |one, _| waits |= sure || one.since.elapsed() < 2 * LIMIT);
        if !waits {
            return;
        }
        std::thread::sleep(rest);
        if sure {
            rest = (2 * rest).min(Duration::from_millis(50));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::testing::true_in_fork_child;

    #[test]
    fn regions_that_a_timed_out_copy_touches_wait_for_it_once_and_others_do_not() {
        // A job that is never done.
        let posted = Ticket::open();
        note(77, By::Engine, [0x1_0000_0000, 0x2_0000_0000], 0x1000, Some(posted));
        for (start, len, touched) in [
            (0x1_0000_0fff, 1, true),
            (0x1_0000_1000, 1, false),
            (0xffff_f000, 0x1000, false),
            (0xffff_f000, 0x1001, true),
            (0x2_0000_0000, u64::MAX, true),
        ] {
            assert_eq!(touches(start, len), touched, "{len:#x} at {start:#x}");
        }
        let since = Instant::now();
        assert!(keeps_engine(77) && !keeps_engine(76));
        await_end(0x3_0000_0000, 0x1000, false);
        assert!(since.elapsed() < LIMIT, "other regions do not wait for it");
        with(|all| all.iter_mut().for_each(|one| one.since = Instant::now() - 2 * LIMIT + LIMIT / 8));
        let since = Instant::now();
        for region in 0..500 {
            await_end(0x1_0000_0000 + region, 1, false);
        }
        assert!((LIMIT / 16..LIMIT).contains(&since.elapsed()), "{:?}", since.elapsed());
        // Whichever thread held the lock.
        let held = locked(ALL.get());
        assert!(true_in_fork_child(|| {
            await_end(0x1_0000_0000, 1, true);
            note(77, By::Engine, [0; 2], 0, None);
            !keeps_engine(77)
        }));
        drop(held);
        with(|all| all.retain(|one| one.card != 77));
    }
}
