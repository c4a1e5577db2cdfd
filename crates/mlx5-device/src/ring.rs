//! A ring of work queue entries in a program's memory, and its record's word that counts the posts.

use mlx5_layout::doorbell::counter_of;

use crate::memory::Memory;

#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    pub address: u64,
    /// A power of two; 0: the queue has none.
    pub entries: u32,
    /// log2 of an entry's bytes.
    pub shift: u32,
    /// Address of the record's word.
    pub record: u64,
}

impl Ring {
    /// Address of the entry with this running index.
    pub(super) fn entry(&self, index: u16) -> u64 {
        let place = u64::from(u32::from(index) & self.entries.wrapping_sub(1));
        // It lies in the ring, which was probed whole.
        self.address.wrapping_add(place.wrapping_shl(self.shift))
    }

    /// What the record says; none: it cannot be read.
    pub(super) fn read_record<M: Memory>(&self, memory: &M) -> Option<u16> {
        memory.load32(self.record).ok().map(|word| counter_of(word.to_ne_bytes()))
    }
}
