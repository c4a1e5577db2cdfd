//! Warp-wide intrinsics among a warp's lanes: which arrived with which mask, and what each brought.
//!
//! Rules as in [`crate::barriers`]: lanes meet at the same intrinsic with the same mask. Knows no stacks.

use crate::site::LaneAction;

/// Lanes of a warp.
pub const WARP: usize = 32;

/// A lane's call of a warp-wide intrinsic.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Which intrinsic.
    pub what: LaneAction,
    /// Lanes of the warp that take part.
    pub mask: u32,
    /// What this lane brings.
    pub value: u64,
}

/// Lanes that meet at one intrinsic.
#[derive(Debug, Clone)]
struct Convergence {
    what: LaneAction,
    mask: u32,
    arrived: u32,
    /// Lanes that have not taken what the others brought. 0 before all have arrived.
    unread: u32,
    /// Lanes that brought anything but 0.
    votes: u32,
    values: [u64; WARP],
}

/// The meetings of one warp's lanes; a lane is in one at a time.
#[derive(Debug, Clone, Default)]
pub struct Warp {
    meetings: Vec<Convergence>,
}

impl Warp {
    /// A lane arrives: which meeting that is, and whether it was the last.
    pub fn arrive(&mut self, lane: usize, call: Call) -> (usize, bool) {
        let Call { what, mask, value } = call;
        let is_ours = |meeting: &Convergence| {
            meeting.arrived != 0 && meeting.unread == 0 && meeting.mask == mask && meeting.what == what
        };
        let index = match self.meetings.iter().position(is_ours) {
            Some(index) => index,
            None => self.open(what, mask),
        };
        let meeting = &mut self.meetings[index];
        meeting.arrived |= 1 << lane;
        meeting.values[lane] = value;
        meeting.votes |= u32::from(value != 0) << lane;
        if meeting.arrived == mask {
            meeting.unread = mask;
        }
        (index, meeting.arrived == mask)
    }

    fn open(&mut self, what: LaneAction, mask: u32) -> usize {
        let empty = Convergence { what, mask, arrived: 0, unread: 0, votes: 0, values: [0; WARP] };
        match self.meetings.iter().position(|meeting| meeting.arrived == 0) {
            Some(index) => {
                self.meetings[index] = empty;
                index
            }
            None => {
                self.meetings.push(empty);
                self.meetings.len() - 1
            }
        }
    }

    /// Whether a lane that waits there may go on.
    pub fn is_complete(&self, index: usize) -> bool {
        self.meetings[index].unread != 0
    }

    /// Lanes of the meeting's mask that have not arrived there.
    pub fn absent(&self, index: usize) -> u32 {
        let meeting = &self.meetings[index];
        meeting.mask & !meeting.arrived
    }

    /// A lane goes on, with the votes and the value of lane `from`, 0 for one that did not take part.
    pub fn leave(&mut self, index: usize, lane: usize, from: usize) -> (u32, u64) {
        let meeting = &mut self.meetings[index];
        let brought = (meeting.votes, meeting.values[from % WARP]);
        meeting.unread &= !(1 << lane);
        if meeting.unread == 0 {
            meeting.arrived = 0;
        }
        brought
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(mask: u32, value: u64) -> Call {
        Call { what: LaneAction::Ballot, mask, value }
    }

    #[test]
    fn lanes_meet_by_intrinsic_and_mask_and_take_what_each_brought() {
        let mut warp = Warp::default();
        let (low, _) = warp.arrive(0, ballot(0b0011, 5));
        let (high, _) = warp.arrive(2, ballot(0b1100, 0));
        assert_ne!(low, high);
        assert!(!warp.is_complete(low));
        assert_eq!(warp.arrive(1, ballot(0b0011, 6)), (low, true));
        assert_eq!(warp.leave(low, 1, 0), (0b0011, 5));
        // A lane runs ahead into the next one of the same kind, before the other has left the first.
        let (next, last) = warp.arrive(1, ballot(0b0011, 9));
        assert!(next != low && !last);
        assert_eq!(warp.leave(low, 0, 1), (0b0011, 6));
        assert_eq!(warp.arrive(0, ballot(0b0011, 0)), (next, true));
        assert_eq!(warp.leave(next, 0, 1), (0b0010, 9));
        assert_eq!(warp.arrive(3, ballot(0b1100, 1)), (high, true));
        assert_eq!(warp.leave(high, 2, 0), (0b1000, 0));
    }
}
