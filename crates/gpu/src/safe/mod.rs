//! Top floor: owned objects. No call here is unsafe for its caller unless it says so.

mod compile;
mod image_builder;
mod link;
mod toolkit;

pub use compile::{Arch, Compiled, Compiler, Form, Unit};
pub use image_builder::{Image, ImageBuilder};
pub use link::Linker;
pub use toolkit::{Toolkit, ToolkitMissing};
