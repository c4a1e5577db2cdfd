//! A queue pair that the shim posts to and polls, with the CQs that are its alone.

use verbs::{CqLayout, DirectCq, DirectQp, Pd, Qp, QpBuilder, QpLayout, QpType, ReceiveRequest, SendRequest};

use crate::completion::Completion;
use crate::request::{PostError, PostErrorKind, ReceiveList, SendList, to_raw};
use crate::sys::*;

/// What lies between the doorbell record and the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// A fence, as libmlx5 has it.
    #[default]
    Strict,
    /// None: the index in the register write keeps the device right. To be confirmed on hardware.
    Early,
}

/// How a doorbell is rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Doorbell {
    /// 8 bytes to the register's first half, always.
    #[default]
    EightBytes,
    /// As libmlx5: a lone WQE goes through the register as a whole, and the halves alternate.
    BlueFlame,
}

/// Choices of one queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// See [`Order`].
    pub order: Order,
    /// See [`Doorbell`].
    pub doorbell: Doorbell,
    /// Each request asks for a completion, whatever its flags say (`sq_sig_all` of libibverbs).
    pub signal_all: bool,
}

/// Why a queue pair cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum ShimError {
    /// rdma-core refused.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// Short messages would land in CQEs, where the shim does not copy them from.
    #[error("QP {qpn:#x} may scatter to CQEs: make it without QpBuilder::allow_scatter_to_cqe")]
    MayScatterToCqe { qpn: u32 },
    /// BlueFlame needs a register that nobody else writes.
    #[error("QP {qpn:#x} shares its doorbell register: BlueFlame needs QpBuilder::own_register")]
    SharedRegister { qpn: u32 },
    /// Datagrams are libmlx5's business.
    #[error("QP {qpn:#x} is {kind}: the shim posts to RC and UC")]
    Service { qpn: u32, kind: QpType },
    /// Sizes that the routines do not handle.
    #[error("{what} of QP {qpn:#x} has {entries} entries of {stride} bytes, which the shim does not handle")]
    Shape { what: &'static str, qpn: u32, entries: u32, stride: u32 },
}

/// Why a CQ could not be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("CQ {cqn:#x} holds compressed CQEs: make it without CQE compression")]
pub struct PollError {
    /// Completion queue number.
    pub cqn: u32,
}

/// One queue pair and its CQs, taken over from libmlx5.
///
/// ```no_run
/// use rdma_shim::{Completion, Options, QueuePair};
/// use verbs::{Cq, Payload, QpBuilder, QpType, Remote, SendOperation, SendRequest};
/// # fn connect(_: &verbs::Qp) {}
/// # fn example(region: &verbs::Mr<verbs::Pages>, target: Remote) -> Result<(), Box<dyn std::error::Error>> {
/// let context = verbs::open(Some("mlx5_0"))?;
/// let pd = context.alloc_pd()?;
/// let cq = Cq::new(&context, 256)?.into_direct()?;
/// let mut qp = QueuePair::create(&QpBuilder::new(QpType::Rc), &pd, cq, None, Options::default())?;
/// connect(qp.qp());
/// let entries = [region.sge(0..64)?];
/// qp.try_post(&SendRequest::new(1, SendOperation::Write(target), Payload::Gather(&entries)))?;
/// qp.ring();
/// let mut done = [Completion::default(); 16];
/// while qp.poll(&mut done)? == 0 {}
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair {
    sq: db_sq,
    rq: db_rq,
    send_cq: db_cq,
    receive_cq: Option<db_cq>,
    // The queues name these by address: their memory does not move with `self`.
    _slots: Vec<db_slot>,
    _wr_ids: Vec<u64>,
    qp: DirectQp,
    _send_cq: DirectCq,
    _receive_cq: Option<DirectCq>,
}

impl QueuePair {
    /// Makes a queue pair whose completions go to CQs of its own: `receive_cq` is `send_cq` when `None`.
    pub fn create(
        builder: &QpBuilder,
        pd: &Pd,
        send_cq: DirectCq,
        receive_cq: Option<DirectCq>,
        options: Options,
    ) -> Result<QueuePair, ShimError> {
        let qp =
            checked(builder.build_direct(pd, &send_cq, receive_cq.as_ref().unwrap_or(&send_cq))?, options)?;
        let (qpn, memory) = (qp.number(), qp.memory());
        let mut slots = vec![db_slot::default(); memory.send.entries as usize];
        let mut wr_ids: Vec<u64> = vec![0; memory.receive.entries as usize];
        Ok(QueuePair {
            sq: send_queue(&qp, &memory, slots.as_mut_ptr().expose_provenance() as u64, options)?,
            rq: receive_queue(&qp, &memory, wr_ids.as_mut_ptr().expose_provenance() as u64)?,
            send_cq: completion_queue(qpn, &send_cq.layout())?,
            receive_cq: receive_cq.as_ref().map(|cq| completion_queue(qpn, &cq.layout())).transpose()?,
            _slots: slots,
            _wr_ids: wr_ids,
            qp,
            _send_cq: send_cq,
            _receive_cq: receive_cq,
        })
    }

    /// The queue pair, for its states.
    pub fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Writes one request; [`QueuePair::ring`] publishes it.
    pub fn try_post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        // SAFETY: the queue's addresses were libmlx5's when it was made, and `self.qp` and the tables keep
        // them valid; `&mut self` makes this the only poster.
        unsafe { try_post(&mut self.sq, request) }
    }

    /// Tells the device of everything written since the last ring.
    pub fn ring(&mut self) {
        // SAFETY: as in `try_post`.
        unsafe { db_c_ring(&raw mut self.sq) }
    }

    /// Posts a piece of a list in order and rings once, as `ibv_post_send`. Panics if `range` leaves it.
    #[inline]
    pub fn post(&mut self, list: &SendList<'_>, range: std::ops::Range<usize>) -> Result<(), PostError> {
        let requests = &list.as_raw()[range];
        let mut bad = 0;
        // SAFETY: as in `try_post`; the list borrows the slices of its requests.
        let code =
            unsafe { db_c_post(&raw mut self.sq, requests.as_ptr(), requests.len() as u32, &raw mut bad) };
        if code == 0 { Ok(()) } else { Err(PostError::of(code, bad)) }
    }

    /// Posts one receive.
    pub fn post_receive(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        let mut list = ReceiveList::with_capacity(1);
        list.push(request);
        self.post_receives(&list, 0..1)
    }

    /// Posts a piece of a list of receives with one record update. Panics when `range` leaves the list.
    pub fn post_receives(
        &mut self,
        list: &ReceiveList<'_>,
        range: std::ops::Range<usize>,
    ) -> Result<(), PostError> {
        // SAFETY: as in `try_post`, for the receive queue.
        unsafe { post_receives(&mut self.rq, &list.as_raw()[range]) }
    }

    /// Takes up to `out.len()` completions of both directions; gives their number.
    #[inline]
    pub fn poll(&mut self, out: &mut [Completion]) -> Result<usize, PollError> {
        // SAFETY: ring and record are libmlx5's, kept by the `DirectCq` in the same object, and no other
        // polls them: `QueuePair::create` consumed it.
        let taken = unsafe { poll_one(&mut self.send_cq, &mut self.sq, &mut self.rq, out) }?;
        match &mut self.receive_cq {
            None => Ok(taken),
            // SAFETY: as above.
            Some(cq) => Ok(taken + unsafe { poll_one(cq, &mut self.sq, &mut self.rq, &mut out[taken..]) }?),
        }
    }

    /// Any state → RESET, with empty queues: everything posted is forgotten, everything completed is dropped.
    /// Returns how many completions were dropped.
    pub fn reset(&mut self) -> Result<u32, ShimError> {
        self.qp.reset()?;
        // SAFETY: as in `try_post`; in RESET the device touches neither queue nor record.
        unsafe { db_c_reset_send(&raw mut self.sq) };
        if self.rq.wqes > 0 {
            // SAFETY: as above.
            unsafe { db_c_reset_recv(&raw mut self.rq) };
        }
        let mut dropped = 0;
        for cq in std::iter::once(&mut self.send_cq).chain(&mut self.receive_cq) {
            // SAFETY: as in `poll_one`.
            dropped += unsafe { db_c_drain(&raw mut *cq) }.max(0).cast_unsigned();
        }
        Ok(dropped)
    }
}

/// Writes one request.
///
/// # Safety
/// The queue's ring, record, register and slots are there, and the CPU alone posts to it.
pub(crate) unsafe fn try_post(sq: &mut db_sq, request: &SendRequest<'_>) -> Result<(), PostError> {
    let unsupported = |why| PostError { index: 0, kind: PostErrorKind::Unsupported(why) };
    let raw = to_raw(request).map_err(unsupported)?;
    // SAFETY: the caller's; inline entries are slices that the request borrows.
    let code = unsafe { db_c_try_post(&raw mut *sq, &raw const raw) };
    if code == 0 { Ok(()) } else { Err(PostError::of(code, 0)) }
}

/// Posts receives with one record update.
///
/// # Safety
/// As [`try_post`]; a queue without entries has no ring: for its count of 0 the routine refuses to store.
pub(crate) unsafe fn post_receives(rq: &mut db_rq, requests: &[db_recv_wr]) -> Result<(), PostError> {
    let mut bad = 0;
    // SAFETY: the caller's.
    let code =
        unsafe { db_c_post_recv(&raw mut *rq, requests.as_ptr(), requests.len() as u32, &raw mut bad) };
    if code == 0 { Ok(()) } else { Err(PostError::of(code, bad)) }
}

/// Takes completions.
///
/// # Safety
/// The CQ's ring and record, and what the queues remember of requests, are there, and the CPU alone polls it.
pub(crate) unsafe fn poll_one(
    cq: &mut db_cq,
    sq: &mut db_sq,
    rq: &mut db_rq,
    out: &mut [Completion],
) -> Result<usize, PollError> {
    let max = i32::try_from(out.len()).unwrap_or(i32::MAX);
    let out = out.as_mut_ptr().cast::<db_completion>();
    // SAFETY: the caller's; `Completion` is a `db_completion`, of which there are `max`.
    let taken = unsafe { db_c_poll(&raw mut *cq, &raw mut *sq, &raw mut *rq, out, max) };
    usize::try_from(taken).map_err(|_| PollError { cqn: cq.cqn })
}

/// Whether the routines may post to a queue pair with these choices.
pub(crate) fn checked(qp: DirectQp, options: Options) -> Result<DirectQp, ShimError> {
    let qpn = qp.number();
    if qp.may_scatter_to_cqe() {
        return Err(ShimError::MayScatterToCqe { qpn });
    }
    if options.doorbell == Doorbell::BlueFlame && !qp.has_own_register() {
        return Err(ShimError::SharedRegister { qpn });
    }
    Ok(qp)
}

/// `slots`: where `memory.send.entries` of [`db_slot`] lie.
pub(crate) fn send_queue(
    qp: &DirectQp,
    memory: &QpLayout,
    slots: u64,
    options: Options,
) -> Result<db_sq, ShimError> {
    let (qpn, kind) = (qp.number(), qp.kind());
    // Bits of enum ibv_wr_opcode: all seven, or WRITE and SEND with and without immediate.
    let opcodes = match kind {
        QpType::Rc => 0x7f,
        QpType::Uc => 0x0f,
        QpType::Ud => return Err(ShimError::Service { qpn, kind }),
    };
    let mut sq = db_sq {
        ring: memory.send.address.addr() as u64,
        record: memory.record.addr() as u64 + 4,
        reg: memory.register.addr() as u64,
        slots,
        blocks: memory.send.entries,
        qpn,
        half_bytes: memory.blueflame_half_bytes,
        max_sge: qp.capacity().send_sges,
        max_inline: qp.capacity().inline_bytes,
        opcodes,
        signal_all: options.signal_all.into(),
        order: options.order as u32,
        doorbell: options.doorbell as u32,
        ..db_sq::default()
    };
    // SAFETY: the struct is on the stack; only its numbers are looked at.
    match unsafe { db_c_sq_init(&raw mut sq, memory.send.stride) } {
        0 => Ok(sq),
        _ => Err(shape("the send queue", qpn, memory.send.entries, memory.send.stride)),
    }
}

/// A queue pair without receives has no ring: the struct stays empty, and posting finds it full. `wr_ids`:
/// where one word per entry lies.
pub(crate) fn receive_queue(qp: &DirectQp, memory: &QpLayout, wr_ids: u64) -> Result<db_rq, ShimError> {
    let ring = memory.receive;
    if ring.entries == 0 {
        return Ok(db_rq { qpn: qp.number(), ..db_rq::default() });
    }
    let mut rq = db_rq {
        ring: ring.address.addr() as u64,
        record: memory.record.addr() as u64,
        wr_ids,
        wqes: ring.entries,
        stride: ring.stride,
        qpn: qp.number(),
        max_sge: qp.capacity().receive_sges,
        ..db_rq::default()
    };
    // SAFETY: the struct is on the stack; only its numbers are looked at.
    match unsafe { db_c_rq_init(&raw mut rq) } {
        0 => Ok(rq),
        _ => Err(shape("the receive queue", qp.number(), ring.entries, ring.stride)),
    }
}

pub(crate) fn completion_queue(qpn: u32, layout: &CqLayout) -> Result<db_cq, ShimError> {
    let mut cq = db_cq {
        ring: layout.address.addr() as u64,
        record: layout.record.addr() as u64,
        entries: layout.entries,
        cqn: layout.number,
        ..db_cq::default()
    };
    // SAFETY: the struct is on the stack; only its numbers are looked at.
    match unsafe { db_c_cq_init(&raw mut cq, layout.stride) } {
        0 => Ok(cq),
        _ => Err(shape("a CQ", qpn, layout.entries, layout.stride)),
    }
}

fn shape(what: &'static str, qpn: u32, entries: u32, stride: u32) -> ShimError {
    ShimError::Shape { what, qpn, entries, stride }
}
