//! The software mlx5 NIC: it answers an unmodified libmlx5 that opens, maps and rings an absent ConnectX.
//!
//! The device itself, which turns rung doorbells into validated work and completions, is the crate
//! `mlx5-device`; its transport is `roce`. Here is the machine around it, in rooms from the ground up:
//! [`config`], [`os`], [`sysfs`], [`dma`], [`link`], [`abi`], [`rdma_cm`], [`control`] and [`runtime`]. None
//! names one above it (INV-1). Knows nothing of libibverbs, of the shim or of any application (INV-4).

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod abi;
pub mod config;
pub mod control;
pub mod dma;
pub mod link;
pub mod os;
pub mod rdma_cm;
pub mod recording;
pub mod runtime;
pub mod sysfs;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use recording::Nic;
