//! Raw floor: C declarations of CUDA's driver, its run-time compiler and its linker. Imported by `result` only.
//!
//! The driver's are cudarc's, which opens `libcuda` at the first call and *panics* when it, or a function of it, is not
//! there: nothing of it may be called before `result` has asked for both. The compiler and the linker are bound by hand
//! and taken out of the very files that were found: cudarc looks for `libnvrtc.so` by name, and would take another
//! toolkit's where the system has one, and it does not bind nvJitLink.

pub mod cublaslt;
pub mod cudnn;
pub mod jit_link;
pub mod load;
pub mod nvml;
pub mod nvrtc;

/// The driver: types, functions, and where cudarc found the library.
pub use cudarc::driver::sys as driver;
