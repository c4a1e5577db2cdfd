//! A served request from its arrival to its answer: wait for inputs, model, send outputs, launch again. To this crate a
//! model is work that it records, and the addresses of its inputs and outputs.
//!
//! Here so far: the modes, [`cpu`], where this thread waits and posts, and [`gpu`], where kernels do.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod cpu;
pub mod gpu;
mod mode;

pub use mode::{Mode, Processor, UnknownMode};
