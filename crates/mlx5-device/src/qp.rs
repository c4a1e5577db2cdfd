//! Queue pairs: what one is made of, and how it is made and queried.
//!
//! Sizes, alignment and limits are checked as `set_user_buf_size` and `create_user_qp` of the mlx5 driver do.
//! Left out: raw packet and DC queues, path migration, multicast.

use mlx5_layout::send_wqe::BLOCK_BYTES;
use roce::qp_state::QpState;
use roce::{Now, Packet, Requester, Responder, ServiceType};

use super::command::{Answer, CommandError, ContextId, CreateQp, ModifyQp, QpCap, QueriedQp, refuse_if};
use super::doorbell::SendDoorbell;
use super::host::EventTarget;
use super::model::Capabilities;
use super::ring::Ring;
use super::route::Way;
use super::rq::ReceiveQueue;
use super::schedule::SchedState;
use super::sq::SendQueue;
use crate::carrier::{Inbound, PathAddress, Sender};
use crate::memory::Memory;

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
    pub sched: SchedState,
    pub qpn: u32,
    pub event_target: EventTarget,
    pub service: ServiceType,
    pub pd: u32,
    /// As it was made, of `ibv_qp_init_attr`.
    pub user_index: u32,
    cap: QpCap,
    signal_all: bool,
    pub state: QpState,
    pub attributes: ModifyQp,
    pub path: Path,
    pub sq: SendQueue,
    pub rq: ReceiveQueue,
    pub responses: Responses,
}

/// Where a QP is, and its connected peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub device: usize,
    /// Place of its port among all ports: the first of its device until INIT names one.
    pub port: usize,
    /// MTU of its first port, verbs code: bounds a datagram, for which no path is ever set.
    pub port_mtu: u8,
    /// How the peer is reached. Over the wire its queue sends and takes packets.
    pub way: Way,
    pub address: PathAddress,
    /// Whether the missing route was explained.
    pub explained: bool,
}

/// What a QP owes its peer.
#[derive(Debug, Default)]
pub(super) struct Responses {
    pub responder: Option<Responder>,
    /// READ responses leave at the link's rate: no reply before this.
    pub not_before: Now,
    /// On the wire: when the last acknowledgement, or the first of those that it covers, became due.
    pub ack_due: Now,
    /// Its program soon answers what arrives: an acknowledgement may wait and leave with an answer.
    pub converses: bool,
    /// The carrier had no room for the next reply.
    pub refused: bool,
}

impl Responses {
    /// What waits to be answered never is.
    pub(super) fn drop_all(&mut self) {
        if let Some(responder) = &mut self.responder {
            responder.drop_replies();
        }
    }

    /// What was asked for through this key, and was not answered, is refused.
    pub(super) fn revoke(&mut self, key: u32) {
        if let Some(responder) = &mut self.responder {
            responder.rekey_reads(key, None);
        }
    }

    /// What is to be sent is an acknowledgement, and nothing else.
    pub(super) fn owes_only_an_acknowledgement(&self) -> bool {
        self.responder.as_ref().is_some_and(Responder::owes_only_an_acknowledgement)
    }
}

/// The objects that a new QP is created with, by place in the NIC's tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct QpParents {
    pub device: usize,
    pub port: usize,
    pub pd: u32,
    /// Send and receive CQ.
    pub cqs: [u32; 2],
    /// Bytes of their entries.
    pub cqe_sizes: [usize; 2],
    /// Shared receive queue, and its protection domain.
    pub srq: Option<(u32, u32)>,
    pub page: u32,
    /// Nothing of its doorbells is checked.
    pub unchecked: bool,
}

impl Qp {
    /// A QP in RESET, without a place and a number yet. The command was [checked](check_queues).
    pub(super) fn new(id: ContextId, request: &CreateQp, parents: &QpParents, port_mtu: u8, now: Now) -> Qp {
        let CreateQp { service, buffer, record, cap, signal_all, user_index, .. } = *request;
        let QpParents { device, port, pd, cqs, .. } = *parents;
        let signature = request.mlx5_flags & flag::SIGNATURE != 0;
        let [send_scatter, receive_scatter] = scatter_limits(request, parents.cqe_sizes);
        let (address, shift) = (buffer + request.rq_bytes(), BLOCK_BYTES.ilog2());
        let ring = Ring { address, entries: request.sq_wqe_count, shift, record: record + 4 };
        let doorbell = SendDoorbell::new(parents.page, parents.unchecked);
        let (entries, shift) = (request.rq_wqe_count, request.rq_wqe_shift);
        let rq = ReceiveQueue {
            ring: Ring { address: buffer, entries, shift, record },
            cq: cqs[1],
            scatter: receive_scatter,
            srq: parents.srq.map(|(place, _)| place),
            pd: parents.srq.map_or(pd, |(_, pd)| pd),
            taken: 0,
            posted: 0,
            header: if signature { 16 } else { 0 },
            explained: false,
            pointers: Vec::new(),
        };
        let address = PathAddress::default();
        let path = Path { device, port, port_mtu, way: Way::Nowhere, address, explained: false };
        Qp {
            sched: SchedState { active: now, ..SchedState::default() },
            qpn: 0,
            event_target: EventTarget::new(id, request.user_handle),
            service,
            pd,
            user_index,
            cap,
            signal_all,
            state: QpState::Reset,
            attributes: ModifyQp::default(),
            path,
            sq: SendQueue::new(ring, doorbell, cqs[0], send_scatter),
            rq,
            responses: Responses::default(),
        }
    }

    pub(super) fn query(&self) -> QueriedQp {
        let state = self.state.number();
        let mut attributes = ModifyQp { state, current_state: state, ..self.attributes };
        if let Some(requester) = &self.sq.requester {
            attributes.sq_psn = requester.next_psn().value();
        }
        if let Some(responder) = &self.responses.responder {
            attributes.rq_psn = responder.expected_psn().value();
        }
        attributes.sq_draining =
            self.state == QpState::Sqd && !self.sq.requester.as_ref().is_none_or(Requester::is_idle);
        // As `mlx5_ib_query_qp`: the receive queue is what its ring holds. libmlx5 knows the send queue.
        let Ring { entries, shift, .. } = self.rq.ring;
        let entry = if entries == 0 { 0 } else { (1_usize << shift) - self.rq.header };
        let cap = QpCap { max_recv_wr: entries, max_recv_sge: (entry / 16) as u32, ..self.cap };
        QueriedQp { attributes, cap, signal_all: self.signal_all }
    }

    /// Drops everything posted, without completions, and forgets the connection: RESET and destruction.
    pub(super) fn empty(&mut self) {
        // What holds answers back is of this life too: a delayed READ, and when the peer was answered last.
        self.responses = Responses::default();
        self.sq.empty();
        (self.rq.taken, self.rq.posted) = (0, 0);
        self.rq.pointers.clear();
        (self.path.way, self.path.explained) = (Way::Nowhere, false);
    }

    /// Whether a packet is of the queue's peer: in shared memory by QPN, on a wire addresses were compared.
    pub(super) fn is_from_peer(&self, packet: &Packet, inbound: &impl Inbound) -> bool {
        self.service == ServiceType::Ud
            || packet.deth.src_qpn == self.attributes.dest_qpn
            || inbound.addressing().addresses.is_some()
    }

    /// Whether something was posted since the queue was looked at last: for the background walk.
    pub(super) fn is_ready<M: Memory>(&self, memory: &M) -> bool {
        let is_new = |posted: u16| posted != self.sq.fetched && !self.sq.doorbell.is_stuck(posted);
        let sends = self.takes_sends() && self.sq.ring.read_record(memory).is_some_and(is_new);
        sends || (self.state.flushes_receives() && self.rq.available(memory) > 0)
    }

    /// Whether something becomes of what is posted to the send queue.
    pub(super) fn takes_sends(&self) -> bool {
        self.sq.ring.entries > 0 && (self.state.starts_sends() || self.state.flushes_sends())
    }

    /// Whether the queue has to be looked at in every poll.
    pub(super) fn stays_hot(&self, now: Now) -> bool {
        !self.sq.is_idle() || self.sq.held.is_some() || self.has_to_do(now)
    }

    /// Whether it moved lately, or its program's doorbell record is watched.
    fn has_to_do(&self, now: Now) -> bool {
        self.sq.doorbell.is_watched() || !self.sched.has_cooled(now)
    }

    /// When a hot queue has to be looked at again, if nothing arrives. A queue that waits for its peer alone,
    /// for a reply or for room, is due with its timer, or never (`None`): the carrier rings for both. Any
    /// other is due `now`. A WQE that is held waits for replies too.
    pub(super) fn due(&self, now: Now) -> Option<Now> {
        match &self.sq.requester {
            Some(requester) if !self.has_to_do(now) && self.sq.progress.stalled.is_some() => {
                requester.poll_timeout()
            }
            _ => Some(now),
        }
    }

    /// This queue to an impairment.
    pub(super) fn sender(&self, is_requester: bool) -> Sender {
        let (qpn, port, last_sent) = (self.qpn, self.path.port, self.sq.progress.last_sent);
        Sender { qpn, port, is_requester, begins: true, is_shaped: true, last_sent }
    }

    /// Path MTU in bytes; a datagram's is the port's.
    pub(super) fn mtu_bytes(&self) -> u32 {
        let code =
            if self.service == ServiceType::Ud { self.path.port_mtu } else { self.attributes.path_mtu };
        128 << code.clamp(1, 5)
    }
}

/// Sizes, alignment and memory of the queues, as `set_user_buf_size` and the card's limits have it.
pub(super) fn check_queues<M: Memory>(memory: &M, request: &CreateQp, limits: &Capabilities) -> Answer<()> {
    let CreateQp { sq_wqe_count: sq, rq_wqe_count: rq, rq_wqe_shift: shift, cap, .. } = *request;
    let unknown = request.mlx5_flags & !flag::KNOWN;
    refuse_if!(unknown != 0, EOPNOTSUPP, "QP flags {unknown:#x} are not supported");
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
    let rq_bytes = request.rq_bytes();
    let bytes = u64::from(sq) * BLOCK_BYTES as u64 + rq_bytes;
    let (buffer, record) = (request.buffer, request.record);
    let aligned = buffer.is_multiple_of(64) && record.is_multiple_of(8) && rq_bytes.is_multiple_of(64);
    refuse_if!(!aligned, EINVAL, "QP ring {buffer:#x} or record {record:#x} is not aligned");
    let fault = CommandError::fault("QP");
    if bytes > 0 {
        memory.probe(buffer, bytes, false).map_err(&fault)?;
    }
    memory.probe(record, 8, false).map_err(&fault)
}

/// Sizes up to which payload goes into the CQE: a responder's if the queue asks for it, a requester's if it
/// also signals all or asks for that (mlx5 kernel driver: `configure_requester_scat_cqe`).
fn scatter_limits(request: &CreateQp, [send_cqe_size, recv_cqe_size]: [usize; 2]) -> [usize; 2] {
    let asked = |bit| request.mlx5_flags & bit != 0;
    let limit = |cqe_size: usize| if cqe_size == 128 { 64 } else { 32 };
    let connected = request.service != ServiceType::Ud;
    let requester =
        request.service == ServiceType::Rc && (request.signal_all || asked(flag::ALLOW_SCATTER_CQE));
    let on = asked(flag::SCATTER_CQE);
    [
        if on && requester { limit(send_cqe_size) } else { 0 },
        if on && connected { limit(recv_cqe_size) } else { 0 },
    ]
}
