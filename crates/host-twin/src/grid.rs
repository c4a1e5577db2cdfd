//! A launch with its memory and its blocks, as all its threads have it.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

use crate::control::Control;
use crate::launch_memory::LaunchMemory;
use crate::report::{At, Waits};

/// A launch.
pub(crate) struct Grid {
    pub(crate) control: Control,
    pub(crate) memory: LaunchMemory,
    /// The next block that no thread has taken.
    pub(crate) next: AtomicU64,
    /// Threads that have stacks, or are about to.
    pub(crate) staffed: AtomicU32,
    /// Blocks at the grid's barrier, and how often it was passed.
    pub(crate) barrier: [AtomicU32; 2],
    pub(crate) waits: Mutex<Vec<At>>,
}

impl Grid {
    pub(crate) fn barrier_words(&self) -> *const AtomicU32 {
        self.barrier.as_ptr()
    }

    /// Where lanes were that left, once their threads have ended.
    pub(crate) fn waits(&self) -> Waits {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        Waits::of(waits.iter().copied())
    }
}
