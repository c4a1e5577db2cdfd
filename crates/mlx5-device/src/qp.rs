//! Queue pairs: what one is made of, and the commands that make, query and destroy it.
//!
//! Sizes, alignment and limits are checked as `set_user_buf_size` and `create_user_qp` of the mlx5 driver do.
//! Left out: raw packet and DC queues, path migration, multicast.

use std::collections::VecDeque;

use mlx5_layout::send_wqe::BLOCK_BYTES;
use roce::qp_state::QpState;
use roce::{Psn, Reply, Requester, Responder, ServiceType};

use super::command::{
    CommandError, ContextId, CreateQp, CreatedQp, Handle, ModifyQp, QpCap, QueriedQp, refuse_if,
};
use super::commands::Answer;
use super::core::Core;
use super::doorbell::SendDoorbell;
use super::nic::Nic;
use super::route::Route;
use super::rq::ReceiveQueue;
use super::sq::SendQueue;
use crate::carrier::{Carrier, PathAddress};
use crate::errno;
use crate::memory::{Memory, Segment};

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

#[derive(Debug)]
pub(super) struct Qp {
    /// Place in the NIC's table.
    pub place: u32,
    pub context: ContextId,
    pub user_handle: u64,
    pub qpn: u32,
    pub device: usize,
    /// Place of its port among all ports: the first of its device until INIT names one.
    pub port: usize,
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
    /// Where its receives come from, instead of `rq`.
    pub srq: Option<SharedFrom>,
    pub requester: Option<Requester>,
    pub responder: Option<Responder>,
    /// Process of the connected peer; none: no process of the fabric has the address and the QPN.
    pub peer: Option<u8>,
    /// The connected peer is on the wire, there: its queue sends and takes packets.
    pub route: Option<Route>,
    pub path: PathAddress,
    /// «Drained» is owed.
    pub drain_event: bool,
    pub async_events: u32,
    /// Listed for being looked at in every poll.
    pub hot: bool,
    /// Last time that something moved.
    pub active: roce::Now,
    /// When a message of the peer was executed last; `None`: a send WQE was read since, or none has come.
    pub asked: Option<roce::Now>,
    /// Listed for sending replies.
    pub replying: bool,
    /// READ answers that travel in replies: last PSN of the request, where the bytes are, how many have left.
    pub answers: VecDeque<ReadAnswer>,
    /// A READ response of which the carrier took only a part.
    pub partial_reply: Option<Reply>,
    /// READ responses leave at the link's rate: no reply before this.
    pub reply_not_before: roce::Now,
    /// On the wire: when the last acknowledgement, or the first of those that it covers, became due.
    pub ack_due: roce::Now,
    /// Its program's answers follow soon on what arrives: an acknowledgement may wait for one, and leave with it.
    pub converses: bool,
}

/// The shared receive queue that a QP takes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedFrom {
    /// Place in the NIC's table.
    pub place: u32,
    /// Its protection domain, which the keys of its receives belong to.
    pub pd: u32,
}

/// Bytes of a READ that go out with its reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadAnswer {
    /// The rkey that the READ named.
    pub key: u32,
    /// It is no longer registered.
    pub revoked: bool,
    /// First PSN of the request.
    pub first_psn: Psn,
    /// Last PSN of the request, which the reply names.
    pub psn: Psn,
    pub from: Segment,
    /// Place of the first one in the message that the requester posted.
    pub offset: u32,
}

impl Qp {
    /// What waits to be answered never is.
    pub(super) fn drop_replies(&mut self) {
        self.answers.clear();
        self.partial_reply = None;
        while self.responder.as_mut().and_then(Responder::poll_reply).is_some() {}
    }

    /// What was asked for through this key, and was not answered, is refused.
    pub(super) fn revoke_answers(&mut self, key: u32) {
        for answer in self.answers.iter_mut().filter(|answer| answer.key == key) {
            answer.revoked = true;
        }
    }

    /// Protection domain of the keys in its receives.
    pub(super) fn receive_pd(&self) -> u32 {
        self.srq.map_or(self.pd, |from| from.pd)
    }

    /// Path MTU in bytes; a datagram's is the port's.
    pub(super) fn mtu_bytes(&self) -> u32 {
        let code = if self.service == ServiceType::Ud { self.port_mtu } else { self.attributes.path_mtu };
        128 << code.clamp(1, 5)
    }
}

pub trait QpCommands {
    fn create_qp(&mut self, context: ContextId, command: &CreateQp) -> Answer<CreatedQp>;
    fn modify_qp(&mut self, context: ContextId, qp: Handle, command: &ModifyQp) -> Answer<()>;
    fn query_qp(&self, context: ContextId, qp: Handle) -> Answer<QueriedQp>;
    /// Destroys it; returns how many asynchronous events of it the program has read.
    fn destroy_qp(&mut self, context: ContextId, qp: Handle) -> Answer<u32>;
}

impl<M: Memory, C: Carrier> QpCommands for Nic<M, C> {
    fn create_qp(&mut self, id: ContextId, request: &CreateQp) -> Answer<CreatedQp> {
        let device = self.core.context(id)?.device;
        let port = self.core.first_port(device);
        let pd = self.core.find_pd(id, request.pd)?;
        let send_cq = self.core.find_cq(id, request.send_cq)?;
        let recv_cq = self.core.find_cq(id, request.recv_cq)?;
        let srq = request.srq.map(|handle| self.core.find_srq(id, handle)).transpose()?;
        let srq = srq.and_then(|place| Some(SharedFrom { place, pd: self.core.srqs.get(place)?.pd }));
        // As `set_rq_size` of the driver: a QP with a shared queue has none of its own, whatever the command says.
        let request = &if srq.is_some() { request.without_receive_queue() } else { *request };
        let rq_bytes = self.core.check_queues(request)?;
        let page = self.core.find_page(id, request)?;
        let size = |cq: u32| self.core.cqs.get(cq).map_or(64, |cq| cq.cqe_size as usize);
        let (requester_scatter, responder_scatter) = scatter_limits(request, size(send_cq), size(recv_cq));
        let (limit, place) = (self.core.capabilities.max_qp, self.qps.place());
        let Some(qpn) = self.qps.number(device, limit, place) else {
            self.qps.unplace(place);
            return Err(CommandError::exhausted("queue pairs", limit));
        };
        let (sq_ring, signature) = (request.buffer + rq_bytes, request.mlx5_flags & flag::SIGNATURE != 0);
        let qp = Qp {
            place,
            context: id,
            user_handle: request.user_handle,
            qpn,
            device,
            port,
            service: request.service,
            port_mtu: self.core.ports[port].mtu,
            pd,
            send_cq,
            recv_cq,
            cap: request.cap,
            max_send_sge: self.core.capabilities.max_sge,
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
                doorbell: SendDoorbell::new(page, !self.core.options.strict),
                held: None,
                outstanding: VecDeque::new(),
                partial: None,
                last_sent: None,
                answer_holds: 0,
                stopped: false,
            },
            rq: ReceiveQueue {
                ring: request.buffer,
                count: request.rq_wqe_count,
                shift: request.rq_wqe_shift,
                record: request.record,
                taken: 0,
                posted: 0,
                header: if signature { 16 } else { 0 },
                pointers: Vec::new(),
            },
            srq,
            requester: None,
            responder: None,
            peer: None,
            route: None,
            path: PathAddress::default(),
            drain_event: false,
            async_events: 0,
            hot: false,
            active: self.core.now,
            asked: None,
            replying: false,
            answers: VecDeque::new(),
            partial_reply: None,
            reply_not_before: roce::Now(0),
            ack_due: roce::Now(0),
            converses: false,
        };
        self.qps.insert(Box::new(qp));
        self.core.count_pd(pd, 1);
        for cq in [send_cq, recv_cq] {
            if let Some(cq) = self.core.cqs.get_mut(cq) {
                cq.users += 1;
            }
        }
        if let Some(srq) = srq.and_then(|from| self.core.srqs.get_mut(from.place)) {
            srq.users += 1;
        }
        if let Some(uar) = self.core.uars.get_mut(page) {
            uar.queues.push(place);
        }
        self.core.join_page(&mut self.qps, page);
        Ok(CreatedQp { handle: self.core.context_mut(id)?.qps.insert(place), qpn, cap: request.cap })
    }

    fn modify_qp(&mut self, id: ContextId, handle: Handle, request: &ModifyQp) -> Answer<()> {
        if request.ends_connection() {
            self.acknowledge_alone(id, handle);
        }
        self.core.modify_qp(&mut self.qps, id, handle, request)
    }

    fn query_qp(&self, id: ContextId, handle: Handle) -> Answer<QueriedQp> {
        let place = self.core.find_qp(id, handle)?;
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
        // As `mlx5_ib_query_qp`: the receive queue is what its ring holds. Of the send queue libmlx5 knows more itself.
        let entry = if qp.rq.count == 0 { 0 } else { (1_usize << qp.rq.shift) - qp.rq.header };
        let cap = QpCap { max_recv_wr: qp.rq.count, max_recv_sge: (entry / 16) as u32, ..qp.cap };
        Ok(QueriedQp { attributes, cap, signal_all: qp.signal_all })
    }

    fn destroy_qp(&mut self, id: ContextId, handle: Handle) -> Answer<u32> {
        self.acknowledge_alone(id, handle);
        let place = self.core.find_qp(id, handle)?;
        // What it rang last must not look like a doorbell without a queue later.
        if let Some(page) = self.qps.get(place).map(|qp| qp.sq.doorbell.page) {
            self.core.poll_page(&mut self.qps, page);
        }
        self.core.context_mut(id)?.qps.remove(handle);
        let Some(mut qp) = self.qps.remove(place) else { return Ok(0) };
        self.core.empty(&mut qp);
        self.core.release_windows(qp.qpn);
        self.core.schedule.forget_qp(place);
        self.core.count_pd(qp.pd, -1);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(cq) = self.core.cqs.get_mut(cq) {
                cq.users -= 1;
            }
        }
        if let Some(srq) = qp.srq.and_then(|from| self.core.srqs.get_mut(from.place)) {
            srq.users -= 1;
        }
        if let Some(uar) = self.core.uars.get_mut(qp.sq.doorbell.page) {
            uar.queues.retain(|queue| *queue != place);
            uar.rang.retain(|(queue, _)| *queue != place);
        }
        let withdrawn = self.core.events.withdraw_asynchronous(id, qp.user_handle);
        Ok(qp.async_events.wrapping_sub(withdrawn))
    }
}

impl<M: Memory, C: Carrier> Nic<M, C> {
    /// What this queue has executed is acknowledged before it goes.
    fn acknowledge_alone(&mut self, context: ContextId, handle: Handle) {
        let qp = self.core.find_qp(context, handle).ok().and_then(|place| self.qps.get_mut(place));
        if qp.is_some_and(|qp| self.core.acknowledge_alone(&mut self.link, qp) > 0) {
            self.link.ring_bells();
        }
    }
}

impl<M: Memory> Core<M> {
    /// Sizes, alignment and memory of the queues, as `set_user_buf_size` and the card's limits have it. Returns the length of
    /// the receive queue in bytes.
    fn check_queues(&self, request: &CreateQp) -> Result<u64, CommandError> {
        let limits = &self.capabilities;
        let CreateQp { sq_wqe_count: sq, rq_wqe_count: rq, rq_wqe_shift: shift, cap, .. } = *request;
        if request.mlx5_flags & !flag::KNOWN != 0 {
            let unknown = request.mlx5_flags & !flag::KNOWN;
            let reason = format!("QP flags {unknown:#x} are not supported");
            return Err(CommandError { errno: errno::EOPNOTSUPP, reason });
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
            refuse_if!(value > limit, EINVAL, "{name} {value} is above the limit of {limit}");
        }
        let odd = [sq, rq].iter().any(|entries| *entries != 0 && !entries.is_power_of_two());
        refuse_if!(odd, EINVAL, "queues of {sq} and {rq} entries: no powers of two");
        refuse_if!(rq != 0 && !(4..=9).contains(&shift), EINVAL, "rq_wqe_shift {shift} is not in 4..=9");
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
        let fault =
            |f: crate::memory::Fault| CommandError { errno: errno::EFAULT, reason: format!("QP: {f}") };
        if bytes > 0 {
            self.memory.probe(request.buffer, bytes, false).map_err(fault)?;
        }
        self.memory.probe(request.record, 8, false).map_err(fault)?;
        Ok(rq_bytes)
    }

    /// The page that the queue rings. A context with pages of its own (`tot_bfregs` 0) has no static registers: the mlx5
    /// driver's `alloc_bfreg` and `bfregn_to_uar_index` say EINVAL there, and libmlx5 names a page for every queue.
    fn find_page(&self, id: ContextId, request: &CreateQp) -> Result<u32, CommandError> {
        let none =
            || CommandError::invalid("QP without a UAR page: there are no static registers".to_owned());
        let page = request.uar_page.ok_or_else(none)?;
        let found = self.uars.get(page).filter(|uar| uar.context == id);
        let missing = || CommandError::invalid(format!("UAR page {page} does not exist"));
        found.map(|_| page).ok_or_else(missing)
    }

    pub(super) fn find_qp(&self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        self.context(id)?.qps.get(handle).copied().ok_or_else(|| CommandError::no_such("QP", handle))
    }

    /// Drops everything posted, without completions, and forgets the connection: RESET and destruction.
    pub(super) fn empty(&mut self, qp: &mut Qp) {
        qp.drop_replies();
        qp.requester = None;
        qp.responder = None;
        for request in qp.sq.outstanding.drain(..).chain(qp.sq.held.take()) {
            self.pool.give(request);
        }
        qp.sq.fetched = 0;
        qp.sq.partial = None;
        qp.sq.last_sent = None;
        qp.sq.stopped = false;
        qp.sq.doorbell.reset();
        (qp.rq.taken, qp.rq.posted) = (0, 0);
        qp.rq.pointers.clear();
        (qp.peer, qp.route, qp.asked) = (None, None, None);
        qp.drain_event = false;
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
