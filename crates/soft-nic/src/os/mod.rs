//! The operating system, as safe functions: sockets and datagrams, forks, interfaces, shared pages.

pub mod address;
pub mod datagrams;
mod device_pages;
mod epoll;
mod forks;
mod interfaces;
pub mod pipe;
pub mod shared_memory;
pub mod signals;
mod stderr;
pub mod system;
#[cfg(test)]
pub mod testing;
pub mod unix_datagram;
pub mod unix_stream;

pub use device_pages::{DevicePages, UarPage};
pub use epoll::OneShotEpoll;
pub use forks::{ForgetInChild, NoForkSocket, PerProcess, fork_generation, locked};
pub use interfaces::{Interface, interfaces};
pub use shared_memory::SharedMemory;
pub use stderr::{log, log_command};
