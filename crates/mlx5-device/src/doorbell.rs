//! Doorbells of a send queue: what register and record say, and whether they agree as a card demands.
//!
//! A card starts work when a register is written; a record alone starts nothing. libmlx5 stores the record,
//! then the register. So a queue with its own register is executed only up to its register writes. A write
//! counts only if the record has caught up. On a shared register one write hides the one before from a NIC
//! that polls. There the record is executed, and the NIC reports that it cannot check. No command names a
//! queue's register: it is learned from the writes (two a page, `mlx5.c`; see `uar.rs`).

use roce::Now;

use crate::config::DoorbellOrder;

/// Least time between looks at a busy queue's page, or at its record if it is executed by record, ns. Each
/// look takes the line from the program's core, where the next doorbell then waits for it.
pub const LOOK_NS: u64 = 500;

/// A record that agrees with the register is read again after this, ns: only faulty drivers move it alone.
const RECORD_NS: u64 = 4_000;

/// Least time between two looks that count against a disagreement of record and register, ns.
const APART_NS: u64 = 10_000_000;

/// How long record and register may disagree, ns: a driver may lose its core between the two stores.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// Looks that count until a disagreement is reported. Not time alone: in a stopped or starved process, the
/// NIC's thread does not look either.
pub(super) const LOOKS: u32 = (PATIENCE_NS / APART_NS) as u32;

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
}

/// Record and register, while they disagree.
#[derive(Debug, Clone)]
struct Disagreement {
    /// Looks that count, [`LOOKS`] at most: then it was reported.
    looks: u32,
    /// When the last one of them was, or the first look.
    last: Now,
    /// Meanwhile the page saw a write for a queue that is not there.
    stray: bool,
}

impl SendDoorbell {
    pub(super) fn new(page: u32, unchecked: bool) -> SendDoorbell {
        SendDoorbell { page, unchecked, ..SendDoorbell::default() }
    }

    /// Whether a violation was reported and the record stands: nothing happens until one of both moves.
    pub(super) fn is_stuck(&self, record: u16) -> bool {
        self.read.0 == record && self.disagreement.as_ref().is_some_and(|it| it.looks == LOOKS)
    }

    /// The doorbell of a queue that begins anew: what was learned about registers stays.
    pub(super) fn anew(&self) -> SendDoorbell {
        let SendDoorbell { page, register, unchecked, noted, .. } = *self;
        SendDoorbell { register, noted, ..SendDoorbell::new(page, unchecked) }
    }

    /// A register write announced `next`. `fetched`: blocks executed so far; `posted`: the record now. They
    /// and `next` are 16-bit counters, compared by their distance from `fetched`.
    pub(super) fn ring(&mut self, next: u16, fetched: u16, posted: u16, order: DoorbellOrder) {
        let distance = |to: u16| to.wrapping_sub(fetched);
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
    }

    /// Record and register disagree in this look. `stray`: the page's last write named a queue that is not
    /// there. Returns the number of looks that count, if this is one of them and nothing was reported yet.
    pub(super) fn disagrees(&mut self, now: Now, stray: bool) -> Option<u32> {
        let first = Disagreement { looks: 0, last: now, stray };
        let it = self.disagreement.get_or_insert(first);
        it.stray |= stray;
        if it.looks == LOOKS || now.0.saturating_sub(it.last.0) < APART_NS {
            return None;
        }
        (it.looks, it.last) = (it.looks + 1, now);
        Some(it.looks)
    }

    /// What is wrong while record and register disagree. `range`: the record is beyond the ring.
    pub(super) fn violation(&self, range: bool) -> Violation {
        let is_stray = self.disagreement.as_ref().is_some_and(|it| it.stray);
        match (range, self.refused) {
            (true, _) => Violation::RecordRange,
            (_, Some(_)) => Violation::RecordLate,
            _ if is_stray => Violation::WrongQpn,
            _ => Violation::Missing,
        }
    }

    /// Whether record and register disagree, as yet unreported, so that the queue must be looked at again.
    pub(super) fn is_watched(&self) -> bool {
        self.disagreement.as_ref().is_some_and(|it| it.looks < LOOKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Replays stores as the NIC sees them: `r` the record, `d` a doorbell; returns the limit after each.
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

    /// The violation that is reported in a look at this time, if record and register disagree.
    fn look(doorbell: &mut SendDoorbell, ms: u64, stray: bool) -> Option<Violation> {
        let looks = doorbell.disagrees(Now(ms * MS), stray);
        looks.filter(|looks| *looks == LOOKS).map(|_| doorbell.violation(false))
    }

    #[test]
    fn a_disagreement_is_reported_once_after_a_hundred_looks_that_are_ten_milliseconds_apart() {
        for (step, wanted) in [(1, 1000), (7, 1400), (10, 1000), (25, 2500), (60_000, 6_000_000)] {
            let mut doorbell = SendDoorbell::default();
            for start in [0, 100_000_000] {
                let mut reported = (0..300_000).map(|look| start + look * step);
                let reported = reported.by_ref().filter(|ms| look(&mut doorbell, *ms, false).is_some());
                assert_eq!(reported.collect::<Vec<_>>(), [start + wanted], "a look each {step} ms");
                doorbell.agrees();
            }
        }
    }

    #[test]
    fn agreement_ends_a_disagreement() {
        let mut doorbell = SendDoorbell::default();
        for ms in 0..5000 {
            if ms % 990 == 0 {
                doorbell.agrees();
            }
            assert_eq!(look(&mut doorbell, ms, false), None, "{ms}");
        }
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
        assert_eq!(look(&mut watched, 0, false), None);
        assert_eq!(watched.recent_record(Now(0), true), None, "record and register disagreed a moment ago");
    }

    #[test]
    fn each_record_that_is_covered_has_a_time_of_its_own() {
        let mut doorbell = SendDoorbell::default();
        // A poster that is always one ahead of what the NIC saw rung, because it posts all the time.
        for ms in 0..5000u16 {
            doorbell.ring(ms, ms.saturating_sub(1), ms + 1, DoorbellOrder::Strict);
            assert_eq!(look(&mut doorbell, ms.into(), false), None, "{ms}");
        }
        let last = (5000..9000).filter_map(|ms| look(&mut doorbell, ms, false));
        assert_eq!(last.count(), 1, "the last one was never rung");
    }

    #[test]
    fn a_reported_queue_is_stuck_until_its_record_moves_or_its_register_covers_it() {
        let mut doorbell = SendDoorbell::default();
        doorbell.note_record(4, Now(0));
        let reported = (0..=1000).filter(|ms| look(&mut doorbell, *ms, false).is_some()).count();
        assert_eq!((reported, doorbell.is_watched()), (1, false));
        assert_eq!([4, 5].map(|record| doorbell.is_stuck(record)), [true, false]);
        doorbell.ring(2, 0, 4, DoorbellOrder::Strict);
        assert!(!doorbell.is_stuck(4), "a register write covers a part of it");
    }

    #[test]
    fn the_kind_of_violation_is_named() {
        for (refused, range, strays, wanted) in [
            (None, false, [false; 2], Violation::Missing),
            (None, false, [true, false], Violation::WrongQpn),
            (None, false, [false, true], Violation::WrongQpn),
            (Some(3), false, [false; 2], Violation::RecordLate),
            (None, true, [true; 2], Violation::RecordRange),
        ] {
            let mut doorbell = SendDoorbell { refused, ..SendDoorbell::default() };
            for (ms, stray) in strays.into_iter().enumerate() {
                look(&mut doorbell, ms as u64, stray);
            }
            assert_eq!(doorbell.violation(range), wanted);
        }
    }
}
