//! What a requester is configured with, takes and gives: posted messages, completions, verdicts.
//!
//! The attributes are those of `ibv_modify_qp(3)`, the statuses those of `ibv_poll_cq(3)`.

use crate::{Fragment, Opcode, Psn, ServiceType, Status};

/// Names one posted message of a requester; consecutive from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// How a requester behaves; the QP attributes of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequesterConfig {
    pub service: ServiceType,
    pub first_psn: Psn,
    /// Payload bytes of a full packet.
    pub path_mtu_bytes: u32,
    /// Transport retries, 0..=7.
    pub retry_count: u8,
    /// RNR retries, 0..=6, or 7 for ever.
    pub rnr_retry: u8,
    /// Ack time-out code, 4.096 µs · 2^code; 0 for ever.
    pub timeout: u8,
    /// READs and atomics outstanding at most.
    pub max_rd_atomic: u8,
    /// Messages outstanding at most; room grows up to this on demand, so an idle QP costs nothing.
    pub window_messages: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PostedMessage {
    pub opcode: Opcode,
    /// Payload bytes; 8 for atomics.
    pub length: u32,
    /// Wait until all earlier READs and atomics are answered.
    pub fence: bool,
}

/// A message's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    pub ticket: Ticket,
    pub opcode: Opcode,
    pub status: Status,
    /// What an atomic found.
    pub atomic_old: Option<u64>,
}

/// What a reply did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyVerdict {
    /// Messages were acknowledged.
    Progress,
    /// It answers this atomic.
    Response(Ticket),
    /// The next bytes of this READ: place them before polling completions.
    Place { ticket: Ticket, fragment: Fragment },
    /// Messages are to be sent again, now or after the RNR time.
    Resend,
    /// The QP is in error; completions say why.
    Failed,
    /// Old, repeated or not meant for us.
    Ignored,
}
