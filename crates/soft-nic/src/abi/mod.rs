//! The kernel's side of `/dev/infiniband/uverbs*`: open, ioctl, mmap.
//!
//! [`attributes`] is how a command is encoded, [`dispatch`] the table of methods, [`server`] what all commands share, and then one
//! file a command family. Every value comes from the program and is checked
//! before use; what a command means is the device's to say ([`Commands`](mlx5_device::Commands)).

mod ah;
pub mod attributes;
mod backing;
pub mod clock;
mod context;
mod cq;
mod dispatch;
pub mod events;
pub(crate) mod layout;
mod mr;
mod qp;
pub mod reasons;
pub mod server;
mod srq;
#[cfg(test)]
mod tests;
pub mod uar;
mod write;

pub use dispatch::ioctl;
