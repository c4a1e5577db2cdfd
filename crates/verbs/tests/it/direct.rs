//! Queues taken over: what the layouts say is what libmlx5 does.

use measure::need;
use mlx5_layout::send_wqe::{Addressing, BLOCK_BYTES, DataSegment};
use mlx5_layout::{SendOpcode, SendWqe};
use verbs::{Cq, Payload, QpBuilder, QpType, SendOperation, SendOperations, SendRequest};

use crate::pair::{self, Pair};

#[test]
fn a_ring_holds_what_libmlx5_posted() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut pair = Pair::rc(&context);
    let sges = [pair.memory[0].sge(0..24).unwrap()];
    let remote = pair.memory[1].remote(64).unwrap();
    pair.qps[0]
        .post_send(&SendRequest::new(9, SendOperation::Write(remote), Payload::Gather(&sges)))
        .unwrap();
    assert!(pair.completion(0).is_success());
    let layout = pair.qps[0].layout().unwrap();
    assert_eq!((layout.send.stride as usize, layout.number), (BLOCK_BYTES, pair.qps[0].number()));
    let mut block = [0u8; BLOCK_BYTES];
    // SAFETY: the queue pair lives, and the request has completed, so that nothing writes its first block.
    unsafe { std::ptr::copy_nonoverlapping(layout.send.address, block.as_mut_ptr(), BLOCK_BYTES) };
    let wqe = SendWqe::new(&block).unwrap();
    let body = wqe.body(Addressing::Connected).unwrap();
    assert_eq!((wqe.control().qpn, body.opcode), (layout.number, SendOpcode::RdmaWrite));
    assert_eq!((body.remote.va, body.remote.rkey), (remote.address, remote.rkey));
    let Some(Ok(DataSegment::Pointer(pointer))) = body.data.clone().next() else { panic!("no data segment") };
    assert_eq!((pointer.byte_count, pointer.va, pointer.lkey), (24, sges[0].address(), sges[0].lkey()));
    // SAFETY: the record lives as long as the queue pair.
    let sent = unsafe { layout.record.wrapping_add(1).read_volatile() };
    assert_eq!(u32::from_be(sent), 1);
}

#[test]
fn fresh_queues_are_taken_over_with_their_registers() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::new(&context, 100).unwrap().into_direct().unwrap();
    let layout = cq.layout();
    assert_eq!((layout.entries, layout.stride), (128, 64));
    // The symbol's version 1.0 would give the address of a pointer to the page.
    assert_eq!(layout.uar.addr() % 4096, 0);
    for own in [false, true] {
        let qp = QpBuilder::new(QpType::Rc).own_register(own).build_direct(&pd, &cq, &cq).unwrap();
        let memory = qp.memory();
        assert!(!qp.may_scatter_to_cqe() && qp.has_own_register() == own);
        assert!(memory.send.entries.is_power_of_two() && memory.receive.entries.is_power_of_two());
        assert!(matches!(memory.register.addr() % 4096, 0x800 | 0xa00), "register at {:p}", memory.register);
        assert!(matches!(memory.blueflame_half_bytes, 0 | 256));
    }
}

#[test]
fn narrowed_operations_make_a_request_one_block() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::new(&context, 100).unwrap().into_direct().unwrap();
    let wide = QpBuilder::new(QpType::Rc);
    let narrow = wide.clone().operations(SendOperations::SEND | SendOperations::WRITE);
    let blocks = |builder: &QpBuilder| builder.build_direct(&pd, &cq, &cq).unwrap().memory().send.entries;
    // libmlx5 44, one entry: 208 bytes rounded to 4 blocks with every operation, 48 to one with these.
    assert_eq!((blocks(&wide), blocks(&narrow)), (256, 64));
}

#[test]
fn a_queue_that_may_scatter_to_cqe_says_so() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::new(&context, 100).unwrap().into_direct().unwrap();
    // SAFETY: nothing is posted to the queue pair.
    let builder = unsafe { QpBuilder::new(QpType::Rc).allow_scatter_to_cqe() };
    let expected = std::env::var_os("MLX5_SCATTER_TO_CQE").is_none_or(|value| value != "0");
    assert_eq!(builder.build_direct(&pd, &cq, &cq).unwrap().may_scatter_to_cqe(), expected);
}

#[test]
fn a_queue_with_queue_pairs_is_not_taken_over() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let (pd, cq) = (context.alloc_pd().unwrap(), Cq::new(&context, 16).unwrap());
    let _qp = QpBuilder::new(QpType::Rc).build(&pd, &cq, &cq).unwrap();
    let error = cq.into_direct().unwrap_err().to_string();
    assert!(error.starts_with("the CQ has queue pairs that libmlx5 posts to"), "{error}");
}
