//! A queue pair that a kernel posts to and polls.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use gpu::{Kind, Registered};
use verbs::{CqLayout, DirectCq, DirectQp, Pd, Qp, QpBuilder};

use super::error::KernelError;
use super::machine::Machine;
use super::memory::{Memory, Plain, c_structs};
use crate::queue_pair::{Options, ShimError, completion_queue, receive_queue, send_queue};
use crate::sys::*;

c_structs! {
    /// `struct db_kernel_queue` of `doorbell_kernel.h`: where kernels find a queue's structs.
    #[allow(missing_docs, reason = "fields of C")]
    pub struct db_kernel_queue {
        pub sq: u64,
        pub rq: u64,
        pub send_cq: u64,
        pub receive_cq: u64,
    }
}

// SAFETY: likewise.
unsafe impl Plain for db_sq {}
// SAFETY: likewise.
unsafe impl Plain for db_rq {}
// SAFETY: likewise.
unsafe impl Plain for db_cq {}

/// Where the structs lie in a queue's state; lines of their own.
const SQ: usize = 0;
const RQ: usize = 128;
const SEND_CQ: usize = 192;
const RECEIVE_CQ: usize = 256;
const STATE_BYTES: usize = 320;

/// A queue pair and its CQs, taken over from libmlx5, as the kernels of one machine see them. Its indices lie
/// in memory between launches: a kernel may go on where the one before ended.
#[derive(Debug)]
pub struct Queue {
    machine: Machine,
    state: Memory,
    /// As the CPU sees the queues: for when they are reset, and for directions that are the CPU's.
    pub(super) host: Structs,
    /// The CPU may use it too.
    pub(super) is_mixed: bool,
    slots: Memory,
    wr_ids: Option<Memory>,
    shown: Vec<Registered>,
    // libmlx5's memory: stays when a kernel may still reach it.
    qp: ManuallyDrop<DirectQp>,
    cqs: ManuallyDrop<(DirectCq, Option<DirectCq>)>,
}

#[derive(Debug, Clone)]
pub(super) struct Structs {
    pub(super) sq: db_sq,
    pub(super) rq: db_rq,
    pub(super) send_cq: db_cq,
    pub(super) receive_cq: Option<db_cq>,
}

impl Queue {
    /// [`crate::QueuePair::create`] for kernels of `machine`: shows it rings, records and doorbell page.
    /// Errors: that one's and the GPU's; the doorbell page's says what can be done.
    pub fn create(
        machine: &Machine,
        builder: &QpBuilder,
        pd: &Pd,
        send_cq: DirectCq,
        receive_cq: Option<DirectCq>,
        options: Options,
    ) -> Result<Queue, KernelError> {
        Queue::of(machine, builder, pd, (send_cq, receive_cq), options, false)
    }

    /// `is_mixed`: the CPU may use it too, and so what is remembered of requests lies in host memory.
    pub(super) fn of(
        machine: &Machine,
        builder: &QpBuilder,
        pd: &Pd,
        (send_cq, receive_cq): (DirectCq, Option<DirectCq>),
        options: Options,
        is_mixed: bool,
    ) -> Result<Queue, KernelError> {
        let table = |bytes| match is_mixed {
            true => machine.host_memory(bytes).map(Memory::from),
            false => machine.own_memory(bytes),
        };
        let qp = builder.build_direct(pd, &send_cq, receive_cq.as_ref().unwrap_or(&send_cq));
        let qp = crate::queue_pair::checked(qp.map_err(ShimError::from)?, options)?;
        let (qpn, layout) = (qp.number(), qp.memory());
        let slots = table(layout.send.entries as usize * size_of::<db_slot>())?;
        slots.fill(0)?;
        let wr_ids = match layout.receive.entries as usize {
            0 => None,
            entries => Some(table(entries * 8)?),
        };
        let wr_id_address = wr_ids.as_ref().map_or(0, Memory::address);
        let host = Structs {
            sq: send_queue(&qp, &layout, slots.address(), options)?,
            rq: receive_queue(&qp, &layout, wr_id_address)?,
            send_cq: completion_queue(qpn, &send_cq.layout())?,
            receive_cq: receive_cq.as_ref().map(|cq| completion_queue(qpn, &cq.layout())).transpose()?,
        };
        let mut queue = Queue {
            machine: machine.clone(),
            state: machine.host_memory(STATE_BYTES)?.into(),
            host: host.clone(),
            is_mixed,
            slots,
            wr_ids,
            shown: Vec::new(),
            qp: ManuallyDrop::new(qp),
            cqs: ManuallyDrop::new((send_cq, receive_cq)),
        };
        let seen = queue.show(host)?;
        queue.put(&seen)?;
        Ok(queue)
    }

    /// The same with addresses as kernels see them.
    fn show(&mut self, mut seen: Structs) -> Result<Structs, KernelError> {
        let layout = self.qp.memory();
        seen.sq.slots = self.slots.kernel_address();
        seen.rq.wr_ids = self.wr_ids.as_ref().map_or(0, Memory::kernel_address);
        let bytes = |ring: verbs::Ring| ring.entries as usize * ring.stride as usize;
        seen.sq.ring = self.see(layout.send.address, bytes(layout.send), Kind::Memory)?;
        let record = self.see(layout.record.cast(), 8, Kind::Memory)?;
        seen.sq.record = record + 4;
        // Both halves of a register lie on its page.
        let half = layout.blueflame_half_bytes.max(8) as usize;
        seen.sq.reg = self.see(layout.register, 2 * half, Kind::Doorbell)?;
        if layout.receive.entries > 0 {
            seen.rq.ring = self.see(layout.receive.address, bytes(layout.receive), Kind::Memory)?;
            seen.rq.record = record;
        }
        let (send, receive) = (self.cqs.0.layout(), self.cqs.1.as_ref().map(DirectCq::layout));
        self.see_cq(&mut seen.send_cq, &send)?;
        if let (Some(cq), Some(layout)) = (&mut seen.receive_cq, receive) {
            self.see_cq(cq, &layout)?;
        }
        Ok(seen)
    }

    fn see_cq(&mut self, cq: &mut db_cq, layout: &CqLayout) -> Result<(), KernelError> {
        cq.ring = self.see(layout.address, layout.entries as usize * layout.stride as usize, Kind::Memory)?;
        cq.record = self.see(layout.record.cast(), 8, Kind::Memory)?;
        Ok(())
    }

    /// Where kernels see memory of libmlx5's.
    fn see(&mut self, start: *mut u8, len: usize, kind: Kind) -> Result<u64, KernelError> {
        let address = start.expose_provenance() as u64;
        let (Some(context), Some(start)) = (self.machine.context(), NonNull::new(start)) else {
            return Ok(address);
        };
        // SAFETY: libmlx5's memory lives as long as the queue pair and the CQs, which `Drop` releases only
        // when the device is at rest and no page of theirs is registered.
        let shown = unsafe { Registered::new(context, start, len, kind) }?;
        let address = shown.device_address();
        self.shown.push(shown);
        Ok(address)
    }

    fn put(&self, structs: &Structs) -> Result<(), KernelError> {
        self.state.put(SQ, &structs.sq)?;
        self.state.put(RQ, &structs.rq)?;
        self.state.put(SEND_CQ, &structs.send_cq)?;
        match &structs.receive_cq {
            Some(cq) => self.state.put(RECEIVE_CQ, cq),
            None => Ok(()),
        }
    }

    /// The queue pair, for its states.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// For sentences: `QP 0x49`.
    pub fn name(&self) -> String {
        format!("QP {:#x}", self.qp.number())
    }

    /// Where kernels find its structs.
    pub fn addresses(&self) -> db_kernel_queue {
        let at = |offset: usize| self.state.kernel_address() + offset as u64;
        let receive_cq = if self.host.receive_cq.is_some() { RECEIVE_CQ } else { SEND_CQ };
        db_kernel_queue { sq: at(SQ), rq: at(RQ), send_cq: at(SEND_CQ), receive_cq: at(receive_cq) }
    }

    /// Its structs as the last kernel left them: what a queue that many share is made of.
    pub(super) fn structs(&self) -> Result<(db_sq, db_cq), KernelError> {
        Ok((self.state.get(SQ)?, self.state.get(SEND_CQ)?))
    }

    /// How much fits in it.
    pub fn room(&self) -> Result<Room, KernelError> {
        let rq: db_rq = self.state.get(RQ)?;
        let (sq, cq) = self.structs()?;
        let receive_completions = self.host.receive_cq.as_ref().map_or(cq.entries, |cq| cq.entries);
        let one_cq = self.host.receive_cq.is_none();
        Ok(Room { sends: sq.blocks, receives: rq.wqes, completions: cq.entries, receive_completions, one_cq })
    }

    /// Notes what posters of a shared queue used: blocks up to `producer`, send CQEs up to `consumer`.
    pub(super) fn set_used(&self, producer: u64, consumer: u64) -> Result<(), KernelError> {
        let (sq, cq) = self.structs()?;
        self.state.put(SQ, &db_sq { producer, ..sq })?;
        self.state.put(SEND_CQ, &db_cq { consumer, ..cq })
    }

    /// The machine whose kernels see it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Any state → RESET, queues emptied, as [`crate::QueuePair::reset`]. A running kernel would own it.
    pub fn emptied(mut self) -> Result<Queue, KernelError> {
        self.qp.reset()?;
        let (sq, rq): (db_sq, db_rq) = (self.state.get(SQ)?, self.state.get(RQ)?);
        // Of the two that post, one has.
        self.host.sq.producer = self.host.sq.producer.max(sq.producer);
        // SAFETY: libmlx5's addresses as the CPU sees them; in RESET the device touches no queue or record.
        unsafe { db_c_reset_send(&raw mut self.host.sq) };
        if self.host.rq.wqes > 0 {
            // SAFETY: as above.
            unsafe { db_c_reset_recv(&raw mut self.host.rq) };
        }
        let db_sq { producer, rung, consumer, .. } = self.host.sq;
        self.state.put(SQ, &db_sq { producer, rung, consumer, ..sq })?;
        let db_rq { producer, consumer, .. } = self.host.rq;
        self.state.put(RQ, &db_rq { producer, consumer, ..rq })?;
        drain(&self.state, SEND_CQ, &mut self.host.send_cq)?;
        if let Some(cq) = &mut self.host.receive_cq {
            drain(&self.state, RECEIVE_CQ, cq)?;
        }
        Ok(self)
    }
}

/// What a queue has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Blocks of its send ring.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
    /// Entries of its CQ, the send queue's where there are two.
    pub completions: u32,
    /// Entries of the receive queue's CQ.
    pub receive_completions: u32,
    /// Whether both directions complete in one.
    pub one_cq: bool,
}

impl Room {
    /// Completions that its CQ holds beside the quarter that is given back late.
    pub fn flushes(&self) -> u32 {
        self.completions - self.completions / 4
    }
}

/// Drops what a CQ holds, from where the kernel stopped on.
fn drain(state: &Memory, offset: usize, host: &mut db_cq) -> Result<(), KernelError> {
    let mut seen: db_cq = state.get(offset)?;
    // Of the two that poll, one has.
    host.consumer = host.consumer.max(seen.consumer);
    // SAFETY: ring and record are libmlx5's, as the CPU sees them, and no kernel polls them now.
    if unsafe { db_c_drain(&raw mut *host) } < 0 {
        return Err(KernelError::Refused(format!(
            "CQ {:#x} holds compressed CQEs and cannot be emptied",
            host.cqn
        )));
    }
    seen.consumer = host.consumer;
    state.put(offset, &seen)
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shown.clear();
        // What the device may still reach stays mapped.
        if self.machine.context().is_some_and(|context| !context.at_rest(Duration::ZERO)) {
            return;
        }
        // SAFETY: taken once, here; the queue pair first, since it completes to the CQs.
        unsafe { ManuallyDrop::drop(&mut self.qp) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.cqs) };
    }
}
