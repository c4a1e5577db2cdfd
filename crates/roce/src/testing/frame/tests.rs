//! Whole packets, read and written.

use super::*;
use crate::wire::{Ipv4, Psn};

/// `rxe-rc.pcap`, packet 1, from its IP header on.
const SEND_5: [u8; 52] = [
    0x45, 0x00, 0x00, 0x34, 0x4a, 0x5c, 0x40, 0x00, 0x40, 0x11, 0xdc, 0x48, 0x0a, 0x09, 0x00, 0x02, 0x0a,
    0x09, 0x00, 0x01, 0xc1, 0x21, 0x12, 0xb7, 0x00, 0x20, 0x00, 0x00, 0x04, 0x30, 0xff, 0xff, 0x00, 0x00,
    0x00, 0x11, 0x80, 0x00, 0x01, 0x00, 0x01, 0x08, 0x0f, 0x16, 0x1d, 0x00, 0x00, 0x00, 0x1b, 0x55, 0xf4,
    0xb8,
];

#[test]
fn a_packet_is_read_and_written_byte_for_byte() {
    let frame = Frame::decode(&SEND_5).unwrap();
    assert_eq!(frame.icrc, 0xb8f4_551b);
    assert_eq!((frame.packet.bth.psn, frame.packet.payload), (Psn::new(0x100), &[1, 8, 15, 22, 29][..]));
    let mut out = vec![0xaa];
    assert_eq!(frame.builder().append_to(&mut out), Ok(0xb8f4_551b));
    assert_eq!((out[0], &out[1..]), (0xaa, &SEND_5[..]));
}

#[test]
fn lengths_are_worked_out_and_padding_of_ethernet_is_ignored() {
    let mut builder = Frame::decode(&SEND_5).unwrap().builder();
    let IpHeader::V4(ip) = &mut builder.ip else { panic!() };
    *ip = Ipv4 { total_bytes: 0xffff, ..*ip };
    let mut out = Vec::new();
    builder.append_to(&mut out).unwrap();
    assert_eq!(out, SEND_5);
    out.extend_from_slice(&[0x77; 8]);
    assert_eq!(Frame::decode(&out), Frame::decode(&SEND_5));
}

#[test]
fn each_layer_refuses_in_its_own_words() {
    for (name, at, value, error) in [
        ("IPv4", 0, 0x46, FrameError::Ipv4HeaderWords { words: 6 }),
        ("UDP", 23, 0xb8, FrameError::NotRoce { port: 4792 }),
        ("UDP length", 25, 0x21, FrameError::Length { what: "the UDP header", says: 33, have: 32 }),
        ("BTH", 28, 0x15, WireError::UnknownOpcode { opcode: 0x15 }.into()),
        ("ICRC", 51, 0xb9, WireError::Icrc { found: 0xb9f4_551b, computed: 0xb8f4_551b }.into()),
    ] {
        let mut packet = SEND_5;
        packet[at] = value;
        assert_eq!(Frame::decode(&packet), Err(error), "{name}");
    }
    for length in 0..SEND_5.len() {
        assert!(Frame::decode(&SEND_5[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn a_packet_that_cannot_be_leaves_the_buffer_as_it_was() {
    let mut builder = Frame::decode(&SEND_5).unwrap().builder();
    builder.packet.payload = &[0; 5000];
    let mut out = vec![1, 2, 3];
    assert_eq!(builder.append_to(&mut out), Err(WireError::Oversized { bytes: 5000 }.into()));
    builder.packet.payload = &[0; 70_000];
    assert!(matches!(builder.append_to(&mut out), Err(FrameError::Length { .. })));
    assert_eq!(out, [1, 2, 3]);
}

fn v6(last: u8) -> Gid {
    Gid([0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}

#[test]
fn a_header_between_two_ports_is_read_back() {
    let v4 = |last| Gid::from_ipv4([10, 9, 0, last]);
    for (source, destination, header_bytes) in [(v4(2), v4(1), 20), (v6(2), v6(1), 40)] {
        let header = IpHeader::between(source, destination, 32).unwrap();
        assert_eq!((header.source(), header.destination()), (source, destination));
        assert_eq!((header.header_bytes(), header.payload_bytes()), (header_bytes, 32));
        let mut out = Vec::new();
        header.append_to(&mut out);
        assert_eq!(out.len(), header_bytes);
        out.resize(80, 0);
        let read = IpHeader::decode(&out).unwrap();
        assert_eq!((read.source(), read.destination(), read.payload_bytes()), (source, destination, 32));
        let longer = header.with_payload_bytes(40).unwrap();
        assert_eq!((longer.payload_bytes(), longer.destination()), (40, destination));
        assert!(header.with_payload_bytes(65536).is_err());
    }
    assert_eq!(IpHeader::between(v4(2), v6(1), 32), None, "two families");
    assert_eq!(IpHeader::between(v4(2), v4(1), u16::MAX), None, "longer than IPv4 can say");
}

#[test]
fn nothing_and_another_version_are_refused() {
    assert!(matches!(IpHeader::decode(&[]), Err(FrameError::Wire(WireError::Truncated { .. }))));
    assert_eq!(IpHeader::decode(&[0x54; 60]), Err(WireError::IpVersion { version: 5 }.into()));
}

#[test]
fn each_wrong_ipv4_header_has_its_error() {
    for (name, at, value, error) in [
        ("options", 0, 0x46, FrameError::Ipv4HeaderWords { words: 6 }),
        ("total length", 3, 53, FrameError::Length { what: "the IPv4 header", says: 53, have: 52 }),
        ("short total", 3, 19, FrameError::Length { what: "the IPv4 header", says: 19, have: 52 }),
        ("more fragments", 6, 0x20, FrameError::Fragment { field: 0x2000 }),
        ("offset", 7, 0x01, FrameError::Fragment { field: 0x4001 }),
        ("protocol", 9, 6, FrameError::NotUdp { protocol: 6 }),
        ("checksum", 11, 0x49, FrameError::Ipv4Checksum { found: 0xdc49, computed: 0xdc48 }),
    ] {
        let mut packet = SEND_5;
        packet[at] = value;
        assert_eq!(IpHeader::decode(&packet), Err(error), "{name}");
    }
    // Without DF it is none of a fragment.
    let mut whole = SEND_5;
    (whole[6], whole[10], whole[11]) = (0, 0x1c, 0x49);
    assert!(IpHeader::decode(&whole).is_ok());
    let short = WireError::Truncated { what: "an IPv4 header", need: 20, have: 19 };
    assert_eq!(IpHeader::decode(&SEND_5[..19]), Err(short.into()));
}

#[test]
fn each_wrong_ipv6_header_has_its_error() {
    let mut golden = Vec::new();
    IpHeader::between(v6(2), v6(1), 32).unwrap().append_to(&mut golden);
    golden.resize(72, 0);
    for (name, at, value, error) in [
        ("length", 5, 33, FrameError::Length { what: "the IPv6 header", says: 33, have: 32 }),
        ("next header", 6, 44, FrameError::NotUdp { protocol: 44 }),
    ] {
        let mut packet = golden.clone();
        packet[at] = value;
        assert_eq!(IpHeader::decode(&packet), Err(error), "{name}");
    }
    let short = WireError::Truncated { what: "an IPv6 header", need: 40, have: 39 };
    assert_eq!(IpHeader::decode(&golden[..39]), Err(short.into()));
}

#[test]
fn each_wrong_udp_header_has_its_error() {
    let mut datagram = SEND_5[20..].to_vec();
    let short = FrameError::Length { what: "the UDP header", says: 32, have: 31 };
    assert_eq!(Udp::decode(&datagram[..31]), Err(short));
    let none = WireError::Truncated { what: "a UDP header", need: 8, have: 7 };
    assert_eq!(Udp::decode(&datagram[..7]), Err(none.into()));
    datagram[3] = 0xb8;
    assert_eq!(Udp::decode(&datagram), Err(FrameError::NotRoce { port: 4792 }));
}

#[test]
fn source_ports_are_those_of_the_captures() {
    // The REQ in packet 1 of `rxe-cm.pcap`, and the traffic from packet 4 on.
    assert_eq!(port_of_flow_label(0x6_634c), 0xe355);
    assert_eq!(port_of_flow_label(0xf_ffff), udp::DYNAMIC_PORTS | 0x3fff ^ 0x3f);
}
