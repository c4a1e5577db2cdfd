//! Each operation of each service, from the WQE to the CQEs and the bytes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mlx5_device::command::ModifyQp;
use mlx5_layout::send_wqe::DataPointer;
use mlx5_layout::{CqeOpcode, CqeSyndrome, SendOpcode};
use roce::ServiceType;
use roce::qp_state::{AttrMask, QpState};
use soft_nic::config::{CopyThreads, LinkLayer, LinkPath};
use soft_nic::dma::copiers;
use soft_nic::testing::{CqShape, Driver, QpShape, Region, Setup, WorkRequest};

pub const ALL: u32 = 0xf;
const SCATTER_CQE: u32 = 1 << 1;
const UAR_PAGE: u32 = 1 << 10;

/// Lengths where the way of a payload changes: nothing, inline, a packet, the record's limit, above it.
const LENGTHS: [u32; 9] = [0, 1, 8, 33, 1000, 1025, 4096, 4097, 100_000];

/// A SEND or WRITE of `len` bytes; no segment when there are none, as libmlx5 does.
pub fn gather(request: WorkRequest, from: &Region, len: u32) -> WorkRequest {
    if len == 0 { request } else { request.pointer(from, 0, len) }
}

/// A NIC whose queues send packets to one another, at a loopback address that no other test has.
pub fn on_the_wire(name: &str) -> Setup<soft_nic::dma::Host> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id();
    let number = COUNT.fetch_add(1, Ordering::Relaxed) << 16 | process & 0xffff;
    Setup::new(name).with(|c| {
        c.link_layer = LinkLayer::Roce;
        c.path = LinkPath::Wire;
        // 127.0.0.0/8, above what tests of the link take.
        c.ipv4 = Some((0x7fc0_0000 | number & 0x3f_ffff).into());
    })
}

pub fn syndrome(cqe: &mlx5_layout::Cqe<Vec<u8>>) -> Option<CqeSyndrome> {
    cqe.error().known()
}

pub fn errno<T>(result: Result<T, mlx5_device::command::CommandError>) -> i32 {
    result.map_or_else(|error| error.errno, |_| 0)
}

pub fn opcode_of(cqe: Option<mlx5_layout::Cqe<Vec<u8>>>) -> Option<(CqeOpcode, u32)> {
    cqe.map(|cqe| (cqe.opcode().expect("a known opcode"), cqe.byte_count()))
}

fn check_sends_and_writes(name: &str, service: ServiceType, setup: Setup<soft_nic::dma::Host>) {
    let mut driver = Driver::new(setup);
    let (a, b) = driver.pair(QpShape { service, ..QpShape::default() });
    let (from, to) = (driver.region(1 << 17, ALL), driver.region(1 << 17, ALL));
    let mut seed = 0;
    for len in LENGTHS {
        for opcode in [SendOpcode::Send, SendOpcode::SendImm, SendOpcode::RdmaWrite, SendOpcode::RdmaWriteImm]
        {
            seed += 1;
            let what = format!("{name}: {opcode:?} of {len} bytes");
            let bytes = from.fill(0, len as usize, seed);
            to.fill(0, 1 << 17, seed ^ 0x55);
            let mut request = gather(WorkRequest::new(opcode), &from, len);
            if opcode.has_remote_address() {
                request = request.remote(&to, 3);
            }
            request.immediate = [1, 2, 3, seed];
            let receives = !matches!(opcode, SendOpcode::RdmaWrite);
            if receives {
                driver.post_receive(b, &[to.pointer(3, 0x1_0000), to.pointer(0x1_0003, 0xff00)]);
            }
            driver.post(a, &request).settle();
            assert_eq!(to.block.bytes(3, len as usize), bytes, "{what}");
            assert_eq!(
                to.block.bytes(0, 3),
                [0, 1, 2].map(|i: u8| i.wrapping_mul(31).wrapping_add(seed ^ 0x55))
            );
            let done = driver.poll_send(a).unwrap_or_else(|| panic!("{what}: no completion"));
            assert_eq!(
                (done.opcode(), done.send_opcode()),
                (Some(CqeOpcode::Requester), opcode.to_u8()),
                "{what}"
            );
            assert_eq!(done.qpn(), driver.qp(a).qpn, "{what}");
            let received = driver.poll_receive(b);
            let wanted = match opcode {
                SendOpcode::Send => Some(CqeOpcode::ResponderSend),
                SendOpcode::SendImm => Some(CqeOpcode::ResponderSendImm),
                SendOpcode::RdmaWriteImm => Some(CqeOpcode::ResponderWriteImm),
                _ => None,
            };
            assert_eq!(received.as_ref().and_then(|cqe| cqe.opcode()), wanted, "{what}");
            if let Some(cqe) = received {
                assert_eq!((cqe.byte_count(), cqe.source_qpn()), (len, driver.qp(a).qpn), "{what}");
                let immediate = if opcode == SendOpcode::Send { [0; 4] } else { [1, 2, 3, seed] };
                assert_eq!(cqe.immediate(), immediate, "{what}");
                assert_eq!(cqe.wqe_counter(), driver.qp(b).received.wrapping_sub(1), "{what}");
                assert_eq!(cqe.user_index(), 0x77_0001, "{what}");
            }
        }
    }
    let sends = driver.counters().completed(SendOpcode::Send);
    assert_eq!(sends, LENGTHS.len() as u64);
}

#[test]
fn a_long_message_s_completion_is_stamped_when_it_is_whole() {
    let mut driver = Driver::new(Setup::new("stamped"));
    const WHOLE: u64 = 1 << 50;
    driver.nic.stamp_by(|| roce::Now(WHOLE));
    let (a, b) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(1 << 17, ALL), driver.region(1 << 17, ALL));
    let mut stamp = |len: u32| {
        driver.post_receive(b, &[]);
        driver
            .post(a, &WorkRequest::new(SendOpcode::RdmaWriteImm).pointer(&from, 0, len).remote(&to, 0))
            .settle();
        driver.poll_receive(b).unwrap().timestamp()
    };
    // The time of its round is good enough for a short one.
    let short = stamp(64);
    assert!(short > 0 && short < WHOLE, "{short}");
    assert_eq!(stamp(100_000), WHOLE);
}

/// Tests with helpers that copy, one by one: beside another they would copy alone.
static HELPED: Mutex<()> = Mutex::new(());

#[test]
fn helpers_take_part_in_long_messages() {
    let _one = HELPED.lock();
    let mut driver = Driver::new(Setup::new("helped").with(|c| c.copy_threads = CopyThreads::Count(2)));
    let (a, _) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(1 << 17, ALL), driver.region(1 << 17, ALL));
    let end = Instant::now() + Duration::from_secs(30);
    let helped = || copiers::counters().iter().find(|(name, _)| *name == "copy_slices_helped").unwrap().1;
    let before = helped();
    // A fast sharing thread does all by itself.
    while helped() == before {
        assert!(Instant::now() < end, "no helper took a slice in 30 s: {:?}", copiers::counters());
        let bytes = from.fill(0, 1 << 17, 9);
        driver
            .post(a, &gather(WorkRequest::new(SendOpcode::RdmaWrite).remote(&to, 0), &from, 1 << 17))
            .settle();
        assert!(driver.poll_send(a).is_some());
        assert!(to.block.bytes(0, 1 << 17) == bytes);
    }
}

#[test]
fn sends_and_writes_of_every_length_arrive() {
    check_sends_and_writes("RC", ServiceType::Rc, Setup::new("rc"));
    check_sends_and_writes("UC", ServiceType::Uc, Setup::new("uc"));
    let roce = Setup::new("roce").with(|c| c.link_layer = LinkLayer::Roce);
    check_sends_and_writes("RC on Ethernet", ServiceType::Rc, roce);
    let one = HELPED.lock();
    let helped = Setup::new("helped-rc").with(|c| c.copy_threads = CopyThreads::Count(2));
    check_sends_and_writes("RC with helpers", ServiceType::Rc, helped);
    drop(one);
    check_sends_and_writes("RC on the wire", ServiceType::Rc, on_the_wire("rc-wire"));
    check_sends_and_writes("UC on the wire", ServiceType::Uc, on_the_wire("uc-wire"));
    let shaped = Setup::new("shaped").with(|c| c.rate_gbps = Some(10.0));
    check_sends_and_writes("shaped RC", ServiceType::Rc, shaped);
}

#[test]
fn reads_of_every_length_arrive_and_say_so() {
    for (name, setup) in [
        ("read", Setup::new("read")),
        ("helped-read", Setup::new("helped-read").with(|c| c.copy_threads = CopyThreads::Count(1))),
        ("wire-read", on_the_wire("wire-read")),
    ] {
        let _one = (setup.config.copy_threads == CopyThreads::Count(1)).then(|| HELPED.lock());
        let mut driver = Driver::new(setup);
        let (a, b) = driver.pair(QpShape::default());
        let (into, remote) = (driver.region(1 << 17, ALL), driver.region(1 << 17, ALL));
        for (i, len) in LENGTHS.into_iter().enumerate() {
            let bytes = remote.fill(5, len as usize, i as u8);
            let request = gather(WorkRequest::new(SendOpcode::RdmaRead).remote(&remote, 5), &into, len);
            driver.post(a, &request).settle();
            assert_eq!(opcode_of(driver.poll_send(a)), Some((CqeOpcode::Requester, len)), "{name} {len}");
            assert_eq!(into.block.bytes(0, len as usize), bytes, "{name} {len}");
        }
        assert_eq!(driver.poll_receive(b).map(|cqe| cqe.opcode()), None, "a READ consumes no receive");
    }
}

#[test]
fn atomics_run_on_the_word_and_return_its_old_value() {
    atomics_run(Setup::new("atomics"));
    atomics_run(on_the_wire("wire-atomics"));
}

fn atomics_run(setup: Setup<soft_nic::dma::Host>) {
    let mut driver = Driver::new(setup);
    let (a, _) = driver.pair(QpShape::default());
    let (into, remote) = (driver.region(64, ALL), driver.region(64, ALL));
    let word =
        |region: &Region, at: usize| u64::from_ne_bytes(region.block.bytes(at, 8).try_into().expect("8"));
    remote.block.write(8, &40u64.to_ne_bytes());
    for (name, request, old, new) in [
        ("add", WorkRequest::fetch_add(&into, 0, (&remote, 8), 2), 40, 42),
        ("add that wraps", WorkRequest::fetch_add(&into, 0, (&remote, 8), u64::MAX), 42, 41),
        ("swap that matches", WorkRequest::compare_swap(&into, 0, (&remote, 8), 41, 7), 41, 7),
        ("swap that does not", WorkRequest::compare_swap(&into, 0, (&remote, 8), 41, 9), 7, 7),
    ] {
        driver.post(a, &request).settle();
        assert_eq!(opcode_of(driver.poll_send(a)), Some((CqeOpcode::Requester, 8)), "{name}");
        assert_eq!((word(&into, 0), word(&remote, 8)), (old, new), "{name}");
    }
}

/// What UCX sends: a header in the WQE, and memory behind it. The WQE moves through the ring, so that the
/// header also lies across its end.
#[test]
fn inline_bytes_and_memory_go_out_in_their_order() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        let mut driver = Driver::new(Setup::new(&format!("mixed-{service:?}")));
        let (a, b) = driver.pair(QpShape { service, sq_blocks: 8, ..QpShape::default() });
        let (from, to) = (driver.region(65536, ALL), driver.region(65536, ALL));
        let header: Vec<u8> = (100..190).collect();
        for (round, len) in [1, 8, 300, 40_000, 17].into_iter().cycle().enumerate().take(40) {
            let bytes = from.fill(0, len as usize, round as u8);
            let whole = [&header[..], &bytes].concat();
            let sent = if round % 2 == 0 {
                driver.post_receive(b, &[to.pointer(0, 65536)]);
                WorkRequest::new(SendOpcode::Send)
            } else {
                WorkRequest::new(SendOpcode::RdmaWrite).remote(&to, 0)
            };
            driver.post(a, &sent.inline(&header).pointer(&from, 0, len)).settle();
            let cqe = driver.poll_send(a).expect("a completion");
            assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester), "{round}: {:?}", cqe.error());
            let length = driver.poll_receive(b).map(|cqe| cqe.byte_count() as usize);
            assert_eq!(length, (round % 2 == 0).then_some(whole.len()), "{service:?} {round}");
            assert!(to.block.bytes(0, whole.len()) == whole, "{service:?} {round}: {len} behind a header");
            to.block.write(0, &vec![0; whole.len()]);
        }
        // And the other way round.
        let bytes = from.fill(0, 50, 3);
        let write = WorkRequest::new(SendOpcode::RdmaWrite).remote(&to, 0).pointer(&from, 0, 50);
        driver.post(a, &write.inline(&header)).settle();
        assert_eq!(to.block.bytes(0, 140), [&bytes[..], &header].concat());
    }
}

#[test]
fn inline_bytes_need_no_region_and_may_be_changed_at_once() {
    let mut driver = Driver::new(Setup::new("inline"));
    let (a, b) = driver.pair(QpShape::default());
    let to = driver.region(4096, ALL);
    for len in [1usize, 12, 28, 44, 100, 220, 900] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 3 + len) as u8).collect();
        let write = WorkRequest::new(SendOpcode::RdmaWrite).remote(&to, 0).inline(&bytes);
        driver.post(a, &write).settle();
        assert_eq!(to.block.bytes(0, len), bytes, "WRITE of {len}");
        driver.post_receive(b, &[to.pointer(2000, 1000)]);
        driver.post(a, &WorkRequest::new(SendOpcode::Send).inline(&bytes)).settle();
        assert_eq!(to.block.bytes(2000, len), bytes, "SEND of {len}");
        assert_eq!(opcode_of(driver.poll_receive(b)), Some((CqeOpcode::ResponderSend, len as u32)));
    }
}

#[test]
fn many_entries_are_gathered_and_scattered_in_order() {
    let mut driver = Driver::new(Setup::new("sge"));
    let (a, b) = driver.pair(QpShape { rq_shift: 9, ..QpShape::default() });
    let (from, to) = (driver.region(1 << 16, ALL), driver.region(1 << 16, ALL));
    for piece in [1u32, 7, 100, 2000] {
        let bytes = from.fill(0, 1 << 16, piece as u8);
        let mut request = WorkRequest::new(SendOpcode::Send);
        let mut wanted = Vec::new();
        for i in 0..30u32 {
            let offset = (29 - i) * 2100;
            request = request.pointer(&from, offset.into(), piece);
            wanted.extend_from_slice(&bytes[offset as usize..(offset + piece) as usize]);
        }
        let receive: Vec<DataPointer> = (0..30).map(|i| to.pointer(i * 2001, 2001)).collect();
        driver.post_receive(b, &receive).post(a, &request).settle();
        assert_eq!(opcode_of(driver.poll_receive(b)), Some((CqeOpcode::ResponderSend, 30 * piece)));
        assert_eq!(to.block.bytes(0, wanted.len()), wanted, "pieces of {piece}");
    }
}

#[test]
fn a_nop_completes_in_its_turn() {
    let mut driver = Driver::new(Setup::new("nop"));
    let (a, _) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    let nop = WorkRequest::new(SendOpcode::Nop);
    driver
        .lay(a, &nop)
        .lay(a, &WorkRequest::write(&from, 0, 8, &to, 0))
        .lay(a, &nop)
        .ring_doorbell(a)
        .settle();
    let mut counters = Vec::new();
    while let Some(cqe) = driver.poll_send(a) {
        assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester));
        counters.push((cqe.wqe_counter(), cqe.send_opcode()));
    }
    assert_eq!(counters, [(0, 0), (1, 8), (2, 0)]);
}

#[test]
fn nops_around_a_message_that_fails_keep_their_turn_and_have_no_bytes() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        let mut driver = Driver::new(Setup::new(&format!("nops-{service:?}")));
        let (a, _) = driver.pair(QpShape { service, ..QpShape::default() });
        let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
        let nobody = Region { lkey: !from.lkey, ..from.clone() };
        let (nop, good) = (WorkRequest::new(SendOpcode::Nop), WorkRequest::write(&from, 0, 8, &to, 0));
        let bad = WorkRequest::write(&nobody, 0, 8, &to, 0);
        let ends = |driver: &mut Driver<soft_nic::dma::Host>| {
            let mut ends = Vec::new();
            while let Some(cqe) = driver.poll_send(a) {
                let failed = cqe.opcode() == Some(CqeOpcode::RequesterError);
                let bytes = if failed { 0 } else { cqe.byte_count() };
                ends.push((cqe.wqe_counter(), failed.then(|| syndrome(&cqe)).flatten(), bytes));
            }
            ends
        };
        for request in [&nop, &good, &nop, &bad, &nop, &good, &nop] {
            driver.lay(a, request);
        }
        driver.ring_doorbell(a).settle();
        let (refused, flushed) = (Some(CqeSyndrome::LocalProtection), Some(CqeSyndrome::WrFlush));
        let wanted = [
            (0, None, 0),
            (1, None, 8),
            (2, None, 0),
            (3, refused, 0),
            (4, flushed, 0),
            (5, flushed, 0),
            (6, flushed, 0),
        ];
        assert_eq!(ends(&mut driver), wanted, "{service:?}");
        if service == ServiceType::Uc {
            let again =
                ModifyQp { state: QpState::Rts.number(), mask: AttrMask::STATE.0, ..ModifyQp::default() };
            driver.modify(a, &again).expect("an unreliable queue goes on from SQE");
            driver.lay(a, &nop).lay(a, &good).lay(a, &nop).ring_doorbell(a).settle();
            assert_eq!(ends(&mut driver), [(7, None, 0), (8, None, 8), (9, None, 0)]);
        }
    }
}

#[test]
fn unsignalled_requests_complete_silently() {
    let mut driver = Driver::new(Setup::new("unsignalled"));
    let (a, _) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    let write = WorkRequest::write(&from, 0, 8, &to, 0);
    for _ in 0..9 {
        driver.lay(a, &write.clone().unsignalled());
    }
    driver.lay(a, &write).ring_doorbell(a).settle();
    let cqe = driver.poll_send(a).expect("the last one's completion");
    assert_eq!(cqe.wqe_counter(), 9);
    assert_eq!(opcode_of(driver.poll_send(a)), None);
    assert_eq!(driver.counters().completed(SendOpcode::RdmaWrite), 10);
}

#[test]
fn regions_may_have_addresses_of_their_own() {
    let mut driver = Driver::new(Setup::new("iova"));
    let (a, _) = driver.pair(QpShape::default());
    let from = driver.region(4096, ALL);
    let block = soft_nic::testing::block(8192);
    let to = driver.register(&block, 8192, 0x10_0000_0000, ALL).expect("registered");
    let bytes = from.fill(0, 100, 9);
    driver.post(a, &WorkRequest::write(&from, 0, 100, &to, 4090)).settle();
    assert_eq!(opcode_of(driver.poll_send(a)), Some((CqeOpcode::Requester, 100)));
    assert_eq!(block.bytes(4090, 100), bytes);
}

#[test]
fn rings_wrap_at_their_end_and_indices_at_16_bits() {
    let mut driver = Driver::new(Setup::new("wrap"));
    // 16 blocks and WQEs of 1 to 5 blocks: each shape comes to lie across the end.
    let (a, b) = driver.pair(QpShape { sq_blocks: 16, rq_entries: 4, ..QpShape::default() });
    let to = driver.region(4096, ALL);
    let mut wqes = 0u64;
    let mut blocks = 0u64;
    while wqes < 70_000 {
        let len = [4, 60, 100, 170, 240][wqes as usize % 5];
        let bytes: Vec<u8> = (0..len).map(|i| (i as u64 + wqes) as u8).collect();
        let request =
            WorkRequest::new(SendOpcode::SendImm).inline(&bytes).immediate((wqes as u32).to_be_bytes());
        driver.post_receive(b, &[to.pointer(0, 4096)]);
        let before = driver.qp(a).posted;
        driver.post(a, &request);
        blocks += u64::from(driver.qp(a).posted.wrapping_sub(before));
        while driver.poll_send(a).map(|cqe| assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester))).is_none() {
            driver.poll();
        }
        let cqe = driver.poll_receive(b).expect("it was acknowledged, so it arrived");
        assert_eq!(cqe.immediate(), (wqes as u32).to_be_bytes());
        assert_eq!(cqe.wqe_counter(), wqes as u16, "the receive index wraps too");
        assert_eq!(to.block.bytes(0, len), bytes);
        wqes += 1;
    }
    assert!(blocks > 2 << 16, "{blocks}");
}

#[test]
fn small_payloads_go_into_the_cqe_where_the_queue_asks_for_it() {
    let flags = UAR_PAGE | SCATTER_CQE;
    for (name, cqe_size, inlined, in_buffer) in [("64", 64, 32, 33), ("128", 128, 64, 65)] {
        let mut driver = Driver::new(Setup::new(&format!("scatter-{name}")));
        let cq = |driver: &mut Driver<_>| driver.create_cq(CqShape { cqe_size, ..CqShape::default() });
        let (send_cq, recv_cq) = (Some(cq(&mut driver)), Some(cq(&mut driver)));
        let shape = QpShape { mlx5_flags: flags, signal_all: true, send_cq, recv_cq, ..QpShape::default() };
        let (a, b) = driver.pair(shape);
        let (from, to) = (driver.region(4096, ALL), driver.region(4096, ALL));
        let untouched = vec![0u8; 128];
        for len in [1, 8, 32, inlined, in_buffer] {
            let what = format!("{cqe_size}-byte CQEs, {len} bytes");
            let bytes = from.fill(0, len as usize, len as u8);
            let carried = len <= inlined;
            to.block.write(0, &untouched);
            driver
                .post_receive(b, &[to.pointer(0, 4096)])
                .post(a, &WorkRequest::send(&from, 0, len))
                .settle();
            let cqe = driver.poll_receive(b).expect("a receive completion");
            assert_eq!(cqe.byte_count(), len, "{what}");
            let payload = cqe.inline_payload().expect("a place that holds it").map(<[u8]>::to_vec);
            assert_eq!(payload, carried.then(|| bytes.clone()), "{what}");
            let buffer = if carried { &untouched[..len as usize] } else { &bytes };
            assert_eq!(to.block.bytes(0, len as usize), buffer, "{what}");
            driver.poll_send(a).expect("a send completion");
            // The same for a READ, which the requester's CQE carries.
            driver.post(a, &WorkRequest::read(&to, 200, len, &from, 0)).settle();
            let cqe = driver.poll_send(a).expect("a READ completion");
            let payload = cqe.inline_payload().expect("a place that holds it").map(<[u8]>::to_vec);
            assert_eq!(payload, carried.then(|| bytes.clone()), "READ, {what}");
            let buffer = if carried { &untouched[..len as usize] } else { &bytes };
            assert_eq!(to.block.bytes(200, len as usize), buffer, "READ, {what}");
            to.block.write(200, &untouched);
        }
        to.block.write(64, &5u64.to_ne_bytes());
        driver.post(a, &WorkRequest::fetch_add(&to, 200, (&to, 64), 1)).settle();
        let cqe = driver.poll_send(a).expect("an atomic completion");
        assert_eq!(cqe.inline_payload(), Ok(Some(&5u64.to_ne_bytes()[..])));
        assert_eq!(to.block.bytes(200, 8), untouched[..8]);
    }
}

#[test]
fn small_payloads_stay_in_buffers_where_nothing_was_asked() {
    // flags, sq_sig_all, then: receives carried, READs carried (`configure_requester_scat_cqe`).
    for (name, flags, signal_all, receives, reads) in [
        ("no flag", UAR_PAGE, true, false, false),
        ("flag, not all signalled", UAR_PAGE | SCATTER_CQE, false, true, false),
        ("flag, all signalled", UAR_PAGE | SCATTER_CQE, true, true, true),
        ("flag, allowed", UAR_PAGE | SCATTER_CQE | 1 << 8, false, true, true),
        ("allowed only", UAR_PAGE | 1 << 8, false, false, false),
    ] {
        let mut driver = Driver::new(Setup::new(&format!("scatter-flag-{flags}-{signal_all}")));
        let (a, b) = driver.pair(QpShape { mlx5_flags: flags, signal_all, ..QpShape::default() });
        let (from, to) = (driver.region(64, ALL), driver.region(4096, ALL));
        driver.post_receive(b, &[to.pointer(0, 64)]).post(a, &WorkRequest::send(&from, 0, 8)).settle();
        let carried = |cqe: mlx5_layout::Cqe<Vec<u8>>| cqe.inline_payload() != Ok(None);
        assert_eq!(driver.poll_receive(b).map(carried), Some(receives), "{name}");
        driver.poll_send(a);
        driver.post(a, &WorkRequest::read(&to, 0, 8, &from, 0)).settle();
        assert_eq!(driver.poll_send(a).map(carried), Some(reads), "{name}");
    }
}

#[test]
fn two_processes_reach_each_other() {
    let setup = || Setup::new("two");
    let (mut left, mut right) = (Driver::new(setup()), Driver::new(setup()));
    let (a, b) = (left.create_qp(QpShape::default()), right.create_qp(QpShape::default()));
    let (qpn_a, qpn_b) = (left.qp(a).qpn, right.qp(b).qpn);
    left.bring_up(a, &left.attributes(qpn_b));
    right.bring_up(b, &right.attributes(qpn_a));
    let (from, to) = (left.region(1 << 17, ALL), right.region(1 << 17, ALL));
    for (i, len) in LENGTHS.into_iter().enumerate() {
        let bytes = from.fill(0, len as usize, i as u8);
        left.post(a, &gather(WorkRequest::new(SendOpcode::RdmaWrite).remote(&to, 0), &from, len));
        left.post(a, &gather(WorkRequest::new(SendOpcode::RdmaRead).remote(&to, 0), &from, len));
        for _ in 0..50 {
            left.poll();
            right.poll();
        }
        assert_eq!(to.block.bytes(0, len as usize), bytes, "{len} bytes");
        for _ in 0..2 {
            assert_eq!(opcode_of(left.poll_send(a)).map(|c| c.0), Some(CqeOpcode::Requester), "{len} bytes");
        }
    }
}

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    let setup = || Setup::new("fence");
    let (mut left, mut right) = (Driver::new(setup()), Driver::new(setup()));
    let (a, b) = (left.create_qp(QpShape::default()), right.create_qp(QpShape::default()));
    let (qpn_a, qpn_b) = (left.qp(a).qpn, right.qp(b).qpn);
    left.bring_up(a, &left.attributes(qpn_b));
    right.bring_up(b, &right.attributes(qpn_a));
    let (near, far) = (left.region(64, ALL), right.region(64, ALL));
    far.block.write(0, &[1; 8]);
    near.block.write(8, &[2; 8]);
    // Without the fence the WRITE could overtake the READ's answer and the READ could see it.
    let write = WorkRequest { fence: true, ..WorkRequest::write(&near, 8, 8, &far, 0) };
    left.lay(a, &WorkRequest::read(&near, 0, 8, &far, 0)).lay(a, &write).ring_doorbell(a).poll();
    // The peer attaches to the channel, which has nothing in it yet.
    right.poll();
    for _ in 0..10 {
        left.poll();
    }
    assert_eq!(left.counters().messages_sent, 1, "the WRITE is held while the READ is not answered");
    for _ in 0..50 {
        right.poll();
        left.poll();
    }
    assert_eq!((near.block.bytes(0, 8), far.block.bytes(0, 8)), (vec![1; 8], vec![2; 8]));
    assert_eq!(left.counters().messages_sent, 2);
}
