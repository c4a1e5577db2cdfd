//! Post to and poll mlx5 queues without libmlx5: the C routines of `include/doorbell.h`, and a safe Rust API.
//!
//! The C header is the product: it compiles for the host as C11 and C++17 and depends on nothing
//! (`docs/rdma-shim.md`). This crate compiles it once for the host ([`sys`]), hands it queues that the
//! `verbs` crate took over from libmlx5 ([`QueuePair`]), and takes that crate's requests, so that one request
//! can be posted either way and the bytes compared (INV-5).
//! Kernels of a GPU, or of its host twin ([`host_twin`]), are launched through [`kernel`].
//! Left out: UD, SEND with invalidate, memory windows, shared receive queues, 128-byte and compressed CQEs.
//! Knows nothing of models, slots, or of which NIC lies below (INV-4).

mod completion;
pub mod device;
pub mod header;
pub mod kernel;
#[cfg(test)]
mod kernels {
    //! The kernels of `tests/kernels` for the host twin, as the build script compiled them.
    host_twin::include_kernels!("kernels");
}
#[cfg(test)]
mod memory_tests;
mod queue_pair;
mod request;
pub mod sys;
#[cfg(feature = "testing")]
pub mod testing;

pub use completion::{Completion, Status};
pub use queue_pair::{Doorbell, Options, Order, PollError, QueuePair, ShimError};
pub use request::{PostError, PostErrorKind, ReceiveList, SendList, Unsupported};
