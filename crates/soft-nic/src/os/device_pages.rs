//! The file behind a device's descriptors: every page that a program may map, UAR pages among them, lies in
//! it at the offset that the program names.
//!
//! So the kernel itself carries out an `mmap` of a device descriptor that is not interposed: a program may
//! replace the C library's `mmap` and make the system call itself, as UCX's memory hooks do. Absent pages are
//! holes in the file; its size can never change, so that no mapping of it faults.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlx5_device::memory::Registers;

use super::shared_memory::{BOTH, SharedMemory};
use super::system::{self, PAGE};

/// First page that is given out: above all that the fixed offsets of the ABI (8 bits, 8 bits) can name.
const FIRST_PAGE: u64 = 1 << 16;

/// One process's file of pages.
#[derive(Debug)]
pub struct DevicePages {
    fd: OwnedFd,
    next: AtomicU64,
}

impl DevicePages {
    /// Size of the file. No other program makes a sparse file of this size, so it marks a descriptor as ours.
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

    /// Offset of a page never handed out before: a mapping that outlives its page must not reach the next.
    ///
    /// Errors: `ENOMEM` when all have been given out, after 2^28.
    fn take(&self) -> io::Result<u64> {
        let offset = self.next.fetch_add(1, Ordering::Relaxed).saturating_mul(PAGE as u64);
        if offset < Self::BYTES { Ok(offset) } else { Err(io::Error::from_raw_os_error(libc::ENOMEM)) }
    }

    /// The NIC's own mapping of the page at `offset`.
    ///
    /// Errors: the kernel's (memory limit).
    pub fn map(&self, offset: u64) -> io::Result<SharedMemory> {
        SharedMemory::map_at(&self.fd, offset as usize, PAGE, BOTH)
    }

    /// Gives the memory of a page back.
    fn release(&self, offset: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a system call on our descriptor; a process that still maps the page finds zeros.
        unsafe { libc::syscall(libc::SYS_fallocate, self.fd.as_raw_fd(), mode, offset as usize, PAGE) };
    }
}

/// One UAR page, which the application maps from the device's descriptor at [`UarPage::offset`]. The NIC has
/// its own mapping, so that an application (or libmlx5 at close) that unmaps early cannot make it touch
/// foreign memory. Not inherited over fork, as the kernel's UAR mappings are not (VM_DONTCOPY).
#[derive(Debug)]
pub struct UarPage {
    pages: Arc<DevicePages>,
    offset: u64,
    memory: SharedMemory,
}

impl UarPage {
    /// Makes a zeroed page.
    ///
    /// Errors: the kernel's (descriptor limit, memory limit).
    pub fn new(pages: &Arc<DevicePages>) -> io::Result<UarPage> {
        let offset = pages.take()?;
        let memory = pages.map(offset)?;
        Ok(UarPage { pages: pages.clone(), offset, memory })
    }

    /// Where in the device's file it lies.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Drop for UarPage {
    fn drop(&mut self) {
        self.pages.release(self.offset);
    }
}

impl Registers for UarPage {
    fn take(&self, offset: usize) -> Option<[u8; 8]> {
        if offset >= PAGE || !offset.is_multiple_of(8) {
            return None;
        }
        let word = self.memory.word(offset);
        // Look before the locked swap: an idle register then costs a shared cache line, not an exclusive one.
        if word.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let value = word.swap(0, Ordering::AcqRel);
        (value != 0).then(|| value.to_ne_bytes())
    }

    fn any(&self, offsets: &[usize]) -> bool {
        offsets.iter().any(|offset| self.memory.word(*offset).load(Ordering::Relaxed) != 0)
    }
}
