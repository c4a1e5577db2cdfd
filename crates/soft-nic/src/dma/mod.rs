//! The only place that touches application memory.
//!
//! Words are read once, copies run in increasing address order (but see [`Order::Increasing`]), and a bad address is an error value, never a signal.
//! Knows nothing of queues, keys or messages.

pub mod copiers;
mod cpu;
pub mod dma_buf;
pub mod gpu;
mod guard;
mod host;
mod ring;
mod sanitizer;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use copiers::{Copiers, SHARED_FROM};
pub use dma_buf::{DmaBuf, DmaBufError};
pub use gpu::{GpuError, GpuRegion, HostPages};
pub use guard::Guard;
pub use host::Host;
pub use ring::RingMemory;
