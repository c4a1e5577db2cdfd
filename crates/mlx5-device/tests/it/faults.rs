//! Faults on demand: ports that go down, messages that are lost or held up, one error, one late READ.
//!
//! Two devices on one virtual clock, by records and by packets: what is lost and its repetition are certain.

use mlx5_device::faults::{Injection, InjectionKind, Settings};
use mlx5_device::testing::{BOTH, By, MS, QpShape, TIMEOUT_NS, WorkRequest, sent};
use mlx5_layout::CqeSyndrome;
use roce::ServiceType;

use crate::machine::{Driver, Setup, joined, joined_with};

#[test]
fn the_request_with_this_psn_is_lost_and_no_other() {
    // Messages: PSNs 0x1000 to 0x1002 (3000 bytes of MTU 1024), 0x1003, 0x1004. A gap makes one NAK; only a
    // time-out tells of a lost last one. Columns: PSN, executed before any time-out, NAKs, lost.
    for ((number, (psn, executed, naks, lost)), by) in [
        (Some(0x1000), 3, 1, 1),
        (Some(0x1002), 3, 1, 1),
        (Some(0x1003), 3, 1, 1),
        (Some(0x1004), 2, 0, 1),
        (None, 3, 1, 1),
        (Some(0x1005), 3, 0, 0),
    ]
    .into_iter()
    .enumerate()
    .flat_map(|(number, row)| BOTH.map(|by| ((number, row), by)))
    {
        let mut two = joined(&format!("drop-{number}"), ServiceType::Rc, by);
        let qpn = two.left.qp(two.a).qpn;
        two.left.nic.inject(Injection { qpn, kind: InjectionKind::Drop(psn) }).expect("a QP of ours");
        for len in [3000, 8, 8] {
            let write = WorkRequest::write(&two.from, 0, len, &two.to, 0);
            two.left.lay(two.a, &write);
        }
        two.left.ring_doorbell(two.a);
        two.rounds(300);
        let what = format!("PSN {psn:#x?} by {by:?}");
        assert_eq!(two.count(false, "messages_received"), executed, "{what}");
        assert_eq!(two.count(false, "naks_sent"), naks, "{what}");
        assert_eq!(two.count(true, "injected_lost_requests"), lost, "{what}");
        two.pass(5 * TIMEOUT_NS);
        assert_eq!(
            [(); 4].map(|()| sent(&mut two.left, two.a)),
            [Some(Ok(())), Some(Ok(())), Some(Ok(())), None]
        );
        assert_eq!(two.count(false, "messages_received"), 3, "{what}: each executed once");
        assert_eq!(two.count(true, "injected_lost_requests"), lost, "{what}: once only");
        assert_eq!(two.count(true, "retransmissions") > 0, lost > 0, "{what}");
    }
    let mut two = joined("drop-nobody", ServiceType::Rc, By::Memory);
    let refused = two.left.nic.inject(Injection { qpn: 0x1_0000, kind: InjectionKind::Drop(None) });
    let own = format!("it has {:#x}", two.left.qp(two.a).qpn);
    assert!(refused.is_err_and(|why| why.contains("no QP 0x10000") && why.contains(&own)));
}

#[test]
fn an_error_on_demand_is_of_the_next_send_and_nothing_of_it_arrives() {
    let cases = [(ServiceType::Rc, 6), (ServiceType::Uc, 5), (ServiceType::Ud, 5)];
    for (by, (service, state)) in BOTH.into_iter().flat_map(|by| cases.map(|case| (by, case))) {
        let mut two = joined(&format!("error-{service:?}"), service, by);
        let pointer = two.to.pointer(0, 4096);
        two.right.post_receive(two.b, &[pointer]);
        two.right.post_receive(two.b, &[pointer]);
        let send = two.send(service, 8);
        two.left.post(two.a, &send);
        two.rounds(100);
        let (qpn, syndrome) = (two.left.qp(two.a).qpn, CqeSyndrome::RemoteAccess);
        two.left
            .nic
            .inject(Injection { qpn, kind: InjectionKind::ErrorCqe(syndrome) })
            .expect("a QP of ours");
        two.left.lay(two.a, &send).lay(two.a, &send).ring_doorbell(two.a);
        two.rounds(100);
        let flushed = Some(Err(CqeSyndrome::WrFlush));
        let got = [(); 4].map(|()| sent(&mut two.left, two.a));
        assert_eq!(got, [Some(Ok(())), Some(Err(syndrome)), flushed, None], "{service:?}");
        assert_eq!(two.left.state(two.a), state, "{service:?}: in error, as after a send that failed");
        assert_eq!(two.count(false, "messages_received"), 1, "{service:?}");
        assert_eq!(two.count(true, "injected_errors"), 1, "{service:?}");
    }
}

#[test]
fn one_read_is_answered_late_and_other_queues_go_on() {
    for by in BOTH {
        let mut two = joined("late", ServiceType::Rc, by);
        let (a, b) = (two.left.create_qp(QpShape::default()), two.right.create_qp(QpShape::default()));
        two.connect(a, b);
        let late = Injection { qpn: two.right.qp(two.b).qpn, kind: InjectionKind::DelayRead(20_000) };
        two.right.nic.inject(late).expect("a QP of its own");
        let bytes = two.to.fill(0, 64, 3);
        // The other queue's arrives first.
        for (qp, at) in [(a, 64), (two.a, 0)] {
            let read = WorkRequest::read(&two.from, at, 64, &two.to, 0);
            two.left.post(qp, &read);
            two.rounds(50);
        }
        two.pass(19 * MS);
        assert_eq!(sent(&mut two.left, two.a), None, "not before 20 ms");
        assert_eq!(sent(&mut two.left, a), Some(Ok(())), "another queue's READ");
        two.pass(2 * MS);
        assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
        assert_eq!(two.from.block.bytes(0, 64), bytes);
        assert_eq!(two.count(true, "retransmissions"), 0, "before its time-out");
        let read = WorkRequest::read(&two.from, 0, 64, &two.to, 0);
        two.left.post(two.a, &read);
        two.pass(MS);
        assert_eq!(sent(&mut two.left, two.a), Some(Ok(())), "one READ only");
        assert_eq!(two.count(false, "injected_read_delays"), 1);
    }
}

#[test]
fn the_same_seed_loses_the_same_messages() {
    // UC: one draw a message, and nothing is sent again.
    let arrived = |name: &str, seed| {
        let mut two = joined(name, ServiceType::Uc, By::Memory);
        two.left
            .nic
            .set(&Settings { loss: Some(0.2), seed: Some(seed), ..Settings::default() })
            .expect("a loss");
        let mut numbers = Vec::new();
        for number in 0..200_u64 {
            two.from.block.write(0, &(number + 1).to_ne_bytes());
            two.to.fill(0, 8, 0);
            let write = WorkRequest::write(&two.from, 0, 8, &two.to, 0);
            two.left.post(two.a, &write);
            two.rounds(20);
            assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
            if two.to.block.bytes(0, 8) == (number + 1).to_ne_bytes() {
                numbers.push(number);
            }
        }
        assert_eq!(two.count(true, "injected_lost_requests"), 200 - numbers.len() as u64);
        numbers
    };
    let first = arrived("seed-1", 1);
    // Six standard deviations around 160.
    assert!((126..=194).contains(&first.len()), "{}", first.len());
    assert_eq!(first, arrived("seed-2", 1));
    assert_ne!(first, arrived("seed-3", 2));
}

#[test]
fn a_loss_of_the_configuration_is_of_packets_that_leave_on_both_paths() {
    for by in BOTH {
        let mut two = joined_with("loss", ServiceType::Uc, by, |config| config.loss = 1.0);
        let write = WorkRequest::write(&two.from, 0, 3000, &two.to, 0);
        let bytes = two.from.fill(0, 3000, 4);
        two.left.post(two.a, &write);
        two.rounds(100);
        assert_eq!(sent(&mut two.left, two.a), Some(Ok(())), "{by:?}: nobody tells the sender");
        // Three packets of MTU 1024; in shared memory a message stands for one.
        let lost = if by == By::Wire { 3 } else { 1 };
        assert_eq!(two.count(true, "injected_lost_requests"), lost, "{by:?}");
        assert_eq!(two.count(false, "messages_received"), 0, "{by:?}");
        assert_eq!(two.count(true, "ctl_changes"), 0, "{by:?}");
        two.left.nic.set(&Settings { loss: Some(0.0), ..Settings::default() }).expect("a loss");
        two.left.post(two.a, &write);
        two.rounds(100);
        assert_eq!(two.to.block.bytes(0, 3000), bytes, "{by:?}");
    }
}

#[test]
fn a_message_in_shared_memory_stands_for_one_packet() {
    // Of 400 messages of three packets, give or take six standard deviations: 0.8 of them, and 0.8^3.
    for (by, expected) in [(By::Memory, 272..=368), (By::Wire, 145..=265)] {
        let mut two = joined_with("loss-share", ServiceType::Uc, by, |config| config.loss = 0.2);
        let write = WorkRequest::write(&two.from, 0, 3000, &two.to, 0);
        for _ in 0..400 {
            two.left.post(two.a, &write);
            two.rounds(20);
            assert_eq!(sent(&mut two.left, two.a), Some(Ok(())), "{by:?}");
        }
        let arrived = two.count(false, "messages_received");
        assert!(expected.contains(&arrived), "{by:?}: {arrived}");
    }
}

#[test]
fn an_overtaken_packet_arrives_behind_the_next_three_and_the_last_one_alone() {
    for by in BOTH {
        let mut two = joined("overtaken", ServiceType::Ud, by);
        let reorder = |reorder| Settings { reorder: Some(reorder), ..Settings::default() };
        two.left.nic.set(&reorder(1.0)).expect("a share");
        for entry in 0..7 {
            let pointer = two.to.pointer(64 * entry, 64);
            two.right.post_receive(two.b, &[pointer]);
        }
        two.rounds(100);
        for number in 0..6 {
            two.from.block.write(64 * number, &[number as u8; 8]);
            let send = WorkRequest::send(&two.from, 64 * number as u64, 8);
            let send = WorkRequest { datagram: two.send(ServiceType::Ud, 8).datagram, ..send };
            two.left.lay(two.a, &send);
        }
        two.left.ring_doorbell(two.a);
        two.rounds(200);
        let came: Vec<u8> = (0..6).map(|place| two.to.block.bytes(64 * place + 40, 1)[0]).collect();
        let wanted = if by == By::Wire { [1, 2, 3, 0, 5, 4] } else { [0, 1, 2, 3, 4, 5] };
        assert_eq!(came, wanted, "{by:?}");
        two.left.nic.set(&reorder(0.0)).expect("a share");
        let send = WorkRequest::send(&two.from, 0, 8);
        let send = WorkRequest { datagram: two.send(ServiceType::Ud, 8).datagram, ..send };
        two.left.post(two.a, &send);
        two.rounds(200);
        assert_eq!(two.count(true, "injected_overtaken"), if by == By::Wire { 2 } else { 0 }, "{by:?}");
    }
}

#[test]
fn what_cannot_be_set_changes_nothing() {
    let mut driver = Driver::new(Setup::new("impossible"));
    let none = Settings::default();
    for (settings, words) in [
        (Settings { loss: Some(1.1), ..none }, "a loss of 1.1"),
        (Settings { loss: Some(f64::NAN), ..none }, "0 to 1"),
        (Settings { reorder: Some(-0.5), ..none }, "a reorder of -0.5"),
        (Settings { rate_gbps: Some(Some(0.0)), ..none }, "a rate of 0"),
        (Settings { messages_per_second: Some(Some(f64::INFINITY)), ..none }, "inf messages a second"),
        (Settings { loss: Some(0.5), messages_per_second: Some(Some(0.0)), ..none }, "0 messages a second"),
    ] {
        assert!(driver.nic.set(&settings).is_err_and(|why| why.contains(words)), "{settings:?}");
    }
    assert_eq!((driver.counters().ctl_changes, driver.nic.changes().len()), (0, 0));
    for number in 0..100 {
        driver.nic.set(&Settings { seed: Some(number), ..none }).expect("a seed");
    }
    assert_eq!((driver.counters().ctl_changes, driver.nic.changes().len()), (100, 64), "the first are told");
}
