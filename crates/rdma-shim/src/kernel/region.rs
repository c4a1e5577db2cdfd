//! Memory that a NIC and a machine's kernels reach.

use std::os::fd::AsFd;

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
    /// Registers memory of this machine, at least `bytes`, all 0. The twin has host memory in place of a GPU's, and no
    /// dma-buf. Errors: no memory; the NIC's refusal.
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
                // SAFETY: the GPU's driver made it of all of this memory just now; pages of its own, which nobody else has.
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
