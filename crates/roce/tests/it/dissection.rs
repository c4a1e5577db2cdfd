//! What we read of each packet against the captures' own dissection, line by line and as text.
//!
//! Another program wrote the lines when the captures were made; the connection manager's are tshark's,
//! compared elsewhere.

use std::fmt::Write;

use roce::testing::frame::Frame;
use roce::wire::ipv4::DONT_FRAGMENT;
use roce::wire::{Extended, Gid, IpHeader, Operation, Position, Service, Syndrome};

use crate::pcap::{packets, text};

fn address(gid: Gid) -> String {
    match gid.ipv4() {
        Some([a, b, c, d]) => format!("{a}.{b}.{c}.{d}"),
        None => gid
            .0
            .chunks(2)
            .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
            .collect::<Vec<_>>()
            .join(":"),
    }
}

fn kind(frame: &Frame<'_>) -> String {
    let opcode = frame.packet.bth.opcode;
    let kind = opcode.kind();
    let position = match kind.position() {
        Position::First => "FIRST",
        Position::Middle => "MIDDLE",
        Position::Last => "LAST",
        Position::Only => "ONLY",
    };
    let name = match kind.operation() {
        Operation::Send => format!("SEND_{position}"),
        Operation::Write => format!("WRITE_{position}"),
        Operation::ReadRequest => "READ_REQ".into(),
        Operation::ReadResponse => format!("READ_RESP_{position}"),
        Operation::Acknowledge => "ACK".into(),
        Operation::AtomicAcknowledge => "ATOMIC_ACK".into(),
        Operation::CompareSwap => "CMP_SWAP".into(),
        Operation::FetchAdd => "FETCH_ADD".into(),
    };
    let tail = match frame.packet.extended {
        Extended::Ieth(_) => "_INV",
        _ if kind.has_immediate() => "_IMM",
        _ => "",
    };
    let service = match opcode.service() {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
    };
    format!("{service} {:<17}", format!("{name}{tail}"))
}

fn line(number: usize, frame: &Frame<'_>) -> String {
    let (bth, extended) = (&frame.packet.bth, &frame.packet.extended);
    let mut line = format!(
        "{number:4} {} -> qp 0x{:06x} psn 0x{:06x} {} se={} a={} pad={} payload={}",
        address(frame.ip.source()),
        bth.dst_qpn,
        bth.psn.value(),
        kind(frame),
        u8::from(bth.solicited),
        u8::from(bth.ack_requested),
        bth.pad,
        frame.packet.payload.len(),
    );
    if let Some(deth) = extended.deth() {
        write!(line, " DETH qkey=0x{:08x} srcqp=0x{:x}", deth.qkey, deth.src_qpn).unwrap();
    }
    if let Some(reth) = extended.reth() {
        write!(line, " RETH va=0x{:x} rkey=0x{:08x} len={}", reth.va, reth.rkey, reth.dma_bytes).unwrap();
    }
    if let Extended::Atomic(atomic) = extended {
        write!(line, " AtomicETH va=0x{:x} rkey=0x{:08x}", atomic.va, atomic.rkey).unwrap();
        write!(line, " swap/add=0x{:x} cmp=0x{:x}", atomic.swap_add, atomic.compare).unwrap();
    }
    if let Some(aeth) = extended.aeth() {
        let (what, low5) = match aeth.syndrome {
            Syndrome::Ack { credits } => ("ACK", credits),
            Syndrome::RnrNak { timer } => ("RNR-NAK", timer),
            Syndrome::Nak { code } => ("NAK", code),
            Syndrome::Reserved { byte } => ("reserved", byte),
        };
        write!(line, " AETH {what} low5={low5} msn={}", aeth.msn).unwrap();
    }
    if let Some(imm) = extended.immediate() {
        write!(line, " imm=0x{:08x}", u32::from_be_bytes(imm.imm)).unwrap();
    }
    match extended {
        Extended::AethAtomicAck(_, ack) => write!(line, " orig=0x{:x}", ack.original).unwrap(),
        Extended::Ieth(ieth) => write!(line, " inv_rkey=0x{:08x}", ieth.rkey).unwrap(),
        _ => {}
    }
    write!(line, " icrc={:08x} ok", frame.icrc).unwrap();
    line
}

#[test]
fn every_field_is_what_another_dissector_saw() {
    let mut compared = 0;
    for name in ["rxe-rc", "rxe-rc-ipv6", "rxe-rc-mtu4096", "rxe-rc-loss", "rxe-ud-uc", "rxe-userpeer"] {
        let packets = packets(name);
        let text = text(&format!("{name}.txt"));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("--")).collect();
        assert_eq!(lines.len(), packets.len(), "{name}");
        for (index, (bytes, want)) in packets.iter().zip(lines).enumerate() {
            let frame = Frame::decode(bytes).unwrap();
            assert_eq!(line(index + 1, &frame), want.trim_end(), "{name}");
            // Beside the lines: what the README says of all packets alike.
            let bth = frame.packet.bth;
            let by_hand = address(frame.ip.source()) == "10.9.0.254";
            assert_eq!(
                (bth.pkey, bth.migrated, frame.udp.checksum),
                (0xffff, by_hand, 0),
                "{name} {}",
                index + 1
            );
            if let IpHeader::V4(ip) = frame.ip {
                assert_eq!((ip.fragment, ip.ttl), (DONT_FRAGMENT, 64), "{name} {}", index + 1);
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 643 - 126);
}
