//! Answers on their way out: acknowledgements, NAKs, and the responses of READs and atomics.
//!
//! The engine cuts, counts and judges; here payload is read from memory. In shared memory answers leave once
//! there is room. On the wire an acknowledgement may wait a little for a message to leave with.

use core::slice::from_ref;

use roce::packet::{Deth, Outgoing};
use roce::{Outcome, Packet, PayloadSource, Region};

use super::command::ContextId;
use super::core::Core;
use super::framing;
use super::qp::Qp;
use super::qpn::slot_of;
use super::qps::Qps;
use super::route::Route;
use super::schedule::PACKETS_AT_ONCE;
use crate::carrier::{Carrier, Icrc, Payload, Sender, Unsent};
use crate::memory::{Fault, Memory, Segment};

/// How long an acknowledgement waits for a message to leave with, ns: one call to the kernel sends both.
/// Most time-outs are a hundred times as long; a requester with a shorter one sends its message again.
const ACK_WAIT_NS: u64 = 10_000;

/// A queue waits only if its program answered within this time, ns; without a wait it includes a system call.
const ANSWER_NS: u64 = 20_000;

impl<M: Memory> Core<M> {
    /// A message left: the acknowledgement that is due goes right behind it. Returns the number of packets.
    pub(super) fn acknowledge_along(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        if self.host.now.0.saturating_sub(qp.responses.ack_due.0) < ANSWER_NS {
            qp.responses.converses = true;
        }
        let due = qp.sched.replying && qp.responses.owes_only_an_acknowledgement();
        // What is left then stays listed.
        if due { self.send_replies_of(link, qp, false).0 } else { 0 }
    }

    /// Whether only an acknowledgement is owed, and it waits for its program's answer, as TCP's in a
    /// conversation. Not with messages in flight: both sides then send freely, and the peer may wait for it.
    fn awaits_answer(&self, qp: &mut Qp) -> bool {
        if !qp.responses.converses || !qp.responses.owes_only_an_acknowledgement() {
            return false;
        }
        qp.responses.converses = self.host.now.0.saturating_sub(qp.responses.ack_due.0) < ACK_WAIT_NS;
        qp.responses.converses && qp.sq.is_idle()
    }

    /// The queue may send nothing more: an acknowledgement that waits for an answer leaves alone. The program
    /// has seen what it acknowledges, and no counter would show it later. Returns the number of packets.
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

    /// Sends acknowledgements, NAKs, responses; `unpaced` ignores the port's rate. Number sent, any left.
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
        qp.responses.refused = false;
        link.sends(|| Sender { is_shaped: !unpaced, ..qp.sender(false) });
        while sent < PACKETS_AT_ONCE {
            let has_room = match route {
                _ if self.host.now < qp.responses.not_before => false,
                Some(route) => link.has_wire_room(route.from),
                None => {
                    qp.responses.refused = !link.has_reply_room(slot_of(qp.attributes.dest_qpn));
                    !qp.responses.refused
                }
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
            let taken = match readable {
                true => self.send_reply(link, qp, &packet, region),
                false => Err(Unsent::Fault(Fault { addr: 0 })),
            };
            if let Err(unsent @ (Unsent::Full | Unsent::Paced)) = taken {
                qp.responses.refused = unsent == Unsent::Full;
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
            if let Err(Unsent::Fault(Fault { addr })) = taken {
                responder.read_failed(if readable { Outcome::LocalFault { addr } } else { Outcome::Revoked });
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

    /// Hands an answer to the carrier; returns its payload bytes. Shared-memory ACKs are not counted.
    fn send_reply(
        &mut self,
        link: &mut impl Carrier,
        qp: &Qp,
        packet: &Packet,
        region: Option<Region>,
    ) -> Result<u32, Unsent> {
        let segment = region.map(|Region { address: addr, len, .. }| Segment { addr, len });
        let payload =
            segment.as_ref().map_or(Payload::Nothing, |segment| Payload::Segments(from_ref(segment)));
        let (counters, port, mtu) = (&mut self.host.counters, qp.path.port, qp.mtu_bytes());
        let packet = &Packet { deth: Deth { src_qpn: qp.qpn, qkey: 0 }, ..*packet };
        if let Some(Route { from, to }) = qp.path.way.route() {
            let taken = link.send_packet(from, to, packet, Icrc::Right, payload);
            if let Err(error @ (Unsent::Full | Unsent::Fault(_))) = taken {
                return Err(error);
            }
            self.ports.count_packet(counters, port, to, &taken, packet, false);
            return Ok(packet.payload.length);
        }
        let sent = link.send_record(packet, mtu, &qp.path.address, payload)?;
        if region.is_some() {
            let wire = framing::record_bytes(self.ports.link_layer, packet, sent.carried, mtu);
            self.ports.count(counters, port, packet, (wire, sent.carried), false);
        }
        Ok(sent.carried)
    }
}
