//! The threads of a launch: one a core, each taking block after block; with weak memory one runs all blocks.
//!
//! A thread takes one more block when its own only poll or have run for long: they may wait for it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::block::{Block, Current};
use crate::control::{Control, Fault, Indices, MAX_BLOCK_LANES};
use crate::grid::Grid;
use crate::launch_memory::LaunchMemory;
use crate::{TwinError, Visibility};

/// Lanes of a launch that run side by side. Each has two of the 65,530 mappings of a process
/// (`vm.max_map_count`), its stack and the guard page.
const MAX_RESIDENT_LANES: u64 = 16_384;
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

/// How many blocks of so many lanes run side by side.
pub(crate) fn side_by_side(lanes: u64) -> u64 {
    let workers = workers(std::thread::available_parallelism().map_or(1, usize::from));
    workers as u64 * blocks_of_worker(workers, lanes)
}

/// Threads of a launch, so that each may have a block of any size.
fn workers(cores: usize) -> usize {
    cores.min((MAX_RESIDENT_LANES / MAX_BLOCK_LANES) as usize)
}

/// Blocks of so many lanes that one of them runs side by side.
fn blocks_of_worker(workers: usize, lanes: u64) -> u64 {
    MAX_RESIDENT_LANES / workers as u64 / lanes.max(1)
}

impl Grid {
    pub(crate) fn start(
        control: Control,
        visibility: Visibility,
    ) -> Result<(Arc<Grid>, Vec<JoinHandle<()>>), TwinError> {
        let memory = LaunchMemory::new(visibility);
        // One with weak memory, so that the order of calls is the seed's.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if memory.is_weak() { 1 } else { workers(cores) };
        let most = blocks_of_worker(workers, control.shape.threads.count()) as usize;
        let workers = workers.min(control.shape.blocks.count() as usize);
        control.set_living(workers);
        let kernel = control.kernel.name();
        let (next, staffed, barrier) = (AtomicU64::new(0), AtomicU32::new(0), Default::default());
        let grid = Arc::new(Grid { control, memory, next, staffed, barrier, waits: Mutex::default() });
        let mut threads = Vec::new();
        for number in 0..workers {
            let mine = Arc::clone(&grid);
            let builder = std::thread::Builder::new().name(format!("twin-worker-{number}"));
            match builder.spawn(move || mine.work(most)) {
                Ok(thread) => threads.push(thread),
                Err(source) if number == 0 => return Err(TwinError::Thread { kernel, source }),
                // The others run its blocks.
                Err(_) => {
                    grid.control.end(workers - number);
                    break;
                }
            }
        }
        Ok((grid, threads))
    }

    fn take_block(&self) -> Option<u64> {
        let all = self.control.shape.blocks.count();
        let both = Ordering::SeqCst;
        self.next.fetch_update(both, both, |next| (next < all).then_some(next + 1)).ok()
    }

    /// A thread's part: runs blocks, at most so many side by side, until none is left.
    fn work(&self, most: usize) {
        // SAFETY: C's, and nothing but an address.
        let here = unsafe { db_twin_here_of_thread() };
        // SAFETY: this thread's own words.
        unsafe { here.write(Indices { direct: u32::from(!self.memory.is_weak()), ..Indices::default() }) };
        let (mut resident, mut spare) = (VecDeque::new(), Vec::new());
        let (mut slices, mut idle) = (0, 0);
        while !self.control.is_given_up() {
            let wants_more = resident.is_empty() || self.memory.is_weak() || idle > 0 || slices >= LONG;
            if wants_more && resident.len() < most {
                let is_first = resident.is_empty() && spare.is_empty();
                self.staffed.fetch_add(u32::from(is_first), Ordering::SeqCst);
                match spare.pop().map_or_else(|| Block::new(self, here), Ok) {
                    Ok(mut block) => match self.take_block() {
                        Some(index) => {
                            slices = 0;
                            block.begin(index);
                            resident.push_back(block);
                        }
                        None => spare.push(block),
                    },
                    Err(error) if is_first => {
                        // Threads that have stacks run its blocks.
                        if self.staffed.fetch_sub(1, Ordering::SeqCst) == 1 {
                            self.control.fail(Fault::Stacks(error.to_string()));
                        }
                        break;
                    }
                    // Its other blocks give theirs back when they end.
                    Err(_) => {}
                }
            }
            if resident.is_empty() {
                break;
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
        // Before anybody is told of the end. Weak memory has one worker.
        self.memory.finish();
        self.control.end(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_of_a_launch_take_half_of_the_mappings_of_a_process_on_any_number_of_cores() {
        for cores in [1, 2, 3, 8, 16, 17, 64, 512] {
            let workers = workers(cores);
            for lanes in [1, 32, 100, 1000, MAX_BLOCK_LANES] {
                let blocks = blocks_of_worker(workers, lanes);
                let mappings = 2 * workers as u64 * blocks * lanes.next_power_of_two();
                assert!(blocks >= 1 && mappings <= 65_530, "{cores} cores, {lanes} lanes: {mappings}");
            }
        }
    }
}
