//! Every QP of a process. They lie beside the rest of the NIC, which works on one of them at a time.

use std::ops::Range;

use super::qp::Qp;
use super::qpn::Numbers;
use super::watch::{self, Watch};
use crate::memory::Memory;

#[derive(Debug)]
pub(super) struct Qps {
    numbers: Numbers,
    places: Vec<Option<Box<Qp>>>,
    /// One for each place.
    watches: Vec<Watch>,
    free: Vec<u32>,
}

impl Qps {
    pub(super) fn new(slot: u8) -> Qps {
        Qps { numbers: Numbers::new(slot), places: Vec::new(), watches: Vec::new(), free: Vec::new() }
    }

    /// Puts a QP into a place, with a number of its device. `None`: the device has `limit` QPs, or all numbers are in use.
    pub(super) fn insert(&mut self, limit: u32, mut qp: Qp) -> Option<&Qp> {
        let place = self.free.last().copied().unwrap_or(self.places.len() as u32);
        qp.qpn = self.numbers.take(qp.path.device, limit, place)?;
        qp.turn.place = place;
        if self.free.pop().is_none() {
            self.places.push(None);
            self.watches.push(Watch::default());
        }
        self.watches[place as usize] = Watch::of(&qp);
        Some(self.places[place as usize].insert(Box::new(qp)))
    }

    /// Takes a QP out for good.
    pub(super) fn remove(&mut self, place: u32) -> Option<Box<Qp>> {
        let qp = self.places.get_mut(place as usize)?.take()?;
        self.numbers.give(qp.qpn);
        self.watches[place as usize] = Watch::default();
        self.free.push(place);
        Some(qp)
    }

    pub(super) fn get(&self, place: u32) -> Option<&Qp> {
        self.places.get(place as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Qp> {
        self.places.get_mut(place as usize)?.as_deref_mut()
    }

    /// Place of the QP with exactly this number.
    pub(super) fn find(&self, qpn: u32) -> Option<u32> {
        self.numbers.find(qpn)
    }

    /// Places are below this.
    pub(super) fn bound(&self) -> u32 {
        self.places.len() as u32
    }

    /// The QPs that are there.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.places.iter().filter_map(Option::as_deref)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.places.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The QP goes to the background: from now on its watch says when it is worth a look.
    pub(super) fn cool(&mut self, place: u32) {
        if let Some(qp) = self.places[place as usize].as_deref_mut() {
            qp.turn.hot = false;
            self.watches[place as usize] = Watch::of(qp);
        }
    }

    /// Adds those of the places in `range` to `found` whose queues may have something to do.
    pub(super) fn scan<M: Memory>(&self, memory: &M, range: Range<u32>, found: &mut Vec<u32>) {
        watch::scan(&self.watches, memory, range, found);
    }

    /// A key opens nothing any more, and no queue touches what it opened. What was sent before lies in a ring. A request that is
    /// not sent whole, or must be sent again, ends with a local protection error; a READ that is not answered whole with a remote
    /// access error (IBTA vol. 1 §9.9.2, §9.9.3).
    pub(super) fn revoke(&mut self, key: u32) {
        for qp in self.iter_mut() {
            qp.sq.revoke(key);
            qp.responses.revoke(key);
        }
    }
}
