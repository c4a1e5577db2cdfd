//! Send queue: reads each WQE once, checks it as a card does, and keeps what a repetition needs.
//!
//! Checks and their syndromes follow IBTA vol. 1 §10.7 and what libmlx5's `mlx5_handle_error_cqe` names: a WQE that is
//! malformed or not for this queue is 0x02, a length above a limit 0x01, a key, bound or right that fails 0x04. A failed
//! WQE completes in its turn, behind the ones before it. UMR is in `window.rs`.
//! Left out: masked atomics, WAIT, DUMP: each is 0x02, as on a card without the capability.

use std::collections::VecDeque;

use mlx5_layout::send_wqe::{
    Addressing, BLOCK_BYTES, Body, Control, DataSegment, MAX_WQE_BYTES, UNIT_BYTES, blocks,
};
use mlx5_layout::{SendOpcode, SendWqe};
use roce::{Access, Fragment, Opcode, Psn, Request, ServiceType, Status, Ticket, Transmit};

use super::core::Core;
use super::doorbell::SendDoorbell;
use super::mr::Regions;
use super::qp::Qp;
use super::route::{Route, Way, Ways};
use super::window::WindowWork;
use crate::carrier::{PathAddress, Position};
use crate::config::LinkLayer;
use crate::memory::{Memory, Segment};

/// The send side of a QP: the ring, and what was read from it and has not completed.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub ring: u64,
    /// Length in blocks, a power of two; 0 for a QP without a send queue.
    pub blocks: u32,
    /// Address of the record's send word.
    pub record: u64,
    /// Next block to read, 16-bit running index.
    pub fetched: u16,
    pub doorbell: SendDoorbell,
    /// Read but not yet posted to the transport, because a fence or a depth holds it.
    pub held: Option<Box<SendRequest>>,
    /// Posted and not completed, oldest first.
    pub outstanding: VecDeque<Box<SendRequest>>,
    /// A message of which the carrier took only a part: the rest goes first.
    pub partial: Option<Transmit>,
    /// Where the last request to the peer lies: while it is not taken, its acknowledgement is not late.
    pub last_sent: Option<Position>,
    /// Time-outs since the last reply that waited for replies to be read.
    pub answer_holds: u8,
    /// A WQE failed its checks: nothing behind it is read until the queue is reset.
    pub stopped: bool,
}

/// What becomes of a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    /// NOP, or work that is done: completes in its turn.
    Nop,
    /// To be done to a memory window when all before it was handed over.
    Window(WindowWork),
    /// Failed its checks.
    Failed(Status),
}

/// One WQE that was read: a message with its local memory, ready to be sent as often as needed.
#[derive(Debug)]
pub(super) struct SendRequest {
    pub ticket: Ticket,
    pub kind: Kind,
    /// First block.
    pub wqe_index: u16,
    /// Opcode byte.
    pub opcode: u8,
    pub signalled: bool,
    pub fence: bool,
    pub request: Request,
    /// Where a datagram goes; connected queues have one path for all.
    pub path: PathAddress,
    /// No process of the fabric has the address that the message goes to.
    pub unreachable: bool,
    /// Way of a datagram that goes over the wire instead.
    pub route: Option<Route>,
    /// Bytes that the carrier has taken, of a message that it takes in pieces.
    pub carried: u32,
    /// Payload that travelled in the WQE, or of a READ that the CQE is to carry.
    pub inline: Vec<u8>,
    /// The payload, as addresses of the process: the application's memory, and `inline`.
    pub segments: Vec<Segment>,
    /// The lkey of each segment in the application's memory.
    pub keys: Vec<u32>,
    /// One of the keys is no longer registered: its memory must not be touched any more.
    pub revoked: bool,
}

impl SendRequest {
    fn empty() -> SendRequest {
        SendRequest {
            ticket: Ticket(0),
            kind: Kind::Nop,
            wqe_index: 0,
            opcode: 0,
            signalled: false,
            fence: false,
            request: Request::default(),
            path: PathAddress::default(),
            unreachable: false,
            route: None,
            carried: 0,
            inline: Vec::new(),
            segments: Vec::new(),
            keys: Vec::new(),
            revoked: false,
        }
    }

    /// Keeps inline bytes. They stay where they are until the request is reused, since a WQE cannot have more than there is
    /// room for.
    fn keep(&mut self, bytes: &[u8]) -> Segment {
        let start = self.inline.len();
        self.inline.reserve(MAX_WQE_BYTES.saturating_sub(start));
        self.inline.extend_from_slice(bytes);
        let addr = self.inline[start..].as_ptr().expose_provenance() as u64;
        Segment { addr, len: bytes.len() as u64 }
    }

    /// The kept bytes that this piece of a segment is of; none: it lies in the application's memory.
    pub(super) fn kept(&self, piece: Segment) -> Option<&[u8]> {
        let start = piece.addr.checked_sub(self.inline.as_ptr().addr() as u64)?;
        let end = start.checked_add(piece.len)?;
        self.inline.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}

/// Emptied requests for reuse, so that a message costs no allocation.
#[derive(Debug, Default)]
// Boxes: they go back and forth between here and the queues, and a request is large.
#[allow(clippy::vec_box)]
pub(super) struct Pool(Vec<Box<SendRequest>>);

/// Requests kept for reuse at most; each may hold an inline payload and an SGE list.
const POOL_LIMIT: usize = 1024;

impl Pool {
    fn take(&mut self) -> Box<SendRequest> {
        self.0.pop().unwrap_or_else(|| Box::new(SendRequest::empty()))
    }

    pub(super) fn give(&mut self, mut request: Box<SendRequest>) {
        if self.0.len() < POOL_LIMIT {
            request.inline.clear();
            request.segments.clear();
            request.keys.clear();
            (request.revoked, request.carried) = (false, 0);
            self.0.push(request);
        }
    }
}

impl SendQueue {
    /// The memory of this key must not be touched any more.
    pub(super) fn revoke(&mut self, key: u32) {
        for request in self.outstanding.iter_mut().chain(&mut self.held) {
            request.revoked |= request.keys.contains(&key);
        }
    }

    /// Distance from the next block to read up to `to`.
    pub(super) fn distance(&self, to: u16) -> u16 {
        to.wrapping_sub(self.fetched)
    }

    /// Address of the block at this index.
    pub(super) fn block(&self, index: u16) -> u64 {
        self.ring + u64::from(u32::from(index) & (self.blocks - 1)) * BLOCK_BYTES as u64
    }

    /// Place of the message with this ticket among the outstanding WQEs.
    #[inline]
    pub(super) fn find(&self, ticket: Ticket) -> Option<usize> {
        let queue = &self.outstanding;
        let is_it = |request: &SendRequest| request.kind != Kind::Nop && request.ticket == ticket;
        // Tickets are consecutive: without NOPs in between the distance from the front is the place.
        let guess = ticket.0.checked_sub(queue.front()?.ticket.0)? as usize;
        if queue.get(guess).is_some_and(|request| is_it(request)) {
            return Some(guess);
        }
        // NOPs carry the ticket of the message behind them.
        let mut place = queue.partition_point(|request| request.ticket < ticket);
        while queue.get(place).is_some_and(|request| request.kind == Kind::Nop) {
            place += 1;
        }
        queue.get(place).filter(|request| is_it(request)).map(|_| place)
    }

    /// Copies the WQE at `fetched` out of the ring, each block once: the first block says how many follow. Returns the bytes
    /// it has; at most `available` blocks are read.
    fn copy_out<M: Memory>(
        &self,
        memory: &M,
        available: u16,
        out: &mut [u8; MAX_WQE_BYTES],
    ) -> Result<usize, Status> {
        let fault = |_| Status::LocalQpOperation;
        memory.read(self.block(self.fetched), &mut out[..BLOCK_BYTES]).map_err(fault)?;
        let control = Control::parse(&out[..Control::BYTES]).map_err(|_| Status::LocalQpOperation)?;
        let count = control.blocks();
        if count > available {
            return Err(Status::LocalQpOperation);
        }
        // The rest in at most two pieces: up to the end of the ring, and from its start.
        let next = self.fetched.wrapping_add(1);
        let until_end = (self.blocks - (u32::from(next) & (self.blocks - 1))) as usize;
        let rest = usize::from(count.max(1)) - 1;
        let (first, second) = (rest.min(until_end), rest.saturating_sub(until_end));
        let (from, to) = (BLOCK_BYTES, BLOCK_BYTES * (1 + first));
        if first > 0 {
            memory.read(self.block(next), &mut out[from..to]).map_err(fault)?;
        }
        if second > 0 {
            memory.read(self.ring, &mut out[to..to + BLOCK_BYTES * second]).map_err(fault)?;
        }
        Ok(usize::from(control.units()) * UNIT_BYTES)
    }
}

/// What the checks of a WQE look at besides the WQE.
pub(super) struct Checks<'a> {
    pub regions: &'a Regions,
    pub ways: Ways<'a>,
    pub max_message_bytes: u32,
}

impl<M: Memory> Core<M> {
    /// Reads the next WQE. `available`: blocks that may be read, at least one.
    pub(super) fn fetch(&mut self, qp: &mut Qp, available: u16) -> Box<SendRequest> {
        let mut out = self.pool.take();
        out.wqe_index = qp.sq.fetched;
        let bytes = &mut *self.wqe;
        // What is not read must not be the last WQE's.
        bytes[..Control::BYTES].fill(0);
        let read = qp.sq.copy_out(&self.memory, available, bytes);
        // A WQE whose length is unknown ends the queue; it takes one block.
        let taken = read.map_or(1, |len| blocks((len / UNIT_BYTES) as u8).max(1));
        out.opcode = bytes[3];
        let checks = Checks {
            regions: &self.regions,
            ways: Ways { path: self.options.path, wire: self.options.wire, ports: &self.ports },
            max_message_bytes: self.capabilities.max_message_bytes,
        };
        if let Err(status) = read.and_then(|len| checks.parse(qp, &bytes[..len], &mut out)) {
            out.kind = Kind::Failed(status);
            qp.sq.stopped = true;
        }
        // The payload is read when the transport sends the message, up to a whole budget of WQEs later.
        if let Some(first) = out.segments.first() {
            self.memory.prefetch(first.addr);
        }
        self.counters.post(out.opcode);
        if let Some(asked) = qp.asked.take() {
            self.counters.turnarounds += 1;
            self.counters.turnaround_ns += self.now.0.saturating_sub(asked.0);
        }
        qp.sq.fetched = qp.sq.fetched.wrapping_add(taken);
        out
    }
}

impl Checks<'_> {
    /// Fills `out` from a WQE, or says what is wrong with it.
    fn parse(&self, qp: &Qp, bytes: &[u8], out: &mut SendRequest) -> Result<(), Status> {
        let malformed = Status::LocalQpOperation;
        let wqe = SendWqe::new(bytes).map_err(|_| malformed)?;
        let control = *wqe.control();
        out.signalled = control.is_signalled();
        out.fence = control.fm_ce_se & 0xe0 != 0;
        if control.wqe_index != qp.sq.fetched || control.qpn != qp.qpn || control.opmod != 0 {
            return Err(malformed);
        }
        if control.send_opcode() == Some(SendOpcode::Umr) {
            out.kind = Kind::Window(WindowWork::of(&wqe, qp.service, qp.qpn)?);
            return Ok(());
        }
        let addressing = match qp.service {
            ServiceType::Ud => Addressing::Datagram,
            ServiceType::Rc | ServiceType::Uc => Addressing::Connected,
        };
        let body = wqe.body(addressing).map_err(|_| malformed)?;
        if body.opcode == SendOpcode::Nop {
            out.kind = Kind::Nop;
            return Ok(());
        }
        let opcode = message_opcode(body.opcode).filter(|o| o.allowed_on(qp.service)).ok_or(malformed)?;
        out.kind = Kind::Message;
        out.request = Request {
            src_qpn: qp.qpn,
            dst_qpn: qp.attributes.dest_qpn,
            service: qp.service,
            opcode,
            psn: Psn::new(0),
            solicited: control.is_solicited(),
            ack_requested: false,
            imm: if has_immediate(opcode) { control.immediate } else { [0; 4] },
            remote_va: body.remote.map_or(0, |r| r.va),
            rkey: body.remote.map_or(0, |r| r.rkey),
            length: 0,
            swap_add: body.atomic.map_or(0, |a| a.swap_add),
            compare: if opcode == Opcode::CompareSwap { body.atomic.map_or(0, |a| a.compare) } else { 0 },
            qkey: 0,
            fragment: Fragment::default(),
        };
        self.address(qp, &body, out);
        let length = self.gather(qp, opcode, &body, out)?;
        out.request.length = length;
        out.request.fragment = Fragment { offset: 0, length };
        Ok(())
    }

    /// Where the message goes.
    fn address(&self, qp: &Qp, body: &Body<'_>, out: &mut SendRequest) {
        let Some(vector) = &body.datagram else {
            (out.unreachable, out.route) = (qp.peer.is_none(), None);
            return;
        };
        let device = &self.ways.ports[qp.port];
        let roce = device.link_layer == LinkLayer::Roce;
        let grh = roce || vector.grh;
        let (dlid, dgid) = (if roce { 0 } else { vector.lid_or_udp_port }, grh.then_some(&vector.gid));
        let source = device.gids.get(usize::from(vector.source_gid_index)).or(device.gids.first());
        out.path = PathAddress {
            sgid: source.map_or([0; 16], |entry| entry.gid),
            dgid: vector.gid,
            slid: device.lid | u16::from(vector.path_bits & 0x7f),
            dlid,
            flow_label: vector.flow_label,
            // Ethernet keeps the priority in bits 3:1.
            sl: if roce { vector.rate_service_level >> 1 & 7 } else { vector.rate_service_level & 0xf },
            traffic_class: vector.traffic_class,
            hop_limit: vector.hop_limit,
            grh,
            to_port: 0,
        };
        out.request.dst_qpn = vector.destination_qpn;
        // A Q_Key with its top bit set means: use the QP's own (IBTA).
        let own = vector.qkey & 1 << 31 != 0;
        out.request.qkey = if own { qp.attributes.qkey } else { vector.qkey };
        (out.unreachable, out.route) = (false, None);
        match self.ways.to(qp.port, source, dlid, dgid, vector.destination_qpn) {
            Way::Nowhere => out.unreachable = true,
            Way::Shared(_, port) => out.path.to_port = port,
            Way::Wire(route) => out.route = Some(route),
        }
    }

    /// Checks the local side and notes it; returns the payload's length.
    fn gather(&self, qp: &Qp, opcode: Opcode, body: &Body<'_>, out: &mut SendRequest) -> Result<u32, Status> {
        let need = if opcode.wants_response() { Access::LOCAL_WRITE } else { Access(0) };
        let mut length = 0u64;
        let mut pointers = 0;
        for segment in body.data {
            match segment.map_err(|_| Status::LocalQpOperation)? {
                DataSegment::Inline(bytes) => {
                    // Inline data goes out only, and a queue was made for so much of it.
                    if opcode.wants_response() {
                        return Err(Status::LocalQpOperation);
                    }
                    length += bytes.len() as u64;
                    let kept = out.keep(bytes);
                    out.segments.extend(Some(kept).filter(|kept| kept.len > 0));
                }
                DataSegment::Pointer(pointer) => {
                    pointers += 1;
                    // A length of 0 stands for 2^31 (see `DataPointer`), which is above every limit.
                    let len = if pointer.byte_count == 0 { 1 << 31 } else { u64::from(pointer.byte_count) };
                    length += len;
                    if length > u64::from(self.max_message_bytes) {
                        return Err(Status::LocalLength);
                    }
                    let addr = self
                        .regions
                        .translate(pointer.lkey, qp.pd, pointer.va, len, need)
                        .map_err(|_| Status::LocalProtection)?;
                    out.segments.push(Segment { addr, len });
                    out.keys.push(pointer.lkey);
                }
            }
        }
        if pointers > qp.max_send_sge {
            return Err(Status::LocalQpOperation);
        }
        if opcode.is_atomic() && length != 8 {
            return Err(Status::LocalLength);
        }
        u32::try_from(length).map_err(|_| Status::LocalLength)
    }
}

/// The transport's operation of a WQE; none for what this NIC does not do.
fn message_opcode(opcode: SendOpcode) -> Option<Opcode> {
    Some(match opcode {
        SendOpcode::Send => Opcode::Send,
        SendOpcode::SendImm => Opcode::SendImm,
        SendOpcode::SendInvalidate => Opcode::SendInvalidate,
        SendOpcode::RdmaWrite => Opcode::Write,
        SendOpcode::RdmaWriteImm => Opcode::WriteImm,
        SendOpcode::RdmaRead => Opcode::Read,
        SendOpcode::AtomicCompareSwap => Opcode::CompareSwap,
        SendOpcode::AtomicFetchAdd => Opcode::FetchAdd,
        _ => return None,
    })
}

/// Whether the control segment's last four bytes travel: immediate data, or a key.
fn has_immediate(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::SendImm | Opcode::SendInvalidate | Opcode::WriteImm)
}
