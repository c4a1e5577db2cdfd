//! The order of queues: active ones are looked at in every poll, all others in the background.
//!
//! A thousand open queues must not slow down the active one, but must be looked at within a millisecond. So
//! time paces the background walk: each poll looks at as many as complete one round in [`ROUND_NS`].

use std::ops::Range;

use roce::Now;

use crate::carrier::COPIED_AT_ONCE;

/// Packets of a queue sent over the wire in one poll: leaves time for arrivals and room for other queues.
pub(super) const PACKETS_AT_ONCE: usize = 32;

/// Every queue is looked at once in this time.
const ROUND_NS: u64 = 500_000;

/// The background walks move on so often, by as many as the time since asks for.
const STEP_NS: u64 = 4_000;

/// A queue where nothing moved for this long goes to the background.
const COOL_NS: u64 = 1_000_000;

/// Scheduling state of a QP.
#[derive(Debug, Default)]
pub(super) struct SchedState {
    /// Place in the NIC's table.
    pub place: u32,
    /// Listed for being looked at in every poll.
    pub hot: bool,
    /// Listed for sending replies.
    pub replying: bool,
    /// Last time that something moved.
    pub active: Now,
}

impl SchedState {
    /// Whether the queue may go to the background.
    pub(super) fn has_cooled(&self, now: Now) -> bool {
        now.0.saturating_sub(self.active.0) > COOL_NS
    }
}

/// QPs that run in every poll, by their places.
#[derive(Debug, Default)]
pub(super) struct RunList {
    pub list: Vec<u32>,
    /// Bytes that the present poll may still copy into rings on their behalf.
    pub bytes_left: u64,
    /// One of them has moved in the present poll.
    moved: bool,
    /// Where in the list the first one behind that is that had something to send and could send nothing.
    refused: Option<usize>,
}

impl RunList {
    /// A poll begins: with the QP that was refused in the last one, or with the next one each time.
    pub(super) fn begin(&mut self, next: bool) {
        (self.bytes_left, self.moved) = (COPIED_AT_ONCE, false);
        let first = self.refused.take().unwrap_or(usize::from(next));
        if (1..self.list.len()).contains(&first) {
            self.list.rotate_left(first);
        }
    }

    /// A copy was made for one of them; behind one that took long the others wait for the next poll.
    pub(super) fn copied(&mut self, bytes: u32, lagged: bool) {
        self.bytes_left = if lagged { 0 } else { self.bytes_left.saturating_sub(bytes.into()) };
    }

    /// The QP here has done so much; `waits`: it has something to send still. One that waits while none
    /// before it moved, as for a peer that does not read, keeps its place and does not hide the others.
    pub(super) fn note(&mut self, at: usize, done: usize, waits: bool) {
        if done > 0 {
            self.moved = true;
        } else if waits && self.moved {
            self.refused.get_or_insert(at);
        }
    }
}

/// Lists of places in the NIC's tables.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// QPs to look at in every poll.
    pub hot: RunList,
    /// QPs with replies to send.
    pub replying: RunList,
    /// QPs that the background walk found worth a look; kept for its memory.
    pub found: Vec<u32>,
    /// The last poll asked the wire what has come.
    pub asked_wire: bool,
    /// Number of the present poll.
    pub round: u64,
    /// The background's walk round the QPs.
    pub queues: Walk,
    /// Time of the next step of the walks.
    next_step: Now,
}

/// A walk round a table, paced by time.
#[derive(Debug, Default)]
pub(super) struct Walk {
    at: u32,
    last: Now,
    /// Part of an element that was due and not taken, in units of 1 / [`ROUND_NS`].
    rest: u64,
}

impl Walk {
    /// Places to look at now, in a table of `bound` places, in two pieces where they go round the end.
    pub(super) fn places(&mut self, now: Now, bound: u32) -> [Range<u32>; 2] {
        let elapsed = now.0.saturating_sub(self.last.0).min(ROUND_NS);
        self.last = self.last.max(now);
        let due = self.rest + elapsed * u64::from(bound);
        if due < ROUND_NS {
            // Most polls: nothing is due yet, and no division says so.
            self.rest = due;
            return [0..0, 0..0];
        }
        self.rest = due % ROUND_NS;
        let count = (due / ROUND_NS).min(u64::from(bound)) as u32;
        if self.at >= bound {
            self.at = 0;
        }
        let first = self.at;
        if bound > 0 {
            self.at = (first + count) % bound;
        }
        let end = first + count;
        [first..end.min(bound), 0..end.saturating_sub(bound)]
    }
}

impl Schedule {
    /// Something moved at this queue: look at it in every poll.
    #[inline]
    pub(super) fn heat(&mut self, sched: &mut SchedState, now: Now) {
        sched.active = now;
        if !std::mem::replace(&mut sched.hot, true) {
            self.hot.list.push(sched.place);
        }
    }

    /// A queue has replies to send.
    #[inline]
    pub(super) fn list_replying(&mut self, sched: &mut SchedState) {
        if !std::mem::replace(&mut sched.replying, true) {
            self.replying.list.push(sched.place);
        }
    }

    pub(super) fn forget_qp(&mut self, place: u32) {
        self.hot.list.retain(|p| *p != place);
        self.replying.list.retain(|p| *p != place);
    }

    /// Whether background walks move on now: every [`STEP_NS`], so that most polls of a busy NIC skip them.
    pub(super) fn background_is_due(&mut self, now: Now) -> bool {
        if now < self.next_step {
            return false;
        }
        self.next_step = now.after(STEP_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_its_time_however_often_it_is_asked() {
        for step in [100, 1_000, 33_333, 2_000_000] {
            let mut walk = Walk::default();
            let mut seen = vec![0u32; 1000];
            let mut now = 0;
            while now < 10 * ROUND_NS {
                now += step;
                walk.places(Now(now), 1000).into_iter().flatten().for_each(|place| seen[place as usize] += 1);
            }
            let (least, most) = (seen.iter().min(), seen.iter().max());
            let rounds = if step > ROUND_NS { now / step } else { 10 } as u32;
            assert!(
                least >= Some(&(rounds - 1)) && most <= Some(&(rounds + 1)),
                "{step} ns: {least:?} {most:?}"
            );
        }
    }

    #[test]
    fn queues_round_the_end_come_in_two_pieces() {
        let mut walk = Walk::default();
        let _ = walk.places(Now(1 << 40), 10);
        let mut at = |ns: u64| walk.places(Now((1 << 40) + ns), 10).map(|piece| (piece.start, piece.end));
        assert_eq!(at(ROUND_NS * 7 / 10), [(0, 7), (0, 0)]);
        assert_eq!(at(ROUND_NS * 12 / 10), [(7, 10), (0, 2)]);
        assert_eq!(at(ROUND_NS * 12 / 10), [(0, 0), (0, 0)], "nothing is due");
    }

    #[test]
    fn an_empty_table_is_no_trouble() {
        let mut walk = Walk { at: 7, ..Walk::default() };
        assert_eq!(walk.places(Now(1 << 40), 0), [0..0, 0..0]);
    }
}
