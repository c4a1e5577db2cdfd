//! Engines: what runs a plan.

pub mod twin;

use crate::launch::LaunchError;

/// Why a model did not run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum EngineError {
    /// The plan cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Inputs that are not the model's.
    #[error("input {number} has {given} elements, the model takes {wanted}")]
    Input { number: usize, given: usize, wanted: usize },
    /// Fewer or more inputs than the model has.
    #[error("{given} inputs, the model takes {wanted}")]
    Inputs { given: usize, wanted: usize },
    /// A kernel did not run to its end.
    #[error("step {step}: {source}")]
    Twin { step: String, source: host_twin::TwinError },
}
