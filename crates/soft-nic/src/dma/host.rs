//! Memory of the process that the NIC runs in.
//!
//! Addresses come from work requests, after the device has checked them against its regions. Whatever else
//! the application did to the pages since (unmapped, protected, truncated the file behind) is a [`Fault`].

use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use mlx5_device::memory::{Fault, Memory, Order, Segment, Segments};

use super::copiers::{Copiers, Cut, SHARED_FROM};
use super::dma_buf;
use super::gpu;
use super::guard::{Atomic, CpuMemory};
use crate::os::locked;
use crate::os::system::PAGE;

/// Bytes at a message's end that are copied in order, after those that the kernel or helpers copied.
pub(super) const IN_ORDER: u64 = 1024;

/// The process's own memory. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    cpu: CpuMemory,
    copiers: Copiers,
}

impl Host {
    /// Installs the fault handler if this is the first.
    ///
    /// Errors: what `sigaction` said.
    pub fn new() -> io::Result<Host> {
        Ok(Host { cpu: CpuMemory::new()?, copiers: Copiers::default() })
    }

    /// This memory with helpers for large copies; a new one has none.
    pub fn helped_by(self, copiers: Copiers) -> Host {
        Host { copiers, ..self }
    }

    /// Whether helpers take part in a copy of so many bytes.
    #[inline]
    pub fn is_helped(&self, len: u64) -> bool {
        len >= SHARED_FROM && self.copiers.helpers() > 0
    }

    /// Copies between two places of this process, forward, the last word by a release store unless relaxed.
    /// With helpers only the last 1 KiB is in order, after the rest.
    pub fn copy(&self, to: &[Segment], from: &[Segment], len: u64, order: Order) -> Result<(), Fault> {
        // One piece on either side, as almost always, needs no walk.
        if let ([target], [source]) = (to, from)
            && (1..=target.len.min(source.len)).contains(&len)
            && !self.is_helped(len)
        {
            return self.copy_piece(target.addr, source.addr, len, order, true);
        }
        self.copy_pieces(to, from, len, order)
    }

    #[inline(never)]
    fn copy_pieces(&self, to: &[Segment], from: &[Segment], len: u64, order: Order) -> Result<(), Fault> {
        let mut done = 0;
        if self.is_helped(len) {
            let shared = len - if order == Order::Increasing { IN_ORDER } else { 0 };
            done = if self.share(to, from, 0, shared)? { shared } else { 0 };
        }
        // Only the very last piece ends with the release store; before it, address order is enough.
        in_pieces((to, done), (from, done), len - done, |to, from, piece, last| {
            self.copy_piece(to, from, piece, order, last)
        })
    }

    /// Copies `len` bytes with the helpers, in any order, and returns true, if processors can copy them.
    /// `skip`: bytes of `from` before the first. No copy is in flight any more when it returns or fails.
    pub(super) fn share(&self, to: &[Segment], from: &[Segment], skip: u64, len: u64) -> Result<bool, Fault> {
        let first = to.iter().find(|segment| segment.len > 0);
        let Some(cut) = first.map(|first| Cut::new(self.copiers, first.addr, len)) else {
            return Ok(false);
        };
        if gpu::touched_by(to) || gpu::touched_by(from) {
            return Ok(false);
        }
        // The first by address: the slices before it have all been claimed, and end.
        let failed = Mutex::new(None::<(u32, Fault)>);
        let copy = |slice: u32| {
            let Range { start, end } = cut.range(slice);
            // What turns out to be a GPU's is a fault: a helper waits for no GPU.
            let copied = in_pieces((to, start), (from, skip + start), end - start, |to, from, piece, _| {
                self.cpu.copy_bytes(to, from, piece as usize, false)
            });
            let Err(fault) = copied else { return true };
            let mut failed = locked(&failed);
            if failed.is_none_or(|(before, _)| slice < before) {
                *failed = Some((slice, fault));
            }
            false
        };
        let whole = self.copiers.share(cut.count(), &copy);
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None if whole => Ok(true),
            Some((_, fault)) => Err(fault),
            // A helper that panicked; its slice may be anything.
            None => Err(Fault { addr: 0 }),
        }
    }

    #[inline(always)]
    pub(super) fn copy_piece(
        &self,
        to: u64,
        from: u64,
        len: u64,
        order: Order,
        last: bool,
    ) -> Result<(), Fault> {
        let ordered = order == Order::Increasing;
        if let Some(done) = gpu::copy(to, from, len, ordered && last) {
            return done;
        }
        self.cpu.copy_piece(to, from, len, ordered, last)
    }

    pub(super) fn copy_bytes(&self, to: u64, from: u64, len: usize, ordered: bool) -> Result<(), Fault> {
        if let Some(done) = gpu::copy(to, from, len as u64, false) {
            return done;
        }
        self.cpu.copy_bytes(to, from, len, ordered)
    }

    #[inline]
    fn atomic(&self, addr: u64, operation: Atomic) -> Result<u64, Fault> {
        aligned(addr, operation.bytes())?;
        if let Some(old) = gpu::atomic(addr, operation) {
            return old;
        }
        self.cpu.atomic(addr, operation)
    }
}

/// Calls `copy` for each piece of the next `left` bytes that is contiguous on both sides, in order: its two
/// addresses, its length, and whether it is the last. The number of each side is the bytes to skip first.
#[inline]
pub(super) fn in_pieces(
    to: (&[Segment], u64),
    from: (&[Segment], u64),
    mut left: u64,
    mut copy: impl FnMut(u64, u64, u64, bool) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let [mut to, mut from] = [to, from].map(|(segments, skip)| {
        let mut walk = Segments::new(segments);
        walk.advance(skip);
        walk
    });
    while left > 0 {
        let (Some(target), Some(source)) = (to.peek(left), from.peek(left)) else {
            // Fewer bytes on one side than the message has: the device checks lengths before it copies.
            return Err(Fault { addr: 0 });
        };
        let piece = target.len.min(source.len);
        left -= piece;
        copy(target.addr, source.addr, piece, left == 0)?;
        to.advance(piece);
        from.advance(piece);
    }
    Ok(())
}

fn aligned(addr: u64, size: u64) -> Result<(), Fault> {
    if addr.is_multiple_of(size) { Ok(()) } else { Err(Fault { addr }) }
}

impl Memory for Host {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.copy_bytes(out.as_mut_ptr() as u64, addr, out.len(), true)
    }

    fn load32(&self, addr: u64) -> Result<u32, Fault> {
        aligned(addr, 4)?;
        // Queues and their records, which alone are read by words, never lie in a GPU's memory.
        self.cpu.load32(addr)
    }

    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault> {
        aligned(addr, 4)?;
        gpu::copy(addr, &raw const value as u64, 4, true)
            .unwrap_or_else(|| self.cpu.store(addr, value.into(), 4))
    }

    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let order = if relaxed { Order::Relaxed } else { Order::Increasing };
        self.copy_piece(addr, bytes.as_ptr() as u64, bytes.len() as u64, order, true)
    }

    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault> {
        self.atomic(addr, Atomic::CompareSwap32 { compare, swap }).map(|old| old as u32)
    }

    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.atomic(addr, Atomic::CompareSwap { compare, swap })
    }

    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault> {
        self.atomic(addr, Atomic::FetchAdd { add })
    }

    #[inline]
    fn prefetch(&self, addr: u64) {
        prefetch(addr);
    }

    #[inline]
    fn has_lagged(&self) -> bool {
        gpu::exist() && gpu::has_lagged()
    }

    /// Makes every page of the range present, writable if `write`, as for a device's pinning; contents stay.
    ///
    /// `MADV_POPULATE_*` (Linux 5.14) takes the faults of a load or a store and touches nothing: it breaks
    /// copy-on-write, refuses read-only and device mappings, and cannot lose another thread's store.
    ///
    /// Errors: the start of the range; the kernel does not say which page.
    fn probe(&self, addr: u64, len: u64, write: bool) -> Result<(), Fault> {
        let fault = Fault { addr };
        let end = addr.checked_add(len).ok_or(fault)?;
        let start = addr & !(PAGE as u64 - 1);
        let end = end.checked_next_multiple_of(PAGE as u64).ok_or(fault)?;
        // A dma-buf's pages are there while it is mapped; most exporters' cannot be populated.
        if let Some(known) = dma_buf::probe(addr, addr + len, write) {
            return known;
        }
        if let Some(known) = gpu::probe(addr, addr + len) {
            return known;
        }
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        loop {
            // SAFETY: populating changes no contents of any page.
            let result = unsafe { libc::syscall(libc::SYS_madvise, start, end - start, advice) };
            if result == 0 {
                return Ok(());
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                _ => return Err(fault),
            }
        }
    }
}

/// Prefetches the line at `addr`: one that another core wrote takes as long as some hundred instructions, and
/// several can be in flight at once.
#[inline]
pub(super) fn prefetch(addr: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes only caches, at any address (Intel SDM vol. 2, PREFETCHh).
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(addr as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = addr;
}
