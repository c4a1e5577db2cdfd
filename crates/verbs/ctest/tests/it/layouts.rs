//! What `mlx5-layout` emits is what the header's structs hold after C filled them with the same values.

use mlx5_layout::cqe::{Cqe, CqeError, ScatterFormat};
use mlx5_layout::doorbell::{Arm, ArmFor, CONSUMER_WORD, RECEIVE_WORD, SEND_WORD};
use mlx5_layout::recv_wqe::INVALID_LKEY;
use mlx5_layout::send_wqe::{
    AddressVector, Atomic, BLOCK_BYTES, Control, DataPointer, INLINE_FLAG, RemoteAddress,
};
use mlx5_layout::testing::{ARM_WORD, CQ_ARM_OFFSET, SendWqeBuilder};
use mlx5_layout::{CqeFields, CqeOpcode, CqeSyndrome, SendOpcode};

use verbs_ctest as _;

unsafe extern "C" {
    fn headers_control(out: *mut u8);
    fn headers_remote(out: *mut u8);
    fn headers_atomic(out: *mut u8);
    fn headers_data(out: *mut u8);
    fn headers_inline_header(out: *mut u8);
    fn headers_vector(out: *mut u8);
    fn headers_cqe(out: *mut u8);
    fn headers_error_cqe(out: *mut u8);
    fn headers_send_opcodes(out: *mut u8) -> usize;
    fn headers_cqe_opcodes(out: *mut u8) -> usize;
    fn headers_syndromes(out: *mut u8) -> usize;
    fn headers_numbers(out: *mut u64);
}

/// A struct that C has filled; 8-byte aligned, as the header's structs want to be.
fn filled<const N: usize>(fill: unsafe extern "C" fn(*mut u8)) -> [u8; N] {
    #[repr(align(8))]
    struct Aligned<const N: usize>([u8; N]);
    let mut out = Aligned([0; N]);
    // SAFETY: the struct that the function fills has `N` bytes, as the comparison of its last field shows.
    unsafe { fill(out.0.as_mut_ptr()) };
    out.0
}

#[test]
fn segments_are_the_headers() {
    let control = Control {
        opmod: 0xa5,
        wqe_index: 0x0102,
        opcode: SendOpcode::RdmaWriteImm.to_u8(),
        qpn: 0xa7_b8c9,
        ds: 3,
        signature: 0x5a,
        stream: 0x0304,
        fm_ce_se: 0x8a,
        immediate: [0, 0, 0, 42],
    };
    assert_eq!(control.emit(), filled(headers_control));
    let remote = RemoteAddress { va: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c };
    assert_eq!(remote.emit(), filled(headers_remote));
    let atomic = Atomic { swap_add: 0x0102_0304_0506_0708, compare: 0x1112_1314_1516_1718 };
    assert_eq!(atomic.emit(), filled(headers_atomic));
    let data = DataPointer { byte_count: 0x1234, lkey: 0xdead_beef, va: 0x0102_0304_0506_0708 };
    assert_eq!(data.emit(), filled(headers_data));
    let inline = SendWqeBuilder::new(control).inline(&[7; 5]).finish().unwrap();
    assert_eq!(inline[16..20], filled::<4>(headers_inline_header));
    let vector = AddressVector {
        qkey: 0x0102_0304,
        destination_qpn: 0xab_cdef,
        extended: true,
        rate_service_level: 0x13,
        path_bits: 5,
        lid_or_udp_port: 0x1234,
        mac: [2, 3, 4, 5, 6, 7],
        traffic_class: 0x20,
        hop_limit: 64,
        grh: true,
        source_gid_index: 9,
        flow_label: 0x1_2345,
        gid: *b"0123456789abcdef",
    };
    assert_eq!(vector.emit(), filled(headers_vector));
}

#[test]
fn cqes_are_the_headers() {
    let fields = CqeFields {
        opcode: CqeOpcode::ResponderSendImm,
        solicited: true,
        owner: true,
        user_index: 0x13_1415,
        qpn: 0x41_4243,
        wqe_counter: 0xfffe,
        send_opcode: SendOpcode::RdmaRead.to_u8(),
        byte_count: 0x0102_0304,
        immediate: [0, 0, 0, 42],
        source_qpn: 0x99_8877,
        source_lid: 0x2122,
        service_level: 3,
        grh: true,
        path_bits: 0x15,
        timestamp: 0x1112_1314_1516_1718,
        error: CqeError::default(),
    };
    assert_eq!(fields.emit(), filled(headers_cqe));
    let refused = CqeFields {
        opcode: CqeOpcode::RequesterError,
        user_index: 0x13_1415,
        qpn: 0x41_4243,
        wqe_counter: 3,
        send_opcode: SendOpcode::RdmaRead.to_u8(),
        error: CqeError { syndrome: CqeSyndrome::RemoteAccess.to_u8(), vendor: 0x88, ..CqeError::default() },
        ..CqeFields::default()
    };
    let theirs: [u8; 64] = filled(headers_error_cqe);
    assert_eq!(refused.emit(), theirs);
    assert_eq!(Cqe::in_slot(&theirs).unwrap().error().known(), Some(CqeSyndrome::RemoteAccess));
}

#[test]
fn codes_are_the_headers() {
    let list = |fill: unsafe extern "C" fn(*mut u8) -> usize| {
        let mut out = [0; 64];
        // SAFETY: the lists have fewer than 64 codes.
        let count = unsafe { fill(out.as_mut_ptr()) };
        out[..count].to_vec()
    };
    // WAIT and DUMP are in no header of rdma-core.
    let known = |opcode: &&SendOpcode| !matches!(opcode, SendOpcode::Wait | SendOpcode::Dump);
    let ours: Vec<u8> = SendOpcode::ALL.iter().filter(known).map(|opcode| opcode.to_u8()).collect();
    assert_eq!(ours, list(headers_send_opcodes));
    let ours: Vec<u8> = CqeOpcode::ALL.iter().map(|opcode| opcode.to_u8()).collect();
    assert_eq!(ours, list(headers_cqe_opcodes));
    let ours: Vec<u8> = CqeSyndrome::ALL.iter().map(|syndrome| syndrome.to_u8()).collect();
    assert_eq!(ours, list(headers_syndromes));
}

#[test]
fn numbers_are_the_headers() {
    let mut theirs = [0; 10];
    // SAFETY: `headers.c` writes 10 numbers.
    unsafe { headers_numbers(theirs.as_mut_ptr()) };
    let solicited = Arm { sequence: 0, what: ArmFor::Solicited, consumer_index: 0 };
    let ours = [
        BLOCK_BYTES as u64,
        BLOCK_BYTES.ilog2().into(),
        INVALID_LKEY.into(),
        INLINE_FLAG.into(),
        CQ_ARM_OFFSET as u64,
        RECEIVE_WORD as u64,
        SEND_WORD as u64,
        ScatterFormat::Inline32 as u64,
        ScatterFormat::Inline64 as u64,
        u32::from_be_bytes(solicited.word()).into(),
    ];
    assert_eq!(ours, theirs);
    // Private to libmlx5 (`MLX5_CQ_SET_CI`, `MLX5_CQ_ARM_DB` of `mlx5.h`): stated, not compared.
    assert_eq!((CONSUMER_WORD, ARM_WORD), (0, 1));
}
