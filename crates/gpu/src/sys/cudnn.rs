//! cuDNN's backend API as `cudnn_graph.h` of cuDNN 9 declares it, bound by hand; every function returns a
//! `cudnnStatus_t` (0: good).

use std::ffi::{c_int, c_void};

use super::load::functions;

pub type Handle = *mut c_void;
pub type Descriptor = *mut c_void;

functions! {
    /// What is needed of the library.
    Cudnn {
        property = "cudnnGetProperty": fn(c_int, *mut c_int);
        create = "cudnnCreate": fn(*mut Handle);
        destroy = "cudnnDestroy": fn(Handle);
        set_stream = "cudnnSetStream": fn(Handle, *mut c_void);
        create_descriptor = "cudnnBackendCreateDescriptor": fn(c_int, *mut Descriptor);
        destroy_descriptor = "cudnnBackendDestroyDescriptor": fn(Descriptor);
        set = "cudnnBackendSetAttribute": fn(Descriptor, c_int, c_int, i64, *const c_void);
        get = "cudnnBackendGetAttribute": fn(Descriptor, c_int, c_int, i64, *mut i64, *mut c_void);
        finalize = "cudnnBackendFinalize": fn(Descriptor);
        execute = "cudnnBackendExecute": fn(Handle, Descriptor, Descriptor);
    }
}

/// `cudnnBackendDescriptorType_t`.
pub mod kind {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const POINTWISE: c_int = 0;
    pub const CONVOLUTION: c_int = 1;
    pub const ENGINE: c_int = 2;
    pub const ENGINE_CONFIG: c_int = 3;
    pub const ENGINE_HEURISTICS: c_int = 4;
    pub const EXECUTION_PLAN: c_int = 5;
    pub const KNOB_CHOICE: c_int = 7;
    pub const OPERATION_CONVOLUTION_FORWARD: c_int = 10;
    pub const OPERATION_POINTWISE: c_int = 13;
    pub const OPERATION_GRAPH: c_int = 15;
    pub const VARIANT_PACK: c_int = 16;
    pub const TENSOR: c_int = 17;
}

/// `cudnnBackendAttributeType_t`.
pub mod of {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const HANDLE: c_int = 0;
    pub const DATA_TYPE: c_int = 1;
    pub const BOOLEAN: c_int = 2;
    pub const INT64: c_int = 3;
    pub const FLOAT: c_int = 4;
    pub const DOUBLE: c_int = 5;
    pub const POINTER: c_int = 6;
    pub const CONVOLUTION_MODE: c_int = 7;
    pub const HEURISTICS_MODE: c_int = 8;
    pub const KNOB_TYPE: c_int = 9;
    pub const NUMERICAL_NOTE: c_int = 11;
    pub const POINTWISE_MODE: c_int = 14;
    pub const DESCRIPTOR: c_int = 15;
    pub const CHAR: c_int = 24;
}

/// `cudnnBackendAttributeName_t`.
pub mod name {
    #![allow(missing_docs)]
    use std::ffi::c_int;
    pub const POINTWISE_MODE: c_int = 0;
    pub const POINTWISE_MATH_PREC: c_int = 1;
    pub const POINTWISE_RELU_LOWER_CLIP: c_int = 3;
    pub const POINTWISE_RELU_UPPER_CLIP: c_int = 4;
    pub const CONVOLUTION_COMP_TYPE: c_int = 100;
    pub const CONVOLUTION_MODE: c_int = 101;
    pub const CONVOLUTION_DILATIONS: c_int = 102;
    pub const CONVOLUTION_STRIDES: c_int = 103;
    pub const CONVOLUTION_POST_PADDINGS: c_int = 104;
    pub const CONVOLUTION_PRE_PADDINGS: c_int = 105;
    pub const CONVOLUTION_SPATIAL_DIMS: c_int = 106;
    pub const HEURISTICS_MODE: c_int = 200;
    pub const HEURISTICS_GRAPH: c_int = 201;
    pub const HEURISTICS_RESULTS: c_int = 202;
    pub const CONFIG_ENGINE: c_int = 300;
    pub const CONFIG_KNOB_CHOICES: c_int = 302;
    pub const PLAN_HANDLE: c_int = 400;
    pub const PLAN_CONFIG: c_int = 401;
    pub const PLAN_WORKSPACE: c_int = 402;
    pub const PLAN_JSON: c_int = 405;
    pub const KNOB_TYPE: c_int = 600;
    pub const KNOB_VALUE: c_int = 601;
    pub const FORWARD_ALPHA: c_int = 700;
    pub const FORWARD_BETA: c_int = 701;
    pub const FORWARD_CONVOLUTION: c_int = 702;
    pub const FORWARD_W: c_int = 703;
    pub const FORWARD_X: c_int = 704;
    pub const FORWARD_Y: c_int = 705;
    pub const OPERATION_POINTWISE: c_int = 750;
    pub const OPERATION_X: c_int = 751;
    pub const OPERATION_B: c_int = 752;
    pub const OPERATION_Y: c_int = 753;
    pub const GRAPH_HANDLE: c_int = 800;
    pub const GRAPH_OPERATIONS: c_int = 801;
    pub const TENSOR_ALIGNMENT: c_int = 900;
    pub const TENSOR_TYPE: c_int = 901;
    pub const TENSOR_DIMENSIONS: c_int = 902;
    pub const TENSOR_STRIDES: c_int = 903;
    pub const TENSOR_UNIQUE_ID: c_int = 906;
    pub const TENSOR_IS_VIRTUAL: c_int = 907;
    pub const PACK_UNIQUE_IDS: c_int = 1000;
    pub const PACK_POINTERS: c_int = 1001;
    pub const PACK_WORKSPACE: c_int = 1003;
    pub const ENGINE_INDEX: c_int = 1301;
    pub const ENGINE_NUMERICAL_NOTE: c_int = 1303;
}
