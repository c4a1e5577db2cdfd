//! Every QP of a process. They lie beside the rest of the NIC, which works on one of them at a time.

use std::ops::Range;

use mlx5_layout::doorbell::counter_of;

use super::mkey::Mkeys;
use super::qp::Qp;
use super::qpn::Numbers;
use super::table::Table;
use crate::memory::Memory;

/// What has to change at a queue before it is worth a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum WatchFor {
    /// It takes no work in its state.
    #[default]
    Nothing,
    /// The send word of its record.
    Record,
    /// The queue pair itself has to be read.
    Anything,
}

/// What the background walk reads of an idle queue: sixteen bytes, side by side for all queues. Queue pairs,
/// of some hundred bytes each, would be fetched from memory if thousands were read every half a millisecond.
/// Set when its queue is made or cools; a hot queue is looked at anyway, so its entry may be out of date.
#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    record: u64,
    fetched: u16,
    watch_for: WatchFor,
}

/// So many places ahead, a queue's record is asked for before it is needed.
const AHEAD: usize = 16;

impl Watch {
    fn of(qp: &Qp) -> Watch {
        let watch_for = match (qp.state.flushes_receives(), qp.takes_sends()) {
            (true, _) => WatchFor::Anything,
            (false, true) => WatchFor::Record,
            (false, false) => WatchFor::Nothing,
        };
        Watch { record: qp.sq.ring.record, fetched: qp.sq.fetched, watch_for }
    }

    /// False: there is nothing to do for its queue.
    #[inline(always)]
    fn may_be_ready<M: Memory>(&self, memory: &M) -> bool {
        match self.watch_for {
            WatchFor::Nothing => false,
            // A record that cannot be read says nothing.
            WatchFor::Record => {
                memory.load32(self.record).is_ok_and(|word| counter_of(word.to_ne_bytes()) != self.fetched)
            }
            WatchFor::Anything => true,
        }
    }
}

#[derive(Debug)]
pub(super) struct Qps {
    numbers: Numbers,
    table: Table<Box<Qp>>,
    /// One for each place.
    watches: Vec<Watch>,
}

impl Qps {
    pub(super) fn new(slot: u8) -> Qps {
        Qps { numbers: Numbers::new(slot), table: Table::default(), watches: Vec::new() }
    }

    /// Puts a QP into a place, with a number. `None`: the device has `limit` QPs, or all numbers are in use.
    pub(super) fn insert(&mut self, limit: u32, mut qp: Qp) -> Option<&Qp> {
        let place = self.table.next();
        qp.qpn = self.numbers.take(qp.path.device, limit, place)?;
        qp.sched.place = place;
        self.watches.resize(self.watches.len().max(place as usize + 1), Watch::default());
        self.watches[place as usize] = Watch::of(&qp);
        self.table.insert(Box::new(qp));
        self.get(place)
    }

    /// Takes a QP out for good.
    pub(super) fn remove(&mut self, place: u32) -> Option<Box<Qp>> {
        let qp = self.table.remove(place)?;
        self.numbers.give(qp.qpn);
        self.watches[place as usize] = Watch::default();
        Some(qp)
    }

    pub(super) fn get(&self, place: u32) -> Option<&Qp> {
        self.table.get(place).map(|qp| &**qp)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Qp> {
        self.table.get_mut(place).map(|qp| &mut **qp)
    }

    /// The QP with exactly this number.
    pub(super) fn numbered(&self, qpn: u32) -> Option<&Qp> {
        self.get(self.numbers.find(qpn)?)
    }

    pub(super) fn numbered_mut(&mut self, qpn: u32) -> Option<&mut Qp> {
        self.get_mut(self.numbers.find(qpn)?)
    }

    /// Places are below this.
    pub(super) fn bound(&self) -> u32 {
        self.table.bound()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.table.iter().map(|(_, qp)| &**qp)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.table.iter_mut().map(|qp| &mut **qp)
    }

    /// The QP goes to the background: from now on its watch says when it is worth a look.
    pub(super) fn cool(&mut self, place: u32) {
        if let Some(qp) = self.table.get_mut(place) {
            qp.sched.hot = false;
            self.watches[place as usize] = Watch::of(qp);
        }
    }

    /// Adds those of the places in `range` to `found` whose queues may have something to do.
    pub(super) fn scan<M: Memory>(&self, memory: &M, range: Range<u32>, found: &mut Vec<u32>) {
        for at in range.start as usize..(range.end as usize).min(self.watches.len()) {
            if let Some(later) = self.watches.get(at + AHEAD) {
                memory.prefetch(later.record);
            }
            if self.watches[at].may_be_ready(memory) {
                found.push(at as u32);
            }
        }
    }

    /// No queue touches what the closed windows opened.
    #[inline(always)]
    pub(super) fn revoke_closed(&mut self, mkeys: &mut Mkeys) {
        while let Some(key) = mkeys.poll_revoked() {
            self.revoke(key);
        }
    }

    /// A key opens nothing any more, and no queue touches what it opened. What was sent before is in a ring.
    /// A request not sent whole, or to be sent again, ends with a local protection error. A READ not answered
    /// whole ends with a remote access error (IBTA vol. 1 §9.9.2, §9.9.3).
    #[cold]
    pub(super) fn revoke(&mut self, key: u32) {
        for qp in self.iter_mut() {
            qp.sq.revoke(key);
            qp.responses.revoke(key);
        }
    }
}
