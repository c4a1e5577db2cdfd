//! Bytes that a driver and an mlx5 NIC exchange: WQEs, CQEs, doorbell records and UAR registers.
//!
//! Follows `providers/mlx5/mlx5dv.h` and `{qp,cq,srq,mlx5}.c` of rdma-core 44; other sources are named where
//! used. Every multi-byte field is big-endian except payload. Golden bytes marked «libmlx5 44» were dumped
//! from rings that the unmodified library wrote; an inline function of the header wrote those marked «mlx5dv
//! setter». Only a device writes a CQE, so its golden bytes follow the header's struct by hand.
//!
//! Views are over bytes that the caller has copied: they check lengths once, then never panic. Left out:
//! Ethernet segments, UMR beyond memory windows, tag matching, striding receive queues, compressed CQEs.
//! Knows nothing of sockets, CUDA, libibverbs or the transport; does no I/O and holds no `unsafe` (INV-2).
#![allow(missing_docs, reason = "a name that says it all has no comment")]
#![forbid(unsafe_code)]

mod bytes;
pub mod cqe;
pub mod doorbell;
pub mod opcode;
pub mod recv_wqe;
pub mod send_wqe;
pub mod srq_wqe;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod umr;

pub use cqe::{Cqe, CqeFields};
pub use opcode::{CqeOpcode, CqeSyndrome, SendOpcode};
pub use recv_wqe::RecvWqe;
pub use send_wqe::SendWqe;
pub use srq_wqe::SrqWqe;

/// Why bytes are not what they were taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("{what} needs {need} bytes, got {have}")]
    TooShort {
        /// Structure that was to be read or written.
        what: &'static str,
        need: usize,
        have: usize,
    },
    /// The WQE's own length field is 0, or lets it end inside one of its segments.
    #[error("a WQE of ds {ds} (16-byte units) has no room for its {segment}")]
    WqeEndsEarly { ds: u8, segment: &'static str },
    /// The opcode has segments that this crate does not describe.
    #[error("send opcode {opcode:#04x} with opmod {opmod:#04x} is not described here")]
    UnknownSendOpcode { opcode: u8, opmod: u8 },
    /// Inline data does not fit in this CQE, or the CQE's fields overlap it.
    #[error("{len} bytes do not fit inline in a {slot}-byte CQE")]
    NotInline { len: usize, slot: usize },
}
