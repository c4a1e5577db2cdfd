//! What the ABI asks of the device: one struct a command, native values, no uverbs encoding.
//!
//! `abi` decodes an ioctl into one of these and encodes the answer; the device checks values. Handles are
//! small integers scoped to a context, as in the kernel. The methods are one trait ([`crate::commands`]).

use std::fmt;

use roce::ServiceType;
use serde::{Deserialize, Serialize};

use crate::memory::Fault;
use crate::reason::Reason;

/// `ib_event_type` numbers of the events that this device gives (`ib_verbs.h`).
pub mod event_type {
    /// CQ overrun.
    pub const CQ_ERR: u32 = 0;
    /// The QP went into error for a reason that no completion tells.
    pub const QP_FATAL: u32 = 1;
    /// An invalid request was met: here, a doorbell that a card would not have seen.
    pub const QP_REQ_ERR: u32 = 2;
    /// A peer's access was refused.
    pub const QP_ACCESS_ERR: u32 = 3;
    /// First message on a QP in RTR.
    pub const COMM_EST: u32 = 4;
    /// The send queue drained (SQD).
    pub const SQ_DRAINED: u32 = 5;
    /// The port came up.
    pub const PORT_ACTIVE: u32 = 9;
    /// The port went down.
    pub const PORT_ERR: u32 = 10;
    /// The shared receive queue cannot be used any more.
    pub const SRQ_ERR: u32 = 14;
    /// Fewer receives than the limit are left in the shared receive queue.
    pub const SRQ_LIMIT_REACHED: u32 = 15;
    /// A queue in error takes nothing more from its shared receive queue.
    pub const QP_LAST_WQE_REACHED: u32 = 16;
}

/// Why a command was refused: the errno a kernel gives, and the sentence that the log gets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{reason} (errno {errno})")]
pub struct CommandError {
    /// Positive errno value.
    pub errno: i32,
    /// What was wrong, with the numbers in it.
    pub reason: String,
}

/// A refusal: the errno's name, then the reason as `format!` takes it.
#[macro_export]
macro_rules! refusal {
    ($errno:ident, $($reason:tt)+) => {
        $crate::command::CommandError { errno: $crate::errno::$errno, reason: format!($($reason)+) }
    };
}
pub use refusal;

/// Refuses a command for which the condition holds; see [`refusal!`].
#[macro_export]
macro_rules! refuse_if {
    ($wrong:expr, $($refusal:tt)+) => {
        if $wrong {
            return Err($crate::refusal!($($refusal)+));
        }
    };
}
pub use refuse_if;

impl CommandError {
    /// `EBUSY`: an object is still in use.
    pub(super) fn busy(what: &str, handle: Handle, users: &str) -> CommandError {
        refusal!(EBUSY, "{what} {handle} is still used by {users}")
    }

    /// `EFAULT`: memory that `what` names cannot be accessed.
    pub(super) fn fault(what: impl fmt::Display) -> impl Fn(Fault) -> CommandError {
        move |fault| refusal!(EFAULT, "{what}: {fault}")
    }

    /// `EINVAL` for a handle that names nothing; the kernel's answer to a stale handle.
    pub(super) fn no_such(what: &str, handle: Handle) -> CommandError {
        refusal!(EINVAL, "{what} {handle} does not exist")
    }

    /// `ENOMEM`: a limit of the device is reached.
    pub(super) fn exhausted(what: &str, limit: u32) -> CommandError {
        refusal!(ENOMEM, "all {limit} {what} are in use")
    }
}

/// A command's answer.
pub type Answer<T> = Result<T, CommandError>;

/// One open of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContextId(pub u32);

/// Object handle inside a context, as handed to user space.
pub type Handle = u32;

/// Where events go: the ABI gives pipes, tests give vectors. Must not block.
pub trait EventSink: Send {
    /// Delivers the 8-byte completion event (user handle of the CQ). False: could not be delivered.
    fn completion(&mut self, channel: u32, cq_user_handle: u64) -> bool;
    /// Delivers an asynchronous event: user handle of the object, `ib_event_type` number. False: failed.
    fn asynchronous(&mut self, context: ContextId, element: u64, event_type: u32) -> bool;
    /// Notes why something failed.
    fn explain(&mut self, reason: Reason);
    /// Withdraws the unread completion events of this CQ from the channel; returns how many were withdrawn.
    fn withdraw_completions(&mut self, channel: u32, cq_user_handle: u64) -> u32;
    /// Withdraws unread asynchronous events for this element; returns how many were withdrawn.
    fn withdraw_asynchronous(&mut self, context: ContextId, element: u64) -> u32;
}

/// Answer to `ALLOC_PD`, `UAR_OBJ_ALLOC`, [`CreateCq`] and [`AllocMw`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    pub handle: Handle,
    /// Name of the object in queues and work requests: PDN, UAR page, CQN, or a window's key before its bind.
    pub number: u32,
}

/// Answer to `DESTROY_CQ`: events that the program must have read; the library awaits their acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DestroyedCq {
    pub completion_events: u32,
    pub async_events: u32,
}

/// Answer to `CREATE_AH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedAh {
    pub handle: Handle,
    /// MAC address of the destination (Ethernet); zero when no process of the fabric has the GID.
    pub dmac: [u8; 6],
}

/// What a region is, by `REG_MR`, or becomes, by `REREG_MR`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RegMr {
    /// First byte, in the application's address space.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address by which work requests name `start` (`hca_va`).
    pub iova: u64,
    pub pd: Handle,
    /// `IBV_ACCESS_*` bits, unchecked.
    pub access: u32,
}

/// Answer to `REG_MR` and `REREG_MR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrKeys {
    pub handle: Handle,
    pub lkey: u32,
    pub rkey: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct AllocMw {
    pub pd: Handle,
    /// 1 or 2, unchecked.
    pub kind: u8,
}

/// `CQ.CREATE` with the mlx5 part.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CreateCq {
    /// Entries minus one, as the command says (`cqe`); entries is a power of two.
    pub cqe: u32,
    /// 64 or 128.
    pub cqe_size: u32,
    pub buffer: u64,
    pub record: u64,
    /// Echoed in completion events.
    pub user_handle: u64,
    /// Completion channel, when one was named (an id given by the ABI).
    pub channel: Option<u32>,
    /// A full ring is overwritten and no error (`oi` of the CQ context).
    pub ignore_overrun: bool,
}

/// `RESIZE_CQ` with the mlx5 part.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ResizeCq {
    /// Entries wanted minus one; the next power of two is taken.
    pub cqe: u32,
    /// Must be the CQ's.
    pub cqe_size: u32,
    pub buffer: u64,
}

/// Queue capacities, as in `ib_uverbs_qp_cap`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// [`ServiceType`] for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ServiceType")]
enum Service {
    Rc,
    Uc,
    Ud,
}

/// `QP.CREATE` with the mlx5 part.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CreateQp {
    #[serde(with = "Service")]
    pub service: ServiceType,
    pub pd: Handle,
    pub send_cq: Handle,
    pub recv_cq: Handle,
    pub srq: Option<Handle>,
    /// Capacities asked for; returned unchanged, except the receive queue's where a shared one is named.
    pub cap: QpCap,
    /// Echoed in asynchronous events.
    pub user_handle: u64,
    /// `sq_sig_all`.
    pub signal_all: bool,
    /// Queue buffer: RQ first, SQ right after it.
    pub buffer: u64,
    /// Doorbell record address: receive word, send word.
    pub record: u64,
    /// Send queue length in 64-byte blocks, a power of two (0: no SQ).
    pub sq_wqe_count: u32,
    /// Receive queue entries, a power of two (0: no RQ).
    pub rq_wqe_count: u32,
    /// log2 of a receive entry's size.
    pub rq_wqe_shift: u32,
    /// `MLX5_QP_FLAG_*` bits of the mlx5 command.
    pub mlx5_flags: u32,
    /// User index that CQEs carry.
    pub user_index: u32,
    pub uar_page: Option<u32>,
}

impl CreateQp {
    /// Length of the receive queue in bytes.
    pub(super) fn rq_bytes(&self) -> u64 {
        if self.rq_wqe_count == 0 { 0 } else { u64::from(self.rq_wqe_count) << self.rq_wqe_shift }
    }

    /// The same, with nothing said of a receive queue.
    pub(super) fn without_receive_queue(&self) -> CreateQp {
        let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..self.cap };
        CreateQp { cap, rq_wqe_count: 0, rq_wqe_shift: 0, ..*self }
    }
}

/// `SRQ.CREATE` with the mlx5 part.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CreateSrq {
    pub pd: Handle,
    /// Receives; the ring has the next power of two above this.
    pub max_wr: u32,
    /// Scatter entries of one.
    pub max_sge: u32,
    /// Echoed in asynchronous events.
    pub user_handle: u64,
    pub buffer: u64,
    /// Doorbell record address: one word is used.
    pub record: u64,
}

/// Answer to [`CreateSrq`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedSrq {
    pub handle: Handle,
    pub srqn: u32,
    /// Receives that the ring has room for.
    pub max_wr: u32,
    /// Scatter entries as asked for.
    pub max_sge: u32,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ModifySrq {
    /// `IBV_SRQ_*` bits.
    pub mask: u32,
    pub limit: u32,
}

/// Answer to `QUERY_SRQ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueriedSrq {
    /// Receives that the ring has room for.
    pub max_wr: u32,
    /// Scatter entries of one.
    pub max_sge: u32,
    /// Limit that is armed; 0: none.
    pub limit: u32,
}

/// Answer to [`CreateQp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatedQp {
    pub handle: Handle,
    pub qpn: u32,
    pub cap: QpCap,
}

/// An address vector: what the device needs of `ib_uverbs_ah_attr`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressVector {
    /// Destination LID (InfiniBand link layer).
    pub dlid: u16,
    /// Destination GID, when a GRH is present.
    pub dgid: Option<[u8; 16]>,
    pub sgid_index: u8,
    pub sl: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    /// Port number, 1-based.
    pub port: u8,
}

/// `MODIFY_QP`: `mask` is `IBV_QP_*` bits; only the fields it names are meant.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ModifyQp {
    /// `IBV_QP_*` bits.
    pub mask: u32,
    /// Wanted state, verbs number.
    pub state: u8,
    /// State that the caller gives as the current one.
    pub current_state: u8,
    /// Path MTU, verbs code 1..=5.
    pub path_mtu: u8,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qpn: u32,
    pub access: u32,
    pub address: AddressVector,
    pub pkey_index: u16,
    pub port: u8,
    /// Ack timeout code.
    pub timeout: u8,
    pub retry_count: u8,
    /// RNR retry count (7: for ever).
    pub rnr_retry: u8,
    /// Minimum RNR timer code.
    pub min_rnr_timer: u8,
    /// Outstanding READs and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Of QUERY_QP: the send queue is being drained.
    pub sq_draining: bool,
}

/// Answer to `QUERY_QP`.
#[derive(Debug, Clone, Copy)]
pub struct QueriedQp {
    /// The attributes as last modified; `state` is the present one.
    pub attributes: ModifyQp,
    pub cap: QpCap,
    /// `sq_sig_all`.
    pub signal_all: bool,
}
