//! Where rings, records and registers of queues lie.

use crate::result::raw;

/// A ring of WQEs: address, length in entries, size of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// First byte; not always on a page boundary.
    pub address: *mut u8,
    /// Entries, a power of two, or 0. Of a send queue: 64-byte blocks.
    pub entries: u32,
    /// Bytes of an entry.
    pub stride: u32,
}

/// Memory of a queue pair. Addresses are valid while the queue pair lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpLayout {
    pub number: u32,
    pub send: Ring,
    pub receive: Ring,
    /// Doorbell record: two big-endian words, receive and send.
    pub record: *mut u32,
    /// Doorbell register: its first half.
    pub register: *mut u8,
    /// Size of half a register, or 0 when only 8-byte doorbells to the first half are allowed.
    pub blueflame_half_bytes: u32,
}

// SAFETY: these are numbers; the code that stores through them answers for it.
unsafe impl Send for QpLayout {}

// SAFETY: as above.
unsafe impl Sync for QpLayout {}

impl QpLayout {
    pub(super) fn from_raw(raw: raw::mlx5dv_qp, number: u32) -> Self {
        Self {
            number,
            send: Ring { address: raw.sq.buf.cast(), entries: raw.sq.wqe_cnt, stride: raw.sq.stride },
            receive: Ring { address: raw.rq.buf.cast(), entries: raw.rq.wqe_cnt, stride: raw.rq.stride },
            record: raw.dbrec,
            register: raw.bf.reg.cast(),
            blueflame_half_bytes: raw.bf.size,
        }
    }
}

/// Memory of a completion queue. Addresses are valid while the queue lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqLayout {
    /// First byte of the ring.
    pub address: *mut u8,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes of an entry: 64, or 128 (then the CQE is the second half).
    pub stride: u32,
    /// Doorbell record: two big-endian words, consumer index and arm.
    pub record: *mut u32,
    /// UAR page whose register at 0x20 arms the queue.
    pub uar: *mut u8,
    pub number: u32,
}

// SAFETY: these are numbers; the code that stores through them answers for it.
unsafe impl Send for CqLayout {}

// SAFETY: as above.
unsafe impl Sync for CqLayout {}
