//! Queue pairs: creation, the state machine's commands, numbers.
//!
//! Moves and the attributes they need are `roce::qp_state`; the values are checked here as the driver and the card do.
//! Left out: shared receive queues, raw packet and DC queues, path migration, multicast.

use std::collections::VecDeque;

use mlx5_layout::send_wqe::BLOCK_BYTES;
use roce::qp_state::{AttrMask, QpState, check_modify};
use roce::{Access, Psn, Reply, Requester, RequesterConfig, Responder, ResponderConfig, ServiceType};

use super::ah;
use super::command::{CommandError, ContextId, CreateQp, CreatedQp, Handle, ModifyQp, QpCap, QueriedQp};
use super::core::Core;
use super::doorbell::SendDoorbell;
use super::mr::access;
use super::rq::ReceiveQueue;
use super::sq::SendQueue;
use crate::config::LinkLayer;
use crate::dma::{Memory, Segment};
use crate::link::PathAddress;

/// `MLX5_QP_FLAG_*` bits (`mlx5-abi.h`).
pub mod flag {
    /// Queue entries carry signatures.
    pub const SIGNATURE: u32 = 1;
    /// Small payloads may go into CQEs.
    pub const SCATTER_CQE: u32 = 1 << 1;
    /// The page is a static BlueFlame register index.
    pub const BFREG_INDEX: u32 = 1 << 3;
    /// Also for the requester, without `sq_sig_all`.
    pub const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    /// Packet-based credits: a hint.
    pub const PACKET_BASED_CREDIT_MODE: u32 = 1 << 9;
    /// The page is a UAR page number.
    pub const UAR_PAGE_INDEX: u32 = 1 << 10;
    /// What this NIC takes.
    pub const KNOWN: u32 =
        SIGNATURE | SCATTER_CQE | BFREG_INDEX | ALLOW_SCATTER_CQE | PACKET_BASED_CREDIT_MODE | UAR_PAGE_INDEX;
}

/// Messages that a queue has under way at most; what lies behind them waits in the ring.
const WINDOW_MESSAGES: u32 = 128;

// A QPN is 7 bits of process, 3 bits of device, 14 bits of index. The device is in it so that the sender can tell whether
// the address it was given leads to the QP it was given, as a switch and a port would.
const INDEX_BITS: u32 = 14;
const DEVICE_BITS: u32 = 3;
const FIRST_INDEX: u32 = 0x40;

/// QPs of one device in one process.
pub const MAX_QP: u32 = (1 << INDEX_BITS) - FIRST_INDEX;

/// Process that owns this QPN, if it is a QPN of `device`.
pub(super) fn process_of(qpn: u32, device: usize) -> Option<u8> {
    let of_device = (qpn >> INDEX_BITS & ((1 << DEVICE_BITS) - 1)) as usize;
    (qpn >> 24 == 0 && of_device == device).then(|| slot_of(qpn))
}

/// Process part of a QPN.
pub(super) fn slot_of(qpn: u32) -> u8 {
    (qpn >> (INDEX_BITS + DEVICE_BITS)) as u8 & 0x7f
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    /// Place in the NIC's table.
    pub place: u32,
    pub context: ContextId,
    pub user_handle: u64,
    pub qpn: u32,
    pub device: usize,
    pub service: ServiceType,
    /// MTU of its port, verbs code: bounds a datagram, for which no path is ever set.
    pub port_mtu: u8,
    pub pd: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub cap: QpCap,
    pub max_send_sge: u32,
    pub signal_all: bool,
    pub user_index: u32,
    /// Largest READ or atomic result that goes into the CQE; 0: none.
    pub requester_scatter: usize,
    /// Largest received payload that goes into the CQE; 0: none.
    pub responder_scatter: usize,
    pub state: QpState,
    pub attributes: ModifyQp,
    pub sq: SendQueue,
    pub rq: ReceiveQueue,
    pub requester: Option<Requester>,
    pub responder: Option<Responder>,
    /// Process of the connected peer; none: nobody on the fabric has the address and the QPN.
    pub peer: Option<u8>,
    /// Path to the connected peer.
    pub path: PathAddress,
    /// «Drained» is owed.
    pub drain_event: bool,
    pub async_events: u32,
    /// Listed for being looked at in every poll.
    pub hot: bool,
    /// Last time that something moved.
    pub active: roce::Now,
    /// Listed for sending replies.
    pub replying: bool,
    /// READ answers that travel in replies: last PSN of the request, where the bytes are, how many have left.
    pub answers: VecDeque<Answer>,
    /// A READ response of which the link took only a part.
    pub partial_reply: Option<Reply>,
    /// READ responses leave at the link's rate: no reply before this.
    pub reply_not_before: roce::Now,
}

/// Bytes of a READ that go out with its reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// First PSN of the request.
    pub first_psn: Psn,
    /// Last PSN of the request, which the reply names.
    pub psn: Psn,
    /// The bytes.
    pub from: Segment,
    /// Place of the first one in the message that the requester posted.
    pub offset: u32,
}

impl Qp {
    /// Path MTU in bytes; a datagram's is the port's.
    pub(super) fn mtu_bytes(&self) -> u32 {
        let code = if self.service == ServiceType::Ud { self.port_mtu } else { self.attributes.path_mtu };
        128 << code.clamp(1, 5)
    }
}

/// Every QP of the process. A QP is taken out while it is worked on, so that the rest of the NIC can be used with it.
#[derive(Debug)]
pub(super) struct Qps {
    slot: u8,
    places: Vec<Option<Box<Qp>>>,
    free: Vec<u32>,
    /// By device: index part of the QPN to place plus 1.
    numbers: Vec<Vec<u32>>,
    next_index: Vec<u32>,
    counts: Vec<u32>,
}

impl Qps {
    pub(super) fn new(slot: u8) -> Qps {
        let devices = 1 << DEVICE_BITS;
        Qps {
            slot,
            places: Vec::new(),
            free: Vec::new(),
            numbers: vec![Vec::new(); devices],
            next_index: vec![FIRST_INDEX; devices],
            counts: vec![0; devices],
        }
    }

    pub(super) fn get(&self, place: u32) -> Option<&Qp> {
        self.places.get(place as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Qp> {
        self.places.get_mut(place as usize)?.as_deref_mut()
    }

    pub(super) fn take(&mut self, place: u32) -> Option<Box<Qp>> {
        self.places.get_mut(place as usize)?.take()
    }

    pub(super) fn put(&mut self, qp: Box<Qp>) {
        let place = qp.place as usize;
        self.places[place] = Some(qp);
    }

    /// Places are below this.
    pub(super) fn bound(&self) -> u32 {
        self.places.len() as u32
    }

    /// Place of the QP with exactly this number.
    pub(super) fn find(&self, qpn: u32) -> Option<u32> {
        if qpn >> 24 != 0 || slot_of(qpn) != self.slot {
            return None;
        }
        let device = (qpn >> INDEX_BITS & ((1 << DEVICE_BITS) - 1)) as usize;
        let index = (qpn & ((1 << INDEX_BITS) - 1)) as usize;
        self.numbers[device].get(index)?.checked_sub(1)
    }

    /// Gives a number to a new QP; numbers come back as late as possible. `None`: all are in use.
    fn number(&mut self, device: usize, place: u32) -> Option<u32> {
        if self.counts[device] >= MAX_QP {
            return None;
        }
        let table = &mut self.numbers[device];
        let mut index = self.next_index[device];
        while table.get(index as usize).is_some_and(|taken| *taken != 0) {
            index = following(index);
        }
        if table.len() <= index as usize {
            table.resize(index as usize + 1, 0);
        }
        table[index as usize] = place + 1;
        self.next_index[device] = following(index);
        self.counts[device] += 1;
        Some(u32::from(self.slot) << (INDEX_BITS + DEVICE_BITS) | (device as u32) << INDEX_BITS | index)
    }

    fn release(&mut self, qp: &Qp) {
        let index = (qp.qpn & ((1 << INDEX_BITS) - 1)) as usize;
        self.numbers[qp.device][index] = 0;
        self.counts[qp.device] -= 1;
        self.free.push(qp.place);
    }

    fn place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        })
    }
}

fn following(index: u32) -> u32 {
    if index + 1 < 1 << INDEX_BITS { index + 1 } else { FIRST_INDEX }
}

impl<M: Memory> Core<M> {
    pub(super) fn create_qp(&mut self, id: ContextId, request: &CreateQp) -> Result<CreatedQp, CommandError> {
        let device = self.context(id)?.device;
        let pd = self.find_pd(id, request.pd)?;
        let send_cq = self.find_cq(id, request.send_cq)?;
        let recv_cq = self.find_cq(id, request.recv_cq)?;
        self.check_queues(request)?;
        let page = self.find_page(id, request)?;
        let size = |cq: u32| self.cqs.get(cq).map_or(64, |cq| cq.cqe_size as usize);
        let (requester_scatter, responder_scatter) = scatter_limits(request, size(send_cq), size(recv_cq));
        let place = self.qps.place();
        let Some(qpn) = self.qps.number(device, place) else {
            self.qps.free.push(place);
            return Err(CommandError::exhausted("queue pairs", MAX_QP));
        };
        let rq_bytes = u64::from(request.rq_wqe_count) << request.rq_wqe_shift;
        let (sq_ring, signature) = (request.buffer + rq_bytes, request.mlx5_flags & flag::SIGNATURE != 0);
        let qp = Qp {
            place,
            context: id,
            user_handle: request.user_handle,
            qpn,
            device,
            service: request.service,
            port_mtu: self.devices[device].mtu,
            pd,
            send_cq,
            recv_cq,
            cap: request.cap,
            max_send_sge: self.capabilities.max_sge,
            signal_all: request.signal_all,
            user_index: request.user_index,
            requester_scatter,
            responder_scatter,
            state: QpState::Reset,
            attributes: ModifyQp::default(),
            sq: SendQueue {
                ring: sq_ring,
                blocks: request.sq_wqe_count,
                record: request.record + 4,
                fetched: 0,
                doorbell: SendDoorbell::new(page, page.is_none() || !self.options.strict),
                held: None,
                outstanding: VecDeque::new(),
                partial: None,
                lent: VecDeque::new(),
                last_sent: None,
                stopped: false,
            },
            rq: ReceiveQueue {
                ring: request.buffer,
                count: request.rq_wqe_count,
                shift: request.rq_wqe_shift,
                record: request.record,
                taken: 0,
                header: if signature { 16 } else { 0 },
                pointers: Vec::new(),
            },
            requester: None,
            responder: None,
            peer: None,
            path: PathAddress::default(),
            drain_event: false,
            async_events: 0,
            hot: false,
            active: self.now,
            replying: false,
            answers: VecDeque::new(),
            partial_reply: None,
            reply_not_before: roce::Now(0),
        };
        self.qps.put(Box::new(qp));
        self.count_pd(pd, 1);
        for cq in [send_cq, recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.users += 1;
            }
        }
        if let Some(uar) = page.and_then(|page| self.uars.get_mut(page)) {
            uar.queues.push(place);
        }
        if let Some(page) = page {
            self.join_page(page);
        }
        Ok(CreatedQp { handle: self.context_mut(id)?.qps.insert(place), qpn, cap: request.cap })
    }

    /// Sizes, alignment and memory of the queues, as `set_user_buf_size` and the card's limits have it.
    fn check_queues(&self, request: &CreateQp) -> Result<(), CommandError> {
        let limits = &self.capabilities;
        let CreateQp { sq_wqe_count: sq, rq_wqe_count: rq, rq_wqe_shift: shift, cap, .. } = *request;
        if request.mlx5_flags & !flag::KNOWN != 0 {
            let unknown = request.mlx5_flags & !flag::KNOWN;
            let reason = format!("QP flags {unknown:#x} are not supported");
            return Err(CommandError { errno: libc::EOPNOTSUPP, reason });
        }
        for (name, value, limit) in [
            ("sq_wqe_count", sq, limits.max_qp_wr),
            ("rq_wqe_count", rq, limits.max_qp_wr),
            ("max_send_wr", cap.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", cap.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", cap.max_send_sge, limits.max_sge),
            // An entry of 512 bytes has 32 pointers, and libmlx5 may round up to that.
            ("max_recv_sge", cap.max_recv_sge, limits.max_sge + 2),
            ("max_inline_data", cap.max_inline_data, limits.max_inline_data),
        ] {
            if value > limit {
                return Err(CommandError::invalid(format!("{name} {value} is above the limit of {limit}")));
            }
        }
        if (sq != 0 && !sq.is_power_of_two()) || (rq != 0 && !rq.is_power_of_two()) {
            return Err(CommandError::invalid(format!("queues of {sq} and {rq} entries: no powers of two")));
        }
        if rq != 0 && !(4..=9).contains(&shift) {
            return Err(CommandError::invalid(format!("rq_wqe_shift {shift} is not in 4..=9")));
        }
        let rq_bytes = if rq == 0 { 0 } else { u64::from(rq) << shift };
        let bytes = u64::from(sq) * BLOCK_BYTES as u64 + rq_bytes;
        if !request.buffer.is_multiple_of(64)
            || !request.record.is_multiple_of(8)
            || !rq_bytes.is_multiple_of(64)
        {
            let (buffer, record) = (request.buffer, request.record);
            return Err(CommandError::invalid(format!(
                "QP ring {buffer:#x} or record {record:#x} is not aligned"
            )));
        }
        let fault = |f: crate::dma::Fault| CommandError { errno: libc::EFAULT, reason: format!("QP: {f}") };
        if bytes > 0 {
            self.memory.probe(request.buffer, bytes, false).map_err(fault)?;
        }
        self.memory.probe(request.record, 8, false).map_err(fault)
    }

    /// The page that the queue rings. None: the command names a static register, of which this NIC has none.
    fn find_page(&self, id: ContextId, request: &CreateQp) -> Result<Option<u32>, CommandError> {
        let Some(page) = request.uar_page else { return Ok(None) };
        let found = self.uars.get(page).filter(|uar| uar.context == id);
        let missing = || CommandError::invalid(format!("UAR page {page} does not exist"));
        found.map(|_| Some(page)).ok_or_else(missing)
    }

    pub(super) fn find_qp(&self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        self.context(id)?.qps.get(handle).copied().ok_or_else(|| CommandError::no_such("QP", handle))
    }

    pub(super) fn destroy_qp(&mut self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        let place = self.find_qp(id, handle)?;
        // What it rang last must not look like a doorbell for nobody later.
        if let Some(page) = self.qps.get(place).and_then(|qp| qp.sq.doorbell.page) {
            self.poll_page(page);
        }
        self.context_mut(id)?.qps.remove(handle);
        let Some(mut qp) = self.qps.take(place) else { return Ok(0) };
        self.empty(&mut qp);
        self.qps.release(&qp);
        self.schedule.forget_qp(place);
        self.count_pd(qp.pd, -1);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cq) {
                cq.users -= 1;
            }
        }
        if let Some(uar) = qp.sq.doorbell.page.and_then(|page| self.uars.get_mut(page)) {
            uar.queues.retain(|queue| *queue != place);
        }
        let withdrawn = self.events.withdraw_asynchronous(id, qp.user_handle);
        Ok(qp.async_events.saturating_sub(withdrawn))
    }

    pub(super) fn query_qp(&self, id: ContextId, handle: Handle) -> Result<QueriedQp, CommandError> {
        let place = self.find_qp(id, handle)?;
        let qp = self.qps.get(place).ok_or_else(|| CommandError::no_such("QP", handle))?;
        let state = qp.state.number();
        let mut attributes = ModifyQp { state, current_state: state, ..qp.attributes };
        if let Some(requester) = &qp.requester {
            attributes.sq_psn = requester.next_psn().value();
        }
        if let Some(responder) = &qp.responder {
            attributes.rq_psn = responder.expected_psn().value();
        }
        attributes.sq_draining =
            qp.state == QpState::Sqd && !qp.requester.as_ref().is_none_or(Requester::is_idle);
        Ok(QueriedQp { attributes, cap: qp.cap, signal_all: qp.signal_all })
    }

    pub(super) fn modify_qp(
        &mut self,
        id: ContextId,
        handle: Handle,
        request: &ModifyQp,
    ) -> Result<(), CommandError> {
        let place = self.find_qp(id, handle)?;
        let qp = self.qps.get(place).ok_or_else(|| CommandError::no_such("QP", handle))?;
        let (from, to) = self.check_move(qp, request)?;
        if let (QpState::Reset, Some(page)) = (to, qp.sq.doorbell.page) {
            // A register write from before, which nobody looked at yet, must not count for what is posted afterwards.
            self.poll_page(page);
        }
        let mut qp = self.qps.take(place).ok_or_else(|| CommandError::no_such("QP", handle))?;
        apply(&mut qp.attributes, request);
        if request.mask & (AttrMask::AV.0 | AttrMask::DEST_QPN.0) != 0 {
            self.set_path(&mut qp);
        }
        self.enter_state(&mut qp, from, to, request.mask);
        self.schedule.heat(&mut qp, self.now);
        self.qps.put(qp);
        Ok(())
    }

    fn check_move(&self, qp: &Qp, request: &ModifyQp) -> Result<(QpState, QpState), CommandError> {
        let mask = AttrMask(request.mask);
        let from = qp.state;
        let wanted =
            if mask.contains(AttrMask::STATE) { QpState::from_number(request.state) } else { Some(from) };
        let to = wanted
            .ok_or_else(|| CommandError::invalid(format!("QP state {} does not exist", request.state)))?;
        if mask.contains(AttrMask::CUR_STATE) && request.current_state != from.number() {
            let assumed = request.current_state;
            return Err(CommandError::invalid(format!("the QP is in {from:?}, not in state {assumed}")));
        }
        check_modify(qp.service, from, to, mask).map_err(|e| CommandError::invalid(e.to_string()))?;
        self.check_values(qp, request)?;
        Ok((from, to))
    }

    fn check_values(&self, qp: &Qp, request: &ModifyQp) -> Result<(), CommandError> {
        let limits = &self.capabilities;
        let device = &self.devices[qp.device];
        let (rd, init) = (limits.max_qp_rd_atom, limits.max_qp_init_rd_atom);
        for (attribute, name, value, range) in [
            (AttrMask::PORT, "port", u32::from(request.port), 1..=1),
            (
                AttrMask::PKEY_INDEX,
                "pkey_index",
                request.pkey_index.into(),
                0..=u32::from(limits.max_pkeys) - 1,
            ),
            (AttrMask::PATH_MTU, "path_mtu", request.path_mtu.into(), 1..=device.mtu.into()),
            (AttrMask::TIMEOUT, "timeout", request.timeout.into(), 0..=31),
            (AttrMask::RETRY_CNT, "retry_cnt", request.retry_count.into(), 0..=7),
            (AttrMask::RNR_RETRY, "rnr_retry", request.rnr_retry.into(), 0..=7),
            (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", request.min_rnr_timer.into(), 0..=31),
            (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", request.max_rd_atomic.into(), 0..=init),
            (AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", request.max_dest_rd_atomic.into(), 0..=rd),
            (AttrMask::DEST_QPN, "dest_qp_num", request.dest_qpn, 0..=0xff_ffff),
        ] {
            if AttrMask(request.mask).contains(attribute) && !range.contains(&value) {
                let (low, high) = (range.start(), range.end());
                return Err(CommandError::invalid(format!("{name} {value} is not in {low}..={high}")));
            }
        }
        if AttrMask(request.mask).contains(AttrMask::AV) {
            let port = if request.address.port == 0 { 1 } else { request.address.port };
            ah::check(device, &super::command::AddressVector { port, ..request.address })?;
        }
        Ok(())
    }

    /// Works out where the connected peer is.
    fn set_path(&self, qp: &mut Qp) {
        let device = &self.devices[qp.device];
        let vector = &qp.attributes.address;
        let source = device.gids.get(usize::from(vector.sgid_index)).or(device.gids.first());
        let dlid = if device.link_layer == LinkLayer::Roce { 0 } else { vector.dlid };
        qp.path = PathAddress {
            sgid: source.map_or([0; 16], |entry| entry.gid),
            dgid: vector.dgid.unwrap_or_default(),
            slid: device.lid,
            dlid,
            flow_label: vector.flow_label,
            sl: vector.sl,
            traffic_class: vector.traffic_class,
            hop_limit: vector.hop_limit,
            grh: vector.dgid.is_some(),
        };
        let reached = ah::resolve(&self.devices, qp.device, dlid, vector.dgid.as_ref());
        qp.peer = reached.and_then(|device| process_of(qp.attributes.dest_qpn, device));
    }

    /// What a move does, after everything was checked.
    fn enter_state(&mut self, qp: &mut Qp, from: QpState, to: QpState, mask: u32) {
        let changed = |attribute: AttrMask| AttrMask(mask).contains(attribute);
        match (from, to) {
            (_, QpState::Reset) => {
                self.empty(qp);
                qp.attributes = ModifyQp::default();
            }
            (_, QpState::Err) => return self.fail_qp(qp),
            (QpState::Init, QpState::Rtr) => qp.responder = Some(Responder::new(responder_config(qp))),
            (QpState::Rtr, QpState::Rts) => qp.requester = Some(Requester::new(requester_config(qp))),
            (QpState::Sqe, QpState::Rts) => {
                qp.sq.stopped = false;
                if let Some(requester) = &mut qp.requester {
                    requester.resume();
                }
            }
            (QpState::Rts, QpState::Sqd) => qp.drain_event = changed(AttrMask::EN_SQD_ASYNC_NOTIFY),
            _ => {}
        }
        qp.state = to;
        let attributes = &qp.attributes;
        if let Some(requester) = &mut qp.requester {
            let retry =
                [AttrMask::TIMEOUT, AttrMask::RETRY_CNT, AttrMask::RNR_RETRY, AttrMask::MAX_QP_RD_ATOMIC];
            if from == QpState::Sqd && retry.into_iter().any(changed) {
                let ModifyQp { retry_count, rnr_retry, timeout, max_rd_atomic, .. } = *attributes;
                requester.set_retry(retry_count, rnr_retry, patient(timeout), max_rd_atomic);
            }
        }
        if let Some(responder) = &mut qp.responder {
            if changed(AttrMask::ACCESS_FLAGS) {
                responder.set_access(Access(attributes.access & access::REMOTE));
            }
            if changed(AttrMask::MIN_RNR_TIMER) {
                responder.set_min_rnr_timer(attributes.min_rnr_timer);
            }
            if changed(AttrMask::QKEY) {
                responder.set_qkey(attributes.qkey);
            }
        }
    }

    /// Drops everything posted, without completions, and forgets the connection: RESET and destruction.
    fn empty(&mut self, qp: &mut Qp) {
        qp.requester = None;
        qp.responder = None;
        for request in qp.sq.outstanding.drain(..).chain(qp.sq.held.take()) {
            self.pool.give(request);
        }
        qp.sq.fetched = 0;
        qp.sq.partial = None;
        qp.sq.lent.clear();
        qp.sq.last_sent = None;
        qp.answers.clear();
        qp.sq.stopped = false;
        qp.sq.doorbell.reset();
        qp.rq.taken = 0;
        qp.rq.pointers.clear();
        qp.peer = None;
        qp.drain_event = false;
        qp.partial_reply = None;
    }
}

/// Copies the attributes that the mask names.
fn apply(to: &mut ModifyQp, request: &ModifyQp) {
    let named = |attribute: AttrMask| AttrMask(request.mask).contains(attribute);
    macro_rules! copy {
        ($($bit:ident => $($field:ident),+;)*) => { $(if named(AttrMask::$bit) { $(to.$field = request.$field;)+ })* };
    }
    copy! {
        ACCESS_FLAGS => access;
        PKEY_INDEX => pkey_index;
        PORT => port;
        QKEY => qkey;
        AV => address;
        PATH_MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY_CNT => retry_count;
        RNR_RETRY => rnr_retry;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        MIN_RNR_TIMER => min_rnr_timer;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        DEST_QPN => dest_qpn;
    }
    if named(AttrMask::RQ_PSN) {
        to.rq_psn = request.rq_psn & 0xff_ffff;
    }
    if named(AttrMask::SQ_PSN) {
        to.sq_psn = request.sq_psn & 0xff_ffff;
    }
}

/// Sizes up to which payload goes into the CQE: responder CQEs of a queue that asks for it, and requester CQEs when every
/// request is signalled or the queue asks for that too (`configure_requester_scat_cqe` of the mlx5 kernel driver).
fn scatter_limits(request: &CreateQp, send_cqe_size: usize, recv_cqe_size: usize) -> (usize, usize) {
    let asked = |bit| request.mlx5_flags & bit != 0;
    let limit = |cqe_size: usize| if cqe_size == 128 { 64 } else { 32 };
    let connected = request.service != ServiceType::Ud;
    let requester =
        request.service == ServiceType::Rc && (request.signal_all || asked(flag::ALLOW_SCATTER_CQE));
    let on = asked(flag::SCATTER_CQE);
    (
        if on && requester { limit(send_cqe_size) } else { 0 },
        if on && connected { limit(recv_cqe_size) } else { 0 },
    )
}

fn responder_config(qp: &Qp) -> ResponderConfig {
    let attributes = &qp.attributes;
    let datagram = qp.service == ServiceType::Ud;
    ResponderConfig {
        service: qp.service,
        qpn: qp.qpn,
        peer_qpn: (!datagram).then_some(attributes.dest_qpn),
        expected_psn: Psn::new(attributes.rq_psn),
        path_mtu_bytes: qp.mtu_bytes(),
        access: Access(attributes.access & access::REMOTE),
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        qkey: attributes.qkey,
    }
}

fn requester_config(qp: &Qp) -> RequesterConfig {
    let attributes = &qp.attributes;
    let datagram = qp.service == ServiceType::Ud;
    RequesterConfig {
        service: qp.service,
        peer_qpn: (!datagram).then_some(attributes.dest_qpn),
        first_psn: Psn::new(attributes.sq_psn),
        path_mtu_bytes: qp.mtu_bytes(),
        retry_count: attributes.retry_count,
        rnr_retry: attributes.rnr_retry,
        timeout: patient(attributes.timeout),
        max_rd_atomic: attributes.max_rd_atomic,
        window_messages: WINDOW_MESSAGES,
    }
}

/// Ack time-out code that the transport gets. A NIC that is a thread may lose its core for some milliseconds between taking
/// a request and answering it; codes below 4.2 ms would then end healthy connections. Cards have a floor as well.
fn patient(timeout: u8) -> u8 {
    if timeout == 0 { 0 } else { timeout.max(10) }
}
