//! Queue pairs: their making, their states, and those that libmlx5 posts to.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::address::{AddressAttributes, Gid};
use super::completion::{Cq, CqHandle};
use super::device::Pd;
use super::direct::{DirectCq, DirectQp, QpLayout};
use super::work_request::{PostError, ReceiveRequest, SendList, SendRequest};
use crate::result::code::{Access, Mtu, QpState};
use crate::result::{Error, Result, object, queue_pair};
use crate::sys;

/// Transport service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    fn to_raw(self) -> sys::ibv_qp_type {
        match self {
            Self::Rc => sys::IBV_QPT_RC,
            Self::Uc => sys::IBV_QPT_UC,
            Self::Ud => sys::IBV_QPT_UD,
        }
    }
}

impl std::fmt::Display for QpType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// Sizes of a queue pair: wanted ones, or those that it got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapacity {
    /// Send requests.
    pub send_requests: u32,
    /// Receive requests.
    pub receive_requests: u32,
    /// Scatter/gather entries of a send.
    pub send_sges: u32,
    /// Scatter/gather entries of a receive.
    pub receive_sges: u32,
    /// Inline bytes of a send.
    pub inline_bytes: u32,
}

impl QpCapacity {
    fn to_raw(self) -> sys::ibv_qp_cap {
        sys::ibv_qp_cap {
            max_send_wr: self.send_requests,
            max_recv_wr: self.receive_requests,
            max_send_sge: self.send_sges,
            max_recv_sge: self.receive_sges,
            max_inline_data: self.inline_bytes,
        }
    }

    fn from_raw(raw: sys::ibv_qp_cap) -> Self {
        Self {
            send_requests: raw.max_send_wr,
            receive_requests: raw.max_recv_wr,
            send_sges: raw.max_send_sge,
            receive_sges: raw.max_recv_sge,
            inline_bytes: raw.max_inline_data,
        }
    }
}

/// Operations that a send queue must have room for (`IBV_QP_EX_WITH_*`). Fewer operations make smaller requests: libmlx5
/// otherwise reserves 4 blocks for each, since a memory window bind needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendOperations(u64);

impl SendOperations {
    /// SENDs of all kinds.
    pub const SEND: Self = Self(
        (sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_SEND_WITH_IMM | sys::IBV_QP_EX_WITH_SEND_WITH_INV)
            as u64,
    );
    /// WRITEs, with and without immediate.
    pub const WRITE: Self =
        Self((sys::IBV_QP_EX_WITH_RDMA_WRITE | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) as u64);
    /// READs.
    pub const READ: Self = Self(sys::IBV_QP_EX_WITH_RDMA_READ as u64);
    /// Both atomics.
    pub const ATOMIC: Self =
        Self((sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) as u64);
}

impl std::ops::BitOr for SendOperations {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a queue pair is to be.
#[derive(Debug, Clone)]
pub struct QpBuilder {
    kind: QpType,
    capacity: QpCapacity,
    signal_all: bool,
    own_register: bool,
    operations: Option<SendOperations>,
    scatter_to_cqe: bool,
}

impl QpBuilder {
    /// A queue pair of 64 sends and 64 receives with one entry each and no inline data.
    pub fn new(kind: QpType) -> Self {
        let capacity = QpCapacity {
            send_requests: 64,
            receive_requests: 64,
            send_sges: 1,
            receive_sges: 1,
            inline_bytes: 0,
        };
        Self {
            kind,
            capacity,
            signal_all: false,
            own_register: false,
            operations: None,
            scatter_to_cqe: false,
        }
    }

    /// Sets all sizes.
    pub fn capacity(mut self, capacity: QpCapacity) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets the number of send requests.
    pub fn send_requests(mut self, count: u32) -> Self {
        self.capacity.send_requests = count;
        self
    }

    /// Sets the number of receive requests.
    pub fn receive_requests(mut self, count: u32) -> Self {
        self.capacity.receive_requests = count;
        self
    }

    /// Sets the scatter/gather entries of sends and receives.
    pub fn sges(mut self, send: u32, receive: u32) -> Self {
        self.capacity.send_sges = send;
        self.capacity.receive_sges = receive;
        self
    }

    /// Sets the inline bytes of a send.
    pub fn inline_bytes(mut self, bytes: u32) -> Self {
        self.capacity.inline_bytes = bytes;
        self
    }

    /// Gives every send a completion (`sq_sig_all`).
    pub fn signal_all(mut self, yes: bool) -> Self {
        self.signal_all = yes;
        self
    }

    /// Gives the queue a UAR register of its own, through a thread domain: without it libmlx5 shares registers between
    /// queues, and takes a lock around each doorbell.
    pub fn own_register(mut self, yes: bool) -> Self {
        self.own_register = yes;
        self
    }

    /// Reserves room for these operations only. mlx5 devices.
    pub fn operations(mut self, operations: SendOperations) -> Self {
        self.operations = Some(operations);
        self
    }

    /// Leaves scatter-to-CQE as libmlx5 has it by default: on for RC, unless `MLX5_SCATTER_TO_CQE=0`.
    ///
    /// # Safety
    /// Polling then copies small messages to the addresses in posted requests, on the CPU and without any check: memory
    /// that a receive, READ or atomic names must stay valid until its completion was polled.
    pub unsafe fn allow_scatter_to_cqe(mut self) -> Self {
        self.scatter_to_cqe = true;
        self
    }

    /// Makes a queue pair that libmlx5 posts to and polls.
    pub fn build(&self, pd: &Pd, send_cq: &Cq, receive_cq: &Cq) -> Result<QueuePair> {
        Ok(QueuePair { qp: self.create(pd, &send_cq.handle, &receive_cq.handle)? })
    }

    /// Makes a queue pair that is posted to without libmlx5, and takes it over while it is fresh.
    pub fn build_direct(&self, pd: &Pd, send_cq: &DirectCq, receive_cq: &DirectCq) -> Result<DirectQp> {
        DirectQp::take_over(self.create(pd, send_cq.handle(), receive_cq.handle())?)
    }

    fn create(&self, pd: &Pd, send_cq: &Arc<CqHandle>, receive_cq: &Arc<CqHandle>) -> Result<Qp> {
        let context = pd.context();
        for (name, cq) in [("send", send_cq), ("receive", receive_cq)] {
            if !Arc::ptr_eq(&cq.context.0, &context.0) {
                return Err(Error::Refused(format!("the {name} CQ belongs to another open of the device")));
            }
        }
        let domain = if self.own_register { Some(ParentDomain::new(pd)?) } else { None };
        let raw_pd = domain.as_ref().map_or(pd.raw(), |domain| domain.pd);
        let mut attributes = sys::ibv_qp_init_attr_ex {
            send_cq: send_cq.cq.as_ptr(),
            recv_cq: receive_cq.cq.as_ptr(),
            cap: self.capacity.to_raw(),
            qp_type: self.kind.to_raw(),
            sq_sig_all: self.signal_all.into(),
            comp_mask: sys::IBV_QP_INIT_ATTR_PD,
            pd: raw_pd.as_ptr(),
            ..Default::default()
        };
        if let Some(operations) = self.operations {
            attributes.comp_mask |= sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attributes.send_ops_flags = operations.0;
        }
        let what = || format!("{} with {:?} on {}", self.kind, self.capacity, context.name());
        let mlx5_flags = if self.scatter_to_cqe { 0 } else { sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE };
        let qp = if context.is_mlx5() && mlx5_flags != 0 {
            let mut mlx5 = sys::mlx5dv_qp_init_attr {
                comp_mask: sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into(),
                create_flags: mlx5_flags,
                ..Default::default()
            };
            // SAFETY: domain and CQs are live and of this context, which is mlx5's.
            unsafe { queue_pair::create_mlx5_qp(context.raw(), &mut attributes, &mut mlx5) }
        } else if self.operations.is_some() {
            // SAFETY: domain and CQs are live and of this context.
            unsafe { queue_pair::create_qp_ex(context.raw(), &mut attributes) }
        } else {
            let mut plain = sys::ibv_qp_init_attr {
                send_cq: attributes.send_cq,
                recv_cq: attributes.recv_cq,
                cap: attributes.cap,
                qp_type: attributes.qp_type,
                sq_sig_all: attributes.sq_sig_all,
                ..Default::default()
            };
            // SAFETY: domain and CQs are live and of this context.
            let qp = unsafe { queue_pair::create_qp(raw_pd, &mut plain) };
            attributes.cap = plain.cap;
            qp
        };
        let qp = qp.map_err(|e| e.of(&what()))?;
        // SAFETY: libibverbs filled the queue pair in.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        Ok(Qp {
            qp,
            number,
            kind: self.kind,
            capacity: QpCapacity::from_raw(attributes.cap),
            may_scatter_to_cqe: self.scatter_to_cqe && context.is_mlx5() && libmlx5_scatters(),
            own_register: self.own_register,
            pd: pd.clone(),
            _domain: domain,
            _send_cq: send_cq.clone(),
            _receive_cq: receive_cq.clone(),
        })
    }
}

/// Whether libmlx5 asks for scatter-to-CQE when nothing is said (`use_scatter_to_cqe`, `verbs.c`).
fn libmlx5_scatters() -> bool {
    std::env::var_os("MLX5_SCATTER_TO_CQE").is_none_or(|value| value != "0")
}

/// A thread domain and the protection domain that brings it to a queue pair.
#[derive(Debug)]
struct ParentDomain {
    pd: NonNull<sys::ibv_pd>,
    td: NonNull<sys::ibv_td>,
    _of: Pd,
}

impl ParentDomain {
    fn new(pd: &Pd) -> Result<Self> {
        let context = pd.context().raw();
        // SAFETY: the context is live.
        let td = unsafe { object::alloc_td(context) }.map_err(|e| e.of(pd.context().name()))?;
        // SAFETY: all three are live and of this context.
        match unsafe { object::alloc_parent_domain(context, pd.raw(), td) } {
            Ok(parent) => Ok(Self { pd: parent, td, _of: pd.clone() }),
            Err(error) => {
                // SAFETY: no parent domain was made.
                let _ = unsafe { object::dealloc_td(td) };
                Err(error)
            }
        }
    }
}

impl Drop for ParentDomain {
    fn drop(&mut self) {
        // SAFETY: the queue pair that keeps this destroyed itself before.
        let _ = unsafe { object::dealloc_pd(self.pd) };
        // SAFETY: the parent domain is gone.
        let _ = unsafe { object::dealloc_td(self.td) };
    }
}

/// What both kinds of queue pairs share: number, sizes, states. Reach it through [`QueuePair`] or [`DirectQp`].
#[derive(Debug)]
pub struct Qp {
    qp: NonNull<sys::ibv_qp>,
    number: u32,
    kind: QpType,
    capacity: QpCapacity,
    may_scatter_to_cqe: bool,
    own_register: bool,
    pd: Pd,
    // Dropped after the queue pair, which names them: fields are dropped after `Drop` ran.
    _domain: Option<ParentDomain>,
    _send_cq: Arc<CqHandle>,
    _receive_cq: Arc<CqHandle>,
}

// SAFETY: libibverbs' objects may be used from any thread; with a thread domain posting must not overlap, and posting
// takes `&mut`.
unsafe impl Send for Qp {}
// SAFETY: as above; what takes `&self` is locked in libibverbs or only reads.
unsafe impl Sync for Qp {}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the queue pair is live and not used afterwards.
        let _ = unsafe { queue_pair::destroy_qp(self.qp) };
    }
}

/// What RESET → INIT needs.
#[derive(Debug, Clone, Copy)]
pub struct InitAttributes {
    /// Port, counted from 1.
    pub port: u8,
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// Rights of the peer (connected services).
    pub access: Access,
    /// Key that datagrams must carry (UD).
    pub qkey: u32,
}

/// What INIT → RTR needs; of a UD queue pair, nothing.
#[derive(Debug, Clone, Copy)]
pub struct RtrAttributes {
    /// Way to the peer.
    pub address: AddressAttributes,
    /// Its queue pair.
    pub peer_qpn: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSN that it sends.
    pub expected_psn: u32,
    /// READs and atomics that it may have outstanding (RC).
    pub max_dest_rd_atomic: u8,
    /// Code of the shortest RNR delay (RC).
    pub min_rnr_timer: u8,
}

/// What RTR → RTS needs; of UC and UD, the PSN only.
#[derive(Debug, Clone, Copy)]
pub struct RtsAttributes {
    /// First PSN that we send.
    pub first_psn: u32,
    /// Acknowledgement timeout, 4.096 µs × 2^code; 0 waits for ever (RC).
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7 (RC).
    pub retry_count: u8,
    /// Retries after an RNR NAK; 7 means for ever (RC).
    pub rnr_retry: u8,
    /// READs and atomics outstanding (RC).
    pub max_rd_atomic: u8,
}

/// What a queue pair says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueriedQp {
    /// State.
    pub state: QpState,
    /// Path MTU, once it has one.
    pub mtu: Option<Mtu>,
    /// Peer's queue pair.
    pub peer_qpn: u32,
    /// Next PSN expected.
    pub expected_psn: u32,
    /// Next PSN to send.
    pub next_psn: u32,
    /// Rights of the peer.
    pub access: Access,
    /// Q_Key.
    pub qkey: u32,
    /// Port.
    pub port: u8,
    /// Peer's LID.
    pub peer_lid: u16,
    /// Peer's GID.
    pub peer_gid: Option<Gid>,
    /// Acknowledgement timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Code of the shortest RNR delay.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding.
    pub max_rd_atomic: u8,
    /// The same, of the peer.
    pub max_dest_rd_atomic: u8,
}

impl Qp {
    /// Queue pair number, 24 bits.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Transport service.
    pub fn kind(&self) -> QpType {
        self.kind
    }

    /// Sizes that it got.
    pub fn capacity(&self) -> QpCapacity {
        self.capacity
    }

    /// Protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Whether small messages may land in CQEs instead of their buffers.
    pub fn may_scatter_to_cqe(&self) -> bool {
        self.may_scatter_to_cqe
    }

    /// Whether it was made with a doorbell register that no other queue rings.
    pub fn has_own_register(&self) -> bool {
        self.own_register
    }

    fn modify(&self, name: &str, attributes: &mut sys::ibv_qp_attr, mask: u32) -> Result<()> {
        // SAFETY: the queue pair is live.
        let result = unsafe { queue_pair::modify_qp(self.qp, attributes, mask | sys::IBV_QP_STATE) };
        result.map_err(|e| e.of(&format!("{} QP {:#x} to {name}", self.kind, self.number)))
    }

    /// RESET → INIT. Receives may be posted from now on.
    pub fn to_init(&self, init: &InitAttributes) -> Result<()> {
        let mut attributes = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            pkey_index: init.pkey_index,
            port_num: init.port,
            ..Default::default()
        };
        let own = match self.kind {
            QpType::Ud => {
                attributes.qkey = init.qkey;
                sys::IBV_QP_QKEY
            }
            QpType::Rc | QpType::Uc => {
                attributes.qp_access_flags = init.access.0;
                sys::IBV_QP_ACCESS_FLAGS
            }
        };
        self.modify("INIT", &mut attributes, sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | own)
    }

    /// INIT → RTR: receives.
    pub fn to_rtr(&self, rtr: &RtrAttributes) -> Result<()> {
        let mut attributes = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: rtr.mtu.to_raw(),
            dest_qp_num: rtr.peer_qpn,
            rq_psn: rtr.expected_psn,
            ah_attr: rtr.address.to_raw(),
            max_dest_rd_atomic: rtr.max_dest_rd_atomic,
            min_rnr_timer: rtr.min_rnr_timer,
            ..Default::default()
        };
        let connected = sys::IBV_QP_AV | sys::IBV_QP_PATH_MTU | sys::IBV_QP_DEST_QPN | sys::IBV_QP_RQ_PSN;
        let mask = match self.kind {
            QpType::Ud => 0,
            QpType::Uc => connected,
            QpType::Rc => connected | sys::IBV_QP_MAX_DEST_RD_ATOMIC | sys::IBV_QP_MIN_RNR_TIMER,
        };
        self.modify("RTR", &mut attributes, mask)
    }

    /// RTR → RTS: sends too.
    pub fn to_rts(&self, rts: &RtsAttributes) -> Result<()> {
        let mut attributes = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            sq_psn: rts.first_psn,
            timeout: rts.timeout,
            retry_cnt: rts.retry_count,
            rnr_retry: rts.rnr_retry,
            max_rd_atomic: rts.max_rd_atomic,
            ..Default::default()
        };
        let mask = match self.kind {
            QpType::Ud | QpType::Uc => sys::IBV_QP_SQ_PSN,
            QpType::Rc => {
                sys::IBV_QP_SQ_PSN
                    | sys::IBV_QP_TIMEOUT
                    | sys::IBV_QP_RETRY_CNT
                    | sys::IBV_QP_RNR_RETRY
                    | sys::IBV_QP_MAX_QP_RD_ATOMIC
            }
        };
        self.modify("RTS", &mut attributes, mask)
    }

    /// Any state → ERR: everything posted is flushed.
    pub fn to_error(&self) -> Result<()> {
        let mut attributes = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..Default::default() };
        self.modify("ERR", &mut attributes, 0)
    }

    /// Any state → RESET: everything posted is forgotten, both words of the doorbell record are 0. Completions of a
    /// [`DirectQp`] stay in its CQ: drain it.
    pub fn reset(&self) -> Result<()> {
        let mut attributes = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_RESET, ..Default::default() };
        self.modify("RESET", &mut attributes, 0)
    }

    /// Asks the device what the queue pair is.
    pub fn query(&self) -> Result<QueriedQp> {
        // The kernel gives all attributes, whatever is asked for.
        // SAFETY: the queue pair is live.
        let (raw, _) = unsafe { queue_pair::query_qp(self.qp, sys::IBV_QP_STATE) }?;
        // SAFETY: all bytes of the union are initialised, and `raw` is the bytes.
        let gid = unsafe { raw.ah_attr.grh.dgid.raw };
        Ok(QueriedQp {
            state: QpState::from_raw(raw.qp_state),
            mtu: Mtu::from_raw(raw.path_mtu),
            peer_qpn: raw.dest_qp_num,
            expected_psn: raw.rq_psn,
            next_psn: raw.sq_psn,
            access: Access(raw.qp_access_flags),
            qkey: raw.qkey,
            port: raw.port_num,
            peer_lid: raw.ah_attr.dlid,
            peer_gid: (raw.ah_attr.is_global != 0).then_some(Gid(gid)),
            timeout: raw.timeout,
            retry_count: raw.retry_cnt,
            rnr_retry: raw.rnr_retry,
            min_rnr_timer: raw.min_rnr_timer,
            max_rd_atomic: raw.max_rd_atomic,
            max_dest_rd_atomic: raw.max_dest_rd_atomic,
        })
    }

    /// Where rings, record and register lie, for looking only. Error: not an mlx5 device.
    pub fn layout(&self) -> Result<QpLayout> {
        if !self.pd.context().is_mlx5() {
            return Err(Error::Refused(format!("{} is not an mlx5 device", self.pd.context().name())));
        }
        // SAFETY: the queue pair is live and of an mlx5 device.
        Ok(QpLayout::from_raw(unsafe { queue_pair::init_qp(self.qp) }?, self.number))
    }
}

/// A queue pair that libmlx5 posts to.
///
/// It cannot complete into a queue that was taken over, nor can it be posted to by other means:
/// ```compile_fail,E0308
/// # fn mix(pd: &verbs::Pd, cq: verbs::Cq) -> verbs::Result<()> {
/// let direct = cq.into_direct()?;
/// let qp: verbs::QueuePair = verbs::QpBuilder::new(verbs::QpType::Rc).build(pd, &direct, &direct)?;
/// # Ok(())
/// # }
/// ```
/// ```
/// # fn mix(pd: &verbs::Pd, cq: verbs::Cq) -> verbs::Result<()> {
/// let direct = cq.into_direct()?;
/// let qp: verbs::DirectQp = verbs::QpBuilder::new(verbs::QpType::Rc).build_direct(pd, &direct, &direct)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair {
    qp: Qp,
}

impl Deref for QueuePair {
    type Target = Qp;
    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl QueuePair {
    /// Posts one send request.
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> std::result::Result<(), PostError> {
        let mut raw = request.to_raw();
        // SAFETY: the queue pair is live; the request points into slices that outlive the call.
        let posted = unsafe { queue_pair::post_send(self.qp.qp, &raw mut raw) };
        posted.map_err(|(_, source)| PostError { index: 0, source })
    }

    /// Posts a list of send requests with one doorbell.
    pub fn post_send_list(&mut self, list: &mut SendList<'_>) -> std::result::Result<(), PostError> {
        let first = list.chain();
        if first.is_null() {
            return Ok(());
        }
        // SAFETY: the queue pair is live; the list is chained and points into slices that it borrows.
        let posted = unsafe { queue_pair::post_send(self.qp.qp, first) };
        posted.map_err(|(bad, source)| PostError { index: list.index_of(bad), source })
    }

    /// Posts one receive request.
    pub fn post_receive(&mut self, request: &ReceiveRequest<'_>) -> std::result::Result<(), PostError> {
        let mut raw = request.to_raw();
        // SAFETY: the queue pair is live; the request points into a slice that outlives the call.
        let posted = unsafe { queue_pair::post_recv(self.qp.qp, &raw mut raw) };
        posted.map_err(|(_, source)| PostError { index: 0, source })
    }
}
