//! One block whose lanes take turns on one thread: a lane runs until it waits, then the next goes on.
//!
//! A lane that polls yields too. With weak memory the seed interrupts lanes at any call, and chooses the
//! next. When every lane has waited or polled, or after a while, the thread goes on with another block.

use std::ffi::c_void;
use std::time::Duration;

use crate::Dim3;
use crate::barriers::{Barriers, named};
use crate::control::{Fault, Indices};
use crate::fiber::{self, Stacks};
use crate::grid::Grid;
use crate::lane_set::LaneSet;
use crate::memory::{Kind, Scope};
use crate::report::At;
use crate::shared_memory::SharedMemory;
use crate::site::{LaneAction, Site};
use crate::warp::{Call, WARP};

/// Turns after which the thread looks at its other blocks.
const SLICE: u32 = 4096;
/// Loads and looks at the clock in a row after which a lane is taken to poll.
const POLLS: u32 = 8;

/// Of so many calls with weak memory, how many interrupt the lane for another one, another block, or a nap.
const CALLS: u64 = 4096;
const TO_LANE: u64 = 384;
const TO_BLOCK: u64 = 96;
const TO_NAP: u64 = 1;
const NAP: Duration = Duration::from_micros(20);

/// `enum db_twin_scope`.
const CTA: u32 = 1;
const GPU: u32 = 2;

struct Lane {
    stack: *mut u8,
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
    barriers: Barriers,
    current: usize,
    /// Whatever lanes did but loads: tells whether the block gets on.
    pub(crate) events: u64,
    /// Lanes that polled since a barrier was passed.
    quiet: usize,
    /// Turns left of the slice.
    turns: u32,
    stacks: Option<Stacks>,
    pub(crate) shared: SharedMemory,
    arguments: Vec<*mut c_void>,
    /// The thread's own stack.
    home: *mut u8,
}

impl Block {
    pub(crate) fn new(grid: &Grid, here: *mut Indices) -> std::io::Result<Box<Block>> {
        let threads = grid.control.shape.threads;
        let count = threads.count() as usize;
        let lane = |thread: u64| Lane {
            stack: std::ptr::null_mut(),
            site: Site::nowhere(LaneAction::Start),
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
            barriers: Barriers::new(count),
            current: 0,
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
    pub(crate) fn begin(&mut self, index: u64) {
        let this: *mut Block = self;
        let shape = self.grid().control.shape;
        (self.index, self.place) = (index, shape.blocks.place(index));
        self.shared.begin(shape.shared_bytes as usize);
        let Some(stacks) = &self.stacks else { return };
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            // SAFETY: the lanes of the block before have ended.
            lane.stack = unsafe { stacks.begin(number, lane_main, this.cast()) };
            (lane.site, lane.mask, lane.polls) = (Site::nowhere(LaneAction::Start), None, 0);
        }
        (self.current, self.barriers) = (0, Barriers::new(self.lanes.len()));
    }

    fn grid(&self) -> &Grid {
        // SAFETY: the worker holds it for longer than its blocks.
        unsafe { &*self.grid }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.barriers.living() == 0
    }

    /// Whether lanes are left that can never go on.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.barriers.stuck().is_empty()
    }

    /// Lanes that have not ended, as a report wants them.
    pub(crate) fn waits(&self) -> impl Iterator<Item = At> + '_ {
        let living = self.lanes.iter().enumerate().filter(|(number, _)| !self.barriers.has_ended(*number));
        living.map(|(number, lane)| {
            let held = self.barriers.waits(number);
            (self.index as usize, number, lane.site, lane.mask.filter(|_| held), held)
        })
    }

    /// The first lane after that one which may go on, itself last.
    fn next(&self, lane: usize) -> Option<usize> {
        let may_run = |lane: &usize| self.barriers.may_run(*lane);
        (lane + 1..self.lanes.len()).find(may_run).or_else(|| (0..=lane).find(may_run))
    }

    fn show(&mut self, lane: usize) {
        self.current = lane;
        // SAFETY: the thread's own words, which no lane reads meanwhile.
        let here = unsafe { &mut *self.here };
        here.thread = self.lanes[lane].thread;
        here.lane = lane as u32;
    }

    /// Runs lanes until all wait, poll or have ended, or the slice is over.
    pub(crate) fn run(&mut self) {
        let Some(lane) = self.next(self.current) else { return };
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
        // SAFETY: `next` gave a waiting or a new lane. Its code reaches this block by `current` alone.
        unsafe { fiber::switch(home, self.lanes[lane].stack) };
    }

    /// Number in the launch of a lane of the block.
    fn in_launch(&self, lane: usize) -> usize {
        self.index as usize * self.lanes.len() + lane
    }

    /// The current lane arrived somewhere, or has ended. `opens`: that let the others go.
    fn arrived(&mut self, opens: bool) {
        self.events += 1;
        if opens {
            self.quiet = 0;
        }
    }

    /// The block's barrier was passed.
    fn meet(&self) {
        self.grid().memory.meet(self.barriers.let_go().map(|lane| self.in_launch(lane)));
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
    // SAFETY: `start`'s caller vouches for what the kernel does with its arguments; their number and sizes
    // were compared with its parameters.
    unsafe { run(arguments) };
    // SAFETY: as above.
    let this = unsafe { &mut *block };
    let opens = this.barriers.end(this.current);
    this.arrived(opens);
    if opens {
        this.meet();
    }
    // SAFETY: the lane's stack holds nothing that is still needed.
    unsafe { pass(block) };
    unreachable!("a lane that has ended goes on");
}

/// Lets another lane go on, or the thread; returns when it is this lane's turn again.
///
/// # Safety
/// `block` is the one that runs on this thread, and nothing of it is borrowed.
unsafe fn pass(block: *mut Block) {
    // SAFETY: the caller's; the borrow ends before the switch.
    let (from, to) = unsafe {
        let this = &mut *block;
        this.turns = this.turns.saturating_sub(1);
        let from = &raw mut this.lanes[this.current].stack;
        let after = this.grid().memory.choose(this.lanes.len() as u64);
        match this.next(after.map_or(this.current, |lane| lane as usize)) {
            Some(next)
                if this.turns > 0
                    && this.quiet <= this.barriers.living()
                    && !this.grid().control.is_given_up() =>
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
pub(crate) struct Current(pub(crate) *mut Block);

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

    /// With weak memory: another lane's turn, where the seed says so.
    fn interrupt(self) {
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        let Some(choice) = block.grid().memory.choose(CALLS) else { return };
        if choice < TO_NAP {
            std::thread::sleep(NAP);
        } else if choice < TO_NAP + TO_BLOCK {
            block.turns = 0;
        } else if choice >= TO_NAP + TO_BLOCK + TO_LANE {
            return;
        }
        // SAFETY: the lane's own block.
        unsafe { pass(self.0) };
    }

    /// The block's barrier: what all lanes voted, added up.
    pub(crate) fn syncthreads(self, vote: u64) -> u64 {
        self.interrupt();
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        let number = block.current;
        (block.lanes[number].mask, block.lanes[number].polls) = (None, 0);
        let opens = block.barriers.arrive_at_block(number, vote);
        block.arrived(opens);
        if opens {
            block.meet();
        }
        // Also when it opens: the others are let go first, so that lanes stay in turn.
        // SAFETY: the lane's own block.
        unsafe { pass(self.0) };
        // SAFETY: ends here.
        unsafe { self.block() }.barriers.leave_block(number)
    }

    /// A warp-wide intrinsic: the votes of all lanes, and the value of lane `from`.
    pub(crate) fn warp(self, call: Call, from: usize) -> (u32, u64) {
        self.interrupt();
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        let number = block.current;
        (block.lanes[number].mask, block.lanes[number].polls) = (Some(call.mask), 0);
        let arrival = block.barriers.arrive_at_warp(number, call);
        block.arrived(arrival == Some(true));
        match arrival {
            None => block.grid().control.fail(Fault::Mask),
            // Votes and shuffles order no memory.
            Some(true) if call.what == LaneAction::SyncWarp => {
                let lanes = named(number / WARP * WARP, call.mask).map(|lane| block.in_launch(lane));
                block.grid().memory.meet(lanes);
            }
            _ => {}
        }
        if arrival != Some(true) {
            // SAFETY: the lane's own block; nobody comes back to one that was refused.
            unsafe { pass(self.0) };
        }
        // SAFETY: ends here.
        unsafe { self.block() }.barriers.leave_warp(number, from)
    }

    /// A load, a look at the clock, or as many atomics: yields to another lane after many in a row.
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

    /// What the lane does is no poll: the launch's memory, and the lane's number in it.
    fn act(&self) -> (&Grid, usize) {
        // SAFETY: what is kept of it is the grid, which outlives the block.
        let block = unsafe { self.block() };
        let current = block.current;
        block.lanes[current].polls = 0;
        block.events += 1;
        (block.grid(), block.in_launch(current))
    }

    pub(crate) fn store(self, address: u64, bytes: &[u8], kind: Kind) {
        let (grid, lane) = self.act();
        grid.memory.store(lane, address, bytes, kind);
        self.interrupt();
    }

    pub(crate) fn load(self, address: u64, out: &mut [u8]) {
        self.poll(false);
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        block.grid().memory.load(block.in_launch(block.current), address, out);
        self.interrupt();
    }

    /// An atomic: what was there. A lock's word is polled with these.
    pub(crate) fn change(self, address: u64, bytes: usize, change: impl Fn(u64) -> u64) -> u64 {
        self.poll(false);
        // SAFETY: ends before the wait.
        let old = unsafe { self.block() }.grid().memory.change(address, bytes, change);
        self.interrupt();
        old
    }

    /// A fence, whose reach is one of `enum db_twin_scope`.
    pub(crate) fn fence(self, reach: u32) {
        let (grid, lane) = self.act();
        let (blocks, lanes) = (grid.control.shape.blocks.count(), grid.control.shape.threads.count());
        let of_block = lane / lanes as usize * lanes as usize;
        grid.memory.fence(lane, || match reach {
            CTA => Scope::Lanes((of_block..of_block + lanes as usize).collect()),
            GPU => Scope::Lanes(LaneSet::first((blocks * lanes) as usize)),
            _ => Scope::System,
        });
        self.interrupt();
    }

    /// A shared variable's place. Without room for it the launch ends, and the lane does not go on.
    pub(crate) fn variable(self, tag: usize, name: &str, bytes: usize, align: usize) -> *mut u8 {
        // SAFETY: ends before the wait.
        let block = unsafe { self.block() };
        if let Some(place) = block.shared.variable(tag, name, bytes, align) {
            return place;
        }
        block.barriers.refuse(block.current);
        block.grid().control.fail(Fault::SharedMemory(name.to_owned(), bytes));
        // SAFETY: the lane's own block; nobody comes back to it.
        unsafe { pass(self.0) };
        unreachable!("a lane that was refused goes on");
    }
}
