//! Kernels launched from Rust, safely: who runs them, the memory and queues that they use, and how they end.
//!
//! A [`Machine`] is a GPU or the host twin; programs are written for either. [`Queue`] is a queue pair that a kernel posts to,
//! [`Region`] memory that a NIC and a kernel reach. Launching is unsafe by nature, so each kernel that programs use has a
//! wrapper here that holds everything the kernel touches until it has ended ([`Running`]): what does not end is told to,
//! and when it does not listen its memory stays for ever. Sources lie in `kernels/`; they are compiled for a GPU when they
//! are first needed, and kept on disk.
//! Left out: several GPUs in one launch, kernels of others.

#![allow(non_camel_case_types, reason = "names are C's")]

mod code;
mod echo;
mod end;
mod error;
pub mod generate;
mod machine;
mod memory;
mod queue;
pub mod receive;
mod region;
mod running;
mod shared;
#[cfg(test)]
mod tests;

pub use echo::{Ask, Echo, Listening, Outcome, Questions, question_word};
pub use end::{Failure, Reason};
pub use error::KernelError;
pub use machine::Machine;
pub use memory::{GpuMemory, HostMemory, Memory};
pub use queue::Queue;
pub use region::{Place, Region};
pub use running::Running;
