//! Planted defects in ringing: what hangs on a card must not pass under the software NIC.
//!
//! Each test rings by hand, wrong in one way, and expects that nothing completes and that the device names
//! the queue pair in an asynchronous event. The wrong routines live here, not in the header. A card's outcome
//! is undefined, so these tests ask for the software NIC (`softnic run` sets `SOFTNIC_FABRIC`).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use measure::{need, skip};
use rdma_shim::sys::*;
use verbs::code::EventType;
use verbs::{
    AsyncEvent, Context, Cq, DirectQp, Element, InlineSlice, Mr, Pages, Payload, QpBuilder, QpType,
    SendOperation, SendRequest,
};

use rdma_shim::testing::{connect, memory, softnic, wait_for};

/// Longest wait for the event of a wrong ring. The NIC sends it after a hundred looks that take at least a
/// second (`PATIENCE_NS` of `mlx5-device`), and later if its thread lacks a core.
const PATIENCE: Duration = Duration::from_secs(60);

/// A queue that this test rings itself.
struct TestQueue {
    context: Context,
    qp: DirectQp,
    _peer: DirectQp,
    sq: db_sq,
    cq: db_cq,
    _slots: Vec<db_slot>,
    memory: Mr<Pages>,
}

impl TestQueue {
    fn new(context: Context) -> TestQueue {
        let pd = context.alloc_pd().unwrap();
        let direct = Cq::new(&context, 15).unwrap().into_direct().unwrap();
        let builder = QpBuilder::new(QpType::Rc).own_register(true);
        let qp = builder.build_direct(&pd, &direct, &direct).unwrap();
        let peer = builder.build_direct(&pd, &direct, &direct).unwrap();
        connect(&qp, peer.number());
        connect(&peer, qp.number());
        let (layout, cq_layout) = (qp.memory(), direct.layout());
        let slots = vec![db_slot::default(); layout.send.entries as usize];
        let mut sq = db_sq {
            ring: layout.send.address.addr() as u64,
            record: layout.record.addr() as u64 + 4,
            reg: layout.register.addr() as u64,
            slots: slots.as_ptr() as u64,
            blocks: layout.send.entries,
            qpn: layout.number,
            half_bytes: layout.blueflame_half_bytes,
            max_sge: 1,
            opcodes: 0x7f,
            ..db_sq::default()
        };
        // SAFETY: the struct is ours alone.
        assert_eq!(unsafe { db_c_sq_init(&raw mut sq, 64) }, 0);
        let mut cq = db_cq {
            ring: cq_layout.address.addr() as u64,
            record: cq_layout.record.addr() as u64,
            entries: cq_layout.entries,
            cqn: cq_layout.number,
            ..db_cq::default()
        };
        // SAFETY: the struct is ours alone.
        assert_eq!(unsafe { db_c_cq_init(&raw mut cq, 64) }, 0);
        TestQueue { memory: memory(&pd, 4096), context, qp, _peer: peer, sq, cq, _slots: slots }
    }

    fn write_wqe(&mut self) {
        let entry = db_sge { addr: self.memory.address(), length: 8, lkey: self.memory.lkey() };
        // SAFETY: the queue is live and ours alone.
        let code = unsafe {
            db_c_try_post_write(&raw mut self.sq, 1, entry, self.memory.address() + 64, self.memory.rkey(), 2)
        };
        assert_eq!(code, 0);
        fence(Ordering::SeqCst);
    }

    fn store_record(&self) {
        let index = (self.sq.producer as u32 & 0xffff).to_be();
        // SAFETY: the word lies in the record of a live queue pair.
        unsafe { AtomicU32::from_ptr(self.sq.record as *mut u32) }.store(index, Ordering::SeqCst);
    }

    fn store_register(&self, word: u64) {
        // SAFETY: the register of a live queue pair.
        unsafe { AtomicU64::from_ptr(self.sq.reg as *mut u64) }.store(word, Ordering::SeqCst);
    }

    fn completed(&mut self) -> bool {
        self.sq.rung = self.sq.producer;
        let mut found = db_completion::default();
        // SAFETY: both queues are live and ours alone.
        let taken =
            unsafe { db_c_poll(&raw mut self.cq, &raw mut self.sq, std::ptr::null_mut(), &raw mut found, 1) };
        assert_eq!(found.status, 0);
        taken == 1
    }

    fn expect_event_and_no_completion(&mut self, defect: &str) {
        let event = self.context.wait_async_event(PATIENCE).unwrap();
        let named = AsyncEvent { kind: EventType::QpRequestError, element: Element::Qp(self.qp.number()) };
        assert_eq!(event, Some(named), "{defect}");
        assert!(!self.completed(), "{defect}: the device executed what it was not told of");
    }
}

#[test]
fn the_hand_rung_queue_completes_when_nothing_is_wrong() {
    let mut queue = TestQueue::new(need!(softnic(), softnic, "the software NIC"));
    queue.write_wqe();
    queue.store_record();
    queue.store_register(queue.sq.doorbell_word);
    wait_for("completion", || queue.completed().then_some(()));
    assert_eq!(queue.context.wait_async_event(Duration::from_millis(50)).unwrap(), None);
}

#[test]
fn a_shim_without_the_doorbell_store_hangs_and_is_named() {
    let mut queue = TestQueue::new(need!(softnic(), softnic, "the software NIC"));
    queue.write_wqe();
    queue.store_record();
    queue.expect_event_and_no_completion("no doorbell store");
}

#[test]
fn a_shim_that_rings_with_a_wrong_qpn_hangs_and_is_named() {
    let mut queue = TestQueue::new(need!(softnic(), softnic, "the software NIC"));
    queue.write_wqe();
    queue.store_record();
    // Bytes 4 to 6 of the doorbell are the QPN.
    queue.store_register(queue.sq.doorbell_word ^ 0x0000_5500_0000_0000);
    queue.expect_event_and_no_completion("wrong QPN in the doorbell");
}

#[test]
fn a_shim_that_writes_the_record_after_the_doorbell_hangs_and_is_named() {
    let mut queue = TestQueue::new(need!(softnic(), softnic, "the software NIC"));
    queue.write_wqe();
    queue.store_register(queue.sq.doorbell_word);
    // On a card it is a race; here the device is given the time to win it.
    std::thread::sleep(Duration::from_millis(5));
    queue.store_record();
    queue.expect_event_and_no_completion("record after doorbell");
}

/// A program that ignores the refusal of [`rdma_shim::QueuePair::create`] is told by the first short message.
#[test]
fn a_queue_that_scatters_to_cqes_says_so_at_its_first_short_message() {
    let context = need!(softnic(), softnic, "the software NIC");
    let pd = context.alloc_pd().unwrap();
    let memory = memory(&pd, 4096);
    let direct = Cq::new(&context, 15).unwrap().into_direct().unwrap();
    // SAFETY: the CQ is polled by the shim, which copies nothing anywhere.
    let builder = unsafe { QpBuilder::new(QpType::Rc).allow_scatter_to_cqe() };
    let receiver = builder.build_direct(&pd, &direct, &direct).unwrap();
    if !receiver.may_scatter_to_cqe() {
        skip!("MLX5_SCATTER_TO_CQE is 0 here");
    }
    let sender_cq = Cq::new(&context, 15).unwrap();
    let mut sender = QpBuilder::new(QpType::Rc).inline_bytes(16).build(&pd, &sender_cq, &sender_cq).unwrap();
    connect(&receiver, sender.number());
    connect(&sender, receiver.number());

    let (layout, cq_layout) = (receiver.memory(), direct.layout());
    let mut wr_ids = vec![0u64; layout.receive.entries as usize];
    let mut rq = db_rq {
        ring: layout.receive.address.addr() as u64,
        record: layout.record.addr() as u64,
        wr_ids: wr_ids.as_mut_ptr() as u64,
        wqes: layout.receive.entries,
        stride: layout.receive.stride,
        qpn: layout.number,
        max_sge: 1,
        ..db_rq::default()
    };
    let mut cq = db_cq {
        ring: cq_layout.address.addr() as u64,
        record: cq_layout.record.addr() as u64,
        entries: cq_layout.entries,
        cqn: cq_layout.number,
        ..db_cq::default()
    };
    // SAFETY: the structs are ours alone.
    assert_eq!(unsafe { db_c_rq_init(&raw mut rq) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { db_c_cq_init(&raw mut cq, cq_layout.stride) }, 0);
    let entry = db_sge { addr: memory.address(), length: 64, lkey: memory.lkey() };
    let (receive, mut bad) = (db_recv_wr { wr_id: 3, sg_list: &raw const entry, num_sge: 1 }, 0);
    // SAFETY: the queue is live and ours alone.
    assert_eq!(unsafe { db_c_post_recv(&raw mut rq, &raw const receive, 1, &raw mut bad) }, 0);

    let inline = [InlineSlice::new(b"short")];
    sender.post_send(&SendRequest::new(1, SendOperation::Send, Payload::Inline(&inline))).unwrap();
    let mut found = db_completion::default();
    wait_for("completion", || {
        // SAFETY: both queues are live and ours alone.
        let taken = unsafe { db_c_poll(&raw mut cq, std::ptr::null_mut(), &raw mut rq, &raw mut found, 1) };
        (taken == 1).then_some(())
    });
    let mut buffer = [0; 5];
    memory.read(0, &mut buffer);
    assert_eq!((found.status, found.wr_id, found.byte_len, buffer), (0x100, 3, 5, [0; 5]));
}
