//! The requester's side of a QP: from the send queue to the carrier, and from replies to completions.
//!
//! In each step of a queue: time-outs, then new WQEs within a budget, then what the transport lets go, then completions in the
//! order of posting.

use roce::packet::{Deth, Trailer};
use roce::{Completion, Content, Fragment, Opcode, Packet, Position, Request, ServiceType, Status, Transmit};

use super::command::event_type;
use super::core::Core;
use super::fetch::Checks;
use super::mkey::Mkeys;
use super::qp::Qp;
use super::reason::{About, STALLED};
use super::route::{Route, Way};
use super::sq::{Kind, SendRequest};
use crate::carrier::{Carrier, Icrc, Unsent};
use crate::memory::Memory;

/// WQEs of one queue read in one poll, so that no queue starves the others.
const FETCH_BUDGET: usize = 32;

/// WQEs of one queue read and not completed: more than the transport's window, for NOPs between messages.
const MAX_OUTSTANDING: usize = 256;

/// Time-outs in a row that wait because replies of the peer are there and not read.
const MAX_ANSWER_HOLDS: u8 = 4;

/// How much of a message, or of an answer, the carrier has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Whole,
    Part,
    Nothing,
}

impl<M: Memory> Core<M> {
    /// Reads what was posted, and hands it to the transport.
    pub(super) fn post(&mut self, qp: &mut Qp) -> usize {
        let posted = qp.sq.posted(&self.host.memory);
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
        while work < FETCH_BUDGET && qp.sq.outstanding.len() < MAX_OUTSTANDING {
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
        // A reply of the peer that waits behind a round's budget may be the one; but not time after time: others' replies
        // must not keep a queue waiting for ever.
        let answers_wait = qp.sq.progress.answer_holds < MAX_ANSWER_HOLDS
            && qp.path.way.peer().is_some_and(|peer| link.replies_wait(peer));
        if on_its_way || qp.sq.progress.partial.is_some() || answers_wait {
            qp.sq.progress.answer_holds += u8::from(answers_wait);
            requester.hold_timer(self.host.now);
        }
        if requester.poll_timeout().is_some_and(|due| due <= self.host.now) {
            requester.handle_timeout(self.host.now);
            if requester.is_failed() && !self.host.counters.loses_on_demand() {
                let why = self.unreachable.explain_silence(&self.ports, link, qp);
                // All before it are done.
                if let Some(request) = qp.sq.outstanding.iter_mut().find(|request| request.is_message()) {
                    request.why = why;
                }
            }
        }
    }

    pub(super) fn transmit(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        let mut work = 0;
        link.sends(|| qp.sender(true));
        while self.schedule.hot.bytes_left > 0 {
            let next = match qp.sq.progress.partial.take() {
                Some(rest) => Some(rest),
                // Polled counts as sent for the transport; what the carrier has no room for waits as a part of nothing.
                None if link.has_request_room() => {
                    qp.sq.requester.as_mut().and_then(|requester| requester.poll_transmit(self.host.now))
                }
                None => None,
            };
            let Some(transmit) = next else { return work };
            let taken = self.send(link, qp, transmit);
            // A full ring is no work: the NIC may sleep until its peer has taken something.
            work += usize::from(taken != Taken::Nothing);
            if taken != Taken::Whole {
                qp.sq.progress.partial = Some(transmit);
                return work;
            }
        }
        work
    }

    /// Gives a message, or what is left of it, to the carrier.
    fn send(&mut self, link: &mut impl Carrier, qp: &mut Qp, transmit: Transmit) -> Taken {
        let Some(place) = qp.sq.find(transmit.ticket) else { return Taken::Whole };
        let (port, mtu) = (qp.path.port, qp.mtu_bytes());
        let request = &mut *qp.sq.outstanding[place];
        if request.payload.revoked {
            qp.sq.fail(transmit.ticket, Status::LocalProtection);
            return Taken::Whole;
        }
        request.request.psn = transmit.psn;
        request.request.ack_requested = transmit.ack_requested;
        let length = request.request.length;
        let carries_payload = request.request.opcode.carries_payload();
        if carries_payload {
            request.request.fragment = Fragment { offset: request.carried, length: length - request.carried };
        }
        let outcome = match request.way {
            // A datagram that leaves as a packet is complete then, since its payload was copied.
            Way::Wire(route) => {
                let request = &qp.sq.outstanding[place];
                match self.send_datagram(link, port, request, route, transmit) {
                    Err(Unsent::Full) => return Taken::Nothing,
                    Err(Unsent::Fault(_)) => qp.sq.fail(transmit.ticket, Status::LocalProtection),
                    Err(Unsent::Failed(syndrome)) => qp.sq.fail_on_demand(place, syndrome),
                    Ok(()) | Err(Unsent::Unreachable) => qp.sent(transmit.ticket),
                }
                return Taken::Whole;
            }
            Way::Nowhere => Err(Unsent::Unreachable),
            Way::Shared(..) => {
                let path = if qp.service == ServiceType::Ud { &request.path } else { &qp.path.address };
                link.send_request(&request.request, path, request.payload())
            }
        };
        match outcome {
            Ok(sent) => {
                if request.carried == 0 {
                    self.ports.count_sent(&mut self.host.counters, port, mtu, &request.request, transmit);
                }
                qp.sq.progress.last_sent = Some(sent.position);
                if carries_payload {
                    self.schedule.hot.copied(sent.carried, self.host.memory.has_lagged());
                }
                let carried = request.carried + sent.carried;
                let whole = carried >= length || !carries_payload;
                request.carried = if whole { 0 } else { carried };
                if !whole {
                    return Taken::Part;
                }
                qp.sent(transmit.ticket);
                Taken::Whole
            }
            Err(Unsent::Full) => Taken::Nothing,
            // Lost on the way.
            Err(Unsent::Unreachable) => {
                request.carried = 0;
                self.ports.count_sent(&mut self.host.counters, port, mtu, &request.request, transmit);
                self.host.counters.lost_unreachable += 1;
                if request.way == Way::Nowhere && qp.service == ServiceType::Ud {
                    self.unreachable.log_no_route(&mut self.host, &self.ports, qp.qpn, port, &request.path);
                }
                qp.sent(transmit.ticket);
                Taken::Whole
            }
            Err(Unsent::Fault(_)) => {
                request.carried = 0;
                qp.sq.fail(transmit.ticket, Status::LocalProtection);
                Taken::Whole
            }
            Err(Unsent::Failed(syndrome)) => {
                qp.sq.fail_on_demand(place, syndrome);
                Taken::Whole
            }
        }
    }

    /// A datagram as its one packet. Errors: no room now, or its payload cannot be read; nothing was sent then.
    fn send_datagram(
        &mut self,
        link: &mut impl Carrier,
        port: usize,
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
        let fill = |out: &mut [u8]| request.read(&self.host.memory, 0, out);
        let taken = link.send_packet(route.from, route.to, &packet, Icrc::Right, fill);
        if let Err(error @ (Unsent::Full | Unsent::Fault(_) | Unsent::Failed(_))) = taken {
            return Err(error);
        }
        let counters = &mut self.host.counters;
        self.ports.count_packet(counters, port, route.to, &taken, &packet, transmit.retransmission);
        Ok(())
    }

    /// Completes what is done, in the order of posting.
    pub(super) fn drain_completions(&mut self, qp: &mut Qp) -> usize {
        let mut work = 0;
        loop {
            while qp.sq.outstanding.front().is_some_and(|request| request.kind == Kind::Nop)
                && qp.state.finishes_sends()
            {
                let Some(request) = qp.sq.outstanding.pop_front() else { break };
                self.complete_send(qp, &request);
                self.wqe_fetch.pool.give(request);
                work += 1;
            }
            let Some(completion) = qp.sq.requester.as_mut().and_then(|r| r.poll_completion()) else {
                return work;
            };
            work += 1;
            // NOPs in front of a message that was flushed.
            while let Some(request) = qp.sq.outstanding.pop_front() {
                let nop = request.kind == Kind::Nop;
                if nop {
                    self.fail_send_wqe(qp, request.wqe, Status::Flushed, None);
                } else {
                    debug_assert_eq!(request.ticket, completion.ticket);
                    self.finish(qp, request, completion);
                    break;
                }
                self.wqe_fetch.pool.give(request);
            }
        }
    }

    fn finish(&mut self, qp: &mut Qp, mut request: Box<SendRequest>, completion: Completion) {
        let mut status = completion.status;
        if let (Status::Success, Some(old)) = (status, completion.atomic_old)
            && !self.place_atomic(qp, &mut request, old)
        {
            status = Status::LocalProtection;
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

    /// Puts an atomic's old value into the CQE or into memory. False: the memory cannot be written.
    fn place_atomic(&mut self, qp: &Qp, request: &mut SendRequest, old: u64) -> bool {
        let bytes = old.to_ne_bytes();
        if request.wqe.signalled && qp.sq.scatter >= bytes.len() {
            request.payload.inline.clear();
            request.payload.inline.extend_from_slice(&bytes);
            return true;
        }
        let mut at = 0;
        !request.payload.revoked
            && request.payload.segments.iter().all(|segment| {
                let end = (at + segment.len as usize).min(bytes.len());
                let written = self.host.memory.write(segment.addr, &bytes[at..end], false);
                at = end;
                written.is_ok()
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
