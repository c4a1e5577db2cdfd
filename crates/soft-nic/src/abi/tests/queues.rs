//! Commands of queues: CQs, QPs and SRQs, with distinct values in every field.

use super::{Bench, Call};
use crate::abi::layout::{Reader, modify_qp, qp_dest, query_qp_resp};
use crate::config::Config;
use crate::dma::gpu::counts_as_a_gpus;
use crate::os::testing::own;

pub fn cq_call(cqe_size: u32, mlx5_flags: u16, vector: u32, flags: u32, compressed: u8) -> Call {
    let mut part = [0; 32];
    part[..8].copy_from_slice(&0x1000_u64.to_ne_bytes());
    part[8..16].copy_from_slice(&0x2000_u64.to_ne_bytes());
    part[16..20].copy_from_slice(&cqe_size.to_ne_bytes());
    part[20] = compressed;
    part[22..24].copy_from_slice(&mlx5_flags.to_ne_bytes());
    part[24] = 0x21;
    Call::new(3, 0)
        .handle(0, 0)
        .input(1, &511_u32.to_ne_bytes())
        .input(2, &0x1234_5678_9abc_u64.to_ne_bytes())
        .input(4, &vector.to_ne_bytes())
        .input(5, &flags.to_ne_bytes())
        .output(6, 4)
        .input(0x1000, &part)
        .output(0x1001, 8)
}

#[test]
fn a_queue_in_a_gpu_s_memory_is_refused_since_it_needs_devx() {
    const MEMORY: u64 = 0x6f00_0000_0000;
    let _gpus = counts_as_a_gpus(MEMORY, 1 << 20);
    // Ring and record are the first two words of each driver's part.
    for (name, place, call) in [
        ("ring of a CQ", 0, cq_call(64, 0, 0, 0, 0)),
        ("record of a CQ", 8, cq_call(64, 0, 0, 0, 0)),
        ("ring of a QP", 0, qp_call(2, 0, 0x400)),
        ("record of a QP", 8, qp_call(2, 0, 0x400)),
    ] {
        let mut bench = Bench::open(&Config::default());
        let mut call = call;
        let part = call.buffers.iter_mut().find(|(id, _)| *id == 0x1000).expect("a driver's part");
        part.1[place..place + 8].copy_from_slice(&(MEMORY + 4096).to_ne_bytes());
        let bytes = call.encode();
        let refused = bench.ioctl(bytes.as_ptr() as u64).unwrap_err();
        assert_eq!(refused.errno, libc::EOPNOTSUPP, "{name}");
        assert!(refused.reason.contains("queues there need DEVX"), "{name}: {}", refused.reason);
        assert!(bench.asked().is_empty(), "{name}: the device was asked");
    }
}

#[test]
fn completion_queues_carry_every_field_and_report_their_events() {
    let mut bench = Bench::open(&Config::default());
    let mut channel = Call::write(0x11).input(0, &[0; 8]).output(1, 4);
    channel.run(&mut bench).unwrap();
    let fd = Reader(channel.result(1)).u32(0);
    let _owned = own(fd as i32);
    let mut call = cq_call(128, 2, 3, 1, 0).handle(3, u64::from(fd));
    call.run(&mut bench).unwrap();
    assert_eq!(call.attribute(0).1, 6);
    assert_eq!(Reader(call.result(0x1001)).u32(0), 0x406);
    let mut destroy = Call::new(3, 1).handle(0, 6).output(1, 8);
    destroy.run(&mut bench).unwrap();
    assert_eq!(destroy.result(1), [2, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(
        bench.asked(),
        [
            "CreateCq { cqe: 1ff, cqe_size: 80, buffer: 1000, record: 2000, user_handle: 123456789abc, \
             channel: Some(0), ignore_overrun: false }",
            "destroy_cq 6"
        ]
    );
    cq_call(64, 2, 0, 3, 0).run(&mut bench).unwrap();
    let asked = bench.asked().concat();
    assert!(asked.contains("ignore_overrun: true"), "{asked}");
    for (what, mut call, errno) in [
        ("a vector beyond the processors", cq_call(64, 2, 4, 0, 0), libc::EINVAL),
        ("an unknown flag", cq_call(64, 2, 0, 4, 0), libc::EOPNOTSUPP),
        ("padded CQEs", cq_call(128, 1, 0, 0, 0), libc::EOPNOTSUPP),
        ("real-time timestamps", cq_call(64, 4, 0, 0, 0), libc::EOPNOTSUPP),
        ("compressed CQEs", cq_call(64, 2, 0, 0, 1), libc::EOPNOTSUPP),
    ] {
        assert_eq!(call.run(&mut bench), Err(errno), "{what}");
    }
    assert_eq!(bench.asked(), [] as [&str; 0]);
}

pub fn qp_call(kind: u64, flags: u32, mlx5_flags: u32) -> Call {
    let mut part = [0; 56];
    part[..8].copy_from_slice(&0x1000_u64.to_ne_bytes());
    part[8..16].copy_from_slice(&0x2000_u64.to_ne_bytes());
    for (at, value) in [(16, 64_u32), (20, 32), (24, 4), (28, mlx5_flags), (32, 0x99), (36, 0x21)] {
        part[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let cap: Vec<u8> = [1_u32, 2, 3, 4, 5].iter().flat_map(|word| word.to_ne_bytes()).collect();
    Call::new(4, 0)
        .handle(0, 0)
        .handle(2, 4)
        .handle(4, 6)
        .handle(5, 6)
        .input(7, &0xfeed_u64.to_ne_bytes())
        .input(8, &cap)
        .input(9, &kind.to_ne_bytes())
        .input(10, &flags.to_ne_bytes())
        .output(13, 20)
        .output(14, 4)
        .input(0x1000, &part)
        .output(0x1001, 40)
}

#[test]
fn queue_pairs_carry_every_field() {
    let mut bench = Bench::open(&Config::default());
    let mut call = qp_call(2, 1 << 12, 0x402);
    call.run(&mut bench).unwrap();
    assert_eq!((call.attribute(0).1, Reader(call.result(14)).u32(0)), (8, 0x20040));
    let cap: Vec<u32> = (0..5).map(|word| Reader(call.result(13)).u32(4 * word)).collect();
    assert_eq!(cap, [1, 2, 3, 4, 5]);
    assert_eq!(
        bench.asked(),
        [
            "CreateQp { service: Rc, pd: 4, send_cq: 6, recv_cq: 6, srq: None, cap: QpCap { max_send_wr: 1, max_recv_wr: 2, \
          max_send_sge: 3, max_recv_sge: 4, max_inline_data: 5 }, user_handle: feed, signal_all: true, buffer: 1000, \
          record: 2000, sq_wqe_count: 40, rq_wqe_count: 20, rq_wqe_shift: 4, mlx5_flags: 402, user_index: 99, \
          uar_page: Some(21) }"
        ]
    );
    let mut destroy = Call::new(4, 1).handle(0, 8).output(1, 4);
    destroy.run(&mut bench).unwrap();
    assert_eq!(destroy.result(1), 5_u32.to_ne_bytes());
    bench.asked();
    // Blocked multicast loopback: nothing would come back.
    qp_call(4, 1 << 1, 0x400).run(&mut bench).unwrap();
    bench.asked();
    for (what, mut call, errno) in [
        ("raw packets", qp_call(8, 0, 0x400), libc::EOPNOTSUPP),
        ("XRC", qp_call(9, 0, 0x400), libc::EOPNOTSUPP),
        ("a driver's own type", qp_call(0xff, 0, 0x400), libc::EOPNOTSUPP),
        ("a type that is none", qp_call(0, 0, 0x400), libc::EOPNOTSUPP),
        ("an XRC domain", qp_call(2, 0, 0x400).handle(1, 1), libc::EOPNOTSUPP),
        ("an indirection table", qp_call(2, 0, 0x400).handle(6, 1), libc::EOPNOTSUPP),
        ("a source QPN", qp_call(4, 0, 0x400).input(11, &1_u32.to_ne_bytes()), libc::EOPNOTSUPP),
        ("scatter FCS", qp_call(2, 1 << 8, 0x400), libc::EOPNOTSUPP),
        ("a DCI", qp_call(2, 0, 0x420), libc::EOPNOTSUPP),
    ] {
        assert_eq!(call.run(&mut bench), Err(errno), "{what}");
    }
    assert_eq!(bench.asked(), [] as [&str; 0]);
}

#[test]
fn resize_and_re_registration_carry_every_field() {
    let mut bench = Bench::open(&Config::default());
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let (core, part) = (words(&[0, 0, 6, 255]), words(&[0x1000, 0, 128, 0]));
    let resize = |part: &[u8]| Call::write(0x13).input(0, &core).output(1, 8).input(0x1000, part);
    let mut call = resize(&part);
    call.run(&mut bench).unwrap();
    assert_eq!(call.result(1), words(&[255, 0]));
    for (what, part) in [("short", &part[..12]), ("reserved", &words(&[0x1000, 0, 0x1_0080, 0])[..])] {
        assert_eq!(resize(part).run(&mut bench), Err(libc::EINVAL), "{what}");
    }
    let rereg = words(&[0, 0, 5, 7, 0x1000, 0, 0x2000, 0, 0x3000, 0, 4, 0xf]);
    let mut call = Call::write(0xb).input(0, &rereg).output(1, 8);
    call.run(&mut bench).unwrap();
    assert_eq!(call.result(1), words(&[0x510, 0x511]));
    assert_eq!(
        bench.asked(),
        [
            "resize_cq 6 ResizeCq { cqe: ff, cqe_size: 80, buffer: 1000 }",
            "rereg_mr 5 7 RegMr { start: 1000, length: 2000, iova: 3000, pd: 4, access: f }",
        ]
    );
}

pub fn srq_call(kind: u64, reserved: u8) -> Call {
    let mut part = [0; 32];
    part[20] = reserved;
    part[..8].copy_from_slice(&0x1000_u64.to_ne_bytes());
    part[8..16].copy_from_slice(&0x2000_u64.to_ne_bytes());
    Call::new(5, 0)
        .handle(0, 0)
        .handle(1, 4)
        .input(4, &0xbeef_u64.to_ne_bytes())
        .input(5, &14_u32.to_ne_bytes())
        .input(6, &3_u32.to_ne_bytes())
        .input(7, &0_u32.to_ne_bytes())
        .input(9, &kind.to_ne_bytes())
        .output(11, 4)
        .output(12, 4)
        .output(13, 4)
        .input(0x1000, &part)
        .output(0x1001, 8)
}

#[test]
fn shared_receive_queues_carry_every_field() {
    let mut bench = Bench::open(&Config::default());
    let mut call = srq_call(0, 0);
    call.run(&mut bench).unwrap();
    let word = |id| Reader(call.result(id)).u32(0);
    assert_eq!((call.attribute(0).1, word(11), word(12), word(13), word(0x1001)), (10, 15, 3, 0x40a, 0x40a));
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let wanted = "CreateSrq { pd: 4, max_wr: e, max_sge: 3, user_handle: beef, buffer: 1000, record: 2000 }";
    assert_eq!(bench.asked(), [wanted]);
    let mut qp = qp_call(2, 0, 0x400).handle(3, 10);
    qp.run(&mut bench).unwrap();
    assert!(bench.asked()[0].contains("srq: Some(a)"));

    Call::write(0x21).input(0, &words(&[10, 2, 77, 7])).run(&mut bench).unwrap();
    let mut query = Call::write(0x22).input(0, &words(&[0, 0, 10, 0])).output(1, 16);
    query.run(&mut bench).unwrap();
    assert_eq!(query.result(1), words(&[15, 3, 7, 0]));
    let mut destroy = Call::new(5, 1).handle(0, 10).output(1, 4);
    destroy.run(&mut bench).unwrap();
    assert_eq!(destroy.result(1), words(&[6]));
    assert_eq!(
        bench.asked(),
        ["modify_srq 10 ModifySrq { mask: 2, limit: 7 }", "query_srq 10", "destroy_srq 10"]
    );
    for (what, mut call, errno) in [
        ("XRC", srq_call(1, 0), libc::EOPNOTSUPP),
        ("tag matching", srq_call(2, 0), libc::EOPNOTSUPP),
        ("no mlx5 part", srq_call(0, 0).without(0x1000), libc::EINVAL),
        ("a reserved word", srq_call(0, 1), libc::EINVAL),
        ("too short", Call::write(0x22).input(0, &words(&[0, 0])).output(1, 16), libc::ENOSPC),
    ] {
        assert_eq!(call.run(&mut bench), Err(errno), "{what}");
    }
    assert_eq!(bench.asked(), [] as [&str; 0]);
}

#[test]
fn modify_qp_carries_every_field() {
    let mut input = [0; modify_qp::SIZE];
    // The path first, then every field behind it with a value of its own.
    input[qp_dest::dgid..][..16].copy_from_slice(&[0xaa; 16]);
    input[qp_dest::flow_label] = 1;
    input[qp_dest::dlid] = 2;
    input[qp_dest::sgid_index] = 3;
    input[qp_dest::hop_limit] = 4;
    input[qp_dest::traffic_class] = 5;
    input[qp_dest::sl] = 6;
    input[qp_dest::is_global] = 1;
    input[qp_dest::port_num] = 7;
    use modify_qp as at;
    for (place, value) in [
        (at::qp_handle, 8),
        (at::mask, 9),
        (at::qkey, 10),
        (at::rq_psn, 11),
        (at::sq_psn, 12),
        (at::dest_qpn, 13),
        (at::access, 14),
        (at::pkey_index, 15),
        (at::state, 16),
        (at::current_state, 17),
        (at::path_mtu, 18),
        (at::max_rd_atomic, 19),
        (at::max_dest_rd_atomic, 20),
        (at::min_rnr_timer, 21),
        (at::port, 22),
        (at::timeout, 23),
        (at::retry_count, 24),
        (at::rnr_retry, 25),
    ] {
        input[place] = value;
    }
    let mut bench = Bench::open(&Config::default());
    Call::write(0x1a).input(0, &input).run(&mut bench).unwrap();
    let mut extended = Call::write(0x8000_001a).input(0, &input).output(1, 8).output(0x1001, 16);
    extended.run(&mut bench).unwrap();
    assert_eq!(extended.result(1), [0, 0, 0, 0, 8, 0, 0, 0]);
    let asked = bench.asked();
    assert_eq!(asked[0], asked[1]);
    assert_eq!(
        asked[0],
        "modify_qp 8 ModifyQp { mask: 9, state: 10, current_state: 11, path_mtu: 12, qkey: a, rq_psn: b, sq_psn: c, \
         dest_qpn: d, access: e, address: AddressVector { dlid: 2, dgid: Some([aa, aa, aa, aa, aa, aa, aa, aa, aa, aa, \
         aa, aa, aa, aa, aa, aa]), sgid_index: 3, sl: 6, flow_label: 1, hop_limit: 4, traffic_class: 5, port: 7 }, \
         pkey_index: f, port: 16, timeout: 17, retry_count: 18, rnr_retry: 19, min_rnr_timer: 15, max_rd_atomic: 13, \
         max_dest_rd_atomic: 14, sq_draining: false }"
    );
    // A rate limit (bit 25) is the only attribute of the longer form, and the device has none.
    input[at::mask + 3] = 2;
    assert_eq!(Call::write(0x8000_001a).input(0, &input).run(&mut bench), Err(libc::EOPNOTSUPP));
    assert_eq!(Call::write(0x1a).input(0, &input[..100]).run(&mut bench), Err(libc::ENOSPC));
}

#[test]
fn query_qp_gives_every_field_back() {
    let mut bench = Bench::open(&Config::default());
    let mut input = [0; 16];
    input[8] = 8;
    let mut call = Call::write(0x19).input(0, &input).output(1, query_qp_resp::SIZE);
    call.run(&mut bench).unwrap();
    use query_qp_resp as at;
    let answer = Reader(call.result(1));
    assert_eq!((answer.u8(at::state), answer.u8(at::current_state), answer.u8(at::sq_sig_all)), (3, 3, 1));
    assert_eq!((answer.u32(at::dest_qpn), answer.u8(at::timeout)), (0x77, 14));
    assert_eq!((answer.u32(at::max_send_wr), answer.u32(at::max_inline_data)), (11, 15));
    assert_eq!(
        (answer.u16(qp_dest::dlid), answer.u8(qp_dest::sl), answer.u8(qp_dest::is_global)),
        (0x1234, 3, 1)
    );
    assert_eq!(answer.array::<16>(qp_dest::dgid), [9; 16]);
    assert_eq!(bench.asked(), ["query_qp 8"]);
}
