//! The software mlx5 NIC: what answers when an unmodified libmlx5 opens, maps and rings a ConnectX that is not there.
//!
//! Four parts, each testable alone: [`abi`] answers the kernel's uverbs commands, [`device`] turns rung doorbells into
//! validated work and completions, `roce` (its own crate) is the transport, [`link`] carries messages between
//! processes. [`dma`] is the only part that touches application memory. Arrows: abi → device → {dma, link}, never back.
//! Knows nothing of libibverbs, of the shim or of any application (INV-4).

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod abi;
pub mod config;
pub mod device;
pub mod dma;
pub mod link;
pub mod span;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
