//! The shared memory of one block: its dynamic part, then each variable as a lane first meets it.
//!
//! Stricter than a GPU's: it begins as bytes of ones, a NaN in every format, and what lies behind each
//! variable is checked when the block ends.

use std::ops::Range;

/// As much as a block of an H100 may have (CUDA C++ Programming Guide, compute capability 9.0).
pub const MAX_SHARED_BYTES: usize = 227 << 10;

/// Bytes behind each variable that no lane may write.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xa5;
/// What uninitialised memory holds.
const UNSET: u8 = 0xff;

/// As no variable is aligned more.
const PIECE: usize = 1024;

#[repr(align(1024))]
#[derive(Clone)]
struct Piece {
    bytes: [u8; PIECE],
}

#[derive(Debug)]
struct Variable {
    /// What tells it from others: an address.
    tag: usize,
    name: String,
    offset: usize,
    bytes: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct SharedMemory {
    memory: Vec<Piece>,
    variables: Vec<Variable>,
    /// Where the next variable may begin.
    end: usize,
    /// What the variables take, without guards.
    bytes: usize,
}

impl SharedMemory {
    /// A block's, with so many dynamic bytes, in the place of an earlier block's.
    pub(crate) fn begin(&mut self, dynamic: usize) {
        self.variables.clear();
        (self.end, self.bytes) = (0, 0);
        if dynamic > 0 {
            self.place(0, "the dynamic part", dynamic, 1);
        }
    }

    /// The dynamic part, or where it would be.
    pub(crate) fn dynamic(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().cast()
    }

    /// A variable's place. None: the block has no room for it.
    pub(crate) fn variable(&mut self, tag: usize, name: &str, bytes: usize, align: usize) -> Option<*mut u8> {
        let known =
            self.variables.iter().find(|variable| variable.tag == tag).map(|variable| variable.offset);
        let offset = match known {
            Some(offset) => offset,
            None if align > align_of::<Piece>() || !self.has_room(bytes, align) => return None,
            None => self.place(tag, name, bytes, align),
        };
        Some(self.memory.as_mut_ptr().cast::<u8>().wrapping_add(offset))
    }

    fn has_room(&self, bytes: usize, align: usize) -> bool {
        let end = self.end.next_multiple_of(align) + bytes + GUARD_BYTES;
        self.bytes + bytes <= MAX_SHARED_BYTES && end <= 2 * MAX_SHARED_BYTES
    }

    fn place(&mut self, tag: usize, name: &str, bytes: usize, align: usize) -> usize {
        if self.memory.is_empty() {
            // Never grown: lanes keep addresses. Guards and alignment take less than as much again.
            self.memory = vec![Piece { bytes: [0; PIECE] }; 2 * MAX_SHARED_BYTES / PIECE];
        }
        let offset = self.end.next_multiple_of(align);
        let end = offset + bytes + GUARD_BYTES;
        self.fill(offset..offset + bytes, UNSET);
        self.fill(offset + bytes..end, GUARD);
        self.variables.push(Variable { tag, name: name.to_owned(), offset, bytes });
        (self.end, self.bytes) = (end, self.bytes + bytes);
        offset
    }

    /// A variable behind whose end something was written.
    pub(crate) fn overrun(&self) -> Option<String> {
        let written = |variable: &&Variable| {
            let end = variable.offset + variable.bytes;
            (end..end + GUARD_BYTES).any(|at| self.memory[at / PIECE].bytes[at % PIECE] != GUARD)
        };
        self.variables
            .iter()
            .find(written)
            .map(|variable| format!("{} ({} bytes)", variable.name, variable.bytes))
    }

    fn fill(&mut self, range: Range<usize>, byte: u8) {
        let mut at = range.start;
        while at < range.end {
            let from = at % PIECE;
            let to = PIECE.min(from + range.end - at);
            self.memory[at / PIECE].bytes[from..to].fill(byte);
            at += to - from;
        }
    }
}
