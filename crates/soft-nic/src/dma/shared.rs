//! Memory shared between NIC processes: words as atomics, rings as bytes that only the guarded copies touch.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mlx5_device::memory::{Fault, Order, Segment, Segments};

use super::host::Host;
use super::{HostPages, gpu, system};

/// Pieces below this length go into a ring faster by plain stores than by a string instruction.
const STRING_BYTES: usize = 4096;

/// A mapping of a sealed memfd. Unmapped on drop, except in a fork child, which never had it (MADV_DONTFORK).
#[derive(Debug)]
pub struct SharedMemory {
    base: *mut u8,
    len: usize,
    generation: u32,
}

// SAFETY: the pointer is to a mapping that any thread may use; all access is by atomics or by guarded copies.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps the first `len` bytes (whole pages). The memfd must be sealed against shrinking, or a peer could make our
    /// loads fault: [`system::sealed_len`] tells.
    ///
    /// Errors: the kernel's (`ENOMEM`).
    pub fn map(fd: &OwnedFd, len: usize) -> io::Result<SharedMemory> {
        Self::map_at(fd, 0, len)
    }

    /// The same from an offset (whole pages).
    pub(super) fn map_at(fd: &OwnedFd, offset: usize, len: usize) -> io::Result<SharedMemory> {
        Self::map_for(fd, offset, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// The same for loads alone: a store through it faults.
    pub(super) fn map_readable(fd: &OwnedFd, offset: usize, len: usize) -> io::Result<SharedMemory> {
        Self::map_for(fd, offset, len, libc::PROT_READ)
    }

    fn map_for(fd: &OwnedFd, offset: usize, len: usize, access: i32) -> io::Result<SharedMemory> {
        let base = reserve(len)?;
        let memory = SharedMemory { base, len, generation: system::fork_generation() };
        place(base, fd, offset, len, access)?;
        Ok(memory)
    }

    /// Where it lies.
    pub(super) fn address(&self) -> u64 {
        self.base as u64
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// When the offset is not aligned or outside: offsets are our own constants, never a peer's numbers.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "word at {offset} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: aligned (the base is a page); the mapping lives as long as `self`, and everyone uses this memory by
        // atomics.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// `N` words in a row from `offset`, checked once.
    ///
    /// # Panics
    /// As [`SharedMemory::word`].
    fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8) && offset + 8 * N <= self.len, "words at {offset} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: aligned (the base is a page); an atomic has the layout of its integer; the mapping lives as long as
        // `self`, and everyone uses this memory by atomics.
        unsafe { &*at.cast::<[AtomicU64; N]>() }
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// As [`SharedMemory::word`].
    pub fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "word at {offset} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.generation == system::fork_generation() {
            unmap(self.base, self.len);
        }
    }
}

/// A byte ring mapped twice in a row, so that a record that wraps is still one piece of addresses.
///
/// Positions count bytes for ever (they would wrap after 2^64); their low bits are the offset.
#[derive(Debug)]
pub struct RingMemory {
    /// Shown to a GPU when the ring first carries something of one. It is unmapped when the GPU sees it no more.
    pages: OnceLock<Option<HostPages>>,
    memory: ManuallyDrop<SharedMemory>,
    capacity: usize,
}

impl RingMemory {
    /// Maps `capacity` bytes (a power of two, whole pages) from `offset` of the memfd.
    ///
    /// Errors: the kernel's, or `InvalidInput` for another capacity.
    pub fn map(fd: &OwnedFd, offset: usize, capacity: usize) -> io::Result<RingMemory> {
        if !capacity.is_power_of_two() || capacity < system::PAGE {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let base = reserve(2 * capacity)?;
        let memory = SharedMemory { base, len: 2 * capacity, generation: system::fork_generation() };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        place(base, fd, offset, capacity, access)?;
        // SAFETY: inside the reservation.
        place(unsafe { base.add(capacity) }, fd, offset, capacity, access)?;
        Ok(RingMemory { pages: OnceLock::new(), memory: ManuallyDrop::new(memory), capacity })
    }

    /// Bytes in the ring.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn offset(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }

    /// Address of `len` bytes at `position`.
    fn at(&self, position: u64, len: usize) -> u64 {
        assert!(len <= self.capacity, "{len} bytes in a ring of {}", self.capacity);
        self.memory.base as u64 + self.offset(position) as u64
    }

    /// The word at a position that is a multiple of 8, for what two processes agree on in place.
    pub fn word(&self, position: u64) -> &AtomicU64 {
        self.memory.word(self.offset(position))
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
        system::prefetch(self.memory.base as u64 + self.offset(position) as u64);
    }

    /// Copies bytes of ours into the ring.
    pub fn put(&self, host: &Host, position: u64, bytes: &[u8]) -> Result<(), Fault> {
        host.copy_bytes(self.at(position, bytes.len()), bytes.as_ptr() as u64, bytes.len(), true)
    }

    /// Copies bytes of the ring into a buffer of ours, each loaded once.
    pub fn take(&self, host: &Host, position: u64, out: &mut [u8]) -> Result<(), Fault> {
        use mlx5_device::memory::Memory;
        host.read(self.at(position, out.len()), out)
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
    pub fn gather(
        &self,
        host: &Host,
        position: u64,
        from: &[Segment],
        skip: u64,
        len: usize,
    ) -> Result<(), Fault> {
        let mut to = self.at(position, len);
        self.show_to_gpu(from);
        // In any order: no reader looks at a record before it is published. A string instruction is the faster for long pieces.
        let target = [Segment { addr: to, len: len as u64 }];
        if host.is_helped(len as u64) && host.share(&target, from, skip, len as u64)? {
            return Ok(());
        }
        // One piece from its start, as of almost every small message, needs no walk.
        if let ([only], 0) = (from, skip)
            && len as u64 <= only.len
        {
            return host.copy_bytes(to, only.addr, len, len < STRING_BYTES);
        }
        let mut from = Segments::new(from);
        from.advance(skip);
        let mut left = len as u64;
        while left > 0 {
            let Some(piece) = from.peek(left) else {
                return Err(Fault { addr: 0 });
            };
            host.copy_bytes(to, piece.addr, piece.len as usize, piece.len < STRING_BYTES as u64)?;
            from.advance(piece.len);
            to += piece.len;
            left -= piece.len;
        }
        Ok(())
    }

    /// Scatters `len` bytes of the ring into the application's memory; see [`Order::Increasing`] for what helpers do to it.
    pub fn scatter(
        &self,
        host: &Host,
        position: u64,
        to: &[Segment],
        len: usize,
        order: Order,
    ) -> Result<(), Fault> {
        self.show_to_gpu(to);
        let from = [Segment { addr: self.at(position, len), len: len as u64 }];
        host.copy_helped(to, &from, len as u64, order)
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

/// Reserves addresses, so that two mappings can be placed side by side.
fn reserve(len: usize) -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe { libc::syscall(libc::SYS_mmap, 0usize, len, libc::PROT_NONE, flags, -1, 0usize) };
    if base == -1 { Err(io::Error::last_os_error()) } else { Ok(base as *mut u8) }
}

/// Maps a piece of the memfd over a part of a reservation.
fn place(at: *mut u8, fd: &OwnedFd, offset: usize, len: usize, access: i32) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: `at..at + len` lies in a reservation of ours.
    let got = unsafe { libc::syscall(libc::SYS_mmap, at, len, access, flags, fd.as_raw_fd(), offset) };
    if got == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made; a fork child gets none of it.
    unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_DONTFORK) };
    Ok(())
}

fn unmap(base: *mut u8, len: usize) {
    // SAFETY: our own reservation; no reference is left, since the owner is being dropped.
    unsafe { libc::syscall(libc::SYS_munmap, base, len) };
}
