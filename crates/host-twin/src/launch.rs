//! A launch: its shape, its deadline, and how it ends.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::control::{Control, Fault, MAX_BLOCK_LANES, Shape, lock};
use crate::grid::Grid;
use crate::kernels::{Arguments, Kernel};
use crate::lane_set::MAX_LANES;
use crate::shared_memory::MAX_SHARED_BYTES;
use crate::worker::side_by_side;
use crate::{Launch, LaunchReport, TwinError, Visibility};

/// How long lanes have to leave a kernel that was given up: each does at its next call of the twin.
const LEAVING: Duration = Duration::from_secs(2);

/// How long the other lanes have to come to rest if some can never go on, so that the report tells where.
const SETTLING: Duration = Duration::from_millis(100);

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
/// The arguments are what the kernel's source asks for. Whatever they lead to lives, and is not used against
/// the kernel's expectations, until [`Running::wait`] returned; for ever, if that was [`TwinError::Lost`].
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

/// Runs a kernel to its end, or to the deadline.
///
/// # Safety
/// As for [`start`].
pub unsafe fn run(kernel: Kernel, launch: &Launch, arguments: Arguments) -> Result<LaunchReport, TwinError> {
    // SAFETY: the caller's promise.
    unsafe { start(kernel, launch, arguments) }?.wait()
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
        let ran = self.grid.memory.report();
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
