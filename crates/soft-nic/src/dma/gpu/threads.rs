//! The NIC's threads that call CUDA's driver.
//!
//! There are four. One copies; one launches; one makes contexts and registers pages, which takes seconds for
//! tens of gigabytes; one unregisters pages, once the program's kernels have ended.

use std::io;
use std::sync::OnceLock;

use super::engine::{Cards, CopyEngine, GpuContexts, Kernels};
use super::worker::Worker;
use crate::os::PerProcess;

pub struct Threads {
    pub copies: Worker<Cards<CopyEngine>>,
    pub launches: Worker<Cards<Kernels>>,
    /// Makes contexts and registers pages.
    pub contexts: Worker<GpuContexts>,
    pub unregistrations: Worker<()>,
}

static THREADS: PerProcess<OnceLock<Threads>> = PerProcess::empty();

/// All four; the first call starts them. Error: the kernel gave no thread.
pub fn threads() -> io::Result<&'static Threads> {
    let threads = THREADS.get();
    if let Some(threads) = threads.get() {
        return Ok(threads);
    }
    let (copies, launches) = (Worker::start()?, Worker::start()?);
    let (contexts, unregistrations) = (Worker::start()?, Worker::start()?);
    // Where another thread was first, these end.
    Ok(threads.get_or_init(|| Threads { copies, launches, contexts, unregistrations }))
}
