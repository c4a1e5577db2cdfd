//! The kernel's side of `/dev/infiniband/uverbs*`: open, ioctl, mmap.
//!
//! [`attributes`] is how a command is encoded, [`dispatch`] the table of methods, [`server`] what all
//! commands share; then one file per command family. Every value comes from the program and is checked before
//! use. The device ([`Commands`](mlx5_device::Commands)) says what a command means.

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
