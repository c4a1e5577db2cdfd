//! The requester's side of a QP: from the send queue to the carrier, and from replies to completions.
//!
//! One [`Core::step`] a poll and queue: time-outs, then new WQEs within a budget, then what the transport lets go, then
//! completions in the order of posting.

use mlx5_layout::doorbell::counter_of;
use roce::qp_state::QpState;
use roce::{Completion, Opcode, PostedMessage, Request, ServiceType, Status, Ticket, Transmit};

use super::command::event_type;
use super::core::Core;
use super::qp::Qp;
use super::route::Route;
use super::schedule::Schedule;
use super::sq::{Kind, SendRequest};
use super::wire;
use crate::carrier::{Carrier, Payload, Unsent};
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

/// What the record and the register of a send queue say now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    /// The record, from its one read; none: it cannot be read.
    record: Option<u16>,
    /// Blocks that may be executed.
    pub available: u16,
    /// Record and register agree.
    agree: bool,
    /// The record is further ahead than the ring is long.
    range: bool,
}

impl<M: Memory> Core<M> {
    /// Moves one queue on. Returns how much was done.
    pub(super) fn step(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        let mut work = 0;
        if qp.state.finishes_sends() {
            if !qp.sq.outstanding.is_empty() {
                self.run_timers(link, qp);
            }
            if qp.state.starts_sends() {
                work += self.post(qp);
            }
            if !qp.sq.outstanding.is_empty() && !owes_acknowledgement(qp) {
                work += self.transmit(link, qp);
            }
        }
        // The transport knows of nothing that is not outstanding here: the common look at a quiet queue ends soon.
        if !qp.sq.outstanding.is_empty() {
            work += self.drain_completions(qp);
        }
        if qp.state.flushes_sends() {
            work += self.flush_sends(qp);
        }
        if qp.state.flushes_receives() {
            work += self.flush_receives(qp);
        }
        if qp.drain_event && qp.state == QpState::Sqd && qp.sq.outstanding.is_empty() {
            qp.drain_event = false;
            self.raise(qp, event_type::SQ_DRAINED);
        }
        if work > 0 {
            qp.active = self.now;
        }
        work
    }

    /// Whether the queue has to be looked at in every poll.
    pub(super) fn stays_hot(&self, qp: &Qp) -> bool {
        !qp.sq.outstanding.is_empty()
            || qp.sq.held.is_some()
            || qp.sq.doorbell.is_watched()
            || qp.drain_event
            || !Schedule::has_cooled(qp, self.now)
    }

    /// Whether something was posted since the queue was looked at last: for the background walk.
    pub(super) fn is_ready(&self, qp: &Qp) -> bool {
        let sends = qp.sq.blocks > 0
            && (qp.state.starts_sends() || qp.state.flushes_sends())
            && self
                .record(qp)
                .is_some_and(|posted| posted != qp.sq.fetched && !qp.sq.doorbell.is_stuck(posted));
        sends || (qp.state.flushes_receives() && qp.rq.available(&self.memory) > 0)
    }

    /// The send word of the record.
    pub(super) fn record(&self, qp: &Qp) -> Option<u16> {
        self.memory.load32(qp.sq.record).ok().map(|word| counter_of(word.to_ne_bytes()))
    }

    pub(super) fn posted(&self, qp: &Qp) -> Posted {
        let record = if qp.sq.blocks == 0 { None } else { self.record(qp) };
        let Some(index) = record else {
            return Posted { record, available: 0, agree: true, range: false };
        };
        let ahead = qp.sq.distance(index);
        if u32::from(ahead) > qp.sq.blocks {
            return Posted { record, available: 0, agree: false, range: true };
        }
        let available = qp.sq.distance(qp.sq.doorbell.limit(qp.sq.fetched, index));
        Posted { record, available, agree: available == ahead, range: false }
    }

    // New work.

    fn post(&mut self, qp: &mut Qp) -> usize {
        let posted = self.posted(qp);
        if qp.sq.blocks > 0 && posted.record.is_none() {
            // A card that cannot read the record has lost the queue.
            let qpn = qp.qpn;
            self.log.line(&format!(
                "softnic: QP {qpn:#x}: its doorbell record cannot be read; the QP is in error"
            ));
            self.raise(qp, event_type::QP_FATAL);
            self.fail_qp(qp);
            return 1;
        }
        self.watch_doorbell(qp, posted);
        let end = qp.sq.fetched.wrapping_add(posted.available);
        let mut work = 0;
        if posted.available > 0 && qp.sq.doorbell.unchecked && self.options.strict {
            self.counters.doorbells_unchecked += 1;
        }
        while work < FETCH_BUDGET && qp.sq.outstanding.len() < MAX_OUTSTANDING {
            let mut request = match qp.sq.held.take() {
                Some(request) => request,
                None if qp.sq.stopped || qp.sq.fetched == end => break,
                None => {
                    work += 1;
                    self.fetch(qp, qp.sq.distance(end))
                }
            };
            self.work_on_window(qp, &mut request);
            if let Some(held) = hand_over(qp, request) {
                qp.sq.held = Some(held);
                break;
            }
        }
        work
    }

    /// Compares record and register; after [`super::doorbell::GRACE_NS`] of disagreement that no thread without a core
    /// excuses, says so.
    pub(super) fn watch_doorbell(&mut self, qp: &mut Qp, posted: Posted) {
        if posted.agree {
            return qp.sq.doorbell.agrees();
        }
        if !posted.range && qp.sq.doorbell.is_overdue(self.now) && !self.is_provable(qp) {
            // Its register may have been rung and hidden by another queue's write.
            qp.sq.doorbell.unchecked = true;
            self.note_unchecked(qp);
            return;
        }
        let doorbell = &mut qp.sq.doorbell;
        let stray = self.uars.get(doorbell.page).is_some_and(|uar| uar.stray);
        let (now, threads) = (self.now, &mut self.threads);
        let look = || threads.look(now);
        let Some(violation) = doorbell.watch(now, posted.range, stray, look) else { return };
        if let Some(uar) = self.uars.get_mut(qp.sq.doorbell.page) {
            uar.stray = false;
        }
        self.counters.violate(violation);
        qp.sq.doorbell.stuck(posted.record);
        self.raise(qp, event_type::QP_REQ_ERR);
        let (qpn, what) = (qp.qpn, violation.sentence());
        self.log
            .line(&format!("softnic: QP {qpn:#x}: {what} for 10 ms or more; a card would not execute this"));
    }

    /// A lost write can only have been hidden by another queue's on the same register: if this queue's register is known, or
    /// no other queue on the page was ever seen to ring, nothing was hidden.
    fn is_provable(&self, qp: &Qp) -> bool {
        let Some(uar) = self.uars.get(qp.sq.doorbell.page) else { return false };
        qp.sq.doorbell.register.is_some() || uar.rang.iter().all(|(place, _)| *place == qp.place)
    }

    /// Counts a queue whose doorbells cannot be checked, once. The first is a line: programs have dozens of them.
    pub(super) fn note_unchecked(&mut self, qp: &mut Qp) {
        if !self.options.strict || std::mem::replace(&mut qp.sq.doorbell.noted, true) {
            return;
        }
        self.counters.doorbells_unchecked_queues += 1;
        if self.counters.doorbells_unchecked_queues == 1 {
            let qpn = qp.qpn;
            self.log.line(&format!(
                "softnic: QP {qpn:#x} shares its doorbell register: such queues are executed by their records, their doorbells not \
                 checked (said once, counted in doorbells_unchecked_queues)"
            ));
        }
    }

    // Transmission.

    fn run_timers(&mut self, link: &mut impl Carrier, qp: &mut Qp) {
        let Some(requester) = &mut qp.requester else { return };
        if requester.poll_timeout().is_none_or(|due| due > self.now) {
            return;
        }
        let on_its_way = match (qp.peer, qp.sq.last_sent) {
            (Some(peer), Some(position)) => !link.consumed(peer, position),
            _ => false,
        };
        // A reply of the peer that waits behind a round's budget may be the one; but not time after time: others' replies
        // must not keep a queue waiting for ever.
        let answers_wait =
            qp.sq.answer_holds < MAX_ANSWER_HOLDS && qp.peer.is_some_and(|peer| link.replies_wait(peer));
        if on_its_way || qp.sq.partial.is_some() || answers_wait {
            qp.sq.answer_holds += u8::from(answers_wait);
            requester.hold_timer(self.now);
        }
        if requester.poll_timeout().is_some_and(|due| due <= self.now) {
            requester.handle_timeout(self.now);
            if requester.is_failed() {
                self.say_unanswered(link, qp);
            }
        }
    }

    fn transmit(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        if let Some(route) = qp.route {
            let sent = self.transmit_packets(link, qp, route);
            return sent + if sent > 0 { self.acknowledge_along(link, qp, route) } else { 0 };
        }
        let mut work = 0;
        while self.schedule.hot.bytes_left > 0 {
            let begun = qp.sq.partial.is_some();
            let next = match qp.sq.partial.take() {
                Some(rest) => Some(rest),
                // Polled counts as sent for the transport; what the carrier has no room for waits as a part of nothing.
                None if self.shapers[qp.port].allows(self.now)
                    && (self.faults.is_none() || self.keeps_pace()) =>
                {
                    qp.requester.as_mut().and_then(|requester| requester.poll_transmit(self.now))
                }
                None => None,
            };
            let Some(transmit) = next else { return work };
            if self.faults.is_some() && !begun && self.befalls(qp, transmit) {
                work += 1;
                continue;
            }
            let taken = self.send(link, qp, transmit);
            // A full ring is no work: the NIC may sleep until its peer has taken something.
            work += usize::from(taken != Taken::Nothing);
            if taken != Taken::Whole {
                qp.sq.partial = Some(transmit);
                return work;
            }
        }
        work
    }

    /// Gives a message, or what is left of it, to the carrier.
    fn send(&mut self, link: &mut impl Carrier, qp: &mut Qp, transmit: Transmit) -> Taken {
        let Some(place) = qp.sq.find(transmit.ticket) else { return Taken::Whole };
        let (port, mtu) = (qp.port, qp.mtu_bytes());
        let request = &mut *qp.sq.outstanding[place];
        let mut fail = || {
            if let Some(requester) = &mut qp.requester {
                requester.fail(transmit.ticket, Status::LocalProtection);
            }
            Taken::Whole
        };
        if request.revoked {
            return fail();
        }
        request.request.psn = transmit.psn;
        request.request.ack_requested = transmit.ack_requested;
        if let Some(route) = request.route {
            return self.send_datagram_of(link, qp, place, route, transmit);
        }
        if request.unreachable {
            // No process has that address: lost on the way.
            self.count_sent(port, mtu, &request.request, transmit);
            self.counters.lost_unreachable += 1;
            if qp.service == ServiceType::Ud {
                self.say_no_way(qp.qpn, port, &request.path);
            }
            self.sent(qp, transmit.ticket);
            return Taken::Whole;
        }
        let length = request.request.length;
        let carries_payload = request.request.opcode.carries_payload();
        if carries_payload {
            request.request.fragment =
                roce::Fragment { offset: request.carried, length: length - request.carried };
        }
        let path = if qp.service == ServiceType::Ud { &request.path } else { &qp.path };
        let outcome = link.send_request(&request.request, path, payload_of(request));
        match outcome {
            Ok(sent) => {
                if request.carried == 0 {
                    self.count_sent(port, mtu, &request.request, transmit);
                }
                qp.sq.last_sent = Some(sent.position);
                if carries_payload {
                    self.schedule.hot.copied(sent.carried, self.memory.has_lagged());
                }
                let carried = request.carried + sent.carried;
                let whole = carried >= length || !carries_payload;
                request.carried = if whole { 0 } else { carried };
                if !whole {
                    return Taken::Part;
                }
                self.sent(qp, transmit.ticket);
                Taken::Whole
            }
            Err(Unsent::Full) => Taken::Nothing,
            Err(Unsent::NoWay) => {
                request.carried = 0;
                self.count_sent(port, mtu, &request.request, transmit);
                self.counters.lost_unreachable += 1;
                self.sent(qp, transmit.ticket);
                Taken::Whole
            }
            Err(Unsent::Fault(_)) => {
                request.carried = 0;
                fail()
            }
        }
    }

    /// A datagram that leaves as a packet; complete then, since its payload was copied.
    fn send_datagram_of(
        &mut self,
        link: &mut impl Carrier,
        qp: &mut Qp,
        place: usize,
        route: Route,
        transmit: Transmit,
    ) -> Taken {
        match self.send_datagram(link, qp.port, &qp.sq.outstanding[place], route, transmit) {
            Err(Unsent::Full) => return Taken::Nothing,
            Err(Unsent::Fault(_)) => {
                if let Some(requester) = &mut qp.requester {
                    requester.fail(transmit.ticket, Status::LocalProtection);
                }
            }
            Ok(()) | Err(Unsent::NoWay) => self.sent(qp, transmit.ticket),
        }
        Taken::Whole
    }

    #[inline(always)]
    pub(super) fn count_sent(&mut self, port: usize, mtu: u32, request: &Request, transmit: Transmit) {
        let (layer, length) = (self.ports[port].link_layer, request.length);
        let wire = wire::request_bytes(layer, request.service, request.opcode, length, mtu);
        self.shapers[port].spend(wire);
        self.counters.wire_bytes_sent += wire;
        self.port_counters[port].wire_bytes_sent += wire;
        if transmit.retransmission {
            self.counters.retransmissions += 1;
        } else {
            self.counters.messages_sent += 1;
            self.port_counters[port].messages_sent += 1;
            self.counters.bytes_sent += if request.opcode.carries_payload() { u64::from(length) } else { 0 };
        }
    }

    /// The link has the whole message, or it is lost. An unreliable queue's is complete then: its memory was copied.
    pub(super) fn sent(&mut self, qp: &mut Qp, ticket: Ticket) {
        if qp.service != ServiceType::Rc
            && let Some(requester) = &mut qp.requester
        {
            requester.link_consumed(ticket);
        }
    }

    // Completions.

    /// Completes what is done, in the order of posting.
    pub(super) fn drain_completions(&mut self, qp: &mut Qp) -> usize {
        let mut work = 0;
        loop {
            while qp.state.finishes_sends()
                && qp.sq.outstanding.front().is_some_and(|request| request.kind == Kind::Nop)
            {
                let Some(request) = qp.sq.outstanding.pop_front() else { break };
                self.complete_send(qp, &request);
                self.pool.give(request);
                work += 1;
            }
            let Some(completion) = qp.requester.as_mut().and_then(|r| r.poll_completion()) else {
                return work;
            };
            work += 1;
            // NOPs in front of a message that was flushed.
            while let Some(request) = qp.sq.outstanding.pop_front() {
                let nop = request.kind == Kind::Nop;
                if nop {
                    self.fail_send_wqe(qp, request.wqe_index, request.opcode, Status::Flushed);
                } else {
                    debug_assert_eq!(request.ticket, completion.ticket);
                    self.finish(qp, request, completion);
                    break;
                }
                self.pool.give(request);
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
                self.fail_send_wqe(qp, request.wqe_index, request.opcode, status);
                if status != Status::Flushed {
                    self.fail_sends(qp);
                }
            }
        }
        self.pool.give(request);
    }

    /// Puts an atomic's old value into the CQE or into memory. False: the memory cannot be written.
    fn place_atomic(&mut self, qp: &Qp, request: &mut SendRequest, old: u64) -> bool {
        let bytes = old.to_ne_bytes();
        if request.signalled && qp.requester_scatter >= bytes.len() {
            request.inline.clear();
            request.inline.extend_from_slice(&bytes);
            return true;
        }
        let mut at = 0;
        !request.revoked
            && request.segments.iter().all(|segment| {
                let end = (at + segment.len as usize).min(bytes.len());
                let written = self.memory.write(segment.addr, &bytes[at..end], false);
                at = end;
                written.is_ok()
            })
    }
}

/// What it owes goes first: a message must not overtake the acknowledgement of the one that it answers, not even while the
/// channel back to a new peer is being opened. But requester and responder of a queue are independent: READ answers, which
/// may be long, keep no message waiting. On the wire each side has its turn in every round.
fn owes_acknowledgement(qp: &Qp) -> bool {
    qp.replying && qp.route.is_none() && qp.answers.is_empty()
}

/// Hands a WQE to the transport; gives it back when a fence or a depth holds it.
fn hand_over(qp: &mut Qp, mut request: Box<SendRequest>) -> Option<Box<SendRequest>> {
    let requester = qp.requester.as_mut()?;
    let opcode = request.request.opcode;
    request.ticket = match request.kind {
        Kind::Nop => requester.next_ticket(),
        Kind::Window(_) => return Some(request),
        Kind::Failed(status) => requester.post_failed(Opcode::Send, status),
        Kind::Message if !requester.can_post(opcode, request.fence) => return Some(request),
        Kind::Message => {
            let message = PostedMessage { opcode, length: request.request.length, fence: request.fence };
            requester.post(message)
        }
    };
    qp.sq.outstanding.push_back(request);
    None
}

fn payload_of(request: &SendRequest) -> Payload<'_> {
    match request.segments.as_slice() {
        [] => Payload::Nothing,
        // Only what carries a payload has it inline.
        _ if request.keys.is_empty() => Payload::Inline(&request.inline),
        _ if request.request.opcode.is_atomic() => Payload::Nothing,
        segments => Payload::Segments(segments),
    }
}
