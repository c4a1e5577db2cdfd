//! Queues taken over from libmlx5: where their rings, records and registers lie.
//!
//! Follows `mlx5dv_init_obj(3)`. libmlx5's indices are private, so that a queue is posted to and polled
//! either by libmlx5 or by others, never both. The types ensure it: a [`DirectCq`] consumes the
//! [`super::Cq`], a [`DirectQp`] is made with direct CQs only, and neither has libmlx5's post or poll.

use std::ops::Deref;
use std::sync::Arc;

use mlx5_layout::cqe::OP_OWN;
use rdma_core_internals::FRESH_CQE_OP_OWN;

use super::completion::{Cq, CqHandle};
use super::device::Context;
use super::layout::{CqLayout, QpLayout};
use super::queue_pair::Qp;
use crate::result::{Error, Result, queue_pair};

/// A completion queue that libmlx5 does not poll any more.
#[derive(Debug)]
pub struct DirectCq {
    handle: Arc<CqHandle>,
    layout: CqLayout,
}

impl Cq {
    /// Takes the queue over. It must be fresh: no queue pair completes into it yet, and none has.
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
