//! Direct memory: lanes of a block take turns on one thread, blocks are spread over the cores.
//!
//! For kernels that compute: a switch between lanes costs some nanoseconds, where a thread for each lane costs microseconds. What
//! lanes store is visible at once and in program order.

mod block;
mod fiber;
mod grid;
mod warp;

pub(crate) use block::Current;
pub(crate) use grid::{Grid, current, side_by_side};
