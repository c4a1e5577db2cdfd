//! A NIC whose network is hostile: packets with a right ICRC and everything else arbitrary.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use mlx5_device::commands::*;
use mlx5_layout::SendOpcode;
use roce::wire::icrc;
use roce::wire::packet::{Extended, Packet};
use roce::wire::{
    Aeth, AtomicEth, Bth, Gid, HeaderSet, Ieth, ImmDt, IpHeader, PacketOpcode, Reth, Syndrome, Udp,
};
use roce::{Psn, ServiceType};
use soft_nic::testing::{Driver, QpId, QpShape, Setup, WorkRequest};

use crate::hostile::rng::Rng;
use crate::operations::{ALL, on_the_wire};

/// Packets that are sent; `SOFTNIC_WIRE_PACKETS` asks for another number.
const PACKETS: u32 = 40_000;

/// Bytes of the block whose first third is registered, under its own addresses; guard pages lie before it.
const BLOCK: usize = 3 << 14;
const GRANTED: u64 = 1 << 14;

/// What forged READ responses bring, and nothing else.
const FORGED: u8 = 0xc3;

/// What an attacker knows of a queue: everything.
struct Target {
    qpn: u32,
    rkey: u32,
    address: u64,
}

/// A host that sends arbitrary packets from the address of the peer.
struct Attacker {
    socket: UdpSocket,
    at: Ipv4Addr,
    rng: Rng,
}

impl Attacker {
    /// Any opcode with headers that are nearly right, or not at all.
    fn packet(&mut self, target: &Target, expected: Psn) -> Vec<u8> {
        let rng = &mut self.rng;
        let opcode = loop {
            if let Ok(opcode) = PacketOpcode::from_u8(rng.below(0x80) as u8) {
                break opcode;
            }
        };
        let psn = match rng.below(4) {
            0 => Psn::new(rng.below(1 << 24) as u32),
            1 => expected.plus(rng.below(5) as u32),
            2 => expected.minus(rng.below(5) as u32),
            _ => expected,
        };
        let lengths = [0, 1, 8, 255, 256, 1024, 1023, 4096];
        let dma_bytes = match rng.below(5) {
            0 => rng.below(1 << 32) as u32,
            1 => 1 << 14,
            _ => lengths[rng.below(lengths.len() as u64) as usize],
        };
        let va = match rng.below(5) {
            0 => rng.below(u64::MAX),
            1 => target.address + GRANTED - 4,
            2 => target.address.wrapping_sub(rng.below(4096)),
            _ => target.address + 8 * rng.below(1024),
        };
        let rkey = if rng.below(6) == 0 { rng.below(1 << 32) as u32 } else { target.rkey };
        let reth = Reth { va, rkey, dma_bytes };
        let imm = ImmDt { imm: [1, 2, 3, 4] };
        let aeth = Aeth { syndrome: Syndrome::from_u8(rng.below(256) as u8), msn: rng.below(1 << 24) as u32 };
        let atomic = AtomicEth { va, rkey, swap_add: rng.below(u64::MAX), compare: 0 };
        let deth = roce::wire::Deth { qkey: 0x1111_1111, reserved: 0, src_qpn: rng.below(1 << 24) as u32 };
        let extended = match opcode.headers() {
            HeaderSet::Nothing => Extended::Nothing,
            HeaderSet::Imm => Extended::Imm(imm),
            HeaderSet::Ieth => Extended::Ieth(Ieth { rkey }),
            HeaderSet::Reth => Extended::Reth(reth),
            HeaderSet::RethImm => Extended::RethImm(reth, imm),
            HeaderSet::Aeth => Extended::Aeth(aeth),
            HeaderSet::AethAtomicAck => {
                Extended::AethAtomicAck(aeth, roce::wire::AtomicAckEth { original: 7 })
            }
            HeaderSet::Atomic => Extended::Atomic(atomic),
            HeaderSet::Deth => Extended::Deth(deth),
            HeaderSet::DethImm => Extended::DethImm(deth, imm),
        };
        let length =
            if opcode.kind().carries_payload() { lengths[rng.below(8) as usize] as usize } else { 0 };
        let payload = vec![0xa5; length];
        let qpn = if rng.below(10) == 0 { rng.below(1 << 24) as u32 } else { target.qpn };
        let bth = Bth {
            ack_requested: rng.below(2) == 0,
            solicited: rng.below(2) == 0,
            ..Bth::new(opcode, qpn, psn)
        };
        let mut bytes = Vec::new();
        Packet { bth, extended, payload: &payload }.append_to(&mut bytes).expect("well-formed");
        if rng.below(20) == 0 {
            // Somewhere in it, anything; or cut off.
            let at = rng.below(bytes.len() as u64) as usize;
            if rng.below(2) == 0 { bytes[at] = rng.below(256) as u8 } else { bytes.truncate(at) }
        }
        bytes
    }

    /// An answer to a waiting requester: ACKs and NAKs of every kind, READ responses of any length and
    /// position, atomic answers; with PSNs nearly right, or from nowhere; for a wrong queue, or cut off.
    fn answer(&mut self, qpn: u32, next: Psn) -> Vec<u8> {
        let rng = &mut self.rng;
        // ACK twice, the atomic's, and READ responses first, middle, last and only.
        let opcode = rng.pick(&[0x11, 0x11, 0x12, 0x0d, 0x0e, 0x0f, 0x10]);
        let opcode = PacketOpcode::from_u8(opcode).expect("opcodes of RC");
        let psn = match rng.below(6) {
            0 => Psn::new(rng.below(1 << 24) as u32),
            1 => next.plus(rng.below(5) as u32),
            _ => next.minus(1 + rng.below(12) as u32),
        };
        // An acknowledgement with credits, an RNR NAK, one of the five NAKs, or anything.
        let syndrome = match rng.below(8) {
            0..4 => rng.below(32),
            4 => 0x20 | rng.below(32),
            5 => 0x60 | rng.below(5),
            _ => rng.below(256),
        };
        let aeth = Aeth { syndrome: Syndrome::from_u8(syndrome as u8), msn: rng.below(1 << 24) as u32 };
        let extended = match opcode.headers() {
            HeaderSet::Aeth => Extended::Aeth(aeth),
            HeaderSet::AethAtomicAck => {
                Extended::AethAtomicAck(aeth, roce::wire::AtomicAckEth { original: 0x5a5a })
            }
            _ => Extended::Nothing,
        };
        let carries = opcode.kind().carries_payload();
        let length = if carries { rng.pick(&[0, 1, 8, 952, 1023, 1024, 1024, 1024, 4096]) } else { 0 };
        let payload = vec![FORGED; length];
        let qpn = if rng.one_in(20) { rng.below(1 << 24) as u32 } else { qpn };
        let mut bytes = Vec::new();
        let packet = Packet { bth: Bth::new(opcode, qpn, psn), extended, payload: &payload };
        packet.append_to(&mut bytes).expect("well-formed");
        if rng.one_in(20) {
            // In the middle of the AETH, or anywhere.
            bytes.truncate(if rng.one_in(2) { 14 } else { rng.below(bytes.len() as u64) as usize });
        }
        bytes
    }

    fn send(&mut self, bytes: Vec<u8>) -> bool {
        deliver(&self.socket, self.at, bytes)
    }
}

/// Sends a packet, from BTH on, with the ICRC that belongs to it.
fn deliver(from: &UdpSocket, to: Ipv4Addr, mut bytes: Vec<u8>) -> bool {
    let source = from.local_addr().expect("bound");
    let IpAddr::V4(address) = source.ip() else { panic!("{source} is not IPv4") };
    let [near, far] = [address, to].map(|address| Gid::from_ipv4(address.octets()));
    let length = (Udp::BYTES + bytes.len() + icrc::ICRC_BYTES) as u16;
    let udp = Udp::new(source.port(), length);
    let ip = IpHeader::between(near, far, length).expect("IPv4");
    let icrc = icrc::compute(&ip, &udp, &bytes).unwrap_or(0);
    bytes.extend(icrc::stored(icrc));
    // A socket that is full loses it, as a network does: it does not count.
    from.send_to(&bytes, (IpAddr::V4(to), 4791)).is_ok()
}

fn query(driver: &Driver<soft_nic::dma::Host>, qp: QpId) -> mlx5_device::command::ModifyQp {
    driver.nic.query_qp(driver.context, driver.qp(qp).handle).expect("the QP exists").attributes
}

fn packets() -> u32 {
    let asked = std::env::var("SOFTNIC_WIRE_PACKETS").ok();
    asked.map_or(PACKETS, |text| text.parse().expect("SOFTNIC_WIRE_PACKETS is a number"))
}

/// One end on the wire, one on its fabric's shared memory: neither takes the other's messages; none is kept.
#[test]
fn ends_that_chose_different_ways_do_not_meet() {
    let wired = on_the_wire("two-ways");
    let (address, fabric) = (wired.config.ipv4, wired.fabric.clone());
    let mut shared = Setup::new("two-ways").with(|c| {
        c.link_layer = soft_nic::config::LinkLayer::Roce;
        c.path = soft_nic::config::LinkPath::Shm;
        c.ipv4 = address;
    });
    shared.fabric = fabric;
    let (mut one, mut other) = (Driver::new(wired), Driver::new(shared));
    let (a, b) = (one.create_qp(QpShape::default()), other.create_qp(QpShape::default()));
    let (qpn_a, qpn_b) = (one.qp(a).qpn, other.qp(b).qpn);
    one.bring_up(a, &one.attributes(qpn_b));
    other.bring_up(b, &other.attributes(qpn_a));
    let (granted, own) = (one.region(4096, ALL), other.region(4096, ALL));
    for opcode in [SendOpcode::RdmaWrite, SendOpcode::RdmaRead] {
        let request = WorkRequest::new(opcode).pointer(&own, 0, 4096).remote(&granted, 0);
        other.post(b, &request);
        for _ in 0..200 {
            other.poll();
            one.poll();
        }
    }
    let dropped = one.counters().fields().find(|(name, _)| *name == "dropped_peer").map(|(_, count)| count);
    assert!(dropped.is_some_and(|count| count >= 2), "{dropped:?}");
    let received = one.counters().fields().find(|(name, _)| *name == "messages_received");
    assert_eq!(received, Some(("messages_received", 0)));
    assert!(other.poll_send(b).is_none(), "nobody answered");
}

#[test]
fn a_connected_queue_takes_packets_from_its_peers_address_alone_and_a_datagram_comes_from_anywhere() {
    // WRITE Only of RC and of UC, SEND Only of UD.
    for (service, opcode) in [(ServiceType::Rc, 0x0a), (ServiceType::Uc, 0x2a), (ServiceType::Ud, 0x64)] {
        let setup = on_the_wire(&format!("source-{service:?}"));
        let at = setup.config.nic().ipv4;
        let mut driver = Driver::new(setup);
        let (_, b) = driver.pair(QpShape { service, ..QpShape::default() });
        let region = driver.region(128, ALL);
        driver.post_receive(b, &[region.pointer(24, 104)]).settle();
        let elsewhere = Ipv4Addr::from_bits(at.to_bits() ^ 1 << 21);
        for (source, is_peer) in [(elsewhere, false), (at, true)] {
            let socket = UdpSocket::bind((source, 0)).expect("a loopback address");
            let extended = match service {
                ServiceType::Ud => {
                    Extended::Deth(roce::wire::Deth { qkey: 0x1111_1111, reserved: 0, src_qpn: 7 })
                }
                _ => Extended::Reth(Reth { va: region.address + 64, rkey: region.rkey, dma_bytes: 8 }),
            };
            let opcode = PacketOpcode::from_u8(opcode).expect("an opcode");
            let bth = Bth::new(opcode, driver.qp(b).qpn, Psn::new(0x1000));
            let mut bytes = Vec::new();
            Packet { bth, extended, payload: &[0xa5; 8] }.append_to(&mut bytes).expect("well-formed");
            region.block.write(0, &[0; 128]);
            let dropped = driver.counters().dropped_address;
            assert!(deliver(&socket, at, bytes), "the socket takes one packet");
            driver.settle();
            let wanted = is_peer || service == ServiceType::Ud;
            let what = format!("{service:?} from {source}, {at} is the peer");
            assert_eq!(region.block.bytes(64, 8) == [0xa5; 8], wanted, "{what}");
            assert_eq!(driver.counters().dropped_address - dropped, u64::from(!wanted), "{what}");
            if service == ServiceType::Ud {
                assert_eq!(driver.poll_receive(b).map(|cqe| cqe.byte_count()), Some(48), "{what}");
                driver.post_receive(b, &[region.pointer(24, 104)]);
            }
        }
    }
}

#[test]
fn a_hostile_network_reaches_nothing_that_was_not_granted() {
    let setup: Setup<_> = on_the_wire("hostile-wire");
    let at = setup.config.nic().ipv4;
    let mut driver = Driver::new(setup);
    let socket = UdpSocket::bind((at, 0)).expect("a loopback address");
    let mut attacker = Attacker { socket, at, rng: Rng::new(7) };
    let block = soft_nic::testing::block(BLOCK);
    let region = driver.register(&block, GRANTED, block.address() + 7 * GRANTED, ALL).expect("memory");
    // Where the requester wants its answers.
    let own_block = soft_nic::testing::block(BLOCK);
    let own = driver.register(&own_block, GRANTED, own_block.address(), ALL).expect("memory");
    own_block.write(0, &[0x5a; BLOCK]);
    let outside = |block: &soft_nic::testing::Block| {
        block.bytes(GRANTED as usize, BLOCK - GRANTED as usize).iter().all(|byte| *byte == 0x5a)
    };
    block.write(0, &[0x5a; BLOCK]);
    let (a, b) = driver.pair(QpShape::default());
    let (mut sent, mut connections, mut waiting) = (0, 1u32, 0u32);
    let mut believed = 0;
    while sent < packets() {
        // An error ends a connection: the next one begins.
        if [a, b].iter().any(|qp| query(&driver, *qp).state != 3) {
            driver.reset(a);
            driver.reset(b);
            driver.connect(a, b);
            connections += 1;
            waiting = 0;
        }
        for _ in 0..4 {
            driver.post_receive(b, &[region.pointer(0, 4096)]);
        }
        let target = Target { qpn: driver.qp(b).qpn, rkey: region.rkey, address: region.address };
        for turn in 0..16 {
            if turn % 4 == 0 && waiting < 16 {
                // Up to the last byte of what is its own; a fourth byte too many would be seen.
                let end = GRANTED;
                let request = match attacker.rng.below(4) {
                    0 => WorkRequest::read(&own, end - 3000, 3000, &region, 0),
                    1 => WorkRequest::read(&own, end - 8, 8, &region, 0),
                    2 => WorkRequest::fetch_add(&own, end - 8, (&region, 0), 1),
                    _ => WorkRequest::write(&own, 0, 3000, &region, 0),
                };
                driver.post(a, &request);
                waiting += 1;
            }
            let packet = if attacker.rng.one_in(2) {
                let expected = Psn::new(query(&driver, b).rq_psn);
                attacker.packet(&target, expected)
            } else {
                let (qpn, next) = (driver.qp(a).qpn, Psn::new(query(&driver, a).sq_psn));
                attacker.answer(qpn, next)
            };
            sent += u32::from(attacker.send(packet));
            driver.poll();
        }
        while driver.poll_receive(b).is_some() {}
        while driver.poll_send(a).is_some() {
            waiting = waiting.saturating_sub(1);
        }
        assert!(outside(&block), "after {sent} packets: bytes outside the region were written");
        believed += u32::from(own_block.bytes(0, GRANTED as usize).contains(&FORGED));
        assert!(outside(&own_block), "after {sent} packets: bytes outside the requester's were written");
    }
    driver.advance(100_000_000);
    assert!(outside(&block) && outside(&own_block));
    assert!(believed > 0, "no forged READ response was ever where one is taken");
    assert!(block.bytes(0, GRANTED as usize).contains(&0xa5), "nothing was ever written");
    println!("TABLE hostile wire: {sent} packets of the attacker, {connections} connections");
    check_counters(&mut driver, sent);
}

/// What it reached, and that every drop was counted.
fn check_counters(driver: &mut Driver<soft_nic::dma::Host>, sent: u32) {
    let wire = driver.nic.link().wire_counters().expect("a wire");
    let mads = driver.nic.link().mad_router().counters();
    let device: BTreeMap<_, _> = driver.counters().fields().filter(|(_, count)| *count > 0).collect();
    println!("TABLE   {} packets of ours", wire.packets_sent);
    let of_device = |name: &str| device.get(name).copied().unwrap_or(0);
    let dropped = ["unknown_qp", "qp_state", "address", "peer", "qkey", "transport", "replies", "port_down"]
        .map(|why| (why, of_device(&format!("dropped_{why}"))));
    let before = [
        ("for nobody's slot", wire.undeliverable + wire.handed_on),
        ("wrong ICRC", wire.icrc_errors),
        ("malformed", wire.malformed),
        ("partition", wire.pkey_violations),
        ("reserved code", wire.reserved),
        ("congestion", wire.cnps),
        ("of QP1", mads.handed_on + mads.refused + mads.unclaimed + mads.malformed + mads.full),
    ];
    for (why, count) in before.into_iter().chain(dropped) {
        println!("TABLE   dropped, {why:<24} {count:>9}");
    }
    for name in ["packets_taken", "messages_received", "duplicates", "naks_sent", "rnr_naks_received"]
        .into_iter()
        .chain(
            device
                .keys()
                .copied()
                .filter(|name| name.starts_with("error_") || name.starts_with("completed_")),
        )
    {
        println!("TABLE   {name:<33} {:>9}", of_device(name));
    }
    // Every packet is in one counter: taken, or dropped for one reason.
    let all = u64::from(sent) + wire.packets_sent - wire.unsent;
    let sum = |of: &[(&str, u64)]| of.iter().map(|(_, count)| count).sum::<u64>();
    assert_eq!(sum(&before) + sum(&dropped) + of_device("packets_taken"), all, "{wire:?} {device:?}");
    // The requester met all of it: its requests ended well, and in every way that an answer can end them.
    for name in
        ["completed_read", "completed_fetch_add", "completed_write", "error_remote_access", "retransmissions"]
    {
        assert!(of_device(name) > 0, "{name}: {device:?}");
    }
    for name in [
        "messages_received",
        "naks_sent",
        "duplicates",
        "dropped_unknown_qp",
        "dropped_transport",
        "dropped_peer",
        "dropped_replies",
    ] {
        let count = device.get(name).copied().unwrap_or(0);
        assert!(count >= u64::from(sent) / 2_000, "{name}: {count}");
    }
    assert!(wire.malformed >= u64::from(sent) / 2_000, "{wire:?}");
}
