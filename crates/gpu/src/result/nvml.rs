//! NVML's calls with their errors, over the functions of one library file.

use std::ffi::{CString, c_int};
use std::path::Path;
use std::ptr::null_mut;

use super::{Error, Result};
use crate::sys::load::open_for_good;
use crate::sys::nvml as sys;

pub use crate::sys::nvml::Device;

/// NVML, loaded and initialised for good.
#[derive(Debug, Clone, Copy)]
pub struct Nvml(sys::Nvml);

/// One call and what it may say in its error.
macro_rules! good {
    ($code:expr, $call:literal) => {
        match $code {
            0 => Ok(()),
            code => Err(Error::Refused(format!("NVML: {}: {} ({code})", $call, meaning(code)))),
        }
    };
}

impl Nvml {
    /// Loads it, and starts it. Errors: it is not there, lacks a function, or finds no driver.
    pub fn load(path: &Path) -> Result<Nvml> {
        let wrong = |reason: String| Error::Refused(format!("NVML: {}: {reason}", path.display()));
        let library = open_for_good(path).map_err(wrong)?;
        let functions = sys::Nvml::load(library, str::to_owned)
            .map_err(|function| wrong(format!("it has no {function}; a newer driver has")))?;
        // SAFETY: it takes nothing; it may be called any number of times.
        good!(unsafe { (functions.init)() }, "nvmlInit_v2")?;
        Ok(Nvml(functions))
    }

    /// The device at a place on the bus, as `0000:17:00.0`. It lives as long as the process.
    pub fn device(&self, bus_id: &str) -> Result<Device> {
        let name = CString::new(bus_id).map_err(|_| Error::Refused("a bus id with a zero byte".into()))?;
        let mut device = null_mut();
        // SAFETY: `name` ends with a zero byte, and `device` is a local pointer.
        let code = unsafe { (self.0.device_by_bus_id)(name.as_ptr(), &mut device) };
        good!(code, "nvmlDeviceGetHandleByPciBusId_v2")?;
        Ok(device)
    }

    /// The energy that a device has used since its driver was loaded, in mJ.
    ///
    /// # Safety
    /// The device is of this library.
    pub unsafe fn total_energy_mj(&self, device: Device) -> Result<u64> {
        let mut energy_mj = 0;
        // SAFETY: the device is the caller's promise; `energy_mj` is a local integer.
        let code = unsafe { (self.0.total_energy)(device, &mut energy_mj) };
        good!(code, "nvmlDeviceGetTotalEnergyConsumption")?;
        Ok(energy_mj)
    }
}

/// `nvmlReturn_t`, as far as these calls give it.
fn meaning(code: c_int) -> &'static str {
    match code {
        1 => "NVML was not initialised",
        2 => "invalid argument",
        3 => "not supported by this GPU, or by a part of it (MIG)",
        4 => "no permission",
        6 => "no such GPU",
        8 => "the GPU lacks power",
        9 => "the kernel's driver is not loaded",
        15 => "the GPU fell off the bus",
        18 => "library and kernel's driver are of different versions",
        999 => "unknown error",
        _ => "an error",
    }
}
