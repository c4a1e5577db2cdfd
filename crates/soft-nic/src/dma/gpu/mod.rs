//! Regions in a GPU's memory: found by address when registered, and reached through CUDA by the process that
//! allocated them.
//!
//! No CPU can map a page of such memory, so what the NIC reads or writes there goes through a kernel
//! (`mover`) when short, and through the copy engine (`engine`) when long or while no mover takes commands.
//! `state` has the mover's states, `worker` those of an engine job. `card` chooses between both and waits for
//! either, with a deadline: so payload, flag and CQE are in order because the NIC is. A process that has not
//! loaded CUDA pays one relaxed load an access (`ranges`), and the NIC never loads the driver.
//!
//! Left out: memory that moves by itself (managed) and pools that no NIC may reach, refused as by a card's
//! `nvidia_peermem`; queues in GPU memory, which need DEVX.

mod card;
mod counts;
mod engine;
mod host_pages;
mod mover;
mod ranges;
mod region;
mod state;
mod threads;
mod timed_out;
mod worker;

use std::sync::atomic::Ordering;

use gpu::Allocation;
use mlx5_device::memory::Fault;

use self::card::{LAGGED, cards};
use super::guard::Atomic;

pub use counts::counters;
pub use host_pages::HostPages;
pub use ranges::{exist, touched_by};
pub use region::{GpuError, GpuRegion};
pub use timed_out::touches as may_still_change;

/// Whether a queue may lie there: not in a GPU's memory.
pub fn is_gpu_address(addr: u64) -> bool {
    let is_memory_of_one = |allocation: Allocation| !allocation.is_managed();
    ranges::find(addr, 1).is_some() || Allocation::at(addr).is_some_and(is_memory_of_one)
}

/// What is known of a range that lies in a GPU's allocation with a region. `None`: it lies in none.
pub(super) fn probe(addr: u64, end: u64) -> Option<Result<(), Fault>> {
    if !exist() {
        return None;
    }
    let place = ranges::find(addr, end.saturating_sub(addr))?;
    Some(if end <= place.end { Ok(()) } else { Err(Fault { addr: place.end }) })
}

/// Whether a copy took longer than [`card::LAG`] since the last call.
pub fn has_lagged() -> bool {
    LAGGED.load(Ordering::Relaxed) && LAGGED.swap(false, Ordering::Relaxed)
}

/// Copies where an end is GPU memory. `None`: neither is. `last`: the last word goes last, by release store.
#[inline(always)]
pub(super) fn copy(to: u64, from: u64, len: u64, last: bool) -> Option<Result<(), Fault>> {
    if exist() { copy_on_gpu(to, from, len, last) } else { None }
}

#[inline(never)]
fn copy_on_gpu(to: u64, from: u64, len: u64, last: bool) -> Option<Result<(), Fault>> {
    let (target, source) = (ranges::find(to, len), ranges::find(from, len));
    let place = target.or(source)?;
    let mut cards = cards();
    let Some(nic_gpu) = cards.get_mut(&place.card) else { return Some(Err(Fault { addr: place.start })) };
    Some(nic_gpu.copy((to, target), (from, source), len, last))
}

/// An atomic in a GPU's memory: the old value. `None`: the address is none of a GPU's.
pub(super) fn atomic(addr: u64, operation: Atomic) -> Option<Result<u64, Fault>> {
    let place = ranges::find(addr, 8)?;
    let mut cards = cards();
    let Some(nic_gpu) = cards.get_mut(&place.card) else { return Some(Err(Fault { addr })) };
    Some(nic_gpu.atomic(place, operation))
}

/// Addresses that count as a GPU's for as long as this lives: for tests where there is none.
#[cfg(test)]
pub(crate) fn counts_as_a_gpus(start: u64, len: u64) -> impl Drop {
    let kind = ranges::Kind { mapped: false, kernels: false };
    ranges::Known::new(start, start + len, u64::MAX, 0, kind).expect("a free place")
}
