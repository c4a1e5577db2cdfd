//! Communication ids and transactions: numbers that no other living connection has.

/// Bits below the slot.
const COUNT_BITS: u32 = 25;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// Slot of the process that a communication id is of.
pub const fn slot_of(id: u32) -> u8 {
    (id >> COUNT_BITS) as u8
}

/// Gives ids out in turn, so that an old one does not name a new connection soon.
#[derive(Debug, Default)]
pub(super) struct Names {
    slot: u8,
    next: u32,
    /// Upper half of our transactions.
    upper: u32,
}

impl Names {
    pub(super) fn new(slot: u8, seed: u64) -> Self {
        Self { slot: slot & 0x7f, next: seed as u32 & COUNT_MASK, upper: (seed >> 32) as u32 }
    }

    /// An id that `taken` does not know; `None` when it knows all.
    pub(super) fn fresh(&mut self, taken: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..=COUNT_MASK {
            let id = u32::from(self.slot) << COUNT_BITS | self.next;
            self.next = self.next.wrapping_add(1) & COUNT_MASK;
            // 0 is «not known» on the wire.
            if id != 0 && !taken(id) {
                return Some(id);
            }
        }
        None
    }

    /// Transaction of what this connection's side begins.
    pub(super) fn transaction(&self, id: u32) -> u64 {
        u64::from(self.upper) << 32 | u64::from(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_carry_the_slot_are_never_zero_and_come_in_turn() {
        let mut names = Names::new(0, u64::from(COUNT_MASK));
        assert_eq!(names.fresh(|_| false), Some(COUNT_MASK));
        assert_eq!(names.fresh(|_| false), Some(1), "0 is left out");
        assert_eq!(names.fresh(|id| id == 2), Some(3));
        let mut names = Names::new(0x7f, 0xabcd_0000_0000);
        let id = names.fresh(|_| false).unwrap();
        assert_eq!((slot_of(id), id), (0x7f, 0xfe00_0000));
        assert_eq!(names.transaction(id), 0xabcd_fe00_0000);
    }
}
