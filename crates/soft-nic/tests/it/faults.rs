//! Faults on demand: ports that go down, messages that are lost or held up, one error, one late READ.
//!
//! Two NICs on one virtual clock, in shared memory and on a wire: what is lost, when what was lost comes again, and what a rate
//! lets through are certain.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

use mlx5_device::command::ModifyQp;
use mlx5_device::commands::*;
use mlx5_device::faults::{Injection, InjectionKind, Settings};
use mlx5_layout::{CqeOpcode, CqeSyndrome, SendOpcode};
use roce::ServiceType;
use soft_nic::config::{Config, LinkLayer, LinkPath};
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpId, QpShape, Region, Setup, WorkRequest};

use crate::operations::ALL;
use crate::operations::syndrome;

pub const MS: u64 = 1_000_000;

/// Time-out of [`Driver::attributes`], 4.096 µs times 2 to the 14th, in ns.
pub const TIMEOUT_NS: u64 = 4096 << 14;

/// The way that messages take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Memory,
    Wire,
}

pub const BOTH: [By; 2] = [By::Memory, By::Wire];

/// A requester's NIC and a responder's, a QP on each, memory on each.
pub struct Two {
    pub left: Driver<Host>,
    pub right: Driver<Host>,
    pub a: QpId,
    pub b: QpId,
    pub from: Region,
    pub to: Region,
}

/// A setup on the wire at a loopback address that no other test of this machine has.
fn on_wire(name: &str) -> Setup<Host> {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let address = Ipv4Addr::new(127, 64 + (pid >> 8 & 63) as u8, pid as u8, count as u8);
    Setup::new(name).with(|config| {
        (config.link_layer, config.path) = (LinkLayer::Roce, LinkPath::Wire);
        config.ipv4 = Some(address);
    })
}

impl Two {
    pub fn new(name: &str, service: ServiceType, by: By) -> Two {
        Two::with(name, service, by, |_| ())
    }

    /// With this in the requester's configuration.
    pub fn with(name: &str, service: ServiceType, by: By, of_left: impl FnOnce(&mut Config)) -> Two {
        let name = format!("{name}-{by:?}");
        let setup = || if by == By::Wire { on_wire(&name) } else { Setup::new(&name) };
        let (mut left, mut right) = (Driver::new(setup().with(of_left)), Driver::new(setup()));
        let shape = QpShape { service, ..QpShape::default() };
        let (a, b) = (left.create_qp(shape), right.create_qp(shape));
        let (from, to) = (left.region(1 << 17, ALL), right.region(1 << 17, ALL));
        let mut two = Two { left, right, a, b, from, to };
        two.connect(a, b);
        two
    }

    pub fn connect(&mut self, a: QpId, b: QpId) {
        let (qpn_a, qpn_b) = (self.left.qp(a).qpn, self.right.qp(b).qpn);
        let (near, far) = (self.left.address(), self.right.address());
        self.left.bring_up(a, &ModifyQp { address: far, ..self.left.attributes(qpn_b) });
        self.right.bring_up(b, &ModifyQp { address: near, ..self.right.attributes(qpn_a) });
    }

    /// A SEND of `len` bytes, to the other side's QP.
    pub fn send(&self, service: ServiceType, len: u32) -> WorkRequest {
        let datagram = (service == ServiceType::Ud).then(|| self.right.vector(self.b, 0x1111_1111));
        WorkRequest { datagram, ..WorkRequest::send(&self.from, 0, len) }
    }

    /// Opens the channel from left to right, by a request that arrives.
    pub fn open_channel(&mut self, request: &WorkRequest) {
        self.left.post(self.a, request);
        self.rounds(100);
        assert_eq!(sent(&mut self.left, self.a), Some(Ok(())));
    }

    /// Rounds of both, a µs each.
    pub fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.left.poll();
            self.right.poll();
        }
    }

    /// Lets time pass for both, in steps of 100 µs.
    pub fn pass(&mut self, ns: u64) {
        for _ in 0..ns / 100_000 {
            for driver in [&mut self.left, &mut self.right] {
                driver.now += 100_000 - 1_000;
                driver.poll();
            }
        }
    }

    pub fn count(&self, on_left: bool, name: &str) -> u64 {
        let driver = if on_left { &self.left } else { &self.right };
        driver.counters().fields().find(|field| field.0 == name).expect("a counter").1
    }
}

/// `Requester` for a success, the syndrome for an error.
pub fn sent(driver: &mut Driver<Host>, qp: QpId) -> Option<Result<(), CqeSyndrome>> {
    let cqe = driver.poll_send(qp)?;
    Some(match cqe.opcode() {
        Some(CqeOpcode::Requester) => Ok(()),
        _ => Err(syndrome(&cqe).expect("a known syndrome")),
    })
}

#[test]
fn the_request_with_this_psn_is_lost_and_no_other() {
    // Three messages: PSNs 0x1000 to 0x1002 (3000 bytes of MTU 1024), 0x1003, 0x1004. What follows a gap is out of sequence
    // (one NAK); the last one is missed by its time-out alone. Executed before any time-out, NAKs, and retransmissions.
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
        let mut two = Two::new(&format!("drop-{number}"), ServiceType::Rc, by);
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
    let mut two = Two::new("drop-nobody", ServiceType::Rc, By::Memory);
    let refused = two.left.nic.inject(Injection { qpn: 0x1_0000, kind: InjectionKind::Drop(None) });
    let own = format!("it has {:#x}", two.left.qp(two.a).qpn);
    assert!(refused.is_err_and(|why| why.contains("no QP 0x10000") && why.contains(&own)));
}

#[test]
fn an_error_on_demand_is_of_the_next_send_and_nothing_of_it_arrives() {
    let cases = [(ServiceType::Rc, 6), (ServiceType::Uc, 5), (ServiceType::Ud, 5)];
    for (by, (service, state)) in BOTH.into_iter().flat_map(|by| cases.map(|case| (by, case))) {
        let mut two = Two::new(&format!("error-{service:?}"), service, by);
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
        let mut two = Two::new("late", ServiceType::Rc, by);
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
        let mut two = Two::new(name, ServiceType::Uc, By::Memory);
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
        let mut two = Two::with("loss", ServiceType::Uc, by, |config| config.loss = 1.0);
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
        let mut two = Two::with("loss-share", ServiceType::Uc, by, |config| config.loss = 0.2);
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
        let mut two = Two::with("overtaken", ServiceType::Ud, by, |config| config.reorder = 1.0);
        for entry in 0..6 {
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

#[test]
fn a_corrupt_packet_is_dropped_by_who_gets_it_and_sent_again() {
    let mut two = Two::new("crc", ServiceType::Rc, By::Wire);
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
    let mut two = Two::new("crc", ServiceType::Rc, By::Memory);
    let qpn = two.left.qp(two.a).qpn;
    let refused = two.left.nic.inject(Injection { qpn, kind: InjectionKind::CorruptCrc });
    assert!(refused.is_err_and(|why| why.contains("no CRC")), "no packets, no CRC");
}

#[test]
fn a_wrong_crc_is_of_the_queue_that_was_asked_for_or_of_none() {
    let mut two = Two::new("crc-exact", ServiceType::Rc, By::Wire);
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
    // Its memory goes away before its packet was made: there is none to be spoilt.
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

#[test]
fn an_answer_that_comes_in_pieces_is_not_asked_for_again_while_it_comes() {
    let setup = || Setup::new("slow-answer");
    let (mut left, mut right) = (Driver::new(setup()), Driver::new(setup()));
    let (a, b) = (left.create_qp(QpShape::default()), right.create_qp(QpShape::default()));
    let (into, of) = (left.region(1 << 22, ALL), right.region(1 << 22, ALL));
    let mut two = Two { left, right, a, b, from: into, to: of };
    two.connect(a, b);
    let read = |two: &Two, len: u32| {
        WorkRequest::new(SendOpcode::RdmaRead).remote(&two.to, 0).pointer(&two.from, 0, len)
    };
    // A short one first, so that the channels are there.
    let short = read(&two, 8);
    two.left.post(a, &short);
    two.rounds(100);
    assert!(two.left.poll_send(a).is_some());
    let bytes = two.to.fill(0, 1 << 22, 7);
    let long = read(&two, 1 << 22);
    two.left.post(a, &long);
    let begun = two.left.now;
    // The responder sends a piece of 128 KiB every 50 ms; the time-out is 67 ms.
    let cqe = 'end: loop {
        for _ in 0..10 {
            two.left.now += 5_000_000;
            two.left.poll();
            if let Some(cqe) = two.left.poll_send(a) {
                break 'end cqe;
            }
        }
        two.right.now = two.left.now;
        two.right.poll();
        assert!(two.left.now < begun + 10_000_000_000, "an end");
    };
    assert_eq!((cqe.opcode(), cqe.byte_count()), (Some(CqeOpcode::Requester), 1 << 22));
    assert!(two.from.block.bytes(0, 1 << 22) == bytes);
    assert!(
        two.left.now > begun + 1_000_000_000,
        "as long as several time-outs: {} ns",
        two.left.now - begun
    );
    assert_eq!(two.count(true, "retransmissions"), 0);
}
