//! A region in a GPU's memory: what `ibv_reg_mr` finds at an address of CUDA's.

use std::time::Duration;

use gpu::Allocation;

use super::card::{NicGpu, cards};
use super::engine::{GpuContexts, LIMIT};
use super::ranges::{self, Kind, Known};
use super::threads::threads;
use super::timed_out;
use super::worker::JobState;
use crate::dma::guard::CpuMemory;
use crate::os::{fork_generation, log};

/// Making a context and translating the mover, when the first region of a GPU is registered.
const OPEN: Duration = Duration::from_secs(20);

/// Why memory of a GPU could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("{addr:#x} is managed memory, which moves between host and GPU: register memory of cudaMalloc")]
    Managed { addr: u64 },
    #[error(
        "the GPU's driver lets no NIC reach the memory at {addr:#x} (GPUDirect RDMA): memory of a pool, or of cuMemCreate \
         without gpuDirectRDMACapable"
    )]
    NotForNic { addr: u64 },
    #[error("{length:#x} bytes at {addr:#x} leave the GPU's allocation {start:#x}..{end:#x}")]
    Outside { addr: u64, length: u64, start: u64, end: u64 },
    #[error("CUDA: {0}")]
    Driver(String),
    #[error("no room for one more region in a GPU's memory")]
    Exhausted,
}

impl GpuError {
    /// What `ibv_reg_mr` gives: that of memory that cannot be pinned.
    pub fn errno(&self) -> i32 {
        match self {
            GpuError::Exhausted => libc::ENOMEM,
            _ => libc::EFAULT,
        }
    }
}

/// A region in GPU memory. Until it is dropped, the NIC knows the allocation and holds the GPU's context.
#[derive(Debug)]
pub struct GpuRegion {
    _known: Known,
    addr: u64,
    len: u64,
    generation: u32,
}

impl GpuRegion {
    /// Takes `addr..addr + length` if it is GPU memory. `None`: it is not, or the process does not use CUDA.
    ///
    /// Errors: see [`GpuError`]; nothing is left behind.
    pub fn find(addr: u64, length: u64) -> Result<Option<GpuRegion>, GpuError> {
        let Some(allocation) = Allocation::at(addr) else { return Ok(None) };
        if allocation.is_managed() {
            return Err(GpuError::Managed { addr });
        }
        if !allocation.allows_nic() {
            return Err(GpuError::NotForNic { addr });
        }
        let (start, end) = (allocation.start(), allocation.start().saturating_add(allocation.len()));
        let last = addr.checked_add(length).filter(|last| *last <= end);
        let Some(last) = last else { return Err(GpuError::Outside { addr, length, start, end }) };
        // A range of addresses may be mapped piece by piece, each from another allocation, or not at all.
        let mut newest = allocation.id();
        for chunk in ranges::chunks(addr, last).skip(1) {
            let next = Allocation::at(chunk).filter(|next| next.allows_nic() && !next.is_managed());
            newest = newest.max(next.ok_or(GpuError::NotForNic { addr: chunk })?.id());
        }
        let driver = |error: gpu::Error| GpuError::Driver(error.to_string());
        let gpu = allocation.gpu().map_err(driver)?;
        let host = CpuMemory::new().map_err(|_| GpuError::Exhausted)?;
        let threads = threads().map_err(|_| GpuError::Exhausted)?;
        let open = move |contexts: &mut GpuContexts, _: &JobState| {
            contexts.open(gpu, &threads.copies, &threads.launches)
        };
        let opened = threads.contexts.post(open).wait(OPEN);
        let (context, shared) = opened
            .ok_or_else(|| GpuError::Driver("making the NIC's context took too long".into()))?
            .map_err(driver)?;
        let is_mapped = !allocation.is_in_a_context();
        // Every piece must be writable: a kernel that may not write there costs the program its context.
        let pieces_allow = || {
            let pieces: Vec<u64> = ranges::chunks(addr, last).collect();
            let ask = move |_: &mut _, _: &JobState| pieces.iter().all(|piece| gpu.may_write(*piece));
            threads.contexts.post(ask).wait(LIMIT).unwrap_or(false)
        };
        let kernels =
            shared.no_mover.is_none() && if is_mapped { pieces_allow() } else { allocation.is_of(&context) };
        // Memory of no context is mapped: the driver tells the reserved range, which may have gaps, and each
        // piece's number.
        let (start, end, id) = if is_mapped { (addr, last, newest) } else { (start, end, allocation.id()) };
        let kind = Kind { mapped: is_mapped, kernels };
        let card = gpu.ordinal();
        let mut cards = cards();
        let present = cards.get(&card).is_some_and(|nic_gpu| nic_gpu.shared.is_same(&shared));
        if !present {
            if let Some(reason) = &shared.no_mover {
                log(&format!("GPU {card}: the copy engine moves all messages: {reason}"));
            }
            cards.insert(card, NicGpu::new(card, host, threads, shared));
        }
        let known = Known::new(start, end, id, card, kind).ok_or(GpuError::Exhausted)?;
        Ok(Some(GpuRegion { _known: known, addr, len: length, generation: fork_generation() }))
    }
}

impl Drop for GpuRegion {
    fn drop(&mut self) {
        // Deregistered memory may be another's after this. A copy there now still has the table's entry, and
        // ends with an error where the program frees it. A fork child has neither.
        if self.generation == fork_generation() {
            timed_out::await_end(self.addr, self.len, false);
        }
    }
}
