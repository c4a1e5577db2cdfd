//! Mappings of memory that processes share: words as atomics, bytes by the guarded copies of `dma` only.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::forks::fork_generation;
use super::system::check;

/// Accesses that a mapping is for.
pub const LOADS: i32 = libc::PROT_READ;
pub const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

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
    /// Maps the first `len` bytes (whole pages). The memfd must be sealed against shrinking, or a peer could
    /// make our loads fault: [`sealed_len`](super::system::sealed_len) tells.
    ///
    /// Errors: the kernel's (`ENOMEM`).
    pub fn map(fd: &OwnedFd, len: usize) -> io::Result<SharedMemory> {
        Self::map_at(fd, 0, len, BOTH)
    }

    /// Maps from an offset (whole pages). Where `access` is [`LOADS`] a store faults.
    pub fn map_at(fd: &OwnedFd, offset: usize, len: usize, access: i32) -> io::Result<SharedMemory> {
        let memory = Self::reserve(len)?;
        memory.place(0, fd, offset, len, access)?;
        Ok(memory)
    }

    /// The same piece (whole pages) twice in a row.
    pub fn map_twice(fd: &OwnedFd, offset: usize, len: usize) -> io::Result<SharedMemory> {
        let memory = Self::reserve(2 * len)?;
        memory.place(0, fd, offset, len, BOTH)?;
        memory.place(len, fd, offset, len, BOTH)?;
        Ok(memory)
    }

    /// Reserves addresses, so that two mappings can be placed side by side.
    fn reserve(len: usize) -> io::Result<SharedMemory> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base =
            check(unsafe { libc::syscall(libc::SYS_mmap, 0usize, len, libc::PROT_NONE, flags, -1, 0usize) })?;
        Ok(SharedMemory { base: base as *mut u8, len, generation: fork_generation() })
    }

    /// Maps a piece of the memfd over a part of the reservation.
    fn place(&self, at: usize, fd: &OwnedFd, offset: usize, len: usize, access: i32) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: inside the reservation.
        let at = unsafe { self.base.add(at) };
        // SAFETY: `at..at + len` lies in a reservation of ours.
        check(unsafe { libc::syscall(libc::SYS_mmap, at, len, access, flags, fd.as_raw_fd(), offset) })?;
        // SAFETY: the mapping just made; a fork child gets none of it.
        unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_DONTFORK) };
        Ok(())
    }

    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// When the offset is not aligned or outside: offsets are our own constants, never a peer's numbers.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let [word] = self.words(offset);
        word
    }

    /// `N` words in a row from `offset`, checked once.
    ///
    /// # Panics
    /// As [`SharedMemory::word`].
    pub fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(8) && offset + 8 * N <= self.len, "words at {offset} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let at = unsafe { self.base.add(offset) };
        // SAFETY: aligned (the base is a page); an atomic has the layout of its integer; the mapping lives as
        // long as `self`, and everyone uses this memory by atomics.
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
        // SAFETY: as in `words`.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.generation == fork_generation() {
            // SAFETY: our own reservation; no reference is left, since the owner is being dropped.
            unsafe { libc::syscall(libc::SYS_munmap, self.base, self.len) };
        }
    }
}
