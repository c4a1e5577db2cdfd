//! For tests: memory between guard pages, where one byte too far is a fault; and the end of threads.

use std::io;
use std::os::fd::AsRawFd;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const PAGE: usize = 4096;

/// Sets its flag also when an assertion fails: a scope waits for its threads.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Leases a file that nothing else has open: an open waits as long as the kernel waits for the holder
/// (`fs.lease-break-time`, 45 s); one without waiting is refused. The holder is told by an ignored signal.
///
/// Errors: the kernel's, as where a file system knows no leases.
pub fn lease(file: &impl AsRawFd) -> io::Result<()> {
    /// Of `linux/fcntl.h`.
    const F_SETSIG: i32 = 10;
    for (command, value) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_WRLCK)] {
        // SAFETY: plain system call on a descriptor of the caller's.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, value) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Pages that are not there: a read waits until they are served, also in the kernel (userfaultfd(2)).
#[cfg(test)]
pub struct Absent {
    start: *mut libc::c_void,
    len: usize,
    fault: OwnedFd,
}

#[cfg(test)]
impl Absent {
    /// `len` bytes, whole pages. Errors: the kernel's, as without the right to it.
    pub fn new(len: usize) -> io::Result<Absent> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        // SAFETY: plain system call.
        let raw = crate::os::system::check(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })?;
        // SAFETY: the kernel just gave us this descriptor.
        let fault = unsafe { std::os::fd::FromRawFd::from_raw_fd(raw as i32) };
        let absent = Absent { start, len, fault };
        // UFFDIO_API with version 0xaa, and UFFDIO_REGISTER for pages that are missing.
        absent.control(0xc018_aa3f, [0xaa, 0, 0, 0])?;
        absent.control(0xc020_aa00, [start as u64, len as u64, 1, 0])?;
        Ok(absent)
    }

    /// First byte.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    /// Puts zeroes there (UFFDIO_ZEROPAGE), and wakes the readers.
    pub fn serve(&self) -> io::Result<()> {
        self.control(0xc020_aa04, [self.start as u64, self.len as u64, 0, 0])
    }

    fn control(&self, request: u64, mut words: [u64; 4]) -> io::Result<()> {
        // SAFETY: each of these requests is about 32 bytes at most, of our own mapping.
        crate::os::system::check(unsafe {
            libc::syscall(libc::SYS_ioctl, self.fault.as_raw_fd(), request, words.as_mut_ptr())
        })
        .map(|_| ())
    }
}

#[cfg(test)]
impl Drop for Absent {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

// SAFETY: the mapping is only handed to the kernel.
#[cfg(test)]
unsafe impl Sync for Absent {}

/// Whether nobody has tried to open it since.
#[cfg(test)]
pub fn is_leased(file: &impl AsRawFd) -> bool {
    // SAFETY: plain system call on a descriptor of the caller's.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_WRLCK }
}

/// Objects in guarded memory start on multiples of this, as queues must.
const ALIGN: usize = 64;

/// Pages of zeroes with an inaccessible page before and behind. The bytes asked for end where the page behind
/// begins, except for the padding to a multiple of [`ALIGN`].
#[derive(Debug)]
pub struct Guarded {
    mapping: *mut u8,
    mapped: usize,
    start: usize,
    len: usize,
}

// SAFETY: the memory belongs to the value and is used by atomics only.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// `len` bytes, rounded up to a multiple of 64.
    ///
    /// Errors: the kernel's.
    pub fn new(len: usize) -> io::Result<Guarded> {
        let len = len.max(1).next_multiple_of(ALIGN);
        let inner = len.next_multiple_of(PAGE);
        let mapped = inner + 2 * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let guarded = Guarded { mapping: mapping.cast(), mapped, start: PAGE + inner - len, len };
        guarded.change(0, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(guarded)
    }

    /// Changes the rights from the page of this byte on.
    fn change(&self, offset: usize, protection: i32) -> io::Result<()> {
        assert!(offset < self.len, "byte {offset} of {}", self.len);
        let first = (self.start + offset) / PAGE * PAGE;
        // SAFETY: inside the mapping: its first page stays out.
        let inner = unsafe { self.mapping.add(first) };
        // SAFETY: whole pages of our own mapping; nobody holds references into them but by atomics.
        let result = unsafe { libc::mprotect(inner.cast(), self.mapped - PAGE - first, protection) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.mapping as u64 + self.start as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none; never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The word at a byte offset that is a multiple of 4.
    ///
    /// # Panics
    /// When it is outside or not aligned. After [`Guarded::protect`] a load or store through it faults.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "word at {offset} of {}", self.len);
        // SAFETY: in bounds, as just checked.
        let at = unsafe { self.mapping.add(self.start + offset) };
        // SAFETY: aligned; the mapping lives as long as `self`; it is used by atomics or outside of Rust.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// Whether the first byte's page is in memory.
    #[cfg(test)]
    pub fn is_present(&self) -> bool {
        let mut present = 0;
        let first = self.mapping.wrapping_add(self.start / PAGE * PAGE);
        // SAFETY: a page of ours, and room for the one byte that tells about it.
        assert_eq!(unsafe { libc::mincore(first.cast(), PAGE, &mut present) }, 0);
        present & 1 == 1
    }

    /// Takes every right to the pages from that of this byte on away, as if the program had unmapped them.
    ///
    /// Errors: the kernel's.
    pub fn protect(&self, offset: usize) -> io::Result<()> {
        self.change(offset, libc::PROT_NONE)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody can hold references into it any more.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::dma::Host;
    use mlx5_device::memory::Memory;

    #[test]
    fn a_byte_beyond_either_end_is_a_fault() {
        let host = Host::new().unwrap();
        for len in [64, 4096, 100_000] {
            let memory = Guarded::new(len).unwrap();
            let mut byte = [0; 1];
            assert!(host.read(memory.address() + memory.len() as u64 - 1, &mut byte).is_ok());
            assert!(host.read(memory.address() + memory.len() as u64, &mut byte).is_err());
            assert!(host.read((memory.address() & !0xfff) - 1, &mut byte).is_err());
            memory.word(0).store(7, Ordering::Relaxed);
            assert_eq!(host.load32(memory.address()), Ok(7));
            memory.protect(0).unwrap();
            assert!(host.load32(memory.address()).is_err());
        }
    }
}
