//! Packets with each set of headers, and each way to be malformed.

use super::*;
use crate::wire::{PacketKind, Psn, Service, Syndrome};

/// The UDP payload of `rxe-rc.pcap`, packet 1: SEND Only of 5 bytes, 3 of padding.
const SEND_5: [u8; 24] = [
    0x04, 0x30, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x00, 0x01, 0x00, 0x01, 0x08, 0x0f, 0x16, 0x1d, 0,
    0, 0, 0x1b, 0x55, 0xf4, 0xb8,
];

/// One value of each set of headers.
fn extended(set: HeaderSet) -> Extended {
    let (imm, aeth) = (ImmDt { imm: [1, 2, 3, 4] }, Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 5 });
    let reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, dma_bytes: 9 };
    let deth = Deth { qkey: 0x1111_1111, reserved: 0, src_qpn: 0x12 };
    match set {
        HeaderSet::Nothing => Extended::Nothing,
        HeaderSet::Imm => Extended::Imm(imm),
        HeaderSet::Ieth => Extended::Ieth(Ieth { rkey: 0x0800_016b }),
        HeaderSet::Reth => Extended::Reth(reth),
        HeaderSet::RethImm => Extended::RethImm(reth, imm),
        HeaderSet::Aeth => Extended::Aeth(aeth),
        HeaderSet::AethAtomicAck => Extended::AethAtomicAck(aeth, AtomicAckEth { original: 0x0102_0304 }),
        HeaderSet::Atomic => Extended::Atomic(AtomicEth { va: 8, rkey: 7, swap_add: 6, compare: 5 }),
        HeaderSet::Deth => Extended::Deth(deth),
        HeaderSet::DethImm => Extended::DethImm(deth, imm),
    }
}

fn opcode(service: Service, kind: PacketKind) -> PacketOpcode {
    PacketOpcode::new(service, kind).unwrap()
}

/// What [`Packet::append_to`] writes, with an ICRC that is not looked at here.
fn written(packet: &Packet<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    packet.append_to(&mut out).unwrap();
    out.extend_from_slice(&[0xee; 4]);
    out
}

#[test]
fn golden_bytes_are_read_and_written() {
    let packet = Packet::decode(&SEND_5).unwrap();
    assert_eq!((packet.payload, packet.bth.pad, packet.pad_bytes()), (&[1, 8, 15, 22, 29][..], 3, 3));
    assert_eq!((packet.header_bytes(), packet.wire_bytes()), (12, 24));
    let mut out = Vec::new();
    packet.append_to(&mut out).unwrap();
    assert_eq!(out, SEND_5[..20]);
}

#[test]
fn every_opcode_is_read_as_it_was_written() {
    let (bytes, mut seen) = ([0x5a; 4096], 0);
    for code in 0..=u8::MAX {
        let Ok(opcode) = PacketOpcode::from_u8(code) else { continue };
        seen += 1;
        let lengths: &[usize] =
            if opcode.kind().carries_payload() { &[0, 1, 2, 3, 4, 1023, 4096] } else { &[0] };
        for &length in lengths {
            let bth = Bth { solicited: true, ..Bth::new(opcode, 0x12_3456, Psn::new(0xff_fffe)) };
            let packet = Packet { bth, extended: extended(opcode.headers()), payload: &bytes[..length] };
            let written = written(&packet);
            assert_eq!(written.len(), packet.wire_bytes(), "{code:#04x} {length}");
            let pad = (4 - length % 4) as u8 % 4;
            let read = Packet::decode(&written).unwrap();
            assert_eq!(read, Packet { bth: Bth { pad, ..bth }, ..packet }, "{code:#04x} {length}");
        }
    }
    assert_eq!(seen, 23 + 12 + 2);
}

#[test]
fn each_malformed_packet_has_its_error() {
    let ack = Packet {
        bth: Bth::new(opcode(Service::Rc, PacketKind::Acknowledge), 1, Psn::new(1)),
        extended: extended(HeaderSet::Aeth),
        payload: &[],
    };
    let write = Packet {
        bth: Bth::new(opcode(Service::Rc, PacketKind::WriteOnlyImm), 1, Psn::new(1)),
        extended: extended(HeaderSet::RethImm),
        payload: &[7; 8],
    };
    let (ack, write) = (written(&ack), written(&write));
    let with = |bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        bytes
    };
    let truncated = |what, need, have| WireError::Truncated { what, need, have };
    let mut longer = ack.clone();
    longer.extend_from_slice(&[0; 4]);
    for (name, bytes, error) in [
        ("nothing", vec![], truncated("an ICRC", 4, 0)),
        ("no BTH", SEND_5[..15].to_vec(), truncated("a BTH", 12, 11)),
        ("no AETH", ack[..16].to_vec(), truncated("an AETH", 4, 0)),
        ("half a RETH", write[..24].to_vec(), truncated("a RETH", 16, 8)),
        ("no ImmDt", write[..32].to_vec(), truncated("an ImmDt", 4, 0)),
        ("odd length", SEND_5[..23].to_vec(), WireError::Misaligned { bytes: 23 }),
        ("opcode", with(&SEND_5, 0, 0x15), WireError::UnknownOpcode { opcode: 0x15 }),
        ("version", with(&SEND_5, 1, 0x3f), WireError::TransportVersion { version: 15 }),
        ("padding alone", SEND_5[..16].to_vec(), WireError::Pad { pad: 3, have: 0 }),
        ("payload on an ACK", longer, WireError::UnexpectedPayload { opcode: 0x11, bytes: 4 }),
    ] {
        assert_eq!(Packet::decode(&bytes), Err(error), "{name}");
    }
    let mut jumbo = SEND_5[..12].to_vec();
    jumbo[1] = 0;
    jumbo.resize(12 + 4100 + 4, 0);
    assert_eq!(Packet::decode(&jumbo), Err(WireError::Oversized { bytes: 4100 }));
}

#[test]
fn a_packet_that_cannot_be_is_not_written() {
    let send = opcode(Service::Rc, PacketKind::SendOnly);
    let bth = Bth::new(send, 1, Psn::new(1));
    let good = Packet { bth, extended: Extended::Nothing, payload: &[1; 8] };
    let read = Bth { opcode: opcode(Service::Rc, PacketKind::ReadRequest), ..bth };
    let (wants, has) = (HeaderSet::Nothing, HeaderSet::Aeth);
    for (name, packet, error) in [
        (
            "headers of another opcode",
            Packet { extended: extended(has), ..good },
            WireError::HeadersDisagree { opcode: 0x04, wants, has },
        ),
        (
            "payload on a READ request",
            Packet { bth: read, extended: extended(HeaderSet::Reth), ..good },
            WireError::UnexpectedPayload { opcode: 0x0c, bytes: 8 },
        ),
        ("too long", Packet { payload: &[0; 4097], ..good }, WireError::Oversized { bytes: 4097 }),
    ] {
        let mut out = vec![9];
        assert_eq!(packet.append_to(&mut out), Err(error), "{name}");
        assert_eq!(out, [9], "{name}: nothing was written");
    }
    let short = Err(WireError::Truncated { what: "a packet's headers", need: 12, have: 11 });
    assert_eq!(good.emit_headers(&mut [0; 11]), short);
}
