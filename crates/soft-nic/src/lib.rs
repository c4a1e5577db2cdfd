//! The software mlx5 NIC: it answers an unmodified libmlx5 that opens, maps and rings an absent ConnectX.
//!
//! The device itself, which turns rung doorbells into validated work and completions, is the crate
//! `mlx5-device`; its transport is `roce`. Here is the machine around it, in rooms from the ground up, of
//! which none names one above it (INV-1): [`config`], [`os`], [`sysfs`], [`dma`], [`link`], [`recording`],
//! [`abi`], [`rdma_cm`], [`control`], [`runtime`]. Knows no libibverbs, no shim, no application (INV-4).

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
