//! What has the turns of a pipeline.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use gpu::{Recorded, SelfLaunching};

use super::error::ServedError;
use super::launch::Steps;
use super::resident_kernel::Resident;

/// Computes outputs of inputs. Error: why it does not, for people; it ends the chain.
pub type Model = dyn FnMut() -> Result<(), String> + Send;

/// Called when a chain has ended.
pub type OnEnd = Arc<dyn Fn() + Send + Sync>;

/// What has the turns, and whether it does now.
pub(super) enum Runs {
    Not,
    Twin {
        steps: Arc<Steps>,
        model: Arc<Mutex<Box<Model>>>,
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
    /// One kernel that stays.
    Resident {
        kernel: Arc<Resident>,
        /// Sleeps until its end.
        thread: Option<JoinHandle<Result<(), ServedError>>>,
        /// Set before the end is told.
        has_ended: Arc<AtomicBool>,
    },
}
