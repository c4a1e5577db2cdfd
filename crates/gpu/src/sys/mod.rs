//! Raw floor: C declarations of CUDA's driver, its run-time compiler and its linker. For `result` only.
//!
//! The driver's are cudarc's, which opens `libcuda` at the first call and *panics* without it or one of its
//! functions. So `result` asks for both before any call. Compiler and linker are bound by hand and taken from
//! the very files that were found. cudarc looks for `libnvrtc.so` by name, would take another toolkit's where
//! the system has one, and does not bind nvJitLink.

pub mod cublaslt;
pub mod cudnn;
pub mod jit_link;
pub mod load;
pub mod nvml;
pub mod nvrtc;

/// The driver: types, functions, and where cudarc found the library.
pub use cudarc::driver::sys as driver;
