//! Every error completion, stalled queue and failed CQ has a reason: the check, its value, and the remedy.

use std::net::{IpAddr, Ipv6Addr};

use mlx5_device::command::ModifyQp;
use mlx5_device::config::{LinkLayer, LinkPath};
use mlx5_device::counters::name_of;
use mlx5_device::doorbell::PATIENCE_NS;
use mlx5_device::faults::{Injection, InjectionKind};
use mlx5_device::reason::STALLED;
use mlx5_device::testing::{Opening, QpId, QpShape, Region, WorkRequest};
use mlx5_device::{About, Reason};
use mlx5_layout::CqeSyndrome;
use mlx5_layout::doorbell::Doorbell;
use mlx5_layout::send_wqe::DataPointer;
use roce::ServiceType;
use roce::wire::gid_of;

use crate::machine::{ALL, Driver, Setup, syndrome};

/// The reason of a queue, about this WQE or about itself, of this kind.
pub fn reason_of(reasons: &[Reason], qpn: u32, wqe: Option<u16>, kind: &str) -> Option<String> {
    let found = reasons.iter().find(|reason| reason.about == About::Qp(qpn, wqe) && reason.kind == kind);
    found.map(|reason| reason.why.clone())
}

/// Makes WQE 0 of the first queue fail with this syndrome; what its reason and the second queue's must say.
fn fail(driver: &mut Driver, a: QpId, b: QpId, wanted: CqeSyndrome) -> ([String; 2], Option<String>) {
    let region = driver.region(4096, ALL);
    let (qpn, end) = (driver.qp(a).qpn, region.address + 4096);
    let receive = |driver: &mut Driver, len| {
        driver.post_receive(b, &[DataPointer { byte_count: len, ..region.pointer(0, 64) }]);
    };
    let bounds = format!("..{end:#x}");
    let send = WorkRequest::send(&region, 0, 8);
    let (request, words, at_peer) = match wanted {
        CqeSyndrome::LocalLength => (
            WorkRequest::send(&region, 0, (1 << 30) + 1),
            ["1073741825 bytes".into(), "1073741824".into()],
            None,
        ),
        CqeSyndrome::LocalProtection => {
            (WorkRequest::send(&region, 4090, 7), ["7 bytes at".into(), bounds], None)
        }
        CqeSyndrome::MwBind => {
            let (window, unbound) = (driver.window(2), driver.region(64, 1));
            let opening = Opening { region: &unbound, offset: 0, len: 64, rights: 1 };
            (
                driver.bind(a, &window, 5, &opening),
                [format!("{:#x}", unbound.lkey), "lacks access 0x10".into()],
                None,
            )
        }
        CqeSyndrome::RemoteInvalidRequest => {
            receive(driver, 7);
            (
                send,
                [format!("QP {:#x}", driver.qp(b).qpn), "receive".into()],
                Some("8 bytes came and the receive has 7"),
            )
        }
        CqeSyndrome::RemoteAccess => {
            let write = WorkRequest::write(&region, 0, 9, &region, 4088);
            let asked =
                format!("RDMA WRITE of 9 bytes at {:#x} with rkey {:#x}", region.address + 4088, region.rkey);
            (write, [asked, "rkey, address".into()], Some("register more, or move less"))
        }
        CqeSyndrome::RemoteOperation => {
            driver.post_receive(b, &[DataPointer { lkey: 0x4242_4242, ..region.pointer(0, 64) }]);
            (
                send,
                [format!("QP {:#x}", driver.qp(b).qpn), "memory".into()],
                Some("key 0x42424242 names nothing"),
            )
        }
        CqeSyndrome::TransportRetryExceeded => {
            driver.reset(b);
            (send, ["does not answer".into(), "softnic ctl list".into()], None)
        }
        CqeSyndrome::RnrRetryExceeded => (
            send,
            ["no receive".into(), "rnr_retry 1".into()],
            Some("waits for a receive: its record says 0"),
        ),
        // What is behind a WQE that fails.
        CqeSyndrome::WrFlush | CqeSyndrome::LocalQpOperation => (
            WorkRequest::fetch_add(&region, 0, (&region, 0), 1).inline(&[0]),
            ["inline".into(), "pointer".into()],
            None,
        ),
        // No peer of ours provokes these.
        CqeSyndrome::BadResponse | CqeSyndrome::LocalAccess | CqeSyndrome::RemoteAborted => {
            let kind = InjectionKind::ErrorCqe(wanted);
            driver.nic.inject(Injection { qpn, kind }).expect("a QP of ours");
            (send, ["softnic ctl inject".into(), "SEND of 8 bytes".into()], None)
        }
    };
    driver.lay(a, &request).lay(a, &WorkRequest::send(&region, 0, 8)).ring_doorbell(a).settle();
    driver.advance(300_000_000);
    (words, at_peer.map(str::to_owned))
}

#[test]
fn every_syndrome_of_a_completion_has_a_reason_with_values_and_help() {
    for wanted in CqeSyndrome::ALL {
        let name = name_of(*wanted);
        let mut driver = Driver::new(Setup::new(&format!("why-{name}")));
        let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
        let (qpn_a, qpn_b) = (driver.qp(a).qpn, driver.qp(b).qpn);
        driver.bring_up(a, &ModifyQp { rnr_retry: 1, retry_count: 1, ..driver.attributes(qpn_b) });
        driver.bring_up(b, &driver.attributes(qpn_a));
        driver.sinks.take_reasons();
        let (words, at_peer) = fail(&mut driver, a, b, *wanted);
        let reasons = driver.sinks.take_reasons();
        let failed = driver.poll_send(a).unwrap_or_else(|| panic!("{name}: {reasons:?}"));
        let flushed = driver.poll_send(a).unwrap_or_else(|| panic!("{name}: {reasons:?}"));
        assert_eq!((failed.wqe_counter(), syndrome(&flushed)), (0, Some(CqeSyndrome::WrFlush)), "{name}");
        let after =
            reason_of(&reasons, qpn_a, None, "flush").unwrap_or_else(|| panic!("{name}: {reasons:?}"));
        assert!(after.contains("WQE 0 failed") && after.contains("RESET"), "{name}: {after}");
        if *wanted != CqeSyndrome::WrFlush {
            assert_eq!(syndrome(&failed), Some(*wanted), "{name}");
            let why =
                reason_of(&reasons, qpn_a, Some(0), name).unwrap_or_else(|| panic!("{name}: {reasons:?}"));
            assert!(words.iter().all(|word| why.contains(word)), "{name}: {words:?} not all in {why}");
        }
        if let Some(words) = at_peer {
            let of_peer = |reason: &&Reason| matches!(reason.about, About::Qp(qpn, _) if qpn == qpn_b);
            let first = reasons.iter().position(|reason| of_peer(&reason) && reason.why.contains(&words));
            let then = reasons.iter().position(|reason| reason.peer == Some(qpn_b));
            assert!(first.is_some() && first < then, "{name}: the peer's reason is there first: {reasons:?}");
        }
    }
}

/// What a queue's reason of this kind must say.
fn check(driver: &Driver, name: &str, qp: QpId, kind: &str, words: &[&str]) {
    let reasons = driver.sinks.take_reasons();
    let why = reason_of(&reasons, driver.qp(qp).qpn, None, kind);
    let why = why.unwrap_or_else(|| panic!("{name}: {reasons:?}"));
    assert!(words.iter().all(|word| why.contains(word)), "{name}: {words:?} not all in {why}");
}

#[test]
fn a_queue_that_does_not_go_on_says_what_its_record_and_register_say() {
    type Ring = fn(&mut Driver, QpId);
    let cases: [(&str, Ring, &[&str]); 4] = [
        (
            "missing",
            |driver, qp| {
                driver.write_record(qp);
            },
            &[
                "record 1, rung up to 0, executed up to 0",
                "no register was written; write it after the record",
            ],
        ),
        (
            "another QP",
            |driver, qp| {
                let doorbell = Doorbell { qpn: driver.qp(qp).qpn + 0x100, ds: 1, ..Doorbell::default() };
                driver.write_record(qp).write_register_with(qp, doorbell.emit());
            },
            &["the register write named another QP; write what this QP's WQE begins with"],
        ),
        (
            "record late",
            |driver, qp| {
                driver.write_register(qp);
                driver.poll();
                driver.write_record(qp);
            },
            &["the register was written before the record; fence between the two"],
        ),
        (
            "beyond the ring",
            |driver, qp| {
                driver.qp_mut(qp).posted += 0x4000;
                driver.write_record(qp);
            },
            &["record 16385, ", "further ahead than the ring is long; post less at a time"],
        ),
    ];
    for (name, ring, words) in cases {
        let mut driver = Driver::new(Setup::new("why-stalled"));
        let (qp, _) = driver.pair(QpShape::default());
        let region = driver.region(64, ALL);
        driver.lay(qp, &WorkRequest::send(&region, 0, 8));
        ring(&mut driver, qp);
        driver.settle().advance(2 * PATIENCE_NS);
        check(&driver, name, qp, STALLED, words);
    }
}

#[test]
fn a_queue_whose_peer_takes_no_message_says_once_after_a_second_what_it_waits_for() {
    for full in [false, true] {
        let setup = Setup::new("why-waits");
        let fabric = setup.fabric.clone();
        let mut driver = Driver::new(setup);
        let (a, b) = driver.pair(QpShape::default());
        let region = driver.region(64, ALL);
        let (qpn, peer) = (driver.qp(a).qpn, driver.qp(b).qpn);
        let reason = |driver: &Driver| reason_of(&driver.sinks.take_reasons(), qpn, None, STALLED);
        for life in 0..2 {
            fabric.borrow_mut().full = full;
            driver.post(a, &WorkRequest::send(&region, 0, 8)).settle().advance(PATIENCE_NS / 2);
            assert_eq!(reason(&driver), None, "within a second");
            driver.advance(PATIENCE_NS);
            let (why, of) = (reason(&driver), format!("QP {peer:#x} "));
            let words = [of.as_str(), if full { "its ring is full" } else { "no receive for a message" }];
            let is_named = |why: &String| words.iter().all(|word| why.contains(word));
            assert!(
                (life == 1 || why.as_ref().is_some_and(is_named)) && why.is_some() == (life == 0),
                "{why:?}"
            );
            fabric.borrow_mut().full = false;
            driver.post_receive(b, &[region.pointer(0, 64)]);
            driver.advance(PATIENCE_NS);
            assert!(driver.poll_send(a).is_some_and(|cqe| syndrome(&cqe).is_none()), "it goes on");
        }
    }
}

#[test]
fn a_message_that_an_unreliable_queue_drops_has_a_reason_there_once() {
    for (service, words) in [
        (ServiceType::Uc, ["RDMA WRITE of 8 bytes", "key 0x100 names nothing"]),
        (ServiceType::Ud, ["SEND of 8 bytes by QP 0x40", "its Q_Key is 0x22222222 and the QP's 0x11111111"]),
    ] {
        let mut driver = Driver::new(Setup::new("why-dropped"));
        let (a, b) = driver.pair(QpShape { service, ..QpShape::default() });
        let region = driver.region(64, ALL);
        let nobody = Region { rkey: 0x100, ..driver.region(64, ALL) };
        let bad = match service {
            ServiceType::Ud => {
                let datagram = Some(driver.vector(b, 0x2222_2222));
                WorkRequest { datagram, ..WorkRequest::send(&region, 0, 8) }
            }
            _ => WorkRequest::write(&region, 0, 8, &nobody, 0),
        };
        driver.post(a, &bad).post(a, &bad).settle();
        let (reasons, about) = (driver.sinks.take_reasons(), About::Qp(driver.qp(b).qpn, None));
        let [reason] = &reasons[..] else { panic!("{service:?}: {reasons:?}") };
        assert!((reason.about, reason.kind) == (about, "refused"), "{service:?}: {reason:?}");
        assert!(words.iter().all(|word| reason.why.contains(word)), "{service:?}: {reason:?}");
        assert_eq!(driver.state(b), 3, "it goes on");
    }
}

#[test]
fn records_that_cannot_be_read_and_a_failed_srq_have_reasons() {
    let mut driver = Driver::new(Setup::new("why-record"));
    let (qp, _) = driver.pair(QpShape::default());
    driver.qp(qp).record.protect(0);
    driver.settle();
    check(&driver, "record", qp, STALLED, &["its doorbell record at 0x", "cannot be read; keep it mapped"]);

    let mut driver = Driver::new(Setup::new("why-srq"));
    let srq = driver.create_srq(7, 1);
    driver.write_shared_record(srq, 12);
    driver.arm_limit(srq, 3).expect("it is taken");
    let reasons = driver.sinks.take_reasons();
    let [reason] = &reasons[..] else { panic!("{reasons:?}") };
    assert!(matches!(reason.about, About::Srq(_)) && reason.kind == "srq", "{reason:?}");
    let why = "it and its QPs are in error: its record is further ahead than the ring is long";
    assert_eq!(reason.why, why);
}

#[test]
fn each_queue_whose_peer_has_no_route_has_a_reason_that_says_what_would_have_one() {
    type Away = fn(&mut Driver, &mut ModifyQp);
    // RoCE v1, which has no IP address.
    let version_1: Away = |driver, peer| {
        peer.address.sgid_index = 0;
        peer.address.dgid = Some(driver.nic.ports()[0].gids[0].gid);
    };
    let unknown: Away = |_, peer| {
        peer.address.dlid = 999;
        peer.address.dgid = peer.address.dgid.map(|_| gid_of(IpAddr::from([192, 0, 2, 9])).0);
    };
    let number: Away = |_, peer| peer.dest_qpn = 0x7f_0001;
    let family: Away = |_, peer| peer.address.dgid = Some(gid_of(IpAddr::V6(Ipv6Addr::LOCALHOST)).0);
    let roce = |path| {
        Setup::new("why-roce").with(|config| (config.link_layer, config.path) = (LinkLayer::Roce, path))
    };
    for (setup, away, words) in [
        (roce(LinkPath::Wire), version_1, ["nothing reaches fe80::", "Use a GID such as index "]),
        (
            roce(LinkPath::Wire),
            family,
            ["::1 from ::ffff:127.0.0.1: one is an IPv4 address", "one family at both ends"],
        ),
        (
            Setup::new("why-lid"),
            unknown,
            ["LID 999 from LID 1: no NIC of this", "this one sends no packets there"],
        ),
        (Setup::new("why-qpn"), number, ["that address is of mlx5_0 here", "other numbers than 0x7f0001"]),
        (
            roce(LinkPath::Shm),
            unknown,
            ["::ffff:192.0.2.9 from ::ffff:127.0.0.1", "this one sends no packets there"],
        ),
    ] {
        let mut driver = Driver::new(setup);
        let qp = driver.create_qp(QpShape::default());
        for _ in 0..2 {
            let mut attributes = driver.attributes(driver.qp(qp).qpn + 1);
            away(&mut driver, &mut attributes);
            driver.bring_up(qp, &attributes);
            check(&driver, words[0], qp, "no-route", &words);
            driver.reset(qp);
        }
    }
}
