//! The file behind a device's descriptors: every page that a program may map lies in it at the offset that the program names.
//!
//! So the kernel itself carries out an `mmap` of a device descriptor that is not interposed: a program may replace the C
//! library's `mmap` and make the system call itself, as UCX's memory hooks do. The file has holes for all pages that there are
//! not; its size can never change, so that no mapping of it faults.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared::SharedMemory;
use super::system::{self, PAGE};

/// First page that is given out: above everything that the fixed offsets of the ABI (8 bits, 8 bits) can name.
const FIRST_PAGE: u64 = 1 << 16;

/// One process's file of pages.
#[derive(Debug)]
pub struct DevicePages {
    fd: OwnedFd,
    next: AtomicU64,
}

impl DevicePages {
    /// Size of the file. No other program makes a sparse file of just this size, so that it tells a descriptor as ours.
    pub const BYTES: u64 = 0x0100_f71c_0000;

    /// An empty file.
    ///
    /// Errors: the kernel's (descriptor limit).
    pub fn new() -> io::Result<DevicePages> {
        let fd = system::memfd("softnic-uverbs", Self::BYTES as usize)?;
        Ok(DevicePages { fd, next: AtomicU64::new(FIRST_PAGE) })
    }

    /// What device descriptors are duplicates of.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Offset of a page that was never handed out before: a mapping that outlives its page must not reach the next.
    ///
    /// Errors: `ENOMEM` when all have been given out, after 2^28.
    pub(super) fn take(&self) -> io::Result<u64> {
        let offset = self.next.fetch_add(1, Ordering::Relaxed).saturating_mul(PAGE as u64);
        if offset < Self::BYTES { Ok(offset) } else { Err(io::Error::from_raw_os_error(libc::ENOMEM)) }
    }

    /// The NIC's own mapping of the page at `offset`.
    ///
    /// Errors: the kernel's (memory limit).
    pub fn map(&self, offset: u64) -> io::Result<SharedMemory> {
        SharedMemory::map_at(&self.fd, offset as usize, PAGE)
    }

    /// Gives the memory of a page back.
    pub(super) fn release(&self, offset: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a system call on our descriptor; a process that still maps the page finds zeros.
        unsafe { libc::syscall(libc::SYS_fallocate, self.fd.as_raw_fd(), mode, offset as usize, PAGE) };
    }
}
