//! Memory that a NIC and a machine's kernels reach.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use verbs::code::Access;
use verbs::{Mr, Pd};

use super::error::KernelError;
use super::machine::Machine;
use super::memory::Memory;

/// Where a region's bytes lie, and how the NIC learns of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Host memory.
    Host,
    /// The GPU's, registered by its addresses, which needs a kernel module that knows them (peer memory).
    Gpu,
    /// The GPU's, registered by a dma-buf.
    GpuDmaBuf,
}

/// A registered region.
#[derive(Debug)]
pub struct Region {
    // Before the memory, which it is a share in.
    mr: Mr<Memory>,
    memory: Memory,
    machine: Machine,
}

impl Region {
    /// Registers memory of this machine, at least `bytes`, all 0. The twin has host memory in place of a
    /// GPU's, and no dma-buf. Errors: no memory; the NIC's refusal.
    pub fn new(
        machine: &Machine,
        pd: &Pd,
        place: Place,
        bytes: usize,
        access: Access,
    ) -> Result<Region, KernelError> {
        let memory = match place {
            Place::Host => machine.host_memory(bytes)?.into(),
            Place::Gpu | Place::GpuDmaBuf => machine.own_memory(bytes)?,
        };
        memory.fill(0)?;
        let mr = match place {
            Place::Host | Place::Gpu => Mr::register(pd, memory.clone(), access)?,
            Place::GpuDmaBuf => {
                let dma_buf = memory.dma_buf()?;
                // SAFETY: the GPU's driver just made it of all this memory: own pages, held by no other.
                unsafe { Mr::register_dma_buf(pd, memory.clone(), dma_buf.as_fd(), 0, access) }?
            }
        };
        Ok(Region { mr, memory, machine: machine.clone() })
    }

    /// The region as verbs know it: keys, and pieces for requests.
    pub fn mr(&self) -> &Mr<Memory> {
        &self.mr
    }

    /// An error unless kernels of `machine` reach it, and find in it what a NIC has written.
    pub fn takes_arrivals(&self, machine: &Machine) -> Result<(), KernelError> {
        machine.reaches("the region", &self.machine)?;
        machine.sees_arrivals(&self.memory)
    }

    /// The machine whose kernels reach it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Its bytes.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// Bytes of a memory that many share.
#[derive(Debug)]
pub struct Part {
    memory: Memory,
    range: Range<usize>,
}

// SAFETY: as `Memory`, of which this is a share; `Share::new` has seen that the range lies in it.
unsafe impl verbs::Memory for Part {
    fn start(&mut self) -> NonNull<u8> {
        let whole = verbs::Memory::start(&mut self.memory);
        // SAFETY: as above. Of a GPU's memory the sum is an address that nobody reads here.
        unsafe { whole.add(self.range.start) }
    }
    fn len(&self) -> usize {
        self.range.len()
    }
}

/// Bytes of a memory registered for one protection domain: a peer of that domain reaches none but these.
#[derive(Debug)]
pub struct Share {
    mr: Mr<Part>,
}

impl Share {
    /// Registers `range` of `memory`, a machine's, which lies at `place`. Errors: a range that leaves it;
    /// kernels of the machine do not see there what a NIC writes; the NIC's refusal.
    pub fn new(
        machine: &Machine,
        pd: &Pd,
        place: Place,
        memory: &Memory,
        range: Range<usize>,
        access: Access,
    ) -> Result<Share, KernelError> {
        if range.is_empty() || range.end > memory.len() {
            return Err(KernelError::Range { offset: range.start, len: range.len(), whole: memory.len() });
        }
        machine.sees_arrivals(memory)?;
        let offset = range.start as u64;
        let part = Part { memory: memory.clone(), range };
        let mr = match (place, memory) {
            (Place::GpuDmaBuf, Memory::Gpu(_)) => {
                let dma_buf = memory.dma_buf()?;
                // SAFETY: the GPU's driver just made it of all this memory; these bytes begin at `offset`.
                unsafe { Mr::register_dma_buf(pd, part, dma_buf.as_fd(), offset, access) }?
            }
            _ => Mr::register(pd, part, access)?,
        };
        Ok(Share { mr })
    }

    /// The bytes as verbs know them.
    pub fn mr(&self) -> &Mr<Part> {
        &self.mr
    }
}
