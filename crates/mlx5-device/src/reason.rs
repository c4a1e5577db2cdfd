//! Why something failed, in one line: which check, on which value, and the remedy. Made only at an error.

use std::fmt;

use roce::{Now, Status};

/// Kind of what follows an error of a queue.
pub const FLUSHED: &str = "flush";
/// Kind of a message that a queue refused.
pub(super) const REFUSED: &str = "refused";
/// Kind of a queue that does not go on.
pub const STALLED: &str = "stalled";

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum About {
    #[error("command refused")]
    Command,
    #[error("connection")]
    Connection,
    /// A queue pair, with the WQE's first block or the receive's index where it is about one.
    #[error("QP {0:#x}{wqe}", wqe = .1.map_or(String::new(), |wqe| format!(", WQE {wqe}")))]
    Qp(u32, Option<u16>),
    #[error("CQ {0:#x}")]
    Cq(u32),
    #[error("SRQ {0:#x}")]
    Srq(u32),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{about}: {why}")]
pub struct Reason {
    pub at: Now,
    pub about: About,
    /// Of an error CQE its syndrome, by the name of its counter without `error_`; of all else a word.
    pub kind: &'static str,
    /// One line.
    pub why: String,
    /// The queue in this fabric whose process knows more.
    pub peer: Option<u32>,
}

/// A check that failed.
#[derive(Debug)]
pub(super) struct CheckFailure {
    pub status: Status,
    /// Which check failed, and what would help.
    pub why: String,
}

/// What a check of a WQE gives.
pub(super) type Checked<T> = Result<T, Box<CheckFailure>>;

impl CheckFailure {
    #[cold]
    pub(super) fn new(status: Status, why: impl fmt::Display) -> Box<CheckFailure> {
        Box::new(CheckFailure { status, why: why.to_string() })
    }

    /// Of a WQE that is none of this queue.
    #[cold]
    pub(super) fn malformed(why: impl fmt::Display) -> Box<CheckFailure> {
        CheckFailure::new(Status::LocalQpOperation, why)
    }
}
