//! Which addresses of this process are GPU memory with regions: whole allocations, and regions where memory
//! is mapped by pieces into a reserved range (`cuMemMap`), whose bounds the driver does not tell.
//!
//! Every access of the NIC to the program's memory asks here, so that a program without CUDA pays one relaxed
//! load. Words only: a fork child, which has no GPU, empties the table, whichever thread was changing it at
//! that moment. One thread at a time changes it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpu::Allocation;
use mlx5_device::memory::Segment;

use crate::os::{ForgetInChild, PerProcess, locked};

/// Most allocations with regions, and mapped regions, at a time; each host message is compared with all.
pub const MAX_ALLOCATIONS: usize = 512;

struct Entry {
    /// Regions in it; 0: it is free, or being changed.
    users: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
    /// The driver's number of the allocation; of pieces the greatest, as the driver counts upwards.
    id: AtomicU64,
    /// GPU, and in bits 31 and 30 whether kernels may use it, and whether it is of pieces.
    card: AtomicU32,
    /// Instance of the mover under which the allocation was last seen to be there still.
    seen_by: AtomicU32,
}

const KERNELS: u32 = 1 << 31;
const MAPPED: u32 = 1 << 30;

/// What an entry is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// A region in memory that is mapped by pieces, and may be remapped at any time; else one allocation.
    pub mapped: bool,
    /// Kernels of the primary context may use it.
    pub kernels: bool,
}

/// Granularity of what is mapped piece by piece (`cuMemGetAllocationGranularity`).
const CHUNK: u64 = 2 << 20;

/// One address of every piece that `start..end` may be of.
pub fn chunks(start: u64, end: u64) -> impl Iterator<Item = u64> {
    let first = (start & !(CHUNK - 1)).saturating_add(CHUNK);
    std::iter::once(start)
        .chain(std::iter::successors(Some(first), |at| at.checked_add(CHUNK)).take_while(move |at| *at < end))
}

static TABLE: [Entry; MAX_ALLOCATIONS] = [const {
    Entry {
        users: AtomicU32::new(0),
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        id: AtomicU64::new(0),
        card: AtomicU32::new(0),
        seen_by: AtomicU32::new(0),
    }
}; MAX_ALLOCATIONS];

/// Entries of the table that may be in use: all behind are free.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Held while the table is changed.
static CHANGE: PerProcess<Mutex<()>> = PerProcess::empty();

/// Whether this process has regions in a GPU's memory at all.
#[inline(always)]
pub fn exist() -> bool {
    USED.load(Ordering::Relaxed) != 0
}

/// A place in a GPU's memory, and how much of it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    entry: usize,
    /// What was asked for.
    pub addr: u64,
    len: u64,
    /// First byte of the allocation.
    pub start: u64,
    /// Byte after its last.
    pub end: u64,
    /// GPU, as CUDA counts them.
    pub card: u32,
    pub kind: Kind,
}

impl Place {
    /// Whether what was asked for is there still, and nothing else in its place.
    pub fn is_alive(&self) -> bool {
        let id = TABLE[self.entry].id.load(Ordering::Relaxed);
        if !self.kind.mapped {
            return Allocation::id_at(self.start) == Some(id);
        }
        let end = self.addr.saturating_add(self.len);
        chunks(self.addr, end).all(|chunk| Allocation::id_at(chunk).is_some_and(|now| now <= id))
    }

    /// Like `is_alive`, but an allocation is asked once for each mover instance: while one runs the driver
    /// frees nothing. Mapped memory it unmaps at any time.
    pub fn is_alive_for(&self, instance: u32) -> bool {
        if self.kind.mapped {
            return self.is_alive();
        }
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

/// What `len` bytes at `addr` lie in, if a region is there: of several entries, the one that holds all of
/// them and was registered last.
pub fn find(addr: u64, len: u64) -> Option<Place> {
    let used = USED.load(Ordering::Acquire).min(MAX_ALLOCATIONS);
    let holding = (0..used).filter_map(|entry| {
        let of = &TABLE[entry];
        let (start, end) = (of.start.load(Ordering::Relaxed), of.end.load(Ordering::Relaxed));
        // A start of 0 is of an entry that another thread fills or empties.
        if start == 0 || !(start..end).contains(&addr) || of.users.load(Ordering::Acquire) == 0 {
            return None;
        }
        let card = of.card.load(Ordering::Relaxed);
        let kind = Kind { mapped: card & MAPPED != 0, kernels: card & KERNELS != 0 };
        Some(Place { entry, addr, len, start, end, card: card & !(KERNELS | MAPPED), kind })
    });
    holding.max_by_key(|place| (len <= place.end - addr, TABLE[place.entry].id.load(Ordering::Relaxed)))
}

/// Whether one of these pieces is a GPU's memory.
pub fn touched_by(pieces: &[Segment]) -> bool {
    exist() && pieces.iter().any(|piece| find(piece.addr, piece.len).is_some())
}

/// A region's share in an entry; given back on drop.
#[derive(Debug)]
pub struct Known {
    entry: usize,
    id: u64,
}

impl Known {
    /// `None`: the table is full.
    pub fn new(start: u64, end: u64, id: u64, card: u32, kind: Kind) -> Option<Known> {
        FORGETS.install();
        let _change = locked(CHANGE.get());
        let is_same = |of: &Entry| {
            let range = (of.start.load(Ordering::Relaxed), of.end.load(Ordering::Relaxed));
            of.users.load(Ordering::Relaxed) > 0
                && of.id.load(Ordering::Relaxed) == id
                && range == (start, end)
        };
        if let Some(entry) = TABLE.iter().position(is_same) {
            TABLE[entry].users.fetch_add(1, Ordering::Relaxed);
            return Some(Known { entry, id });
        }
        let entry = TABLE.iter().position(|of| of.users.load(Ordering::Relaxed) == 0)?;
        let of = &TABLE[entry];
        of.start.store(start, Ordering::Relaxed);
        of.end.store(end, Ordering::Relaxed);
        of.id.store(id, Ordering::Relaxed);
        let kind = if kind.kernels { KERNELS } else { 0 } | if kind.mapped { MAPPED } else { 0 };
        of.card.store(card | kind, Ordering::Relaxed);
        of.seen_by.store(0, Ordering::Relaxed);
        of.users.store(1, Ordering::Release);
        USED.fetch_max(entry + 1, Ordering::AcqRel);
        Some(Known { entry, id })
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        let _change = locked(CHANGE.get());
        let of = &TABLE[self.entry];
        // In a fork child the place may be free, or another's by now.
        let users = of.users.load(Ordering::Relaxed);
        if of.id.load(Ordering::Relaxed) != self.id || users == 0 {
            return;
        }
        of.users.store(users - 1, Ordering::Relaxed);
        if users == 1 {
            // Behind the count: a reader that sees half of a range sees that it has no users.
            of.end.store(0, Ordering::Release);
            of.start.store(0, Ordering::Release);
        }
    }
}

static FORGETS: ForgetInChild = ForgetInChild::new(forget_all);

/// In a fork child: a GPU's memory is its parent's.
extern "C" fn forget_all() {
    USED.store(0, Ordering::Relaxed);
    for of in &TABLE {
        of.users.store(0, Ordering::Relaxed);
        of.start.store(0, Ordering::Relaxed);
        of.end.store(0, Ordering::Relaxed);
        of.id.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Kind = Kind { mapped: false, kernels: true };

    #[test]
    fn an_allocation_is_found_by_every_address_in_it_until_its_last_region_goes() {
        let (start, end) = (0x7_0000_0000u64, 0x7_0000_1000u64);
        let first = Known::new(start, end, 7, 1, WHOLE).unwrap();
        let second = Known::new(start, end, 7, 1, WHOLE).unwrap();
        assert_eq!(first.entry, second.entry);
        for (addr, inside) in [(start - 1, false), (start, true), (end - 1, true), (end, false)] {
            assert_eq!(find(addr, 1).is_some(), inside, "{addr:#x}");
        }
        let place = find(start + 5, 1).unwrap();
        assert_eq!((place.card, place.kind.kernels), (1, true));
        assert!(!place.is_alive() && !place.is_alive_for(3), "no driver knows it");
        drop(first);
        assert!(touched_by(&[Segment { addr: 1, len: 9 }, Segment { addr: start, len: 1 }]));
        drop(second);
        assert!(find(start, 1).is_none());
    }

    #[test]
    fn of_regions_that_overlap_the_one_that_holds_all_and_was_registered_last_is_taken() {
        let at = 0x8_0000_0000u64;
        // As regions of mapped pieces are, and an allocation freed and allocated anew under its region.
        let known = [(0, 8, 5), (4, 6, 9), (4, 10, 7), (0, 8, 6)];
        let known = known.map(|(start, end, id)| {
            Known::new(at + start, at + end, id, 0, Kind { mapped: true, kernels: false }).unwrap()
        });
        for (addr, len, id) in [(0, 8, 6), (4, 1, 9), (5, 2, 7), (5, 4, 7), (8, 2, 7), (7, 8, 7)] {
            let found = find(at + addr, len).unwrap();
            let entry = &known.iter().find(|known| known.entry == found.entry).unwrap();
            assert_eq!(entry.id, id, "{len} at {addr}");
            assert!(!found.kind.kernels);
        }
        drop(known);
        assert!(find(at, 1).is_none());
    }

    #[test]
    fn every_piece_that_a_range_may_be_of_is_asked_for() {
        let (start, mib) = (64 << 30, 1 << 20);
        for (from, to, asked) in [
            (0, 1, vec![0]),
            (0, 2 * mib, vec![0]),
            (0, 2 * mib + 1, vec![0, 2 * mib]),
            (5, 4 * mib + 5, vec![5, 2 * mib, 4 * mib]),
            (2 * mib - 1, 2 * mib, vec![2 * mib - 1]),
        ] {
            let found: Vec<u64> = chunks(start + from, start + to).map(|at| at - start).collect();
            assert_eq!(found, asked, "{from}..{to}");
        }
        assert_eq!(chunks(u64::MAX - 5, u64::MAX).count(), 1);
    }
}
