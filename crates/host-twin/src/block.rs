//! Where the lanes of one block stand: who waits for whom at a barrier, vote or shuffle, and who will wait for ever.
//!
//! Follows the CUDA C++ Programming Guide: `__syncwarp` and the `_sync` intrinsics wait until every lane that the mask
//! names has arrived at the same intrinsic with the same mask; `__syncthreads` waits for every lane of the block that has not
//! ended. What is undefined there (a mask without the caller, a named lane that is gone) is a fault here.
//! Knows nothing of threads: the caller parks and wakes.

use crate::site::Site;

/// Lanes of a warp.
pub const WARP: usize = 32;

/// Values of a warp's lanes, those outside the mask 0.
pub type Values = [u64; WARP];

/// A lane's call of a warp-wide intrinsic.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Which intrinsic, and from where.
    pub site: Site,
    /// Lanes of the warp that take part.
    pub mask: u32,
    /// What this lane brings.
    pub value: u64,
}

impl Call {
    fn is_same(&self, other: &Call) -> bool {
        self.site.what == other.site.what && self.mask == other.mask
    }
}

/// Where a lane is.
#[derive(Debug)]
enum Seat {
    Running,
    Warp(Call),
    /// At the block's barrier, with what it votes there.
    Block(Site, u64),
    /// Free to go on, with what the others brought.
    Released(Box<Values>),
    Ended,
}

/// Lanes that an arrival or an end let go, the caller included where it was one of them.
pub type LetGo = Vec<usize>;

/// What cannot be waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The mask does not name the lane that gave it, or names lanes that the block does not have.
    Mask(usize),
    /// These lanes wait for one another, or for lanes that have ended.
    Deadlock(Vec<usize>),
    /// A block has no room for a shared variable of so many bytes.
    SharedMemory(String, usize),
    /// A lane wrote behind a shared variable.
    Overrun(String),
    /// There is no memory for lanes' stacks, in the system's words.
    Stacks(String),
}

/// The lanes of one block, by their number in it.
#[derive(Debug)]
pub struct Block {
    seats: Vec<Seat>,
}

impl Block {
    /// A block whose lanes all run.
    pub fn new(lanes: usize) -> Block {
        Block { seats: (0..lanes).map(|_| Seat::Running).collect() }
    }

    /// A lane arrives at a warp-wide intrinsic.
    pub fn arrive_at_warp(&mut self, lane: usize, call: Call) -> Result<LetGo, Fault> {
        let warp = lane / WARP * WARP;
        let lanes = (self.seats.len() - warp).min(WARP);
        let beyond = lanes < WARP && call.mask >> lanes != 0;
        if call.mask >> (lane - warp) & 1 == 0 || beyond {
            return Err(Fault::Mask(lane));
        }
        self.seats[lane] = Seat::Warp(call);
        let mut values = [0; WARP];
        for member in named(warp, call.mask) {
            match &self.seats[member] {
                Seat::Warp(other) if other.is_same(&call) => values[member - warp] = other.value,
                _ => return self.look_for_deadlock().map(|()| LetGo::new()),
            }
        }
        let let_go: LetGo = named(warp, call.mask).collect();
        let_go.iter().for_each(|&member| self.seats[member] = Seat::Released(Box::new(values)));
        Ok(let_go)
    }

    /// A lane arrives at the block's barrier, and votes. What all of them voted, added up, is each one's first value.
    pub fn arrive_at_block(&mut self, lane: usize, site: Site, vote: u64) -> Result<LetGo, Fault> {
        self.seats[lane] = Seat::Block(site, vote);
        self.pass_barrier()
    }

    /// A lane leaves the kernel.
    pub fn end(&mut self, lane: usize) -> Result<LetGo, Fault> {
        self.seats[lane] = Seat::Ended;
        self.pass_barrier()
    }

    /// What a lane that waited was given; nothing while it has to wait on.
    pub fn take(&mut self, lane: usize) -> Option<Box<Values>> {
        match std::mem::replace(&mut self.seats[lane], Seat::Running) {
            Seat::Released(values) => Some(values),
            waiting => {
                self.seats[lane] = waiting;
                None
            }
        }
    }

    /// Where a lane waits; nothing when it does not.
    pub fn waits_at(&self, lane: usize) -> Option<(Site, Option<u32>)> {
        match &self.seats[lane] {
            Seat::Warp(call) => Some((call.site, Some(call.mask))),
            Seat::Block(site, _) => Some((*site, None)),
            _ => None,
        }
    }

    /// Whether a lane has left the kernel.
    pub fn has_ended(&self, lane: usize) -> bool {
        matches!(self.seats[lane], Seat::Ended)
    }

    fn pass_barrier(&mut self) -> Result<LetGo, Fault> {
        let waiting: LetGo =
            (0..self.seats.len()).filter(|&lane| matches!(self.seats[lane], Seat::Block(..))).collect();
        let living = self.seats.iter().filter(|seat| !matches!(seat, Seat::Ended)).count();
        if waiting.is_empty() || waiting.len() < living {
            return self.look_for_deadlock().map(|()| LetGo::new());
        }
        let votes = self.seats.iter().map(|seat| if let Seat::Block(_, vote) = seat { *vote } else { 0 });
        let mut values = [0; WARP];
        values[0] = votes.sum();
        waiting.iter().for_each(|&lane| self.seats[lane] = Seat::Released(Box::new(values)));
        Ok(waiting)
    }

    /// A lane may go on when it runs, or when everyone whom it waits for has arrived or may go on. Who is left waits for
    /// ever: nobody outside the block can let it go.
    fn look_for_deadlock(&self) -> Result<(), Fault> {
        let mut may: Vec<bool> =
            self.seats.iter().map(|seat| matches!(seat, Seat::Running | Seat::Released(_))).collect();
        loop {
            let more: Vec<usize> =
                (0..may.len()).filter(|&lane| !may[lane] && self.may_be_let_go(lane, &may)).collect();
            if more.is_empty() {
                break;
            }
            more.into_iter().for_each(|lane| may[lane] = true);
        }
        let stuck: Vec<usize> = (0..may.len()).filter(|&lane| !may[lane] && !self.has_ended(lane)).collect();
        if stuck.is_empty() { Ok(()) } else { Err(Fault::Deadlock(stuck)) }
    }

    fn may_be_let_go(&self, lane: usize, may: &[bool]) -> bool {
        match &self.seats[lane] {
            Seat::Warp(call) => named(lane / WARP * WARP, call.mask).all(|member| {
                may[member] || matches!(&self.seats[member], Seat::Warp(other) if other.is_same(call))
            }),
            Seat::Block(..) => (0..may.len())
                .all(|other| may[other] || matches!(self.seats[other], Seat::Block(..) | Seat::Ended)),
            _ => false,
        }
    }
}

/// Lanes of the block that a mask of the warp at `warp` names.
fn named(warp: usize, mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| warp + bit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::What;

    const FULL: u32 = u32::MAX;

    fn call(what: What, mask: u32, value: u64) -> Call {
        Call { site: Site::nowhere(what), mask, value }
    }

    fn sync(mask: u32) -> Call {
        call(What::SyncWarp, mask, 0)
    }

    #[test]
    fn a_vote_lets_all_go_with_what_each_brought() {
        let mut block = Block::new(64);
        for lane in 32..63 {
            let let_go = block.arrive_at_warp(lane, call(What::Ballot, FULL, lane as u64));
            assert_eq!(let_go, Ok(vec![]));
            assert!(block.take(lane).is_none());
        }
        let let_go = block.arrive_at_warp(63, call(What::Ballot, FULL, 63)).unwrap();
        assert_eq!(let_go, (32..64).collect::<Vec<_>>());
        let values = block.take(40).unwrap();
        assert_eq!((values[0], values[31]), (32, 63));
        assert!(block.waits_at(40).is_none());
    }

    #[test]
    fn masks_that_do_not_meet_wait_apart() {
        let mut block = Block::new(32);
        assert_eq!(block.arrive_at_warp(0, sync(0b11)), Ok(vec![]));
        assert_eq!(block.arrive_at_warp(2, sync(0b1100)), Ok(vec![]));
        assert_eq!(block.arrive_at_warp(3, sync(0b1100)), Ok(vec![2, 3]));
        assert_eq!(block.arrive_at_warp(1, sync(0b11)), Ok(vec![0, 1]));
    }

    #[test]
    fn a_mask_without_its_caller_or_beyond_the_block_is_a_fault() {
        let mut block = Block::new(40);
        assert_eq!(block.arrive_at_warp(0, sync(0b10)), Err(Fault::Mask(0)));
        assert_eq!(block.arrive_at_warp(33, sync(FULL)), Err(Fault::Mask(33)), "its warp has eight lanes");
        assert_eq!(block.arrive_at_warp(33, sync(0xff)), Ok(vec![]));
    }

    #[test]
    fn the_blocks_barrier_waits_for_who_has_not_ended() {
        let mut block = Block::new(64);
        for lane in 0..62 {
            assert_eq!(block.arrive_at_block(lane, Site::nowhere(What::SyncThreads), 0), Ok(vec![]));
        }
        assert_eq!(block.end(63), Ok(vec![]));
        assert_eq!(block.arrive_at_block(62, Site::nowhere(What::SyncThreads), 0), Ok((0..63).collect()));
        assert_eq!((block.has_ended(63), block.has_ended(0)), (true, false));
    }

    #[test]
    fn a_vote_at_the_barrier_is_everybodys() {
        let mut block = Block::new(3);
        assert_eq!(block.end(1), Ok(vec![]));
        assert_eq!(block.arrive_at_block(0, Site::nowhere(What::SyncThreads), 1), Ok(vec![]));
        assert_eq!(block.arrive_at_block(2, Site::nowhere(What::SyncThreads), 0), Ok(vec![0, 2]));
        assert_eq!(block.take(2).unwrap()[0], 1);
    }

    #[test]
    fn the_last_one_to_end_opens_the_barrier() {
        let mut block = Block::new(2);
        assert_eq!(block.arrive_at_block(0, Site::nowhere(What::SyncThreads), 0), Ok(vec![]));
        assert_eq!(block.end(1), Ok(vec![0]));
    }

    /// Rows: what the lanes of a block of two do one after the other, and who is stuck at the end.
    #[test]
    fn who_waits_for_ever_is_found_as_soon_as_it_is_so() {
        type Act = fn(&mut Block) -> Result<LetGo, Fault>;
        let rows: [(&str, [Act; 2], Vec<usize>); 5] = [
            ("the other has ended", [|b| b.end(1), |b| b.arrive_at_warp(0, sync(3))], vec![0]),
            ("the other ends", [|b| b.arrive_at_warp(0, sync(3)), |b| b.end(1)], vec![0]),
            (
                "another intrinsic",
                [|b| b.arrive_at_warp(0, sync(3)), |b| b.arrive_at_warp(1, call(What::Ballot, 3, 0))],
                vec![0, 1],
            ),
            (
                "a barrier of the block",
                [
                    |b| b.arrive_at_warp(0, sync(3)),
                    |b| b.arrive_at_block(1, Site::nowhere(What::SyncThreads), 0),
                ],
                vec![0, 1],
            ),
            (
                "it may still come",
                [|b| b.arrive_at_warp(0, sync(3)), |b| b.arrive_at_warp(1, sync(2))],
                vec![],
            ),
        ];
        for (what, [first, second], stuck) in rows {
            let mut block = Block::new(2);
            assert_eq!(first(&mut block).err(), None, "{what}");
            let expected = if stuck.is_empty() { None } else { Some(Fault::Deadlock(stuck)) };
            assert_eq!(second(&mut block).err(), expected, "{what}");
        }
    }

    #[test]
    fn a_warp_that_is_stuck_is_found_while_others_run() {
        let mut block = Block::new(64);
        for lane in 0..31 {
            assert_eq!(block.arrive_at_warp(lane, sync(FULL)), Ok(vec![]));
        }
        assert_eq!(block.end(31), Err(Fault::Deadlock((0..31).collect())));
    }
}
