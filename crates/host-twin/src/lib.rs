//! The host twin: runs CUDA kernels, the same sources, on the host's processor.
//!
//! A build script compiles a folder of kernels with `host_twin_build`, and the crate includes the table:
//!
//! ```text
//! host_twin::include_kernels!("kernels");
//! let mut values = vec![1.0_f32; 1000];
//! let arguments = Arguments::new().pointer(values.as_mut_ptr()).push(3.0_f32).push(1000_i32);
//! // SAFETY: the kernel changes 1000 values, which live until `run` returns.
//! unsafe { run(KERNELS.find("scale")?, &Launch::new(4, 256), arguments) }?;
//! ```
//!
//! Lanes of a block take turns on one thread. [`Visibility::InOrder`] is for kernels that compute: blocks are
//! spread over the cores. [`Visibility::Weak`] is for tests of fences and barriers: memory is as weak as the
//! PTX ISA allows, and a seed chooses the interleaving. A launch has a deadline; a lane that waits for ever
//! is named with file and line. `docs/host-twin.md` has the differences from a GPU. A substitute for a GPU,
//! labelled so: it tells nothing about speed. Left out: what `include/twin.h` leaves out.

mod barriers;
mod block;
mod calls;
mod control;
mod error;
mod fiber;
mod grid;
mod host_memory;
mod kernels;
mod lane_set;
mod launch;
mod launch_memory;
mod memory;
mod random;
mod report;
mod shared_memory;
mod site;
mod warp;
mod worker;

use std::time::Duration;

pub use calls::{ClockGate, GATE};
pub use control::MAX_BLOCK_LANES;
pub use error::TwinError;
pub use kernels::{Arguments, Kernel, Kernels, Table};
pub use lane_set::{LaneSet, MAX_LANES};
pub use launch::{Running, run, start};
pub use report::{Waiting, Waits};
pub use shared_memory::MAX_SHARED_BYTES;

/// The table of kernels that the crate's build script compiled under that name with `host_twin_build`: a
/// `static` of the name in upper case.
#[macro_export]
macro_rules! include_kernels {
    ($name:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $name, ".rs"));
    };
}

/// A number of blocks or lanes along each axis, or the place of one. Both are numbered along x first.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim3 {
    /// Along x.
    pub x: u32,
    /// Along y.
    pub y: u32,
    /// Along z.
    pub z: u32,
}

impl Dim3 {
    /// How many there are.
    pub fn count(self) -> u64 {
        u64::from(self.x).saturating_mul(u64::from(self.y)).saturating_mul(u64::from(self.z))
    }

    /// The place of one of them.
    fn place(self, number: u64) -> Dim3 {
        let (x, y) = (u64::from(self.x.max(1)), u64::from(self.y.max(1)));
        Dim3 { x: (number % x) as u32, y: (number / x % y) as u32, z: (number / x / y) as u32 }
    }
}

impl From<u32> for Dim3 {
    fn from(x: u32) -> Dim3 {
        Dim3 { x, y: 1, z: 1 }
    }
}

impl From<(u32, u32)> for Dim3 {
    fn from((x, y): (u32, u32)) -> Dim3 {
        Dim3 { x, y, z: 1 }
    }
}

impl From<(u32, u32, u32)> for Dim3 {
    fn from((x, y, z): (u32, u32, u32)) -> Dim3 {
        Dim3 { x, y, z }
    }
}

impl std::fmt::Display for Dim3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.y, self.z) {
            (1, 1) => write!(f, "{}", self.x),
            (y, 1) => write!(f, "{}x{y}", self.x),
            (y, z) => write!(f, "{}x{y}x{z}", self.x),
        }
    }
}

/// How a launch's stores become visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// As a GPU's may: late, in the seed's order. Lanes take turns on one thread; the seed interrupts them.
    Weak {
        /// Chooses which lane goes on, and which store. How late a store is depends on the clock as well.
        seed: u64,
    },
    /// At once and in program order. Blocks are spread over the cores: for kernels that compute.
    InOrder,
}

/// A launch's shape and limits.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Blocks.
    pub blocks: Dim3,
    /// Lanes of a block.
    pub threads: Dim3,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Whether blocks wait for one another: a launch whose blocks do not all run side by side is refused.
    pub cooperative: bool,
    /// How stores become visible.
    pub visibility: Visibility,
    /// A kernel that has not ended by then is given up.
    pub deadline: Duration,
}

impl Launch {
    /// A launch in direct memory with a minute's time.
    pub fn new(blocks: impl Into<Dim3>, threads: impl Into<Dim3>) -> Launch {
        Launch {
            blocks: blocks.into(),
            threads: threads.into(),
            shared_bytes: 0,
            cooperative: false,
            visibility: Visibility::InOrder,
            deadline: Duration::from_secs(60),
        }
    }
}

/// What a launch did that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchReport {
    /// Stores by primitives, in pieces of at most 8 bytes. 0 with [`Visibility::InOrder`], which counts none.
    pub stored: u64,
    /// How many of them became visible before an older one.
    pub overtook: u64,
}
