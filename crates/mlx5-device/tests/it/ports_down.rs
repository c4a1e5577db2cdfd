//! A port that is down: which messages wait, which are lost, and which complete.

use mlx5_device::commands::*;
use mlx5_device::faults::{Injection, InjectionKind};
use mlx5_device::testing::{BOTH, By, MS, QpShape, TIMEOUT_NS, WorkRequest, sent};
use mlx5_layout::{CqeOpcode, CqeSyndrome};
use roce::ServiceType;

use crate::machine::{ALL, Driver, Setup, Two, joined};

#[test]
fn an_unreliable_message_completes_while_a_port_is_down_and_does_not_arrive() {
    let cases = [(ServiceType::Uc, [100, 40_000]), (ServiceType::Ud, [100, 4096])];
    for (by, (service, lengths)) in BOTH.into_iter().flat_map(|by| cases.map(|case| (by, case))) {
        let mut two = joined(&format!("down-{service:?}"), service, by);
        for (len, on_left) in lengths.into_iter().flat_map(|len| [(len, true), (len, false)]) {
            let what =
                format!("{service:?}, {len} bytes, down on the {}", if on_left { "left" } else { "right" });
            let what = format!("{what}, by {by:?}");
            let counter = if on_left { "lost_port_down" } else { "dropped_port_down" };
            let before = two.count(on_left, counter);
            // Messages, or packets of path MTU 1024; a datagram is one packet.
            let one =
                if by == By::Wire && service == ServiceType::Uc { u64::from(len).div_ceil(1024) } else { 1 };
            let pointer = two.to.pointer(0, 1 << 17);
            two.right.post_receive(two.b, &[pointer]);
            let request = two.send(service, len);
            let down = |two: &mut Two, up| {
                let side = if on_left { &mut two.left } else { &mut two.right };
                side.nic.set_link(0, 1, up).expect("device 0");
            };
            down(&mut two, false);
            two.from.fill(0, len as usize, 1);
            two.to.fill(0, 1 << 17, 2);
            two.left.post(two.a, &request);
            two.rounds(200);
            assert_eq!(sent(&mut two.left, two.a), Some(Ok(())), "{what}: nobody tells the sender");
            assert!(two.right.poll_receive(two.b).is_none(), "{what}");
            assert_eq!(two.count(on_left, counter), before + one, "{what}");
            down(&mut two, true);
            two.left.post(two.a, &request);
            two.rounds(200);
            assert_eq!(sent(&mut two.left, two.a), Some(Ok(())), "{what}");
            let grh = if service == ServiceType::Ud { 40 } else { 0 };
            let received = two.right.poll_receive(two.b).map(|cqe| (cqe.opcode(), cqe.byte_count()));
            assert_eq!(received, Some((Some(CqeOpcode::ResponderSend), len + grh)), "{what}: up again");
            assert_eq!(
                two.to.block.bytes(grh as usize, len as usize),
                two.from.block.bytes(0, len as usize),
                "{what}"
            );
            assert!(two.right.poll_receive(two.b).is_none(), "{what}: what was lost stays lost");
            assert_eq!(two.count(on_left, counter), before + one, "{what}: nothing is lost any more");
        }
    }
}

#[test]
fn a_reliable_message_waits_for_the_port_as_long_as_it_has_retries() {
    for (by, on_left) in BOTH.into_iter().flat_map(|by| [(by, true), (by, false)]) {
        let mut two = joined(&format!("down-rc-{on_left}"), ServiceType::Rc, by);
        let down = |two: &mut Two, up| {
            let side = if on_left { &mut two.left } else { &mut two.right };
            side.nic.set_link(0, 1, up).expect("device 0");
        };
        let write = WorkRequest::write(&two.from, 0, 3000, &two.to, 0);
        let bytes = two.from.fill(0, 3000, 9);
        down(&mut two, false);
        two.left.post(two.a, &write);
        two.pass(3 * TIMEOUT_NS);
        assert_eq!(sent(&mut two.left, two.a), None);
        assert_ne!(two.to.block.bytes(0, 3000), bytes);
        down(&mut two, true);
        two.pass(3 * TIMEOUT_NS);
        assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
        assert_eq!(two.to.block.bytes(0, 3000), bytes);
        assert!(two.count(true, "retransmissions") > 0);
        assert_eq!(two.count(false, "messages_received"), 1);
        down(&mut two, false);
        two.left.post(two.a, &write);
        // Seven retries, each time-out up to four times as long as asked for.
        two.pass(40 * TIMEOUT_NS);
        assert_eq!(sent(&mut two.left, two.a), Some(Err(CqeSyndrome::TransportRetryExceeded)));
        let lost = two.count(true, "lost_port_down") + two.count(false, "dropped_port_down");
        assert!(lost > 8, "{lost}");
    }
}

/// A NIC that is a thread may be without a core for long: what lies in its ring is neither late nor lost.
#[test]
fn a_request_that_lies_in_its_peers_ring_waits_without_retries_until_it_is_taken() {
    let mut two = joined("in-the-ring", ServiceType::Rc, By::Memory);
    let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
    two.open_channel(&write);
    let bytes = two.from.fill(0, 8, 9);
    two.left.post(two.a, &write);
    // Longer than the time-out and all retries.
    for _ in 0..40 {
        two.left.now += TIMEOUT_NS;
        two.left.poll();
    }
    assert_eq!(sent(&mut two.left, two.a), None);
    two.right.now = two.left.now;
    two.rounds(100);
    assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
    assert_eq!(two.to.block.bytes(0, 8), bytes);
    assert_eq!((two.count(true, "retransmissions"), two.count(false, "duplicates")), (0, 0));
}

#[test]
fn a_reply_that_arrives_while_the_port_is_down_is_lost_too() {
    let mut two = joined("down-reply", ServiceType::Rc, By::Memory);
    let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
    two.open_channel(&write);
    two.left.post(two.a, &write).poll();
    two.left.nic.set_link(0, 1, false).expect("device 0");
    two.rounds(100);
    assert_eq!((sent(&mut two.left, two.a), two.count(true, "dropped_port_down")), (None, 1));
    assert_eq!(two.count(false, "messages_received"), 2, "the request had left");
    two.left.nic.set_link(0, 1, true).expect("device 0");
    two.pass(5 * TIMEOUT_NS);
    assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
    assert_eq!((two.count(false, "messages_received"), two.count(false, "duplicates")), (2, 1));
}

#[test]
fn a_reply_that_leaves_while_the_port_is_down_is_lost_too() {
    for by in BOTH {
        let mut two = joined("down-answer", ServiceType::Rc, by);
        let late = Injection { qpn: two.right.qp(two.b).qpn, kind: InjectionKind::DelayRead(2_000) };
        two.right.nic.inject(late).expect("a QP of its own");
        let bytes = two.to.fill(0, 64, 5);
        let read = WorkRequest::read(&two.from, 0, 64, &two.to, 0);
        two.left.post(two.a, &read);
        two.pass(MS);
        assert_eq!(two.count(false, "injected_read_delays"), 1, "the READ is there, and not answered");
        two.right.nic.set_link(0, 1, false).expect("device 0");
        two.pass(2 * MS);
        assert_eq!((sent(&mut two.left, two.a), two.count(false, "lost_port_down")), (None, 1));
        two.right.nic.set_link(0, 1, true).expect("device 0");
        two.pass(5 * TIMEOUT_NS);
        assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
        assert_eq!(two.from.block.bytes(0, 64), bytes);
        assert!(two.count(true, "retransmissions") > 0);
    }
}

#[test]
fn one_port_is_down_and_another_is_not() {
    let mut driver = Driver::new(Setup::new("ports").with(|c| c.devices = 2));
    driver.nic.set_link(1, 1, false).expect("device 1");
    assert_eq!([0, 1].map(|device| driver.nic.port_is_down(device)), [false, true]);
    let (a, _) = driver.pair(QpShape::default());
    let region = driver.region(64, ALL);
    driver.post(a, &WorkRequest::write(&region, 0, 8, &region, 8)).settle();
    assert_eq!(sent(&mut driver, a), Some(Ok(())));
    assert_eq!(driver.sinks.take_events(), [], "a context of another device hears nothing");
    assert!(driver.nic.set_link(2, 1, false).is_err_and(|why| why.contains("mlx5_2")));
    driver.nic.set_link(0, 1, true).expect("it is up");
    driver.nic.set_link(0, 1, false).expect("device 0");
    driver.nic.set_link(0, 1, false).expect("device 0");
    let events: Vec<_> =
        driver.sinks.take_events().into_iter().map(|event| (event.element, event.kind)).collect();
    assert_eq!(events, [(1, 10)], "IBV_EVENT_PORT_ERR of port 1, once");
    assert_eq!(driver.nic.changes(), ["link mlx5_1 down", "link mlx5_0 down"]);
    assert_eq!(driver.counters().ctl_changes, 2);
}
