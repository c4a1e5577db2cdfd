//! Golden CQEs by hand after `struct mlx5_cqe64`: no library writes one. `verbs-ctest` fills the header's
//! struct with such fields in C, and compares.

use super::*;
use crate::CqeSyndrome;

/// A WRITE of QP 0x40, user index 0x12, at block 7 ended well; second lap. By hand after `struct mlx5_cqe64`.
const WRITE_DONE: [u8; 64] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0, 0, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0, 0, 0, 0, 0, 0, 99, 0x08, 0, 0, 0x40, 0, 7, 0, 0x01,
];

/// A datagram of 32 + 40 bytes with immediate 42 from QP 0x99, service level 3, with GRH; solicited. By hand.
const UD_RECEIVED: [u8; 64] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0x05, 0, 0, 0, 0, 0, 0x21, 0x13, 0, 0, 0x99, 0, 0, 0, 0, //
    0, 0, 0, 0x13, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 72, //
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xfe, 0, 0x32,
];

/// Remote access error, vendor syndrome 0x88, for the READ at block 3. By hand after `struct mlx5_err_cqe`.
const READ_REFUSED: [u8; 64] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0, 0, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
    0, 0, 0, 0, 0, 0, 0x88, 0x13, 0x10, 0, 0, 0x40, 0, 3, 0, 0xd0,
];

fn write_done() -> CqeFields {
    CqeFields {
        owner: true,
        user_index: 0x12,
        qpn: 0x40,
        wqe_counter: 7,
        send_opcode: 0x08,
        timestamp: 99,
        ..CqeFields::default()
    }
}

fn ud_received() -> CqeFields {
    CqeFields {
        opcode: CqeOpcode::ResponderSendImm,
        solicited: true,
        user_index: 0x13,
        qpn: 0x41,
        wqe_counter: 0xfffe,
        byte_count: 72,
        immediate: 42u32.to_be_bytes(),
        source_qpn: 0x99,
        source_lid: 0x21,
        service_level: 3,
        grh: true,
        path_bits: 5,
        ..CqeFields::default()
    }
}

fn read_refused() -> CqeFields {
    CqeFields {
        opcode: CqeOpcode::RequesterError,
        user_index: 0x12,
        qpn: 0x40,
        wqe_counter: 3,
        send_opcode: 0x10,
        error: CqeError { syndrome: 0x13, vendor: 0x88, hardware: 0, hardware_type: 0 },
        ..CqeFields::default()
    }
}

#[test]
fn golden_bytes_have_these_fields() {
    let cqe = Cqe::in_slot(&WRITE_DONE).unwrap();
    assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester));
    assert_eq!((cqe.send_opcode(), cqe.qpn(), cqe.user_index(), cqe.wqe_counter()), (8, 0x40, 0x12, 7));
    assert_eq!((cqe.timestamp(), cqe.op_own().owner(), cqe.signature()), (99, true, 0));
    assert_eq!(cqe.inline_payload(), Ok(None));

    let cqe = Cqe::in_slot(&UD_RECEIVED).unwrap();
    assert_eq!(cqe.opcode(), Some(CqeOpcode::ResponderSendImm));
    assert_eq!(
        (cqe.source_qpn(), cqe.service_level(), cqe.has_grh(), cqe.source_lid()),
        (0x99, 3, true, 0x21)
    );
    assert_eq!((cqe.byte_count(), cqe.immediate(), cqe.wqe_counter()), (72, [0, 0, 0, 42], 0xfffe));
    assert_eq!((cqe.path_bits(), cqe.op_own().is_solicited(), cqe.op_own().owner()), (5, true, false));

    let cqe = Cqe::in_slot(&READ_REFUSED).unwrap();
    assert_eq!((cqe.error().known(), cqe.error().vendor), (Some(CqeSyndrome::RemoteAccess), 0x88));
    assert!(cqe.opcode().unwrap().is_error());
}

#[test]
fn fields_give_the_golden_bytes() {
    for (name, fields, bytes) in [
        ("write done", write_done(), WRITE_DONE),
        ("datagram received", ud_received(), UD_RECEIVED),
        ("read refused", read_refused(), READ_REFUSED),
    ] {
        assert_eq!(fields.emit(), bytes, "{name}");
    }
}

#[test]
fn a_large_slot_holds_the_cqe_in_its_second_half() {
    let mut slot = [0xee; 128];
    write_done().emit_slot(None, &mut slot).unwrap();
    assert_eq!(slot[..64], [0xee; 64]);
    assert_eq!(slot[64..], WRITE_DONE);
    assert_eq!(Cqe::in_slot(&slot).unwrap().wqe_counter(), 7);
}

#[test]
fn small_payloads_lie_in_the_slot_with_their_format() {
    for (slot_bytes, len, start, format) in [
        (64, 32, 0, 0x4),
        (64, 1, 0, 0x4),
        (64, 0, 0, 0x4),
        (128, 32, 64, 0x4),
        (128, 33, 0, 0x8),
        (128, 64, 0, 0x8),
    ] {
        let payload: Vec<u8> = (1..=len).collect();
        let fields =
            CqeFields { opcode: CqeOpcode::ResponderSend, byte_count: len.into(), ..CqeFields::default() };
        let mut slot = vec![0; slot_bytes];
        fields.emit_slot(Some(&payload), &mut slot).unwrap();
        let name = format!("{len} bytes in a slot of {slot_bytes}");
        assert_eq!(slot[start..start + payload.len()], payload, "{name}");
        assert_eq!(slot[slot_bytes - 1], 0x20 | format, "{name}");
        assert_eq!(Cqe::in_slot(&slot).unwrap().inline_payload(), Ok(Some(&payload[..])), "{name}");
    }
}

#[test]
fn a_payload_without_room_is_refused() {
    for (slot_bytes, len) in [(64, 33), (128, 65)] {
        let fields = CqeFields { byte_count: len, ..CqeFields::default() };
        let refused = fields.emit_slot(Some(&vec![0; len as usize]), &mut vec![0; slot_bytes]);
        assert_eq!(refused, Err(LayoutError::NotInline { len: len as usize, slot: slot_bytes }));
    }
    let mut lying = [0; 64];
    CqeFields { byte_count: 8, ..CqeFields::default() }.emit_slot(Some(&[0; 8]), &mut lying).unwrap();
    lying[44..48].copy_from_slice(&33u32.to_be_bytes());
    assert_eq!(
        Cqe::in_slot(&lying).unwrap().inline_payload(),
        Err(LayoutError::NotInline { len: 33, slot: 64 })
    );
}

#[test]
fn one_byte_short_is_an_error() {
    for size in [63, 127] {
        assert!(Cqe::in_slot(vec![0; size]).is_err(), "{size}");
        assert!(write_done().emit_slot(None, &mut vec![0; size]).is_err(), "{size}");
    }
}

#[test]
fn a_slot_is_valid_when_its_owner_bit_matches_the_lap() {
    // `get_sw_cqe`: valid when not 15 and owner == !!(index & entries).
    for (op_own, index, valid) in [
        (0xf0, 0, false),
        (0x00, 0, true),
        (0x00, 7, true),
        (0x00, 8, false),
        (0x01, 8, true),
        (0x01, 15, true),
        (0x01, 16, false),
        (0xd1, 8, true),
        (0xf1, 8, false),
    ] {
        assert_eq!(OpOwn(op_own).is_valid(index, 8), valid, "{op_own:#x} at {index}");
    }
}
