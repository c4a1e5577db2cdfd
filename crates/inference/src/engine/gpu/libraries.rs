//! Which libraries may compute a model's steps, and how each step was chosen to run.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu::Context;
use gpu::cublaslt::CublasLt;
use gpu::cudnn::Cudnn;

use super::library::Library;
use super::library_plan::Present;
use crate::engine::EngineError;

/// NVIDIA's libraries that may compute steps beside our own kernels.
#[derive(Debug, Clone)]
pub struct Libraries {
    pub(super) cudnn: Wanted,
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
        Libraries { cudnn, again: false }
    }

    /// Our own kernels compute every step.
    pub fn none() -> Libraries {
        Libraries::of(Wanted::No)
    }

    /// cuDNN, if it is found: a file or folder that is given, or that `DOORBELL_CUDNN` names, or the
    /// system's. And cuBLASLt, if it is found: that of `DOORBELL_CUBLASLT`, or the system's. What neither of
    /// them computes is left to our own kernels; [`super::Loaded::libraries`] says why one is missing.
    pub fn if_found(cudnn: Option<&Path>) -> Libraries {
        Libraries::of(Wanted::IfFound(cudnn.map(Path::to_owned)))
    }

    /// As [`Self::if_found`]; a model is not loaded without cuDNN.
    pub fn needed(cudnn: Option<&Path>) -> Libraries {
        Libraries::of(Wanted::Needed(cudnn.map(Path::to_owned)))
    }

    /// Times every step again, whatever was kept of an earlier choice.
    pub fn again(self) -> Libraries {
        Libraries { again: true, ..self }
    }
}

impl Libraries {
    /// The libraries in a context that are wanted and found; and what was found, for people.
    pub(super) fn find(&self, context: &Context) -> Result<(Present, String), EngineError> {
        let (path, needed) = match &self.cudnn {
            Wanted::No => return Ok((Present::default(), "none".to_owned())),
            Wanted::IfFound(path) => (path, false),
            Wanted::Needed(path) => (path, true),
        };
        let cudnn = Cudnn::new(context, path.as_deref()).and_then(|it| Ok((it.version()?, it)));
        if let (Err(error), true) = (&cudnn, needed) {
            return Err(EngineError::NoCudnn { reason: error.to_string() });
        }
        let cublaslt = CublasLt::new(context, None).and_then(|it| Ok((it.version()?, it)));
        let said = [
            told(Library::Cudnn, cudnn.as_ref().map(|(version, it)| (version, it.path()))),
            told(Library::CublasLt, cublaslt.as_ref().map(|(version, it)| (version, it.path()))),
        ];
        let present =
            Present { cudnn: cudnn.ok().map(|found| found.1), cublaslt: cublaslt.ok().map(|found| found.1) };
        Ok((present, said.join(", ")))
    }
}

/// A library's version and file, or why it is not used.
fn told(library: Library, found: Result<(&String, &Path), &gpu::Error>) -> String {
    match found {
        Ok((version, path)) => format!("{library} {version} ({})", path.display()),
        Err(error) => format!("no {error}"),
    }
}

/// What runs a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum By {
    /// A kernel of ours.
    #[default]
    Own,
    /// A library, and behind it our kernel for what the library does not compute.
    Library {
        /// Which one.
        library: Library,
        /// The library's number of the engine or algorithm, and its settings.
        engine: String,
        /// Whether a kernel of ours finishes the step.
        finished: bool,
    },
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Own => f.write_str("own"),
            By::Library { library, engine, finished } => {
                write!(f, "{library} {engine}{}", if *finished { " + own" } else { "" })
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_told_with_its_version_or_why_there_is_none() {
        let (version, path) = ("13.1.0".to_owned(), Path::new("/lib/libcublasLt.so.13"));
        let found = told(Library::CublasLt, Ok((&version, path)));
        assert_eq!(found, "cuBLASLt 13.1.0 (/lib/libcublasLt.so.13)");
        let missing = gpu::Error::Refused("cuBLASLt: /nowhere: not there".into());
        assert_eq!(told(Library::CublasLt, Err(&missing)), "no cuBLASLt: /nowhere: not there");
    }
}
