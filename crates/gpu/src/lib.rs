//! CUDA in three floors: `sys` mirrors C, `result` turns codes into errors, [`safe`] owns and drops.
//!
//! Follows the CUDA driver API, NVRTC, nvJitLink and NVML of CUDA 13.0. Driver, compiler and linker are found
//! at run time: without them everything here builds and starts, and an error names what is missing. Kernels
//! are compiled once and kept ([`cache`]); the result is checked ([`image`]) before it is loaded.
//! Left out: other makers' GPUs, textures and arrays, memory pools, several GPUs in one graph.
//! Knows neither RDMA nor models (INV-1).

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod cache;
mod connections;
pub mod graph_rules;
pub mod image;
mod result;
pub mod safe;
mod sys;

pub use connections::connections;
pub use result::{BuildError, Error, Result, code};
pub use safe::*;
