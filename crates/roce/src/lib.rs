//! The transport engine: RoCEv2's reliable, unreliable and datagram services as state machines without I/O.
//!
//! Follows the InfiniBand Architecture Specification («IBTA») vol. 1, chapter 9 (transport layer) and §10.3
//! (QP states). It is not public: a section or compliance number (C9-88) stands here only where public
//! sources give it for the same rule (Linux's rxe and its reviews, HCA register descriptions, Annex A17).
//! Other rules go by name. Packets go in by `handle_*`; packets, events and completions come out by `poll_*`;
//! time is an argument. A wire carries packets singly ([`wire`]). In shared memory one [`Packet`] carries as
//! many of a message as fit, with all their PSNs: what would go wrong on a wire goes wrong there too.
//! Left out so far: end-to-end credits, path migration, and the freedom to time out later than configured.
//! [`cm`] is the connection manager, which tells two QPs of each other by datagrams.
//! Knows nothing of mlx5, sockets, threads or clocks (INV-2).
//!
//! One direction of a connection is a [`Requester`] on one side and a [`Responder`] on the other:
//! ```text
//!   post ──► Requester ── next_packet ──► link ──► handle_packet ── Responder ──► Work for the memory
//!   poll_completion ◄── Requester ◄── handle_packet ◄── link ◄── next_packet ── Responder ◄── executed
//! ```
#![allow(missing_docs, reason = "a name that says it all has no comment")]
#![forbid(unsafe_code)]

#[macro_use]
mod listed;

pub mod cm;
mod counters;
pub mod message;
pub mod packet;
pub mod posting;
pub mod qp_state;
pub mod requester;
pub mod responder;
pub mod retry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod verdict;
pub mod wire;
pub mod work;

pub use counters::count;
pub use message::{Fragment, MAX_MESSAGE_BYTES, NakCode, Opcode, Request};
pub use packet::{Content, Outgoing, Packet, PayloadSource, Position};
pub use posting::{Completion, PostedMessage, ReplyVerdict, RequesterConfig, Ticket};
pub use requester::{PacketTransmit, Requester, SendWindow};
pub use responder::Responder;
pub use verdict::{
    AsyncEvent, DropReason, FailedReceive, Failure, Refusal, ResponderConfig, ResponderCounters,
    ResponderEvent, Verdict,
};
pub use wire::Service as ServiceType;
pub use wire::psn::{self, Psn};
pub use work::{
    Atomic, GRH_BYTES, Outcome, Receive, ReceiveCompletion, Region, RegionError, Resources, Status, Work,
};

/// `IBV_ACCESS_*` bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(pub u32);

bitflags::bitflags! {
    impl Access: u32 {
        const LOCAL_WRITE = 1 << 0;
        const REMOTE_WRITE = 1 << 1;
        const REMOTE_READ = 1 << 2;
        const REMOTE_ATOMIC = 1 << 3;
        const MW_BIND = 1 << 4;
        const ZERO_BASED = 1 << 5;
        const ON_DEMAND = 1 << 6;
        const HUGETLB = 1 << 7;
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// A moment on the caller's monotonic clock, in nanoseconds. The engine never asks for the time itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Now(pub u64);

impl Now {
    /// The moment `ns` later; the end of time when that does not fit.
    pub const fn after(self, ns: u64) -> Now {
        Now(self.0.saturating_add(ns))
    }
}
