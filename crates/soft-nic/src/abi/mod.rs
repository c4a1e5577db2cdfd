//! The kernel's side of `/dev/infiniband/uverbs*`: open, ioctl, mmap.
//!
//! [`attributes`] is how a command is encoded, [`server`] the table of
//! methods and the dispatch, and then one file a command family. Every value comes from the program and is checked
//! before use; what a command means is the device's to say ([`Commands`](mlx5_device::Commands)). [`process`] puts the parts of one process
//! together, [`rdma_cm`] is the connection manager's device, and [`control`] is how `softnic ctl` talks to it.

mod ah;
pub mod attributes;
mod backing;
pub mod clock;
pub mod control;
mod cq;
mod device;
pub mod events;
mod layout;
mod mr;
pub mod process;
mod qp;
pub mod rdma_cm;
pub mod server;
mod srq;
#[cfg(test)]
mod tests;
mod uar;
mod write;
