//! Kernels launched from Rust, safely: the machine that runs them, their memory and queues, and how they end.
//!
//! A [`Machine`] is a GPU or the host twin; programs are written for either. [`Queue`] is a queue pair that a
//! kernel posts to, [`Region`] memory that a NIC and a kernel reach. A program brings its kernels as a
//! [`Source`]. [`Kernel::launch`] is unsafe, so the program wraps it: all that the kernel touches is held
//! until it ends ([`Running`]). A kernel that does not end is told to; if it does not listen, its memory is
//! never freed. Sources are compiled for a GPU when first needed, and kept on disk. `apps/echo/src/kernel.rs`
//! is the smallest wrapper. Left out: several GPUs in one launch.

#![allow(non_camel_case_types, reason = "names are C's")]

mod code;
mod end;
mod error;
mod machine;
mod memory;
mod mixed;
mod queue;
mod region;
mod running;
mod shared;
#[cfg(test)]
mod tests;

pub use code::{Arguments, Source};
pub use end::{Failure, Reason, db_kernel_end};
pub use error::KernelError;
pub use machine::{Kernel, Machine};
pub use memory::{GpuMemory, HostMemory, Memory, Plain};
pub use mixed::CpuPart;
pub use queue::{Queue, Room, db_kernel_queue};
pub use region::{Part, Place, Region, Share};
pub use running::Running;
pub use shared::SharedQueue;
