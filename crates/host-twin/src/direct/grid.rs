//! A launch in direct memory: a thread for each core takes one block after the other.
//!
//! A thread takes another block beside those that it runs when they only poll, or have run for long: they may wait for it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::block::{Block, Current};
use crate::block::Fault;
use crate::launch::{Control, Crew, Indices};
use crate::report::{At, Waits};
use crate::{Ran, TwinError};

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

/// The lane that runs on this thread, in direct memory.
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
    pub(crate) fn start(control: Control) -> Result<(Arc<Grid>, Vec<JoinHandle<()>>), TwinError> {
        let workers = workers().min(control.shape.blocks.count() as usize);
        control.set_living(workers);
        let kernel = control.kernel.name();
        let barrier = [const { AtomicU32::new(0) }; 2];
        let grid = Arc::new(Grid { control, next: AtomicU64::new(0), barrier, waits: Mutex::default() });
        let mut threads = Vec::new();
        for number in 0..workers {
            let mine = Arc::clone(&grid);
            let builder = std::thread::Builder::new().name(format!("twin-worker-{number}"));
            match builder.spawn(move || mine.work()) {
                Ok(thread) => threads.push(thread),
                // The others run its blocks.
                Err(_) if number > 0 => grid.control.end(workers - number),
                Err(source) => return Err(TwinError::Thread { kernel, lane: number, source }),
            }
            if threads.len() <= number {
                break;
            }
        }
        Ok((grid, threads))
    }

    pub(super) fn barrier_words(&self) -> *const AtomicU32 {
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
        unsafe { here.write(Indices { direct: 1, ..Indices::default() }) };
        let (mut resident, mut spare) = (VecDeque::new(), Vec::new());
        let (mut slices, mut idle) = (0, 0);
        while !self.control.is_given_up() {
            if resident.is_empty() || (idle > 0 || slices >= LONG) && resident.len() < most {
                slices = 0;
                match (self.take_block(), resident.is_empty()) {
                    (Some(index), _) => match self.block(spare.pop(), here) {
                        Some(mut block) => {
                            block.begin(index);
                            resident.push_back(block);
                        }
                        None => break,
                    },
                    (None, true) => break,
                    (None, false) => {}
                }
            }
            let mut events = 0;
            for block in &mut resident {
                let before = block.events;
                CURRENT.set(&raw mut **block);
                block.run();
                CURRENT.set(std::ptr::null_mut());
                events += block.events - before;
                if block.is_stuck() && !self.control.is_given_up() {
                    self.control.fail(Fault::Deadlock(Vec::new()));
                }
            }
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
}

impl Crew for Grid {
    fn control(&self) -> &Control {
        &self.control
    }

    fn wake(&self) {}

    /// Lanes tell by themselves, when they have been stopped.
    fn waits_before(&self) -> Option<Waits> {
        None
    }

    fn waits_after(&self) -> Waits {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        Waits::of(waits.iter().copied())
    }

    fn finish(&self) -> Ran {
        Ran { stored: 0, overtook: 0 }
    }
}
