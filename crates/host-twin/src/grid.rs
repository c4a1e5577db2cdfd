//! The threads of a launch: one for each core, which takes one block after the other; with weak memory one thread runs all blocks.
//!
//! A thread takes another block beside those that it runs when they only poll, or have run for long: they may wait for it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::block::{Block, Current};
use crate::launch::{Control, Fault, Indices};
use crate::launch_memory::LaunchMemory;
use crate::report::{At, Waits};
use crate::{TwinError, Visibility};

/// Lanes that a thread runs side by side.
const MAX_RESIDENT_LANES: u64 = 4096;
/// Slices after which the blocks of a thread are taken to wait for another, whatever they do.
const LONG: u32 = 64;
/// Rounds in which nothing happened but polls, after which a thread sleeps.
const IDLE_ROUNDS: u32 = 64;
const NAP: Duration = Duration::from_micros(20);

thread_local! {
    static CURRENT: Cell<*mut Block> = const { Cell::new(std::ptr::null_mut()) };
}

/// The lane that runs on this thread.
pub(crate) fn current() -> Option<Current> {
    let block = CURRENT.get();
    (!block.is_null()).then_some(Current(block))
}

unsafe extern "C" {
    fn db_twin_here_of_thread() -> *mut Indices;
}

/// A launch.
pub(crate) struct Grid {
    pub(crate) control: Control,
    pub(crate) memory: LaunchMemory,
    /// The next block that nobody has taken.
    next: AtomicU64,
    /// Blocks at the grid's barrier, and how often it was passed.
    barrier: [AtomicU32; 2],
    waits: Mutex<Vec<At>>,
}

/// How many blocks of so many lanes run side by side.
pub(crate) fn side_by_side(lanes: u64) -> u64 {
    workers() as u64 * (MAX_RESIDENT_LANES / lanes.max(1))
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Grid {
    pub(crate) fn start(
        control: Control,
        visibility: Visibility,
    ) -> Result<(Arc<Grid>, Vec<JoinHandle<()>>), TwinError> {
        let memory = LaunchMemory::new(visibility);
        // One with weak memory, so that the order of calls is the seed's.
        let most = if memory.is_weak() { 1 } else { workers() };
        let workers = most.min(control.shape.blocks.count() as usize);
        control.set_living(workers);
        let kernel = control.kernel.name();
        let barrier = [const { AtomicU32::new(0) }; 2];
        let grid =
            Arc::new(Grid { control, memory, next: AtomicU64::new(0), barrier, waits: Mutex::default() });
        let mut threads = Vec::new();
        for number in 0..workers {
            let mine = Arc::clone(&grid);
            let builder = std::thread::Builder::new().name(format!("twin-worker-{number}"));
            match builder.spawn(move || mine.work()) {
                Ok(thread) => threads.push(thread),
                // The others run its blocks.
                Err(_) if number > 0 => grid.control.end(workers - number),
                Err(source) => return Err(TwinError::Thread { kernel, source }),
            }
            if threads.len() <= number {
                break;
            }
        }
        Ok((grid, threads))
    }

    pub(crate) fn barrier_words(&self) -> *const AtomicU32 {
        self.barrier.as_ptr()
    }

    fn take_block(&self) -> Option<u64> {
        let all = self.control.shape.blocks.count();
        let taken = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < all).then_some(next + 1));
        taken.ok()
    }

    fn work(&self) {
        let most = (MAX_RESIDENT_LANES / self.control.shape.threads.count().max(1)).max(1) as usize;
        // SAFETY: C's, and nothing but an address.
        let here = unsafe { db_twin_here_of_thread() };
        // SAFETY: this thread's own words.
        unsafe { here.write(Indices { direct: u32::from(!self.memory.is_weak()), ..Indices::default() }) };
        let (mut resident, mut spare) = (VecDeque::new(), Vec::new());
        let (mut slices, mut idle) = (0, 0);
        while !self.control.is_given_up() {
            let wants_more = resident.is_empty() || self.memory.is_weak() || idle > 0 || slices >= LONG;
            if wants_more && resident.len() < most {
                if let Some(index) = self.take_block() {
                    slices = 0;
                    let Some(mut block) = self.block(spare.pop(), here) else { break };
                    block.begin(index);
                    resident.push_back(block);
                } else if resident.is_empty() {
                    break;
                }
            }
            let mut events = 0;
            for block in &mut resident {
                let before = block.events;
                CURRENT.set(&raw mut **block);
                block.run();
                CURRENT.set(std::ptr::null_mut());
                events += block.events - before;
            }
            self.memory.tick();
            let ended = resident.iter().position(|block| block.has_ended());
            if let Some(block) = ended.and_then(|index| resident.remove(index)) {
                if let Some(variable) = block.shared.overrun() {
                    self.control.fail(Fault::Overrun(variable));
                }
                spare.push(block);
                (slices, idle) = (0, 0);
                continue;
            }
            slices += 1;
            idle = if events > 0 { 0 } else { idle + 1 };
            // The first round in which lanes only polled, and now and then beside lanes that never do.
            if (idle == 1 || slices % LONG == 0) && resident.iter().any(|block| block.is_stuck()) {
                self.control.fail(Fault::Deadlock);
            }
            match idle {
                0 => {}
                1..IDLE_ROUNDS => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.extend(resident.iter().flat_map(|block| block.waits()));
        drop(waits);
        drop((resident, spare));
        self.control.end(1);
    }

    /// One whose lanes have not begun; None, and the launch has failed, where there is no memory for it.
    fn block(&self, spare: Option<Box<Block>>, here: *mut Indices) -> Option<Box<Block>> {
        let block = spare.map_or_else(|| Block::new(self, here), Ok);
        block.inspect_err(|error| self.control.fail(Fault::Stacks(error.to_string()))).ok()
    }

    /// Where lanes were that left, once their threads have ended.
    pub(crate) fn waits(&self) -> Waits {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        Waits::of(waits.iter().copied())
    }
}
