//! The NIC of a process at run time: its parts put together, its thread, and that thread's sleep.

pub mod idle;
mod process;
mod thread;

pub use process::{Process, StartError};
pub use thread::Report;
