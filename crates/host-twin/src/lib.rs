//! The host twin: CUDA kernels, the same sources, as threads of this processor.
//!
//! Each lane is a thread, so that it is preempted anywhere; barriers, votes and shuffles are the CUDA C++ Programming Guide's
//! (`include/twin.h`), memory is weak as the PTX ISA says ([`memory`]). What goes wrong on a GPU only now and then goes wrong
//! here under a seed: a barrier that is missing, a release that was dropped. A lane that waits for ever is named with file
//! and line. It is a substitute for a GPU, labelled so, and tells nothing about speed.
//! Left out: what `twin.h` leaves out; more lanes than [`MAX_LANES`], more than one dimension.

mod block;
mod calls;
mod host_memory;
mod kernels;
mod lane_set;
mod launch;
pub mod memory;
mod random;
mod report;
mod site;
mod slots;

use std::time::Duration;

pub use calls::{GATE, Gate};
pub use kernels::{Arguments, Kernel, Kernels, Table};
pub use lane_set::{LaneSet, MAX_LANES};
pub use launch::{Running, start};
pub use report::{Waiting, Waits};

/// The table of kernels that the crate's build script compiled under that name with `host_twin_build`: a `static` of the name in
/// upper case.
#[macro_export]
macro_rules! include_kernels {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

/// How a launch's stores become visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// As a GPU's may: late and in an order that the seed chooses; lanes are interrupted at places that it chooses.
    Weak {
        /// The same seed makes the same choices, as far as the scheduler lets the same questions come up.
        seed: u64,
    },
    /// At once and in program order. Many times as fast; finds nothing.
    InOrder,
}

/// A launch's shape and limits.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Blocks, in one dimension. All of them run at a time.
    pub blocks: u32,
    /// Lanes of a block, in one dimension.
    pub threads: u32,
    /// How stores become visible.
    pub visibility: Visibility,
    /// A kernel that has not ended by then is given up.
    pub deadline: Duration,
}

/// What a launch did that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// Stores, in pieces of at most 8 bytes, that primitives made. 0 with [`Visibility::InOrder`], which counts none.
    pub stored: u64,
    /// How many of them became visible before an older one.
    pub overtook: u64,
}

/// Why a kernel did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum TwinError {
    /// There are no kernels.
    #[error("no kernel {kernel}: this build found no C++ compiler; install g++ and build again")]
    NoCompiler {
        /// Who was looked for.
        kernel: String,
    },
    /// No such kernel.
    #[error("no kernel {kernel}; there are: {known}")]
    UnknownKernel {
        /// Who was looked for.
        kernel: String,
        /// Who is there.
        known: String,
    },
    /// The launch has a shape that is not supported.
    #[error("kernel {kernel} on {blocks} blocks of {threads} lanes: {limit}")]
    Shape {
        /// Its name.
        kernel: &'static str,
        /// Blocks asked for.
        blocks: u32,
        /// Lanes of each.
        threads: u32,
        /// What is supported.
        limit: String,
    },
    /// The arguments are not the kernel's.
    #[error("kernel {kernel} takes arguments of {wanted:?} bytes and was given {given:?}")]
    Arguments {
        /// Its name.
        kernel: &'static str,
        /// Sizes given.
        given: Vec<usize>,
        /// Sizes of its parameters.
        wanted: Vec<usize>,
    },
    /// No thread could be started.
    #[error("kernel {kernel}: starting the thread of lane {lane}: {source}")]
    Thread {
        /// Its name.
        kernel: &'static str,
        /// Which lane.
        lane: usize,
        /// Why.
        source: std::io::Error,
    },
    /// Other launches held the kernel's blocks until the deadline.
    #[error(
        "kernel {kernel}: its {blocks} blocks were not free within {deadline:?}; other launches hold them"
    )]
    Busy {
        /// Its name.
        kernel: &'static str,
        /// Blocks asked for.
        blocks: u32,
        /// The deadline.
        deadline: Duration,
    },
    /// A lane used an intrinsic with a mask that cannot be.
    #[error(
        "kernel {kernel}: a mask does not name the lane that gives it, or names lanes that its warp does not have: {waits}"
    )]
    Mask {
        /// Its name.
        kernel: &'static str,
        /// Which, and where.
        waits: Waits,
    },
    /// Lanes wait for lanes that cannot come. All lanes have left the kernel.
    #[error("kernel {kernel}: lanes wait for lanes that cannot come: {waits}")]
    Deadlock {
        /// Its name.
        kernel: &'static str,
        /// Who waits where.
        waits: Waits,
    },
    /// The deadline passed. All lanes have left the kernel.
    #[error("kernel {kernel} did not end within {deadline:?}: {waits}")]
    Deadline {
        /// Its name.
        kernel: &'static str,
        /// The deadline.
        deadline: Duration,
        /// Who was where.
        waits: Waits,
    },
    /// The launch was given up, and lanes that use none of the twin's calls did not leave the kernel. Their threads go on
    /// with the memory that they were given: the process must end.
    #[error("kernel {kernel}: {lanes} of its lanes cannot be stopped, end the process: {waits}")]
    Lost {
        /// Its name.
        kernel: &'static str,
        /// How many.
        lanes: usize,
        /// Who was where.
        waits: Waits,
    },
}

/// Runs a kernel to its end, or to the deadline.
///
/// # Safety
/// As for [`start`].
pub unsafe fn run(kernel: Kernel, launch: &Launch, arguments: Arguments) -> Result<Ran, TwinError> {
    // SAFETY: the caller's promise.
    unsafe { start(kernel, launch, arguments) }?.wait()
}
