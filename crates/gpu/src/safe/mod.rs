//! Top floor: owned objects. No call here is unsafe for its caller unless it says so.
//!
//! Why this is sound: a launch's caller promises what the kernel touches. The CPU reaches memory that kernels
//! see by atomics or copies. Nothing that a kernel may use is freed before the device is at rest
//! ([`Context`]). Every wait for a stream has a deadline. The driver gives none to making a context; or
//! memory, streams and modules, which may wait for a kernel that does not end: make them before its launch.

mod allocation;
mod compile;
mod context;
pub mod cublaslt;
pub mod cudnn;
mod device;
mod device_graph;
mod discarded;
mod event;
mod image_builder;
mod link;
mod memory;
mod module;
pub mod nvml;
mod pages;
mod registered;
mod registry;
mod resident;
mod self_launch;
mod stamps;
mod stream;
mod toolkit;
mod wait;

pub use crate::result::driver::Shape;
pub use allocation::Allocation;
pub use compile::{Arch, Compiled, Compiler, Form, Unit};
pub use context::Context;
pub use device::{Abilities, Gpu, driver_version};
pub use device_graph::{DeviceGraph, Graph, Recorded};
pub use event::{Event, GpuTimer, StreamEnd};
pub use image_builder::{Image, ImageBuilder};
pub use link::Linker;
pub use memory::{CancelWord, DeviceMemory, PinnedMemory, Staging, load_bytes, store_bytes};
pub use module::{Arguments, Function, Module};
pub use pages::{How, Kind};
pub use registered::Registered;
pub use registry::registered_extents;
pub use resident::{GRID_HEADER, ResidentModel, SlotTensor, SlotTensors};
pub use self_launch::{End, SelfLaunching, again_unit, relaunch_unit};
pub use stamps::{Stamp, Stamps, stamp_unit};
pub use stream::{Priority, Stream, spare_captures};
pub use toolkit::{Toolkit, ToolkitMissing};
pub use wait::poll_until;
