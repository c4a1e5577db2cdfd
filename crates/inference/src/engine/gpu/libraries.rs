//! Which libraries may compute a model's steps, and how each step was chosen to run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu::Context;
use gpu::cudnn::Cudnn;

use crate::engine::EngineError;

/// Bytes that a library's kernel may need beside its tensors, unless [`Libraries::workspace`] says another
/// number.
const WORKSPACE: usize = 64 << 20;

/// NVIDIA's libraries that may compute steps beside our own kernels.
#[derive(Debug, Clone)]
pub struct Libraries {
    pub(super) cudnn: Wanted,
    pub(super) workspace: usize,
    pub(super) again: bool,
}

/// Whether a library is used. The path is its file, or its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    No,
    IfFound(Option<PathBuf>),
    Needed(Option<PathBuf>),
}

impl Libraries {
    fn of(cudnn: Wanted) -> Libraries {
        Libraries { cudnn, workspace: WORKSPACE, again: false }
    }

    /// Our own kernels compute every step.
    pub fn none() -> Libraries {
        Libraries::of(Wanted::No)
    }

    /// cuDNN, if it is found: a file or folder that is given, or that `DOORBELL_CUDNN` names, or the
    /// system's. Without it our own kernels compute every step, and [`super::Loaded::libraries`] says why.
    pub fn if_found(cudnn: Option<&Path>) -> Libraries {
        Libraries::of(Wanted::IfFound(cudnn.map(Path::to_owned)))
    }

    /// As [`Self::if_found`]; a model is not loaded without it.
    pub fn needed(cudnn: Option<&Path>) -> Libraries {
        Libraries::of(Wanted::Needed(cudnn.map(Path::to_owned)))
    }

    /// The most bytes that a library's kernel may need beside its tensors.
    pub fn workspace(self, bytes: usize) -> Libraries {
        Libraries { workspace: bytes, ..self }
    }

    /// Times every step again, whatever was kept of an earlier choice.
    pub fn again(self) -> Libraries {
        Libraries { again: true, ..self }
    }
}

impl Libraries {
    /// cuDNN in a context, if it is wanted and found; and what was found, for people.
    pub(super) fn find(&self, context: &Context) -> Result<(Option<Cudnn>, String), EngineError> {
        let (path, needed) = match &self.cudnn {
            Wanted::No => return Ok((None, "none".to_owned())),
            Wanted::IfFound(path) => (path, false),
            Wanted::Needed(path) => (path, true),
        };
        let found = Cudnn::new(context, path.as_deref()).and_then(|cudnn| {
            let text = format!("cuDNN {} ({})", cudnn.version()?, cudnn.path().display());
            Ok((Some(cudnn), text))
        });
        match found {
            Err(error) if needed => Err(EngineError::NoCudnn { reason: error.to_string() }),
            Err(error) => Ok((None, format!("none: {error}"))),
            Ok(found) => Ok(found),
        }
    }
}

/// What runs a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum By {
    /// A kernel of ours.
    #[default]
    Own,
    /// cuDNN, and a kernel of ours behind it for what its engine does not compute.
    Cudnn {
        /// The library's number of the engine, and its settings.
        engine: String,
        /// Whether a kernel of ours finishes the step.
        finished: bool,
    },
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Own => f.write_str("own"),
            By::Cudnn { engine, finished: false } => write!(f, "cuDNN {engine}"),
            By::Cudnn { engine, finished: true } => write!(f, "cuDNN {engine} + own"),
        }
    }
}

/// How a step runs, and what else was timed for it.
#[derive(Debug, Clone, Default)]
pub struct Chosen {
    /// What runs it.
    pub by: By,
    /// Bytes that it needs beside its tensors; steps of an instance share them.
    pub workspace: usize,
    /// All that was timed, the fastest first; empty for a step that only our kernels compute, or whose choice
    /// was kept on disk.
    pub tried: Vec<Tried>,
}

/// One way to run a step.
#[derive(Debug, Clone)]
pub struct Tried {
    /// What ran it.
    pub by: By,
    /// Bytes that it needs beside its tensors.
    pub workspace: usize,
    /// The GPU's time of one run, many of them in one graph; or why it is not used.
    pub time: Result<Duration, String>,
    /// The distance of its result from that of our kernel, as [`crate::layers::distance`] says.
    pub distance: f64,
    /// How long the library took to make it ready.
    pub made_in: Duration,
}

impl Default for Tried {
    fn default() -> Tried {
        let (time, made_in) = (Err(String::new()), Duration::ZERO);
        Tried { by: By::Own, workspace: 0, time, distance: 0.0, made_in }
    }
}
