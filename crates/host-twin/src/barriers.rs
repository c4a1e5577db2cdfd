//! Where the lanes of one block wait for one another: at the block's barrier, and at intrinsics of a warp.
//!
//! Follows the CUDA C++ Programming Guide: `__syncwarp` and the `_sync` intrinsics wait until every lane of
//! the mask has arrived at the same intrinsic with the same mask; `__syncthreads` waits for every lane of the
//! block that has not ended. Finds what is undefined: a mask without the caller, lanes that never go on.
//! Knows nothing of stacks and memory.

use crate::warp::{Call, WARP, Warp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Running,
    /// At the block's barrier of that number.
    Block(u32),
    /// At the warp's meeting of that place.
    Warp(usize),
    /// Never goes on.
    Refused,
    Ended,
}

/// The lanes of one block, by their number in it.
#[derive(Debug)]
pub struct Barriers {
    lanes: Vec<Status>,
    warps: Vec<Warp>,
    living: usize,
    /// At the block's barrier, what they voted so far, and what the last barrier's lanes voted.
    arrived: usize,
    votes: u64,
    voted: u64,
    /// Number of the block's barrier that lanes come to next.
    number: u32,
}

impl Barriers {
    /// A block whose lanes all run.
    pub fn new(lanes: usize) -> Barriers {
        Barriers {
            lanes: vec![Status::Running; lanes],
            warps: vec![Warp::default(); lanes.div_ceil(WARP)],
            living: lanes,
            arrived: 0,
            votes: 0,
            voted: 0,
            number: 0,
        }
    }

    /// A lane arrives at a warp-wide intrinsic: whether it was the last. None: a bad mask; it never goes on.
    pub fn arrive_at_warp(&mut self, lane: usize, call: Call) -> Option<bool> {
        let (warp, bit) = (lane / WARP, lane % WARP);
        let size = (self.lanes.len() - warp * WARP).min(WARP);
        if call.mask >> bit & 1 == 0 || size < WARP && call.mask >> size != 0 {
            self.refuse(lane);
            return None;
        }
        let (meeting, is_last) = self.warps[warp].arrive(bit, call);
        self.lanes[lane] = Status::Warp(meeting);
        Some(is_last)
    }

    /// A lane goes on from an intrinsic: the votes of all lanes, and the value of lane `from`.
    pub fn leave_warp(&mut self, lane: usize, from: usize) -> (u32, u64) {
        let Status::Warp(meeting) = std::mem::replace(&mut self.lanes[lane], Status::Running) else {
            unreachable!("lane {lane} is at no intrinsic");
        };
        self.warps[lane / WARP].leave(meeting, lane % WARP, from)
    }

    /// A lane arrives at the block's barrier, and votes: whether it was the last.
    pub fn arrive_at_block(&mut self, lane: usize, vote: u64) -> bool {
        self.lanes[lane] = Status::Block(self.number);
        self.arrived += 1;
        self.votes += vote;
        self.pass_barrier()
    }

    /// A lane goes on from the block's barrier: what all lanes voted, added up.
    pub fn leave_block(&mut self, lane: usize) -> u64 {
        self.lanes[lane] = Status::Running;
        self.voted
    }

    /// A lane leaves the kernel: whether it was the last that the others waited for at the block's barrier.
    pub fn end(&mut self, lane: usize) -> bool {
        self.lanes[lane] = Status::Ended;
        self.living -= 1;
        self.pass_barrier()
    }

    fn pass_barrier(&mut self) -> bool {
        let is_complete = self.arrived > 0 && self.arrived == self.living;
        if is_complete {
            (self.voted, self.votes, self.arrived) = (self.votes, 0, 0);
            self.number = self.number.wrapping_add(1);
        }
        is_complete
    }

    /// A lane never goes on.
    pub fn refuse(&mut self, lane: usize) {
        self.lanes[lane] = Status::Refused;
    }

    /// Lanes that have not ended.
    pub fn living(&self) -> usize {
        self.living
    }

    /// Whether a lane has left the kernel.
    pub fn has_ended(&self, lane: usize) -> bool {
        self.lanes[lane] == Status::Ended
    }

    /// Whether a lane waits for others.
    pub fn waits(&self, lane: usize) -> bool {
        matches!(self.lanes[lane], Status::Block(_) | Status::Warp(_)) && !self.may_run(lane)
    }

    /// Whether a lane runs, or all that it waited for have come.
    pub fn may_run(&self, lane: usize) -> bool {
        match self.lanes[lane] {
            Status::Running => true,
            Status::Block(number) => number != self.number,
            Status::Warp(meeting) => self.warps[lane / WARP].is_complete(meeting),
            Status::Refused | Status::Ended => false,
        }
    }

    /// Lanes at the barrier that was passed last.
    pub fn let_go(&self) -> impl Iterator<Item = usize> {
        let passed = Status::Block(self.number.wrapping_sub(1));
        (0..self.lanes.len()).filter(move |&lane| self.lanes[lane] == passed)
    }

    /// Lanes that can never go on, since only lanes of the block can release them. A lane may go on if it
    /// runs, or when every lane that it waits for has arrived or may go on.
    pub fn stuck(&self) -> Vec<usize> {
        let all = 0..self.lanes.len();
        let mut may: Vec<bool> = all.clone().map(|lane| self.may_run(lane)).collect();
        loop {
            let more: Vec<usize> =
                all.clone().filter(|&lane| !may[lane] && self.may_be_let_go(lane, &may)).collect();
            if more.is_empty() {
                break;
            }
            more.into_iter().for_each(|lane| may[lane] = true);
        }
        all.filter(|&lane| !may[lane] && !self.has_ended(lane)).collect()
    }

    fn may_be_let_go(&self, lane: usize, may: &[bool]) -> bool {
        match self.lanes[lane] {
            Status::Warp(meeting) => {
                let mut absent = named(lane / WARP * WARP, self.warps[lane / WARP].absent(meeting));
                absent.all(|member| may[member])
            }
            Status::Block(_) => self
                .lanes
                .iter()
                .zip(may)
                .all(|(other, may)| *may || matches!(other, Status::Block(_) | Status::Ended)),
            _ => false,
        }
    }
}

/// Lanes of the block that a mask of the warp at `warp` names.
pub fn named(warp: usize, mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| warp + bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::LaneAction;

    const FULL: u32 = u32::MAX;

    fn call(what: LaneAction, mask: u32, value: u64) -> Call {
        Call { what, mask, value }
    }

    fn sync(mask: u32) -> Call {
        call(LaneAction::SyncWarp, mask, 0)
    }

    #[test]
    fn a_vote_lets_all_go_with_what_each_brought() {
        let mut block = Barriers::new(64);
        for lane in 32..63 {
            assert_eq!(block.arrive_at_warp(lane, call(LaneAction::Ballot, FULL, lane as u64)), Some(false));
            assert!(!block.may_run(lane) && block.waits(lane));
        }
        assert_eq!(block.arrive_at_warp(63, call(LaneAction::Ballot, FULL, 0)), Some(true));
        assert!((32..64).all(|lane| block.may_run(lane)));
        assert_eq!((block.leave_warp(40, 0), block.leave_warp(63, 30)), ((FULL >> 1, 32), (FULL >> 1, 62)));
        assert!(!block.waits(40));
    }

    #[test]
    fn masks_that_do_not_meet_wait_apart() {
        let mut block = Barriers::new(32);
        assert_eq!(block.arrive_at_warp(0, sync(0b11)), Some(false));
        assert_eq!(block.arrive_at_warp(2, sync(0b1100)), Some(false));
        assert_eq!(block.arrive_at_warp(3, sync(0b1100)), Some(true));
        assert_eq!([0, 2, 3].map(|lane| block.may_run(lane)), [false, true, true]);
        assert_eq!(block.arrive_at_warp(1, sync(0b11)), Some(true));
        assert!(block.may_run(0));
    }

    #[test]
    fn a_mask_without_its_caller_or_beyond_the_block_is_refused() {
        let mut block = Barriers::new(40);
        assert_eq!(block.arrive_at_warp(0, sync(0b10)), None);
        assert_eq!(block.arrive_at_warp(33, sync(FULL)), None, "its warp has eight lanes");
        assert_eq!(block.arrive_at_warp(34, sync(0xff)), Some(false));
    }

    #[test]
    fn the_blocks_barrier_waits_for_lanes_that_have_not_ended() {
        let mut block = Barriers::new(64);
        for lane in 0..62 {
            assert!(!block.arrive_at_block(lane, 0));
        }
        assert!(!block.end(63) && !block.may_run(0));
        assert!(block.arrive_at_block(62, 0));
        assert!(block.let_go().eq(0..63) && (0..63).all(|lane| block.may_run(lane)));
        assert_eq!((block.has_ended(63), block.has_ended(0), block.living()), (true, false, 63));
    }

    #[test]
    fn a_vote_at_the_barrier_is_every_lanes() {
        let mut block = Barriers::new(3);
        assert!(!block.end(1));
        assert!(!block.arrive_at_block(0, 1));
        assert!(block.arrive_at_block(2, 1));
        assert_eq!((block.leave_block(2), block.leave_block(0)), (2, 2));
    }

    #[test]
    fn the_last_lane_to_end_opens_the_barrier() {
        let mut block = Barriers::new(2);
        assert!(!block.arrive_at_block(0, 0));
        assert!(block.end(1));
        assert!(block.let_go().eq([0]));
    }

    /// Rows: what the lanes of a block of two do one after the other, and which are stuck at the end.
    #[test]
    fn lanes_that_wait_for_ever_are_found_as_soon_as_it_is_so() {
        type Act = fn(&mut Barriers);
        fn sync_warp<const LANE: usize, const MASK: u32>(block: &mut Barriers) {
            assert_eq!(block.arrive_at_warp(LANE, sync(MASK)), Some(false));
        }
        fn end(block: &mut Barriers) {
            assert!(!block.end(1));
        }
        let rows: [(&str, [Act; 2], Vec<usize>); 5] = [
            ("the other has ended", [end, sync_warp::<0, 3>], vec![0]),
            ("the other ends", [sync_warp::<0, 3>, end], vec![0]),
            (
                "another intrinsic",
                [sync_warp::<0, 3>, |b| {
                    assert!(b.arrive_at_warp(1, call(LaneAction::Ballot, 3, 0)) == Some(false))
                }],
                vec![0, 1],
            ),
            (
                "a barrier of the block",
                [sync_warp::<0, 3>, |b| assert!(!b.arrive_at_block(1, 0))],
                vec![0, 1],
            ),
            (
                "it may still come",
                [sync_warp::<0, 3>, |b| assert!(b.arrive_at_warp(1, sync(2)) == Some(true))],
                vec![],
            ),
        ];
        for (what, [first, second], stuck) in rows {
            let mut block = Barriers::new(2);
            first(&mut block);
            assert!(block.stuck().is_empty(), "{what}");
            second(&mut block);
            assert_eq!(block.stuck(), stuck, "{what}");
        }
    }

    #[test]
    fn a_warp_that_is_stuck_is_found_while_others_run() {
        let mut block = Barriers::new(64);
        for lane in 0..31 {
            assert_eq!(block.arrive_at_warp(lane, sync(FULL)), Some(false));
        }
        assert!(block.stuck().is_empty());
        block.end(31);
        assert!(block.stuck().into_iter().eq(0..31));
    }
}
