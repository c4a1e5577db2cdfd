//! What the connection manager tells: events of programs, errors of commands, reasons of drops.

use super::{ConnectionId, Route, State};
use crate::wire::cm::{CmMad, Message};

/// Why a command was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    #[error("connection {id:#010x} is no more")]
    Gone { id: u32 },
    #[error("connection {id:#010x} is in {state:?}, which {command} does not go with")]
    State { id: u32, state: State, command: &'static str },
    #[error("service {service:#x} has a listener")]
    InUse { service: u64 },
    #[error("{have} bytes of private data, more than the message has room for")]
    PrivateData { have: usize },
    #[error("{limit} connections, no more")]
    Full { limit: usize },
}

/// Why a MAD was dropped, as [`CmCounters`] count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmDrop {
    Malformed,
    NoConnection,
    OutOfState,
    /// There is no room for what it asks; it will be asked again.
    Full,
}

/// A MAD was taken, or dropped for this reason.
pub type Taken = Result<(), CmDrop>;

crate::counters! {
    /// What was done, and what was dropped.
    #[derive(Copy)]
    CmCounters [fields "cm_"] {
        /// MADs sent, those sent again included.
        sent,
        /// Of those, sent again since no answer came in time.
        repeated,
        /// Answers sent again, since their question came again.
        answered_again,
        /// MADs taken.
        taken,
        /// Dropped: no MADs of the connection manager.
        malformed,
        /// Dropped: of no connection.
        no_connection,
        /// Dropped: late or sent again.
        out_of_state,
        /// Dropped: no room.
        full,
    }
}

impl CmCounters {
    pub(super) fn count(&mut self, drop: CmDrop) {
        let place = match drop {
            CmDrop::Malformed => &mut self.malformed,
            CmDrop::NoConnection => &mut self.no_connection,
            CmDrop::OutOfState => &mut self.out_of_state,
            CmDrop::Full => &mut self.full,
        };
        *place += 1;
    }
}

/// What a program is to know of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub id: ConnectionId,
    pub route: Route,
    pub cause: Cause,
}

/// Why a program is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The other end's message, and the whole room of its private data, zeroes at its end included.
    ///
    /// REQ or SIDR_REQ: accept or reject. REP: say that you are ready. RTU, or data instead: the connection
    /// is established. DREQ: answer by [`super::Cm::disconnect`]. DREP: it has ended. REJ: it is removed or
    /// in [`super::State::TimeWait`]. SIDR_REP: the request is removed.
    Received(Message, Vec<u8>),
    /// No answer, however often it was asked; the connection is no more.
    Unreachable,
    /// It is over, though no answer to our DREQ came.
    Unanswered,
    /// Its names may be given again; the connection is no more.
    TimeWaitOver,
}

impl From<&CmMad<'_>> for Cause {
    fn from(mad: &CmMad<'_>) -> Cause {
        Cause::Received(mad.message, mad.private.to_vec())
    }
}
