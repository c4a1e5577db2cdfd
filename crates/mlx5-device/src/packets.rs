//! Queues on the wire: their packets out, and what comes for them.
//!
//! The engine cuts, counts and judges; here payload is read from and put into memory. Connected queues whose peer is on the
//! wire send packets instead of messages; a datagram is one packet anyway, so a UD queue may use both ways at once.

use core::net::IpAddr;

use roce::connection::{Arrival, WorkRequest, poll_request_packet, take_reply_packet};
use roce::packet::{Deth, Trailer};
use roce::wire::Gid;
use roce::wire::icrc::ICRC_BYTES;
use roce::wire::ip_of;
use roce::{
    Access, Content, Fragment, Opcode, Outcome, Packet, PayloadSource, Placement, Position, PostedMessage,
    Region, ReplyVerdict, Request, Responder, ServiceType, Status, Transmit, Verdict, Work,
};

use super::command::ContextId;
use super::core::Core;
use super::mr::access;
use super::qp::Qp;
use super::qpn::Qps;
use super::route::Route;
use super::sq::{Kind, SendRequest};
use crate::carrier::{Carrier, Icrc, Inbound, Unsent};
use crate::memory::{Fault, Memory, Segment, Segments};

/// Packets of one queue sent in one poll, so that what arrives is looked at in between, and several queues' find room.
const PACKETS_AT_ONCE: usize = 32;

/// Ethernet's preamble, header, check sequence and gap, and IP and UDP, in front of what [`Carrier::send_packet`] counts; IPv6's
/// header has 40 bytes, IPv4's 20.
fn framing(to: Option<IpAddr>) -> u64 {
    let ip = if to.is_some_and(|to| to.is_ipv6()) { 40 } else { 20 };
    20 + 14 + 4 + ip + 8
}

/// An acknowledgement waits so long for a message to leave with, ns: one call to the kernel sends both. Requesters' time-outs are a
/// hundred times as long, and no queue waits so whose program did not answer in time before …
const ACK_WAIT_NS: u64 = 10_000;

/// … which is this time: without a wait, a call to the kernel is part of it.
const ANSWER_NS: u64 = 20_000;

impl<M: Memory> Core<M> {
    // Out.

    /// Sends what the transport lets go. Returns the number of packets.
    pub(super) fn transmit_packets(&mut self, link: &mut impl Carrier, qp: &mut Qp, route: Route) -> usize {
        let mut sent = 0;
        while sent < PACKETS_AT_ONCE
            && self.shapers[qp.port].allows(self.now)
            && (self.faults.is_none() || self.keeps_pace())
            && link.has_wire_room(route.from)
        {
            let (Some(requester), sq) = (&mut qp.requester, &qp.sq) else { break };
            let mut message = None;
            let work = |ticket| {
                message = sq.find(ticket);
                message.map(|place| work_request(&sq.outstanding[place]))
            };
            let Some(outgoing) = poll_request_packet(requester, qp.qpn, self.now, work) else { break };
            sent += 1;
            let icrc = match self.faults.is_some() {
                true => self.befalls_packet(qp, message, &outgoing),
                false => Some(Icrc::Right),
            };
            let Some(icrc) = icrc else { continue };
            let PayloadSource::Message(ticket) = outgoing.source else {
                let bytes = link.send_packet(route.from, route.to, &outgoing.packet, icrc, |_| Ok(()));
                if icrc == Icrc::Wrong {
                    self.corrupted(qp.qpn, bytes.is_ok());
                }
                self.count_packet(
                    qp.port,
                    Some(route.to),
                    &bytes,
                    &outgoing.packet,
                    0,
                    outgoing.retransmission,
                );
                continue;
            };
            let Some(place) = message else { continue };
            let request = &qp.sq.outstanding[place];
            let Fragment { offset, length } = outgoing.packet.payload;
            let taken = if request.revoked {
                Err(Unsent::Fault(Fault { addr: 0 }))
            } else {
                let fill = |out: &mut [u8]| gather(&self.memory, request, offset, out);
                link.send_packet(route.from, route.to, &outgoing.packet, icrc, fill)
            };
            if icrc == Icrc::Wrong {
                self.corrupted(qp.qpn, taken.is_ok());
            }
            if matches!(taken, Err(Unsent::Fault(_))) {
                if let Some(requester) = &mut qp.requester {
                    requester.fail(ticket, Status::LocalProtection);
                }
                continue;
            }
            let to = Some(route.to);
            self.count_packet(qp.port, to, &taken, &outgoing.packet, length, outgoing.retransmission);
            if self.memory.has_lagged() {
                break;
            }
        }
        sent
    }

    /// A datagram as its one packet. Errors: no room now, or its payload cannot be read; nothing was sent then.
    pub(super) fn send_datagram(
        &mut self,
        link: &mut impl Carrier,
        device: usize,
        request: &SendRequest,
        route: Route,
        transmit: Transmit,
    ) -> Result<(), Unsent> {
        let Request { service, src_qpn, dst_qpn, solicited, imm, length, qkey, opcode, .. } = request.request;
        let trailer = if opcode == Opcode::SendImm { Trailer::Immediate(imm) } else { Trailer::None };
        let packet = Packet {
            service,
            dst_qpn,
            psn: transmit.psn,
            ack_requested: false,
            solicited,
            deth: Deth { qkey, src_qpn },
            content: Content::Send { position: Position::Only, trailer },
            payload: Fragment { offset: 0, length },
        };
        let fill = |out: &mut [u8]| gather(&self.memory, request, 0, out);
        let taken = link.send_packet(route.from, route.to, &packet, Icrc::Right, fill);
        if let Err(error @ (Unsent::Full | Unsent::Fault(_))) = taken {
            return Err(error);
        }
        self.count_packet(device, Some(route.to), &taken, &packet, length, transmit.retransmission);
        Ok(())
    }

    /// A message left: the acknowledgement that is due goes right behind it. Returns the number of packets.
    pub(super) fn acknowledge_along(&mut self, link: &mut impl Carrier, qp: &mut Qp, route: Route) -> usize {
        if self.now.0.saturating_sub(qp.ack_due.0) < ANSWER_NS {
            qp.converses = true;
        }
        let due = qp.replying && qp.responder.as_ref().is_some_and(Responder::owes_only_an_acknowledgement);
        // What is left then stays listed.
        if due { self.send_reply_packets(link, qp, route, false).0 } else { 0 }
    }

    /// Whether what is to be sent is an acknowledgement that waits for its program's answer, as TCP's do in a conversation. Not
    /// where messages are on their way: then both sides send as they like, and the peer may wait for it.
    fn awaits_answer(&self, qp: &mut Qp) -> bool {
        if !qp.converses || !qp.responder.as_ref().is_some_and(Responder::owes_only_an_acknowledgement) {
            return false;
        }
        qp.converses = self.now.0.saturating_sub(qp.ack_due.0) < ACK_WAIT_NS;
        qp.converses && qp.sq.outstanding.is_empty()
    }

    /// The queue may send nothing any more: the acknowledgement that waits for its answer leaves alone. The program has
    /// seen what it acknowledges, and no counter could show it afterwards. Returns the number of packets.
    pub(super) fn acknowledge_alone(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        let owed = qp.responder.as_ref().is_some_and(Responder::owes_only_an_acknowledgement);
        let Some(route) = qp.route.filter(|_| qp.replying && owed) else { return 0 };
        qp.converses = false;
        // Ahead of its rate by this one packet, which is charged all the same. What is left stays listed.
        self.send_reply_packets(link, qp, route, true).0
    }

    /// The same for every queue of a context, or of all: they are about to go.
    pub(super) fn acknowledge_all(
        &mut self,
        link: &mut impl Carrier,
        qps: &mut Qps,
        of: Option<ContextId>,
    ) -> usize {
        let mut sent = 0;
        for place in self.schedule.replying.list.clone() {
            let qp = qps.get_mut(place).filter(|qp| of.is_none_or(|context| qp.context == context));
            sent += qp.map_or(0, |qp| self.acknowledge_alone(link, qp));
        }
        sent
    }

    /// Sends acknowledgements and READ responses, `unpaced` whatever the port's rate says. Number sent, and whether some are left.
    pub(super) fn send_reply_packets(
        &mut self,
        link: &mut impl Carrier,
        qp: &mut Qp,
        route: Route,
        unpaced: bool,
    ) -> (usize, bool) {
        if self.awaits_answer(qp) {
            return (0, true);
        }
        let (mut sent, to) = (0, Some(route.to));
        while sent < PACKETS_AT_ONCE {
            let late = self.now < qp.reply_not_before;
            let paced = !unpaced && !self.shapers[qp.port].allows(self.now);
            if late || paced || !link.has_wire_room(route.from) {
                return (sent, true);
            }
            let Some(outgoing) = qp.responder.as_mut().and_then(|r| r.poll_packet()) else {
                return (sent, false);
            };
            sent += 1;
            if self.faults.is_some() && self.loses_answer(qp.port) {
                let bytes = Ok(bytes_of(&outgoing.packet));
                self.count_packet(qp.port, to, &bytes, &outgoing.packet, 0, false);
                continue;
            }
            let Fragment { offset, length } = outgoing.packet.payload;
            let PayloadSource::Region(region) = outgoing.source else {
                self.count_answer(&outgoing.packet);
                let bytes = link.send_packet(route.from, route.to, &outgoing.packet, Icrc::Right, |_| Ok(()));
                self.count_packet(qp.port, to, &bytes, &outgoing.packet, 0, false);
                continue;
            };
            let at = Segment { addr: region.address.wrapping_add(offset.into()), len: length.into() };
            let outcome = if self.is_readable_still(qp, &region, offset, length) {
                let fill = |out: &mut [u8]| self.memory.read(at.addr, out);
                match link.send_packet(route.from, route.to, &outgoing.packet, Icrc::Right, fill) {
                    Err(Unsent::Fault(_)) => Outcome::LocalFault,
                    bytes => {
                        self.count_packet(qp.port, to, &bytes, &outgoing.packet, length, false);
                        if self.memory.has_lagged() {
                            return (sent, true);
                        }
                        continue;
                    }
                }
            } else {
                Outcome::Revoked
            };
            if let Some(responder) = &mut qp.responder {
                responder.read_failed(outcome);
            }
            self.take_events(qp);
        }
        (sent, true)
    }

    /// A card looks at the key with every packet.
    fn is_readable_still(&self, qp: &Qp, region: &Region, offset: u32, length: u32) -> bool {
        if length == 0 {
            // The key of an empty READ is not checked.
            return true;
        }
        let va = region.va.wrapping_add(offset.into());
        let wanted = Ok(region.address.wrapping_add(offset.into()));
        self.regions.grant(region.key, qp.pd, qp.qpn, va, length.into(), Access(access::REMOTE_READ))
            == wanted
    }

    fn count_answer(&mut self, packet: &Packet) {
        use roce::packet::{Aeth, Syndrome};
        if let Content::Acknowledge(Aeth { syndrome, .. }) = packet.content {
            match syndrome {
                Syndrome::Ack => {}
                Syndrome::RnrNak { .. } => self.counters.rnr_naks_sent += 1,
                Syndrome::Nak(_) => self.counters.naks_sent += 1,
            }
        }
    }

    pub(super) fn count_packet(
        &mut self,
        port: usize,
        to: Option<IpAddr>,
        taken: &Result<usize, Unsent>,
        packet: &Packet,
        payload: u32,
        again: bool,
    ) {
        let Ok(bytes) = taken else {
            // No header says that, or no port has that address: lost on the way.
            self.counters.lost_unreachable += 1;
            return;
        };
        let wire = framing(to) + *bytes as u64;
        self.shapers[port].spend(wire);
        self.counters.wire_bytes_sent += wire;
        self.port_counters[port].wire_bytes_sent += wire;
        if again {
            self.counters.retransmissions += 1;
        } else if packet.content.is_request() {
            let message = u64::from(packet.content.position().ends());
            self.counters.messages_sent += message;
            self.port_counters[port].messages_sent += message;
            self.counters.bytes_sent += u64::from(payload);
        }
    }

    // In.

    /// A packet arrived for an address of ours.
    pub(super) fn take_packet(
        &mut self,
        qp: &mut Qp,
        packet: &Packet,
        from: IpAddr,
        at: IpAddr,
        inbound: &mut impl Inbound,
    ) {
        let stranger = |route: Option<Route>| route != Some(Route { from: at, to: from });
        let is_at = |port: usize| self.ports[port].gids.iter().any(|e| ip_of(Gid(e.gid)) == Some(at));
        if qp.service != ServiceType::Ud && stranger(qp.route) || !is_at(qp.port) {
            self.counters.dropped_address += 1;
        } else if self.faults.is_some() && self.is_down(qp.port) {
            self.drop_at_port(qp);
        } else if !packet.content.is_request() {
            self.take_answer(qp, packet, inbound);
        } else if qp.state.answers_requests() {
            self.port_counters[qp.port].requests_received += 1;
            self.respond_to_packet(qp, packet, inbound);
        } else {
            self.counters.dropped_qp_state += 1;
        }
    }

    fn respond_to_packet(&mut self, qp: &mut Qp, packet: &Packet, inbound: &mut impl Inbound) {
        let owed = |qp: &Qp| qp.responder.as_ref().is_some_and(Responder::owes_only_an_acknowledgement);
        let owed_before = owed(qp);
        self.with_responder(qp, |core, qp| {
            let Some((responder, mut resources)) = core.responder_of(qp) else { return };
            let executed = responder.counters().messages;
            let verdict = responder.handle_packet(packet, &mut resources);
            let is_taken = !matches!(verdict, Verdict::Dropped(_));
            match verdict {
                // The engine sends a READ's answer by itself, and counts the first time that it does.
                Verdict::Execute(Work::Read { .. }) | Verdict::Answered => {
                    if let Content::ReadRequest(reth) = packet.content
                        && responder.counters().messages > executed
                    {
                        core.count_executed(true, reth.dma_bytes);
                    }
                }
                Verdict::Execute(work) => {
                    let ends = packet.content.position().ends();
                    let outcome = core.execute(qp, &work, ends, packet.payload.length, inbound);
                    if let Some(responder) = &mut qp.responder {
                        responder.executed(outcome);
                    }
                }
                Verdict::Dropped(reason) => core.count_dropped(reason),
            }
            core.counters.packets_taken += u64::from(is_taken);
            if core.faults.is_some() && matches!(packet.content, Content::ReadRequest(_)) {
                qp.reply_not_before = qp.reply_not_before.max(core.answer_not_before(qp.qpn));
            }
        });
        if !owed_before && owed(qp) {
            qp.ack_due = self.now;
        }
    }

    fn take_answer(&mut self, qp: &mut Qp, packet: &Packet, inbound: &mut impl Inbound) {
        let waits = qp.state.finishes_sends() && qp.service == ServiceType::Rc;
        let Some(requester) = qp.requester.as_mut().filter(|_| waits) else {
            self.counters.dropped_replies += 1;
            return;
        };
        let arrival = take_reply_packet(requester, qp.qpn, self.now, packet);
        let ignored = matches!(arrival, Arrival::Reply(ReplyVerdict::Ignored));
        self.counters.packets_taken += u64::from(!ignored);
        self.counters.dropped_replies += u64::from(ignored);
        match arrival {
            Arrival::Place(placement) => self.place_read(qp, placement, inbound),
            Arrival::Reply(_) | Arrival::Request(_) => {}
        }
        self.drain_completions(qp);
        self.schedule.heat(qp, self.now);
    }

    /// Bytes of a READ go where it wants them.
    fn place_read(&mut self, qp: &mut Qp, placement: Placement, inbound: &mut impl Inbound) {
        let Placement { ticket, fragment: Fragment { offset, length } } = placement;
        let Some(place) = qp.sq.find(ticket) else { return };
        let request = &mut qp.sq.outstanding[place];
        self.counters.bytes_read += u64::from(length);
        let placed = if request.signalled && request.request.length as usize <= qp.requester_scatter {
            // So short that it came in one packet.
            request.inline.clear();
            request.inline.resize(length as usize, 0);
            inbound.copy_to_buffer(&mut request.inline).is_ok()
        } else {
            let mut to = std::mem::take(&mut self.segments);
            pieces(&request.segments, offset, length, &mut to);
            let placed = !request.revoked
                && inbound.copy_into(&to, super::deliver::order(self.options.relaxed_ordering)).is_ok();
            self.segments = to;
            placed
        };
        if let Some(requester) = qp.requester.as_mut().filter(|_| !placed) {
            requester.fail(ticket, Status::LocalProtection);
        }
    }
}

/// Bytes from BTH to ICRC, of a packet that does not leave.
pub(super) fn bytes_of(packet: &Packet) -> usize {
    let headers = packet.to_wire(&[]).map_or(0, |wire| wire.header_bytes());
    headers + (packet.payload.length as usize).next_multiple_of(4) + ICRC_BYTES
}

/// What the headers of a message's packets say.
fn work_request(request: &SendRequest) -> WorkRequest {
    let Request { opcode, length, solicited, imm, remote_va, rkey, swap_add, compare, .. } = request.request;
    debug_assert_eq!(request.kind, Kind::Message);
    WorkRequest {
        message: PostedMessage { opcode, length, fence: request.fence },
        solicited,
        imm,
        remote_va,
        rkey,
        swap_add,
        compare,
        dst_qpn: request.request.dst_qpn,
        qkey: request.request.qkey,
    }
}

/// The message's bytes from `offset` on, as many as `out` has.
fn gather<M: Memory>(memory: &M, request: &SendRequest, offset: u32, out: &mut [u8]) -> Result<(), Fault> {
    let mut walk = Segments::new(&request.segments);
    walk.advance(offset.into());
    let mut rest = out;
    while !rest.is_empty() {
        let piece = walk.peek(rest.len() as u64).ok_or(Fault { addr: 0 })?;
        let (now, later) = rest.split_at_mut(piece.len as usize);
        match request.kept(piece) {
            Some(bytes) => now.copy_from_slice(bytes),
            None => memory.read(piece.addr, now)?,
        }
        walk.advance(piece.len);
        rest = later;
    }
    Ok(())
}

/// The pieces of `segments` that hold `length` bytes from `offset`.
pub(super) fn pieces(segments: &[Segment], offset: u32, length: u32, out: &mut Vec<Segment>) {
    out.clear();
    let mut walk = Segments::new(segments);
    walk.advance(offset.into());
    let mut left = u64::from(length);
    while let Some(piece) = walk.peek(left) {
        walk.advance(piece.len);
        left -= piece.len;
        out.push(piece);
    }
}
