//! Memory that the CPUs of this process reach: copies and stores that never ask whether an address is a GPU's.
//!
//! A GPU's memory that the program mapped into a region of the host's is a [`Fault`] like any page that no CPU can reach.

use mlx5_device::memory::Fault;

pub use super::guard::CpuMemory;

impl CpuMemory {
    /// Copies a piece of a message; where it is `ordered` and the `last`, the last word goes by a release store.
    #[inline(always)]
    pub(super) fn copy_piece(
        self,
        to: u64,
        from: u64,
        len: u64,
        ordered: bool,
        last: bool,
    ) -> Result<(), Fault> {
        if !(ordered && last) {
            return self.copy_bytes(to, from, len as usize, ordered);
        }
        if ends_with_its_last_word(to, len) {
            return self.copy_bytes(to, from, len as usize, true);
        }
        self.copy_then_word(to, from, len)
    }

    /// Copies all but the last word, and stores that by a release store.
    #[inline(never)]
    fn copy_then_word(self, to: u64, from: u64, len: u64) -> Result<(), Fault> {
        let word = last_word(to, len);
        self.copy_bytes(to, from, len as usize - word, true)?;
        let mut value = [0; 8];
        self.copy_bytes(value.as_mut_ptr() as u64, from + len - word as u64, word, true)?;
        self.store(to + len - word as u64, u64::from_le_bytes(value), word)
    }

    /// Stores the last `tail` bytes of a message of `len`, which lie at `word`, by a release store.
    pub(super) fn store_last(self, to: u64, len: u64, tail: u64, word: u64) -> Result<(), Fault> {
        if tail == 0 { Ok(()) } else { self.copy_piece(to + len - tail, word, tail, true, true) }
    }
}

/// Whether the guarded copy by itself stores the last word last and whole, and every store of an x86 is a release: one word,
/// and a CQE or a WQE.
pub(super) fn ends_with_its_last_word(to: u64, len: u64) -> bool {
    (len == 8 && to.is_multiple_of(8)) || (len == 64 && to.is_multiple_of(16))
}

/// Bytes of the last naturally aligned word (8, 4, 2 or 1) of `addr..addr + len`; `len` must not be 0.
pub(super) fn last_word(addr: u64, len: u64) -> usize {
    let end = addr.wrapping_add(len);
    1 << end.trailing_zeros().min(len.ilog2()).min(3)
}
