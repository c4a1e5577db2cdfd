//! One queue pair on a wire: packets in, packets out, and what its device is to do and to know.
//!
//! Joins a [`Requester`] and a [`Responder`], which hold every rule. Here packets are told apart (IBTA vol. 1
//! chapter 9: a QP's halves share only their QPN) and get the headers that their messages were posted with.
//! Left out: moving the other half to ERR when one fails, which the QP's states do ([`crate::qp_state`]).
//!
//! ```text
//!   post ──► poll_transmit ──► wire ──► handle_packet ──► Work ──► responder.executed
//!   poll_event ◄── handle_packet ◄── wire ◄── poll_transmit
//! ```

use crate::packet::{Deth, Reth};
use crate::{
    Completion, Content, Fragment, Now, Outgoing, Packet, PayloadSource, PostedMessage, Psn, ReplyVerdict,
    Requester, RequesterConfig, Resources, Responder, ResponderConfig, ResponderEvent, SendWindow,
    ServiceType, Status, Ticket, Verdict,
};

/// A message as posted, with what its packets say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkRequest {
    /// Operation, length, fence.
    pub message: PostedMessage,
    /// Solicited event.
    pub solicited: bool,
    /// Immediate data as on the wire, or the rkey to invalidate, big-endian.
    pub imm: [u8; 4],
    /// Target address (WRITE, READ, atomics).
    pub remote_va: u64,
    pub rkey: u32,
    /// Value to swap in or to add.
    pub swap_add: u64,
    pub compare: u64,
    /// Sender and receiver.
    pub src_qpn: u32,
    pub dst_qpn: u32,
    /// Q_Key of a datagram.
    pub qkey: u32,
}

/// What a packet was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A request: execute what it says, then call `responder.executed`.
    Request(Verdict),
    Reply(ReplyVerdict),
}

/// What the device should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A posted message ended.
    Sent(Completion),
    Responder(ResponderEvent),
}

/// See the module. Call `poll_transmit` and `poll_event` until `None` after whatever else was called.
#[derive(Debug)]
pub struct Connection {
    /// For its timer and commands; posting and polling go through the connection, which makes headers.
    pub requester: Requester<Packet>,
    pub responder: Responder,
    /// Request packets that were polled, resent ones included.
    pub transmitted: u64,
    pub retransmitted: u64,
    /// Bytes of one packet at most.
    most: u32,
    /// A packet of the responder's was polled last: the requester's turn.
    requester_first: bool,
}

impl Connection {
    /// Both halves, with nothing posted. The responder acknowledges at least every `ack_every`-th packet.
    pub fn new(
        requester: RequesterConfig,
        window: SendWindow,
        responder: ResponderConfig,
        ack_every: u32,
    ) -> Connection {
        let most = requester.path_mtu_bytes;
        Connection::of(
            most,
            Requester::by_packet(requester, window),
            Responder::by_packet(responder, ack_every),
        )
    }

    /// A connection over shared memory, which loses nothing: one packet holds up to `most` bytes of several.
    pub fn shared(requester: RequesterConfig, responder: ResponderConfig, most: u32) -> Connection {
        Connection::of(most, Requester::new(requester), Responder::new(responder))
    }

    fn of(most: u32, requester: Requester<Packet>, responder: Responder) -> Connection {
        Connection { most, requester, responder, transmitted: 0, retransmitted: 0, requester_first: false }
    }

    /// Queues a message; ask [`Requester::can_post`] first.
    pub fn post(&mut self, work: WorkRequest) -> Ticket {
        let whole = self.whole(&work);
        self.requester.post_with(work.message, whole)
    }

    /// Queues a message that failed already, see [`Requester::post_failed_with`].
    pub fn post_failed(&mut self, work: WorkRequest, status: Status) -> Ticket {
        let whole = self.whole(&work);
        self.requester.post_failed_with(work.message.opcode, status, whole)
    }

    // Inputs.

    /// Takes one packet that was addressed to this QP and came from its peer's address.
    pub fn handle_packet(&mut self, now: Now, packet: &Packet, resources: &mut impl Resources) -> Arrival {
        if packet.content.is_request() {
            return Arrival::Request(self.responder.handle_packet(packet, resources));
        }
        Arrival::Reply(self.requester.handle_packet(now, packet))
    }

    // Outputs.

    /// The next packet to send; requests and responses take turns, for neither may wait for the other.
    pub fn poll_transmit(&mut self, now: Now) -> Option<Outgoing> {
        self.requester_first = !self.requester_first;
        if self.requester_first {
            self.poll_reply().or_else(|| self.poll_request(now))
        } else {
            self.poll_request(now).or_else(|| self.poll_reply())
        }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.responder.poll_event() {
            return Some(Event::Responder(event));
        }
        self.requester.poll_completed().map(|(completion, _)| Event::Sent(completion))
    }

    fn poll_reply(&mut self) -> Option<Outgoing> {
        let outgoing = self.responder.next_packet(self.most)?;
        self.responder.sent_packet(outgoing.packet.payload.length);
        Some(outgoing)
    }

    fn poll_request(&mut self, now: Now) -> Option<Outgoing> {
        let transmit = self.requester.next_packet(self.most)?;
        self.requester.sent_packet(now, &transmit, transmit.fragment.length);
        self.transmitted += 1;
        self.retransmitted += u64::from(transmit.retransmission);
        let packet = transmit.cut(self.requester.work_request_mut(transmit.ticket)?);
        let carries = packet.payload.length > 0;
        let source = if carries { PayloadSource::Message(transmit.ticket) } else { PayloadSource::Nothing };
        Some(Outgoing { packet, source, retransmission: transmit.retransmission })
    }

    /// The message as one packet.
    fn whole(&self, work: &WorkRequest) -> Packet {
        let service = self.requester.config().service;
        let datagram = service == ServiceType::Ud;
        let WorkRequest { message: PostedMessage { opcode, length, .. }, remote_va: va, rkey, .. } = *work;
        Packet {
            service,
            dst_qpn: work.dst_qpn,
            psn: Psn::default(),
            ack_requested: false,
            solicited: work.solicited,
            deth: if datagram { Deth { qkey: work.qkey, src_qpn: work.src_qpn } } else { Deth::default() },
            content: Content::request(
                opcode,
                work.imm,
                Reth { va, rkey, dma_bytes: length },
                [work.swap_add, work.compare],
            ),
            payload: Fragment { offset: 0, length: if opcode.carries_payload() { length } else { 0 } },
        }
    }
}
