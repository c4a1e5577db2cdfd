//! Send queue: the ring, and what a repetition needs of each WQE that was read from it.

use std::collections::VecDeque;

use mlx5_layout::CqeSyndrome;
use mlx5_layout::send_wqe::{BLOCK_BYTES, Control, MAX_WQE_BYTES};
use roce::{Now, Opcode, Packet, PostedMessage, Requester, Status, Ticket};

use super::doorbell::SendDoorbell;
use super::reason::{CheckFailure, Checked};
use super::ring::Ring;
use super::route::Way;
use super::window::UmrRequest;
use crate::carrier::{PathAddress, Payload, Position};
use crate::memory::{Fault, Memory, Segment};

/// The send side of a QP: the ring, and what was read from it and has not completed.
#[derive(Debug)]
pub(super) struct SendQueue {
    /// Of blocks.
    pub ring: Ring,
    pub doorbell: SendDoorbell,
    /// Place of the CQ that it completes in.
    pub cq: u32,
    /// Largest READ or atomic result that goes into the CQE; 0: none.
    pub scatter: usize,
    /// Next block to read, 16-bit running index.
    pub fetched: u16,
    /// Read but not yet posted to the transport, because a fence or a depth holds it.
    pub held: Option<Box<SendRequest>>,
    /// With the messages that were posted and have not completed.
    pub requester: Option<Requester<Box<SendRequest>>>,
    /// NOPs that have not completed, each with the ticket of the message behind it.
    pub nops: VecDeque<(Ticket, Box<SendRequest>)>,
    pub progress: TransmitProgress,
    /// A WQE failed its checks: nothing behind it is read until the queue is reset.
    pub stopped: bool,
    /// «Drained» is owed.
    pub drain_event: bool,
    /// When a message of the peer was executed last; `None`: a send WQE was read since, or none has come.
    pub asked: Option<Now>,
}

/// What a queue waits for that its peer alone gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stall {
    /// Nothing may be sent before a reply, or a time-out.
    Reply,
    /// The carrier has no room for what is to be sent.
    Room,
}

/// Progress of the carrier with a queue's messages.
#[derive(Debug, Default)]
pub(super) struct TransmitProgress {
    /// Why nothing more was sent last.
    pub stalled: Option<Stall>,
    /// Where the last request to the peer lies: while it is not taken, its acknowledgement is not late.
    pub last_sent: Option<Position>,
    /// Time-outs since the last reply that waited for replies to be read.
    pub answer_holds: u8,
    /// The message that its peer last did not take, from which byte on; when first and last.
    pub waits: Option<((Ticket, u32), [Now; 2])>,
    /// That one waited long was said.
    pub explained: bool,
}

/// What becomes of a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(super) enum Kind {
    Message,
    /// NOP, or a UMR that is done: completes in the order of posting.
    #[default]
    Nop,
    /// Binds or closes a memory window, when all before it was handed over.
    Umr(UmrRequest),
    /// Failed its checks.
    Failed(Status),
    /// A message that fails on demand, with this syndrome in its CQE.
    Injected(CqeSyndrome),
}

/// What a WQE says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WqeHead {
    /// First block.
    pub index: u16,
    /// Opcode byte.
    pub opcode: u8,
    pub signalled: bool,
    pub fence: bool,
}

/// The local memory of a message, as its data segments name it.
#[derive(Debug, Default)]
pub(super) struct GatherList {
    /// Payload that travelled in the WQE, or of a READ that the CQE is to carry.
    pub inline: Vec<u8>,
    /// The payload, as addresses of the process: the application's memory, and `inline`.
    pub segments: Vec<Segment>,
    /// The lkey of each segment in the application's memory.
    pub keys: Vec<u32>,
    /// One of the keys is no longer registered: its memory must not be touched any more.
    pub revoked: bool,
}

/// One WQE that was read: a message with its local memory, ready to be sent as often as needed.
#[derive(Debug, Default)]
pub(super) struct SendRequest {
    pub kind: Kind,
    pub wqe: WqeHead,
    pub opcode: Opcode,
    /// Bytes of its payload, or of its answer.
    pub length: u32,
    /// The message, as one packet.
    pub packet: Packet,
    /// Where a datagram goes; connected queues have one way and path for all.
    pub way: Way,
    pub path: PathAddress,
    pub payload: GatherList,
    /// Why it failed, where a check found that out; empty otherwise.
    pub why: String,
}

impl SendRequest {
    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Message | Kind::Injected(_))
    }

    pub(super) fn payload(&self) -> Payload<'_> {
        match self.payload.segments.as_slice() {
            [] => Payload::Nothing,
            // Only what carries a payload has it inline.
            _ if self.payload.keys.is_empty() => Payload::Inline(&self.payload.inline),
            _ if self.opcode.is_atomic() => Payload::Nothing,
            segments if self.payload.inline.is_empty() => Payload::Segments(segments),
            segments => Payload::Mixed(segments),
        }
    }
}

impl GatherList {
    /// Why an access to this memory failed at an address.
    #[cold]
    pub(super) fn why(&self, fault: Fault) -> String {
        let keys = format!("lkey {:#x} (first of {})", self.keys.first().unwrap_or(&0), self.keys.len());
        if self.revoked {
            return format!("{keys} or another was deregistered; keep it until the CQE");
        }
        let has = |segment: &&Segment| fault.addr.wrapping_sub(segment.addr) < segment.len;
        let of = self.segments.iter().find(has).or(self.segments.first()).copied().unwrap_or_default();
        format!("{fault}, of {} bytes at {:#x} by {keys}; keep it mapped until the CQE", of.len, of.addr)
    }

    /// Keeps inline bytes. They do not move until the request is reused: there is room for all that a WQE can
    /// have.
    #[inline(never)]
    pub(super) fn keep(&mut self, bytes: &[u8]) -> Segment {
        let start = self.inline.len();
        self.inline.reserve(MAX_WQE_BYTES.saturating_sub(start));
        self.inline.extend_from_slice(bytes);
        let addr = self.inline[start..].as_ptr().expose_provenance() as u64;
        Segment { addr, len: bytes.len() as u64 }
    }
}

/// What the record and the register of a send queue say now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    /// The record, from its one read; none: it cannot be read.
    pub record: Option<u16>,
    /// Blocks that may be executed.
    pub available: u16,
    /// Record and register agree.
    pub agree: bool,
    /// The record is further ahead than the ring is long.
    pub range: bool,
}

/// Emptied requests for reuse, so that a message costs no allocation.
#[derive(Debug, Default)]
// Boxes: they go back and forth between here and the queues, and a request is large.
#[allow(clippy::vec_box)]
pub(super) struct Pool(Vec<Box<SendRequest>>);

/// Requests kept for reuse at most; each may hold an inline payload and an SGE list.
const POOL_LIMIT: usize = 1024;

impl Pool {
    pub(super) fn take(&mut self) -> Box<SendRequest> {
        self.0.pop().unwrap_or_default()
    }

    #[inline(always)]
    pub(super) fn give(&mut self, mut request: Box<SendRequest>) {
        if self.0.len() < POOL_LIMIT {
            request.length = 0;
            request.payload.inline.clear();
            request.payload.segments.clear();
            request.payload.keys.clear();
            request.why.clear();
            request.payload.revoked = false;
            self.0.push(request);
        }
    }
}

impl SendQueue {
    /// The memory of this key must not be touched any more.
    pub(super) fn revoke(&mut self, key: u32) {
        let posted = self.requester.iter_mut().flat_map(|requester| requester.work_requests_mut());
        for request in posted.chain(&mut self.held) {
            request.payload.revoked |= request.payload.keys.contains(&key);
        }
    }

    pub(super) fn new(ring: Ring, doorbell: SendDoorbell, cq: u32, scatter: usize) -> SendQueue {
        SendQueue {
            ring,
            doorbell,
            cq,
            scatter,
            fetched: 0,
            held: None,
            requester: None,
            nops: VecDeque::new(),
            progress: TransmitProgress::default(),
            stopped: false,
            drain_event: false,
            asked: None,
        }
    }

    /// The record as it is now; none: it cannot be read.
    pub(super) fn read_record<M: Memory>(&mut self, memory: &M, now: Now) -> Option<u16> {
        let record = self.ring.read_record(memory)?;
        self.doorbell.note_record(record, now);
        Some(record)
    }

    pub(super) fn posted<M: Memory>(&mut self, memory: &M, now: Now) -> Posted {
        let recent = self.doorbell.recent_record(now, self.is_idle());
        let record = match self.ring.entries {
            0 => None,
            _ => recent.or_else(|| self.read_record(memory, now)),
        };
        let Some(index) = record else {
            return Posted { record, available: 0, agree: true, range: false };
        };
        let ahead = self.distance(index);
        if u32::from(ahead) > self.ring.entries {
            return Posted { record, available: 0, agree: false, range: true };
        }
        let available = self.distance(self.doorbell.limit(self.fetched, index));
        Posted { record, available, agree: available == ahead, range: false }
    }

    /// WQEs that were handed over and have not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.requester.as_ref().map_or(0, Requester::outstanding) + self.nops.len()
    }

    /// Whether everything that was handed over has completed.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding() == 0
    }

    /// Drops everything posted, without completions.
    pub(super) fn empty(&mut self) {
        *self = SendQueue::new(self.ring, self.doorbell.anew(), self.cq, self.scatter);
    }

    /// Hands a WQE to the transport; gives it back when a fence or a depth holds it.
    pub(super) fn hand_over(&mut self, request: Box<SendRequest>) -> Option<Box<SendRequest>> {
        let requester = self.requester.as_mut()?;
        let message =
            PostedMessage { opcode: request.opcode, length: request.length, fence: request.wqe.fence };
        match request.kind {
            Kind::Nop => self.nops.push_back((requester.next_ticket(), request)),
            Kind::Umr(_) => return Some(request),
            Kind::Failed(status) => drop(requester.post_failed_with(Opcode::Send, status, request)),
            Kind::Message if !requester.can_post(message.opcode, message.fence) => return Some(request),
            Kind::Message | Kind::Injected(_) => drop(requester.post_with(message, request)),
        }
        None
    }

    /// A message cannot be sent, or its answer not be placed; `explain` notes why.
    #[cold]
    pub(super) fn fail(&mut self, ticket: Ticket, status: Status, explain: impl FnOnce(&mut SendRequest)) {
        let Some(requester) = &mut self.requester else { return };
        if let Some(request) = requester.work_request_mut(ticket) {
            explain(request);
        }
        requester.fail(ticket, status);
    }

    /// Memory of a message cannot be accessed.
    pub(super) fn fail_at(&mut self, ticket: Ticket, fault: Fault) {
        self.fail(ticket, Status::LocalProtection, |request| request.why = request.payload.why(fault));
    }

    /// Distance from the next block to read up to `to`.
    pub(super) fn distance(&self, to: u16) -> u16 {
        to.wrapping_sub(self.fetched)
    }

    /// Copies the WQE at `fetched` out of the ring, each block once: the first block says how many follow.
    /// Reads at most `available`; returns how many it has.
    pub(super) fn copy_out<M: Memory>(
        &self,
        memory: &M,
        available: u16,
        out: &mut [u8; MAX_WQE_BYTES],
    ) -> Checked<u16> {
        let fault = |fault| CheckFailure::malformed(format_args!("{fault}; keep the send queue mapped"));
        memory.read(self.ring.entry(self.fetched), &mut out[..BLOCK_BYTES]).map_err(fault)?;
        let control = Control::parse(&out[..Control::BYTES]).map_err(CheckFailure::malformed)?;
        let count = control.blocks();
        if count > available {
            return Err(CheckFailure::malformed(format_args!(
                "not whole: its control segment says {count} blocks, {available} were rung for; write the whole WQE first"
            )));
        }
        let rest = usize::from(count).saturating_sub(1);
        if rest == 0 {
            return Ok(count);
        }
        // The rest in at most two pieces: up to the end of the ring, and from its start.
        let next = self.fetched.wrapping_add(1);
        let until_end = (self.ring.entries - (u32::from(next) & (self.ring.entries - 1))) as usize;
        let (first, second) = (rest.min(until_end), rest.saturating_sub(until_end));
        let (from, to) = (BLOCK_BYTES, BLOCK_BYTES * (1 + first));
        memory.read(self.ring.entry(next), &mut out[from..to]).map_err(fault)?;
        if second > 0 {
            memory.read(self.ring.address, &mut out[to..to + BLOCK_BYTES * second]).map_err(fault)?;
        }
        Ok(count)
    }
}
