//! A wrong ICRC on demand, as the link of its receiver sees it.

use mlx5_device::commands::*;
use mlx5_device::faults::{Injection, InjectionKind, Settings};
use mlx5_layout::CqeSyndrome;
use roce::ServiceType;
use soft_nic::testing::{QpShape, WorkRequest};

use crate::operations::ALL;
use crate::two::{By, TIMEOUT_NS, joined, sent};

#[test]
fn a_corrupt_packet_is_dropped_by_who_gets_it_and_sent_again() {
    let mut two = joined("crc", ServiceType::Rc, By::Wire);
    let qpn = two.left.qp(two.a).qpn;
    two.left.nic.inject(Injection { qpn, kind: InjectionKind::CorruptCrc }).expect("a QP on the wire");
    let bytes = two.from.fill(0, 3000, 7);
    let write = WorkRequest::write(&two.from, 0, 3000, &two.to, 0);
    two.left.post(two.a, &write);
    two.pass(5 * TIMEOUT_NS);
    assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
    assert_eq!(two.to.block.bytes(0, 3000), bytes);
    let arrived = two.right.nic.link().wire_counters().expect("a wire");
    assert_eq!((arrived.icrc_errors, two.count(true, "injected_crc_errors")), (1, 1), "one packet only");
    assert!(two.count(true, "retransmissions") > 0);
    let mut two = joined("crc", ServiceType::Rc, By::Memory);
    let qpn = two.left.qp(two.a).qpn;
    let refused = two.left.nic.inject(Injection { qpn, kind: InjectionKind::CorruptCrc });
    assert!(refused.is_err_and(|why| why.contains("no CRC")), "no packets, no CRC");
}

#[test]
fn a_wrong_crc_is_of_the_queue_that_was_asked_for_or_of_none() {
    let mut two = joined("crc-exact", ServiceType::Rc, By::Wire);
    let (other, b) = (two.left.create_qp(QpShape::default()), two.right.create_qp(QpShape::default()));
    two.connect(other, b);
    let pace = |pace| Settings { messages_per_second: Some(pace), ..Settings::default() };
    two.left.nic.set(&pace(Some(0.1))).expect("a possible pace");
    let good = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
    // The messages of twenty seconds: what is posted now waits.
    for _ in 0..2 {
        two.left.post(other, &good);
        two.rounds(20);
        assert_eq!(sent(&mut two.left, other), Some(Ok(())));
    }
    let qpn = two.left.qp(two.a).qpn;
    two.left.nic.inject(Injection { qpn, kind: InjectionKind::CorruptCrc }).expect("a QP on the wire");
    let gone = two.left.region(64, ALL);
    let doomed = WorkRequest::write(&gone, 0, 8, &two.to, 0);
    two.left.post(two.a, &doomed);
    two.rounds(20);
    // Its memory goes away before its packet was made: there is none to be corrupted.
    two.left.nic.dereg_mr(two.left.context, gone.handle).expect("it is ours");
    two.left.nic.set(&pace(None)).expect("a possible pace");
    two.left.post(other, &good);
    two.pass(5 * TIMEOUT_NS);
    assert_eq!(sent(&mut two.left, two.a), Some(Err(CqeSyndrome::LocalProtection)));
    assert_eq!(sent(&mut two.left, other), Some(Ok(())));
    let arrived = two.right.nic.link().wire_counters().expect("a wire");
    assert_eq!((arrived.icrc_errors, two.count(true, "injected_crc_errors")), (0, 0));
    assert_eq!(two.count(true, "retransmissions"), 0);
}
