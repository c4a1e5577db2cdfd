//! Queue pair states: which moves exist, what each move needs and allows, and what a QP does in each state.
//!
//! IBTA vol. 1 §10.3 (QP states), tables of `ibv_modify_qp(3)`, numbers of libibverbs' `verbs.h`. Left out:
//! contents of address handles, path migration as a state machine (its attributes are accepted).

use std::fmt;

use crate::ServiceType;

listed! {
    /// State of a QP, with the numbers of `enum ibv_qp_state`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[repr(u8)]
    QpState {
        /// Just created.
        #[default]
        Reset = 0,
        /// Receives may be posted; nothing is processed.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drained (or draining).
        Sqd = 4,
        /// Send queue error: UC and UD after a send that failed.
        Sqe = 5,
        /// Error.
        Err = 6,
    }
}

impl QpState {
    /// The state with this verbs number.
    pub fn from_number(number: u8) -> Option<QpState> {
        QpState::ALL.get(usize::from(number)).copied()
    }

    /// Its verbs number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Whether work requests of the send queue are started. In SQD those already started still end.
    pub const fn starts_sends(self) -> bool {
        matches!(self, QpState::Rts)
    }

    /// Whether messages already started go on: acknowledged, sent again, completed.
    pub const fn finishes_sends(self) -> bool {
        matches!(self, QpState::Rts | QpState::Sqd)
    }

    /// Whether requests from the peer are executed and answered; otherwise they are dropped without a word.
    pub const fn answers_requests(self) -> bool {
        matches!(self, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether everything in the send queue completes as flushed.
    pub const fn flushes_sends(self) -> bool {
        matches!(self, QpState::Sqe | QpState::Err)
    }

    /// Whether everything in the receive queue completes as flushed.
    pub const fn flushes_receives(self) -> bool {
        matches!(self, QpState::Err)
    }
}

/// A set of `IBV_QP_*` attribute bits.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AttrMask(pub u32);

bitflags::bitflags! {
    impl AttrMask: u32 {
        const STATE = 1 << 0;
        const CUR_STATE = 1 << 1;
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        const ACCESS_FLAGS = 1 << 3;
        const PKEY_INDEX = 1 << 4;
        const PORT = 1 << 5;
        const QKEY = 1 << 6;
        const AV = 1 << 7;
        const PATH_MTU = 1 << 8;
        const TIMEOUT = 1 << 9;
        const RETRY_CNT = 1 << 10;
        const RNR_RETRY = 1 << 11;
        const RQ_PSN = 1 << 12;
        const MAX_QP_RD_ATOMIC = 1 << 13;
        const ALT_PATH = 1 << 14;
        const MIN_RNR_TIMER = 1 << 15;
        const SQ_PSN = 1 << 16;
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        const PATH_MIG_STATE = 1 << 18;
        const CAP = 1 << 19;
        const DEST_QPN = 1 << 20;
        const RATE_LIMIT = 1 << 25;
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bits = self.iter_names();
        let mut names: Vec<String> = bits.by_ref().map(|(name, _)| name.to_owned()).collect();
        let unknown = bits.remaining().0;
        if unknown != 0 || names.is_empty() {
            names.push(format!("{unknown:#x}"));
        }
        f.write_str(&names.join("|"))
    }
}

/// Why a modify is refused; a kernel answers EINVAL to each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    #[error("a {service:?} QP cannot move from {from:?} to {to:?}")]
    NoSuchMove { service: ServiceType, from: QpState, to: QpState },
    #[error("moving from {from:?} to {to:?} needs {missing:?} too")]
    Missing { from: QpState, to: QpState, missing: AttrMask },
    #[error("moving from {from:?} to {to:?} cannot change {excess:?}")]
    NotAllowed { from: QpState, to: QpState, excess: AttrMask },
}

use AttrMask as A;
use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use ServiceType::{Rc, Uc, Ud};

const PATH_UC: AttrMask = A::AV.union(A::PATH_MTU).union(A::DEST_QPN).union(A::RQ_PSN);
const ARRIVES_CONNECTED: AttrMask = A::PKEY_INDEX.union(A::ACCESS_FLAGS).union(A::ALT_PATH);
const RETRY_RC: AttrMask = A::TIMEOUT.union(A::RETRY_CNT).union(A::RNR_RETRY).union(A::MAX_QP_RD_ATOMIC);
const DRAINED_UC: AttrMask = ARRIVES_CONNECTED.union(A::AV).union(A::PATH_MIG_STATE);
const LIVE_UC: AttrMask = A::CUR_STATE.union(A::ACCESS_FLAGS).union(A::ALT_PATH).union(A::PATH_MIG_STATE);
const LIVE_RC: AttrMask = LIVE_UC.union(A::MIN_RNR_TIMER);
const LIVE_UD: AttrMask = A::CUR_STATE.union(A::QKEY);

/// Whether a QP in state `from` may be moved to `to` with the attributes of `mask`.
///
/// `from` is the true state, or the one that the caller assumes with `CUR_STATE`. `to` equals `from` when
/// `STATE` is not in the mask.
pub fn check_modify(
    service: ServiceType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), ModifyError> {
    let no_such_move = ModifyError::NoSuchMove { service, from, to };
    // The caller may assume RTR, RTS, SQD or SQE only: the other states are left by its own modifies.
    if mask.contains(A::CUR_STATE) && !matches!(from, Rtr | Rts | Sqd | Sqe) {
        return Err(ModifyError::NotAllowed { from, to, excess: A::CUR_STATE });
    }
    let (needed, allowed) = attributes_of(service, from, to).ok_or(no_such_move)?;
    let missing = needed - mask;
    if !missing.is_empty() {
        return Err(ModifyError::Missing { from, to, missing });
    }
    let excess = mask - needed - allowed - A::STATE;
    if excess.is_empty() { Ok(()) } else { Err(ModifyError::NotAllowed { from, to, excess }) }
}

/// What a move needs, then what it allows besides, `STATE` apart; `None` when it does not exist (the table of
/// `ibv_modify_qp(3)`).
pub fn attributes_of(service: ServiceType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    Some(match (from, to, service) {
        (_, Reset, _) => (A::empty(), A::empty()),
        // IBTA §10.3: every state but RESET can be moved to ERR.
        (Reset, Error, _) => return None,
        (_, Error, _) => (A::empty(), A::empty()),
        (Reset, Init, Rc | Uc) => (A::PKEY_INDEX.union(A::PORT).union(A::ACCESS_FLAGS), A::empty()),
        (Reset, Init, Ud) => (A::PKEY_INDEX.union(A::PORT).union(A::QKEY), A::empty()),
        (Init, Init, Rc | Uc) => (A::empty(), A::PKEY_INDEX.union(A::PORT).union(A::ACCESS_FLAGS)),
        (Init, Init, Ud) => (A::empty(), A::PKEY_INDEX.union(A::PORT).union(A::QKEY)),
        (Init, Rtr, Rc) => (PATH_UC.union(A::MAX_DEST_RD_ATOMIC).union(A::MIN_RNR_TIMER), ARRIVES_CONNECTED),
        (Init, Rtr, Uc) => (PATH_UC, ARRIVES_CONNECTED),
        (Init, Rtr, Ud) => (A::empty(), A::PKEY_INDEX.union(A::QKEY)),
        (Rtr, Rts, Rc) => (A::SQ_PSN.union(RETRY_RC), LIVE_RC),
        (Rtr, Rts, Uc) => (A::SQ_PSN, LIVE_UC),
        (Rtr, Rts, Ud) => (A::SQ_PSN, LIVE_UD),
        (Rts | Sqd, Rts, Rc) => (A::empty(), LIVE_RC),
        (Rts | Sqd, Rts, Uc) => (A::empty(), LIVE_UC),
        (Rts | Sqd | Sqe, Rts, Ud) => (A::empty(), LIVE_UD),
        (Rts, Sqd, _) => (A::empty(), A::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd, Rc) => (
            A::empty(),
            RETRY_RC.union(DRAINED_UC).union(A::PORT).union(A::MAX_DEST_RD_ATOMIC).union(A::MIN_RNR_TIMER),
        ),
        (Sqd, Sqd, Uc) => (A::empty(), DRAINED_UC),
        (Sqd, Sqd, Ud) => (A::empty(), A::PKEY_INDEX.union(A::QKEY)),
        // A reliable QP goes to ERR, never to SQE (IBTA §10.3).
        (Sqe, Rts, Uc) => (A::empty(), A::CUR_STATE.union(A::ACCESS_FLAGS)),
        _ => return None,
    })
}
