//! A launch: its shape, its deadline, and how it ends.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::grid::{Grid, side_by_side};
use crate::kernels::{Arguments, Kernel};
use crate::lane_set::MAX_LANES;
use crate::shared_memory::MAX_SHARED_BYTES;
use crate::{Dim3, Launch, LaunchReport, TwinError, Visibility};

/// How long lanes have to leave a kernel that was given up: each does at its next call of the twin.
const LEAVING: Duration = Duration::from_secs(2);

/// How long the other lanes of a launch in which some can never go on have to come to rest, so that the report tells where.
const SETTLING: Duration = Duration::from_millis(100);

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
    given_up: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
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

struct Progress {
    /// Threads that run lanes.
    living: usize,
    /// The first.
    fault: Option<Fault>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    fn new(kernel: Kernel, arguments: Arguments, shape: Shape) -> Control {
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

    /// The launch cannot end well: [`Running::wait`] abandons it.
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

/// A launch that runs. Dropping it gives it up.
pub struct Running {
    grid: Arc<Grid>,
    threads: Vec<JoinHandle<()>>,
    deadline: Duration,
    until: Instant,
}

/// Starts a kernel.
///
/// # Safety
/// The arguments are what the kernel's source asks for, and whatever they lead to lives, and is not used against the
/// kernel's expectations, until [`Running::wait`] has returned; for ever, if that returned [`TwinError::Lost`].
pub unsafe fn start(kernel: Kernel, launch: &Launch, arguments: Arguments) -> Result<Running, TwinError> {
    let until = Instant::now() + launch.deadline;
    arguments.check(kernel)?;
    let Launch { blocks, threads, shared_bytes, .. } = *launch;
    let refuse = |limit: String| Err(TwinError::Shape { kernel: kernel.name(), blocks, threads, limit });
    let lanes = blocks.count().saturating_mul(threads.count());
    let is_weak = launch.visibility != Visibility::InOrder;
    if is_weak && !(1..=MAX_LANES as u64).contains(&lanes) {
        return refuse(format!("the twin runs 1 to {MAX_LANES} lanes with weak memory"));
    }
    if lanes == 0 || threads.count() > MAX_BLOCK_LANES || threads.z > 64 {
        return refuse(format!("a block has 1 to {MAX_BLOCK_LANES} lanes, at most 64 along z"));
    }
    if blocks.y > 65_535 || blocks.z > 65_535 || blocks.x > i32::MAX as u32 {
        return refuse("a grid has at most 2147483647, 65535 and 65535 blocks along x, y and z".into());
    }
    if shared_bytes as usize > MAX_SHARED_BYTES {
        return refuse(format!(
            "{shared_bytes} bytes of dynamic shared memory, and a block has {MAX_SHARED_BYTES}"
        ));
    }
    let most = side_by_side(threads.count());
    if launch.cooperative && !is_weak && blocks.count() > most {
        return refuse(format!(
            "a cooperative launch runs all blocks side by side: at most {most} of that size here"
        ));
    }
    let control = Control::new(kernel, arguments, Shape { blocks, threads, shared_bytes });
    let (grid, threads) = Grid::start(control, launch.visibility)?;
    Ok(Running { grid, threads, deadline: launch.deadline, until })
}

impl Running {
    /// Whether all lanes have ended.
    pub fn has_ended(&self) -> bool {
        self.grid.control.has_ended()
    }

    /// Whether [`Running::wait`] would return at once: all lanes have ended, or some can never go on.
    pub fn is_over(&self) -> bool {
        let progress = lock(&self.grid.control.progress);
        progress.living == 0 || progress.fault.is_some()
    }

    /// As if the deadline were now.
    pub fn give_up(mut self) -> Result<LaunchReport, TwinError> {
        self.until = Instant::now();
        self.finish()
    }

    /// Waits for the end, or the deadline.
    pub fn wait(mut self) -> Result<LaunchReport, TwinError> {
        self.finish()
    }

    /// Waits until all threads are through, the time is over, or, if it is asked for, lanes can never go on.
    fn wait_until(&self, until: Instant, or_fault: bool) -> bool {
        let control = &self.grid.control;
        let mut progress = lock(&control.progress);
        while progress.living > 0 && !(or_fault && progress.fault.is_some()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = control.changed.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        progress.living == 0 && progress.fault.is_none()
    }

    fn finish(&mut self) -> Result<LaunchReport, TwinError> {
        let control = &self.grid.control;
        let kernel = control.kernel.name();
        let ended_well = self.wait_until(self.until, true);
        if !ended_well {
            let before = lock(&control.progress).fault.clone();
            if before.is_some_and(|fault| matches!(fault, Fault::Deadlock | Fault::Mask)) {
                std::thread::sleep(SETTLING);
            }
            control.given_up.store(true, Ordering::SeqCst);
            self.wait_until(Instant::now() + LEAVING, false);
        }
        let fault = {
            let mut progress = lock(&control.progress);
            if progress.living > 0 {
                let lanes = progress.living;
                drop(progress);
                // Its threads are not waited for.
                self.threads.clear();
                return Err(TwinError::Lost { kernel, lanes, waits: self.grid.waits() });
            }
            progress.fault.take()
        };
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let ran = self.grid.memory.finish();
        if ended_well {
            return Ok(ran);
        }
        let waits = self.grid.waits();
        Err(match fault {
            Some(Fault::Mask) => TwinError::Mask { kernel, waits },
            Some(Fault::Deadlock) => TwinError::Deadlock { kernel, waits },
            Some(Fault::SharedMemory(variable, bytes)) => TwinError::SharedMemory { kernel, variable, bytes },
            Some(Fault::Overrun(variable)) => TwinError::Overrun { kernel, variable },
            Some(Fault::Stacks(system)) => TwinError::Stacks { kernel, system },
            None => TwinError::Deadline { kernel, deadline: self.deadline, waits },
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.until = Instant::now();
            // The error has no reader any more.
            let _ = self.finish();
        }
    }
}

/// A kernel's code: takes pointers to its arguments.
pub(crate) type Run = unsafe extern "C" fn(*mut *mut c_void);
