//! Packets of one process to another over loopback addresses, and datagrams that are none.

use std::net::UdpSocket;
use std::time::Instant;

use mlx5_device::memory::{Fault, Segment};
use roce::packet::{Aeth, AtomicEth, Content, Deth, Reth, Syndrome, Trailer};
use roce::{Fragment, NakCode, Position, Psn, ServiceType};

use super::*;
use crate::os::testing::DEADLINE;

/// A loopback address of its own for each test of each process.
fn place(test: u8) -> IpAddr {
    let process = std::process::id().to_be_bytes();
    IpAddr::from([127, 128 + test + 8 * (process[1] & 7), process[2], process[3]])
}

fn packet(slot: u8, content: Content, length: u32) -> Packet {
    Packet {
        service: ServiceType::Rc,
        dst_qpn: mlx5_device::first_qpn(slot) | 0x40,
        psn: Psn::new(77),
        ack_requested: true,
        solicited: false,
        deth: Deth::default(),
        content,
        payload: Fragment { offset: 0, length },
    }
}

fn send(length: u32) -> Packet {
    packet(2, Content::Send { position: Position::Only, trailer: Trailer::None }, length)
}

/// Payload of every packet here.
const BYTES: [u8; 4096] = {
    let mut bytes = [0; 4096];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = (at + 1) as u8;
        at += 1;
    }
    bytes
};

impl Wire {
    /// Behaves as if the kernel had no room for anything, or has some again.
    pub fn stall(&mut self, stalled: bool) {
        self.ports.iter_mut().for_each(|port| port.stall(stalled));
    }
}

fn write(wire: &mut Wire, from: IpAddr, to: IpAddr, packet: &Packet) -> Result<usize, Unsent> {
    wire.send(from, to, packet, Icrc::Right, Payload::Inline(&BYTES), &Host::new().unwrap())
}

/// Packets that arrive: `count` or more, fewer after the deadline.
fn take(wire: &mut Wire, count: usize) -> Vec<(IpAddr, IpAddr, Packet, Vec<u8>)> {
    let (mut got, begun) = (Vec::new(), Instant::now());
    while got.len() < count && begun.elapsed() < DEADLINE {
        wire.poll(
            Now(0),
            |_, _| None,
            |a| {
                got.push((a.from, a.at, a.packet, a.payload.to_vec()));
                // Every third is the last of its round.
                !got.len().is_multiple_of(3)
            },
        );
    }
    got
}

fn come_as_they_were_sent(ours: IpAddr, theirs: IpAddr) {
    let (mut here, mut there) =
        (Wire::open((1, 0), &[ours]).unwrap(), Wire::open((2, 0), &[theirs]).unwrap());
    let aeth = Aeth { syndrome: Syndrome::Ack, msn: 5 };
    let nak = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 6 };
    let reth = Reth { va: 0x1234_5678_9abc, rkey: 9, dma_bytes: 4096 };
    let atomic = AtomicEth { va: 8, rkey: 7, swap_add: 6, compare: 5 };
    let mut sent = Vec::new();
    for length in [0, 1, 2, 3, 4, 5, 64, 1023, 4096] {
        sent.push(send(length));
    }
    for content in [
        Content::Write { position: Position::First, reth, trailer: Trailer::None },
        Content::ReadResponse { position: Position::Middle, aeth: None },
    ] {
        sent.push(packet(2, content, 1024));
    }
    for content in [
        Content::ReadRequest(reth),
        Content::FetchAdd(atomic),
        Content::CompareSwap(atomic),
        Content::Acknowledge(aeth),
        Content::Acknowledge(nak),
        Content::AtomicAcknowledge { aeth, old: 99 },
    ] {
        sent.push(packet(2, content, 0));
    }
    let mut bytes = 0;
    for packet in &sent {
        bytes += write(&mut here, ours, theirs, packet).unwrap() as u64;
    }
    here.flush();
    let got = take(&mut there, sent.len());
    assert_eq!(got.len(), sent.len(), "{:?}", there.counters());
    for ((from, at, packet, payload), wanted) in got.iter().zip(&sent) {
        assert_eq!((*from, *at, packet), (ours, theirs, wanted));
        assert!(*payload == BYTES[..wanted.payload.length as usize]);
    }
    let count = sent.len() as u64;
    let (out, into) = (here.counters(), there.counters());
    assert_eq!(out.packets_sent, count);
    assert_eq!(
        into,
        WireCounters { packets_received: count, received_bytes: bytes, ports_owned: 1, ..Default::default() }
    );
}

#[test]
fn an_owner_that_takes_one_packet_a_round_hands_on_what_comes_behind_it() {
    let (ours, shared) = (place(6), place(7));
    let open = |slot, address| Wire::open((slot, 9), &[address]).unwrap();
    let (mut sender, mut owner, mut other) = (open(1, ours), open(2, shared), open(3, shared));
    let mut own = Vec::new();
    for psn in 0..5 {
        own.push(Packet { psn: Psn::new(psn), ..send(64) });
    }
    let theirs = Packet { dst_qpn: mlx5_device::first_qpn(3) | 0x40, ..send(64) };
    for packet in own.iter().chain([&theirs]) {
        write(&mut sender, ours, shared, packet).unwrap();
    }
    sender.flush();
    let port = other.own_ports().next().unwrap().1;
    let (mut taken, begun) = (Vec::new(), Instant::now());
    let mut round = |owner: &mut Wire| {
        let before = taken.len();
        owner.poll(
            Now(0),
            |_, _| Some(port),
            |arrived| {
                taken.push(arrived.packet);
                false
            },
        );
        assert!(taken.len() <= before + 1, "one a round");
        assert!(begun.elapsed() < DEADLINE, "{:?}", owner.counters());
        taken.len()
    };
    while owner.counters().handed_on == 0 {
        assert!(round(&mut owner) < own.len(), "what is for another process waits for all of them");
    }
    assert_eq!(take(&mut other, 1)[0].2, theirs);
    while round(&mut owner) < own.len() {}
    assert_eq!(taken, own);
}

#[test]
fn packets_come_as_they_were_sent() {
    let IpAddr::V4(ours) = place(0) else { unreachable!() };
    come_as_they_were_sent(ours.into(), place(1));
}

#[test]
fn packets_come_as_they_were_sent_over_ipv6() {
    let loopback: IpAddr = "::1".parse().unwrap();
    measure::need!(UdpSocket::bind((loopback, 0)).is_ok(), "IPv6 on the loopback interface");
    // One address has one port 4791, so sender and receiver are the same here.
    let mut both = Wire::open((2, 0), &[loopback]).unwrap();
    write(&mut both, loopback, loopback, &send(1000)).unwrap();
    both.flush();
    let got = take(&mut both, 1);
    assert_eq!(got.first().map(|a| (a.0, a.1, a.2)), Some((loopback, loopback, send(1000))));
}

#[test]
fn what_is_no_packet_is_dropped_and_counted_by_its_kind() {
    let (ours, theirs) = (place(2), place(3));
    let (mut here, mut there) =
        (Wire::open((1, 0), &[ours]).unwrap(), Wire::open((2, 0), &[theirs]).unwrap());
    write(&mut here, ours, theirs, &send(64)).unwrap();
    // The bytes of a good packet, as they would go out, and what becomes of them when one thing is wrong.
    let good = here.ports[0].waiting_packet().to_vec();
    let port = here.own_ports().next().unwrap().1;
    drop(here);
    let socket = UdpSocket::bind((ours, port)).unwrap();
    let mut expected = WireCounters { ports_owned: 1, ..WireCounters::default() };
    let mut deliver = |name: &str, bytes: &[u8], count: fn(&mut WireCounters)| {
        socket.send_to(bytes, (theirs, 4791)).unwrap();
        count(&mut expected);
        let begun = Instant::now();
        while there.counters() != expected && begun.elapsed() < DEADLINE {
            there.poll(Now(0), |_, _| None, |_| true);
        }
        assert_eq!(there.counters(), expected, "{name}");
    };
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    deliver("as it is", &good, |c| (c.packets_received, c.received_bytes) = (1, 80));
    deliver("a bit of the payload", &changed(40, 1), |c| c.icrc_errors += 1);
    deliver("a bit of the ICRC", &changed(79, good[79] ^ 0x40), |c| c.icrc_errors += 1);
    deliver("four bytes fewer", &good[..good.len() - 4], |c| c.icrc_errors += 1);
    deliver("an opcode that is none", &changed(0, 0x1f), |c| c.malformed += 1);
    deliver("one byte fewer", &good[..good.len() - 1], |c| c.malformed += 1);
    // Another partition, in a packet that is whole otherwise.
    let mut other_partition = changed(3, 0x01);
    let udp = Udp::new(port, udp_bytes(other_partition.len()));
    let ip = IpHeader::between(gid_of(ours), gid_of(theirs), udp.bytes).unwrap();
    let (covered, place) = other_partition.split_at_mut(76);
    place.copy_from_slice(&icrc::stored(icrc::compute(&ip, &udp, covered).unwrap()));
    deliver("another partition", &other_partition, |c| c.pkey_violations += 1);
    // Congestion notifications: whole, corrupt, and cut off.
    let mut cnp = vec![0; 28];
    cnp[..12].copy_from_slice(&good[..12]);
    (cnp[0], cnp[1]) = (CNP_OPCODE, 0);
    let udp = Udp::new(port, udp_bytes(cnp.len() + ICRC_BYTES));
    let ip = IpHeader::between(gid_of(ours), gid_of(theirs), udp.bytes).unwrap();
    let icrc = icrc::stored(icrc::compute(&ip, &udp, &cnp).unwrap());
    cnp.extend(icrc);
    deliver("a congestion notification", &cnp, |c| c.cnps += 1);
    cnp[31] ^= 0x40;
    deliver("a corrupt one", &cnp, |c| c.icrc_errors += 1);
    deliver("a short one", &cnp[..28], |c| c.malformed += 1);
    deliver("as it is, again", &good, |c| (c.packets_received, c.received_bytes) = (2, 160));
}

#[test]
fn what_cannot_be_read_or_written_is_not_sent() {
    let ours = place(4);
    let mut wire = Wire::open((1, 0), &[ours]).unwrap();
    let fault = {
        let payload = Payload::Segments(&[Segment { addr: 3, len: 64 }]);
        wire.send(ours, ours, &send(64), Icrc::Right, payload, &Host::new().unwrap())
    };
    assert!(matches!(fault, Err(Unsent::Fault(Fault { addr: 3 }))));
    assert!(matches!(write(&mut wire, place(5), ours, &send(0)), Err(Unsent::Unreachable)));
    assert!(matches!(write(&mut wire, ours, "::1".parse().unwrap(), &send(0)), Err(Unsent::Unreachable)));
    assert_eq!((wire.counters().packets_sent, wire.ports[0].waiting_bytes()), (0, 0));
    let mut sent = 0;
    while wire.has_room(ours) {
        write(&mut wire, ours, ours, &send(4096)).unwrap();
        sent += 1;
    }
    assert!(matches!(write(&mut wire, ours, ours, &send(1)), Err(Unsent::Full)));
    assert_eq!((sent, wire.counters().packets_sent), (WAITING_BYTES.div_ceil(4112) as u64, sent));
}

#[test]
fn a_packet_is_captured_when_it_leaves() {
    let ours = place(5);
    let mut wire = Wire::open((1, 0), &[ours]).unwrap();
    let (capture, mut captured) = Capture::begin("wire", Now(0), 0, 0);
    wire.capture = Some(capture);
    let mut blocks = Vec::new();
    captured.take(&mut blocks);
    // Three packets that the kernel cuts from one piece, the last one shorter.
    for length in [64, 64, 8] {
        write(&mut wire, ours, ours, &send(length)).unwrap();
    }
    captured.take(&mut blocks);
    assert!(blocks.is_empty(), "written is not sent");
    wire.flush();
    let mut identifications = Vec::new();
    let mut rest = Vec::new();
    captured.take(&mut rest);
    let mut rest = &rest[..];
    while let Ok(Some((kind, block))) = crate::link::capture::pcapng::first_block(rest) {
        assert_eq!(kind, crate::link::capture::pcapng::BlockKind::Packet);
        // Block header 8, interface, time, lengths 20; Ethernet 14; identification at 4 of the IPv4 header.
        identifications.push(u16::from_be_bytes([block[28 + 14 + 4], block[28 + 14 + 5]]));
        rest = &rest[block.len()..];
    }
    assert_eq!(identifications, [0, 1, 2]);
}
