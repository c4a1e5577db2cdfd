//! The software mlx5 NIC: what answers when an unmodified libmlx5 opens, maps and rings a ConnectX that is not there.
//!
//! The device itself, which turns rung doorbells into validated work and completions, is the crate `mlx5-device`; its transport is
//! `roce`. Here is the machine round it: [`abi`] answers the kernel's uverbs commands, [`link`] carries messages between processes,
//! [`dma`] is the only part that touches application memory, and [`os`] has the system's calls. Arrows: abi → link → dma → os, never back.
//! Knows nothing of libibverbs, of the shim or of any application (INV-4).

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod abi;
pub mod config;
pub mod control;
pub mod dma;
pub mod link;
pub mod os;
pub mod rdma_cm;
pub mod runtime;
pub mod sysfs;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// The device of this process, on its memory and its link.
pub type Nic = mlx5_device::Nic<dma::Host, link::Link>;
