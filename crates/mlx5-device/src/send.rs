//! The requester's side of a QP: from the send queue to the carrier, and to completions.
//!
//! In each step of a queue: time-outs, new WQEs within a budget, what the transport releases, then
//! completions in posting order.

use roce::{Completion, Fragment, Opcode, PacketTransmit, Position, ServiceType, Status, Ticket};

use super::command::event_type;
use super::core::Core;
use super::fetch::Checks;
use super::framing;
use super::mkey::Mkeys;
use super::qp::Qp;
use super::qpn::slot_of;
use super::reason::{About, STALLED};
use super::route::Way;
use super::schedule::PACKETS_AT_ONCE;
use super::sq::{Kind, SendRequest, Stall};
use crate::carrier::{Carrier, Icrc, Sender, Unsent};
use crate::memory::{Fault, Memory};

/// WQEs of one queue read in one poll, so that no queue starves the others.
const FETCH_BUDGET: usize = 32;

/// WQEs of one queue read and not completed: more than the transport's window, for NOPs between messages.
const MAX_OUTSTANDING: usize = 256;

/// Time-outs in a row that wait because replies of the peer are there and not read.
const MAX_ANSWER_HOLDS: u8 = 4;

impl<M: Memory> Core<M> {
    /// Reads what was posted, and hands it to the transport.
    pub(super) fn post(&mut self, qp: &mut Qp) -> usize {
        let posted = qp.sq.posted(&self.host.memory, self.host.now);
        if qp.sq.ring.entries > 0 && posted.record.is_none() {
            // A card that cannot read the record has lost the queue.
            qp.event_target.raise(&mut self.host, event_type::QP_FATAL);
            let record = qp.sq.ring.record;
            let why = format!("its doorbell record at {record:#x} cannot be read; keep it mapped");
            self.host.explain(About::Qp(qp.qpn, None), STALLED, why);
            self.fail_qp(qp, "its doorbell record cannot be read");
            return 1;
        }
        self.uars.watch(&mut self.host, qp, posted);
        let end = qp.sq.fetched.wrapping_add(posted.available);
        let mut work = 0;
        if posted.available > 0 && qp.sq.doorbell.unchecked && self.uars.strict {
            self.host.counters.doorbells_unchecked += 1;
        }
        while work < FETCH_BUDGET && qp.sq.outstanding() < MAX_OUTSTANDING {
            let mut request = match qp.sq.held.take() {
                Some(request) => request,
                None if qp.sq.stopped || qp.sq.fetched == end => break,
                None => {
                    work += 1;
                    let checks =
                        Checks { mkeys: &self.mkeys, ports: &self.ports, limits: &self.capabilities };
                    let available = qp.sq.distance(end);
                    self.wqe_fetch.fetch(&mut self.host, &checks, qp, available)
                }
            };
            perform_umr(&mut self.mkeys, qp, &mut request);
            if let Some(held) = qp.sq.hand_over(request) {
                qp.sq.held = Some(held);
                break;
            }
        }
        work
    }

    pub(super) fn run_timers(&mut self, link: &mut impl Carrier, qp: &mut Qp) {
        let Some(requester) = &mut qp.sq.requester else { return };
        if requester.poll_timeout().is_none_or(|due| due > self.host.now) {
            return;
        }
        let on_its_way = match (qp.path.way.peer(), qp.sq.progress.last_sent) {
            (Some(peer), Some(position)) => !link.consumed(peer, position),
            _ => false,
        };
        // The reply may be one that waits behind a round's budget. But not time after time: others' replies
        // must not keep a queue waiting for ever.
        let answers_wait = qp.sq.progress.answer_holds < MAX_ANSWER_HOLDS
            && qp.path.way.peer().is_some_and(|peer| link.replies_wait(peer));
        let has_no_room = qp.sq.progress.stalled == Some(Stall::Room) || requester.waits_for_room();
        if on_its_way || has_no_room || answers_wait {
            qp.sq.progress.answer_holds += u8::from(answers_wait);
            requester.hold_timer(self.host.now);
        }
        if requester.poll_timeout().is_some_and(|due| due <= self.host.now) {
            requester.handle_timeout(self.host.now);
            if requester.is_failed() && !self.host.counters.loses_on_demand() {
                let why = self.explain_silence(link, qp);
                // All before it are done.
                let mut requests = qp.sq.requester.iter_mut().flat_map(|r| r.work_requests_mut());
                if let Some(request) = requests.find(|request| request.is_message()) {
                    request.why = why;
                }
            }
        }
    }

    /// Sends what the transport lets go. Returns how much.
    pub(super) fn transmit(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        let (route, mtu) = (qp.path.way.route(), qp.mtu_bytes());
        let most = if route.is_some() { mtu } else { u32::MAX };
        let mut work = 0;
        while self.schedule.hot.bytes_left > 0 && (route.is_none() || work < PACKETS_AT_ONCE) {
            qp.sq.progress.stalled = None;
            let Some(requester) = qp.sq.requester.as_mut() else { break };
            let Some(transmit) = requester.next_packet(most) else {
                qp.sq.progress.stalled = Some(Stall::Reply);
                break;
            };
            link.sends(|| Sender { begins: transmit.begins, ..qp.sender(true) });
            let has_room = match route {
                Some(route) => link.has_wire_room(route.from),
                // A rate is asked once a message.
                None => !transmit.begins || link.has_request_room(),
            };
            if !has_room {
                break;
            }
            let length = transmit.fragment.length;
            let carried = match self.send(link, qp, mtu, &transmit) {
                Ok(carried) => carried,
                Err(Unsent::Full) => {
                    // A full ring is no work: the NIC may sleep until its peer has taken something.
                    qp.sq.progress.stalled = Some(Stall::Room);
                    let request = qp.sq.requester.as_mut().and_then(|r| r.work_request_mut(transmit.ticket));
                    let datagram = qp.service == ServiceType::Ud;
                    let shared = request
                        .filter(|it| matches!(if datagram { it.way } else { qp.path.way }, Way::Shared(..)));
                    if let Some(peer) = shared.map(|it| it.packet.dst_qpn) {
                        let there = || link.peer_in_words(slot_of(peer));
                        let why = || format!("takes no message: its ring is full or closed; {}", there());
                        self.explain_wait(qp, (transmit.ticket, transmit.fragment.offset), peer, why);
                    }
                    break;
                }
                Err(Unsent::Paced) => break,
                Err(Unsent::Failed(syndrome)) => {
                    qp.sq.fail(transmit.ticket, Status::LocalQpOperation, |request| {
                        request.kind = Kind::Injected(syndrome);
                        request.why = "`softnic ctl inject error-cqe` asked for it".to_owned();
                    });
                    return work + 1;
                }
                Err(Unsent::Fault(fault)) => {
                    qp.sq.fail_at(transmit.ticket, fault);
                    return work + 1;
                }
                // Lost on the way, as `send` counts it.
                Err(Unsent::Unreachable) => length,
            };
            work += 1;
            if let Some(requester) = &mut qp.sq.requester {
                requester.sent_packet(self.host.now, &transmit, carried);
            }
            if carried < length {
                qp.sq.progress.stalled = Some(Stall::Room);
                break;
            }
        }
        let is_sent = work > 0 && route.is_some();
        work + if is_sent { self.acknowledge_along(link, qp) } else { 0 }
    }

    /// Gives a message, or what is left of it, to the carrier. Returns how many bytes of it have left.
    #[inline(always)]
    fn send(
        &mut self,
        link: &mut impl Carrier,
        qp: &mut Qp,
        mtu: u32,
        transmit: &PacketTransmit,
    ) -> Result<u32, Unsent> {
        let (port, datagram) = (qp.path.port, qp.service == ServiceType::Ud);
        let PacketTransmit { position, fragment: Fragment { offset, length }, retransmission, .. } =
            *transmit;
        let requester = qp.sq.requester.as_mut();
        let Some(request) = requester.and_then(|r| r.work_request_mut(transmit.ticket)) else {
            return Ok(length);
        };
        if request.payload.revoked {
            return Err(Unsent::Fault(Fault { addr: 0 }));
        }
        (request.packet.psn, request.packet.ack_requested) = (transmit.psn, transmit.ack_requested);
        let part;
        let packet = if position == Position::Only && offset == 0 {
            &request.packet
        } else {
            part = transmit.cut(&request.packet);
            &part
        };
        let counters = &mut self.host.counters;
        let way = if datagram { request.way } else { qp.path.way };
        let sent = match way {
            Way::Wire(route) => {
                let taken = link.send_packet(route.from, route.to, packet, Icrc::Right, request.payload());
                if let Err(error @ (Unsent::Full | Unsent::Fault(_) | Unsent::Failed(_))) = taken {
                    return Err(error);
                }
                self.ports.count_packet(counters, port, route.to, &taken, packet, retransmission);
                if packet.payload.length > 0 {
                    self.schedule.hot.copied(length, self.host.memory.has_lagged());
                }
                return Ok(length);
            }
            Way::Nowhere => Err(Unsent::Unreachable),
            Way::Shared(..) => {
                let path = if datagram { &request.path } else { &qp.path.address };
                link.send_record(packet, mtu, path, request.payload())
            }
        };
        let carried = match sent {
            Ok(sent) => {
                qp.sq.progress.last_sent = Some(sent.position);
                if packet.payload.length > 0 {
                    self.schedule.hot.copied(sent.carried, self.host.memory.has_lagged());
                }
                sent.carried
            }
            // Lost on the way.
            Err(Unsent::Unreachable) => {
                counters.lost_unreachable += 1;
                packet.payload.length
            }
            Err(error) => return Err(error),
        };
        let wire = framing::record_bytes(self.ports.link_layer, packet, carried, mtu);
        self.ports.count(counters, port, packet, (wire, carried), retransmission);
        // Of a READ the request has left, which has none of its bytes.
        let sent = if packet.payload.length > 0 { carried } else { length };
        if way == Way::Nowhere && datagram {
            let (path, peer) = (request.path, request.packet.dst_qpn);
            self.explain_no_route(qp, &path, peer);
        }
        Ok(sent)
    }

    /// Completes what is done, in the order of posting.
    pub(super) fn drain_completions(&mut self, qp: &mut Qp) -> usize {
        let mut work = 0;
        loop {
            let completed = qp.sq.requester.as_mut().and_then(|r| r.poll_completed());
            if !qp.sq.nops.is_empty() {
                work += self.finish_nops(qp, completed.as_ref().map(|(completion, _)| completion.ticket));
            }
            let Some((completion, request)) = completed else { return work };
            work += 1;
            self.finish(qp, request, completion);
        }
    }

    /// Ends the NOPs before the message that just completed or, if none has, before the oldest. NOPs that
    /// nothing follows are not flushed here. Returns how many.
    #[cold]
    fn finish_nops(&mut self, qp: &mut Qp, completed: Option<Ticket>) -> usize {
        let finishes = qp.state.finishes_sends();
        let oldest = qp.sq.requester.as_ref().filter(|_| finishes).map(|r| r.oldest_ticket());
        let (end, mut work) = (completed.or(oldest), 0);
        while qp.sq.nops.front().is_some_and(|(ticket, _)| Some(*ticket) <= end) {
            let Some((_, nop)) = qp.sq.nops.pop_front() else { break };
            match finishes {
                true => self.complete_send(qp, &nop),
                false => self.fail_send_wqe(qp, nop.wqe, Status::Flushed, None),
            }
            self.wqe_fetch.pool.give(nop);
            work += 1;
        }
        work
    }

    fn finish(&mut self, qp: &mut Qp, mut request: Box<SendRequest>, completion: Completion) {
        let mut status = completion.status;
        if let (Status::Success, Some(old)) = (status, completion.atomic_old)
            && let Err(fault) = self.place_atomic(qp, &mut request, old)
        {
            (status, request.why) = (Status::LocalProtection, request.payload.why(fault));
        }
        match status {
            Status::Success => self.complete_send(qp, &request),
            status => {
                self.fail_send_wqe(qp, request.wqe, status, Some(&request));
                if status != Status::Flushed {
                    self.fail_sends(qp, request.wqe.index);
                }
            }
        }
        self.wqe_fetch.pool.give(request);
    }

    /// Puts an atomic's old value into the CQE or into memory.
    fn place_atomic(&mut self, qp: &Qp, request: &mut SendRequest, old: u64) -> Result<(), Fault> {
        let bytes = old.to_ne_bytes();
        if request.wqe.signalled && qp.sq.scatter >= bytes.len() {
            request.payload.inline.clear();
            request.payload.inline.extend_from_slice(&bytes);
            return Ok(());
        }
        if request.payload.revoked {
            return Err(Fault { addr: 0 });
        }
        let mut at = 0;
        request.payload.segments.iter().try_for_each(|segment| {
            let from = at;
            at = (at + segment.len as usize).min(bytes.len());
            self.host.memory.write(segment.addr, &bytes[from..at], false)
        })
    }
}

/// Performs a UMR, unless a fence or the queue's depth holds it.
fn perform_umr(mkeys: &mut Mkeys, qp: &mut Qp, request: &mut SendRequest) {
    let Kind::Umr(umr) = request.kind else { return };
    if !qp.sq.requester.as_ref().is_some_and(|r| r.can_post(Opcode::Send, request.wqe.fence)) {
        return;
    }
    request.kind = match mkeys.change_window(qp.pd, qp.qpn, &umr) {
        Ok(key) => {
            qp.responses.revoke(key);
            Kind::Nop
        }
        Err(why) => {
            request.why = why;
            // As behind any WQE that failed.
            qp.sq.stopped = true;
            Kind::Failed(Status::WindowBind)
        }
    };
}
