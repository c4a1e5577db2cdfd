//! Memory of a GPU that other code of this process allocated, found by an address in it.
//!
//! For a device that is given addresses, such as a NIC. [`Allocation::at`] neither loads nor starts the
//! driver; only a share in the GPU's context ([`Allocation::gpu`]) uses CUDA.

use super::context::Context;
use super::device::Gpu;
use crate::result::address::{self, MEMORY_TYPE_DEVICE, MEMORY_TYPE_HOST, PointerAttributes};
use crate::result::{Error, Result};

/// One allocation, as the driver describes it now; it may be freed at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation(PointerAttributes);

impl Allocation {
    /// The GPU allocation, managed memory included, that `address` lies in. `None`: it lies in none, or this
    /// process does not use CUDA. Takes less than a microsecond.
    pub fn at(address: u64) -> Option<Allocation> {
        address::ask(address).filter(|told| told.memory_type == MEMORY_TYPE_DEVICE).map(Allocation)
    }

    /// Host pages at `address` that CUDA pins, because it allocated them or was given them. `None`: there are
    /// none. As cheap as [`Self::at`].
    pub fn pinned_at(address: u64) -> Option<Allocation> {
        address::ask(address).filter(|told| told.memory_type == MEMORY_TYPE_HOST).map(Allocation)
    }

    /// [`Self::id`] of the allocation that lies at `address` now.
    pub fn id_at(address: u64) -> Option<u64> {
        address::buffer_id(address)
    }

    /// Whether the driver is in this process: where it is not there are no allocations.
    pub fn possible() -> bool {
        address::is_loaded()
    }

    /// First byte.
    pub fn start(&self) -> u64 {
        self.0.start
    }

    pub fn len(&self) -> u64 {
        self.0.len as u64
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// A number that no other allocation of this process ever gets, also not one in the same place.
    pub fn id(&self) -> u64 {
        self.0.buffer_id
    }

    /// Whether it moves between host and GPU by itself.
    pub fn is_managed(&self) -> bool {
        self.0.managed
    }

    /// Whether the driver lets a NIC reach it (GPUDirect RDMA).
    pub fn allows_nic(&self) -> bool {
        self.0.gpu_direct
    }

    /// Whether kernels in `context` may use it: others' memory and memory mapped by pages is for copies only.
    pub fn is_of(&self, context: &Context) -> bool {
        self.0.context != 0 && self.0.context == context.number()
    }

    /// Whether it was made in a context. Pool memory was not, nor what is mapped into a range of addresses:
    /// there [`Self::start`] and [`Self::len`] are those of the range.
    pub fn is_in_a_context(&self) -> bool {
        self.0.context != 0
    }

    /// Its GPU. Errors: the driver's; the process has two drivers, and this crate would call the other.
    pub fn gpu(&self) -> Result<Gpu> {
        address::same_driver()?;
        let ordinal = u32::try_from(self.0.ordinal);
        Gpu::of_ordinal(ordinal.map_err(|_| Error::Refused("the driver names no GPU of it".into()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_host_is_no_allocation_and_asking_loads_no_driver() {
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
        let before = maps().contains("libcuda");
        let word = 7u64;
        assert_eq!(Allocation::at(&raw const word as u64), None);
        assert_eq!(maps().contains("libcuda"), before);
        assert_eq!(Allocation::possible(), before);
    }
}
