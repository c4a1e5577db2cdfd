//! Which addresses of this process are a GPU's memory that regions are in.
//!
//! Every access of the NIC to the program's memory asks here, so that a program without CUDA pays one relaxed load. Words only:
//! a fork child, which has no GPU, empties the table, whoever was changing it at that moment.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpu::Allocation;

use super::super::Segment;

/// Allocations with regions that one process may have at a time; a message to or from the host is compared with all of them.
pub const MAX_ALLOCATIONS: usize = 512;

/// Use of an entry: free, being changed, in use by that many regions (from 2 on, one more than there are).
const FREE: u32 = 0;
const CHANGING: u32 = 1;

struct Entry {
    users: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    /// The driver's number of the allocation.
    id: AtomicU64,
    /// GPU, and in bit 31 whether kernels may use it.
    card: AtomicU32,
    /// Instance of the mover under which the allocation was last seen to be there still.
    seen_by: AtomicU32,
}

const KERNELS: u32 = 1 << 31;

static TABLE: [Entry; MAX_ALLOCATIONS] = [const {
    Entry {
        users: AtomicU32::new(FREE),
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        id: AtomicU64::new(0),
        card: AtomicU32::new(0),
        seen_by: AtomicU32::new(0),
    }
}; MAX_ALLOCATIONS];

/// Entries of the table that may be in use: all behind are free.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Whether this process has regions in a GPU's memory at all.
#[inline(always)]
pub fn exist() -> bool {
    USED.load(Ordering::Relaxed) != 0
}

/// A place in a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    entry: usize,
    /// First byte of the allocation.
    pub start: u64,
    /// Byte after its last.
    pub end: u64,
    /// GPU, as CUDA counts them.
    pub card: u32,
    /// Kernels of the primary context may use it.
    pub kernels: bool,
}

impl Place {
    /// Whether the allocation is there still, and not another in its place.
    pub fn is_alive(&self) -> bool {
        let id = TABLE[self.entry].id.load(Ordering::Relaxed);
        Allocation::id_at(self.start) == Some(id)
    }

    /// The same, asked once for each instance of the mover: while one runs the driver frees nothing.
    pub fn is_alive_for(&self, instance: u32) -> bool {
        let seen_by = &TABLE[self.entry].seen_by;
        if seen_by.load(Ordering::Relaxed) == instance {
            return true;
        }
        let alive = self.is_alive();
        if alive {
            seen_by.store(instance, Ordering::Relaxed);
        }
        alive
    }
}

/// The allocation that an address lies in, if a region is in that one.
pub fn find(addr: u64) -> Option<Place> {
    let used = USED.load(Ordering::Acquire).min(MAX_ALLOCATIONS);
    (0..used).find_map(|entry| {
        let of = &TABLE[entry];
        let (start, end) = (of.start.load(Ordering::Relaxed), of.end.load(Ordering::Relaxed));
        if !(start..end).contains(&addr) || of.users.load(Ordering::Acquire) <= CHANGING {
            return None;
        }
        let card = of.card.load(Ordering::Relaxed);
        Some(Place { entry, start, end, card: card & !KERNELS, kernels: card & KERNELS != 0 })
    })
}

/// Whether one of these pieces is a GPU's memory.
pub fn touched_by(pieces: &[Segment]) -> bool {
    exist() && pieces.iter().any(|piece| find(piece.addr).is_some())
}

/// A region's share in an entry; given back on drop.
#[derive(Debug)]
pub struct Known {
    entry: usize,
    id: u64,
}

impl Known {
    /// `None`: the table is full.
    pub fn new(start: u64, end: u64, id: u64, card: u32, kernels: bool) -> Option<Known> {
        for (entry, of) in TABLE.iter().enumerate() {
            let same = of.id.load(Ordering::Relaxed) == id && of.start.load(Ordering::Relaxed) == start;
            let same = same && of.end.load(Ordering::Relaxed) == end;
            let join = |users| (users > CHANGING).then_some(users + 1);
            if same && of.users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, join).is_ok() {
                return Some(Known { entry, id });
            }
        }
        let free = |of: &Entry| {
            of.users.compare_exchange(FREE, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let entry = TABLE.iter().position(free)?;
        let of = &TABLE[entry];
        of.start.store(start, Ordering::Relaxed);
        of.end.store(end, Ordering::Relaxed);
        of.id.store(id, Ordering::Relaxed);
        of.card.store(card | if kernels { KERNELS } else { 0 }, Ordering::Relaxed);
        of.seen_by.store(0, Ordering::Relaxed);
        of.users.store(CHANGING + 1, Ordering::Release);
        USED.fetch_max(entry + 1, Ordering::AcqRel);
        Some(Known { entry, id })
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let of = &TABLE[self.entry];
        // In a fork child the place may be another's by now.
        if of.id.load(Ordering::Relaxed) != self.id || of.users.load(Ordering::Acquire) <= CHANGING {
            return;
        }
        if of.users.fetch_sub(1, Ordering::AcqRel) == CHANGING + 1 {
            of.end.store(0, Ordering::Relaxed);
            of.start.store(0, Ordering::Relaxed);
            of.users.store(FREE, Ordering::Release);
        }
    }
}

/// In a fork child: a GPU's memory is its parent's.
pub(in super::super) fn forget_all() {
    USED.store(0, Ordering::Relaxed);
    for of in &TABLE {
        of.users.store(FREE, Ordering::Relaxed);
        of.start.store(0, Ordering::Relaxed);
        of.end.store(0, Ordering::Relaxed);
        of.id.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_found_by_every_address_in_it_until_its_last_region_goes() {
        let (start, end) = (0x7_0000_0000u64, 0x7_0000_1000u64);
        let first = Known::new(start, end, 7, 1, true).unwrap();
        let second = Known::new(start, end, 7, 1, true).unwrap();
        assert_eq!(first.entry, second.entry);
        for (addr, inside) in [(start - 1, false), (start, true), (end - 1, true), (end, false)] {
            assert_eq!(find(addr).is_some(), inside, "{addr:#x}");
        }
        let place = find(start + 5).unwrap();
        assert_eq!((place.card, place.kernels), (1, true));
        assert!(!place.is_alive() && !place.is_alive_for(3), "no driver knows it");
        drop(first);
        assert!(touched_by(&[Segment { addr: 1, len: 9 }, Segment { addr: start, len: 1 }]));
        drop(second);
        assert!(find(start).is_none());
    }
}
