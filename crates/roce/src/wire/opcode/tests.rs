//! The opcode table, row by row as in the specification and as seen in the captures.

use super::*;

/// Every opcode: byte, position and headers by the specification's table. Captures have all RC rows but 0x16.
#[test]
fn every_opcode_has_the_row_of_the_specification() {
    use HeaderSet::*;
    use Operation::{
        Acknowledge, AtomicAcknowledge, CompareSwap, FetchAdd, ReadRequest, ReadResponse, Send, Write,
    };
    use Position::*;
    let rc = [
        (0x00, Send, First, Nothing),
        (0x01, Send, Middle, Nothing),
        (0x02, Send, Last, Nothing),
        (0x03, Send, Last, Imm),
        (0x04, Send, Only, Nothing),
        (0x05, Send, Only, Imm),
        (0x06, Write, First, Reth),
        (0x07, Write, Middle, Nothing),
        (0x08, Write, Last, Nothing),
        (0x09, Write, Last, Imm),
        (0x0a, Write, Only, Reth),
        (0x0b, Write, Only, RethImm),
        (0x0c, ReadRequest, Only, Reth),
        (0x0d, ReadResponse, First, Aeth),
        (0x0e, ReadResponse, Middle, Nothing),
        (0x0f, ReadResponse, Last, Aeth),
        (0x10, ReadResponse, Only, Aeth),
        (0x11, Acknowledge, Only, Aeth),
        (0x12, AtomicAcknowledge, Only, AethAtomicAck),
        (0x13, CompareSwap, Only, Atomic),
        (0x14, FetchAdd, Only, Atomic),
        (0x16, Send, Last, Ieth),
        (0x17, Send, Only, Ieth),
    ];
    let uc = rc[..12].iter().map(|&(code, operation, position, headers)| {
        (0x20 | code, Service::Uc, operation, position, headers)
    });
    let ud = [(0x64, Service::Ud, Send, Only, Deth), (0x65, Service::Ud, Send, Only, DethImm)];
    let mut rows: Vec<_> = rc
        .iter()
        .map(|&(code, operation, position, headers)| (code, Service::Rc, operation, position, headers))
        .collect();
    rows.extend(uc);
    rows.extend(ud);
    for (code, service, operation, position, headers) in &rows {
        let opcode = PacketOpcode::from_u8(*code).unwrap();
        let kind = opcode.kind();
        let got = (opcode.to_u8(), opcode.service(), kind.operation(), kind.position(), opcode.headers());
        assert_eq!(got, (*code, *service, *operation, *position, *headers), "{code:#04x}");
    }
    for code in 0..=u8::MAX {
        let known = rows.iter().any(|row| row.0 == code);
        match PacketOpcode::from_u8(code) {
            Ok(_) => assert!(known, "{code:#04x} is in no table"),
            Err(error) => {
                assert!(!known && error == WireError::UnknownOpcode { opcode: code }, "{code:#04x}: {error}");
            }
        }
    }
}

#[test]
fn a_header_set_is_as_long_as_its_headers() {
    use crate::wire::{Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Reth};
    for (set, bytes) in [
        (HeaderSet::Nothing, 0),
        (HeaderSet::Imm, ImmDt::BYTES),
        (HeaderSet::Ieth, Ieth::BYTES),
        (HeaderSet::Reth, Reth::BYTES),
        (HeaderSet::RethImm, Reth::BYTES + ImmDt::BYTES),
        (HeaderSet::Aeth, Aeth::BYTES),
        (HeaderSet::AethAtomicAck, Aeth::BYTES + AtomicAckEth::BYTES),
        (HeaderSet::Atomic, AtomicEth::BYTES),
        (HeaderSet::Deth, Deth::BYTES),
        (HeaderSet::DethImm, Deth::BYTES + ImmDt::BYTES),
    ] {
        assert_eq!(set.bytes(), bytes, "{set:?}");
    }
}

#[test]
fn a_request_packet_is_found_by_what_it_is() {
    for kind in PacketKind::ALL.iter().copied() {
        let headers = PacketOpcode::new(Service::Rc, kind).unwrap().headers();
        assert_eq!(PacketKind::of(kind.operation(), kind.position(), headers), Some(kind));
    }
    for (operation, position, headers) in [
        (Operation::Write, Position::Last, HeaderSet::Ieth),
        (Operation::Write, Position::Middle, HeaderSet::Imm),
        (Operation::Send, Position::First, HeaderSet::Imm),
        (Operation::Send, Position::Middle, HeaderSet::Ieth),
        (Operation::ReadRequest, Position::First, HeaderSet::Reth),
        (Operation::ReadResponse, Position::Middle, HeaderSet::Aeth),
    ] {
        assert_eq!(PacketKind::of(operation, position, headers), None, "{operation:?} {position:?}");
    }
    let with_imm = PacketKind::ALL.iter().filter(|kind| kind.has_immediate());
    assert_eq!(with_imm.map(|kind| *kind as u8).collect::<Vec<_>>(), [0x03, 0x05, 0x09, 0x0b]);
}

#[test]
fn only_packets_with_bytes_to_move_carry_payload() {
    let without: Vec<u8> =
        PacketKind::ALL.iter().filter(|kind| !kind.carries_payload()).map(|kind| *kind as u8).collect();
    assert_eq!(without, [0x0c, 0x11, 0x12, 0x13, 0x14]);
}
