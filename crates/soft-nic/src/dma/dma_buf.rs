//! A dma-buf, mapped by the process that registers it: what `ibv_reg_dmabuf_mr` hands over.
//!
//! A descriptor counts as a dma-buf by the magic number of its file system (`linux/magic.h`). Its size is
//! where `lseek(SEEK_END)` leads (`Documentation/driver-api/dma-buf.rst`). Its pages are reached by `mmap`,
//! where the exporter allows one. Most exporters map pages that can be neither pinned nor populated in
//! advance (`VM_PFNMAP`: udmabuf, the system heap), so the ranges of all mappings are known here ([`probe`]).
//! Left out: buffers in GPU memory, which cannot be mapped; `gpu` finds those.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Mutex;

use mlx5_device::memory::Fault;
use nix::sys::statfs::{FsType, fstatfs};
use nix::unistd::{Whence, lseek};

use crate::os::shared_memory::{BOTH, LOADS, SharedMemory};
use crate::os::system::{PAGE, duplicate};
use crate::os::{PerProcess, fork_generation, locked};

/// `DMA_BUF_MAGIC` of `linux/magic.h`: "DMAB".
const DMA_BUF_MAGIC: FsType = FsType(0x444d_4142);

/// Mappings that one process may have at a time; each registration is compared with all of them.
pub const MAX_DMA_BUFS: usize = 256;

/// Why a descriptor could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DmaBufError {
    #[error("descriptor {fd} is not open")]
    BadDescriptor { fd: RawFd },
    #[error("descriptor {fd} is no dma-buf")]
    NoDmaBuf { fd: RawFd },
    /// The kernel gave no descriptor of our own for it: this process has too many.
    #[error("no descriptor of the NIC's own for it: errno {errno}")]
    Kernel { errno: i32 },
    #[error("{length:#x} bytes at offset {offset:#x} of a dma-buf of {size:#x} bytes")]
    Range { offset: u64, length: u64, size: u64 },
    #[error(
        "its exporter lets no program map it (errno {errno}), as of a GPU's memory, and no memory of a GPU that this process \
         allocated holds it where iova says"
    )]
    NotMappable { errno: i32, size: u64 },
    /// No memory for a mapping, or [`MAX_DMA_BUFS`] are there.
    #[error("no room for one more mapping")]
    Exhausted,
}

impl DmaBufError {
    /// As `ibv_reg_dmabuf_mr` gives: a kernel's errno; `EOPNOTSUPP` for what a card, not this NIC, reaches.
    pub fn errno(&self) -> i32 {
        match self {
            DmaBufError::BadDescriptor { .. } => libc::EBADF,
            DmaBufError::NoDmaBuf { .. } | DmaBufError::Range { .. } => libc::EINVAL,
            DmaBufError::NotMappable { .. } => libc::EOPNOTSUPP,
            DmaBufError::Kernel { errno } => *errno,
            DmaBufError::Exhausted => libc::ENOMEM,
        }
    }
}

/// Which descriptors count as dma-bufs.
pub type Recognise = fn(&OwnedFd) -> bool;

/// Whether this is one: by the file system that it is of.
pub fn is_dma_buf(fd: &OwnedFd) -> bool {
    fstatfs(fd).is_ok_and(|about| about.filesystem_type() == DMA_BUF_MAGIC)
}

/// A piece of a dma-buf, mapped. Holds the buffer until it is dropped, whatever becomes of the descriptor.
#[derive(Debug)]
pub struct DmaBuf {
    memory: SharedMemory,
    skip: usize,
    generation: u32,
}

impl DmaBuf {
    /// Maps `length` bytes from `offset` of `fd`, if `recognise` says that it is a dma-buf. `write`: the NIC
    /// is to write there; otherwise a buffer that only allows reading will do.
    ///
    /// Errors: see [`DmaBufError`]; nothing is left behind.
    pub fn map(
        fd: RawFd,
        offset: u64,
        length: u64,
        write: bool,
        recognise: Recognise,
    ) -> Result<DmaBuf, DmaBufError> {
        // Duplicated: another thread may put something else under the program's descriptor meanwhile.
        let buffer = duplicate(fd).map_err(|error| match error.raw_os_error() {
            Some(libc::EBADF) | None => DmaBufError::BadDescriptor { fd },
            Some(errno) => DmaBufError::Kernel { errno },
        })?;
        if !recognise(&buffer) {
            return Err(DmaBufError::NoDmaBuf { fd });
        }
        let size = lseek(&buffer, 0, Whence::SeekEnd).ok().and_then(|end| u64::try_from(end).ok());
        let size = size.ok_or(DmaBufError::NoDmaBuf { fd })?;
        let outside = DmaBufError::Range { offset, length, size };
        let end = offset.checked_add(length).filter(|end| *end <= size);
        let page = PAGE as u64;
        let first = offset & !(page - 1);
        // As `ib_umem_num_pages` counts: nothing in the middle of a page is one page, at its start none.
        let pages = end.and_then(|end| end.checked_next_multiple_of(page)).map(|end| end - first);
        let mapped = pages.filter(|bytes| *bytes > 0).and_then(|bytes| usize::try_from(bytes).ok());
        let (Some(mapped), Ok(from)) = (mapped, usize::try_from(first)) else { return Err(outside) };
        let map = |access| SharedMemory::map_at(&buffer, from, mapped, access);
        let (memory, writable) = match map(BOTH) {
            Err(error) if !write && error.raw_os_error() == Some(libc::EACCES) => (map(LOADS), false),
            memory => (memory, true),
        };
        let memory = memory.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOMEM) => DmaBufError::Exhausted,
            errno => DmaBufError::NotMappable { errno: errno.unwrap_or(0), size },
        })?;
        let mut ranges = locked(RANGES.get());
        if ranges.len() >= MAX_DMA_BUFS {
            return Err(DmaBufError::Exhausted);
        }
        let start = memory.address();
        ranges.push((start, start + mapped as u64, writable));
        Ok(DmaBuf { memory, skip: (offset - first) as usize, generation: fork_generation() })
    }

    /// Address of the piece's first byte in this process.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.skip as u64
    }
}

/// First byte, byte after the last, and whether the NIC may write there.
type Range = (u64, u64, bool);

/// The mappings of this process.
static RANGES: PerProcess<Mutex<Vec<Range>>> = PerProcess::empty();

impl Drop for DmaBuf {
    /// Before it is unmapped: another thread's memory may lie there right afterwards.
    fn drop(&mut self) {
        // A fork child's list has none of its parent's mappings, and perhaps another one at this address.
        if self.generation == fork_generation() {
            locked(RANGES.get()).retain(|(start, ..)| *start != self.memory.address());
        }
    }
}

/// What is known of a range that lies in one mapping: whether it may be used so. `None`: it lies in none.
pub(super) fn probe(addr: u64, end: u64, write: bool) -> Option<Result<(), Fault>> {
    let ranges = locked(RANGES.get());
    let (.., writable) = ranges.iter().find(|(first, last, _)| *first <= addr && end <= *last)?;
    Some(if *writable || !write { Ok(()) } else { Err(Fault { addr }) })
}

#[cfg(test)]
#[path = "dma_buf/tests.rs"]
mod tests;
