//! One end of a [`super::Pair`]: a [`Connection`], with a process around it.

use std::collections::VecDeque;

use super::connection::{Arrival, Connection, Event, WorkRequest};
use super::endpoint::{EndpointConfig, LocalWork, VA};
use super::faults::Frame;
use super::host::{Host, Received};
use crate::{
    Completion, Failure, Fragment, Now, Outcome, PayloadSource, PostedMessage, Receive, ReplyVerdict,
    ResponderEvent, ServiceType, Status, Ticket, Verdict,
};

#[derive(Debug)]
pub struct End {
    /// The QP.
    pub connection: Connection,
    /// Sends that ended, in order.
    pub completions: Vec<Completion>,
    /// Receives that ended, in order.
    pub received: Vec<Received>,
    /// The responder's fatal error.
    pub failure: Option<Failure>,
    /// «Communication established» came.
    pub established: bool,
    /// NAKs and RNR NAKs sent.
    pub naks_sent: u64,
    config: EndpointConfig,
    qpn: u32,
    peer_qpn: u32,
    host: Host,
    /// Posted work; the front has ticket `first_ticket`.
    posted: VecDeque<LocalWork>,
    first_ticket: u64,
}

impl End {
    /// An end on a wire with this QPN, connected to `peer_qpn`.
    pub fn new(config: EndpointConfig, qpn: u32, peer_qpn: u32) -> End {
        let (requester, responder) = (config.requester(), config.responder(peer_qpn));
        let connection = Connection::new(requester, config.send_window, responder, config.ack_every);
        End::of(config, connection, qpn, peer_qpn)
    }

    /// The same in shared memory, where one packet may have the bytes of several.
    pub fn shared(config: EndpointConfig, qpn: u32, peer_qpn: u32) -> End {
        let (requester, responder) = (config.requester(), config.responder(peer_qpn));
        let most = config.fragment_bytes.max(config.path_mtu_bytes);
        End::of(config, Connection::shared(requester, responder, most), qpn, peer_qpn)
    }

    fn of(config: EndpointConfig, connection: Connection, qpn: u32, peer_qpn: u32) -> End {
        End {
            connection,
            completions: Vec::new(),
            received: Vec::new(),
            failure: None,
            established: false,
            naks_sent: 0,
            config,
            qpn,
            peer_qpn,
            host: Host::new(&config),
            posted: VecDeque::new(),
            first_ticket: 0,
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

    /// Atomics that ran here.
    pub fn atomics(&self) -> u64 {
        self.host.atomics
    }

    /// Deregisters the memory, whatever is in flight.
    pub fn revoke(&mut self) {
        self.host.revoked = true;
    }

    pub fn post_receive(&mut self, capacity: u64) {
        self.host.post_receive(capacity);
    }

    /// Posts a send; false when it must wait for earlier ones.
    pub fn post(&mut self, work: LocalWork) -> bool {
        if !self.connection.requester.can_post(work.opcode, work.fence) {
            return false;
        }
        self.connection.post(WorkRequest {
            message: PostedMessage { opcode: work.opcode, length: work.length(), fence: work.fence },
            solicited: false,
            imm: work.imm,
            remote_va: VA.wrapping_add(work.remote_offset),
            rkey: work.rkey,
            swap_add: work.swap_add,
            compare: work.compare,
            src_qpn: self.qpn,
            dst_qpn: self.peer_qpn,
            qkey: work.qkey,
        });
        self.posted.push_back(work);
        true
    }

    /// Statuses of the sends that ended.
    pub fn statuses(&self) -> Vec<Status> {
        self.completions.iter().map(|completion| completion.status).collect()
    }

    fn work(&self, ticket: Ticket) -> Option<&LocalWork> {
        self.posted.get(usize::try_from(ticket.0.checked_sub(self.first_ticket)?).ok()?)
    }

    fn place(&mut self, ticket: Ticket, part: Fragment, payload: &[u8]) {
        let Some(into) = self.work(ticket).map(|work| work.read_into) else { return };
        let start = (into + part.offset as usize) as u64;
        self.host.slice(start, payload.len()).copy_from_slice(payload);
    }

    /// Takes what arrived.
    pub(super) fn handle_frame(&mut self, now: Now, frame: &Frame) {
        let Frame { packet, payload } = frame;
        match self.connection.handle_packet(now, packet, &mut self.host) {
            Arrival::Request(Verdict::Execute(work)) => {
                let service = self.config.service;
                let outcome = self.host.execute(service, packet.psn, work, payload, &mut self.received);
                self.connection.responder.executed(outcome);
            }
            Arrival::Reply(ReplyVerdict::Place { ticket, fragment }) => self.place(ticket, fragment, payload),
            Arrival::Request(_) | Arrival::Reply(_) => {}
        }
        self.collect_events();
    }

    /// An error of either half of a reliable QP moves the QP to ERR, which stops the other half and flushes.
    fn collect_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Responder(ResponderEvent::CommunicationEstablished) => self.established = true,
                Event::Responder(ResponderEvent::Dropped(_)) => {}
                Event::Responder(ResponderEvent::Failed(failure)) => {
                    self.failure = Some(failure);
                    let first = failure.receive.map(|failed| (failed.receive, failed.status));
                    self.connection.requester.enter_error();
                    self.flush_receives(first);
                }
                Event::Sent(completion) => {
                    self.posted.pop_front();
                    self.first_ticket += 1;
                    let reliable = self.config.service == ServiceType::Rc;
                    if completion.status != Status::Success
                        && reliable
                        && !self.connection.responder.is_failed()
                    {
                        let held = self.connection.responder.enter_error();
                        self.flush_receives(held.map(|receive| (receive, Status::Flushed)));
                    }
                    self.completions.push(completion);
                }
            }
        }
    }

    fn flush_receives(&mut self, first: Option<(Receive, Status)>) {
        self.host.flush_receives(first, &mut self.received);
    }

    /// Gives everything that the QP wants to send now.
    pub(super) fn poll_frames(&mut self, now: Now, emit: &mut dyn FnMut(Frame)) {
        while let Some(outgoing) = self.connection.poll_transmit(now) {
            let part = outgoing.packet.payload;
            let payload = match outgoing.source {
                PayloadSource::Nothing => Vec::new(),
                PayloadSource::Message(ticket) => {
                    let bytes = part.offset as usize..(part.offset + part.length) as usize;
                    let work = self.work(ticket).expect("a packet of a message that is not done");
                    work.payload[bytes].to_vec()
                }
                PayloadSource::Region(region) => {
                    if self.host.revoked && region.len > 0 {
                        self.connection.responder.read_failed(Outcome::Revoked);
                        continue;
                    }
                    self.host.read(region, part)
                }
            };
            let packet = outgoing.packet;
            self.naks_sent += u64::from(packet.is_nak());
            emit(Frame { packet, payload });
        }
        self.collect_events();
    }

    pub(super) fn handle_timeout(&mut self, now: Now) {
        self.connection.requester.handle_timeout(now);
        self.collect_events();
    }

    /// When the next timer is due.
    pub(super) fn poll_timeout(&self) -> Option<Now> {
        self.connection.requester.poll_timeout()
    }
}
