//! nvJitLink by `nvJitLink.h` of CUDA 13.0, bound by hand; functions return an `nvJitLinkResult` (0: good).
//!
//! Exported names carry a version (`__nvJitLinkCreate_13_0`); a newer library keeps the older names.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::load::functions;

pub type Handle = *mut c_void;

/// `NVJITLINK_INPUT_CUBIN`, `_PTX` and `_LIBRARY`.
pub mod input {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const CUBIN: c_int = 1;
    pub const PTX: c_int = 2;
    pub const LIBRARY: c_int = 6;
}

/// Versions that names may carry, the newest first.
pub const VERSIONS: [&str; 6] = ["13_0", "12_9", "12_8", "12_4", "12_3", "12_0"];

functions! {
    /// What is needed of the linker.
    JitLink {
        create = "nvJitLinkCreate": fn(*mut Handle, c_uint, *const *const c_char);
        destroy = "nvJitLinkDestroy": fn(*mut Handle);
        add_bytes = "nvJitLinkAddData": fn(Handle, c_int, *const c_void, usize, *const c_char);
        add_file = "nvJitLinkAddFile": fn(Handle, c_int, *const c_char);
        complete = "nvJitLinkComplete": fn(Handle);
        cubin_bytes = "nvJitLinkGetLinkedCubinSize": fn(Handle, *mut usize);
        cubin = "nvJitLinkGetLinkedCubin": fn(Handle, *mut c_void);
        log_bytes = "nvJitLinkGetErrorLogSize": fn(Handle, *mut usize);
        log = "nvJitLinkGetErrorLog": fn(Handle, *mut c_char);
    }
}

/// The name that a library exports a function of `version` by.
pub fn exported(name: &str, version: &str) -> String {
    format!("__{name}_{version}")
}
