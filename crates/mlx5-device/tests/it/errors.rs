//! Wrong work requests and peers: each gets a card's syndrome, in its turn; everything else is flushed.

use std::sync::atomic::Ordering;

use mlx5_device::Reason;
use mlx5_device::command::ModifyQp;
use mlx5_device::commands::*;
use mlx5_device::testing::{Data, QpId, QpShape, Region, WorkRequest};
use mlx5_layout::send_wqe::{AddressVector, BLOCK_BYTES, DataPointer};
use mlx5_layout::testing::counter_word;
use mlx5_layout::{CqeOpcode, CqeSyndrome, SendOpcode};
use roce::ServiceType;

use crate::machine::{ALL, Driver, Setup, on_the_wire, syndrome};
use crate::reasons::reason_of;

type Patch = fn(&mut Vec<u8>);

/// Posts good, bad, good in one batch; expects success, the error, a flush, and the QP in this state.
fn check_bad(
    driver: &mut Driver,
    qp: QpId,
    good: &WorkRequest,
    bad: &[u8],
    name: &str,
    wanted: CqeSyndrome,
    state: u8,
) {
    driver.lay(qp, good);
    let index = driver.qp(qp).posted;
    driver.lay_bytes(qp, bad).lay(qp, &good.clone().unsignalled()).ring_doorbell(qp).settle();
    let first = driver.poll_send(qp).unwrap_or_else(|| panic!("{name}: the one before it did not complete"));
    assert_eq!(first.opcode(), Some(CqeOpcode::Requester), "{name}: the one before it");
    let failed = driver.poll_send(qp).unwrap_or_else(|| panic!("{name}: nothing was reported"));
    assert_eq!(failed.opcode(), Some(CqeOpcode::RequesterError), "{name}");
    assert_eq!((syndrome(&failed), failed.wqe_counter()), (Some(wanted), index), "{name}");
    let (reasons, qpn) = (driver.sinks.take_reasons(), driver.qp(qp).qpn);
    let why = reason_of(&reasons, qpn, Some(index), mlx5_device::counters::name_of(wanted));
    assert!(why.is_some() && reason_of(&reasons, qpn, None, "flush").is_some(), "{name}: {reasons:?}");
    let mut flushed = 0;
    while let Some(cqe) = driver.poll_send(qp) {
        assert_eq!(syndrome(&cqe), Some(CqeSyndrome::WrFlush), "{name}: what follows is flushed");
        flushed += 1;
    }
    assert!(flushed >= 1, "{name}: unsignalled requests are flushed too");
    assert_eq!(driver.state(qp), state, "{name}");
}

#[test]
fn a_wqe_with_a_wrong_field_is_a_local_qp_operation_error() {
    let cases: [(&str, Patch); 8] = [
        ("index", |wqe| wqe[2] ^= 1),
        ("index, high byte", |wqe| wqe[1] ^= 0x80),
        ("QPN", |wqe| wqe[6] ^= 1),
        ("length 0", |wqe| wqe[7] = 0),
        ("length beyond what was posted", |wqe| wqe[7] = 63),
        ("unknown opcode", |wqe| wqe[3] = 0x77),
        ("UMR", |wqe| wqe[3] = 0x25),
        ("opcode modifier", |wqe| wqe[0] = 8),
    ];
    for (i, (name, patch)) in cases.into_iter().enumerate() {
        let mut driver = Driver::new(Setup::new(&format!("field-{i}")));
        let (a, _) = driver.pair(QpShape::default());
        let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
        let good = WorkRequest::write(&from, 0, 8, &to, 0);
        let mut bad = good.wqe(driver.qp(a).qpn, 1).expect("a WQE");
        patch(&mut bad);
        check_bad(&mut driver, a, &good, &bad, name, CqeSyndrome::LocalQpOperation, 6);
    }
}

#[test]
fn a_wqe_that_its_queue_cannot_carry_out_fails_locally() {
    use CqeSyndrome::{LocalLength, LocalProtection, LocalQpOperation};
    type Make = fn(&Region, &Region) -> WorkRequest;
    let cases: [(&str, ServiceType, Make, CqeSyndrome); 14] = [
        ("READ on UC", ServiceType::Uc, |f, t| WorkRequest::read(f, 0, 8, t, 0), LocalQpOperation),
        ("atomic on UC", ServiceType::Uc, |f, t| WorkRequest::fetch_add(f, 0, (t, 0), 1), LocalQpOperation),
        ("READ into inline", ServiceType::Rc, read_inline, LocalQpOperation),
        ("31 entries", ServiceType::Rc, |f, _| entries(f, 31), LocalQpOperation),
        ("atomic into 4 bytes", ServiceType::Rc, atomic_short, LocalLength),
        ("1 GiB and a byte", ServiceType::Rc, |f, _| WorkRequest::send(f, 0, (1 << 30) + 1), LocalLength),
        ("a length of 0 means 2 GiB", ServiceType::Rc, |f, _| WorkRequest::send(f, 0, 0), LocalLength),
        ("lkey of nobody", ServiceType::Rc, |f, _| with_key(f, 0x1234_5678), LocalProtection),
        ("lkey 0", ServiceType::Rc, |f, _| with_key(f, 0), LocalProtection),
        ("the key's generation", ServiceType::Rc, |f, _| with_key(f, f.lkey ^ 1), LocalProtection),
        ("one byte past the end", ServiceType::Rc, |f, _| WorkRequest::send(f, 4090, 7), LocalProtection),
        ("before the start", ServiceType::Rc, |f, _| before(f), LocalProtection),
        ("second entry wrong", ServiceType::Rc, second_wrong, LocalProtection),
        ("one byte past, UC", ServiceType::Uc, |f, _| WorkRequest::send(f, 4090, 7), LocalProtection),
    ];
    for (i, (name, service, make, wanted)) in cases.into_iter().enumerate() {
        let mut driver = Driver::new(Setup::new(&format!("local-{i}")));
        let (a, b) = driver.pair(QpShape { service, ..QpShape::default() });
        let (from, to) = (driver.region(4096, ALL), driver.region(4096, ALL));
        for _ in 0..3 {
            driver.post_receive(b, &[to.pointer(0, 4096)]);
        }
        let bad = make(&from, &to).wqe(driver.qp(a).qpn, 1).expect("a WQE");
        // Reliable queues go to ERR, unreliable ones to SQE.
        let state = if service == ServiceType::Rc { 6 } else { 5 };
        check_bad(&mut driver, a, &WorkRequest::write(&from, 0, 8, &to, 0), &bad, name, wanted, state);
    }
}

fn read_inline(_: &Region, to: &Region) -> WorkRequest {
    WorkRequest::new(SendOpcode::RdmaRead).remote(to, 0).inline(&[0; 8])
}

fn entries(from: &Region, count: usize) -> WorkRequest {
    (0..count).fold(WorkRequest::new(SendOpcode::Send), |request, _| request.pointer(from, 0, 8))
}

fn atomic_short(from: &Region, to: &Region) -> WorkRequest {
    let request = WorkRequest::fetch_add(from, 0, (to, 0), 1);
    WorkRequest { data: vec![Data::Pointer(from.pointer(0, 4))], ..request }
}

fn with_key(from: &Region, lkey: u32) -> WorkRequest {
    let pointer = DataPointer { lkey, ..from.pointer(0, 8) };
    WorkRequest { data: vec![Data::Pointer(pointer)], ..WorkRequest::new(SendOpcode::Send) }
}

fn before(from: &Region) -> WorkRequest {
    let pointer = DataPointer { va: from.address - 1, ..from.pointer(0, 8) };
    WorkRequest { data: vec![Data::Pointer(pointer)], ..WorkRequest::new(SendOpcode::Send) }
}

fn second_wrong(from: &Region, _: &Region) -> WorkRequest {
    WorkRequest::send(from, 0, 8).pointer(from, 4095, 2)
}

#[test]
fn keys_of_other_domains_and_without_rights_do_not_open() {
    let mut driver = Driver::new(Setup::new("rights"));
    let from = driver.region(64, ALL);
    let own = driver.pd;
    driver.pd = driver.nic.alloc_pd(driver.context).expect("a PD").handle;
    let foreign = driver.region(64, ALL);
    driver.pd = own;
    let read_only = driver.region(64, 0);
    for (name, request, wanted) in [
        ("lkey of another PD", WorkRequest::send(&foreign, 0, 8), CqeSyndrome::LocalProtection),
        ("READ into read-only", WorkRequest::read(&read_only, 0, 8, &from, 0), CqeSyndrome::LocalProtection),
        ("rkey of another PD", WorkRequest::write(&from, 0, 8, &foreign, 0), CqeSyndrome::RemoteAccess),
        ("WRITE to read-only", WorkRequest::write(&from, 0, 8, &read_only, 0), CqeSyndrome::RemoteAccess),
        ("READ without the right", WorkRequest::read(&from, 0, 8, &read_only, 0), CqeSyndrome::RemoteAccess),
        ("bounds", WorkRequest::write(&from, 0, 9, &from, 56), CqeSyndrome::RemoteAccess),
        ("rkey of nobody", WorkRequest::write(&from, 0, 8, &nobody(&from), 0), CqeSyndrome::RemoteAccess),
    ] {
        let (a, b) = driver.pair(QpShape::default());
        let bad = request.wqe(driver.qp(a).qpn, 1).expect("a WQE");
        check_bad(&mut driver, a, &WorkRequest::write(&from, 0, 8, &from, 32), &bad, name, wanted, 6);
        let remote = wanted == CqeSyndrome::RemoteAccess;
        assert_eq!(driver.state(b), if remote { 6 } else { 3 }, "{name}: the responder's state");
        let events = driver.sinks.take_events();
        let access_errors = events.iter().filter(|e| e.kind == 3 && e.element == driver.qp(b).user_handle);
        assert_eq!(access_errors.count(), usize::from(remote), "{name}: IBV_EVENT_QP_ACCESS_ERR");
    }
}

fn nobody(region: &Region) -> Region {
    Region { rkey: region.rkey ^ 0x5500, ..region.clone() }
}

#[test]
fn what_the_responder_refuses_reaches_the_requester_as_its_syndrome() {
    let nothing: Prepare = |_, _, _| ();
    let (write, read): (WorkRequestOf, WorkRequestOf) =
        (|f| WorkRequest::write(f, 0, 8, f, 0), |f| WorkRequest::read(f, 0, 8, f, 0));
    let add: WorkRequestOf = |f| WorkRequest::fetch_add(f, 0, (f, 0), 1);
    let unaligned: WorkRequestOf = |f| WorkRequest::fetch_add(f, 0, (f, 4), 1);
    let send: WorkRequestOf = |f| WorkRequest::send(f, 0, 8);
    let (length, protection) = (Some(CqeSyndrome::LocalLength), Some(CqeSyndrome::LocalProtection));
    let cases = [
        ("QP without remote write", 0b1101, nothing, write, INVALID, None),
        ("QP without remote read", 0b1011, nothing, read, INVALID, None),
        ("QP without atomics", 0b0111, nothing, add, INVALID, None),
        ("unaligned atomic", ALL, nothing, unaligned, INVALID, None),
        ("receive too small", ALL, small as Prepare, send, INVALID, length),
        ("receive's key", ALL, bad_key, send, OPERATION, protection),
        ("receive without local write", ALL, read_only, send, OPERATION, protection),
    ];
    for (i, (name, access, prepare, make, wanted, at_responder)) in cases.into_iter().enumerate() {
        let mut driver = Driver::new(Setup::new(&format!("refuse-{i}")));
        let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
        let (qpn_a, qpn_b) = (driver.qp(a).qpn, driver.qp(b).qpn);
        driver.bring_up(a, &driver.attributes(qpn_b));
        driver.bring_up(b, &ModifyQp { access, ..driver.attributes(qpn_a) });
        let from = driver.region(64, ALL);
        prepare(&mut driver, b, &from);
        driver.post_receive(b, &[from.pointer(0, 64)]);
        driver.post(a, &make(&from)).settle();
        let failed = driver.poll_send(a).unwrap_or_else(|| panic!("{name}: nothing was reported"));
        assert_eq!(syndrome(&failed), Some(wanted), "{name}");
        let mut receives = Vec::new();
        while let Some(cqe) = driver.poll_receive(b) {
            assert_eq!(cqe.opcode(), Some(CqeOpcode::ResponderError), "{name}");
            receives.extend(syndrome(&cqe));
        }
        assert_eq!(receives.pop(), Some(CqeSyndrome::WrFlush), "{name}: the other receive");
        assert_eq!(receives, at_responder.into_iter().collect::<Vec<_>>(), "{name}: the receive in use");
        assert_eq!((driver.state(a), driver.state(b)), (6, 6), "{name}");
    }
}

type Prepare = fn(&mut Driver, QpId, &Region);
type WorkRequestOf = fn(&Region) -> WorkRequest;
const INVALID: CqeSyndrome = CqeSyndrome::RemoteInvalidRequest;
const OPERATION: CqeSyndrome = CqeSyndrome::RemoteOperation;

fn small(driver: &mut Driver, qp: QpId, region: &Region) {
    driver.post_receive(qp, &[region.pointer(0, 3), region.pointer(8, 4)]);
}

fn bad_key(driver: &mut Driver, qp: QpId, region: &Region) {
    driver.post_receive(qp, &[DataPointer { lkey: 0x4242_4242, ..region.pointer(0, 64) }]);
}

fn read_only(driver: &mut Driver, qp: QpId, _: &Region) {
    let region = driver.region(64, 0);
    driver.post_receive(qp, &[region.pointer(0, 64)]);
}

#[test]
fn a_receive_record_beyond_its_ring_posts_nothing() {
    const ENTRIES: u32 = 8;
    for (ahead, taken) in [(1, true), (ENTRIES, true), (ENTRIES + 1, false), (0x4000, false), (0xffff, false)]
    {
        let mut driver = Driver::new(Setup::new(&format!("rq-record-{ahead}")));
        let (a, b) = driver.pair(QpShape { rq_entries: ENTRIES, ..QpShape::default() });
        let region = driver.region(128, ALL);
        let bytes = region.fill(0, 8, 7);
        driver.post_receive(b, &[region.pointer(64, 64)]);
        let record = |driver: &Driver, posted| {
            let word = u32::from_ne_bytes(counter_word(posted));
            driver.qp(b).record.word(0).store(word, Ordering::Release);
        };
        record(&driver, ahead);
        // The SEND comes again after each RNR NAK, as often as it takes.
        driver.post(a, &WorkRequest::send(&region, 0, 8)).advance(3_000_000);
        assert_eq!(driver.poll_receive(b).is_some(), taken, "{ahead} entries ahead");
        assert_eq!(driver.poll_send(a).is_some(), taken, "{ahead} entries ahead");
        assert_eq!(driver.counters().rnr_naks_sent > 0, !taken, "{ahead} entries ahead");
        record(&driver, 1);
        driver.advance(3_000_000);
        assert_eq!(region.block.bytes(64, 8), bytes, "{ahead} entries ahead");
        assert_eq!(driver.poll_send(a).is_some(), !taken, "{ahead} entries ahead");
    }
}

#[test]
fn nobody_there_is_retry_exceeded() {
    for (i, (name, change)) in [
        ("QPN of nobody", (|a| a.dest_qpn += 7) as fn(&mut ModifyQp)),
        ("process of nobody", |a| a.dest_qpn |= 0x7f << 17),
        ("LID of nobody", |a| a.address.dlid = 99),
    ]
    .into_iter()
    .enumerate()
    {
        let mut driver = Driver::new(Setup::new(&format!("nobody-{i}")));
        let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
        let mut attributes = ModifyQp { retry_count: 2, ..driver.attributes(driver.qp(b).qpn) };
        change(&mut attributes);
        driver.bring_up(a, &attributes);
        let from = driver.region(64, ALL);
        driver.post(a, &WorkRequest::send(&from, 0, 8)).settle();
        assert!(driver.poll_send(a).is_none(), "{name}: not before its time");
        // 4.096 µs · 2^14 is 67 ms, three times.
        driver.advance(150_000_000);
        assert!(driver.poll_send(a).is_none(), "{name}: not before its time");
        driver.advance(100_000_000);
        let cqe = driver.poll_send(a).unwrap_or_else(|| panic!("{name}: for ever"));
        assert_eq!(syndrome(&cqe), Some(CqeSyndrome::TransportRetryExceeded), "{name}");
        assert_eq!(driver.counters().retransmissions, 2, "{name}");
    }
}

/// Lines of the NIC about messages that reach nobody.
fn unreached(driver: &Driver) -> Vec<String> {
    let about = |line: &String| line.contains("reaches") || line.contains("does not answer");
    driver.sinks.take_lines().into_iter().filter(about).collect()
}

#[test]
fn a_gid_that_packets_cannot_have_is_said_once_a_life_of_a_queue_where_it_is_chosen() {
    for datagram in [false, true] {
        // The link-local GID as RoCE v1 and v2, the IPv4 address as RoCE v1: no way. As RoCE v2: a way.
        for (index, lines) in [(0, 1), (1, 1), (2, 1), (3, 0)] {
            let what = format!("GID {index}, datagram {datagram}");
            let mut driver = Driver::new(on_the_wire("gid"));
            let service = if datagram { ServiceType::Ud } else { ServiceType::Rc };
            let (a, b) = driver.pair(QpShape { service, ..QpShape::default() });
            let gid = driver.nic.ports()[0].gids[index].gid;
            let from = driver.region(64, ALL);
            for _ in 0..2 {
                if datagram {
                    let vector =
                        AddressVector { gid, source_gid_index: index as u8, ..driver.vector(b, 0x1111_1111) };
                    let send = WorkRequest { datagram: Some(vector), ..WorkRequest::send(&from, 0, 8) };
                    driver.post(a, &send).settle();
                } else {
                    let mut attributes = driver.attributes(driver.qp(b).qpn);
                    (attributes.address.dgid, attributes.address.sgid_index) = (Some(gid), index as u8);
                    driver.reset(a);
                    driver.bring_up_to(a, &attributes, 2);
                }
            }
            let said = unreached(&driver);
            // Between two connections lies a RESET.
            let lives = if datagram { 1 } else { 2 };
            assert_eq!(said.len(), lines * lives, "{what}: {said:?}");
            assert!(
                said.iter().all(|line| line.contains("index 3") && line.contains("-x 3")),
                "{what}: {said:?}"
            );
        }
    }
}

#[test]
fn a_peer_that_does_not_receive_yet_is_silent() {
    let mut driver = Driver::new(Setup::new("init"));
    let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
    let (qpn_a, qpn_b) = (driver.qp(a).qpn, driver.qp(b).qpn);
    driver.bring_up(a, &driver.attributes(qpn_b));
    let region = driver.region(64, ALL);
    driver.post(a, &WorkRequest::write(&region, 0, 8, &region, 32)).settle();
    assert!(driver.poll_send(a).is_none());
    // It comes up in time: the repetition is answered.
    driver.bring_up(b, &driver.attributes(qpn_a));
    driver.advance(100_000_000);
    assert_eq!(driver.poll_send(a).and_then(|c| c.opcode()), Some(CqeOpcode::Requester));
}

#[test]
fn a_flood_of_others_messages_does_not_stop_the_clock_of_a_queue_whose_peer_is_gone() {
    let mut driver = Driver::new(Setup::new("flood"));
    let busy: Vec<QpId> = (0..4).map(|_| driver.pair(QpShape::default()).0).collect();
    let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
    // 4.096 µs · 2^10 is 4.2 ms, three times.
    let attributes = ModifyQp { retry_count: 2, timeout: 10, ..driver.attributes(driver.qp(b).qpn) };
    driver.bring_up(a, &attributes);
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    let flood = WorkRequest::write(&from, 0, 8, &to, 0);
    driver.post(a, &WorkRequest::send(&from, 0, 8));
    let mut idle = busy.clone();
    let mut full = 0;
    // A round of the driver's is 1 µs: with every hold that a reply may cause, 30 ms.
    for _ in 0..60_000 {
        for qp in idle.drain(..) {
            for last in (0..32).rev() {
                driver.post(qp, &WorkRequest { signalled: last == 0, ..flood.clone() });
            }
        }
        let before = driver.nic.link().received;
        driver.poll();
        full += usize::from(driver.nic.link().received - before >= 32);
        idle.extend(busy.iter().copied().filter(|qp| driver.poll_send(*qp).is_some()));
        if let Some(cqe) = driver.poll_send(a) {
            assert_eq!(syndrome(&cqe), Some(CqeSyndrome::TransportRetryExceeded));
            assert!(full > 10_000, "{full} rounds were full: no flood");
            return;
        }
    }
    panic!("it waits for ever");
}

#[test]
fn no_receive_is_rnr_and_is_retried_as_often_as_the_queue_says() {
    for (retries, receive_after_ms, wanted) in [(1, None, true), (7, Some(40), false), (0, None, true)] {
        let mut driver = Driver::new(Setup::new(&format!("rnr-{retries}")));
        let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
        let (qpn_a, qpn_b) = (driver.qp(a).qpn, driver.qp(b).qpn);
        driver.bring_up(a, &ModifyQp { rnr_retry: retries, ..driver.attributes(qpn_b) });
        driver.bring_up(b, &driver.attributes(qpn_a));
        let region = driver.region(64, ALL);
        driver.post(a, &WorkRequest::send(&region, 0, 8)).settle();
        if let Some(ms) = receive_after_ms {
            driver.advance(ms * 1_000_000);
            assert!(driver.poll_send(a).is_none());
            driver.post_receive(b, &[region.pointer(32, 32)]);
        }
        // min_rnr_timer 12 is 0.64 ms.
        driver.advance(2_000_000);
        let cqe = driver.poll_send(a).expect("a completion");
        let exceeded = syndrome(&cqe) == Some(CqeSyndrome::RnrRetryExceeded)
            && cqe.opcode() != Some(CqeOpcode::Requester);
        assert_eq!(exceeded, wanted, "{retries} retries");
        assert_eq!(driver.poll_receive(b).is_some(), !wanted);
        if retries < 7 {
            assert_eq!(driver.counters().rnr_naks_sent, u64::from(retries) + 1);
        }
    }
}

#[test]
fn a_datagram_longer_than_the_port_carries_fails_locally() {
    let mut driver = Driver::new(Setup::new("ud-long").with(|c| c.mtu = 1024));
    let (a, b) = driver.pair(QpShape { service: ServiceType::Ud, ..QpShape::default() });
    let from = driver.region(4096, ALL);
    let vector = AddressVector {
        qkey: 0x1111_1111,
        destination_qpn: driver.qp(b).qpn,
        lid_or_udp_port: driver.address().dlid,
        ..AddressVector::default()
    };
    let send = |len| WorkRequest { datagram: Some(vector), ..WorkRequest::send(&from, 0, len) };
    let bad = send(1025).wqe(driver.qp(a).qpn, 2).expect("a WQE");
    assert!(bad.len() > BLOCK_BYTES, "an address vector takes a datagram into its second block");
    check_bad(&mut driver, a, &send(1024), &bad, "1025 bytes", CqeSyndrome::LocalLength, 5);
}

#[test]
fn memory_that_went_away_is_an_error_and_not_a_crash() {
    // A region over pages that are unmapped afterwards: a hole in the address space.
    let mut driver = Driver::new(Setup::new("unmapped"));
    let region = driver.region(64, ALL);
    let block = driver.region(1 << 16, ALL);
    block.block.protect(0);
    let refused = format!("address {:#x}", block.block.address());
    for (name, request, wanted) in [
        ("small SEND", WorkRequest::send(&block, 0, 8), CqeSyndrome::LocalProtection),
        (
            "large WRITE from there",
            WorkRequest::write(&block, 0, 50_000, &region, 0),
            CqeSyndrome::LocalProtection,
        ),
        ("WRITE to there", WorkRequest::write(&region, 0, 8, &block, 0), CqeSyndrome::RemoteOperation),
        ("READ to there", WorkRequest::read(&block, 0, 8, &region, 0), CqeSyndrome::LocalProtection),
        ("old value there", WorkRequest::fetch_add(&block, 0, (&region, 0), 1), CqeSyndrome::LocalProtection),
        ("READ from there", WorkRequest::read(&region, 0, 8, &block, 0), CqeSyndrome::RemoteOperation),
        ("atomic there", WorkRequest::fetch_add(&region, 0, (&block, 0), 1), CqeSyndrome::RemoteOperation),
    ] {
        let (a, b) = driver.pair(QpShape::default());
        driver.post_receive(b, &[region.pointer(0, 64)]);
        driver.post(a, &request).settle();
        let cqe = driver.poll_send(a).unwrap_or_else(|| panic!("{name}: nothing was reported"));
        assert_eq!(syndrome(&cqe), Some(wanted), "{name}");
        let reasons = driver.sinks.take_reasons();
        let of = if wanted == CqeSyndrome::LocalProtection { " bytes at 0x" } else { " of its memory" };
        let about = |reason: &Reason| reason.why.contains(&refused) && reason.why.contains(of);
        assert!(reasons.iter().any(about), "{name}: {reasons:?}");
    }
}
