//! Objects: found, queried, made, refused, ended in any order.

use std::time::{Duration, Instant};

use measure::need;
use verbs::code::{Access, EventType, PortState, QpState};
use verbs::{
    AsyncEvent, CompChannel, Cq, Element, InitAttributes, Mr, Pages, Payload, QpBuilder, QpType,
    ReceiveRequest, Remote, RtsAttributes, SendOperation, SendRequest,
};

use crate::pair::{self, Pair};

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let error = verbs::open(Some("mlx5_99")).unwrap_err().to_string();
    assert!(error.starts_with("no RDMA device mlx5_99; there are: "), "{error}");
    assert!(error.contains(context.name()), "{error}");
}

#[test]
fn a_device_tells_its_limits_and_its_port_is_active() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let device = context.query_device().unwrap();
    assert!(device.max_qp_wr >= 8192 && device.max_sge >= 8 && device.ports >= 1, "{device:?}");
    let port = context.query_port(1).unwrap();
    assert_eq!(port.state, PortState::Active);
    assert!(!context.gids(1).unwrap().is_empty());
    let error = context.query_port(9).unwrap_err().to_string();
    assert!(error.starts_with(&format!("ibv_query_port of {} port 9: ", context.name())), "{error}");
}

#[test]
fn objects_may_be_dropped_in_any_order() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let Pair { pd, cqs, qps, memory } = Pair::rc(&context);
    drop(context);
    drop(pd);
    drop(cqs);
    drop(memory);
    // The queue pairs keep what they need until they go.
    assert_eq!(qps[0].query().unwrap().state, QpState::Rts);
}

#[test]
fn states_are_queried_as_they_were_set() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let pair = Pair::rc(&context);
    let queried = pair.qps[0].query().unwrap();
    assert_eq!((queried.state, queried.peer_qpn), (QpState::Rts, pair.qps[1].number()));
    pair.qps[0].to_error().unwrap();
    assert_eq!(pair.qps[0].query().unwrap().state, QpState::Error);
    pair.qps[0].reset().unwrap();
    assert_eq!(pair.qps[0].query().unwrap().state, QpState::Reset);
}

#[test]
fn memory_comes_back_when_its_region_goes() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let pd = context.alloc_pd().unwrap();
    let mut buffer = vec![7u8; 8192];
    let region = Mr::register(&pd, &mut buffer[..], Access::LOCAL_WRITE).unwrap();
    region.write(3, b"abc");
    assert_eq!(region.deregister().unwrap()[..8], *b"\x07\x07\x07abc\x07\x07");
    let region = Mr::register(&pd, Pages::new(1).unwrap(), Access::LOCAL_WRITE).unwrap();
    assert_eq!(region.len(), 4096);
    let error = region.sge(4000..5000).unwrap_err().to_string();
    assert_eq!(error, "bytes 4000..5000 leave the region of 4096 bytes");
}

#[test]
fn an_armed_queue_tells_its_channel() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let channel = CompChannel::new(&context).unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut cq = Cq::with_channel(&context, 16, &channel, 42).unwrap();
    assert_eq!(channel.wait(Duration::from_millis(1)).unwrap(), None);
    let mut qp = QpBuilder::new(QpType::Rc).build(&pd, &cq, &cq).unwrap();
    pair::connect(&qp, qp.number());
    let memory = Mr::register(&pd, Pages::new(4096).unwrap(), Access::ALL).unwrap();
    cq.request_notify(false).unwrap();
    qp.post_receive(&ReceiveRequest { id: 1, scatter: &[memory.sge(0..8).unwrap()] }).unwrap();
    let source = [memory.sge(8..16).unwrap()];
    qp.post_send(&SendRequest::new(2, SendOperation::Send, Payload::Gather(&source))).unwrap();
    assert_eq!(channel.wait(Duration::from_secs(10)).unwrap(), Some(42));
    let mut ids = [pair::wait_for(&mut cq).id(), pair::wait_for(&mut cq).id()];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
}

#[test]
fn nothing_happened_is_no_event() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    assert_eq!(context.wait_async_event(Duration::from_millis(1)).unwrap(), None);
}

#[test]
fn a_queue_of_another_open_is_refused() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let other = pair::device().unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), Cq::new(&other, 16).unwrap());
    let error = QpBuilder::new(QpType::Rc).build(&pd, &cq, &cq).unwrap_err().to_string();
    assert_eq!(error, "the send CQ belongs to another open of the device");
}

#[test]
fn a_wrong_move_between_states_names_queue_pair_and_state() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let (pd, cq) = (context.alloc_pd().unwrap(), Cq::new(&context, 16).unwrap());
    let qp = QpBuilder::new(QpType::Rc).build(&pd, &cq, &cq).unwrap();
    let init = InitAttributes { port: 77, pkey_index: 0, access: Access::ALL, qkey: 0 };
    let error = qp.to_init(&init).unwrap_err().to_string();
    assert!(error.starts_with(&format!("ibv_modify_qp of RC QP {:#x} to INIT: ", qp.number())), "{error}");
    let rts = RtsAttributes { first_psn: 0, timeout: 14, retry_count: 7, rnr_retry: 7, max_rd_atomic: 1 };
    let error = qp.to_rts(&rts).unwrap_err();
    assert_eq!(error.errno(), Some(22), "{error}");
}

#[test]
fn a_full_queue_ends_with_an_event_that_names_it() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let channel = CompChannel::new(&context).unwrap();
    let pd = context.alloc_pd().unwrap();
    let small = Cq::with_channel(&context, 2, &channel, 7).unwrap();
    let mut qp = QpBuilder::new(QpType::Rc).build(&pd, &small, &small).unwrap();
    pair::connect(&qp, qp.number());
    let memory = Mr::register(&pd, Pages::new(4096).unwrap(), Access::ALL).unwrap();
    let source = [memory.sge(0..8).unwrap()];
    let write = SendOperation::Write(memory.remote(64).unwrap());
    for id in 0..small.entries() + 8 {
        qp.post_send(&SendRequest::new(id.into(), write, Payload::Gather(&source))).unwrap();
    }
    let wanted = AsyncEvent { kind: EventType::CqError, element: Element::Cq(7) };
    assert!(eventually(|| context.wait_async_event(Duration::from_millis(100)).unwrap() == Some(wanted)));
    assert!(eventually(|| qp.query().unwrap().state == QpState::Error));
}

#[test]
fn a_refused_peer_is_an_event_that_names_the_queue_pair() {
    let context = need!(pair::device(), nic, "an mlx5 device");
    let mut pair = Pair::rc(&context);
    let source = [pair.memory[0].sge(0..8).unwrap()];
    let nowhere = Remote { address: 0x1000, rkey: pair.memory[1].rkey() };
    pair.qps[0]
        .post_send(&SendRequest::new(1, SendOperation::Write(nowhere), Payload::Gather(&source)))
        .unwrap();
    let wanted = AsyncEvent { kind: EventType::QpAccessError, element: Element::Qp(pair.qps[1].number()) };
    assert!(eventually(|| context.wait_async_event(Duration::from_millis(100)).unwrap() == Some(wanted)));
}

/// Whether something becomes true within 10 s.
fn eventually(mut happened: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if happened() {
            return true;
        }
    }
    false
}
