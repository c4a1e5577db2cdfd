//! A served request from its arrival to its answer: wait for inputs, model, send outputs, launch again. To
//! this crate a model is work that it records, and the addresses of its inputs and outputs.
//!
//! Modes ([`Mode`]): a thread waits in [`cpu`], kernels in [`gpu`]; in [`gpu::by_cpu`] it waits, they post.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod cpu;
mod end;
pub mod gpu;
mod mode;
#[cfg(test)]
mod testing;
pub mod trace;

use std::time::Duration;

pub use end::{End, EndError};
pub use mode::{Mode, Processor, UnknownMode};

/// Time for the NIC to take an answer. A client that posts no receives keeps it longer, and is disconnected.
pub const PATIENCE: Duration = Duration::from_secs(10);
