//! Golden WQEs from rings that libmlx5 44 wrote (lkey and rkey 0x15a, QP 0x40), read and written again.

use super::*;
use crate::testing::{SendWqeBuilder, WqeTooLong};

/// mlx5dv setter `mlx5dv_set_ctrl_seg`: WRITE with immediate 42, WQE 0x0102 of QP 0xa7, 3 units, CQE wanted.
const WRITE_IMM_CTRL: [u8; 16] =
    [0x00, 0x01, 0x02, 0x09, 0x00, 0x00, 0xa7, 0x03, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x2a];

/// mlx5dv setter `mlx5dv_set_data_seg`: 0x1000 bytes at 0x7f0011223344, lkey 0xdeadbeef.
const DATA: [u8; 16] =
    [0x00, 0x00, 0x10, 0x00, 0xde, 0xad, 0xbe, 0xef, 0x00, 0x00, 0x7f, 0x00, 0x11, 0x22, 0x33, 0x44];

/// mlx5dv setter `mlx5dv_set_dgram_seg`: argument 1 is the 64-bit access key, so the Q_Key is in word two.
const DATAGRAM_SETTER: [u8; 48] = [
    0x00, 0x00, 0x00, 0x00, 0x11, 0x11, 0x11, 0x11, 0x80, 0xab, 0xcd, 0xef, 0x13, 0x05, 0x00, 0x12, //
    0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x09, 0x20, 0x40, 0xc0, 0x01, 0x23, 0x45, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x0a, 0x00, 0x00, 0x02,
];

/// libmlx5 44: WRITE_IMM of 32 + 16 bytes, immediate 42, signalled and solicited, at block 1.
const WRITE_IMM: [u8; 64] = [
    0x00, 0x00, 0x01, 0x09, 0x00, 0x00, 0x40, 0x04, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x00, 0x2a, //
    0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x60, 0x00, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x50, 0x00, //
    0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x50, 0x40,
];

/// libmlx5 44: SEND of the bytes 0xc0..0xe0 inline, at block 2.
const SEND_INLINE: [u8; 64] = [
    0x00, 0x00, 0x02, 0x0a, 0x00, 0x00, 0x40, 0x04, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, //
    0x80, 0x00, 0x00, 0x20, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, //
    0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xdb, //
    0xdc, 0xdd, 0xde, 0xdf, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

/// libmlx5 44: RDMA READ of 16 bytes with `IBV_SEND_FENCE`, at block 4.
const READ_FENCED: [u8; 48] = [
    0x00, 0x00, 0x04, 0x10, 0x00, 0x00, 0x40, 0x03, 0x00, 0x00, 0x00, 0x88, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x60, 0x00, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x50, 0x40,
];

/// libmlx5 44: compare 0x1122334455667788, swap 0x99aabbccddeeff00, at block 5.
const COMPARE_SWAP: [u8; 64] = [
    0x00, 0x00, 0x05, 0x11, 0x00, 0x00, 0x40, 0x04, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x60, 0x00, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x00, 0x00, //
    0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, //
    0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x50, 0x00,
];

/// libmlx5 44: SEND that invalidates rkey 0xa1b2c3d4, at block 9.
const SEND_INVALIDATE: [u8; 32] = [
    0x00, 0x00, 0x09, 0x01, 0x00, 0x00, 0x40, 0x02, 0x00, 0x00, 0x00, 0x08, 0xa1, 0xb2, 0xc3, 0xd4, //
    0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x50, 0x00,
];

/// libmlx5 44, InfiniBand link layer: UD SEND to QP 0x42, LID 0x12, service level 3, with a GRH.
const UD_SEND: [u8; 80] = [
    0x00, 0x00, 0x00, 0x0a, 0x00, 0x00, 0x42, 0x05, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, //
    0x11, 0x11, 0x11, 0x11, 0x00, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x42, 0x03, 0x00, 0x00, 0x12, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x40, 0x40, 0x01, 0x23, 0x45, //
    0xfe, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x42, 0xa1, 0x03, 0x00, 0x00, 0x00, 0x01, //
    0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x50, 0x00,
];

const REMOTE: RemoteAddress = RemoteAddress { va: 0x55fd_8fc0_6000, rkey: 0x15a };

fn control(opcode: SendOpcode, wqe_index: u16) -> Control {
    Control { opcode: opcode.to_u8(), wqe_index, qpn: 0x40, fm_ce_se: 0x08, ..Control::default() }
}

fn pointers(body: &Body<'_>) -> Vec<DataPointer> {
    body.data
        .map(|segment| match segment.unwrap() {
            DataSegment::Pointer(pointer) => pointer,
            DataSegment::Inline(bytes) => panic!("{} bytes inline", bytes.len()),
        })
        .collect()
}

#[test]
fn the_setters_bytes_have_these_fields_and_come_back() {
    let control = Control::parse(&WRITE_IMM_CTRL).unwrap();
    let expected = Control {
        opmod: 0,
        wqe_index: 0x0102,
        opcode: 0x09,
        qpn: 0xa7,
        ds: 3,
        signature: 0,
        stream: 0,
        fm_ce_se: 0x08,
        immediate: [0, 0, 0, 42],
    };
    assert_eq!(control, expected);
    assert_eq!(control.emit(), WRITE_IMM_CTRL);

    let data = DataPointer::parse(&DATA).unwrap();
    assert_eq!(data, DataPointer { byte_count: 0x1000, lkey: 0xdead_beef, va: 0x7f00_1122_3344 });
    assert_eq!(data.emit(), DATA);

    let vector = AddressVector::parse(&DATAGRAM_SETTER).unwrap();
    assert_eq!((vector.destination_qpn, vector.extended, vector.rate_service_level), (0xab_cdef, true, 0x13));
    assert_eq!((vector.path_bits, vector.lid_or_udp_port, vector.mac), (5, 0x12, [2, 0, 0, 0, 0, 9]));
    assert_eq!((vector.traffic_class, vector.hop_limit, vector.flow_label), (0x20, 64, 0x1_2345));
    assert_eq!((vector.grh, vector.gid[10..].to_vec()), (true, vec![0xff, 0xff, 10, 0, 0, 2]));
}

#[test]
fn a_write_with_immediate_names_remote_memory_and_two_pieces() {
    let wqe = SendWqe::new(&WRITE_IMM).unwrap();
    let (control, body) = (wqe.control(), wqe.body(Addressing::Connected).unwrap());
    assert_eq!(
        (control.send_opcode(), control.wqe_index, control.qpn),
        (Some(SendOpcode::RdmaWriteImm), 1, 0x40)
    );
    assert_eq!((control.is_signalled(), control.is_solicited(), control.fm_ce_se), (true, true, 0x0a));
    assert_eq!((control.immediate, control.blocks()), ([0, 0, 0, 42], 1));
    assert_eq!((body.remote, body.atomic.swap_add, body.datagram()), (REMOTE, 0, None));
    let piece = |byte_count, va| DataPointer { byte_count, lkey: 0x15a, va };
    assert_eq!(pointers(&body), [piece(32, 0x55fd_8fc0_5000), piece(16, 0x55fd_8fc0_5040)]);
}

#[test]
fn inline_bytes_come_without_their_padding() {
    let wqe = SendWqe::new(&SEND_INLINE).unwrap();
    let body = wqe.body(Addressing::Connected).unwrap();
    let payload: Vec<u8> = (0xc0..0xe0).collect();
    assert_eq!(body.data.collect::<Vec<_>>(), [Ok(DataSegment::Inline(&payload))]);
    assert_eq!((body.opcode, body.remote), (SendOpcode::Send, RemoteAddress { va: 0, rkey: 0 }));
}

#[test]
fn a_fenced_read_waits_for_everything() {
    let wqe = SendWqe::new(&READ_FENCED).unwrap();
    assert_eq!(wqe.control().fm_ce_se & 0xe0, FENCE);
    assert_eq!(wqe.body(Addressing::Connected).unwrap().remote, REMOTE);
}

#[test]
fn an_atomic_has_its_operands_before_its_answer_s_place() {
    let wqe = SendWqe::new(&COMPARE_SWAP).unwrap();
    let body = wqe.body(Addressing::Connected).unwrap();
    let operands = Atomic { swap_add: 0x99aa_bbcc_ddee_ff00, compare: 0x1122_3344_5566_7788 };
    assert_eq!((body.remote, body.atomic), (REMOTE, operands));
    assert_eq!(pointers(&body), [DataPointer { byte_count: 8, lkey: 0x15a, va: 0x55fd_8fc0_5000 }]);
}

#[test]
fn a_datagram_has_its_address_before_its_data() {
    let wqe = SendWqe::new(&UD_SEND).unwrap();
    let body = wqe.body(Addressing::Datagram).unwrap();
    let vector = AddressVector {
        qkey: 0x1111_1111,
        destination_qpn: 0x42,
        extended: true,
        rate_service_level: 3,
        lid_or_udp_port: 0x12,
        traffic_class: 0x20,
        hop_limit: 64,
        grh: true,
        flow_label: 0x1_2345,
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0c, 0x42, 0xa1, 0x03, 0, 0, 0, 1],
        ..AddressVector::default()
    };
    assert_eq!(body.datagram(), Some(vector));
    assert_eq!(pointers(&body).len(), 1);
    assert_eq!(wqe.control().blocks(), 2);
    assert_eq!(vector.emit(), UD_SEND[16..64]);
}

#[test]
fn the_builder_writes_the_library_s_bytes() {
    let (lkey, va) = (0x15a, 0x55fd_8fc0_5000);
    let payload: Vec<u8> = (0xc0..0xe0).collect();
    let vector = AddressVector::parse(&UD_SEND[16..]).unwrap();
    for (name, built, bytes) in [
        (
            "write with immediate",
            SendWqeBuilder::new(Control {
                fm_ce_se: 0x0a,
                immediate: [0, 0, 0, 42],
                ..control(SendOpcode::RdmaWriteImm, 1)
            })
            .remote(REMOTE.va, REMOTE.rkey)
            .pointer(32, lkey, va)
            .pointer(16, lkey, va + 0x40),
            &WRITE_IMM[..],
        ),
        ("inline send", SendWqeBuilder::new(control(SendOpcode::Send, 2)).inline(&payload), &SEND_INLINE),
        (
            "fenced read",
            SendWqeBuilder::new(Control { fm_ce_se: 0x88, ..control(SendOpcode::RdmaRead, 4) })
                .remote(REMOTE.va, REMOTE.rkey)
                .pointer(16, lkey, va + 0x40),
            &READ_FENCED,
        ),
        (
            "compare and swap",
            SendWqeBuilder::new(control(SendOpcode::AtomicCompareSwap, 5))
                .remote(REMOTE.va, REMOTE.rkey)
                .atomic(0x99aa_bbcc_ddee_ff00, 0x1122_3344_5566_7788)
                .pointer(8, lkey, va),
            &COMPARE_SWAP,
        ),
        (
            "send with invalidate",
            SendWqeBuilder::new(Control {
                immediate: 0xa1b2_c3d4u32.to_be_bytes(),
                ..control(SendOpcode::SendInvalidate, 9)
            })
            .pointer(32, lkey, va),
            &SEND_INVALIDATE,
        ),
        (
            "datagram",
            SendWqeBuilder::new(Control { qpn: 0x42, ..control(SendOpcode::Send, 0) })
                .datagram(&vector)
                .pointer(32, lkey, va),
            &UD_SEND,
        ),
    ] {
        assert_eq!(built.finish().unwrap(), bytes, "{name}");
    }
}

#[test]
fn one_byte_short_is_an_error() {
    let short = |what, need, have| LayoutError::TooShort { what, need, have };
    assert_eq!(Control::parse(&WRITE_IMM_CTRL[..15]).unwrap_err(), short("a control segment", 16, 15));
    assert_eq!(RemoteAddress::parse(&[0; 15]).unwrap_err(), short("a remote-address segment", 16, 15));
    assert_eq!(Atomic::parse(&[0; 15]).unwrap_err(), short("an atomic segment", 16, 15));
    assert_eq!(DataPointer::parse(&DATA[..15]).unwrap_err(), short("a data segment", 16, 15));
    assert_eq!(AddressVector::parse(&[0; 47]).unwrap_err(), short("an address vector", 48, 47));
    assert_eq!(SendWqe::new(&WRITE_IMM[..63]).unwrap_err(), short("a send WQE", 64, 63));
}

#[test]
fn a_wqe_that_ends_inside_a_segment_is_an_error() {
    let with_ds = |bytes: &[u8], ds| {
        let mut wqe = bytes.to_vec();
        wqe[7] = ds;
        wqe
    };
    let early = |ds, segment| Err(LayoutError::WqeEndsEarly { ds, segment });
    assert_eq!(SendWqe::new(with_ds(&WRITE_IMM, 0)).map(|_| ()), early(0, "control segment"));
    // The two upper bits of the byte are not part of the length: 0xc0 is 0 too.
    assert_eq!(SendWqe::new(with_ds(&WRITE_IMM, 0xc0)).map(|_| ()), early(0xc0, "control segment"));
    for (name, bytes, ds, addressing, segment) in [
        ("write without address", &WRITE_IMM[..], 1, Addressing::Connected, "remote-address segment"),
        ("atomic without operands", &COMPARE_SWAP[..], 2, Addressing::Connected, "atomic segment"),
        ("datagram with a short address", &UD_SEND[..], 3, Addressing::Datagram, "address vector"),
    ] {
        let wqe = SendWqe::new(with_ds(bytes, ds)).unwrap();
        assert_eq!(wqe.body(addressing).map(|_| ()), early(ds, segment), "{name}");
    }
    let wqe = SendWqe::new(with_ds(&SEND_INLINE, 3)).unwrap();
    let mut data = wqe.body(Addressing::Connected).unwrap().data;
    assert_eq!(data.next(), Some(Err(LayoutError::WqeEndsEarly { ds: 3, segment: "inline data" })));
    assert_eq!(data.next(), None);
}

#[test]
fn opcodes_that_are_not_described_are_named() {
    for (opcode, addressing) in [
        (0x07, Addressing::Connected),
        (0x25, Addressing::Connected),
        (0x14, Addressing::Connected),
        (0x08, Addressing::Datagram),
    ] {
        let mut bytes = WRITE_IMM;
        bytes[3] = opcode;
        let refused = SendWqe::new(&bytes).unwrap().body(addressing).map(|_| ());
        assert_eq!(refused, Err(LayoutError::UnknownSendOpcode { opcode, opmod: 0 }), "{opcode:#x}");
    }
}

#[test]
fn a_nop_carries_nothing_whatever_its_length() {
    let mut bytes = WRITE_IMM;
    bytes[3] = 0;
    assert_eq!(SendWqe::new(&bytes).unwrap().body(Addressing::Connected).unwrap().data.count(), 0);
}

#[test]
fn lengths_round_up_to_blocks_and_end_at_63_units() {
    for (ds, expected) in [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (63, 16)] {
        assert_eq!(blocks(ds), expected, "ds {ds}");
    }
    let longest = SendWqeBuilder::new(control(SendOpcode::Send, 0)).inline(&[7; 62 * 16 - 4]);
    assert_eq!(longest.clone().finish().unwrap().len(), 63 * 16);
    assert_eq!(longest.raw(&[0]).finish(), Err(WqeTooLong { units: 64 }));
}

#[test]
fn no_wqe_makes_the_reader_panic() {
    // Every opcode and length over three fills, so that inline headers and pointers appear everywhere.
    for fill in [0x00, 0x80, 0xff] {
        for opcode in 0..=u8::MAX {
            for ds in 0..=u8::MAX {
                let mut bytes = [fill; MAX_WQE_BYTES];
                bytes[3] = opcode;
                bytes[7] = ds;
                let Ok(wqe) = SendWqe::new(&bytes) else { continue };
                for addressing in [Addressing::Connected, Addressing::Datagram] {
                    if let Ok(body) = wqe.body(addressing) {
                        assert!(body.data.count() <= usize::from(MAX_DS));
                    }
                }
            }
        }
    }
}
