//! One round of the NIC: arrivals, replies, doorbells, queues that move, the background walk.

use mlx5_layout::doorbell::Doorbell;
use roce::Now;

use super::core::Core;
use super::qp::Qp;
use super::qpn::Qps;
use super::uar::{Uar, UarKind};
use crate::carrier::Carrier;
use crate::memory::Memory;

impl<M: Memory> Core<M> {
    /// One round; `budget` bounds the arrivals. Returns how much was done: 0 means that nothing moved.
    pub(super) fn poll(&mut self, link: &mut impl Carrier, qps: &mut Qps, now: Now, budget: usize) -> usize {
        // A clock that steps back must not make time-outs wait for it to come round.
        self.now = self.now.max(now);
        self.schedule.round += 1;
        let mut work =
            link.poll_rings(self.now, budget, |message, inbound| self.arrive(qps, message, inbound));
        if self.asks_the_wire(qps) {
            work += link.poll_wire(self.now, |message, inbound| self.arrive(qps, message, inbound));
        }
        while let Some(event) = link.poll_event() {
            self.log.line(&format!("softnic: {event}"));
        }
        // Replies before new requests, as a card's acknowledgement goes before what its program sends next. Where the kernel has no
        // room for all, the first one gets what there is: each in turn.
        if link.has_packets_waiting() && self.schedule.round & 1 == 1 {
            work += self.poll_hot(link, qps);
            work += self.send_replies(link, qps);
        } else {
            work += self.send_replies(link, qps);
            work += self.poll_hot(link, qps);
        }
        if self.schedule.background_is_due(self.now) {
            work += self.poll_background(link, qps);
            self.rescan_channels();
        }
        while let Some((place, cqn)) = self.dead_cqs.pop() {
            // Its place may have gone to another CQ since.
            if self.cqs.get(place).is_some_and(|cq| cq.cqn == cqn) {
                self.fail_users(qps, place);
            }
        }
        while let Some((place, srqn)) = self.dead_srqs.pop() {
            if self.srqs.get(place).is_some_and(|srq| srq.srqn == srqn) {
                self.fail_takers(qps, place);
            }
        }
        link.ring_bells();
        work
    }

    /// A message that was rung for leaves before the kernel is asked what has come: that takes half as long as to send it, and a
    /// program that answers what came a moment ago has little to expect. But not twice in a row.
    fn asks_the_wire(&mut self, qps: &Qps) -> bool {
        /// Looks at registers that cost nothing beside a call to the kernel.
        const FEW: usize = 4;
        let is_rung = |place: &u32| {
            let page = qps.get(*place).map(|qp| qp.sq.doorbell.page);
            page.and_then(|page| self.uars.get(page)).is_some_and(Uar::is_rung)
        };
        let passes = self.options.wire
            && self.schedule.asked_wire
            && self.schedule.hot.list.iter().take(FEW).any(is_rung);
        self.schedule.asked_wire = !passes;
        !passes
    }

    fn poll_hot(&mut self, link: &mut impl Carrier, qps: &mut Qps) -> usize {
        let mut work = 0;
        // A full ring must not always leave the same queues waiting.
        self.schedule.hot.begin(self.options.wire);
        let mut at = 0;
        // The list may grow at its end while a register write heats another queue; that one is looked at too.
        while let Some(place) = self.schedule.hot.list.get(at).copied() {
            let page = qps.get(place).map(|qp| qp.sq.doorbell.page);
            if let Some(page) = page.filter(|page| self.is_rung_now(*page)) {
                if let Some(qp) = qps.get(place).filter(|qp| qp.sq.blocks > 0) {
                    // What the driver wrote before it rang comes along while the register is taken.
                    self.memory.prefetch(qp.sq.record);
                    self.memory.prefetch(qp.sq.block(qp.sq.fetched));
                }
                work += self.take_page(qps, page);
            }
            let Some(qp) = qps.get_mut(place) else {
                self.schedule.hot.list.swap_remove(at);
                continue;
            };
            let done = self.step(link, qp);
            work += done;
            let waits = qp.sq.partial.is_some() || self.schedule.hot.bytes_left == 0;
            self.schedule.hot.note(at, done, waits);
            if self.stays_hot(qp) {
                at += 1;
            } else {
                qps.cool(place);
                self.schedule.hot.list.swap_remove(at);
            }
            self.revoke_closed(qps);
        }
        work
    }

    fn poll_background(&mut self, link: &mut impl Carrier, qps: &mut Qps) -> usize {
        let mut work = 0;
        for page in self.schedule.pages(self.now, self.uars.bound()) {
            if self.is_rung_now(page) {
                work += self.take_page(qps, page);
            }
        }
        let hot = self.schedule.hot.list.len();
        let mut found = std::mem::take(&mut self.schedule.found);
        for places in self.schedule.queues(self.now, qps.bound()) {
            qps.scan(&self.memory, places, &mut found);
        }
        for place in found.drain(..) {
            let Some(qp) = qps.get_mut(place) else { continue };
            if !qp.hot && self.is_ready(qp) {
                self.schedule.heat(qp, self.now);
            }
        }
        self.schedule.found = found;
        // What was found is worked on at once: a thread that sleeps between rounds may sleep long.
        for at in hot..self.schedule.hot.list.len() {
            let place = self.schedule.hot.list.get(at).copied();
            let Some(qp) = place.and_then(|place| qps.get_mut(place)) else { continue };
            work += 1 + self.step(link, qp);
            self.revoke_closed(qps);
        }
        work
    }

    /// Whether a page has something to take that was not looked for in this round; the round has looked then.
    fn is_rung_now(&mut self, page: u32) -> bool {
        let round = self.schedule.round;
        match self.uars.get_mut(page) {
            Some(uar) if uar.polled != round => {
                uar.polled = round;
                uar.is_rung()
            }
            _ => false,
        }
    }

    /// Takes the register writes of a page, whenever it was looked at last.
    pub(super) fn poll_page(&mut self, qps: &mut Qps, page: u32) -> usize {
        if self.uars.get(page).is_some_and(Uar::is_rung) { self.take_page(qps, page) } else { 0 }
    }

    fn take_page(&mut self, qps: &mut Qps, page: u32) -> usize {
        let Some(uar) = self.uars.get(page) else { return 0 };
        let mut taken = [None; 4];
        let mut count = 0;
        for (place, write) in taken.iter_mut().zip(uar.take()) {
            *place = Some(write);
            count += 1;
        }
        for (register, doorbell) in taken.into_iter().flatten() {
            self.ring(qps, page, register, doorbell);
        }
        count
    }

    /// One register write.
    fn ring(&mut self, qps: &mut Qps, page: u32, register: u8, doorbell: Doorbell) {
        self.counters.doorbells_taken += 1;
        let Some(uar) = self.uars.get_mut(page) else { return };
        let on_page = |qp: &&mut Qp| qp.sq.doorbell.page == page;
        let qp = qps.find(doorbell.qpn).and_then(|place| qps.get_mut(place)).filter(on_page);
        uar.stray = qp.is_none();
        let Some(qp) = qp else {
            self.counters.doorbells_stray += 1;
            return;
        };
        let sharers = self.learn(qp, page, register);
        if let Some(record) = self.record(qp) {
            let ahead = qp.sq.distance(record);
            // A record beyond the ring covers nothing.
            let posted = if u32::from(ahead) <= qp.sq.blocks { record } else { qp.sq.fetched };
            let order = self.options.doorbell_order;
            qp.sq.doorbell.ring(doorbell.next_index(), qp.sq.fetched, posted, order);
        }
        self.schedule.heat(qp, self.now);
        for place in sharers {
            if let Some(other) = qps.get_mut(place) {
                self.share(other);
                self.schedule.heat(other, self.now);
            }
        }
    }

    /// Notes which register the queue rings. Two queues on one register cannot be checked: the others on it are returned, when it is
    /// new that this one is there.
    fn learn(&mut self, qp: &mut Qp, page: u32, register: u8) -> Vec<u32> {
        let known = qp.sq.doorbell.register.is_some();
        let moved = known && qp.sq.doorbell.register != Some(register);
        let Some(uar) = self.uars.get_mut(page) else { return Vec::new() };
        if moved && !uar.is_shared() {
            // Queues do not change their register: the owner of this one named the wrong QP.
            uar.stray = true;
            self.counters.doorbells_stray += 1;
            return Vec::new();
        }
        if !known || moved {
            qp.sq.doorbell.register = Some(register);
            uar.rang.retain(|(place, _)| *place != qp.place);
            uar.rang.push((qp.place, register));
        }
        if uar.is_shared() {
            self.share(qp);
            return Vec::new();
        }
        if known {
            return Vec::new();
        }
        let others = uar.rang.iter().filter(|(place, rung)| *rung == register && *place != qp.place);
        let sharers: Vec<u32> = others.map(|(place, _)| *place).collect();
        // It was taken for one that shares only because its register was not known.
        qp.sq.doorbell.unchecked = !sharers.is_empty() || !self.options.strict;
        if !sharers.is_empty() {
            self.share(qp);
        }
        sharers
    }

    pub(super) fn share(&mut self, qp: &mut Qp) {
        qp.sq.doorbell.unchecked = true;
        self.note_unchecked(qp);
    }

    /// A queue was made on a non-cached page: from the second one on nothing can be checked there.
    pub(super) fn join_page(&mut self, qps: &mut Qps, page: u32) {
        let Some(uar) = self.uars.get(page) else { return };
        if uar.kind != UarKind::NonCached || !uar.is_shared() {
            return;
        }
        for place in &uar.queues {
            if let Some(qp) = qps.get_mut(*place) {
                qp.sq.doorbell.unchecked = true;
            }
        }
    }

    fn rescan_channels(&mut self) {
        for index in self.schedule.channels(self.now) {
            let Some(place) = self.schedule.channels.get(index as usize).copied() else { continue };
            let fires = self.cqs.get_mut(place).is_some_and(|cq| cq.rescan(&self.memory));
            if fires {
                self.announce(place);
            }
        }
    }

    /// A CQ died: so do the queues that complete there.
    fn fail_users(&mut self, qps: &mut Qps, cq: u32) {
        for place in 0..qps.bound() {
            let uses = |qp: &&mut Qp| qp.send_cq == cq || qp.recv_cq == cq;
            if let Some(qp) = qps.get_mut(place).filter(uses) {
                self.fail_qp(qp);
            }
        }
    }
}
