//! A served request from its arrival to its answer: wait for inputs, model, send outputs, launch again. A model is to this
//! crate a list of launches that read and write through a slot's number.
//!
//! Here so far: the modes, and [`gpu`], where kernels wait and post.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod gpu;
mod mode;

pub use mode::{Mode, Processor, UnknownMode};
