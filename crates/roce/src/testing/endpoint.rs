//! One end of a [`super::Pair`]: a QP with both halves, plain memory for a process, receives, and a log of what came.

use std::collections::VecDeque;

use super::faults::Frame;
use super::host::{Host, Received};
use super::pair::End;
use crate::message::psn_count;
use crate::{
    Access, Completion, Failure, Fragment, Now, Opcode, Outcome, PostedMessage, Psn, Receive, Reply,
    ReplyKind, ReplyVerdict, Request, Requester, RequesterConfig, Responder, ResponderConfig, ResponderEvent,
    SendWindow, ServiceType, Status, Ticket, Transmit, Verdict, Work,
};

/// Key of each end's only region.
pub const RKEY: u32 = 0x1234;

/// Address by which requests name the region's first byte.
pub const VA: u64 = 0x7000_0000;

/// What an end is made of.
#[derive(Debug, Clone, Copy)]
pub struct EndpointConfig {
    pub service: ServiceType,
    /// First PSN of both directions.
    pub first_psn: Psn,
    /// Packet size.
    pub path_mtu_bytes: u32,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Ack time-out code.
    pub timeout: u8,
    /// Depth as initiator and as responder.
    pub rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Messages outstanding.
    pub window_messages: u32,
    /// What QP and region grant.
    pub access: Access,
    /// Bytes of memory, all of it registered.
    pub memory_bytes: usize,
    /// Bytes a frame carries at most; messages longer than that travel as fragments. Not with packets.
    pub fragment_bytes: u32,
    /// Packets under way, with packets.
    pub send_window: SendWindow,
    /// Packets that one acknowledgement waits for, with packets.
    pub ack_every: u32,
}

impl Default for EndpointConfig {
    fn default() -> EndpointConfig {
        EndpointConfig {
            service: ServiceType::Rc,
            first_psn: Psn::new(0x100),
            path_mtu_bytes: 1024,
            retry_count: 7,
            rnr_retry: 7,
            timeout: 8,
            rd_atomic: 4,
            min_rnr_timer: 12,
            window_messages: 64,
            access: Access::LOCAL_WRITE
                .with(Access::REMOTE_WRITE)
                .with(Access::REMOTE_READ)
                .with(Access::REMOTE_ATOMIC),
            memory_bytes: 64 << 10,
            fragment_bytes: u32::MAX,
            send_window: SendWindow::default(),
            ack_every: 8,
        }
    }
}

impl EndpointConfig {
    /// The requester half of a QP whose peer is `peer_qpn`.
    pub(super) fn requester(&self, peer_qpn: u32) -> RequesterConfig {
        RequesterConfig {
            service: self.service,
            peer_qpn: (self.service != ServiceType::Ud).then_some(peer_qpn),
            first_psn: self.first_psn,
            path_mtu_bytes: self.path_mtu_bytes,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            timeout: self.timeout,
            max_rd_atomic: self.rd_atomic,
            window_messages: self.window_messages,
        }
    }

    /// The responder half.
    pub(super) fn responder(&self, qpn: u32, peer_qpn: u32) -> ResponderConfig {
        ResponderConfig {
            service: self.service,
            qpn,
            peer_qpn: (self.service != ServiceType::Ud).then_some(peer_qpn),
            expected_psn: self.first_psn,
            path_mtu_bytes: self.path_mtu_bytes,
            access: self.access,
            max_dest_rd_atomic: self.rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            qkey: 0,
        }
    }
}

/// A send work request with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalWork {
    pub opcode: Opcode,
    /// Bytes of a SEND or WRITE.
    pub payload: Vec<u8>,
    pub read_bytes: u32,
    /// Where a READ puts them, from the start of the own memory.
    pub read_into: usize,
    /// Target, from the start of the peer's region.
    pub remote_offset: u64,
    pub rkey: u32,
    pub imm: [u8; 4],
    pub swap_add: u64,
    pub compare: u64,
    pub fence: bool,
    /// Q_Key.
    pub qkey: u32,
}

impl Default for LocalWork {
    fn default() -> LocalWork {
        LocalWork {
            opcode: Opcode::Send,
            payload: Vec::new(),
            read_bytes: 0,
            read_into: 0,
            remote_offset: 0,
            rkey: RKEY,
            imm: [0; 4],
            swap_add: 0,
            compare: 0,
            fence: false,
            qkey: 0,
        }
    }
}

impl LocalWork {
    pub fn send(payload: &[u8]) -> LocalWork {
        LocalWork { payload: payload.to_vec(), ..LocalWork::default() }
    }

    pub fn write(remote_offset: u64, payload: &[u8]) -> LocalWork {
        LocalWork { opcode: Opcode::Write, remote_offset, payload: payload.to_vec(), ..LocalWork::default() }
    }

    pub fn write_imm(remote_offset: u64, payload: &[u8], imm: [u8; 4]) -> LocalWork {
        LocalWork { opcode: Opcode::WriteImm, imm, ..LocalWork::write(remote_offset, payload) }
    }

    pub fn read(remote_offset: u64, read_bytes: u32, read_into: usize) -> LocalWork {
        LocalWork { opcode: Opcode::Read, remote_offset, read_bytes, read_into, ..LocalWork::default() }
    }

    pub fn fetch_add(remote_offset: u64, add: u64) -> LocalWork {
        LocalWork { opcode: Opcode::FetchAdd, remote_offset, swap_add: add, ..LocalWork::default() }
    }

    pub fn compare_swap(remote_offset: u64, compare: u64, swap: u64) -> LocalWork {
        LocalWork {
            opcode: Opcode::CompareSwap,
            remote_offset,
            compare,
            swap_add: swap,
            ..LocalWork::default()
        }
    }

    pub(super) fn length(&self) -> u32 {
        match self.opcode {
            Opcode::Read => self.read_bytes,
            Opcode::CompareSwap | Opcode::FetchAdd => 8,
            _ => u32::try_from(self.payload.len()).unwrap_or(u32::MAX),
        }
    }
}

#[derive(Debug)]
pub struct Endpoint {
    pub requester: Requester,
    pub responder: Responder,
    /// Sends that ended, in order.
    pub completions: Vec<Completion>,
    /// Receives that ended, in order.
    pub received: Vec<Received>,
    /// The responder's fatal error.
    pub failure: Option<Failure>,
    /// «Communication established» came.
    pub established: bool,
    config: EndpointConfig,
    qpn: u32,
    peer_qpn: u32,
    host: Host,
    /// Posted work; the front has ticket `first_ticket`.
    posted: VecDeque<LocalWork>,
    first_ticket: u64,
    /// READ data waiting for its response to be polled.
    read_data: VecDeque<(Psn, Vec<u8>)>,
}

impl Endpoint {
    /// An end with this QPN, connected to `peer_qpn`.
    pub fn new(config: EndpointConfig, qpn: u32, peer_qpn: u32) -> Endpoint {
        Endpoint {
            requester: Requester::new(config.requester(peer_qpn)),
            responder: Responder::new(config.responder(qpn, peer_qpn)),
            completions: Vec::new(),
            received: Vec::new(),
            failure: None,
            established: false,
            config,
            qpn,
            peer_qpn,
            host: Host::new(&config),
            posted: VecDeque::new(),
            first_ticket: 0,
            read_data: VecDeque::new(),
        }
    }

    pub fn memory(&self) -> &[u8] {
        &self.host.memory
    }

    /// The registered memory, to fill it.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.host.memory
    }

    pub fn invalidated(&self) -> &[u32] {
        &self.host.invalidated
    }

    pub fn post_receive(&mut self, capacity: u64) {
        self.host.post_receive(capacity);
    }

    /// Posts a send; false when it must wait for earlier ones.
    pub fn post(&mut self, work: LocalWork) -> bool {
        if !self.requester.can_post(work.opcode, work.fence) {
            return false;
        }
        let length = work.length();
        self.requester.post(PostedMessage { opcode: work.opcode, length, fence: work.fence });
        self.posted.push_back(work);
        true
    }

    /// Statuses of the sends that ended.
    pub fn statuses(&self) -> Vec<Status> {
        self.completions.iter().map(|completion| completion.status).collect()
    }

    /// Everything the QP wants to send now.
    fn frames(&mut self, now: Now, emit: &mut dyn FnMut(Frame)) {
        while let Some(reply) = self.responder.poll_reply() {
            let payload = self.read_payload(&reply);
            emit(Frame::Reply { reply, payload });
        }
        while let Some(transmit) = self.requester.poll_transmit(now) {
            self.emit_message(transmit, emit);
            self.requester.link_consumed(transmit.ticket);
        }
        self.collect_completions();
    }

    fn emit_message(&self, transmit: Transmit, emit: &mut dyn FnMut(Frame)) {
        let index = usize::try_from(transmit.ticket.0 - self.first_ticket).unwrap_or(usize::MAX);
        let Some(work) = self.posted.get(index) else { return };
        let length = work.length();
        let mut offset = 0;
        loop {
            let room = if work.opcode.carries_payload() { self.config.fragment_bytes } else { u32::MAX };
            let fragment = Fragment { offset, length: room.min(length - offset) };
            let request = self.request(work, &transmit, fragment);
            let bytes = offset as usize..(offset + fragment.length) as usize;
            let payload = work.payload.get(bytes).unwrap_or_default().to_vec();
            emit(Frame::Request { request, payload });
            offset += fragment.length;
            if offset >= length {
                break;
            }
        }
    }

    fn request(&self, work: &LocalWork, transmit: &Transmit, fragment: Fragment) -> Request {
        Request {
            src_qpn: self.qpn,
            dst_qpn: self.peer_qpn,
            service: self.config.service,
            opcode: work.opcode,
            psn: transmit.psn,
            solicited: false,
            ack_requested: transmit.ack_requested,
            imm: work.imm,
            remote_va: VA.wrapping_add(work.remote_offset),
            rkey: work.rkey,
            length: work.length(),
            swap_add: work.swap_add,
            compare: work.compare,
            qkey: work.qkey,
            fragment,
        }
    }

    fn handle_request(&mut self, request: &Request, payload: &[u8]) {
        let Verdict::Execute(work) = self.responder.handle_request(request, &mut self.host) else { return };
        let outcome = self.execute(request, work, payload);
        self.responder.executed(outcome);
    }

    fn execute(&mut self, request: &Request, work: Work, payload: &[u8]) -> Outcome {
        if let Work::Read { region, .. } = work {
            let count = psn_count(request.opcode, request.length, self.config.path_mtu_bytes);
            let data = self.host.read(region, Fragment { offset: 0, length: request.length });
            self.read_data.push_back((request.psn.plus(count).minus(1), data));
            return Outcome::Done;
        }
        self.host.execute(self.config.service, request.psn, work, payload, &mut self.received)
    }

    fn read_payload(&mut self, reply: &Reply) -> Vec<u8> {
        if reply.kind != ReplyKind::ReadResponse {
            return Vec::new();
        }
        match self.read_data.pop_front() {
            Some((psn, data)) if psn == reply.psn => data,
            other => unreachable!("response {:?} finds {other:?}", reply.psn),
        }
    }

    fn handle_reply(&mut self, now: Now, reply: &Reply, payload: &[u8]) {
        let verdict = self.requester.handle_reply(now, reply);
        let ReplyVerdict::Response(Ticket(ticket)) = verdict else { return };
        let index = usize::try_from(ticket - self.first_ticket).unwrap_or(usize::MAX);
        let Some(work) = self.posted.get(index) else { return };
        if work.opcode == Opcode::Read {
            let into = work.read_into as u64;
            self.host.slice(into, payload.len()).copy_from_slice(payload);
        }
    }

    /// An error of either half moves the QP to ERR, which stops the other half and flushes.
    fn collect_events(&mut self) {
        while let Some(event) = self.responder.poll_event() {
            match event {
                ResponderEvent::CommunicationEstablished => self.established = true,
                ResponderEvent::Failed(failure) => {
                    self.failure = Some(failure);
                    let first = failure.receive.map(|failed| (failed.receive, failed.status));
                    self.requester.enter_error();
                    self.flush_receives(first);
                }
            }
        }
    }

    fn collect_completions(&mut self) {
        while let Some(completion) = self.requester.poll_completion() {
            self.posted.pop_front();
            self.first_ticket += 1;
            let connected = self.config.service != ServiceType::Ud && self.config.service != ServiceType::Uc;
            if completion.status != Status::Success && connected && !self.responder.is_failed() {
                let held = self.responder.enter_error().map(|receive| (receive, Status::Flushed));
                self.flush_receives(held);
            }
            self.completions.push(completion);
        }
    }

    fn flush_receives(&mut self, first: Option<(Receive, Status)>) {
        self.host.flush_receives(first, &mut self.received);
    }
}

impl End for Endpoint {
    fn poll_frames(&mut self, now: Now, emit: &mut dyn FnMut(Frame)) {
        self.frames(now, emit);
    }

    fn handle_frame(&mut self, now: Now, frame: &Frame) {
        match frame {
            Frame::Request { request, payload } => self.handle_request(request, payload),
            Frame::Reply { reply, payload } => self.handle_reply(now, reply, payload),
            Frame::Packet { .. } => unreachable!("an endpoint of whole messages meets a packet"),
        }
        self.collect_events();
        self.collect_completions();
    }

    fn handle_timeout(&mut self, now: Now) {
        self.requester.handle_timeout(now);
        self.collect_completions();
    }

    fn poll_timeout(&self) -> Option<Now> {
        self.requester.poll_timeout()
    }
}
