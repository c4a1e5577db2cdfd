//! The state table against `ibv_modify_qp(3)`: rows as the manual page prints them, not as the code does.

use crate::ServiceType::{Rc, Uc, Ud};
use crate::qp_state::QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use crate::qp_state::{AttrMask as A, ModifyError, QpState, check_modify};

const SERVICES: [crate::ServiceType; 3] = [Rc, Uc, Ud];

fn set(attributes: &[A]) -> A {
    attributes.iter().copied().collect()
}

/// The «Required Attributes» of the manual page's three tables.
#[test]
fn each_move_needs_the_attributes_of_the_manual_page() {
    let rows = [
        (Ud, Reset, Init, vec![A::PKEY_INDEX, A::PORT, A::QKEY]),
        (Ud, Init, Rtr, vec![]),
        (Ud, Rtr, Rts, vec![A::SQ_PSN]),
        (Uc, Reset, Init, vec![A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]),
        (Uc, Init, Rtr, vec![A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]),
        (Uc, Rtr, Rts, vec![A::SQ_PSN]),
        (Rc, Reset, Init, vec![A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS]),
        (
            Rc,
            Init,
            Rtr,
            vec![A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN, A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER],
        ),
        (Rc, Rtr, Rts, vec![A::SQ_PSN, A::MAX_QP_RD_ATOMIC, A::RETRY_CNT, A::RNR_RETRY, A::TIMEOUT]),
    ];
    for (service, from, to, required) in rows {
        let all = set(&required) | A::STATE;
        assert_eq!(check_modify(service, from, to, all), Ok(()), "{service:?} {from:?} to {to:?}");
        for one in required {
            let refused = check_modify(service, from, to, all - one);
            assert_eq!(
                refused,
                Err(ModifyError::Missing { from, to, missing: one }),
                "{service:?} {from:?} to {to:?} without {one:?}"
            );
        }
    }
}

/// The «Optional Attributes», one at a time, and one that is not among them.
#[test]
fn each_move_allows_the_optional_attributes_and_no_others() {
    let rows = [
        (Rc, Init, Init, vec![A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS], A::QKEY),
        (Uc, Init, Init, vec![A::PKEY_INDEX, A::PORT, A::ACCESS_FLAGS], A::AV),
        (Ud, Init, Init, vec![A::PKEY_INDEX, A::PORT, A::QKEY], A::ACCESS_FLAGS),
        (Ud, Init, Rtr, vec![A::PKEY_INDEX, A::QKEY], A::AV),
        (
            Rc,
            Rts,
            Rts,
            vec![A::CUR_STATE, A::ACCESS_FLAGS, A::MIN_RNR_TIMER, A::ALT_PATH, A::PATH_MIG_STATE],
            A::AV,
        ),
        (Uc, Rts, Rts, vec![A::CUR_STATE, A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE], A::MIN_RNR_TIMER),
        (Ud, Rts, Rts, vec![A::CUR_STATE, A::QKEY], A::ACCESS_FLAGS),
        (Rc, Rts, Sqd, vec![A::EN_SQD_ASYNC_NOTIFY], A::TIMEOUT),
        (Rc, Sqd, Sqd, vec![A::AV, A::TIMEOUT, A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC], A::SQ_PSN),
        (Uc, Sqd, Sqd, vec![A::AV, A::ALT_PATH, A::ACCESS_FLAGS, A::PKEY_INDEX], A::TIMEOUT),
        (Ud, Sqd, Sqd, vec![A::PKEY_INDEX, A::QKEY], A::CUR_STATE),
        (Rc, Sqd, Rts, vec![A::CUR_STATE, A::ACCESS_FLAGS, A::MIN_RNR_TIMER], A::TIMEOUT),
        (Uc, Sqe, Rts, vec![A::CUR_STATE, A::ACCESS_FLAGS], A::ALT_PATH),
        (Ud, Sqe, Rts, vec![A::CUR_STATE, A::QKEY], A::ACCESS_FLAGS),
        (Rc, Rts, Error, vec![], A::ACCESS_FLAGS),
        (Rc, Init, Reset, vec![], A::PORT),
    ];
    for (service, from, to, optional, excess) in rows {
        assert_eq!(check_modify(service, from, to, set(&optional)), Ok(()), "{service:?} {from:?} to {to:?}");
        for one in optional {
            assert_eq!(
                check_modify(service, from, to, one),
                Ok(()),
                "{service:?} {from:?} to {to:?}, {one:?}"
            );
        }
        assert_eq!(
            check_modify(service, from, to, excess),
            Err(ModifyError::NotAllowed { from, to, excess }),
            "{service:?} {from:?} to {to:?} with {excess:?}"
        );
    }
}

/// IBTA §10.3, the state diagram. Rows: from; columns: to.
#[test]
fn the_moves_are_those_of_the_state_diagram() {
    //                    Reset  Init   Rtr    Rts    Sqd    Sqe    Err
    let diagram = [
        (Reset, [true, true, false, false, false, false, false]),
        (Init, [true, true, true, false, false, false, true]),
        (Rtr, [true, false, false, true, false, false, true]),
        (Rts, [true, false, false, true, true, false, true]),
        (Sqd, [true, false, false, true, true, false, true]),
        (Sqe, [true, false, false, true, false, false, true]),
        (Error, [true, false, false, false, false, false, true]),
    ];
    for service in SERVICES {
        for (from, moves) in diagram {
            for (to, exists) in QpState::ALL.into_iter().zip(moves) {
                let refused = check_modify(service, from, to, A::empty());
                let no_such_move = matches!(refused, Err(ModifyError::NoSuchMove { .. }));
                // A reliable QP has no SQE.
                let expected = exists && !(service == Rc && from == Sqe && to == Rts);
                assert_eq!(!no_such_move, expected, "{service:?} {from:?} to {to:?}: {refused:?}");
            }
        }
    }
}

#[test]
fn a_current_state_may_be_assumed_only_where_the_qp_moves_by_itself() {
    for (from, to) in [(Reset, Reset), (Init, Init), (Error, Error)] {
        let refused = check_modify(Rc, from, to, A::CUR_STATE);
        assert_eq!(refused, Err(ModifyError::NotAllowed { from, to, excess: A::CUR_STATE }), "{from:?}");
    }
}

/// IBTA §10.3, what each state processes.
#[test]
fn each_state_processes_what_the_specification_says() {
    #[rustfmt::skip]
    let rows = [
        //       starts answers flushes sends, receives
        (Reset, [false, false,  false,  false]),
        (Init,  [false, false,  false,  false]),
        (Rtr,   [false, true,   false,  false]),
        (Rts,   [true,  true,   false,  false]),
        (Sqd,   [false, true,   false,  false]),
        (Sqe,   [false, true,   true,   false]),
        (Error, [false, false,  true,   true]),
    ];
    for (state, expected) in rows {
        let got =
            [state.starts_sends(), state.answers_requests(), state.flushes_sends(), state.flushes_receives()];
        assert_eq!(got, expected, "{state:?}");
    }
}

#[test]
fn state_numbers_are_those_of_verbs() {
    for (state, number) in [(Reset, 0), (Init, 1), (Rtr, 2), (Rts, 3), (Sqd, 4), (Sqe, 5), (Error, 6)] {
        assert_eq!(state.number(), number);
        assert_eq!(QpState::from_number(number), Some(state));
    }
    assert_eq!(QpState::from_number(7), None);
}

#[test]
fn a_refusal_names_the_attributes() {
    let refused = check_modify(Rc, Init, Rtr, A::STATE | A::AV | A::RQ_PSN).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "moving from Init to Rtr needs PATH_MTU|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN too"
    );
    let excess = A(1 << 30) | A::CAP;
    let refused = check_modify(Rc, Rts, Rts, excess).unwrap_err();
    assert_eq!(refused.to_string(), "moving from Rts to Rts cannot change CAP|0x40000000");
}
