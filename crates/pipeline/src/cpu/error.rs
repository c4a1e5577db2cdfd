//! What goes wrong in a CPU mode.

use slots::server::ServerError;

use crate::Mode;

/// What goes wrong in a CPU mode.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    #[error("memory for slots: {0}")]
    Memory(#[from] std::io::Error),
    #[error("{0}")]
    Post(String),
    #[error("{0} is none of the CPU's modes")]
    Mode(Mode),
    #[error("{0}: steps are traced of requests whose receive completions the shim polls, in cpu-cpu-shim")]
    NoTimestamps(Mode),
    #[error("the client has no such slot")]
    NoSlots,
    #[error("{0}")]
    Answers(String),
    #[error("a tensor that is not of f32")]
    Kind,
    #[error(transparent)]
    Slots(#[from] ServerError),
    #[error("what computes the answers: {0}")]
    Offload(String),
}
