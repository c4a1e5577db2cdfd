//! Which cases the parity test posted, so that one that chance left out fails it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::MAX_SGES;

/// Bytes of a segment, the unit that a WQE's length is counted in, and segments of a block.
const SEGMENT_BYTES: u64 = 16;
const BLOCK_SEGMENTS: u32 = 4;
const BLOCK_WORDS: usize = 8;

/// WQEs of each length that must have crossed the ring's end.
const CROSSED: u64 = 5;

/// What was posted.
#[derive(Default)]
pub struct Covered {
    /// Operation, pieces, inline.
    pub pieces: BTreeSet<(u64, usize, bool)>,
    /// Operation, bytes.
    pub inline_bytes: BTreeSet<(u64, u64)>,
    /// Entries of receives, those with an empty piece as 0.
    pub receive_pieces: BTreeSet<usize>,
    /// WQEs that begin at the ring's end and go on at its start, by their number of blocks.
    across_end: BTreeMap<u32, u64>,
}

impl Covered {
    /// Counts the WQEs of these blocks that lie across the end of `ring`.
    pub fn look_at_the_end(&mut self, ring: &[u64], posted: Range<u64>) {
        let (mut block, length) = (posted.start, (ring.len() / BLOCK_WORDS) as u64);
        while block < posted.end {
            let at = block % length;
            // Control segment: the number of segments is in the low six bits of its eighth byte.
            let segments = u32::from(ring[at as usize * BLOCK_WORDS].to_ne_bytes()[7] & 0x3f);
            assert!(segments > 0, "block {block} begins no WQE");
            let blocks = segments.div_ceil(BLOCK_SEGMENTS);
            if at + u64::from(blocks) > length {
                *self.across_end.entry(blocks).or_default() += 1;
            }
            block += u64::from(blocks);
        }
        assert_eq!(block, posted.end, "WQEs end where the shim's index is");
    }

    /// Each operation with each count of pieces; each that can be inline with each size up to `max_inline`;
    /// receives of each length; and WQEs of each length across the ring's end.
    pub fn assert_all(&self, operations: &[u64], max_inline: u64) {
        for &operation in operations {
            let (is_atomic, may_be_inline) = (operation >= 5, operation < 4);
            for count in if is_atomic { 1..=1 } else { 0..=MAX_SGES } {
                for inline in [false, true] {
                    let came = self.pieces.contains(&(operation, count, inline));
                    assert!(came || inline && !may_be_inline, "{operation} {count} {inline}");
                }
            }
            let sizes = if may_be_inline { 0..max_inline + 1 } else { 0..0 };
            let missing: Vec<u64> =
                sizes.filter(|&bytes| !self.inline_bytes.contains(&(operation, bytes))).collect();
            assert!(missing.is_empty(), "operation {operation} was never inline with {missing:?} bytes");
        }
        assert!(self.receive_pieces.iter().eq(&[0, 1, 2, 3]), "{:?}", self.receive_pieces);
        // The longest: control and address, then the payload behind its length word.
        let longest = (2 + (4 + max_inline).div_ceil(SEGMENT_BYTES) as u32).div_ceil(BLOCK_SEGMENTS);
        for blocks in 2..=longest {
            let crossed = self.across_end.get(&blocks).copied().unwrap_or(0);
            let all = &self.across_end;
            assert!(crossed >= CROSSED, "{crossed} WQEs of {blocks} blocks crossed the ring's end: {all:?}");
        }
    }
}
