//! A served request from its arrival to its answer: wait for inputs, model, send outputs, launch again. To this crate a
//! model is work that it records, and the addresses of its inputs and outputs.
//!
//! The modes are [`Mode`]; in [`cpu`] a thread waits, in [`gpu`] kernels do, and [`gpu::by_cpu`] is where one waits and the others post.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod cpu;
mod end;
pub mod gpu;
mod mode;
#[cfg(test)]
mod testing;
pub mod trace;

pub use end::{End, EndError};
pub use mode::{Mode, Processor, UnknownMode};
