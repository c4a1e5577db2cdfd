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
        ("IPv4", 0, 0x46, WireError::Ipv4HeaderWords { words: 6 }),
        ("UDP", 23, 0xb8, WireError::NotRoce { port: 4792 }),
        ("UDP length", 25, 0x21, WireError::Length { what: "the UDP header", says: 33, have: 32 }),
        ("BTH", 28, 0x15, WireError::UnknownOpcode { opcode: 0x15 }),
        ("ICRC", 51, 0xb9, WireError::Icrc { found: 0xb9f4_551b, computed: 0xb8f4_551b }),
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
    assert_eq!(builder.append_to(&mut out), Err(WireError::Oversized { bytes: 5000 }));
    builder.packet.payload = &[0; 70_000];
    assert!(matches!(builder.append_to(&mut out), Err(WireError::Length { .. })));
    assert_eq!(out, [1, 2, 3]);
}
