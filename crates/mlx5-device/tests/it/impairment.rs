//! What is lost, late or held back, beside what is not: retries, duplicates, queues that come and go.

use mlx5_device::commands::*;
use mlx5_device::faults::{Injection, InjectionKind, Settings};
use mlx5_device::testing::{BOTH, By, MS, QpShape, TIMEOUT_NS, WorkRequest, sent};
use mlx5_layout::CqeSyndrome;
use roce::ServiceType;

use crate::machine::{Two, joined, joined_with};

#[test]
fn a_message_that_waits_for_a_rate_goes_behind_one_that_is_sent_again() {
    // Lost is the first of three messages (told by a NAK) or the second (by its time-out): the third waits.
    for (lost, by) in BOTH.into_iter().flat_map(|by| [(0, by), (1, by)]) {
        let mut two = joined(&format!("pace-{lost}"), ServiceType::Rc, by);
        let pace = |pace| Settings { messages_per_second: Some(pace), ..Settings::default() };
        two.left.nic.set(&pace(Some(1.0))).expect("a possible pace");
        let (qpn, psn) = (two.left.qp(two.a).qpn, Some(0x1000 + lost));
        two.left.nic.inject(Injection { qpn, kind: InjectionKind::Drop(psn) }).expect("a QP of ours");
        let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
        two.left.lay(two.a, &write).lay(two.a, &write).lay(two.a, &write).ring_doorbell(two.a);
        let executed = |two: &Two| two.count(false, "messages_received");
        two.rounds(200);
        assert_eq!((executed(&two), two.count(true, "injected_lost_requests")), (lost.into(), 1), "{by:?}");
        two.pass(1_100 * MS);
        assert_eq!(executed(&two), u64::from(lost) + 1, "{by:?}: message {lost} came next");
        two.left.nic.set(&pace(None)).expect("a possible pace");
        two.pass(5 * TIMEOUT_NS);
        assert_eq!([(); 3].map(|()| sent(&mut two.left, two.a)), [Some(Ok(())); 3], "{by:?}");
        assert_eq!(executed(&two), 3, "{by:?}");
    }
}

#[test]
fn queues_that_wait_for_a_rate_take_turns() {
    let mut two = joined("turns", ServiceType::Rc, By::Memory);
    let (a, b) = (two.left.create_qp(QpShape::default()), two.right.create_qp(QpShape::default()));
    two.connect(a, b);
    let pace = Settings { messages_per_second: Some(Some(1e3)), ..Settings::default() };
    two.left.nic.set(&pace).expect("a possible pace");
    let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
    for qp in [two.a, a] {
        for _ in 0..40 {
            two.left.lay(qp, &write);
        }
        two.left.ring_doorbell(qp);
    }
    two.pass(40 * MS);
    let done = [two.a, a].map(|qp| (0..40).take_while(|_| sent(&mut two.left, qp).is_some()).count());
    assert!(done.iter().all(|count| (15..=25).contains(count)), "{done:?}");
}

#[test]
fn a_read_that_is_not_answered_is_not_the_one_that_is_late() {
    for (gap, by) in BOTH.into_iter().flat_map(|by| [(false, by), (true, by)]) {
        let mut two = joined(&format!("late-{gap}"), ServiceType::Rc, by);
        let qpn = two.right.qp(two.b).qpn;
        let late = Injection { qpn, kind: InjectionKind::DelayRead(1_000) };
        two.right.nic.inject(late).expect("a QP of its own");
        if gap {
            let qpn = two.left.qp(two.a).qpn;
            two.left.nic.inject(Injection { qpn, kind: InjectionKind::Drop(None) }).expect("a QP of ours");
            let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
            two.left.lay(two.a, &write);
        } else {
            two.right.nic.set_link(0, 1, false).expect("device 0");
        }
        let read = WorkRequest::read(&two.from, 0, 64, &two.to, 0);
        two.left.post(two.a, &read);
        two.rounds(200);
        let late = |two: &Two| two.count(false, "injected_read_delays");
        if gap {
            // The NAK of what was missing is not late.
            assert_eq!((two.count(false, "messages_received"), late(&two)), (2, 1), "{by:?}");
        } else {
            assert_eq!((two.count(false, "dropped_port_down"), late(&two)), (1, 0), "{by:?}");
            two.right.nic.set_link(0, 1, true).expect("device 0");
            two.pass(5 * TIMEOUT_NS);
            assert_eq!(late(&two), 1, "{by:?}");
        }
    }
}

#[test]
fn a_message_that_is_lost_does_not_hide_the_one_that_lies_in_its_peers_ring() {
    let mut two = joined("behind-the-ring", ServiceType::Rc, By::Memory);
    let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
    two.open_channel(&write);
    two.left.post(two.a, &write);
    for _ in 0..20 {
        two.left.poll();
    }
    let qpn = two.left.qp(two.a).qpn;
    two.left.nic.inject(Injection { qpn, kind: InjectionKind::Drop(None) }).expect("a QP of ours");
    two.left.post(two.a, &write);
    // Longer than the time-out and all retries.
    for _ in 0..40 {
        two.left.now += TIMEOUT_NS;
        two.left.poll();
    }
    let lost = two.count(true, "injected_lost_requests");
    assert_eq!((sent(&mut two.left, two.a), lost, two.count(true, "retransmissions")), (None, 1, 0));
    two.right.now = two.left.now;
    two.pass(5 * TIMEOUT_NS);
    assert_eq!([(); 2].map(|()| sent(&mut two.left, two.a)), [Some(Ok(())); 2]);
}

#[test]
fn a_fault_goes_with_its_queue() {
    let mut two = joined("forgotten", ServiceType::Rc, By::Memory);
    let doomed = two.left.create_qp(QpShape::default());
    let drop_next =
        |two: &mut Two, qpn| two.left.nic.inject(Injection { qpn, kind: InjectionKind::Drop(None) });
    let (qpn, handle) = (two.left.qp(doomed).qpn, two.left.qp(doomed).handle);
    while drop_next(&mut two, qpn).is_ok() {}
    let other = two.left.qp(two.a).qpn;
    assert!(drop_next(&mut two, other).is_err(), "as many wait as may");
    two.left.nic.destroy_qp(two.left.context, handle).expect("it is ours");
    assert_eq!(drop_next(&mut two, other), Ok(()));
}

#[test]
fn silence_is_explained_where_the_nic_itself_lost_nothing() {
    for (loss, explained) in [(1.0, false), (0.0, true)] {
        let mut two = joined_with("silence", ServiceType::Rc, By::Memory, |config| config.loss = loss);
        if explained {
            // A change that loses nothing.
            two.left.nic.set(&Settings { seed: Some(5), ..Settings::default() }).expect("a seed");
        }
        two.right.reset(two.b);
        let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
        two.left.post(two.a, &write);
        two.pass(40 * TIMEOUT_NS);
        assert_eq!(sent(&mut two.left, two.a), Some(Err(CqeSyndrome::TransportRetryExceeded)));
        let reasons = format!("{:?}", two.left.sinks.take_reasons());
        assert_eq!(reasons.contains("softnic ctl list"), explained, "{loss}: {reasons}");
    }
}
