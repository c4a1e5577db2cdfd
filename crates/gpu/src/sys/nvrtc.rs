//! NVRTC as in `nvrtc.h` of CUDA 13.0, bound by hand; every function returns an `nvrtcResult` (0: good).
//!
//! Results are plain integers here, since a newer library may return one that no enumeration of ours knows.

use std::ffi::{c_char, c_int, c_void};

use super::load::functions;

pub type Program = *mut c_void;

/// The result that stands for «could not open libnvrtc-builtins».
pub const BUILTIN_OPERATION_FAILURE: c_int =
    cudarc::nvrtc::sys::nvrtcResult::NVRTC_ERROR_BUILTIN_OPERATION_FAILURE as c_int;

functions! {
    /// What is needed of the compiler.
    Nvrtc {
        version = "nvrtcVersion": fn(*mut c_int, *mut c_int);
        create = "nvrtcCreateProgram": fn(
            *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        );
        compile = "nvrtcCompileProgram": fn(Program, c_int, *const *const c_char);
        destroy = "nvrtcDestroyProgram": fn(*mut Program);
        log_bytes = "nvrtcGetProgramLogSize": fn(Program, *mut usize);
        log = "nvrtcGetProgramLog": fn(Program, *mut c_char);
        cubin_bytes = "nvrtcGetCUBINSize": fn(Program, *mut usize);
        cubin = "nvrtcGetCUBIN": fn(Program, *mut c_char);
        ptx_bytes = "nvrtcGetPTXSize": fn(Program, *mut usize);
        ptx = "nvrtcGetPTX": fn(Program, *mut c_char);
    }
}
