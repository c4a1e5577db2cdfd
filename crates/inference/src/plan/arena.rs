//! Places for values in one piece of memory: values that live at different times share it.

use std::cmp::Reverse;

/// Every place begins at a multiple of so many bytes, as library kernels want it.
pub const ALIGNMENT: usize = 256;

/// A piece of memory that steps need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its size in bytes.
    pub bytes: usize,
    /// The first step that writes it.
    pub first: usize,
    /// The last step that reads it, or writes it.
    pub last: usize,
}

impl Need {
    fn meets(&self, other: &Need) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn padded(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }
}

/// Where the pieces lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arena {
    /// The offset of each piece in bytes.
    pub offsets: Vec<usize>,
    /// The size of the whole in bytes.
    pub bytes: usize,
    /// The most bytes that live at one step: no arena is smaller.
    pub bound: usize,
    /// All pieces together, without sharing.
    pub sum: usize,
}

/// Places for all pieces. Several orders are tried, each piece at the lowest place that is free while it
/// lives; the smallest arena wins.
pub fn place(needs: &[Need]) -> Arena {
    let steps = needs.iter().map(|need| need.last + 1).max().unwrap_or(0);
    let live =
        |step| needs.iter().filter(|need| need.first <= step && step <= need.last).map(Need::padded).sum();
    let bound = (0..steps).map(live).max().unwrap_or(0);
    let sum = needs.iter().map(Need::padded).sum();
    let keys: [fn(&Need) -> usize; 4] = [
        |need| need.bytes,
        |need| need.bytes * (need.last - need.first + 1),
        |need| need.last - need.first,
        |_| 0,
    ];
    let tried = keys.iter().map(|key| {
        let mut order: Vec<usize> = (0..needs.len()).collect();
        order.sort_by_key(|&at| (Reverse(key(&needs[at])), needs[at].first));
        place_in(needs, &order)
    });
    let (bytes, offsets) = tried.min_by_key(|&(bytes, _)| bytes).unwrap_or_default();
    Arena { offsets, bytes, bound, sum }
}

fn place_in(needs: &[Need], order: &[usize]) -> (usize, Vec<usize>) {
    let mut offsets = vec![0; needs.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut bytes = 0;
    for &at in order {
        let mut beside: Vec<usize> =
            placed.iter().copied().filter(|&other| needs[at].meets(&needs[other])).collect();
        beside.sort_by_key(|&other| offsets[other]);
        let mut offset = 0;
        for other in beside {
            if offset + needs[at].padded() <= offsets[other] {
                break;
            }
            offset = offset.max(offsets[other] + needs[other].padded());
        }
        offsets[at] = offset;
        bytes = bytes.max(offset + needs[at].padded());
        placed.push(at);
    }
    (bytes, offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_live_together_do_not_overlap_and_others_share() {
        let chain: Vec<Need> =
            (0..6).map(|at| Need { bytes: 1000 * (at % 3 + 1), first: at, last: at + 1 }).collect();
        let arena = place(&chain);
        for (at, one) in chain.iter().enumerate() {
            for (other, two) in chain.iter().enumerate().filter(|(other, two)| *other > at && one.meets(two))
            {
                let apart = arena.offsets[at] + one.bytes <= arena.offsets[other]
                    || arena.offsets[other] + two.bytes <= arena.offsets[at];
                assert!(apart, "{at} and {other}: {arena:?}");
            }
        }
        assert_eq!(arena.bound, 2000_usize.next_multiple_of(256) + 3000_usize.next_multiple_of(256));
        assert!(arena.bytes >= arena.bound && arena.bytes < arena.sum, "{arena:?}");
        assert!(arena.offsets.iter().all(|offset| offset % ALIGNMENT == 0));
    }

    #[test]
    fn no_piece_is_an_empty_arena() {
        assert_eq!(place(&[]), Arena { offsets: Vec::new(), bytes: 0, bound: 0, sum: 0 });
    }
}
