//! GPUs of this machine, and what each can do, asked without making a context on it.

use std::fmt;

use super::compile::Arch;
use crate::result::driver::{self, CUdevice, DeviceAttribute};
use crate::result::library;
use crate::result::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    pub(super) device: CUdevice,
    ordinal: u32,
}

/// What decides how a GPU takes part in RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// A NIC may reach its memory at all (peer-memory or dma-buf).
    pub gpu_direct_rdma: bool,
    /// Its memory can be exported as a dma-buf.
    pub dma_buf: bool,
    /// Pages of the host may be registered with it.
    pub host_registration: bool,
    /// It sees registered pages at the addresses that the CPU does.
    pub same_addresses: bool,
    /// Bits of `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_*`.
    pub flush_options: i32,
    /// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_*`: 0 none, 100 to the owner, 200 to all devices.
    pub write_ordering: i32,
}

impl Gpu {
    /// All GPUs that this process may use. Errors: no driver, or it does not start.
    pub fn all() -> Result<Vec<Gpu>> {
        (0..driver::device_count()?).map(Gpu::of_ordinal).collect()
    }

    /// The first. Error: there is none, and why.
    pub fn first() -> Result<Gpu> {
        match driver::device_count()? {
            0 => Err(Error::Refused(
                "no GPU here: the driver finds none (see `nvidia-smi`, CUDA_VISIBLE_DEVICES)".into(),
            )),
            _ => Gpu::of_ordinal(0),
        }
    }

    /// The one that CUDA gives this number.
    pub fn of_ordinal(ordinal: u32) -> Result<Gpu> {
        Ok(Gpu { device: driver::device(ordinal)?, ordinal })
    }

    /// How [`super::Context::synchronize`] waits: asleep, or spinning, CUDA's choice on most machines. Call
    /// it before the first context.
    pub fn wait_asleep(&self, asleep: bool) -> Result<()> {
        driver::primary_set_waiting(self.device, asleep)
    }

    /// Whether this process has its primary context.
    pub fn has_context(&self) -> Result<bool> {
        driver::primary_is_active(self.device)
    }

    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// `NVIDIA H200`.
    pub fn name(&self) -> Result<String> {
        driver::device_name(self.device)
    }

    /// Its place on the bus, as `0000:17:00.0`.
    pub fn bus_id(&self) -> Result<String> {
        driver::device_bus_id(self.device)
    }

    pub fn memory_bytes(&self) -> Result<usize> {
        driver::device_bytes(self.device)
    }

    /// What its kernels are compiled for.
    pub fn arch(&self) -> Result<Arch> {
        let major = self.attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Arch::sm((major * 10 + minor) as u32))
    }

    /// How many blocks can run side by side, at least: its multiprocessors.
    pub fn multiprocessors(&self) -> Result<u32> {
        Ok(self.attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32)
    }

    pub fn abilities(&self) -> Result<Abilities> {
        use DeviceAttribute as A;
        let yes = |attribute| Ok::<_, Error>(self.attribute(attribute)? != 0);
        Ok(Abilities {
            gpu_direct_rdma: yes(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
            dma_buf: yes(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
            host_registration: yes(A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)?,
            same_addresses: yes(A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)?,
            flush_options: self.attribute(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?,
            write_ordering: self.attribute(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?,
        })
    }

    /// Whether its kernels may read and write what the program has mapped at an address (`cuMemSetAccess`).
    pub fn may_write(&self, address: u64) -> bool {
        // CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
        driver::mapped_access(self.device, address).is_ok_and(|rights| rights == 3)
    }

    fn attribute(&self, attribute: DeviceAttribute) -> Result<i32> {
        driver::device_attribute(self.device, attribute)
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.ordinal)
    }
}

/// CUDA version of the driver, as `13.0`.
pub fn driver_version() -> Result<String> {
    library::driver_version().map(|(major, minor)| format!("{major}.{minor}"))
}
