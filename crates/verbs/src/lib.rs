//! rdma-core in three floors: `sys` mirrors C, `result` turns codes into errors, [`safe`] owns and drops.
//!
//! Follows the man pages of libibverbs and `mlx5dv_init_obj(3)`, rdma-core 44; 39 to 64 are supported. Both
//! libraries are found at run time: without them all this builds, and [`safe::devices`] says what is missing.
//! Objects keep what they were made from, so that no drop order is wrong; a region keeps its memory. Left
//! out: shared receive queues, DEVX, multicast, rdma_cm.
//! Two crates were tried before: rdma-sys fails with libclang 16 and newer and links at build time; its fork
//! rdma-mummy-sys lacks `mlx5dv_init_obj` and carries a GPL-2 text.
//! Knows nothing of emulation: card or software below the uverbs ABI cannot be told apart here (INV-4).

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod connect;
mod result;
pub mod safe;
mod sys;

pub use result::code;
pub use result::{Error, LoadError, Result};
pub use safe::*;
