//! The only place that touches application memory.
//!
//! Words are read once, copies run in increasing address order (but see [`Order::Increasing`]), and a bad address is an error value, never a signal.
//! Also the floor for what else needs `unsafe` on the device's side of the NIC: mappings of shared memory and the few
//! kernel calls that the standard library lacks. Knows nothing of queues, keys or messages.

pub mod copiers;
pub mod datagrams;
mod device_pages;
pub mod dma_buf;
mod epoll;
mod forks;
pub mod gpu;
mod guard;
mod host;
mod interfaces;
mod per_process;
mod registers;
mod sanitizer;
mod shared;
pub mod socket;
pub mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod threads;
pub mod unix_datagram;

pub use copiers::{Copiers, SHARED_FROM};
pub use device_pages::DevicePages;
pub use dma_buf::{DmaBuf, DmaBufError};
pub use epoll::OneShotEpoll;
pub use gpu::{GpuError, GpuRegion, HostPages};
pub use guard::Guard;
pub use host::Host;
pub use interfaces::{Interface, interfaces};
pub use registers::UarPage;
pub use shared::{RingMemory, SharedMemory};
pub use threads::OwnThreads;
