//! The energy that a GPU has used, by the counter of its driver (NVML).
//!
//! Follows `nvml.h` of CUDA 13: `nvmlDeviceGetTotalEnergyConsumption`, GPUs since Volta. The driver brings
//! the library. A counter counts the whole GPU, its other users and its idle power included.

use std::path::{Path, PathBuf};

use super::device::Gpu;
use crate::result::{Result, nvml};

/// Names a library that is taken in the place of the driver's.
pub const VARIABLE: &str = "DOORBELL_NVML";
/// The driver's library, found as the dynamic loader finds libraries.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The energy counter of one GPU.
#[derive(Debug, Clone, Copy)]
pub struct EnergyCounter {
    nvml: nvml::Nvml,
    device: nvml::Device,
}

// SAFETY: NVML's calls may come from any thread, says its manual; a device is only a name.
unsafe impl Send for EnergyCounter {}
// SAFETY: as above.
unsafe impl Sync for EnergyCounter {}

impl EnergyCounter {
    /// That of a GPU. Errors: no library, or it does not know the GPU, or the GPU has no such counter.
    pub fn of(gpu: Gpu) -> Result<EnergyCounter> {
        EnergyCounter::on_bus(&gpu.bus_id()?)
    }

    /// That of the GPU at a place on the bus, by the driver's library.
    pub fn on_bus(bus_id: &str) -> Result<EnergyCounter> {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        let library = named.map_or_else(|| PathBuf::from(LIBRARY), PathBuf::from);
        EnergyCounter::at(&library, bus_id)
    }

    /// That of the GPU at a place on the bus, as `0000:17:00.0`, by this library.
    pub fn at(library: &Path, bus_id: &str) -> Result<EnergyCounter> {
        let nvml = nvml::Nvml::load(library)?;
        let counter = EnergyCounter { nvml, device: nvml.device(bus_id)? };
        counter.read_mj()?;
        Ok(counter)
    }

    /// Energy since the driver was loaded, in mJ.
    pub fn read_mj(&self) -> Result<u64> {
        // SAFETY: the device is of this library.
        unsafe { self.nvml.total_energy_mj(self.device) }
    }
}
