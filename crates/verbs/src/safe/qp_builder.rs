//! Making queue pairs: services, sizes, options.

use std::sync::Arc;

use super::completion::{Cq, CqHandle};
use super::device::Pd;
use super::direct::{DirectCq, DirectQp};
use super::parent_domain::ParentDomain;
use super::qp_type::{QpCapacity, QpType};
use super::queue_pair::{Qp, QueuePair};
use crate::result::raw;
use crate::result::{Error, Result, queue_pair};

/// Operations that a send queue must have room for (`IBV_QP_EX_WITH_*`). Fewer make smaller requests: libmlx5
/// otherwise reserves 4 blocks for each, since a memory window bind needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendOperations(u64);

impl SendOperations {
    /// SENDs of all kinds.
    pub const SEND: Self = Self(
        (raw::IBV_QP_EX_WITH_SEND | raw::IBV_QP_EX_WITH_SEND_WITH_IMM | raw::IBV_QP_EX_WITH_SEND_WITH_INV)
            as u64,
    );
    /// WRITEs, with and without immediate.
    pub const WRITE: Self =
        Self((raw::IBV_QP_EX_WITH_RDMA_WRITE | raw::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) as u64);
    pub const READ: Self = Self(raw::IBV_QP_EX_WITH_RDMA_READ as u64);
    /// Both atomics.
    pub const ATOMIC: Self =
        Self((raw::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | raw::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) as u64);
}

impl std::ops::BitOr for SendOperations {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[derive(Debug, Clone)]
pub struct QpBuilder {
    kind: QpType,
    capacity: QpCapacity,
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
        Self { kind, capacity, own_register: false, operations: None, scatter_to_cqe: false }
    }

    pub fn capacity(mut self, capacity: QpCapacity) -> Self {
        self.capacity = capacity;
        self
    }

    pub fn send_requests(mut self, count: u32) -> Self {
        self.capacity.send_requests = count;
        self
    }

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

    pub fn inline_bytes(mut self, bytes: u32) -> Self {
        self.capacity.inline_bytes = bytes;
        self
    }

    /// Gives the queue a UAR register of its own, through a thread domain: without it libmlx5 shares
    /// registers between queues, and takes a lock around each doorbell.
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
    /// Polling then copies small messages to the addresses in posted requests, on the CPU and unchecked:
    /// memory that a receive, READ or atomic names must stay valid until its completion was polled.
    pub unsafe fn allow_scatter_to_cqe(mut self) -> Self {
        self.scatter_to_cqe = true;
        self
    }

    /// Makes a queue pair that libmlx5 posts to and polls.
    pub fn build(&self, pd: &Pd, send_cq: &Cq, receive_cq: &Cq) -> Result<QueuePair> {
        Ok(QueuePair::of(self.create(pd, &send_cq.handle, &receive_cq.handle)?))
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
        let mut attributes = raw::ibv_qp_init_attr_ex {
            send_cq: send_cq.cq.as_ptr(),
            recv_cq: receive_cq.cq.as_ptr(),
            cap: self.capacity.to_raw(),
            qp_type: self.kind.to_raw(),
            comp_mask: raw::IBV_QP_INIT_ATTR_PD,
            pd: raw_pd.as_ptr(),
            ..Default::default()
        };
        if let Some(operations) = self.operations {
            attributes.comp_mask |= raw::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attributes.send_ops_flags = operations.0;
        }
        let what = || format!("{} with {:?} on {}", self.kind, self.capacity, context.name());
        let mlx5_flags = if self.scatter_to_cqe { 0 } else { raw::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE };
        let qp = if context.is_mlx5() && mlx5_flags != 0 {
            let mut mlx5 = raw::mlx5dv_qp_init_attr {
                comp_mask: raw::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into(),
                create_flags: mlx5_flags,
                ..Default::default()
            };
            // SAFETY: domain and CQs are live and of this context, which is mlx5's.
            unsafe { queue_pair::create_mlx5_qp(context.raw(), &mut attributes, &mut mlx5) }
        } else if self.operations.is_some() {
            // SAFETY: domain and CQs are live and of this context.
            unsafe { queue_pair::create_qp_ex(context.raw(), &mut attributes) }
        } else {
            let mut plain = raw::ibv_qp_init_attr {
                send_cq: attributes.send_cq,
                recv_cq: attributes.recv_cq,
                cap: attributes.cap,
                qp_type: attributes.qp_type,
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
