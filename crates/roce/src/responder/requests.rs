//! From a packet to a request: its headers, those of its message's first packet, and whether it fits there.
//!
//! Follows IBTA vol. 1 §9.7.4 (receiving requests). A SEND's length is known only at its last packet; until
//! then [`Request::length`] counts the bytes so far. Immediate and key to invalidate come last, with a
//! WRITE's receive. On RC a packet of the wrong kind, size or place is an invalid request.

use super::{Assembly, Responder};
use crate::message::{MAX_MESSAGE_BYTES, psn_count};
use crate::packet::{Content, Packet, Position, Reth, Trailer, may_carry};
use crate::{
    Fragment, GRH_BYTES, Opcode, Psn, Refusal, Region, Request, Resources, ResponderConfig, ServiceType,
};

impl Responder {
    /// Takes the packet up as the request at work, if it stands where it may and is as long as it must be.
    #[inline(always)]
    pub(super) fn take_up(&mut self, packet: &Packet) -> bool {
        let position = packet.content.position();
        let src_qpn = self.config.peer_qpn.unwrap_or(packet.deth.src_qpn);
        let Some(request) = describe(packet, src_qpn, self.assembly.as_ref()) else {
            // There is no work: nothing is lost.
            self.at_work = Request::default();
            return false;
        };
        self.at_work = request;
        // A first or only packet inside a message, a middle or last one outside: §9.7.4, opcode sequence.
        if position.starts() == self.assembly.is_some() {
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

    /// Which check of [`Responder::take_up`] a packet has failed.
    #[cold]
    pub(super) fn misfit(&self, packet: &Packet) -> Refusal {
        let (position, bytes) = (packet.content.position(), packet.payload.length);
        let within = self.assembly.as_ref().map(|assembly| assembly.first.opcode);
        match describe(packet, 0, self.assembly.as_ref()) {
            Some(Request { opcode, .. }) if bytes > 0 && opcode.wants_response() => {
                Refusal::Payload(opcode, bytes)
            }
            Some(Request { length, fragment, .. }) if position.starts() != within.is_some() => {
                let (end, mtu) = (fragment.offset.saturating_add(bytes), self.config.path_mtu_bytes);
                Refusal::PacketBytes { position, bytes, end, length, mtu }
            }
            _ => Refusal::Order { position, within },
        }
    }

    /// Whether a packet here may have so many bytes: those of one on a wire, of several in shared memory.
    #[inline(always)]
    fn may_carry(&self, position: Position, bytes: u32) -> bool {
        let path_mtu_bytes = self.config.path_mtu_bytes;
        match position {
            _ if self.outbound.ack_every.is_some() => may_carry(position, bytes, path_mtu_bytes),
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
    ) -> Result<Region, Refusal> {
        let Some(Assembly { region, .. }) = self.assembly else { return self.admit(resources) };
        let opcode = self.at_work.opcode;
        check_kind(&self.config, &self.at_work)?;
        if opcode.is_send() || opcode == Opcode::WriteImm && packet.content.position().ends() {
            self.hold_receive(resources)?;
        }
        Ok(region)
    }

    // Checks of a message's first packet, in IBTA §9.7.4's order: operation, resources, length, key, receive.

    /// The region that the request at work is granted, none of a SEND; the receive that it takes is held.
    #[inline(always)]
    pub(super) fn admit(&mut self, resources: &mut impl Resources) -> Result<Region, Refusal> {
        check_shape(&self.config, &self.at_work)?;
        let opcode = self.at_work.opcode;
        let most = self.config.max_dest_rd_atomic;
        if opcode.wants_response() && self.waiting(false) >= usize::from(most) {
            return Err(Refusal::ReadsWait(most));
        }
        let region =
            if opcode.is_send() { Region::default() } else { self.region(&self.at_work, resources)? };
        if opcode.takes_receive() {
            self.hold_receive(resources)?;
        }
        Ok(region)
    }

    /// Takes the receive that a message consumes, unless it is held. A SEND's bytes must fit there.
    fn hold_receive(&mut self, resources: &mut impl Resources) -> Result<(), Refusal> {
        if self.held.is_none() {
            self.held = resources.take_receive();
        }
        let capacity = self.held.ok_or(Refusal::NoReceive)?.capacity;
        let needed = u64::from(self.at_work.length) + u64::from(self.grh_bytes());
        if self.at_work.opcode.is_send() && needed > capacity {
            return Err(Refusal::TooLong { needed, capacity });
        }
        Ok(())
    }

    /// Registered memory that a request names. Without bytes, key and address are unchecked (IBTA C9-88).
    #[inline(always)]
    pub(super) fn region(&self, request: &Request, resources: &impl Resources) -> Result<Region, Refusal> {
        if request.length == 0 {
            return Ok(Region { va: request.remote_va, ..Region::default() });
        }
        resources
            .region(
                request.rkey,
                request.remote_va,
                u64::from(request.length),
                request.opcode.remote_access(),
            )
            .map_err(Refusal::Region)
    }

    // Small facts.

    #[inline]
    pub(super) fn last_psn(&self, request: &Request) -> Psn {
        let count = psn_count(request.opcode, request.length, self.config.path_mtu_bytes);
        request.psn.plus(count).minus(1)
    }

    pub(super) fn grh_bytes(&self) -> u32 {
        if self.config.service == ServiceType::Ud { GRH_BYTES } else { 0 }
    }

    /// Responses that wait to be sent: those `replayed`, or the others.
    pub(super) fn waiting(&self, replayed: bool) -> usize {
        self.responses.iter().filter(|response| response.replayed == replayed).count()
    }
}

/// What a packet's headers say, with those of its message's first packet if it continues one. `None` when it
/// continues nothing, or another operation.
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

/// Whether a packet's service and its message's length, which grows with the packets of a SEND, can be.
#[inline(always)]
fn check_kind(config: &ResponderConfig, request: &Request) -> Result<(), Refusal> {
    match () {
        () if !request.opcode.allowed_on(config.service) => Err(Refusal::Service(config.service)),
        () if request.length > MAX_MESSAGE_BYTES => Err(Refusal::Length(request.length)),
        () => Ok(()),
    }
}

/// Whether the request can be meant at all, apart from keys and receives.
#[inline(always)]
fn check_shape(config: &ResponderConfig, request: &Request) -> Result<(), Refusal> {
    let opcode = request.opcode;
    let (granted, need) = (config.access, opcode.remote_access());
    let atomic_well = !opcode.is_atomic() || request.remote_va.is_multiple_of(8);
    check_kind(config, request)?;
    match () {
        () if !granted.contains(need) => Err(Refusal::Operation { granted: granted.0, need: need.0 }),
        () if !atomic_well => Err(Refusal::Unaligned),
        () => Ok(()),
    }
}
