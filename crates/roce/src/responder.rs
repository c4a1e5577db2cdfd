//! Responder half of a connection: request packets in, work for the memory and answers out.
//!
//! Follows IBTA vol. 1 §9.7.4 (receiving requests), §9.7.5 (generating responses), its rules for UC and UD,
//! and §9.9.3 (responder's errors). After a fatal NAK (invalid request, remote access, remote operation) it
//! stops and its QP goes to ERR, as §9.9.3 asks of class C errors; the NAK and all before it are still sent.
//! Left out: end-to-end credits, path migration, shared receive queues' «no error on a datagram too long».
//!
//! All checks fall on a message's first packet, which also takes a SEND's receive; later packets must
//! continue it exactly. Here is the state; `requests` makes and checks requests, `reliable` has RC's sequence
//! and duplicates, `unreliable` UC and UD, `execution` work and errors, `responses` what is sent.

mod duplicates;
mod execution;
mod reliable;
mod requests;
mod responses;
mod streams;
mod unreliable;

use std::collections::VecDeque;

use self::duplicates::ExecutedRequests;
use self::streams::Outbound;
use crate::packet::{Packet, Syndrome};
use crate::{
    Access, DropReason, Failure, Psn, Receive, Region, Request, Resources, ResponderConfig,
    ResponderCounters, ResponderEvent, ServiceType, Verdict,
};

/// What a reliable responder waits for. IBTA §9.7.4: one NAK for each gap, silence until it is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The next PSN.
    InOrder,
    /// The expected PSN, NAKed as missing.
    GapNaked,
    /// The expected PSN, which met no receive.
    NotReady,
    /// Nothing any more.
    Failed,
}

/// Work given out and not reported; its message stands beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// A packet that does not end its message.
    Part,
    /// The end of a message, or the whole.
    Message,
}

#[derive(Debug, Clone, Copy)]
struct Response {
    psn: Psn,
    msn: u32,
    /// What an atomic found; none: the bytes of a READ, see [`Outbound`].
    old: Option<u64>,
    replayed: bool,
}

/// A message of which packets are missing.
#[derive(Debug, Clone, Copy)]
struct Assembly {
    /// Its first packet.
    first: Request,
    /// What it was granted; nothing for SENDs.
    region: Region,
    /// Bytes that came.
    next_offset: u32,
}

/// See the module. Call order: `handle_packet`; if it says so, do the work and call `executed`; then
/// `next_packet` and `poll_event` until `None`, for every packet or once after many.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    state: State,
    expected_psn: Psn,
    msn: u32,
    pending: Pending,
    /// The request of the pending work; the last one's when there is none.
    at_work: Request,
    assembly: Option<Assembly>,
    /// Receive of the message in progress, or of one that was void before its end: the next message uses it.
    held: Option<Receive>,
    executed: ExecutedRequests,
    /// READ and atomic responses to send, bounded by the responder resources.
    responses: VecDeque<Response>,
    /// The NAK or RNR NAK to send after them; its PSN is the expected one.
    nak: Option<Syndrome>,
    /// Everything before the expected PSN is to be acknowledged.
    ack_due: bool,
    outbound: Outbound,
    established: Established,
    /// To report: of the last request dropped or, once it stopped, of the one that stopped it.
    failure: Option<Failure>,
    counters: ResponderCounters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Established {
    No,
    ToReport,
    Reported,
}

impl Responder {
    /// One for shared memory: a packet may have the bytes of several, and each message is acknowledged.
    pub fn new(config: ResponderConfig) -> Responder {
        let config = ResponderConfig { path_mtu_bytes: config.path_mtu_bytes.max(1), ..config };
        Responder {
            config,
            state: State::InOrder,
            expected_psn: config.expected_psn,
            msn: 0,
            pending: Pending::Nothing,
            at_work: Request::default(),
            assembly: None,
            held: None,
            executed: ExecutedRequests::new(config.max_dest_rd_atomic),
            responses: VecDeque::new(),
            nak: None,
            ack_due: false,
            outbound: Outbound::default(),
            established: Established::No,
            failure: None,
            counters: ResponderCounters::default(),
        }
    }

    /// A responder on a wire. It acknowledges when asked, and at least every `ack_every`-th packet.
    pub fn by_packet(config: ResponderConfig, ack_every: u32) -> Responder {
        let mut responder = Responder::new(config);
        responder.outbound.ack_every = Some(ack_every.max(1));
        responder
    }

    // Getters.

    /// PSN expected next (`rq_psn` of a query).
    pub fn expected_psn(&self) -> Psn {
        self.expected_psn
    }

    /// Messages completed, 24 bits.
    pub fn msn(&self) -> u32 {
        self.msn
    }

    /// Whether it met a fatal error or was told to stop.
    pub fn is_failed(&self) -> bool {
        self.state == State::Failed
    }

    pub fn counters(&self) -> &ResponderCounters {
        &self.counters
    }

    /// How it was made, with later changes.
    pub fn config(&self) -> &ResponderConfig {
        &self.config
    }

    /// Whether `next_packet` would give something.
    pub fn has_reply(&self) -> bool {
        self.ack_due || self.nak.is_some() || !self.responses.is_empty()
    }

    /// Whether `poll_event` would give something.
    pub fn has_event(&self) -> bool {
        self.established == Established::ToReport || self.failure.is_some()
    }

    /// Whether only an acknowledgement is due: it may wait a little and then cover more (IBTA vol. 1 §9.7.5).
    pub fn owes_only_an_acknowledgement(&self) -> bool {
        self.ack_due && self.nak.is_none() && self.responses.is_empty()
    }

    /// Replies and executed requests that room was allocated for.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.responses.capacity() + self.executed.held() + self.outbound.held()
    }

    // Commands.

    /// The QP was moved to ERR: requests are dropped from now on. Returns the receive in use, which the
    /// device flushes before those still queued.
    pub fn enter_error(&mut self) -> Option<Receive> {
        self.state = State::Failed;
        self.assembly = None;
        self.pending = Pending::Nothing;
        self.held.take()
    }

    /// Changes what a modify may change.
    pub fn set_attributes(&mut self, access: Access, min_rnr_timer: u8, qkey: u32) {
        self.config = ResponderConfig { access, min_rnr_timer, qkey, ..self.config };
    }

    // Inputs.

    /// Takes a request packet of the peer; on a connection the caller has compared addresses or QPNs.
    /// [`Work`]'s payload is the packet's. READs are executed here: the response's packets name their bytes.
    #[inline(always)]
    pub fn handle_packet(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        if let Some(reason) = self.unwelcome(packet.service) {
            return self.drop(reason);
        }
        match self.config.service {
            ServiceType::Rc => self.reliable(packet, resources),
            ServiceType::Uc => self.unreliable(packet, resources),
            ServiceType::Ud => self.datagram(packet, resources),
        }
    }

    // Outputs.

    pub fn poll_event(&mut self) -> Option<ResponderEvent> {
        if self.established == Established::ToReport {
            self.established = Established::Reported;
            return Some(ResponderEvent::CommunicationEstablished);
        }
        let is_end = self.state == State::Failed;
        self.failure.take().map(if is_end { ResponderEvent::Failed } else { ResponderEvent::Dropped })
    }

    // Small facts.

    /// Why a request is not even looked at.
    #[inline(always)]
    fn unwelcome(&self, service: ServiceType) -> Option<DropReason> {
        if self.state == State::Failed {
            return Some(DropReason::InError);
        }
        if self.pending != Pending::Nothing {
            return Some(DropReason::Busy);
        }
        (service != self.config.service).then_some(DropReason::WrongService)
    }
}
