//! cuBLASLt as `cublasLt.h` of CUDA 13 declares it, bound by hand; every function returns a `cublasStatus_t`
//! (0: good).

use std::ffi::{c_int, c_void};

use super::load::functions;

pub type Handle = *mut c_void;
/// `cublasLtMatmulDesc_t`, `cublasLtMatrixLayout_t` or `cublasLtMatmulPreference_t`.
pub type Descriptor = *mut c_void;
pub type Set = unsafe extern "C" fn(Descriptor, c_int, *const c_void, usize) -> c_int;
pub type Destroy = unsafe extern "C" fn(Descriptor) -> c_int;

functions! {
    /// What is needed of the library.
    CublasLt {
        property = "cublasLtGetProperty": fn(c_int, *mut c_int);
        create = "cublasLtCreate": fn(*mut Handle);
        destroy = "cublasLtDestroy": fn(Handle);
        create_product = "cublasLtMatmulDescCreate": fn(*mut Descriptor, c_int, c_int);
        set_product = "cublasLtMatmulDescSetAttribute": fn(Descriptor, c_int, *const c_void, usize);
        destroy_product = "cublasLtMatmulDescDestroy": fn(Descriptor);
        create_layout = "cublasLtMatrixLayoutCreate": fn(*mut Descriptor, c_int, u64, u64, i64);
        set_layout = "cublasLtMatrixLayoutSetAttribute": fn(Descriptor, c_int, *const c_void, usize);
        destroy_layout = "cublasLtMatrixLayoutDestroy": fn(Descriptor);
        create_preference = "cublasLtMatmulPreferenceCreate": fn(*mut Descriptor);
        set_preference = "cublasLtMatmulPreferenceSetAttribute": fn(Descriptor, c_int, *const c_void, usize);
        destroy_preference = "cublasLtMatmulPreferenceDestroy": fn(Descriptor);
        heuristic = "cublasLtMatmulAlgoGetHeuristic":
            fn(Handle, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, c_int,
               *mut Heuristic, *mut c_int);
        check = "cublasLtMatmulAlgoCheck":
            fn(Handle, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, *const Algorithm,
               *mut Heuristic);
        configuration = "cublasLtMatmulAlgoConfigGetAttribute":
            fn(*const Algorithm, c_int, *mut c_void, usize, *mut usize);
        multiply = "cublasLtMatmul":
            fn(Handle, Descriptor, *const c_void, *const c_void, Descriptor, *const c_void, Descriptor,
               *const c_void, *const c_void, Descriptor, *mut c_void, Descriptor, *const Algorithm,
               *mut c_void, usize, *mut c_void);
    }
}

/// `cublasLtMatmulAlgo_t`: opaque, and good for one version of the library.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Algorithm(pub [u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Heuristic {
    pub algorithm: Algorithm,
    pub workspace: usize,
    pub status: c_int,
    pub waves: f32,
    pub reserved: [c_int; 4],
}

/// `cublasComputeType_t`.
pub mod compute {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const SINGLE: c_int = 68;
    pub const FAST_TF32: c_int = 77;
}

/// `cudaDataType_t`.
pub mod element {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const FLOAT: c_int = 0;
    pub const HALF: c_int = 2;
}

/// `cublasLtMatmulDescAttributes_t` and `cublasLtMatmulPreferenceAttributes_t`.
pub mod name {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const PRODUCT_TRANSPOSE_A: c_int = 3;
    pub const PRODUCT_EPILOGUE: c_int = 7;
    pub const PRODUCT_BIAS_POINTER: c_int = 8;
    pub const PREFERENCE_WORKSPACE: c_int = 1;
    pub const PREFERENCE_REDUCTIONS: c_int = 3;
    pub const PREFERENCE_ALIGNMENT_A: c_int = 5;
    pub const PREFERENCE_ALIGNMENT_B: c_int = 6;
    pub const PREFERENCE_ALIGNMENT_C: c_int = 7;
    pub const PREFERENCE_ALIGNMENT_D: c_int = 8;
    pub const PREFERENCE_IMPLEMENTATIONS: c_int = 12;
}
