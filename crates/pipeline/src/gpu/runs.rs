//! What has the turns of a pipeline.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use gpu::{Recorded, SelfLaunching};

use super::ahead_kernel::Ahead;
use super::error::ServedError;
use super::launch::{Model, Steps};
use super::resident_kernel::Resident;

/// Called when a chain has ended.
pub type OnEnd = Arc<dyn Fn() + Send + Sync>;

/// What has the turns, and whether it does now.
pub(super) enum Runs {
    Not,
    /// A thread has them, or sleeps until the end of the kernel that does.
    Thread {
        of: Threaded,
        thread: Option<JoinHandle<Result<(), ServedError>>>,
        /// Set before the chain's end is told.
        has_ended: Arc<AtomicBool>,
    },
    // The graph first: it uses the model's memory.
    Graph {
        graph: Box<SelfLaunching>,
        _model: Box<dyn Recorded>,
        is_started: bool,
        /// Sleeps until the chain's end.
        watcher: Option<JoinHandle<()>>,
    },
}

/// What a chain's thread waits for.
pub(super) enum Threaded {
    /// Kernel after kernel, which it launches itself: the host twin's.
    Twin { steps: Arc<Steps>, model: Arc<Mutex<Box<Model>>> },
    /// One kernel that stays.
    Resident(Arc<Resident>),
    /// One block that stays, and two graphs.
    Ahead(Arc<Ahead>),
}

impl Runs {
    pub(super) fn by_thread(of: Threaded) -> Runs {
        Runs::Thread { of, thread: None, has_ended: Arc::default() }
    }
}

/// A thread of that name. Error: the system has none.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ServedError> {
    std::thread::Builder::new().name(name.into()).spawn(work).map_err(ServedError::Thread)
}
