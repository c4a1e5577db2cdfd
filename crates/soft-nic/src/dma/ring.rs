//! Byte rings between NIC processes: words as atomics, payloads as bytes that only the guarded copies touch.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use mlx5_device::memory::{Fault, Order, Segment};

use super::host::{Host, in_pieces, prefetch};
use super::{HostPages, gpu};
use crate::os::SharedMemory;
use crate::os::system::PAGE;

/// Pieces below this length go into a ring faster by plain stores than by a string instruction.
const STRING_BYTES: usize = 4096;

/// A byte ring mapped twice in a row, so that a record that wraps is still one piece of addresses.
///
/// Positions count bytes for ever (they would wrap after 2^64); their low bits are the offset.
#[derive(Debug)]
pub struct RingMemory {
    /// The other end of each copy.
    host: Host,
    /// Shown to a GPU when the ring first carries GPU data. Unmapped when the GPU no longer sees it.
    pages: OnceLock<Option<HostPages>>,
    memory: ManuallyDrop<SharedMemory>,
    capacity: usize,
}

impl RingMemory {
    /// Maps `capacity` bytes (a power of two, whole pages) from `offset` of the memfd.
    ///
    /// Errors: the kernel's, or `InvalidInput` for another capacity.
    pub fn map(host: Host, fd: &OwnedFd, offset: usize, capacity: usize) -> io::Result<RingMemory> {
        if !capacity.is_power_of_two() || capacity < PAGE {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let memory = ManuallyDrop::new(SharedMemory::map_twice(fd, offset, capacity)?);
        Ok(RingMemory { host, pages: OnceLock::new(), memory, capacity })
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn offset(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }

    fn at(&self, position: u64, len: usize) -> u64 {
        assert!(len <= self.capacity, "{len} bytes in a ring of {}", self.capacity);
        self.memory.address() + self.offset(position) as u64
    }

    /// Loads `N` words at a position that is a multiple of 8, each once.
    pub fn load<const N: usize>(&self, position: u64) -> [u64; N] {
        let words: &[AtomicU64; N] = self.memory.words(self.offset(position));
        std::array::from_fn(|i| words[i].load(Ordering::Relaxed))
    }

    /// Stores words at a position that is a multiple of 8.
    pub fn store<const N: usize>(&self, position: u64, words: [u64; N]) {
        let places: &[AtomicU64; N] = self.memory.words(self.offset(position));
        for (place, word) in places.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    /// Asks the processor for the line at a position.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        prefetch(self.memory.address() + self.offset(position) as u64);
    }

    /// Copies bytes of ours into the ring.
    pub fn put(&self, position: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.host.copy_bytes(self.at(position, bytes.len()), bytes.as_ptr() as u64, bytes.len(), true)
    }

    /// Copies bytes of the ring into a buffer of ours, each loaded once.
    pub fn take(&self, position: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.host.copy_bytes(out.as_mut_ptr() as u64, self.at(position, out.len()), out.len(), true)
    }

    #[inline(always)]
    fn show_to_gpu(&self, other: &[Segment]) {
        if gpu::exist() && gpu::touched_by(other) {
            self.pages.get_or_init(|| HostPages::note(self.memory.address(), 2 * self.capacity as u64));
        }
    }

    /// Whether a timed-out copy of a GPU may still write or read here: asked when one has failed. The ring
    /// is not to be used again then; it stays mapped until that copy has ended.
    #[cold]
    pub fn may_still_change(&self) -> bool {
        gpu::may_still_change(self.memory.address(), 2 * self.capacity as u64)
    }

    /// Gathers `len` bytes of the application's memory, from `skip` bytes into the segments, into the ring.
    #[inline(always)]
    pub fn gather(&self, position: u64, from: &[Segment], skip: u64, len: usize) -> Result<(), Fault> {
        let to = self.at(position, len);
        self.show_to_gpu(from);
        // Any order: records are read only once published. For long pieces string instructions are faster.
        let target = [Segment { addr: to, len: len as u64 }];
        if self.host.is_helped(len as u64) && self.host.share(&target, from, skip, len as u64)? {
            return Ok(());
        }
        // One piece from its start, as of almost every small message, needs no walk.
        if let ([only], 0) = (from, skip)
            && len as u64 <= only.len
        {
            return self.host.copy_bytes(to, only.addr, len, len < STRING_BYTES);
        }
        in_pieces((&target, 0), (from, skip), len as u64, |to, from, piece, _| {
            self.host.copy_bytes(to, from, piece as usize, piece < STRING_BYTES as u64)
        })
    }

    /// Scatters `len` bytes of the ring into application memory; for helpers see [`Order::Increasing`].
    pub fn scatter(&self, position: u64, to: &[Segment], len: usize, order: Order) -> Result<(), Fault> {
        self.show_to_gpu(to);
        let from = [Segment { addr: self.at(position, len), len: len as u64 }];
        self.host.copy(to, &from, len as u64, order)
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: taken here alone, and no other code has the value any more.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        match self.pages.take().flatten() {
            Some(pages) => pages.end_with(memory),
            None => drop(memory),
        }
    }
}
