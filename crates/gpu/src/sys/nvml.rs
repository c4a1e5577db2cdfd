//! NVIDIA's management library as `nvml.h` of CUDA 13 declares it, bound by hand; every function returns an
//! `nvmlReturn_t` (0: good).

use std::ffi::{c_char, c_ulonglong, c_void};

use super::load::functions;

pub type Device = *mut c_void;

functions! {
    /// What is needed of the library.
    Nvml {
        init = "nvmlInit_v2": fn();
        device_by_bus_id = "nvmlDeviceGetHandleByPciBusId_v2": fn(*const c_char, *mut Device);
        total_energy = "nvmlDeviceGetTotalEnergyConsumption": fn(Device, *mut c_ulonglong);
    }
}
