//! Queues taken over from libmlx5: where their rings, records and registers lie.
//!
//! Follows `mlx5dv_init_obj(3)`. libmlx5 keeps its own indices to itself, so that a queue is posted to and polled either by
//! libmlx5 or by others, never both; the types see to it: a [`DirectCq`] consumes the [`super::Cq`], a [`DirectQp`] is
//! made with direct CQs only, and neither has libmlx5's post or poll.

use std::ops::Deref;
use std::sync::Arc;

use mlx5_layout::cqe::OP_OWN;
use rdma_core_internals::FRESH_CQE_OP_OWN;

use super::completion::{Cq, CqHandle};
use super::device::Context;
use super::queue_pair::Qp;
use crate::result::raw;
use crate::result::{Error, Result, queue_pair};

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

/// A completion queue that libmlx5 does not poll any more.
#[derive(Debug)]
pub struct DirectCq {
    handle: Arc<CqHandle>,
    layout: CqLayout,
}

impl Cq {
    /// Takes the queue over. It must be fresh: no queue pair completes into it yet, and nothing was completed.
    pub fn into_direct(self) -> Result<DirectCq> {
        let context = &self.handle.context;
        if !context.is_mlx5() {
            return Err(Error::Refused(format!("{} is not an mlx5 device", context.name())));
        }
        if Arc::strong_count(&self.handle) != 1 {
            return Err(Error::Refused(
                "the CQ has queue pairs that libmlx5 posts to: take it over before they are made".into(),
            ));
        }
        // SAFETY: the CQ is live and of an mlx5 device.
        let raw = unsafe { queue_pair::init_cq(self.handle.cq) }?;
        let layout = CqLayout {
            address: raw.buf.cast(),
            entries: raw.cqe_cnt,
            stride: raw.cqe_size,
            record: raw.dbrec,
            uar: raw.cq_uar.cast(),
            number: raw.cqn,
        };
        if let Some(used) = first_used(&layout) {
            return Err(Error::Refused(format!(
                "CQ {:#x} is not fresh: entry {used} was written",
                layout.number
            )));
        }
        Ok(DirectCq { handle: self.handle, layout })
    }
}

/// First entry whose last byte is not what libmlx5 put there when it made the ring.
fn first_used(layout: &CqLayout) -> Option<u32> {
    let stride = layout.stride as usize;
    (0..layout.entries).find(|&index| {
        let last = index as usize * stride + stride - mlx5_layout::cqe::CQE_BYTES + OP_OWN;
        let last = layout.address.wrapping_add(last);
        // SAFETY: libmlx5's ring holds `entries` of `stride` bytes, and lives as long as the CQ.
        unsafe { last.read_volatile() != FRESH_CQE_OP_OWN }
    })
}

impl DirectCq {
    pub(super) fn handle(&self) -> &Arc<CqHandle> {
        &self.handle
    }

    /// Where its memory lies.
    pub fn layout(&self) -> CqLayout {
        self.layout
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.handle.context
    }
}

/// A queue pair that libmlx5 does not post to. States, number and sizes are those of [`Qp`].
#[derive(Debug)]
pub struct DirectQp {
    qp: Qp,
    layout: QpLayout,
}

impl DirectQp {
    /// Takes over a queue pair that was made this moment.
    pub(super) fn take_over(qp: Qp) -> Result<Self> {
        let layout = qp.layout()?;
        for word in 0..2 {
            // SAFETY: a doorbell record is two words, and lives as long as the queue pair.
            let value = unsafe { layout.record.wrapping_add(word).read_volatile() };
            if value != 0 {
                return Err(Error::Refused(format!(
                    "QP {:#x} is not fresh: its record holds {value:#x}",
                    qp.number()
                )));
            }
        }
        Ok(Self { qp, layout })
    }

    /// Where its memory lies.
    pub fn memory(&self) -> QpLayout {
        self.layout
    }
}

impl Deref for DirectQp {
    type Target = Qp;
    fn deref(&self) -> &Qp {
        &self.qp
    }
}
