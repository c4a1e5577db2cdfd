//! Queue pairs: their states, and those that libmlx5 posts to.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::address::AddressAttributes;
use super::completion::CqHandle;
use super::device::Pd;
use super::gid::Gid;
use super::layout::QpLayout;
use super::parent_domain::ParentDomain;
use super::qp_type::{QpCapacity, QpType};
use super::work_request::{PostError, ReceiveRequest, SendList, SendRequest};
use crate::result::code::{Access, Mtu, QpState};
use crate::result::raw;
use crate::result::{Error, Result, queue_pair};

/// What both kinds of queue pairs share: number, sizes, states. Via [`QueuePair`] or [`super::DirectQp`].
#[derive(Debug)]
pub struct Qp {
    pub(super) qp: NonNull<raw::ibv_qp>,
    pub(super) number: u32,
    pub(super) kind: QpType,
    pub(super) capacity: QpCapacity,
    pub(super) may_scatter_to_cqe: bool,
    pub(super) own_register: bool,
    pub(super) pd: Pd,
    // Dropped after the queue pair, which names them: fields are dropped after `Drop` ran.
    pub(super) _domain: Option<ParentDomain>,
    pub(super) _send_cq: Arc<CqHandle>,
    pub(super) _receive_cq: Arc<CqHandle>,
}

// SAFETY: libibverbs' objects may be used from any thread; with a thread domain posting must not overlap, and
// posting takes `&mut`.
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
    pub state: QpState,
    /// Path MTU, once it has one.
    pub mtu: Option<Mtu>,
    pub peer_qpn: u32,
    pub expected_psn: u32,
    pub next_psn: u32,
    pub access: Access,
    pub qkey: u32,
    pub port: u8,
    pub peer_lid: u16,
    pub peer_gid: Option<Gid>,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    /// Code of the shortest RNR delay.
    pub min_rnr_timer: u8,
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

    fn modify(&self, name: &str, attributes: &mut raw::ibv_qp_attr, mask: u32) -> Result<()> {
        // SAFETY: the queue pair is live.
        let result = unsafe { queue_pair::modify_qp(self.qp, attributes, mask | raw::IBV_QP_STATE) };
        result.map_err(|e| e.of(&format!("{} QP {:#x} to {name}", self.kind, self.number)))
    }

    /// RESET → INIT. Receives may be posted from now on.
    pub fn to_init(&self, init: &InitAttributes) -> Result<()> {
        let mut attributes = raw::ibv_qp_attr {
            qp_state: raw::IBV_QPS_INIT,
            pkey_index: init.pkey_index,
            port_num: init.port,
            ..Default::default()
        };
        let own = match self.kind {
            QpType::Ud => {
                attributes.qkey = init.qkey;
                raw::IBV_QP_QKEY
            }
            QpType::Rc | QpType::Uc => {
                attributes.qp_access_flags = init.access.0;
                raw::IBV_QP_ACCESS_FLAGS
            }
        };
        self.modify("INIT", &mut attributes, raw::IBV_QP_PKEY_INDEX | raw::IBV_QP_PORT | own)
    }

    /// INIT → RTR: receives.
    pub fn to_rtr(&self, rtr: &RtrAttributes) -> Result<()> {
        let mut attributes = raw::ibv_qp_attr {
            qp_state: raw::IBV_QPS_RTR,
            path_mtu: rtr.mtu.to_raw(),
            dest_qp_num: rtr.peer_qpn,
            rq_psn: rtr.expected_psn,
            ah_attr: rtr.address.to_raw(),
            max_dest_rd_atomic: rtr.max_dest_rd_atomic,
            min_rnr_timer: rtr.min_rnr_timer,
            ..Default::default()
        };
        let connected = raw::IBV_QP_AV | raw::IBV_QP_PATH_MTU | raw::IBV_QP_DEST_QPN | raw::IBV_QP_RQ_PSN;
        let mask = match self.kind {
            QpType::Ud => 0,
            QpType::Uc => connected,
            QpType::Rc => connected | raw::IBV_QP_MAX_DEST_RD_ATOMIC | raw::IBV_QP_MIN_RNR_TIMER,
        };
        self.modify("RTR", &mut attributes, mask)
    }

    /// RTR → RTS: sends too.
    pub fn to_rts(&self, rts: &RtsAttributes) -> Result<()> {
        let mut attributes = raw::ibv_qp_attr {
            qp_state: raw::IBV_QPS_RTS,
            sq_psn: rts.first_psn,
            timeout: rts.timeout,
            retry_cnt: rts.retry_count,
            rnr_retry: rts.rnr_retry,
            max_rd_atomic: rts.max_rd_atomic,
            ..Default::default()
        };
        let mask = match self.kind {
            QpType::Ud | QpType::Uc => raw::IBV_QP_SQ_PSN,
            QpType::Rc => {
                raw::IBV_QP_SQ_PSN
                    | raw::IBV_QP_TIMEOUT
                    | raw::IBV_QP_RETRY_CNT
                    | raw::IBV_QP_RNR_RETRY
                    | raw::IBV_QP_MAX_QP_RD_ATOMIC
            }
        };
        self.modify("RTS", &mut attributes, mask)
    }

    /// Any state → ERR: everything posted is flushed.
    pub fn to_error(&self) -> Result<()> {
        let mut attributes = raw::ibv_qp_attr { qp_state: raw::IBV_QPS_ERR, ..Default::default() };
        self.modify("ERR", &mut attributes, 0)
    }

    /// Any state → RESET: everything posted is forgotten, both words of the doorbell record are 0.
    /// Completions of a [`super::DirectQp`] stay in its CQ: drain it.
    pub fn reset(&self) -> Result<()> {
        let mut attributes = raw::ibv_qp_attr { qp_state: raw::IBV_QPS_RESET, ..Default::default() };
        self.modify("RESET", &mut attributes, 0)
    }

    pub fn query(&self) -> Result<QueriedQp> {
        // The kernel gives all attributes, whatever is asked for.
        // SAFETY: the queue pair is live.
        let (raw, _) = unsafe { queue_pair::query_qp(self.qp, raw::IBV_QP_STATE) }?;
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
    pub(super) fn of(qp: Qp) -> Self {
        Self { qp }
    }

    pub(super) fn raw(&self) -> NonNull<raw::ibv_qp> {
        self.qp.qp
    }

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

    pub fn post_receive(&mut self, request: &ReceiveRequest<'_>) -> std::result::Result<(), PostError> {
        let mut raw = request.to_raw();
        // SAFETY: the queue pair is live; the request points into a slice that outlives the call.
        let posted = unsafe { queue_pair::post_recv(self.qp.qp, &raw mut raw) };
        posted.map_err(|(_, source)| PostError { index: 0, source })
    }
}
