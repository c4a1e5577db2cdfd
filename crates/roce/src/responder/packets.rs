//! The responder packet by packet: sequence and length of each, acknowledgements gathered, READ responses cut to packets.
//!
//! Follows IBTA vol. 1 §9.7.4 (receiving requests; C9-105 for duplicates), §9.7.5 (generating responses), its rules for UC and
//! UD. A packet becomes the [`Request`] of its fragment, and then meets the checks, refusals, replays and replies of the
//! files above. What differs from fragments: the expected PSN moves with each packet; a SEND's length is known at its last packet
//! only, so that until then [`Request::length`] counts the bytes so far; immediate and key to invalidate come last, and with
//! them a WRITE's receive; and no fragment of the wrong kind, size or place can be an echo: on RC it is an invalid request.

use super::streams::ReadStream;
use super::{Pending, Responder, Response, State};
use crate::admission::{Assembly, Grant};
use crate::message::MAX_MESSAGE_BYTES;
use crate::packet::{
    Aeth, AtomicEth, Content, Outgoing, Packet, PayloadSource, Position, Syndrome, Trailer, may_carry,
};
use crate::psn::Relation;
use crate::{
    AsyncEvent, DropReason, Fragment, NakCode, Opcode, Outcome, Psn, Refusal, Region, Reply, ReplyKind,
    Request, Resources, ResponderConfig, ServiceType, Status, Verdict, Work,
};

impl Responder {
    /// A responder that gets packets: use `handle_packet` and `poll_packet` instead of `handle_request` and `poll_reply`.
    /// It acknowledges when asked, and at least every `ack_every`-th packet.
    pub fn by_packet(config: ResponderConfig, ack_every: u32) -> Responder {
        let mut responder = Responder::new(config);
        responder.packets.ack_every = Some(ack_every.max(1));
        responder
    }

    /// Takes one request packet. The payload of [`Work`] is the packet's; READs are executed here, and their bytes are named
    /// by the packets of the response.
    pub fn handle_packet(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        // The wire names no sender on a connection: the caller has compared the packet's address.
        let src_qpn = self.config.peer_qpn.unwrap_or(packet.deth.src_qpn);
        if let Some(reason) = self.unwelcome(packet.service, src_qpn) {
            return self.drop(reason);
        }
        self.requester_qpn = src_qpn;
        let verdict = match self.config.service {
            ServiceType::Rc => self.reliable_packet(packet, resources),
            ServiceType::Uc => self.unreliable_packet(packet, resources),
            ServiceType::Ud => {
                match self.part(packet, None).filter(|_| packet.content.position() == Position::Only) {
                    Some(request) => self.datagram(&request, resources),
                    None => self.drop(DropReason::InvalidRequest),
                }
            }
        };
        match verdict {
            Verdict::Execute(Work::Read { region, .. }) => self.stream_read(region),
            other => other,
        }
    }

    /// The next packet to send: of READ and atomic responses in order, then a NAK, then an acknowledgement.
    pub fn poll_packet(&mut self) -> Option<Outgoing> {
        let outgoing = self.next_packet(self.config.path_mtu_bytes)?;
        self.sent_packet(outgoing.packet.payload.length);
        Some(outgoing)
    }

    /// The same without sending it: [`Responder::sent_packet`] does. Of a READ response as many packets in one as `most` bytes hold.
    pub fn next_packet(&self, most: u32) -> Option<Outgoing> {
        if let Some((response, stream)) = self.next_read() {
            let aeth = Aeth { syndrome: Syndrome::Ack, msn: response.msn };
            let (psn, position, payload) = stream.next_piece(self.config.path_mtu_bytes, most);
            let aeth = (position != Position::Middle).then_some(aeth);
            let content = Content::ReadResponse { position, aeth };
            return Some(self.outgoing(psn, content, payload, PayloadSource::Region(stream.region)));
        }
        let reply = self.next_reply()?;
        let content = content_of(&reply)?;
        Some(self.outgoing(reply.psn, content, Fragment::default(), PayloadSource::Nothing))
    }

    /// What [`Responder::next_packet`] gave has left, or so many bytes of it, whole packets: the rest comes next.
    pub fn sent_packet(&mut self, bytes: u32) {
        let Some((response, stream)) = self.next_read() else { return self.pop_reply() };
        let last_read = (stream.psn.plus(stream.next), response.replayed, stream.region);
        self.packets.last_read = Some(last_read);
        let path_mtu_bytes = self.config.path_mtu_bytes;
        if let Some(stream) = self.packets.reads.front_mut()
            && stream.advance(bytes, path_mtu_bytes)
        {
            self.packets.reads.pop_front();
            self.responses.pop_front();
        }
    }

    /// Whether the answer to a READ is to be sent.
    pub fn owes_a_read(&self) -> bool {
        !self.packets.reads.is_empty()
    }

    /// The READ response that goes out next.
    fn next_read(&self) -> Option<(&Response, &ReadStream)> {
        let response = self.responses.front().filter(|next| next.kind == ReplyKind::ReadResponse)?;
        Some((response, self.packets.reads.front()?))
    }

    /// What READs of this key are not answered with yet is read through another key; none: it is not to be sent.
    pub fn rekey_reads(&mut self, key: u32, other: Option<u32>) {
        for stream in self.packets.reads.iter_mut().filter(|stream| stream.region.key == key) {
            stream.region.key = other.unwrap_or(key);
            stream.revoked |= other.is_none();
        }
    }

    /// Whether the key of the READ response that goes out next is there still.
    pub fn may_read(&self) -> bool {
        self.next_read().is_none_or(|(_, stream)| !stream.revoked)
    }

    /// Nothing that is due is sent.
    pub fn drop_replies(&mut self) {
        self.responses.clear();
        self.packets.reads.clear();
        (self.nak, self.ack_due) = (None, false);
    }

    /// The bytes of the READ response packet polled last cannot be read: the region is gone ([`Outcome::Revoked`]), or its
    /// memory is. Do not send the packet; the NAK that takes its place acknowledges what was sent before it.
    ///
    /// The first answer to a READ ends in error (IBTA §9.9.3), a repeated one in silence: its first run succeeded.
    pub fn read_failed(&mut self, outcome: Outcome) {
        let Some((psn, replayed, Region { key: rkey, va: remote_va, len, .. })) =
            self.packets.last_read.take()
        else {
            return;
        };
        if replayed {
            self.abandon_read(psn);
            self.counters.dropped[DropReason::UnknownDuplicate as usize] += 1;
            return;
        }
        self.responses.clear();
        self.packets.reads.clear();
        self.expected_psn = psn;
        let (opcode, length) = (Opcode::Read, len as u32);
        let read = Request { opcode, psn, remote_va, rkey, length, ..Request::default() };
        let (code, event, why) = match outcome {
            Outcome::Revoked => (NakCode::RemoteAccess, AsyncEvent::AccessError, Refusal::Revoked),
            _ => (NakCode::RemoteOperation, AsyncEvent::QpFatal, Refusal::Memory),
        };
        self.refuse(code, Some(event), Status::Flushed, (why, read));
    }

    // Reliable connection.

    fn reliable_packet(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        match packet.psn.relation_to(self.expected_psn) {
            Relation::Expected => {}
            Relation::Ahead => return self.gap(),
            Relation::Duplicate => return self.duplicate_packet(packet, resources),
        }
        let Some(part) = self.part(packet, self.assembly) else {
            return self.refuse_reliably(Refusal::Shape, &header(packet, self.assembly).unwrap_or_default());
        };
        match self.admit_part(&part, packet, resources) {
            Ok(grant) => {
                self.state = State::InOrder;
                self.nak = None;
                self.execute_part(&part, packet.content.position().ends(), grant, resources)
            }
            Err(refusal) => self.refuse_reliably(refusal, &part),
        }
    }

    /// C9-105. A READ whose response is still going out starts over where it is asked for again; all else as for messages.
    fn duplicate_packet(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        let Some(request) = header(packet, None) else {
            // A middle or last packet: what it belongs to does not matter, it was executed.
            self.counters.duplicates += 1;
            self.ack_due = true;
            return Verdict::Answered;
        };
        if request.opcode == Opcode::Read
            && self.packets.reads.iter_mut().any(|stream| stream.rewind(&request, self.config.path_mtu_bytes))
        {
            self.counters.duplicates += 1;
            return Verdict::Answered;
        }
        self.duplicate(&request, resources)
    }

    // Unreliable connection: a packet out of sequence voids its message without an answer.

    fn unreliable_packet(&mut self, packet: &Packet, resources: &mut impl Resources) -> Verdict {
        let starts = packet.content.position().starts();
        if starts {
            self.counters.sequence_errors += u64::from(packet.psn != self.expected_psn);
            self.expected_psn = packet.psn;
            self.assembly = None;
        }
        let in_sequence = packet.psn == self.expected_psn;
        let Some(part) = self.part(packet, self.assembly).filter(|_| in_sequence) else {
            self.assembly = None;
            if !starts {
                return self.drop(DropReason::Hole);
            }
            self.expected_psn = packet.psn.plus(1);
            return self.drop(DropReason::InvalidRequest);
        };
        match self.admit_part(&part, packet, resources) {
            Ok(grant) => self.execute_part(&part, packet.content.position().ends(), grant, resources),
            Err(refusal) => {
                self.assembly = None;
                self.expected_psn = packet.psn.plus(1);
                self.refuse_silently(refusal, &part)
            }
        }
    }

    // From packet to fragment.

    /// The fragment that a packet is, if it stands where it may and is as long as it must be.
    fn part(&self, packet: &Packet, assembly: Option<Assembly>) -> Option<Request> {
        let position = packet.content.position();
        // A first or only packet inside a message, a middle or last one outside: §9.7.4, checking the opcode sequence.
        if position.starts() == assembly.is_some() {
            return None;
        }
        let part = header(packet, assembly)?;
        let payload_bytes = packet.payload.length;
        let sized = match packet.content {
            Content::Send { .. } | Content::Write { .. } => {
                may_carry(position, payload_bytes, self.config.path_mtu_bytes)
            }
            _ => payload_bytes == 0,
        };
        // A WRITE's packets add up to the length of its RETH: not sooner, not later.
        let end = u64::from(part.fragment.offset) + u64::from(part.fragment.length);
        let total = u64::from(part.length);
        let adds_up = if position.ends() { end == total } else { part.opcode.is_send() || end < total };
        (sized && adds_up).then_some(Request { src_qpn: self.requester_qpn, ..part })
    }

    /// A message's first packet passes the checks of a first fragment; a later one those that only it can fail.
    fn admit_part(
        &mut self,
        part: &Request,
        packet: &Packet,
        resources: &mut impl Resources,
    ) -> Result<Grant, Refusal> {
        let Some(assembly) = self.assembly else { return self.admit(part, resources) };
        if !part.opcode.allowed_on(self.config.service) || part.length > MAX_MESSAGE_BYTES {
            return Err(Refusal::Shape);
        }
        if part.opcode.is_send() {
            return self.fit(part);
        }
        if part.opcode == Opcode::WriteImm && packet.content.position().ends() && self.held.is_none() {
            self.held = Some(resources.take_receive().ok_or(Refusal::NoReceive)?);
        }
        Ok(Grant::Write(assembly.region))
    }

    /// A packet that does not end its message was executed.
    pub(super) fn part_done(&mut self) {
        if self.packets.ack_every.is_none() {
            return;
        }
        self.expected_psn = self.expected_psn.plus(1);
        if self.config.service == ServiceType::Rc {
            self.ack_due |= self.packets.acknowledges(&self.at_work);
        }
    }

    // READ responses.

    /// A READ was granted: its response goes out packet by packet, each reading its bytes then. So they may be those of a
    /// WRITE behind the READ; a requester that minds posts that with a fence (IBTA, ordering of operations).
    pub fn stream_read(&mut self, region: Region) -> Verdict {
        if !matches!(self.pending, Pending::Message | Pending::Replay) {
            return Verdict::Answered;
        }
        let Request { psn, length, remote_va, rkey, .. } = self.at_work;
        let packets = self.last_psn(&self.at_work).distance_from(psn) + 1;
        let region = Region { va: remote_va, key: rkey, ..region };
        self.packets.reads.push_back(ReadStream {
            region,
            psn,
            length,
            packets,
            next: 0,
            first: 0,
            revoked: false,
        });
        self.executed(Outcome::Done);
        Verdict::Answered
    }

    /// Takes back what is left of the response whose packet at `psn` cannot be sent.
    fn abandon_read(&mut self, psn: Psn) {
        let unfinished = self
            .packets
            .reads
            .front()
            .is_some_and(|stream| stream.next > stream.first && psn == stream.psn.plus(stream.next - 1));
        if unfinished {
            self.packets.reads.pop_front();
            self.responses.pop_front();
        }
    }

    fn outgoing(&self, psn: Psn, content: Content, payload: Fragment, source: PayloadSource) -> Outgoing {
        let packet = Packet {
            service: self.config.service,
            dst_qpn: self.requester_qpn,
            psn,
            ack_requested: false,
            solicited: false,
            deth: Default::default(),
            content,
            payload,
        };
        Outgoing { packet, source, retransmission: false }
    }
}

/// What a packet's headers say, with those of its message's first packet where it continues one. `None` when it continues
/// nothing, or another operation.
fn header(packet: &Packet, assembly: Option<Assembly>) -> Option<Request> {
    let Packet { service, dst_qpn, psn, ack_requested, solicited, deth, content, payload } = *packet;
    let fresh = Request {
        src_qpn: deth.src_qpn,
        dst_qpn,
        service,
        opcode: Opcode::Send,
        psn,
        solicited,
        ack_requested,
        imm: [0; 4],
        remote_va: 0,
        rkey: 0,
        length: payload.length,
        swap_add: 0,
        compare: 0,
        qkey: deth.qkey,
        fragment: Fragment { offset: 0, length: payload.length },
    };
    Some(match content {
        Content::Send { position, trailer } => {
            let (opcode, imm) = match trailer {
                Trailer::None => (Opcode::Send, [0; 4]),
                Trailer::Immediate(imm) => (Opcode::SendImm, imm),
                Trailer::Invalidate(key) => (Opcode::SendInvalidate, key),
            };
            if position.starts() {
                return Some(Request { opcode, imm, ..fresh });
            }
            let Assembly { first, next_offset, .. } = assembly.filter(|a| a.first.opcode.is_send())?;
            let fragment = Fragment { offset: next_offset, length: payload.length };
            let length = next_offset.checked_add(payload.length)?;
            Request { opcode, imm, psn: first.psn, length, fragment, ..fresh }
        }
        Content::Write { position, reth, trailer } => {
            let (opcode, imm) = match trailer {
                Trailer::None => (Opcode::Write, [0; 4]),
                Trailer::Immediate(imm) => (Opcode::WriteImm, imm),
                Trailer::Invalidate(_) => return None,
            };
            if position.starts() {
                let (remote_va, rkey, length) = (reth.va, reth.rkey, reth.dma_bytes);
                return Some(Request { opcode, imm, remote_va, rkey, length, ..fresh });
            }
            let Assembly { first, next_offset, .. } = assembly.filter(|a| !a.first.opcode.is_send())?;
            let fragment = Fragment { offset: next_offset, length: payload.length };
            Request { opcode, imm, solicited, ack_requested, fragment, ..first }
        }
        Content::ReadRequest(reth) => {
            let fragment = Fragment { offset: 0, length: reth.dma_bytes };
            let (remote_va, rkey, length) = (reth.va, reth.rkey, reth.dma_bytes);
            Request { opcode: Opcode::Read, remote_va, rkey, length, fragment, ..fresh }
        }
        Content::CompareSwap(eth) => atomic_request(Opcode::CompareSwap, eth, fresh),
        Content::FetchAdd(eth) => atomic_request(Opcode::FetchAdd, eth, fresh),
        Content::ReadResponse { .. } | Content::Acknowledge(_) | Content::AtomicAcknowledge { .. } => {
            return None;
        }
    })
}

fn atomic_request(opcode: Opcode, eth: AtomicEth, fresh: Request) -> Request {
    let AtomicEth { va: remote_va, rkey, swap_add, compare } = eth;
    let fragment = Fragment { offset: 0, length: 8 };
    Request { opcode, remote_va, rkey, length: 8, swap_add, compare, fragment, ..fresh }
}

/// A reply as a packet; `None` for what only shared memory has.
fn content_of(reply: &Reply) -> Option<Content> {
    let aeth = |syndrome| Aeth { syndrome, msn: reply.msn };
    Some(match reply.kind {
        ReplyKind::Ack => Content::Acknowledge(aeth(Syndrome::Ack)),
        ReplyKind::RnrNak { timer } => Content::Acknowledge(aeth(Syndrome::RnrNak { timer })),
        ReplyKind::Nak(code) => Content::Acknowledge(aeth(Syndrome::Nak(code))),
        ReplyKind::AtomicResponse { old } => Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old },
        ReplyKind::ReadResponse => return None,
    })
}
