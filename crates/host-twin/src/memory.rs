//! Stores that other threads and devices do not see yet, and the rules by which they come to see them.
//!
//! A GPU's stores to different words become visible in any order, and to some threads before others, unless a
//! fence or a barrier forbids it; a host processor hides that (x86 makes stores visible in program order). So
//! each store by the shim's primitives waits here, and goes to memory at a time and in an order that the seed
//! chooses. The rules are those of PTX ISA 8.8, "Memory Consistency Model":
//!
//! - Overlapping stores keep their order (§8.10.1 Coherence); nothing else does, even the halves of a vector
//!   store (§8.2, vector data types).
//! - A store is seen at once by its own lane, and by lanes that met it at a barrier (§8.9, causality order).
//! - A fence publishes what its lane sees, own stores and those that it met: a release is cumulative (§8.7,
//!   §8.9). `.sys`: to memory (host, devices). `.gpu` and `.cta` (§8.5, scope): to all lanes, or the block's.
//! - An atomic works on memory, after every store to its word (§8.10.3 Atomicity). It orders nothing else.
//!
//! Left out: loads are performed where they stand, so that a missing acquire does not show (the explorer's
//! part). What a kernel stores without a primitive goes to memory at once.

use crate::lane_set::LaneSet;
use crate::random::SplitMix;

/// What stores go to, and loads come from.
pub trait Memory {
    /// Stores 1 to 8 bytes of one aligned 8-byte word, in one piece if they are a word themselves.
    fn store(&mut self, address: u64, bytes: &[u8]);
    /// Loads as many bytes as `out` is long, likewise.
    fn load(&self, address: u64, out: &mut [u8]);
}

/// The readers that a fence publishes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// These lanes: of the block (`.cta`), or of the grid (`.gpu`).
    Lanes(LaneSet),
    /// All readers, devices included (`.sys`).
    System,
}

/// What a store is for, which tells how late it may become visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of a WQE or a payload: no reader looks for them before a signal has said that they are there.
    Bytes,
    /// A word that a reader waits for: a flag, a doorbell.
    Signal,
}

/// Pieces that wait at most: above it the oldest go to memory, as from a full buffer.
const CAPACITY: usize = 512;

/// How long a piece waits: so many times out of a hundred up to so many nanoseconds. Signals stay far below
/// the second that the software NIC allows between record and register. Bytes may wait until a NIC that had
/// no core has fetched their WQE: a correct kernel loses nothing by that, since it publishes them before.
const SIGNAL_DELAYS: [(u64, u64); 3] = [(40, 2_000), (40, 60_000), (20, 600_000)];
const BYTES_DELAYS: [(u64, u64); 4] = [(40, 2_000), (30, 60_000), (20, 600_000), (10, LONGEST_NS)];
const LONGEST_NS: u64 = 200_000_000;

#[derive(Debug)]
struct Pending {
    address: u64,
    len: usize,
    bytes: [u8; 8],
    seen_by: LaneSet,
    due_ns: u64,
}

impl Pending {
    fn overlaps(&self, address: u64, len: usize) -> bool {
        address < self.address + self.len as u64 && self.address < address + len as u64
    }
}

/// The stores of one launch that are not in memory yet, oldest first.
#[derive(Debug)]
pub struct StoreBuffer {
    pending: Vec<Pending>,
    random: SplitMix,
    stored: u64,
    overtook: u64,
}

impl StoreBuffer {
    /// An empty one, whose choices follow from `seed`.
    pub fn new(seed: u64) -> StoreBuffer {
        StoreBuffer { pending: Vec::new(), random: SplitMix(seed), stored: 0, overtook: 0 }
    }

    /// Pieces stored so far, and how many of them went to memory before an older one did.
    pub fn counts(&self) -> (u64, u64) {
        (self.stored, self.overtook)
    }

    /// A lane's store. It is cut at 8-byte boundaries: a vector store is several accesses without an order.
    pub fn store(
        &mut self,
        memory: &mut impl Memory,
        lane: usize,
        (address, bytes): (u64, &[u8]),
        kind: Kind,
        now_ns: u64,
    ) {
        let mut at = 0;
        while at < bytes.len() {
            let here = address + at as u64;
            let len = (8 - (here % 8) as usize).min(bytes.len() - at);
            let mut piece = [0; 8];
            piece[..len].copy_from_slice(&bytes[at..at + len]);
            let due_ns = now_ns + self.delay(kind);
            self.pending.push(Pending {
                address: here,
                len,
                bytes: piece,
                seen_by: LaneSet::of(lane),
                due_ns,
            });
            self.stored += 1;
            at += len;
        }
        while self.pending.len() > CAPACITY {
            self.commit(memory, 0);
        }
    }

    fn delay(&mut self, kind: Kind) -> u64 {
        let delays: &[(u64, u64)] = if kind == Kind::Bytes { &BYTES_DELAYS } else { &SIGNAL_DELAYS };
        let mut share = self.random.below(100);
        for &(percent, longest_ns) in delays {
            if share < percent {
                return self.random.below(longest_ns);
            }
            share -= percent;
        }
        0
    }

    /// A lane's load: memory, and over it what the lane sees of waiting stores, oldest first.
    pub fn load(&self, memory: &impl Memory, lane: usize, address: u64, out: &mut [u8]) {
        memory.load(address, out);
        let len = out.len();
        for piece in self.pending.iter().filter(|p| p.overlaps(address, len) && p.seen_by.has(lane)) {
            for (index, byte) in piece.bytes[..piece.len].iter().enumerate() {
                let at = (piece.address + index as u64).wrapping_sub(address);
                if at < len as u64 {
                    out[at as usize] = *byte;
                }
            }
        }
    }

    /// A fence of that lane.
    pub fn fence(&mut self, memory: &mut impl Memory, lane: usize, scope: Scope) {
        match scope {
            Scope::Lanes(lanes) => {
                self.pending.iter_mut().filter(|p| p.seen_by.has(lane)).for_each(|p| p.seen_by.add(lanes));
            }
            Scope::System => self.commit_all(memory, |piece| piece.seen_by.has(lane)),
        }
    }

    /// A barrier between these lanes: each sees from now on what any of them saw.
    pub fn meet(&mut self, lanes: LaneSet) {
        self.pending.iter_mut().filter(|p| p.seen_by.meets(lanes)).for_each(|p| p.seen_by.add(lanes));
    }

    /// Everything stored to that place goes to memory: an atomic is about to work there.
    pub fn settle(&mut self, memory: &mut impl Memory, address: u64, len: usize) {
        self.commit_all(memory, |piece| piece.overlaps(address, len));
    }

    /// Everything goes to memory: the kernel has ended.
    pub fn empty(&mut self, memory: &mut impl Memory) {
        self.commit_all(memory, |_| true);
    }

    /// Pieces whose time has come go to memory. When the next one's comes, if one waits.
    pub fn tick(&mut self, memory: &mut impl Memory, now_ns: u64) -> Option<u64> {
        self.commit_all(memory, |piece| piece.due_ns <= now_ns);
        self.pending.iter().map(|piece| piece.due_ns).min()
    }

    /// Moves the chosen pieces to memory in an order of the seed, and before each the older ones that it
    /// overlaps.
    fn commit_all(&mut self, memory: &mut impl Memory, chosen: impl Fn(&Pending) -> bool) {
        let mut due: Vec<bool> = self.pending.iter().map(chosen).collect();
        if !due.contains(&true) {
            return;
        }
        for older in (0..due.len()).rev() {
            due[older] =
                due[older] || (older + 1..due.len()).any(|newer| due[newer] && self.in_order(older, newer));
        }
        loop {
            let left: Vec<usize> = (0..due.len()).filter(|&index| due[index]).collect();
            if left.is_empty() {
                return;
            }
            let mut index = left[self.random.below(left.len() as u64) as usize];
            while let Some(older) = (0..index).find(|&older| self.in_order(older, index)) {
                index = older;
            }
            due.remove(index);
            self.commit(memory, index);
        }
    }

    fn in_order(&self, older: usize, newer: usize) -> bool {
        let newer = &self.pending[newer];
        self.pending[older].overlaps(newer.address, newer.len)
    }

    fn commit(&mut self, memory: &mut impl Memory, index: usize) {
        let piece = self.pending.remove(index);
        self.overtook += u64::from(index > 0);
        memory.store(piece.address, &piece.bytes[..piece.len]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Bytes by address, zero where nothing was stored, and the order in which stores came.
    #[derive(Default)]
    struct Cells {
        bytes: BTreeMap<u64, u8>,
        order: Vec<u64>,
    }

    impl Memory for Cells {
        fn store(&mut self, address: u64, bytes: &[u8]) {
            self.order.push(address);
            self.bytes.extend((address..).zip(bytes.iter().copied()));
        }
        fn load(&self, address: u64, out: &mut [u8]) {
            (address..).zip(out).for_each(|(at, byte)| *byte = self.bytes.get(&at).copied().unwrap_or(0));
        }
    }

    /// A buffer, its memory, and words by their names.
    struct Stage(StoreBuffer, Cells);

    impl Stage {
        fn new(seed: u64) -> Stage {
            Stage(StoreBuffer::new(seed), Cells::default())
        }
        fn store(&mut self, lane: usize, address: u64, value: u64) {
            self.0.store(&mut self.1, lane, (address, &value.to_le_bytes()), Kind::Bytes, 0);
        }
        fn load(&self, lane: usize, address: u64) -> u64 {
            let mut out = [0; 8];
            self.0.load(&self.1, lane, address, &mut out);
            u64::from_le_bytes(out)
        }
        fn in_memory(&self, address: u64) -> u64 {
            let mut out = [0; 8];
            self.1.load(address, &mut out);
            u64::from_le_bytes(out)
        }
        fn fence(&mut self, lane: usize, scope: Scope) {
            self.0.fence(&mut self.1, lane, scope);
        }
    }

    const A: u64 = 0x100;
    const B: u64 = 0x108;

    #[test]
    fn a_store_is_its_lanes_own_until_a_fence_or_its_time() {
        let mut stage = Stage::new(1);
        stage.store(0, A, 5);
        assert_eq!((stage.load(0, A), stage.load(1, A), stage.in_memory(A)), (5, 0, 0));
        stage.fence(1, Scope::System);
        assert_eq!(stage.in_memory(A), 0, "another lane's fence publishes nothing of it");
        stage.fence(0, Scope::System);
        assert_eq!((stage.in_memory(A), stage.0.pending.len()), (5, 0));
        stage.store(0, B, 6);
        let due = stage.0.tick(&mut stage.1, 0).unwrap_or(0);
        assert!(due < LONGEST_NS);
        assert_eq!(stage.0.tick(&mut stage.1, due), None);
        assert_eq!(stage.in_memory(B), 6);
    }

    #[test]
    fn a_lane_that_met_a_store_at_a_barrier_sees_and_publishes_it() {
        let mut stage = Stage::new(2);
        stage.store(3, A, 7);
        let mut warp = LaneSet::of(3);
        warp.add(LaneSet::of(0));
        stage.0.meet(warp);
        assert_eq!((stage.load(0, A), stage.load(1, A), stage.in_memory(A)), (7, 0, 0));
        stage.fence(0, Scope::System);
        assert_eq!(stage.in_memory(A), 7);
    }

    #[test]
    fn a_fence_of_the_grid_shows_lanes_but_not_devices() {
        let mut stage = Stage::new(3);
        stage.store(0, A, 1);
        stage.fence(0, Scope::Lanes(LaneSet::first(2)));
        assert_eq!((stage.load(1, A), stage.load(2, A), stage.in_memory(A)), (1, 0, 0));
        stage.fence(1, Scope::System);
        assert_eq!(stage.in_memory(A), 1);
    }

    #[test]
    fn overlapping_stores_keep_their_order_and_others_do_not() {
        let mut orders = BTreeSet::new();
        for seed in 0..64 {
            let mut stage = Stage::new(seed);
            for (lane, address, value) in [(0, A, 1), (0, B, 2), (1, A, 3)] {
                stage.store(lane, address, value);
            }
            stage.0.empty(&mut stage.1);
            assert_eq!((stage.in_memory(A), stage.in_memory(B)), (3, 2), "seed {seed}");
            orders.insert(stage.1.order.clone());
        }
        assert_eq!(orders, BTreeSet::from([vec![A, B, A], vec![B, A, A], vec![A, A, B]]));
    }

    #[test]
    fn a_fence_takes_older_stores_of_others_to_the_same_word_along() {
        let mut stage = Stage::new(4);
        stage.store(1, A, 1);
        stage.store(0, A, 2);
        stage.fence(0, Scope::System);
        assert_eq!((stage.in_memory(A), stage.0.pending.len()), (2, 0));
    }

    #[test]
    fn an_atomic_finds_every_store_to_its_word_and_no_other() {
        let mut stage = Stage::new(5);
        stage.store(0, A, 1);
        stage.store(0, B, 2);
        stage.0.settle(&mut stage.1, A, 8);
        assert_eq!((stage.in_memory(A), stage.in_memory(B)), (1, 0));
    }

    #[test]
    fn a_load_puts_bytes_of_several_stores_together() {
        let mut stage = Stage::new(6);
        stage.0.store(&mut stage.1, 0, (A + 6, &[1, 2, 3, 4]), Kind::Bytes, 0);
        stage.0.store(&mut stage.1, 0, (A + 7, &[9]), Kind::Signal, 0);
        assert_eq!(stage.load(0, A).to_le_bytes(), [0, 0, 0, 0, 0, 0, 1, 9]);
        assert_eq!(stage.load(0, B).to_le_bytes(), [3, 4, 0, 0, 0, 0, 0, 0]);
        assert_eq!(stage.0.pending.len(), 3, "cut at the word's end");
    }

    #[test]
    fn the_same_seed_makes_the_same_order() {
        let order = |seed| {
            let mut stage = Stage::new(seed);
            (0..40).for_each(|word| stage.store(0, A + 8 * word, word));
            stage.fence(0, Scope::System);
            assert!(stage.0.counts().1 > 0);
            stage.1.order
        };
        assert_eq!(order(9), order(9));
        assert_ne!(order(9), order(10));
    }

    #[test]
    fn a_full_buffer_gives_its_oldest_away() {
        let mut stage = Stage::new(7);
        (0..=CAPACITY as u64).for_each(|word| stage.store(0, A + 8 * word, 1));
        assert_eq!((stage.0.pending.len(), stage.in_memory(A)), (CAPACITY, 1));
    }
}
