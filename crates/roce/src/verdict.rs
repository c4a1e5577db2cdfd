//! What a responder is configured with, and what it says: verdicts, events, counters.
//!
//! Reasons and events follow IBTA vol. 1 §9.9.3 (responder's errors) and its list of asynchronous events.

use crate::message::MAX_MESSAGE_BYTES;
use crate::packet::Position;
use crate::{Access, Opcode, Psn, Receive, RegionError, Request, ServiceType, Status, Work};

/// How a responder behaves; the QP attributes of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponderConfig {
    pub service: ServiceType,
    /// Peer's QPN, which answers go to (RC, UC); `None`: each datagram names its sender (UD).
    pub peer_qpn: Option<u32>,
    /// First PSN expected (`rq_psn`).
    pub expected_psn: Psn,
    /// Payload bytes of a full packet; the longest datagram.
    pub path_mtu_bytes: u32,
    /// Remote operations that the QP grants.
    pub access: Access,
    /// READs and atomics that may wait for an answer, and that are remembered.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Q_Key (UD).
    pub qkey: u32,
}

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Do this, then call [`crate::Responder::executed`].
    Execute(Work),
    /// Nothing to execute; a reply is due.
    Answered,
    /// Nothing to execute and nothing to say.
    Dropped(DropReason),
}

listed! {
    /// Why a request was dropped without an answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    DropReason {
        /// The responder is in error.
        InError,
        /// The work of the request before it was not reported yet.
        Busy,
        /// Another service's request.
        WrongService,
        /// Past a gap that was NAKed, or past a message that met no receive; it will come again.
        AfterNak,
        /// A duplicate READ or atomic that is not remembered, or has lost its region.
        UnknownDuplicate,
        /// UC: a packet that continues nothing.
        Hole,
        /// UC, UD: no receive is posted.
        NoReceive,
        /// UC, UD: an operation that the service or the QP does not do, or a length that cannot be.
        InvalidRequest,
        /// UC: the key does not grant the access.
        RemoteAccess,
        /// UC, UD: longer than the receive, which is used up by it.
        TooLong,
        /// UD: wrong Q_Key.
        WrongQkey,
    }
}

/// Which check a request failed, or what failed while it was carried out, and what would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "the QP grants access {granted:#x}, it needs {need:#x}; name it in qp_access_flags of ibv_modify_qp"
    )]
    Operation { granted: u32, need: u32 },
    #[error("a {0:?} QP does not take it; compare the QP types of both ends")]
    Service(ServiceType),
    #[error("{0} bytes are more than the {MAX_MESSAGE_BYTES} of the longest message; split it")]
    Length(u32),
    /// `within`: the message that has begun.
    #[error(
        "its {position:?} packet came {}; compare the PSNs of both ends",
        .within.map_or("outside a message".to_owned(), |within| format!("inside a {within}"))
    )]
    Order { position: Position, within: Option<Opcode> },
    #[error(
        "its {position:?} packet of {bytes} bytes ends at byte {end} of {length}, path MTU {mtu}; set one path MTU at both ends"
    )]
    PacketBytes { position: Position, bytes: u32, end: u32, length: u32, mtu: u32 },
    #[error("its {0} carries {1} bytes and may have none; look at the peer's packets in a capture")]
    Payload(Opcode, u32),
    #[error("an atomic is of 8 bytes at a multiple of 8; align its address")]
    Unaligned,
    #[error(
        "max_dest_rd_atomic is {0} and so many READs and atomics wait; raise it, or lower max_rd_atomic of the peer"
    )]
    ReadsWait(u8),
    #[error("{0}")]
    Region(RegionError),
    #[error("rkey {0:#x} is no open type-2 window of this QP; bind it here first")]
    Invalidate(u32),
    /// Not fatal on RC: it is to come again.
    #[error("no receive is posted")]
    NoReceive,
    #[error("{needed} bytes came and the receive has {capacity}; post a longer one, or send less")]
    TooLong { needed: u64, capacity: u64 },
    #[error("address {0:#x} of its memory cannot be accessed; keep it mapped while it is registered")]
    Memory(u64),
    #[error("its Q_Key is {came:#x} and the QP's {own:#x}; send with the QP's")]
    Qkey { came: u32, own: u32 },
    #[error("its region was deregistered or closed meanwhile; keep it until the peer is done")]
    Revoked,
}

/// An affiliated asynchronous event; `IBV_EVENT_*` of the same meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    /// `IBV_EVENT_QP_FATAL`: the NIC could not reach registered memory.
    QpFatal,
    /// `IBV_EVENT_QP_REQ_ERR`: invalid request.
    RequestError,
    /// `IBV_EVENT_QP_ACCESS_ERR`: a remote key did not grant the access.
    AccessError,
}

/// A receive that ends in error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedReceive {
    pub receive: Receive,
    pub status: Status,
}

/// The responder met a fatal error. The device completes the receive, raises the event, moves the QP to ERR
/// and flushes the rest; queued replies are still sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The receive in use, to be completed first.
    pub receive: Option<FailedReceive>,
    /// The event to raise; `None` when the receive's completion tells (IBTA §9.9.3).
    pub event: Option<AsyncEvent>,
    /// What was refused or failed, and why.
    pub why: Refusal,
    pub request: Request,
}

/// What the device should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponderEvent {
    /// The first request was accepted; «communication established» when the QP is in RTR.
    CommunicationEstablished,
    /// A fatal error.
    Failed(Failure),
    /// UC, UD: a request was dropped; the responder goes on.
    Dropped(Failure),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponderCounters {
    /// Messages executed, duplicates not counted.
    pub messages: u64,
    /// Duplicate requests.
    pub duplicates: u64,
}
