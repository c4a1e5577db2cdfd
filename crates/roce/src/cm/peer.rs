//! What the connection manager tells: events to programs, errors of commands, reasons of drops.

use super::{ConnectionId, Route, State};
use crate::wire::cm::{Rej, Rep, Req, SidrRep};

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

/// How a connection came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnect {
    /// The other end asks: answer by [`super::Cm::disconnect`].
    Asked,
    /// The other end answered.
    Answered,
    Unanswered,
}

/// What a program is to know. Private data is the whole room of the message, zeroes at its end included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection: accept or reject.
    Requested {
        id: ConnectionId,
        route: Route,
        req: Box<Req>,
        /// 92 bytes.
        private: Vec<u8>,
    },
    /// The request was accepted: say that you are ready.
    Replied {
        id: ConnectionId,
        rep: Rep,
        /// 196 bytes.
        private: Vec<u8>,
    },
    /// The other end is ready: the connection stands.
    Established {
        id: ConnectionId,
        /// 224 bytes.
        private: Vec<u8>,
    },
    /// Refused; the connection is no more, or rests.
    Rejected {
        id: ConnectionId,
        rej: Box<Rej>,
        /// 148 bytes.
        private: Vec<u8>,
    },
    /// No answer, however often it was asked; the connection is no more.
    Unreachable { id: ConnectionId },
    /// It is over.
    Disconnected { id: ConnectionId, how: Disconnect },
    /// Its names may be given again; the connection is no more.
    TimeWaitOver { id: ConnectionId },
    /// A peer asks for a datagram service's QP.
    SidrRequested {
        id: ConnectionId,
        route: Route,
        service: u64,
        pkey: u16,
        /// 216 bytes.
        private: Vec<u8>,
    },
    SidrReplied {
        /// The question, which is no more.
        id: ConnectionId,
        rep: Box<SidrRep>,
        /// 136 bytes.
        private: Vec<u8>,
    },
}
