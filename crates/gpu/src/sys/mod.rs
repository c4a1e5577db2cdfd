//! Raw floor: C declarations of CUDA's run-time compiler and its linker. Imported by `result` only.
//!
//! Both are bound by hand and taken out of the very files that were found: cudarc looks for `libnvrtc.so` by name, and
//! would take another toolkit's where the system has one, and it does not bind nvJitLink.

pub mod jit_link;
pub mod load;
pub mod nvrtc;
