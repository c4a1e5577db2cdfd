//! Packets of a responder: what one says of its message, acknowledgements gathered, READ responses cut to packets.
//!
//! Follows IBTA vol. 1 §9.7.4 (receiving requests) and §9.7.5 (generating responses). A SEND's length is known at its last packet
//! only, so that until then [`Request::length`] counts the bytes so far; immediate and key to invalidate come last, and with them a
//! WRITE's receive; a packet of the wrong kind, size or place is on RC an invalid request.

use super::streams::ReadStream;
use super::{Responder, Response};
use crate::admission::{Assembly, Grant};
use crate::message::{MAX_MESSAGE_BYTES, psn_count};
use crate::packet::{
    Aeth, Content, Outgoing, Packet, PayloadSource, Position, Reth, Syndrome, Trailer, may_carry,
};
use crate::{
    AsyncEvent, DropReason, Fragment, NakCode, Opcode, Outcome, Psn, Refusal, Region, Request, Resources,
    ResponderConfig, ServiceType, Status, Verdict,
};

impl Responder {
    /// A responder on a wire. It acknowledges when asked, and at least every `ack_every`-th packet.
    pub fn by_packet(config: ResponderConfig, ack_every: u32) -> Responder {
        let mut responder = Responder::new(config);
        responder.packets.ack_every = Some(ack_every.max(1));
        responder
    }

    /// Takes one request packet of the peer: on a connection the caller has compared addresses or QPNs. The payload of [`Work`] is the
    /// packet's; READs are executed here, and their bytes are named by the packets of the response.
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

    /// The next packet to send: of READ and atomic responses in order, then a NAK, then an acknowledgement.
    pub fn poll_packet(&mut self) -> Option<Outgoing> {
        let outgoing = self.next_packet(self.config.path_mtu_bytes)?;
        self.sent_packet(outgoing.packet.payload.length);
        Some(outgoing)
    }

    /// The same without sending it: [`Responder::sent_packet`] does. Of a READ response as many packets in one as `most` bytes hold.
    pub fn next_packet(&self, most: u32) -> Option<Outgoing> {
        let aeth = |syndrome, msn| Aeth { syndrome, msn };
        if let Some((response, stream)) = self.next_read() {
            let aeth = aeth(Syndrome::Ack, response.msn);
            let (psn, position, payload) = stream.next_piece(self.config.path_mtu_bytes, most);
            let aeth = (position != Position::Middle).then_some(aeth);
            let content = Content::ReadResponse { position, aeth };
            return Some(self.outgoing(psn, content, payload, PayloadSource::Region(stream.region)));
        }
        let (psn, content) = if let Some(Response { psn, msn, old, .. }) = self.responses.front() {
            (*psn, Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack, *msn), old: (*old)? })
        } else if let Some(nak) = self.nak {
            (self.expected_psn, Content::Acknowledge(aeth(nak, self.msn)))
        } else if self.ack_due {
            (self.expected_psn.minus(1), Content::Acknowledge(aeth(Syndrome::Ack, self.msn)))
        } else {
            return None;
        };
        Some(self.outgoing(psn, content, Fragment::default(), PayloadSource::Nothing))
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
        let response = self.responses.front().filter(|next| next.old.is_none())?;
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
        self.at_work = Request { opcode, psn, remote_va, rkey, length, ..Request::default() };
        let (code, event, why) = match outcome {
            Outcome::Revoked => (NakCode::RemoteAccess, AsyncEvent::AccessError, Refusal::Revoked),
            _ => (NakCode::RemoteOperation, AsyncEvent::QpFatal, Refusal::Memory),
        };
        self.refuse(code, Some(event), Status::Flushed, why);
    }

    // A packet and its message.

    /// Takes the packet up as the request at work, if it stands where it may and is as long as it must be.
    #[inline(always)]
    pub(super) fn take_up(&mut self, packet: &Packet) -> bool {
        let position = packet.content.position();
        let src_qpn = self.config.peer_qpn.unwrap_or(packet.deth.src_qpn);
        let described = describe(packet, src_qpn, self.assembly.as_ref());
        let is_known = described.is_some();
        // There is no work: nothing is lost.
        self.at_work = described.unwrap_or_default();
        // A first or only packet inside a message, a middle or last one outside: §9.7.4, checking the opcode sequence.
        if !is_known || position.starts() == self.assembly.is_some() {
            return false;
        }
        let (part, bytes) = (&self.at_work, packet.payload.length);
        let is_write = match packet.content {
            Content::Send { .. } => false,
            Content::Write { .. } => true,
            _ => return bytes == 0,
        };
        // A WRITE's packets add up to the length of its RETH: not sooner, not later.
        let end = u64::from(part.fragment.offset) + u64::from(bytes);
        let total = u64::from(part.length);
        let adds_up = if position.ends() { end == total } else { !is_write || end < total };
        adds_up && self.may_carry(position, bytes)
    }

    /// Whether a packet at this position may have so many bytes: on a wire those of one, in shared memory those of several.
    #[inline(always)]
    fn may_carry(&self, position: Position, bytes: u32) -> bool {
        let path_mtu_bytes = self.config.path_mtu_bytes;
        match position {
            _ if self.packets.ack_every.is_some() => may_carry(position, bytes, path_mtu_bytes),
            Position::Only => true,
            Position::Last => bytes > 0,
            Position::First | Position::Middle => bytes > 0 && bytes.is_multiple_of(path_mtu_bytes),
        }
    }

    /// A message's first packet passes all checks; a later one those that only it can fail.
    #[inline(always)]
    pub(super) fn admit_part(
        &mut self,
        packet: &Packet,
        resources: &mut impl Resources,
    ) -> Result<Grant, Refusal> {
        let Some(Assembly { region, .. }) = self.assembly else { return self.admit(resources) };
        let Request { opcode, length, .. } = self.at_work;
        if !opcode.allowed_on(self.config.service) || length > MAX_MESSAGE_BYTES {
            return Err(Refusal::Shape);
        }
        if opcode.is_send() {
            return self.fit();
        }
        if opcode == Opcode::WriteImm && packet.content.position().ends() && self.held.is_none() {
            self.held = Some(resources.take_receive().ok_or(Refusal::NoReceive)?);
        }
        Ok(Grant::Write(region))
    }

    /// A packet that does not end its message was executed.
    pub(super) fn part_done(&mut self) {
        let Fragment { offset, length } = self.at_work.fragment;
        if let Some(assembly) = &mut self.assembly {
            assembly.next_offset = offset + length;
        }
        let count = psn_count(Opcode::Send, length, self.config.path_mtu_bytes);
        self.expected_psn = self.expected_psn.plus(count);
        if self.config.service == ServiceType::Rc && self.packets.ack_every.is_some() {
            self.ack_due |= self.packets.acknowledges(&self.at_work);
        }
    }

    // READ responses.

    /// A READ was granted: its response goes out packet by packet, each reading its bytes then. So they may be those of a
    /// WRITE behind the READ; a requester that minds posts that with a fence (IBTA, ordering of operations).
    pub(super) fn stream_read(&mut self, request: &Request, region: Region) {
        let Request { psn, length, remote_va, rkey, .. } = *request;
        let packets = self.last_psn(request).distance_from(psn) + 1;
        let region = Region { va: remote_va, key: rkey, ..region };
        let stream = ReadStream { region, psn, length, packets, next: 0, first: 0, revoked: false };
        self.packets.reads.push_back(stream);
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
            dst_qpn: self.config.peer_qpn.unwrap_or_default(),
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
#[inline(always)]
pub(super) fn describe(packet: &Packet, src_qpn: u32, assembly: Option<&Assembly>) -> Option<Request> {
    let bytes = packet.payload.length;
    let of_reth = |reth: Reth| (reth.va, reth.rkey, reth.dma_bytes);
    let (opcode, imm, (remote_va, rkey, length), (psn, offset)) = match packet.content {
        Content::Send { position, trailer } => {
            let (opcode, imm) = match trailer {
                Trailer::None => (Opcode::Send, [0; 4]),
                Trailer::Immediate(imm) => (Opcode::SendImm, imm),
                Trailer::Invalidate(key) => (Opcode::SendInvalidate, key),
            };
            if position.starts() {
                (opcode, imm, (0, 0, bytes), (packet.psn, 0))
            } else {
                let Assembly { first, next_offset, .. } = assembly.filter(|a| a.first.opcode.is_send())?;
                (opcode, imm, (0, 0, next_offset.checked_add(bytes)?), (first.psn, *next_offset))
            }
        }
        Content::Write { position, reth, trailer } => {
            let (opcode, imm) = match trailer {
                Trailer::None => (Opcode::Write, [0; 4]),
                Trailer::Immediate(imm) => (Opcode::WriteImm, imm),
                Trailer::Invalidate(_) => return None,
            };
            if position.starts() {
                (opcode, imm, of_reth(reth), (packet.psn, 0))
            } else {
                let Assembly { first, next_offset, .. } = assembly.filter(|a| !a.first.opcode.is_send())?;
                (opcode, imm, (first.remote_va, first.rkey, first.length), (first.psn, *next_offset))
            }
        }
        Content::ReadRequest(reth) => (Opcode::Read, [0; 4], of_reth(reth), (packet.psn, 0)),
        Content::CompareSwap(eth) => (Opcode::CompareSwap, [0; 4], (eth.va, eth.rkey, 8), (packet.psn, 0)),
        Content::FetchAdd(eth) => (Opcode::FetchAdd, [0; 4], (eth.va, eth.rkey, 8), (packet.psn, 0)),
        Content::ReadResponse { .. } | Content::Acknowledge(_) | Content::AtomicAcknowledge { .. } => {
            return None;
        }
    };
    Some(Request {
        opcode,
        solicited: packet.solicited,
        ack_requested: packet.ack_requested,
        imm,
        psn,
        rkey,
        remote_va,
        length,
        src_qpn,
        fragment: Fragment { offset, length: if opcode.carries_payload() { bytes } else { length } },
    })
}
