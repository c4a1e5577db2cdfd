//! The NIC's threads that call CUDA's driver.
//!
//! There are four: one copies; one launches; one makes contexts and registers pages, which takes seconds for tens of gigabytes; one
//! unregisters pages, for which it waits until the program's kernels have ended.

use std::io;

use super::contexts::GpuContexts;
use super::engine::{Cards, CopyEngine, Kernels};
use super::worker::Worker;
use crate::os::{ForgetInChild, PerProcess};

#[derive(Default)]
pub struct Threads {
    pub copies: Worker<Cards<CopyEngine>>,
    pub launches: Worker<Cards<Kernels>>,
    /// Makes contexts and registers pages.
    pub contexts: Worker<GpuContexts>,
    pub unregistrations: Worker<()>,
}

static THREADS: PerProcess<Threads> = PerProcess::new(&FORGETS);

static FORGETS: ForgetInChild = ForgetInChild::new(forget_all);

/// In a fork child: it has none of its parent's threads.
extern "C" fn forget_all() {
    THREADS.forget();
}

/// All four; the first call starts them. Error: the kernel gave no thread.
pub fn threads() -> io::Result<&'static Threads> {
    let threads = THREADS.get();
    threads.copies.start()?;
    threads.launches.start()?;
    threads.contexts.start()?;
    threads.unregistrations.start()?;
    Ok(threads)
}
