//! One block whose lanes take turns on one thread: a lane runs until it waits, then the next goes on.
//!
//! Barriers as the CUDA C++ Programming Guide has them; the rules are those of [`crate::block`]. A lane that polls passes its
//! turn on too. When every lane has waited or polled, or after a while, the thread goes on with another block.

use std::ffi::c_void;

use super::fiber::{self, Stacks};
use super::grid::Grid;
use super::warp::Warp;
use crate::Dim3;
use crate::block::{Fault, WARP};
use crate::launch::Indices;
use crate::report::At;
use crate::shared_memory::SharedMemory;
use crate::site::{Site, What};

/// Turns after which the thread looks at its other blocks.
const SLICE: u32 = 4096;
/// Loads and looks at the clock in a row after which a lane is taken to poll.
const POLLS: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ready,
    /// At the block's barrier of that number.
    Block(u32),
    /// At the warp's meeting of that place.
    Warp(usize),
    /// Never goes on.
    Refused,
    Ended,
}

struct Lane {
    stack: *mut u8,
    status: Status,
    site: Site,
    mask: Option<u32>,
    polls: u32,
    thread: Dim3,
}

/// See the module.
pub(crate) struct Block {
    grid: *const Grid,
    here: *mut Indices,
    /// Of the grid, x first.
    index: u64,
    place: Dim3,
    lanes: Vec<Lane>,
    warps: Vec<Warp>,
    current: usize,
    living: usize,
    /// At the block's barrier, what they voted so far, and what the last barrier's lanes voted.
    arrived: usize,
    votes: u64,
    voted: u64,
    barrier: u32,
    /// Barriers passed and lanes ended: what tells that the block gets on.
    pub(super) events: u64,
    /// Lanes that polled since.
    quiet: usize,
    /// Turns left of the slice.
    turns: u32,
    stacks: Option<Stacks>,
    pub(super) shared: SharedMemory,
    arguments: Vec<*mut c_void>,
    /// The thread's own stack.
    home: *mut u8,
}

impl Block {
    pub(super) fn new(grid: &Grid, here: *mut Indices) -> std::io::Result<Box<Block>> {
        let threads = grid.control.shape.threads;
        let count = threads.count() as usize;
        let lane = |thread: u64| Lane {
            stack: std::ptr::null_mut(),
            status: Status::Ended,
            site: Site::nowhere(What::Start),
            mask: None,
            polls: 0,
            thread: threads.place(thread),
        };
        Ok(Box::new(Block {
            grid,
            here,
            index: 0,
            place: Dim3::from(0),
            lanes: (0..count as u64).map(lane).collect(),
            warps: (0..count.div_ceil(WARP)).map(|_| Warp::default()).collect(),
            current: 0,
            living: 0,
            arrived: 0,
            votes: 0,
            voted: 0,
            barrier: 0,
            events: 0,
            quiet: 0,
            turns: 0,
            stacks: Some(Stacks::take(count)?),
            shared: SharedMemory::default(),
            arguments: grid.control.arguments.pointers(),
            home: std::ptr::null_mut(),
        }))
    }

    /// Makes it the grid's block of that number, which has not begun.
    pub(super) fn begin(&mut self, index: u64) {
        let this: *mut Block = self;
        let shape = self.grid().control.shape;
        (self.index, self.place) = (index, shape.blocks.place(index));
        self.shared.begin(shape.shared_bytes as usize);
        let Some(stacks) = &self.stacks else { return };
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            // SAFETY: the lanes of the block before have ended.
            lane.stack = unsafe { stacks.begin(number, lane_main, this.cast()) };
            lane.status = Status::Ready;
            lane.site = Site::nowhere(What::Start);
            (lane.mask, lane.polls) = (None, 0);
        }
        self.warps.iter_mut().for_each(|warp| *warp = Warp::default());
        (self.current, self.living, self.arrived, self.votes) = (0, self.lanes.len(), 0, 0);
    }

    fn grid(&self) -> &Grid {
        // SAFETY: the worker holds it for longer than its blocks.
        unsafe { &*self.grid }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.living == 0
    }

    /// Lanes that have not ended, as a report wants them.
    pub(super) fn waits(&self) -> impl Iterator<Item = At> + '_ {
        let living = self.lanes.iter().enumerate().filter(|(_, lane)| lane.status != Status::Ended);
        living.map(|(number, lane)| {
            let held = matches!(lane.status, Status::Block(_) | Status::Warp(_));
            (self.index as usize, number, lane.site, lane.mask.filter(|_| held), held)
        })
    }

    fn may_run(&self, number: usize) -> bool {
        match self.lanes[number].status {
            Status::Ready => true,
            Status::Block(barrier) => barrier != self.barrier,
            Status::Warp(meeting) => self.warps[number / WARP].is_complete(meeting),
            Status::Refused | Status::Ended => false,
        }
    }

    /// The lane that goes on after the current one, itself last.
    fn next(&self) -> Option<usize> {
        let after = (self.current + 1..self.lanes.len()).find(|&lane| self.may_run(lane));
        after.or_else(|| (0..=self.current).find(|&lane| self.may_run(lane)))
    }

    /// Whether lanes are left, and none can ever go on: nobody outside the block can let them go.
    pub(super) fn is_stuck(&self) -> bool {
        self.living > 0 && self.next().is_none()
    }

    fn show(&mut self, lane: usize) {
        self.current = lane;
        // SAFETY: the thread's own words, which no lane reads meanwhile.
        let here = unsafe { &mut *self.here };
        here.thread = self.lanes[lane].thread;
        here.lane = lane as u32;
    }

    /// Runs lanes until all wait, poll or have ended, or the slice is over. How many turns that were.
    pub(super) fn run(&mut self) -> u32 {
        let Some(lane) = self.next() else { return 0 };
        (self.turns, self.quiet) = (SLICE, 0);
        self.show(lane);
        let shape = self.grid().control.shape;
        let (threads, blocks, words) = (shape.threads, shape.blocks, self.grid().barrier_words());
        let dynamic = self.shared.dynamic();
        // SAFETY: as in `show`.
        let here = unsafe { &mut *self.here };
        (here.block, here.threads, here.blocks) = (self.place, threads, blocks);
        (here.dynamic, here.grid) = (dynamic, words);
        let home = &raw mut self.home;
        // SAFETY: `next` gave a lane that waits or has not begun. Its code reaches this block by `current` alone.
        unsafe { fiber::switch(home, self.lanes[lane].stack) };
        SLICE - self.turns
    }

    fn barrier_is_complete(&mut self) -> bool {
        let complete = self.arrived > 0 && self.arrived == self.living;
        if complete {
            (self.voted, self.votes, self.arrived) = (self.votes, 0, 0);
            self.barrier = self.barrier.wrapping_add(1);
            (self.events, self.quiet) = (self.events + 1, 0);
        }
        complete
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(stacks) = self.stacks.take() {
            stacks.give_back();
        }
    }
}

/// What runs on a lane's stack.
unsafe extern "C" fn lane_main(block: *mut u8) {
    let block: *mut Block = block.cast();
    // SAFETY: `Block::begin` gave itself; the borrow ends before the lane runs.
    let this = unsafe { &mut *block };
    let (run, arguments) = (this.grid().control.kernel.run(), this.arguments.as_mut_ptr());
    // SAFETY: `start`'s caller vouches for what the kernel does with its arguments, whose number and sizes were compared
    // with its parameters.
    unsafe { run(arguments) };
    // SAFETY: as above.
    let this = unsafe { &mut *block };
    this.lanes[this.current].status = Status::Ended;
    this.living -= 1;
    this.events += 1;
    this.barrier_is_complete();
    // SAFETY: the lane's stack holds nothing that is still needed.
    unsafe { pass(block) };
    unreachable!("a lane that has ended goes on");
}

/// Lets the next lane go on, or the thread; returns when it is this lane's turn again.
///
/// # Safety
/// `block` is the one that runs on this thread, and nothing of it is borrowed.
unsafe fn pass(block: *mut Block) {
    // SAFETY: the caller's; the borrow ends before the switch.
    let (from, to) = unsafe {
        let this = &mut *block;
        this.turns = this.turns.saturating_sub(1);
        let from = &raw mut this.lanes[this.current].stack;
        match this.next() {
            Some(next)
                if this.turns > 0 && this.quiet <= this.living && !this.grid().control.is_given_up() =>
            {
                if next == this.current {
                    return;
                }
                this.show(next);
                (from, this.lanes[next].stack)
            }
            _ => (from, this.home),
        }
    };
    // SAFETY: a lane that waits or has not begun, or the thread, which waits in `Block::run`.
    unsafe { fiber::switch(from, to) }
}

/// The current lane's calls. The block is a pointer, since other lanes change it while this one waits.
#[derive(Clone, Copy)]
pub(crate) struct Current(pub(super) *mut Block);

impl Current {
    /// # Safety
    /// As for [`pass`]; the borrow ends before the lane waits.
    #[allow(clippy::mut_from_ref, reason = "one lane runs at a time")]
    unsafe fn block(&self) -> &mut Block {
        // SAFETY: the caller's.
        unsafe { &mut *self.0 }
    }

    /// Where the lane is. The lane of an abandoned launch does not go on from there.
    pub(crate) fn note(self, site: Site) {
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        let current = block.current;
        block.lanes[current].site = site;
        if block.grid().control.is_given_up() {
            // SAFETY: the lane's own block; nobody comes back to it.
            unsafe { pass(self.0) };
        }
    }

    /// The block's barrier: what all lanes voted, added up.
    pub(crate) fn syncthreads(self, site: Site, vote: u64) -> u64 {
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        let lane = &mut block.lanes[block.current];
        (lane.site, lane.mask, lane.polls) = (site, None, 0);
        lane.status = Status::Block(block.barrier);
        block.arrived += 1;
        block.votes += vote;
        block.barrier_is_complete();
        // Also when it is complete: the others are let go first, so that lanes stay in turn.
        // SAFETY: the lane's own block.
        unsafe { pass(self.0) };
        // SAFETY: ends here.
        let block = unsafe { self.block() };
        let current = block.current;
        block.lanes[current].status = Status::Ready;
        block.voted
    }

    /// A warp-wide intrinsic: the votes of all lanes, and the value of lane `from`.
    pub(crate) fn warp(self, site: Site, mask: u32, value: u64, from: usize) -> (u32, u64) {
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        let number = block.current;
        let (warp, bit) = (number / WARP, number % WARP);
        let lanes = (block.lanes.len() - warp * WARP).min(WARP);
        let lane = &mut block.lanes[number];
        (lane.site, lane.mask, lane.polls) = (site, Some(mask), 0);
        if mask >> bit & 1 == 0 || lanes < WARP && mask >> lanes != 0 {
            lane.status = Status::Refused;
            block.grid().control.fail(Fault::Mask(number));
            // SAFETY: the lane's own block; nobody comes back to it.
            unsafe { pass(self.0) };
        }
        let (meeting, last) = block.warps[warp].arrive(bit, site.what as u32, mask, value);
        if last {
            (block.events, block.quiet) = (block.events + 1, 0);
        } else {
            block.lanes[number].status = Status::Warp(meeting);
            // SAFETY: the lane's own block.
            unsafe { pass(self.0) };
        }
        // SAFETY: ends here.
        let block = unsafe { self.block() };
        block.lanes[number].status = Status::Ready;
        block.warps[warp].leave(meeting, bit, from)
    }

    /// A load, a look at the clock, or as many atomics: the turn is another lane's if there were many in a row.
    pub(crate) fn poll(self, at_once: bool) {
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        let lane = &mut block.lanes[block.current];
        lane.polls += 1;
        if at_once || lane.polls >= POLLS {
            lane.polls = 0;
            block.quiet += 1;
            // SAFETY: the lane's own block.
            unsafe { pass(self.0) };
        }
    }

    /// A store or a fence: the lane does not only poll.
    pub(crate) fn act(self) {
        // SAFETY: ends here.
        let block = unsafe { self.block() };
        let current = block.current;
        block.lanes[current].polls = 0;
    }

    /// A shared variable's place. Without room for it the launch ends, and the lane does not go on.
    pub(crate) fn variable(self, tag: usize, name: &str, bytes: usize, align: usize) -> *mut u8 {
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        if let Some(place) = block.shared.variable(tag, name, bytes, align) {
            return place;
        }
        let current = block.current;
        block.lanes[current].status = Status::Refused;
        block.grid().control.fail(Fault::SharedMemory(name.to_owned(), bytes));
        // SAFETY: the lane's own block; nobody comes back to it.
        unsafe { pass(self.0) };
        unreachable!("a lane that was refused goes on");
    }
}
