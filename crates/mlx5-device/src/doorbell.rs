//! Doorbells of a send queue: what register and record say, and whether they agree as a card demands.
//!
//! A card starts work when a register is written; a record alone starts nothing. libmlx5 stores the record first, then the
//! register. A queue that has a register of its own is therefore executed only up to what its register writes cover, and a
//! register write counts only if the record has caught up with it. Where queues share a register one write hides the one
//! before it from a NIC that polls, so there the record is executed, and the NIC says that it cannot check.
//! Which register a queue rings is in no command: it is learned from the writes (two registers a page, `mlx5.c`; see `uar.rs`).

use std::sync::Arc;

use roce::Now;

use crate::config::DoorbellOrder;
use crate::threads::{ThreadTime, any_starved};

/// While a queue's messages are outstanding, its page, or the record of one that is executed by record, is looked at so often at most.
/// Each look takes the line from the program's core, where the next doorbell then waits for it.
pub const LOOK_NS: u64 = 500;

/// A record that agrees with what was rung is read again after this time. Only a driver that forgets the register moves it alone.
const RECORD_NS: u64 = 4_000;

/// How long record and register may disagree: a driver stores one right after the other.
pub const GRACE_NS: u64 = 10_000_000;

/// Between two looks at the program's threads. A poster that had no core from one to the other was taken off it between its
/// two stores, or may have been: it gets another window.
const WINDOW_NS: u64 = GRACE_NS / 2;

/// Windows until the NIC stops excusing a queue: one second while the NIC itself has a core, which a machine with work for
/// a hundred cores may need. Counted in windows, so that a process that was stopped for long is not accused for that.
const MAX_WINDOWS: u32 = (1_000_000_000 / WINDOW_NS) as u32;

/// What a driver did wrong with its doorbells: what happened, and what would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Violation {
    #[error("the record moved but no register was written; write it after the record")]
    Missing,
    #[error("the register write named another QP; write what this QP's WQE begins with")]
    WrongQpn,
    #[error("the register was written before the record; fence between the two")]
    RecordLate,
    #[error("the record is further ahead than the ring is long; post less at a time")]
    RecordRange,
}

impl Violation {
    /// Every kind, in the order of the counters.
    pub const ALL: [Violation; 4] =
        [Violation::Missing, Violation::WrongQpn, Violation::RecordLate, Violation::RecordRange];
}

/// The doorbell side of one send queue.
#[derive(Debug, Clone, Default)]
pub(super) struct SendDoorbell {
    /// Page named at creation (table index).
    pub page: u32,
    /// Register that was seen to ring for the queue.
    pub register: Option<u8>,
    /// Execute by record.
    pub unchecked: bool,
    /// Counted among the unchecked queues.
    pub noted: bool,
    covered: u16,
    /// The record as it was read last, and when.
    read: (u16, Now),
    refused: Option<u16>,
    disagreement: Option<Disagreement>,
    reported: bool,
    /// Record at which a violation was reported: nothing more happens until one of the two moves.
    stuck_at: Option<u16>,
}

impl SendDoorbell {
    pub(super) fn new(page: u32, unchecked: bool) -> SendDoorbell {
        SendDoorbell { page, unchecked, ..SendDoorbell::default() }
    }

    /// Notes the record at which a violation was reported.
    pub(super) fn stuck(&mut self, record: Option<u16>) {
        self.stuck_at = record;
    }

    /// Whether a violation was reported with the record as it is now, and no register was written since.
    pub(super) fn is_stuck(&self, record: u16) -> bool {
        self.reported && self.stuck_at == Some(record)
    }

    /// Back to the state of a new queue; what was learned about registers stays.
    pub(super) fn reset(&mut self) {
        *self = SendDoorbell {
            register: self.register,
            noted: self.noted,
            ..SendDoorbell::new(self.page, self.unchecked)
        };
    }

    /// A register write announced `next`. `fetched`: blocks executed so far; `posted`: what the record says now; both and
    /// `next` are 16-bit counters, compared by their distance from `fetched`.
    pub(super) fn ring(&mut self, next: u16, fetched: u16, posted: u16, order: DoorbellOrder) {
        let distance = |to: u16| to.wrapping_sub(fetched);
        self.stuck_at = None;
        if distance(next) <= distance(posted) {
            if distance(next) > distance(self.covered) || distance(self.covered) > 0x8000 {
                self.covered = next;
                // The record that was waited for is covered; a newer one has its own time.
                self.disagreement = None;
            }
            self.refused = self.refused.filter(|r| distance(*r) > distance(self.covered));
        } else if distance(next) <= 0x8000 {
            // Further back than a ring is long: a repeated doorbell for what is done already.
            match order {
                DoorbellOrder::Strict => self.refused = Some(next),
                DoorbellOrder::Early => self.covered = next,
            }
        }
    }

    /// The record was read.
    pub(super) fn note_record(&mut self, record: u16, now: Now) {
        self.read = (record, now);
    }

    /// The record as it was read last, where it need not be read again yet. `idle`: nothing is outstanding.
    pub(super) fn recent_record(&self, now: Now, idle: bool) -> Option<u16> {
        let (record, at) = self.read;
        let lasts_ns = match self.unchecked {
            true if idle => 0,
            true => LOOK_NS,
            false if self.covered == record && self.disagreement.is_none() => RECORD_NS,
            false => 0,
        };
        (now.0.saturating_sub(at.0) < lasts_ns).then_some(record)
    }

    /// Up to where the queue may be executed.
    pub(super) fn limit(&self, fetched: u16, posted: u16) -> u16 {
        let distance = |to: u16| to.wrapping_sub(fetched);
        if self.unchecked || distance(self.covered) > distance(posted) {
            // An early doorbell is ahead of its record: what the record covers is covered.
            return if self.unchecked || distance(self.covered) <= 0x8000 { posted } else { fetched };
        }
        self.covered
    }

    /// Record and register agree: whatever was watched is over.
    pub(super) fn agrees(&mut self) {
        self.disagreement = None;
        self.reported = false;
    }

    /// Watches record and register disagree. Some: they have for [`GRACE_NS`] and no thread lacks a core, said once. `range`:
    /// the record is beyond the ring, which no delay explains; `stray`: the page saw a write for a queue that is not there;
    /// `look`: how the program's threads stand, asked for twice at least and only after half of the time.
    pub(super) fn watch(
        &mut self,
        now: Now,
        range: bool,
        stray: bool,
        look: impl FnOnce() -> Arc<[ThreadTime]>,
    ) -> Option<Violation> {
        let disagreement = self.disagreement.get_or_insert_with(|| Disagreement::new(now));
        if self.reported || !(if range { disagreement.lasts(now) } else { disagreement.is_proven(now, look) })
        {
            return None;
        }
        self.reported = true;
        Some(match (range, self.refused) {
            (true, _) => Violation::RecordRange,
            (_, Some(_)) => Violation::RecordLate,
            _ if stray => Violation::WrongQpn,
            _ => Violation::Missing,
        })
    }

    /// Whether record and register were seen to disagree for [`GRACE_NS`], excused or not, and nothing was said yet.
    pub(super) fn is_overdue(&self, now: Now) -> bool {
        !self.reported && self.disagreement.as_ref().is_some_and(|disagreement| disagreement.lasts(now))
    }

    /// Whether record and register disagree now, so that the queue must be looked at again.
    pub(super) fn is_watched(&self) -> bool {
        self.disagreement.is_some() && !self.reported
    }
}

/// A record ahead of its register, until they agree again.
#[derive(Debug, Clone)]
struct Disagreement {
    since: Now,
    /// The last look at the program's threads.
    seen: Option<(Now, Arc<[ThreadTime]>)>,
    windows: u32,
    /// No thread without a core was found. The registers were read before that look; they are read once more.
    unexcused: Option<Now>,
}

impl Disagreement {
    fn new(since: Now) -> Disagreement {
        Disagreement { since, seen: None, windows: 0, unexcused: None }
    }

    fn lasts(&self, now: Now) -> bool {
        now.0.saturating_sub(self.since.0) >= GRACE_NS
    }

    fn is_proven(&mut self, now: Now, look: impl FnOnce() -> Arc<[ThreadTime]>) -> bool {
        if let Some(then) = self.unexcused {
            return now > then;
        }
        let from = self.seen.as_ref().map_or(self.since, |(at, _)| *at);
        if now.0.saturating_sub(from.0) < WINDOW_NS {
            return false;
        }
        self.windows += 1;
        let threads = look();
        let excused = match &self.seen {
            Some((_, before)) => self.windows < MAX_WINDOWS && any_starved(before, &threads),
            // Half of the time has passed, or the NIC itself had no core: the window begins now.
            None => true,
        };
        if excused {
            self.seen = Some((now, threads));
        } else {
            self.unexcused = Some(now);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Replays stores as the NIC sees them: `r` the record's value, `d` a doorbell, and asks what may be executed.
    fn limits(order: DoorbellOrder, start: u16, steps: &[(char, u16)]) -> Vec<u16> {
        let mut doorbell = SendDoorbell { covered: start, ..SendDoorbell::new(0, false) };
        let mut record = start;
        let step = |(what, value): &(char, u16)| {
            match what {
                'r' => record = start.wrapping_add(*value),
                _ => doorbell.ring(start.wrapping_add(*value), start, record, order),
            }
            doorbell.limit(start, record).wrapping_sub(start)
        };
        steps.iter().map(step).collect()
    }

    #[test]
    fn only_what_a_register_write_covers_is_executed() {
        use DoorbellOrder::{Early, Strict};
        for (name, order, steps, wanted) in [
            ("record, then register", Strict, &[('r', 4), ('d', 4)][..], &[0, 4][..]),
            ("record only", Strict, &[('r', 4)], &[0]),
            ("register of the first of two", Strict, &[('r', 8), ('d', 4)], &[0, 4]),
            ("register before the record", Strict, &[('d', 4), ('r', 4)], &[0, 0]),
            ("and again after it, as gpunetio does", Strict, &[('d', 4), ('r', 4), ('d', 4)], &[0, 0, 4]),
            ("a later one covers the early one", Strict, &[('d', 4), ('r', 8), ('d', 8)], &[0, 0, 8]),
            ("the same, where early ones count", Early, &[('d', 4), ('r', 4)], &[0, 4]),
            ("early, record half way", Early, &[('d', 8), ('r', 4), ('r', 8)], &[0, 4, 8]),
            ("an old doorbell again", Strict, &[('r', 8), ('d', 8), ('d', 0xfff0)], &[0, 8, 8]),
            ("a whole ring of 32768 blocks", Strict, &[('r', 0x8000), ('d', 0x8000)], &[0, 0x8000]),
        ] {
            for start in [0, 0x7ffe, 0xfffe] {
                assert_eq!(limits(order, start, steps), wanted, "{name}, from {start:#x}");
            }
        }
    }

    fn nobody() -> Arc<[ThreadTime]> {
        Arc::default()
    }

    #[test]
    fn disagreement_is_reported_once_and_after_ten_milliseconds() {
        let mut doorbell = SendDoorbell::new(0, false);
        let mut at = |ms: u64, agree| {
            if agree {
                doorbell.agrees();
                return None;
            }
            doorbell.watch(Now(ms * MS), false, false, nobody)
        };
        assert_eq!([at(0, false), at(5, false), at(9, false), at(10, true)], [None; 4], "it agreed in time");
        assert_eq!([at(20, false), at(25, false), at(29, false), at(30, false)], [None; 4]);
        assert_eq!(at(31, false), Some(Violation::Missing), "the registers were read once more");
        assert_eq!(at(60, false), None, "once");
        assert_eq!([at(70, true), at(71, false), at(76, false), at(81, false)], [None; 4]);
        assert_eq!(at(82, false), Some(Violation::Missing), "a new incident");
    }

    #[test]
    fn a_record_is_read_again_where_it_may_have_moved() {
        let recent = |unchecked, covered, idle, ns| {
            let mut doorbell = SendDoorbell { covered, ..SendDoorbell::new(0, unchecked) };
            doorbell.note_record(7, Now(MS));
            doorbell.recent_record(Now(MS + ns), idle)
        };
        for idle in [true, false] {
            assert_eq!([0, 3_999, 4_000].map(|ns| recent(false, 7, idle, ns)), [Some(7), Some(7), None]);
            assert_eq!(recent(false, 6, idle, 0), None, "a register write is waited for");
        }
        assert_eq!(recent(true, 7, true, 0), None, "the record is what rings");
        assert_eq!([0, 499, 500].map(|ns| recent(true, 6, false, ns)), [Some(7), Some(7), None]);
        let mut watched = SendDoorbell::new(0, false);
        watched.note_record(0, Now(0));
        assert_eq!(watched.watch(Now(0), false, false, nobody), None);
        assert_eq!(watched.recent_record(Now(0), true), None, "record and register disagreed a moment ago");
    }

    #[test]
    fn a_nic_without_a_core_accuses_nobody_before_it_looked_twice() {
        let mut doorbell = SendDoorbell::new(0, false);
        let mut at = |ms: u64| doorbell.watch(Now(ms * MS), false, false, nobody);
        assert_eq!([at(0), at(5000), at(5004), at(5005)], [None; 4]);
        assert_eq!(at(5006), Some(Violation::Missing));
    }

    #[test]
    fn each_record_that_is_covered_has_a_time_of_its_own() {
        let mut doorbell = SendDoorbell::new(0, false);
        // A poster that is always one ahead of what the NIC saw rung, because it posts all the time.
        for ms in 0..50u16 {
            doorbell.ring(ms, ms.saturating_sub(1), ms + 1, DoorbellOrder::Strict);
            let now = Now(u64::from(ms) * MS);
            assert_eq!(doorbell.watch(now, false, false, nobody), None, "{ms}");
        }
        let last = (50..70).filter_map(|ms| doorbell.watch(Now(ms * MS), false, false, nobody));
        assert_eq!(last.count(), 1, "the last one was never rung");
    }

    #[test]
    fn the_kind_of_violation_is_named() {
        for (refused, range, stray, wanted) in [
            (None, false, false, Violation::Missing),
            (None, false, true, Violation::WrongQpn),
            (Some(3), false, false, Violation::RecordLate),
            (None, true, true, Violation::RecordRange),
        ] {
            let mut doorbell = SendDoorbell { refused, ..SendDoorbell::new(0, false) };
            let mut at = |ms: u64| doorbell.watch(Now(ms * MS), range, stray, nobody);
            let said: Vec<_> = (0..=11).filter_map(&mut at).collect();
            assert_eq!(said, [wanted]);
        }
    }
}
