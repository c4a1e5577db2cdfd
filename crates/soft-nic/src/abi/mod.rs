//! The kernel's side of `/dev/infiniband/uverbs*`: discovery, open, ioctl, mmap.
//!
//! [`sysfs`] and [`tree`] are what a program finds, [`attributes`] is how a command is encoded. Every value comes from
//! the program and is checked before use; what a command means is the device's to say.

pub mod attributes;
mod layout;
pub mod sysfs;
pub mod tree;
