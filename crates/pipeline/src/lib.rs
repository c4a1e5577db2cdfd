//! A served request from its arrival to its answer: wait for inputs, model, send outputs, launch again. A model is to this
//! crate a list of launches that read and write through a slot's number.
//!
//! Here so far: the modes, and the kernels that wait.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

mod kernel;
mod mode;

pub use kernel::{Arrivals, SOURCE, State, Turn, WaitError, Waiting, wait};
pub use mode::{Mode, Processor, UnknownMode};
