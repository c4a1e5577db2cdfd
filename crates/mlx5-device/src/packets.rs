//! Queues on the wire: their packets out, and what comes for them.
//!
//! The engine cuts, counts and judges; here payload is read from and put into memory. Connected queues whose peer is on the
//! wire send packets instead of messages; a datagram is one packet anyway, so a UD queue may use both ways at once.

use core::net::IpAddr;

use roce::connection::{WorkRequest, poll_request_packet};
use roce::packet::{Deth, Outgoing};
use roce::wire::Gid;
use roce::wire::ip_of;
use roce::{Outcome, Packet, PayloadSource, PostedMessage, Region, Request, ServiceType, Status};

use super::command::ContextId;
use super::core::Core;
use super::deliver::Arrived;
use super::qp::Qp;
use super::qpn::slot_of;
use super::qps::Qps;
use super::route::Route;
use super::sq::{self, Kind, SendQueue, SendRequest};
use super::wire;
use crate::carrier::{Carrier, Icrc, Inbound, Payload, Sender, Unsent};
use crate::memory::{Fault, Memory, Segment};

/// Packets of one queue sent in one poll, so that what arrives is looked at in between, and several queues' find room.
const PACKETS_AT_ONCE: usize = 32;

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
        link.sends(|| qp.sender(true));
        while sent < PACKETS_AT_ONCE && link.has_wire_room(route.from) {
            let SendQueue { requester: Some(requester), outstanding, .. } = &mut qp.sq else { break };
            let mut message = None;
            let work = |ticket| {
                message = sq::find(outstanding, ticket);
                message.map(|place| work_request(&outstanding[place]))
            };
            let Some(outgoing) = poll_request_packet(requester, qp.qpn, self.host.now, work) else {
                break;
            };
            sent += 1;
            let (Outgoing { packet, source, retransmission }, Some(place)) = (outgoing, message) else {
                continue;
            };
            let request = &qp.sq.outstanding[place];
            let (ticket, carries) = (request.ticket, matches!(source, PayloadSource::Message(_)));
            let taken = if carries && request.payload.revoked {
                Err(Unsent::Fault(Fault { addr: 0 }))
            } else {
                let offset = packet.payload.offset;
                let fill = |out: &mut [u8]| request.read(&self.host.memory, offset, out);
                link.send_packet(route.from, route.to, &packet, Icrc::Right, fill)
            };
            match taken {
                Err(Unsent::Fault(_)) => {
                    qp.sq.fail(ticket, Status::LocalProtection);
                    continue;
                }
                Err(Unsent::Failed(syndrome)) => {
                    qp.sq.fail_on_demand(place, syndrome);
                    continue;
                }
                _ => {}
            }
            let counters = &mut self.host.counters;
            self.ports.count_packet(counters, qp.path.port, route.to, &taken, &packet, retransmission);
            if carries && self.host.memory.has_lagged() {
                break;
            }
        }
        sent + if sent > 0 { self.acknowledge_along(link, qp) } else { 0 }
    }

    /// A message left: the acknowledgement that is due goes right behind it. Returns the number of packets.
    fn acknowledge_along(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        if self.host.now.0.saturating_sub(qp.responses.ack_due.0) < ANSWER_NS {
            qp.responses.converses = true;
        }
        let due = qp.sched.replying && qp.responses.owes_only_an_acknowledgement();
        // What is left then stays listed.
        if due { self.send_replies_of(link, qp, false).0 } else { 0 }
    }

    /// Whether what is to be sent is an acknowledgement that waits for its program's answer, as TCP's do in a conversation. Not
    /// where messages are on their way: then both sides send as they like, and the peer may wait for it.
    fn awaits_answer(&self, qp: &mut Qp) -> bool {
        if !qp.responses.converses || !qp.responses.owes_only_an_acknowledgement() {
            return false;
        }
        qp.responses.converses = self.host.now.0.saturating_sub(qp.responses.ack_due.0) < ACK_WAIT_NS;
        qp.responses.converses && qp.sq.outstanding.is_empty()
    }

    /// The queue may send nothing any more: the acknowledgement that waits for its answer leaves alone. The program has
    /// seen what it acknowledges, and no counter could show it afterwards. Returns the number of packets.
    pub(super) fn acknowledge_alone(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        let owed = qp.responses.owes_only_an_acknowledgement();
        if !qp.sched.replying || !owed || qp.path.way.route().is_none() {
            return 0;
        }
        qp.responses.converses = false;
        // Ahead of its rate by this one packet, which is charged all the same. What is left stays listed.
        self.send_replies_of(link, qp, true).0
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
            let qp =
                qps.get_mut(place).filter(|qp| of.is_none_or(|context| qp.event_target.context == context));
            sent += qp.map_or(0, |qp| self.acknowledge_alone(link, qp));
        }
        sent
    }

    /// Sends acknowledgements, NAKs and responses, `unpaced` whatever the port's rate says. Number sent, and whether some are left.
    pub(super) fn send_replies_of(
        &mut self,
        link: &mut impl Carrier,
        qp: &mut Qp,
        unpaced: bool,
    ) -> (usize, bool) {
        let (route, mtu) = (qp.path.way.route(), qp.mtu_bytes());
        if route.is_some() && self.awaits_answer(qp) {
            return (0, true);
        }
        let mut sent = 0;
        link.sends(|| Sender { is_shaped: !unpaced, ..qp.sender(false) });
        while sent < PACKETS_AT_ONCE {
            let has_room = match route {
                _ if self.host.now < qp.responses.not_before => false,
                Some(route) => link.has_wire_room(route.from),
                None => link.has_reply_room(slot_of(qp.attributes.dest_qpn)),
            };
            let Some(responder) = qp.responses.responder.as_mut().filter(|_| has_room) else {
                return (sent, !has_room);
            };
            let most = if route.is_some() { mtu } else { u32::MAX };
            let Some(Outgoing { packet, source, .. }) = responder.next_packet(most) else {
                return (sent, false);
            };
            let region = if let PayloadSource::Region(region) = source { Some(region) } else { None };
            if region.is_some() && self.schedule.replying.bytes_left == 0 {
                return (sent, true);
            }
            // The key of an empty READ is not checked.
            let readable = packet.payload.length == 0 || responder.may_read();
            let taken = match route {
                _ if !readable => Err(Unsent::Fault(Fault { addr: 0 })),
                Some(route) => self.send_reply_packet(link, qp, route, &packet, region),
                None => self.send_reply_record(link, qp, &packet, region),
            };
            if taken == Err(Unsent::Full) {
                return (sent, true);
            }
            sent += 1;
            if self.host.counters.answer(&packet) {
                self.explain_not_ready(qp);
            }
            let Some(responder) = &mut qp.responses.responder else { return (sent, false) };
            // What has no way to its peer is lost.
            let carried = *taken.as_ref().unwrap_or(&packet.payload.length);
            responder.sent_packet(carried);
            if matches!(taken, Err(Unsent::Fault(_))) {
                responder.read_failed(if readable { Outcome::LocalFault } else { Outcome::Revoked });
                self.take_events(qp);
                continue;
            }
            let lagged = region.is_some() && self.host.memory.has_lagged();
            self.schedule.replying.copied(carried, lagged);
            if lagged || carried < packet.payload.length {
                return (sent, true);
            }
        }
        (sent, true)
    }

    /// An answer over the wire. Returns how many bytes of payload have left.
    fn send_reply_packet(
        &mut self,
        link: &mut impl Carrier,
        qp: &Qp,
        route: Route,
        packet: &Packet,
        region: Option<Region>,
    ) -> Result<u32, Unsent> {
        let fill = |out: &mut [u8]| match region {
            Some(region) => {
                self.host.memory.read(region.address.wrapping_add(packet.payload.offset.into()), out)
            }
            None => Ok(()),
        };
        let taken = link.send_packet(route.from, route.to, packet, Icrc::Right, fill);
        if let Err(error @ (Unsent::Full | Unsent::Fault(_))) = taken {
            return Err(error);
        }
        self.ports.count_packet(&mut self.host.counters, qp.path.port, route.to, &taken, packet, false);
        Ok(packet.payload.length)
    }

    /// The same through shared memory, where acknowledgements are not counted.
    fn send_reply_record(
        &mut self,
        link: &mut impl Carrier,
        qp: &Qp,
        packet: &Packet,
        region: Option<Region>,
    ) -> Result<u32, Unsent> {
        let packet = Packet { deth: Deth { src_qpn: qp.qpn, qkey: 0 }, ..*packet };
        let mtu = qp.mtu_bytes();
        let Some(Region { address: addr, len, .. }) = region else {
            return link.send_reply(&packet, mtu, Payload::Nothing).map(|_| 0);
        };
        let sent = link.send_reply(&packet, mtu, Payload::Segments(&[Segment { addr, len }]))?;
        let layer = self.ports.configs[qp.path.port].link_layer;
        let wire = wire::response_bytes(layer, packet.content.position(), sent.carried, mtu);
        self.ports.charge(&mut self.host.counters, qp.path.port, wire);
        Ok(sent.carried)
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
        let foreign = |route: Option<Route>| route != Some(Route { from: at, to: from });
        let is_at = |port: usize| self.ports.configs[port].gids.iter().any(|e| ip_of(Gid(e.gid)) == Some(at));
        if qp.service != ServiceType::Ud && foreign(qp.path.way.route()) || !is_at(qp.path.port) {
            self.host.counters.dropped_address += 1;
        } else if inbound.is_dropped_at(qp.path.port) {
            self.ports.drop_at(&mut self.host.counters, qp.path.port);
        } else if packet.content.is_request() {
            self.respond(qp, Arrived::Packet(packet), inbound);
        } else {
            self.take_reply_packet(qp, packet, inbound);
        }
    }
}

/// What the headers of a message's packets say.
fn work_request(request: &SendRequest) -> WorkRequest {
    let Request { opcode, length, solicited, imm, remote_va, rkey, swap_add, compare, .. } = request.request;
    debug_assert_eq!(request.kind, Kind::Message);
    WorkRequest {
        message: PostedMessage { opcode, length, fence: request.wqe.fence },
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
