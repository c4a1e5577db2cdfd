//! Packet sequence numbers: 24 bits that wrap, ordered over half their space.
//!
//! By IBTA, of the 2^24 numbers the 2^23 before the expected one are duplicates, the rest lie ahead.

use std::fmt;

const SPACE: u32 = 1 << 24;

/// Half the space: the most PSNs that a requester may have outstanding, or old and new look alike.
pub const HALF_SPACE: u32 = 1 << 23;

#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & (SPACE - 1))
    }

    /// As a number below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// `count` packets earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(count))
    }

    /// How many packets `self` comes after `earlier`, going forward around the space: always below 2^24.
    pub const fn distance_from(self, earlier: Psn) -> u32 {
        Psn::new(self.0.wrapping_sub(earlier.0)).0
    }

    /// Where this PSN lies as seen by a responder that expects `expected`.
    pub const fn relation_to(self, expected: Psn) -> Relation {
        match self.distance_from(expected) {
            0 => Relation::Expected,
            ahead if ahead < HALF_SPACE => Relation::Ahead,
            _ => Relation::Duplicate,
        }
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// The three regions of the PSN space around the expected one, by their IBTA names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// The one to come next.
    Expected,
    /// Later: something before it is missing.
    Ahead,
    /// Seen before.
    Duplicate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_relations_hold_across_the_wrap() {
        use Relation::*;
        for (name, psn, expected, relation) in [
            ("equal", 7, 7, Expected),
            ("next", 8, 7, Ahead),
            ("previous", 6, 7, Duplicate),
            ("zero after the last", 0, 0xff_ffff, Ahead),
            ("the last before zero", 0xff_ffff, 0, Duplicate),
            ("last one ahead", 7 + 0x7f_ffff, 7, Ahead),
            ("oldest duplicate", 7 + 0x80_0000, 7, Duplicate),
            ("high bits do not count", 0x0100_0007, 7, Expected),
        ] {
            assert_eq!(Psn::new(psn).relation_to(Psn::new(expected)), relation, "{name}");
        }
    }

    #[test]
    fn psn_arithmetic_stays_within_24_bits() {
        for (name, got, want) in [
            ("plus wraps", Psn::new(0xff_fffe).plus(3), 1),
            ("minus wraps", Psn::new(1).minus(3), 0xff_fffe),
            ("plus of more than the space", Psn::new(5).plus(u32::MAX), 4),
        ] {
            assert_eq!(got.value(), want, "{name}");
        }
        assert_eq!(Psn::new(1).distance_from(Psn::new(0xff_ffff)), 2);
    }
}
