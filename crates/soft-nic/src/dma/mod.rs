//! The only place that touches application memory.
//!
//! Reads each word once. A bad address is an error value, never a signal. Knows no queues, keys, messages.
//!
//! The receiver's call `Inbound::copy_into` names the [`Order`](mlx5_device::memory::Order) of a payload's
//! bytes. With `Increasing` one thread stores them in increasing addresses, the last word by a release store.
//! Copy helpers, if any, first store all but the last 1 KiB, in any order. In GPU memory only the last word
//! is stored last. With `Relaxed` any order is allowed.

pub mod copiers;
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
pub use host::Host;
pub use ring::RingMemory;
