//! What is said and decided of a launch, by its threads and by the one that waits for it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::Dim3;
use crate::kernels::{Arguments, Kernel};

/// Lanes of a block at most, as on a GPU.
pub const MAX_BLOCK_LANES: u64 = 1024;

/// `struct db_twin_here` of `twin.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Indices {
    pub thread: Dim3,
    pub block: Dim3,
    pub threads: Dim3,
    pub blocks: Dim3,
    /// The lane's number in its block.
    pub lane: u32,
    /// Whether memory is direct.
    pub direct: u32,
    /// The dynamic part of the block's shared memory.
    pub dynamic: *mut u8,
    /// The grid's barrier: two words.
    pub grid: *const AtomicU32,
    /// Atomics since the lane last let others go on.
    pub atomics: u32,
}

impl Default for Indices {
    fn default() -> Indices {
        let none = Dim3::from(0);
        let (dynamic, grid) = (std::ptr::null_mut(), std::ptr::null());
        Indices {
            thread: none,
            block: none,
            threads: none,
            blocks: none,
            lane: 0,
            direct: 0,
            dynamic,
            grid,
            atomics: 0,
        }
    }
}

/// What is said and decided of a launch, by its threads and by the one that waits for it.
pub(crate) struct Control {
    pub kernel: Kernel,
    pub arguments: Arguments,
    pub shape: Shape,
    pub(crate) given_up: AtomicBool,
    pub(crate) progress: Mutex<Progress>,
    pub(crate) changed: Condvar,
}

/// Why a launch cannot end well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A mask does not name the lane that gave it, or names lanes that the block does not have.
    Mask,
    /// Lanes wait for one another, or for lanes that have ended.
    Deadlock,
    /// A block has no room for a shared variable of so many bytes.
    SharedMemory(String, usize),
    /// A lane wrote behind a shared variable.
    Overrun(String),
    /// There is no memory for lanes' stacks, in the system's words.
    Stacks(String),
}

/// Blocks, lanes of each, and bytes that they share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub blocks: Dim3,
    pub threads: Dim3,
    pub shared_bytes: u32,
}

pub(crate) struct Progress {
    /// Threads that run lanes.
    pub(crate) living: usize,
    /// The first.
    pub(crate) fault: Option<Fault>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    pub(crate) fn new(kernel: Kernel, arguments: Arguments, shape: Shape) -> Control {
        let progress = Mutex::new(Progress { living: 0, fault: None });
        Control {
            kernel,
            arguments,
            shape,
            given_up: AtomicBool::new(false),
            progress,
            changed: Condvar::new(),
        }
    }

    /// Whether lanes are to leave.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// The launch cannot end well: [`crate::Running::wait`] abandons it.
    pub(crate) fn fail(&self, fault: Fault) {
        lock(&self.progress).fault.get_or_insert(fault);
        self.changed.notify_all();
    }

    /// So many threads run lanes.
    pub(crate) fn set_living(&self, threads: usize) {
        lock(&self.progress).living = threads;
    }

    /// So many of them are through.
    pub(crate) fn end(&self, threads: usize) {
        lock(&self.progress).living -= threads;
        self.changed.notify_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.progress).living == 0
    }
}
