//! QP numbers: their layout, and which of a process are in use.

// A QPN is 7 bits of process, 3 bits of device, 14 bits of index. By the device bits the sender can tell
// whether its address leads to its QP, as a switch and a port would.
const INDEX_BITS: u32 = 14;
const DEVICE_BITS: u32 = 3;
const FIRST_INDEX: u32 = 0x40;

/// QPs of one device in one process.
pub const MAX_QP: u32 = (1 << INDEX_BITS) - FIRST_INDEX;

/// Process that owns this QPN, if it is a QPN of `device`.
pub(super) fn process_of(qpn: u32, device: usize) -> Option<u8> {
    (qpn >> 24 == 0 && device_of(qpn) == device).then(|| slot_of(qpn))
}

/// Process part of a QPN.
pub fn slot_of(qpn: u32) -> u8 {
    (qpn >> (INDEX_BITS + DEVICE_BITS)) as u8 & 0x7f
}

/// The first QPN of a process.
pub fn first_qpn(slot: u8) -> u32 {
    u32::from(slot) << (INDEX_BITS + DEVICE_BITS)
}

/// Device of a QPN.
fn device_of(qpn: u32) -> usize {
    (qpn >> INDEX_BITS & ((1 << DEVICE_BITS) - 1)) as usize
}

/// Index part of a QPN.
fn index_of(qpn: u32) -> usize {
    (qpn & ((1 << INDEX_BITS) - 1)) as usize
}

/// The numbers of one device's QPs.
#[derive(Debug, Clone)]
struct Indices {
    /// Index part of the QPN to place plus 1.
    places: Vec<u32>,
    next: u32,
    used: u32,
}

/// The QP numbers of a process, with the place of each QP.
#[derive(Debug)]
pub(super) struct Numbers {
    slot: u8,
    devices: Vec<Indices>,
}

impl Numbers {
    pub(super) fn new(slot: u8) -> Numbers {
        let none = Indices { places: Vec::new(), next: FIRST_INDEX, used: 0 };
        Numbers { slot, devices: vec![none; 1 << DEVICE_BITS] }
    }

    /// Place of the QP with exactly this number.
    pub(super) fn find(&self, qpn: u32) -> Option<u32> {
        if qpn >> 24 != 0 || slot_of(qpn) != self.slot {
            return None;
        }
        self.devices[device_of(qpn)].places.get(index_of(qpn))?.checked_sub(1)
    }

    /// A number for a new QP; numbers return as late as possible. `None`: `limit` or all numbers are used.
    pub(super) fn take(&mut self, device: usize, limit: u32, place: u32) -> Option<u32> {
        let Indices { places, next, used } = &mut self.devices[device];
        if *used >= limit.min(MAX_QP) {
            return None;
        }
        let mut index = *next;
        while places.get(index as usize).is_some_and(|taken| *taken != 0) {
            index = following(index);
        }
        if places.len() <= index as usize {
            places.resize(index as usize + 1, 0);
        }
        places[index as usize] = place + 1;
        *next = following(index);
        *used += 1;
        Some(first_qpn(self.slot) | (device as u32) << INDEX_BITS | index)
    }

    pub(super) fn give(&mut self, qpn: u32) {
        let indices = &mut self.devices[device_of(qpn)];
        indices.places[index_of(qpn)] = 0;
        indices.used -= 1;
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
        let mut numbers = Numbers::new(5);
        let qpn = numbers.take(3, MAX_QP, 7).expect("a number");
        assert_eq!((qpn, slot_of(qpn)), (5 << 17 | 3 << 14 | 0x40, 5));
        assert_eq!(
            (process_of(qpn, 3), process_of(qpn, 2), process_of(qpn | 1 << 24, 3)),
            (Some(5), None, None)
        );
        assert_eq!(
            (numbers.find(qpn), numbers.find(qpn + 1), numbers.find(qpn ^ 1 << 17)),
            (Some(7), None, None)
        );
    }

    #[test]
    fn all_numbers_can_be_in_use_and_then_no_more() {
        let mut numbers = Numbers::new(0);
        let mut seen = std::collections::HashSet::new();
        for place in 0..MAX_QP {
            assert!(seen.insert(numbers.take(0, MAX_QP, place).expect("a number")));
        }
        assert_eq!(numbers.take(0, u32::MAX, 0), None);
        assert!(numbers.take(1, MAX_QP, 0).is_some(), "another device has its own");
    }
}
