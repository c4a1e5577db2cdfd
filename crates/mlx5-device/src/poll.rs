//! One round of the NIC: arrivals, replies, doorbells, queues that move, the background walk.

use mlx5_layout::doorbell::Doorbell;
use roce::Now;

use super::core::Core;
use super::qp::Qp;
use super::uar::{Uar, UarKind};
use crate::carrier::Carrier;
use crate::memory::Memory;

impl<M: Memory> Core<M> {
    /// One round; `budget` bounds the arrivals. Returns how much was done: 0 means that nothing moved.
    pub(super) fn poll(&mut self, link: &mut impl Carrier, now: Now, budget: usize) -> usize {
        // A clock that steps back must not make time-outs wait for it to come round.
        self.now = self.now.max(now);
        self.schedule.round += 1;
        let mut work = link.poll_rings(self.now, budget, |message, inbound| self.arrive(message, inbound));
        if self.asks_the_wire() {
            work += link.poll_wire(self.now, |message, inbound| self.arrive(message, inbound));
        }
        while let Some(event) = link.poll_event() {
            self.log.line(&format!("softnic: {event}"));
        }
        // Replies before new requests, as a card's acknowledgement goes before what its program sends next. Where the kernel has no
        // room for all, the first one gets what there is: each in turn.
        if link.has_packets_waiting() && self.schedule.round & 1 == 1 {
            work += self.poll_hot(link);
            work += self.send_replies(link);
        } else {
            work += self.send_replies(link);
            work += self.poll_hot(link);
        }
        if self.schedule.background_is_due(self.now) {
            work += self.poll_background(link);
            self.rescan_channels();
        }
        while let Some((place, cqn)) = self.dead_cqs.pop() {
            // Its place may have gone to another CQ since.
            if self.cqs.get(place).is_some_and(|cq| cq.cqn == cqn) {
                self.fail_users(place);
            }
        }
        while let Some((place, srqn)) = self.dead_srqs.pop() {
            if self.srqs.get(place).is_some_and(|srq| srq.srqn == srqn) {
                self.fail_takers(place);
            }
        }
        link.ring_bells();
        work
    }

    /// A message that was rung for leaves before the kernel is asked what has come: that takes half as long as to send it, and a
    /// program that answers what came a moment ago has little to expect. But not twice in a row.
    fn asks_the_wire(&mut self) -> bool {
        /// Looks at registers that cost nothing beside a call to the kernel.
        const FEW: usize = 4;
        let is_rung = |place: &u32| {
            let page = self.qps.get(*place).map(|qp| qp.sq.doorbell.page);
            page.and_then(|page| self.uars.get(page)).is_some_and(Uar::is_rung)
        };
        let passes = self.options.wire
            && self.schedule.asked_wire
            && self.schedule.hot.list.iter().take(FEW).any(is_rung);
        self.schedule.asked_wire = !passes;
        !passes
    }

    fn poll_hot(&mut self, link: &mut impl Carrier) -> usize {
        let mut work = 0;
        // A full ring must not always leave the same queues waiting.
        self.schedule.hot.begin(self.options.wire);
        let mut at = 0;
        // The list may grow at its end while a register write heats another queue; that one is looked at too.
        while let Some(place) = self.schedule.hot.list.get(at).copied() {
            let page = self.qps.get(place).map(|qp| qp.sq.doorbell.page);
            if let Some(page) = page.filter(|page| self.is_rung_now(*page)) {
                if let Some(qp) = self.qps.get(place).filter(|qp| qp.sq.blocks > 0) {
                    // What the driver wrote before it rang comes along while the register is taken.
                    self.memory.prefetch(qp.sq.record);
                    self.memory.prefetch(qp.sq.block(qp.sq.fetched));
                }
                work += self.take_page(page);
            }
            let Some(mut qp) = self.qps.take(place) else {
                self.schedule.hot.list.swap_remove(at);
                continue;
            };
            let done = self.step(link, &mut qp);
            work += done;
            let waits = qp.sq.partial.is_some() || self.schedule.hot.bytes_left == 0;
            self.schedule.hot.note(at, done, waits);
            if self.stays_hot(&qp) {
                at += 1;
            } else {
                qp.hot = false;
                self.schedule.hot.list.swap_remove(at);
            }
            self.qps.put(qp);
        }
        work
    }

    fn poll_background(&mut self, link: &mut impl Carrier) -> usize {
        let mut work = 0;
        for page in self.schedule.pages(self.now, self.uars.bound()) {
            if self.is_rung_now(page) {
                work += self.take_page(page);
            }
        }
        let hot = self.schedule.hot.list.len();
        let mut found = std::mem::take(&mut self.schedule.found);
        for places in self.schedule.queues(self.now, self.qps.bound()) {
            self.qps.scan(&self.memory, places, &mut found);
        }
        for place in found.drain(..) {
            let Some(mut qp) = self.qps.take(place) else { continue };
            if !qp.hot && self.is_ready(&qp) {
                self.schedule.heat(&mut qp, self.now);
            }
            self.qps.put(qp);
        }
        self.schedule.found = found;
        // What was found is worked on at once: a thread that sleeps between rounds may sleep long.
        for at in hot..self.schedule.hot.list.len() {
            let Some(mut qp) = self.schedule.hot.list.get(at).and_then(|place| self.qps.take(*place)) else {
                continue;
            };
            work += 1 + self.step(link, &mut qp);
            self.qps.put(qp);
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
    pub(super) fn poll_page(&mut self, page: u32) -> usize {
        if self.uars.get(page).is_some_and(Uar::is_rung) { self.take_page(page) } else { 0 }
    }

    fn take_page(&mut self, page: u32) -> usize {
        let Some(uar) = self.uars.get(page) else { return 0 };
        let mut taken = [None; 4];
        let mut count = 0;
        for (place, write) in taken.iter_mut().zip(uar.take()) {
            *place = Some(write);
            count += 1;
        }
        for (register, doorbell) in taken.into_iter().flatten() {
            self.ring(page, register, doorbell);
        }
        count
    }

    /// One register write.
    fn ring(&mut self, page: u32, register: u8, doorbell: Doorbell) {
        self.counters.doorbells_taken += 1;
        let on_page = |qp: &Qp| qp.sq.doorbell.page == page;
        let place = self.qps.find(doorbell.qpn).filter(|place| self.qps.get(*place).is_some_and(on_page));
        let Some(mut qp) = place.and_then(|place| self.qps.take(place)) else {
            self.counters.doorbells_stray += 1;
            if let Some(uar) = self.uars.get_mut(page) {
                uar.stray = true;
            }
            return;
        };
        if let Some(uar) = self.uars.get_mut(page) {
            uar.stray = false;
        }
        self.learn(&mut qp, page, register);
        if let Some(record) = self.record(&qp) {
            let ahead = qp.sq.distance(record);
            // A record beyond the ring covers nothing.
            let posted = if u32::from(ahead) <= qp.sq.blocks { record } else { qp.sq.fetched };
            let order = self.options.doorbell_order;
            qp.sq.doorbell.ring(doorbell.next_index(), qp.sq.fetched, posted, order);
        }
        self.schedule.heat(&mut qp, self.now);
        self.qps.put(qp);
    }

    /// Notes which register the queue rings; two queues on one register cannot be checked.
    fn learn(&mut self, qp: &mut Qp, page: u32, register: u8) {
        let known = qp.sq.doorbell.register.is_some();
        let moved = known && qp.sq.doorbell.register != Some(register);
        let Some(uar) = self.uars.get_mut(page) else { return };
        if moved && !uar.is_shared() {
            // Queues do not change their register: the owner of this one named the wrong QP.
            uar.stray = true;
            self.counters.doorbells_stray += 1;
            return;
        }
        qp.sq.doorbell.register = Some(register);
        if uar.is_shared() {
            self.share(qp);
            return;
        }
        if known {
            return;
        }
        let same = |other: &Qp| other.sq.doorbell.register == Some(register) && other.place != qp.place;
        let sharers: Vec<u32> =
            uar.queues.iter().copied().filter(|place| self.qps.get(*place).is_some_and(same)).collect();
        // It was taken for one that shares only because its register was not known.
        qp.sq.doorbell.unchecked = !sharers.is_empty() || !self.options.strict;
        if !sharers.is_empty() {
            self.share(qp);
        }
        for place in sharers {
            if let Some(mut other) = self.qps.take(place) {
                self.share(&mut other);
                self.schedule.heat(&mut other, self.now);
                self.qps.put(other);
            }
        }
    }

    pub(super) fn share(&mut self, qp: &mut Qp) {
        qp.sq.doorbell.unchecked = true;
        self.note_unchecked(qp);
    }

    /// A queue was made on a non-cached page: from the second one on nothing can be checked there.
    pub(super) fn join_page(&mut self, page: u32) {
        let Some(uar) = self.uars.get(page) else { return };
        if uar.kind != UarKind::NonCached || !uar.is_shared() {
            return;
        }
        for place in uar.queues.clone() {
            if let Some(qp) = self.qps.get_mut(place) {
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
    fn fail_users(&mut self, cq: u32) {
        for place in 0..self.qps.bound() {
            let uses = |qp: &Qp| qp.send_cq == cq || qp.recv_cq == cq;
            if !self.qps.get(place).is_some_and(uses) {
                continue;
            }
            if let Some(mut qp) = self.qps.take(place) {
                self.fail_qp(&mut qp);
                self.qps.put(qp);
            }
        }
    }
}
