//! Why something failed, in one line: which check, on which value, and what would help. Made only where an error is.

use std::fmt;

use roce::{Now, Status};

/// Kind of what follows an error of a queue.
pub const FLUSHED: &str = "flush";
/// Kind of a message that a queue refused.
pub(super) const REFUSED: &str = "refused";
/// Kind of a queue that does not go on.
pub const STALLED: &str = "stalled";

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    Command,
    Connection,
    /// A queue pair, with the WQE's first block or the receive's index where it is about one.
    Qp(u32, Option<u16>),
    Cq(u32),
    Srq(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
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

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.about {
            About::Command => f.write_str("command refused")?,
            About::Connection => f.write_str("connection")?,
            About::Qp(qpn, None) => write!(f, "QP {qpn:#x}")?,
            About::Qp(qpn, Some(wqe)) => write!(f, "QP {qpn:#x}, WQE {wqe}")?,
            About::Cq(cqn) => write!(f, "CQ {cqn:#x}")?,
            About::Srq(srqn) => write!(f, "SRQ {srqn:#x}")?,
        }
        write!(f, ": {}", self.why)
    }
}

/// A check that failed.
#[derive(Debug)]
pub(super) struct CheckFailure {
    pub status: Status,
    /// Which check failed, and what would help.
    pub why: String,
}

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
