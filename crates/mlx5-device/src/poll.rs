//! One round of the NIC: arrivals, replies, doorbells, queues that move, the background walk.

use core::net::IpAddr;

use roce::qp_state::QpState;
use roce::wire::{Gid, ip_of};
use roce::{Now, Packet, Responder, ServiceType};

use super::command::event_type;
use super::core::Core;
use super::qp::Qp;
use super::qps::Qps;
use super::route::Route;
use super::sq::Stall;
use crate::carrier::{Carrier, Disposition, Inbound};
use crate::memory::Memory;

/// What one step of a queue did.
struct StepResult {
    done: usize,
    /// It has something to send still.
    waits: bool,
    stays_hot: bool,
}

impl<M: Memory> Core<M> {
    /// One round; `budget` bounds the arrivals. Returns how much was done: 0 means that nothing moved.
    pub(super) fn poll(&mut self, link: &mut impl Carrier, qps: &mut Qps, now: Now, budget: usize) -> usize {
        // A clock that steps back must not make time-outs wait for it to come round.
        self.host.now = self.host.now.max(now);
        self.schedule.round += 1;
        let mut work =
            link.poll_rings(self.host.now, budget, |packet, inbound| self.arrive(qps, packet, inbound));
        if self.asks_the_wire(qps) {
            work += link.poll_wire(self.host.now, |packet, inbound| self.arrive(qps, packet, inbound));
        }
        while let Some(event) = link.poll_event() {
            self.host.log_line(&event);
        }
        // Replies before new requests, as a card's acknowledgement precedes its program's next message. Where
        // the kernel has no room for both, they take turns to be first.
        if link.has_packets_waiting() && self.schedule.round & 1 == 1 {
            work += self.poll_hot(link, qps);
            work += self.send_replies(link, qps);
        } else {
            work += self.send_replies(link, qps);
            work += self.poll_hot(link, qps);
        }
        if self.schedule.background_is_due(self.host.now) {
            work += self.poll_background(link, qps);
            self.cqs.rescan(&mut self.host);
        }
        if !self.cqs.dead.is_empty() || !self.srqs.dead.is_empty() {
            self.fail_users(qps);
        }
        link.ring_bells();
        work
    }

    /// A rung message leaves before the kernel is asked for arrivals. Asking takes half as long as sending,
    /// and a program that has just answered an arrival expects little. But not twice in a row.
    fn asks_the_wire(&mut self, qps: &Qps) -> bool {
        /// Looks at registers that cost nothing beside a call to the kernel.
        const FEW: usize = 4;
        let is_rung = |place: &u32| qps.get(*place).is_some_and(|qp| self.uars.is_rung(qp.sq.doorbell.page));
        let passes = self.ports.wire
            && self.schedule.asked_wire
            && self.schedule.hot.list.iter().take(FEW).any(is_rung);
        self.schedule.asked_wire = !passes;
        !passes
    }

    fn poll_hot(&mut self, link: &mut impl Carrier, qps: &mut Qps) -> usize {
        let mut work = 0;
        // A full ring must not always leave the same queues waiting.
        self.schedule.hot.begin(self.ports.wire);
        let mut at = 0;
        // The list may grow at its end while a register write heats another queue; that one is looked at too.
        while let Some(place) = self.schedule.hot.list.get(at).copied() {
            let (now, round) = (self.host.now, self.schedule.round);
            let page = qps.get(place).map(|qp| (qp.sq.doorbell.page, !qp.sq.is_idle()));
            if let Some((page, _)) =
                page.filter(|(page, busy)| self.uars.is_rung_now(*page, round, now, *busy))
            {
                if let Some(qp) = qps.get(place).filter(|qp| qp.sq.ring.entries > 0) {
                    // What the driver wrote before it rang comes along while the register is taken.
                    self.host.memory.prefetch(qp.sq.ring.record);
                    self.host.memory.prefetch(qp.sq.ring.entry(qp.sq.fetched));
                }
                work += self.take_page(qps, page);
            }
            let Some(StepResult { done, waits, stays_hot }) = self.run_qp(link, qps, place) else {
                self.schedule.hot.list.swap_remove(at);
                continue;
            };
            work += done;
            self.schedule.hot.note(at, done, waits || self.schedule.hot.bytes_left == 0);
            if stays_hot {
                at += 1;
            } else {
                qps.cool(place);
                self.schedule.hot.list.swap_remove(at);
            }
        }
        work
    }

    /// One step of a queue. Memory windows that it closed are revoked at the other queues before they run.
    fn run_qp(&mut self, link: &mut impl Carrier, qps: &mut Qps, place: u32) -> Option<StepResult> {
        let qp = qps.get_mut(place)?;
        let done = self.step(link, qp);
        let waits =
            qp.sq.progress.stalled == Some(Stall::Room) || !qp.sq.is_idle() && !link.has_request_room();
        let result = StepResult { done, waits, stays_hot: qp.stays_hot(self.host.now) };
        qps.revoke_closed(&mut self.mkeys);
        Some(result)
    }

    fn poll_background(&mut self, link: &mut impl Carrier, qps: &mut Qps) -> usize {
        let mut work = 0;
        for page in self.uars.background(self.host.now) {
            if self.uars.is_rung_now(page, self.schedule.round, self.host.now, false) {
                work += self.take_page(qps, page);
            }
        }
        let hot = self.schedule.hot.list.len();
        let mut found = std::mem::take(&mut self.schedule.found);
        for places in self.schedule.queues.places(self.host.now, qps.bound()) {
            qps.scan(&self.host.memory, places, &mut found);
        }
        for place in found.drain(..) {
            let Some(qp) = qps.get_mut(place) else { continue };
            if !qp.sched.hot && qp.is_ready(&self.host.memory) {
                self.schedule.heat(&mut qp.sched, self.host.now);
            }
        }
        self.schedule.found = found;
        // What was found is worked on at once: a thread that sleeps between rounds may sleep long.
        for at in hot..self.schedule.hot.list.len() {
            let place = self.schedule.hot.list.get(at).copied();
            work += place.and_then(|place| self.run_qp(link, qps, place)).map_or(0, |result| 1 + result.done);
        }
        work
    }

    /// Timers, new WQEs, packets, completions and flushing of one queue. Returns how much was done.
    fn step(&mut self, link: &mut impl Carrier, qp: &mut Qp) -> usize {
        let mut work = 0;
        if qp.state.finishes_sends() {
            if !qp.sq.is_idle() {
                self.run_timers(link, qp);
            }
            if qp.state.starts_sends() {
                work += self.post(qp);
            }
            if !qp.sq.is_idle() && !owes_acknowledgement(qp) {
                work += self.transmit(link, qp);
            }
        }
        // Nothing is outstanding in most looks: they end here.
        if !qp.sq.is_idle() {
            work += self.drain_completions(qp);
        }
        if qp.state.flushes_sends() {
            work += self.flush_sends(qp);
        }
        if qp.state.flushes_receives() {
            work += self.flush_receives(qp);
        }
        if qp.sq.drain_event && qp.state == QpState::Sqd && qp.sq.is_idle() {
            qp.sq.drain_event = false;
            qp.event_target.raise(&mut self.host, event_type::SQ_DRAINED);
        }
        if work > 0 {
            qp.sched.active = self.host.now;
        }
        work
    }

    /// Takes what the carrier offers.
    fn arrive(&mut self, qps: &mut Qps, packet: &Packet, inbound: &mut impl Inbound) -> Disposition {
        let (is_request, addresses) = (packet.content.is_request(), inbound.addressing().addresses);
        match (qps.numbered_mut(packet.dst_qpn), addresses) {
            (None, None) if !is_request => self.host.counters.dropped_replies += 1,
            (None, _) => self.host.counters.dropped_unknown_qp += 1,
            (Some(qp), Some((from, at))) if !self.is_peer(qp, from, at) => {
                self.host.counters.dropped_address += 1;
            }
            (Some(qp), _) if inbound.is_dropped_at(qp.path.port) => {
                self.ports.drop_at(&mut self.host.counters, qp.path.port);
            }
            // Its peer is on the wire: another process says this.
            (Some(qp), None) if qp.path.way.route().is_some() => {
                let counters = &mut self.host.counters;
                *if is_request { &mut counters.dropped_peer } else { &mut counters.dropped_replies } += 1;
            }
            (Some(qp), None)
                if is_request
                    && inbound.addressing().to_port != Some(self.ports.configs[qp.path.port].port) =>
            {
                // It reached another port of the device, where this queue is not.
                self.host.counters.dropped_address += 1;
            }
            (Some(qp), _) if is_request => self.respond(qp, packet, inbound),
            (Some(qp), _) => self.take_answer(qp, packet, inbound),
        }
        if self.host.memory.has_lagged() { Disposition::ConsumedLate } else { Disposition::Consumed }
    }

    /// Whether packets between these addresses are a queue's: from its peer, and at an address of its port.
    fn is_peer(&self, qp: &Qp, from: IpAddr, at: IpAddr) -> bool {
        let gids = &self.ports.configs[qp.path.port].gids;
        (qp.service == ServiceType::Ud || qp.path.way.route() == Some(Route { from: at, to: from }))
            && gids.iter().any(|entry| ip_of(Gid(entry.gid)) == Some(at))
    }

    /// Sends the replies of all queues that have some. Returns how many.
    fn send_replies(&mut self, link: &mut impl Carrier, qps: &mut Qps) -> usize {
        let mut sent = 0;
        // A full ring, or a kernel that takes no more packets, must not always leave the same ones waiting.
        self.schedule.replying.begin(self.ports.wire);
        let mut at = 0;
        while let Some(place) = self.schedule.replying.list.get(at).copied() {
            let Some(qp) = qps.get_mut(place) else {
                self.schedule.replying.list.swap_remove(at);
                continue;
            };
            let (count, more) = self.send_replies_of(link, qp, false);
            sent += count;
            qp.sched.replying = more;
            self.schedule.replying.note(at, count, more);
            if more {
                at += 1;
            } else {
                self.schedule.replying.list.swap_remove(at);
            }
        }
        sent
    }

    /// Takes the register writes of a page, whenever it was looked at last.
    pub(super) fn poll_page(&mut self, qps: &mut Qps, page: u32) -> usize {
        if self.uars.is_rung(page) { self.take_page(qps, page) } else { 0 }
    }

    fn take_page(&mut self, qps: &mut Qps, page: u32) -> usize {
        self.uars.take(&mut self.host, qps, &mut self.schedule, page)
    }

    /// CQs or shared receive queues failed: the queues that use them fail as well.
    #[cold]
    fn fail_users(&mut self, qps: &mut Qps) {
        while let Some(cq) = self.cqs.dead.pop() {
            let is_dead = self.cqs.is_dead(cq);
            for qp in qps.iter_mut().filter(|qp| is_dead && (qp.sq.cq == cq || qp.rq.cq == cq)) {
                self.fail_qp(qp, "its CQ failed");
            }
        }
        while let Some(srq) = self.srqs.dead.pop() {
            let is_dead = self.srqs.is_dead(srq);
            for qp in qps.iter_mut().filter(|qp| is_dead && qp.rq.srq == Some(srq)) {
                qp.event_target.raise(&mut self.host, event_type::QP_FATAL);
                self.fail_qp(qp, "its SRQ failed");
            }
        }
    }
}

/// What it owes goes first: a message must not overtake the acknowledgement of the one it answers, even while
/// the channel to a new peer is being opened. But requester and responder of a queue are independent: READ
/// answers, which may be long, delay no message. On the wire every round polls both.
fn owes_acknowledgement(qp: &Qp) -> bool {
    let owes_a_read = || qp.responses.responder.as_ref().is_some_and(Responder::owes_a_read);
    qp.sched.replying && qp.path.way.route().is_none() && !owes_a_read()
}
