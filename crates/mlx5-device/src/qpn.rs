//! QP numbers, and the table of QPs behind them.

use std::ops::Range;

use super::qp::Qp;
use super::watch::{self, Watch};
use crate::memory::Memory;

// A QPN is 7 bits of process, 3 bits of device, 14 bits of index. The device is in it so that the sender can tell whether
// the address it was given leads to the QP it was given, as a switch and a port would.
const INDEX_BITS: u32 = 14;
const DEVICE_BITS: u32 = 3;
const FIRST_INDEX: u32 = 0x40;

/// QPs of one device in one process.
pub const MAX_QP: u32 = (1 << INDEX_BITS) - FIRST_INDEX;

/// Process that owns this QPN, if it is a QPN of `device`.
pub(super) fn process_of(qpn: u32, device: usize) -> Option<u8> {
    let of_device = (qpn >> INDEX_BITS & ((1 << DEVICE_BITS) - 1)) as usize;
    (qpn >> 24 == 0 && of_device == device).then(|| slot_of(qpn))
}

/// Process part of a QPN.
pub fn slot_of(qpn: u32) -> u8 {
    (qpn >> (INDEX_BITS + DEVICE_BITS)) as u8 & 0x7f
}

/// The first QPN of a process.
pub fn first_qpn(slot: u8) -> u32 {
    u32::from(slot) << (INDEX_BITS + DEVICE_BITS)
}

/// Every QP of the process. They lie beside [`Core`](super::core::Core), which works on one of them at a time.
#[derive(Debug)]
pub(super) struct Qps {
    slot: u8,
    places: Vec<Option<Box<Qp>>>,
    /// One for each place.
    watches: Vec<Watch>,
    free: Vec<u32>,
    /// By device: index part of the QPN to place plus 1.
    numbers: Vec<Vec<u32>>,
    next_index: Vec<u32>,
    counts: Vec<u32>,
}

impl Qps {
    pub(super) fn new(slot: u8) -> Qps {
        let devices = 1 << DEVICE_BITS;
        Qps {
            slot,
            places: Vec::new(),
            watches: Vec::new(),
            free: Vec::new(),
            numbers: vec![Vec::new(); devices],
            next_index: vec![FIRST_INDEX; devices],
            counts: vec![0; devices],
        }
    }

    /// A key opens nothing any more, and no queue touches what it opened. What was sent before lies in a ring. A request that is
    /// not sent whole, or must be sent again, ends with a local protection error; a READ that is not answered whole with a remote
    /// access error (IBTA vol. 1 §9.9.2, §9.9.3).
    pub(super) fn revoke(&mut self, key: u32) {
        for place in 0..self.bound() {
            let Some(qp) = self.get_mut(place) else { continue };
            qp.sq.revoke(key);
            qp.revoke_answers(key);
        }
    }

    pub(super) fn get(&self, place: u32) -> Option<&Qp> {
        self.places.get(place as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Qp> {
        self.places.get_mut(place as usize)?.as_deref_mut()
    }

    pub(super) fn insert(&mut self, qp: Box<Qp>) {
        let place = qp.place as usize;
        self.watches[place] = Watch::of(&qp);
        self.places[place] = Some(qp);
    }

    /// The QP goes to the background: from now on its watch says when it is worth a look.
    pub(super) fn cool(&mut self, place: u32) {
        if let Some(qp) = self.places[place as usize].as_deref_mut() {
            qp.hot = false;
            self.watches[place as usize] = Watch::of(qp);
        }
    }

    /// Adds those of the places in `range` to `found` whose queues may have something to do.
    pub(super) fn scan<M: Memory>(&self, memory: &M, range: Range<u32>, found: &mut Vec<u32>) {
        watch::scan(&self.watches, memory, range, found);
    }

    /// Places are below this.
    pub(super) fn bound(&self) -> u32 {
        self.places.len() as u32
    }

    /// Place of the QP with exactly this number.
    pub(super) fn find(&self, qpn: u32) -> Option<u32> {
        if qpn >> 24 != 0 || slot_of(qpn) != self.slot {
            return None;
        }
        let device = (qpn >> INDEX_BITS & ((1 << DEVICE_BITS) - 1)) as usize;
        let index = (qpn & ((1 << INDEX_BITS) - 1)) as usize;
        self.numbers[device].get(index)?.checked_sub(1)
    }

    /// Gives a number to a new QP; numbers come back as late as possible. `None`: the device has `limit` QPs, or all are in use.
    pub(super) fn number(&mut self, device: usize, limit: u32, place: u32) -> Option<u32> {
        if self.counts[device] >= limit.min(MAX_QP) {
            return None;
        }
        let table = &mut self.numbers[device];
        let mut index = self.next_index[device];
        while table.get(index as usize).is_some_and(|taken| *taken != 0) {
            index = following(index);
        }
        if table.len() <= index as usize {
            table.resize(index as usize + 1, 0);
        }
        table[index as usize] = place + 1;
        self.next_index[device] = following(index);
        self.counts[device] += 1;
        Some(u32::from(self.slot) << (INDEX_BITS + DEVICE_BITS) | (device as u32) << INDEX_BITS | index)
    }

    /// Takes a QP out for good.
    pub(super) fn remove(&mut self, place: u32) -> Option<Box<Qp>> {
        let qp = self.places.get_mut(place as usize)?.take()?;
        let index = (qp.qpn & ((1 << INDEX_BITS) - 1)) as usize;
        self.numbers[qp.device][index] = 0;
        self.counts[qp.device] -= 1;
        self.watches[qp.place as usize] = Watch::default();
        self.free.push(qp.place);
        Some(qp)
    }

    /// Gives a place back that no QP was put into.
    pub(super) fn unplace(&mut self, place: u32) {
        self.free.push(place);
    }

    pub(super) fn place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.watches.push(Watch::default());
            (self.places.len() - 1) as u32
        })
    }
}

fn following(index: u32) -> u32 {
    if index + 1 < 1 << INDEX_BITS { index + 1 } else { FIRST_INDEX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_process_and_its_device() {
        let mut qps = Qps::new(5);
        let place = qps.place();
        let qpn = qps.number(3, MAX_QP, place).expect("a number");
        assert_eq!((qpn, slot_of(qpn)), (5 << 17 | 3 << 14 | 0x40, 5));
        assert_eq!(
            (process_of(qpn, 3), process_of(qpn, 2), process_of(qpn | 1 << 24, 3)),
            (Some(5), None, None)
        );
        assert_eq!((qps.find(qpn), qps.find(qpn + 1), qps.find(qpn ^ 1 << 17)), (Some(place), None, None));
    }

    #[test]
    fn all_numbers_can_be_in_use_and_then_no_more() {
        let mut qps = Qps::new(0);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..MAX_QP {
            let place = qps.place();
            assert!(seen.insert(qps.number(0, MAX_QP, place).expect("a number")));
        }
        assert_eq!(qps.number(0, u32::MAX, 0), None);
        assert!(qps.number(1, MAX_QP, 0).is_some(), "another device has its own");
    }
}
