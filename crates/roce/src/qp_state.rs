//! Queue pair states: which moves exist, what each move needs and allows, and what a QP does in each state.
//!
//! IBTA vol. 1 §10.3 (QP states) and the tables of `ibv_modify_qp(3)`; numbers are those of libibverbs' `verbs.h`.
//! Left out: address handles' contents, path migration as a machine of its own (its attributes are accepted).

use std::fmt;

use crate::ServiceType;

/// State of a QP, with the numbers of `enum ibv_qp_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum QpState {
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

impl QpState {
    /// All of them, in order of their numbers.
    pub const ALL: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

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

macro_rules! attributes {
    ($($name:ident = $bit:expr;)*) => {
        impl AttrMask {
            $(pub const $name: AttrMask = AttrMask(1 << $bit);)*

            const NAMES: &'static [(AttrMask, &'static str)] = &[$((AttrMask::$name, stringify!($name))),*];
        }
    };
}

attributes! {
    STATE = 0;
    CUR_STATE = 1;
    EN_SQD_ASYNC_NOTIFY = 2;
    ACCESS_FLAGS = 3;
    PKEY_INDEX = 4;
    PORT = 5;
    QKEY = 6;
    AV = 7;
    PATH_MTU = 8;
    TIMEOUT = 9;
    RETRY_CNT = 10;
    RNR_RETRY = 11;
    RQ_PSN = 12;
    MAX_QP_RD_ATOMIC = 13;
    ALT_PATH = 14;
    MIN_RNR_TIMER = 15;
    SQ_PSN = 16;
    MAX_DEST_RD_ATOMIC = 17;
    PATH_MIG_STATE = 18;
    CAP = 19;
    DEST_QPN = 20;
    RATE_LIMIT = 25;
}

impl AttrMask {
    /// The empty set.
    pub const NONE: AttrMask = AttrMask(0);

    /// Whether every bit of `other` is here.
    pub const fn contains(self, other: AttrMask) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is here and not in `other`.
    #[must_use]
    pub const fn without(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 & !other.0)
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 | other.0)
    }

    const fn all(sets: &[AttrMask]) -> AttrMask {
        let mut union = 0;
        let mut i = 0;
        while i < sets.len() {
            union |= sets[i].0;
            i += 1;
        }
        AttrMask(union)
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        for (bit, name) in AttrMask::NAMES.iter().filter(|(bit, _)| self.contains(*bit)) {
            let separator = if rest == *self { "" } else { "|" };
            write!(f, "{separator}{name}")?;
            rest = rest.without(*bit);
        }
        match rest.0 {
            0 if self.0 != 0 => Ok(()),
            unknown => write!(f, "{}{unknown:#x}", if rest == *self { "" } else { "|" }),
        }
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

const PATH_UC: AttrMask = A::all(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]);
const ARRIVES_CONNECTED: AttrMask = A::all(&[A::PKEY_INDEX, A::ACCESS_FLAGS, A::ALT_PATH]);
const RETRY_RC: AttrMask = A::all(&[A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]);
const DRAINED_UC: AttrMask = ARRIVES_CONNECTED.with(A::AV).with(A::PATH_MIG_STATE);
const LIVE_UC: AttrMask = A::all(&[A::CUR_STATE, A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]);
const LIVE_RC: AttrMask = LIVE_UC.with(A::MIN_RNR_TIMER);
const LIVE_UD: AttrMask = A::all(&[A::CUR_STATE, A::QKEY]);

/// Whether a QP in state `from` may be moved to `to` with the attributes of `mask`.
///
/// `from` is the true state, or the one that the caller assumes where `CUR_STATE` says so. `to` equals `from` when
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
    let missing = needed.without(mask);
    if missing != A::NONE {
        return Err(ModifyError::Missing { from, to, missing });
    }
    match mask.without(needed).without(allowed).without(A::STATE) {
        A::NONE => Ok(()),
        excess => Err(ModifyError::NotAllowed { from, to, excess }),
    }
}

/// What a move needs, then what it allows besides, `STATE` apart; `None` when it does not exist (the table of
/// `ibv_modify_qp(3)`).
pub fn attributes_of(service: ServiceType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    Some(match (from, to, service) {
        (_, Reset, _) => (A::NONE, A::NONE),
        // IBTA §10.3: every state but RESET can be moved to ERR.
        (Reset, Error, _) => return None,
        (_, Error, _) => (A::NONE, A::NONE),
        (Reset, Init, Rc | Uc) => (A::all(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]), A::NONE),
        (Reset, Init, Ud) => (A::all(&[A::PKEY_INDEX, A::PORT, A::QKEY]), A::NONE),
        (Init, Init, Rc | Uc) => (A::NONE, A::all(&[A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS])),
        (Init, Init, Ud) => (A::NONE, A::all(&[A::PKEY_INDEX, A::PORT, A::QKEY])),
        (Init, Rtr, Rc) => (PATH_UC.with(A::MAX_DEST_RD_ATOMIC).with(A::MIN_RNR_TIMER), ARRIVES_CONNECTED),
        (Init, Rtr, Uc) => (PATH_UC, ARRIVES_CONNECTED),
        (Init, Rtr, Ud) => (A::NONE, A::all(&[A::PKEY_INDEX, A::QKEY])),
        (Rtr, Rts, Rc) => (A::SQ_PSN.with(RETRY_RC), LIVE_RC),
        (Rtr, Rts, Uc) => (A::SQ_PSN, LIVE_UC),
        (Rtr, Rts, Ud) => (A::SQ_PSN, LIVE_UD),
        (Rts | Sqd, Rts, Rc) => (A::NONE, LIVE_RC),
        (Rts | Sqd, Rts, Uc) => (A::NONE, LIVE_UC),
        (Rts | Sqd | Sqe, Rts, Ud) => (A::NONE, LIVE_UD),
        (Rts, Sqd, _) => (A::NONE, A::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd, Rc) => {
            (A::NONE, A::all(&[RETRY_RC, DRAINED_UC, A::PORT, A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]))
        }
        (Sqd, Sqd, Uc) => (A::NONE, DRAINED_UC),
        (Sqd, Sqd, Ud) => (A::NONE, A::all(&[A::PKEY_INDEX, A::QKEY])),
        // A reliable QP goes to ERR, never to SQE (IBTA §10.3).
        (Sqe, Rts, Uc) => (A::NONE, A::CUR_STATE.with(A::ACCESS_FLAGS)),
        _ => return None,
    })
}
