//! Completion queues, events, states: what holds for every operation.

use mlx5_device::command::{ModifyQp, event_type};
use mlx5_device::commands::*;
use mlx5_device::errno;
use mlx5_device::testing::{CqId, CqShape, QpId, QpShape, WorkRequest};
use mlx5_layout::doorbell::ArmFor;
use mlx5_layout::{CqeOpcode, CqeSyndrome, SendOpcode};
use roce::ServiceType;
use roce::qp_state::AttrMask;

use crate::machine::{ALL, Driver, Setup};
use crate::reasons::reason_of;

fn nop() -> WorkRequest {
    WorkRequest::new(SendOpcode::Nop)
}

fn state(driver: &mut Driver, qp: QpId, state: u8) {
    let request = ModifyQp { state, mask: AttrMask::STATE.0, ..ModifyQp::default() };
    driver.modify(qp, &request).expect("the QP moves");
}

#[test]
fn a_full_cq_is_an_error_and_nothing_in_it_is_overwritten() {
    let mut driver = Driver::new(Setup::new("overrun"));
    let cq = driver.create_cq(CqShape { entries: 8, ..CqShape::default() });
    let (a, b) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    for _ in 0..9 {
        driver.lay(a, &nop());
    }
    driver.ring_doorbell(a).settle();
    let events = driver.sinks.take_events();
    assert_eq!(
        events.iter().map(|e| (e.element, e.kind)).collect::<Vec<_>>(),
        [(0xc0_0000, event_type::CQ_ERR)]
    );
    assert_eq!((driver.state(a), driver.state(b)), (6, 6), "both queues complete there");
    let reasons = driver.sinks.take_reasons();
    assert!(reasons[0].why.contains("8 entries, none given back; poll sooner"), "{reasons:?}");
    let why = reason_of(&reasons, driver.qp(a).qpn, None, "flush");
    assert!(why.is_some_and(|why| why.contains("its CQ failed")), "{reasons:?}");
    let counters: Vec<_> = std::iter::from_fn(|| driver.poll_cq(cq)).map(|cqe| cqe.wqe_counter()).collect();
    assert_eq!(counters, [0, 1, 2, 3, 4, 5, 6, 7], "what was there is whole");
    driver.settle();
    assert!(driver.poll_cq(cq).is_none(), "a dead CQ takes nothing more, not even when it has room again");
    assert_eq!(driver.counters().cq_overruns, 1);
}

/// The driver of such a CQ bounds its own posts, and may leave the record's consumer index as it is.
#[test]
fn a_cq_that_ignores_overruns_is_overwritten_and_lives() {
    let mut driver = Driver::new(Setup::new("overwritten"));
    let cq = driver.create_cq(CqShape { entries: 8, ignore_overrun: true, ..CqShape::default() });
    let (a, b) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    for _ in 0..11 {
        driver.lay(a, &nop());
    }
    driver.ring_doorbell(a).settle();
    assert_eq!((driver.sinks.take_events().len(), driver.counters().cq_overruns), (0, 0));
    assert_eq!((driver.state(a), driver.state(b)), (3, 3), "both queues go on");
    let counters = (0..8).map(|slot| {
        let mut cqe = [0; 64];
        driver.cq(cq).ring.read(slot * 64, &mut cqe);
        (u16::from_be_bytes([cqe[60], cqe[61]]), cqe[63] & 1)
    });
    let second_lap = [(8, 1), (9, 1), (10, 1)];
    let first_lap = [(3, 0), (4, 0), (5, 0), (6, 0), (7, 0)];
    assert_eq!(counters.collect::<Vec<_>>(), [&second_lap[..], &first_lap].concat());
}

/// Rings of libmlx5 for 1, 10 and 1000 receives of one pointer, and one whose entries have a signature.
#[test]
fn a_query_tells_what_the_receive_ring_holds() {
    let mut driver = Driver::new(Setup::new("query-cap"));
    for (shape, wanted) in [
        (QpShape { rq_entries: 4, rq_shift: 4, ..QpShape::default() }, (4, 1)),
        (QpShape { rq_entries: 16, rq_shift: 5, ..QpShape::default() }, (16, 2)),
        (QpShape { rq_entries: 1024, rq_shift: 6, mlx5_flags: 1 << 10 | 1, ..QpShape::default() }, (1024, 3)),
    ] {
        let qp = driver.create_qp(shape);
        let cap = driver.nic.query_qp(driver.context, driver.qp(qp).handle).expect("the QP").cap;
        assert_eq!((cap.max_recv_wr, cap.max_recv_sge), wanted);
    }
}

#[test]
fn a_consumer_index_that_is_nonsense_counts_as_full() {
    let mut driver = Driver::new(Setup::new("consumer"));
    let cq = driver.create_cq(CqShape { entries: 8, ..CqShape::default() });
    let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    driver.cq(cq).record.write(0, &0x00ff_0000u32.to_be_bytes());
    for _ in 0..16 {
        driver.lay(a, &nop());
    }
    driver.ring_doorbell(a).settle();
    assert_eq!(driver.counters().cq_overruns, 1);
}

#[test]
fn a_cq_that_is_emptied_in_time_never_overruns() {
    for cqe_size in [64, 128] {
        let mut driver = Driver::new(Setup::new(&format!("laps-{cqe_size}")));
        let cq = driver.create_cq(CqShape { entries: 8, cqe_size, ..CqShape::default() });
        let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
        let mut counter = 0u16;
        for _ in 0..1000 {
            for _ in 0..7 {
                driver.lay(a, &nop());
            }
            driver.ring_doorbell(a).settle();
            for _ in 0..7 {
                assert_eq!(driver.poll_cq(cq).map(|cqe| cqe.wqe_counter()), Some(counter));
                counter = counter.wrapping_add(1);
            }
            assert!(driver.poll_cq(cq).is_none());
        }
        assert_eq!(driver.counters().cq_overruns, 0);
    }
}

#[test]
fn an_armed_cq_gives_one_event() {
    let mut driver = Driver::new(Setup::new("armed"));
    let cq = driver.create_cq(CqShape { channel: Some(5), ..CqShape::default() });
    let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    driver.post(a, &nop()).settle();
    assert_eq!(driver.sinks.take_completions(), [], "not armed");
    driver.poll_cq(cq);
    driver.arm(cq, ArmFor::Any);
    driver.advance(1_000_000);
    assert_eq!(driver.sinks.take_completions(), [], "nothing came");
    driver.lay(a, &nop()).lay(a, &nop()).ring_doorbell(a).settle();
    assert_eq!(driver.sinks.take_completions(), [(5, 0xc0_0000)], "one event for the first");
    driver.poll_cq(cq);
    driver.poll_cq(cq);
    driver.arm(cq, ArmFor::Any);
    driver.post(a, &nop()).settle();
    assert_eq!(driver.sinks.take_completions(), [(5, 0xc0_0000)], "armed again");
}

#[test]
fn a_cq_armed_behind_its_cqe_fires_all_the_same() {
    let mut driver = Driver::new(Setup::new("stale-arm"));
    let cq = driver.create_cq(CqShape { channel: Some(1), ..CqShape::default() });
    let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    driver.post(a, &nop()).settle();
    driver.arm(cq, ArmFor::Any);
    driver.advance(1_000_000);
    assert_eq!(driver.sinks.take_completions(), [(1, 0xc0_0000)], "no event told of this CQE");
    driver.advance(1_000_000);
    assert_eq!(driver.sinks.take_completions(), [], "once");
}

#[test]
fn an_event_is_not_repeated_for_a_cqe_that_an_event_told_of() {
    let mut driver = Driver::new(Setup::new("told"));
    let cq = driver.create_cq(CqShape { channel: Some(1), ..CqShape::default() });
    let (a, _) = driver.pair(QpShape { send_cq: Some(cq), ..QpShape::default() });
    driver.arm(cq, ArmFor::Any);
    driver.post(a, &nop()).settle();
    assert_eq!(driver.sinks.take_completions(), [(1, 0xc0_0000)]);
    // perftest arms before it polls, and takes an event with an empty CQ as an error.
    driver.arm(cq, ArmFor::Any);
    driver.advance(1_000_000_000);
    assert_eq!(driver.sinks.take_completions(), [], "the CQE still lies there, but its event was given");
    driver.poll_cq(cq);
    driver.post(a, &nop()).settle();
    assert_eq!(driver.sinks.take_completions(), [(1, 0xc0_0000)], "the next one");
}

#[test]
fn a_cq_armed_for_solicited_hears_only_those_and_errors() {
    let mut driver = Driver::new(Setup::new("solicited"));
    let cq = driver.create_cq(CqShape { channel: Some(9), ..CqShape::default() });
    let (a, b) = driver.pair(QpShape { recv_cq: Some(cq), ..QpShape::default() });
    let region = driver.region(4096, ALL);
    for _ in 0..4 {
        driver.post_receive(b, &[region.pointer(0, 64)]);
    }
    let send = WorkRequest::send(&region, 64, 8);
    driver.arm(cq, ArmFor::Solicited);
    driver.post(a, &send).advance(1_000_000);
    assert_eq!(driver.sinks.take_completions(), [], "not solicited");
    driver.post(a, &WorkRequest { solicited: true, ..send.clone() }).settle();
    assert_eq!(driver.sinks.take_completions(), [(9, 0xc0_0000)]);
    assert_eq!(
        std::iter::from_fn(|| driver.poll_cq(cq)).map(|c| c.op_own().is_solicited()).collect::<Vec<_>>(),
        [false, true]
    );
    driver.arm(cq, ArmFor::Solicited);
    state(&mut driver, b, 6);
    driver.settle();
    assert_eq!(driver.sinks.take_completions(), [(9, 0xc0_0000)], "flushes count");
}

#[test]
fn events_that_nobody_read_are_withdrawn_with_their_object() {
    let mut driver = Driver::new(Setup::new("withdrawn"));
    let cq = driver.create_cq(CqShape { channel: Some(2), ..CqShape::default() });
    let (a, b) = driver.pair(QpShape { send_cq: Some(cq), recv_cq: Some(cq), ..QpShape::default() });
    for round in 0..3 {
        driver.arm(cq, ArmFor::Any);
        driver.post(a, &nop()).settle();
        driver.poll_cq(cq);
        if round < 2 {
            assert_eq!(driver.sinks.take_completions().len(), 1);
        }
    }
    let (context, handle) = (driver.context, driver.cq(cq).handle);
    assert_eq!(driver.nic.destroy_cq(context, handle).map_err(|e| e.errno), Err(errno::EBUSY));
    for qp in [a, b] {
        driver.nic.destroy_qp(context, driver.qp(qp).handle).expect("destroyed");
    }
    let destroyed = driver.nic.destroy_cq(context, handle).expect("nobody uses it any more");
    assert_eq!((destroyed.completion_events, destroyed.async_events), (2, 0), "the third was never read");
    assert_eq!(driver.sinks.take_completions(), []);
}

fn drain(driver: &mut Driver, cq: CqId) -> Vec<(CqeOpcode, Option<CqeSyndrome>)> {
    std::iter::from_fn(|| driver.poll_cq(cq))
        .map(|c| (c.opcode().expect("known"), c.error().known()))
        .collect()
}

#[test]
fn err_flushes_everything_posted_and_everything_posted_later() {
    let mut driver = Driver::new(Setup::new("flush"));
    let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
    // A peer that is not there: what is posted stays outstanding.
    let attributes = driver.attributes(driver.qp(b).qpn);
    driver.bring_up(a, &attributes);
    let region = driver.region(4096, ALL);
    for _ in 0..3 {
        driver.post_receive(a, &[region.pointer(0, 64)]);
        driver.lay(a, &WorkRequest::send(&region, 0, 8).unsignalled());
    }
    driver.lay(a, &WorkRequest::new(SendOpcode::Send).inline(&[0; 200])).ring_doorbell(a).settle();
    state(&mut driver, a, 6);
    driver.settle();
    let (send_cq, recv_cq) = (driver.qp(a).send_cq, driver.qp(a).recv_cq);
    let flushed = (CqeOpcode::RequesterError, Some(CqeSyndrome::WrFlush));
    assert_eq!(drain(&mut driver, send_cq), [flushed; 4], "unsignalled ones too");
    let received = (CqeOpcode::ResponderError, Some(CqeSyndrome::WrFlush));
    assert_eq!(drain(&mut driver, recv_cq), [received; 3]);
    driver.post(a, &nop()).post_receive(a, &[]).advance(2_000_000);
    assert_eq!((drain(&mut driver, send_cq), drain(&mut driver, recv_cq)), (vec![flushed], vec![received]));
}

#[test]
fn a_queue_works_again_after_reset() {
    let mut driver = Driver::new(Setup::new("reset"));
    let (a, b) = driver.pair(QpShape { sq_blocks: 16, ..QpShape::default() });
    let region = driver.region(4096, ALL);
    for round in 0..5 {
        let bad = WorkRequest::write(&region, 0, 8, &region, 4090);
        driver.post(a, &WorkRequest::write(&region, 0, 8, &region, 64)).post(a, &bad).settle();
        assert_eq!((driver.state(a), driver.state(b)), (6, 6), "round {round}");
        while driver.poll_send(a).is_some() {}
        driver.reset(a);
        driver.reset(b);
        driver.connect(a, b);
        driver.post(a, &WorkRequest::write(&region, 0, 8, &region, 64)).settle();
        assert_eq!(
            driver.poll_send(a).map(|c| (c.opcode(), c.wqe_counter())),
            Some((Some(CqeOpcode::Requester), 0))
        );
    }
}

#[test]
fn a_register_write_from_before_a_reset_rings_for_nothing_that_is_posted_after_it() {
    let mut driver = Driver::new(Setup::new("rung-before"));
    let (a, b) = driver.pair(QpShape::default());
    // No round in between: the write lies in the register while the queue is reset.
    driver.lay(a, &nop()).ring_doorbell(a);
    driver.reset(a);
    driver.reset(b);
    driver.connect(a, b);
    driver.lay(a, &nop()).write_record(a).advance(1_000_000);
    assert!(driver.poll_send(a).is_none(), "its register was not written since");
    driver.write_register(a).settle();
    assert_eq!(driver.poll_send(a).and_then(|cqe| cqe.opcode()), Some(CqeOpcode::Requester));
}

#[test]
fn sqe_flushes_sends_only_and_can_be_left() {
    let mut driver = Driver::new(Setup::new("sqe"));
    let (a, b) = driver.pair(QpShape { service: ServiceType::Uc, ..QpShape::default() });
    let region = driver.region(4096, ALL);
    driver.post_receive(a, &[region.pointer(0, 64)]);
    driver.post(a, &WorkRequest::send(&region, 4090, 100)).settle();
    assert_eq!(driver.state(a), 5);
    let (send_cq, recv_cq) = (driver.qp(a).send_cq, driver.qp(a).recv_cq);
    assert_eq!(
        drain(&mut driver, send_cq),
        [(CqeOpcode::RequesterError, Some(CqeSyndrome::LocalProtection))]
    );
    driver.post(b, &WorkRequest::send(&region, 128, 8)).settle();
    assert_eq!(drain(&mut driver, recv_cq).len(), 1, "it still receives");
    state(&mut driver, a, 3);
    driver.post(a, &WorkRequest::write(&region, 0, 8, &region, 64)).settle();
    assert_eq!(drain(&mut driver, send_cq).first().map(|c| c.0), Some(CqeOpcode::Requester));
}

#[test]
fn a_drained_queue_says_so_and_starts_nothing() {
    let mut driver = Driver::new(Setup::new("sqd"));
    let (a, _) = driver.pair(QpShape::default());
    let mask = AttrMask::STATE.0 | AttrMask::EN_SQD_ASYNC_NOTIFY.0;
    driver.modify(a, &ModifyQp { state: 4, mask, ..ModifyQp::default() }).expect("RTS to SQD");
    driver.settle();
    let events = driver.sinks.take_events();
    assert_eq!(events.iter().map(|e| e.kind).collect::<Vec<_>>(), [event_type::SQ_DRAINED]);
    driver.post(a, &nop()).advance(1_000_000);
    assert!(driver.poll_send(a).is_none(), "nothing starts in SQD");
    state(&mut driver, a, 3);
    driver.settle();
    assert!(driver.poll_send(a).is_some());
}

#[test]
fn the_first_message_in_rtr_establishes_the_communication() {
    let mut driver = Driver::new(Setup::new("established"));
    let (a, b) = (driver.create_qp(QpShape::default()), driver.create_qp(QpShape::default()));
    let (qpn_a, qpn_b) = (driver.qp(a).qpn, driver.qp(b).qpn);
    driver.bring_up(a, &driver.attributes(qpn_b));
    driver.bring_up_to(b, &driver.attributes(qpn_a), 2);
    let region = driver.region(64, ALL);
    for _ in 0..3 {
        driver.post(a, &WorkRequest::write(&region, 0, 8, &region, 32)).settle();
    }
    let events = driver.sinks.take_events();
    let wanted = (driver.qp(b).user_handle, event_type::COMM_EST);
    assert_eq!(events.iter().map(|e| (e.element, e.kind)).collect::<Vec<_>>(), [wanted]);
}

#[test]
fn more_than_a_ring_of_work_goes_through_in_order() {
    let mut driver = Driver::new(Setup::new("deep"));
    let cq = driver.create_cq(CqShape { entries: 1 << 16, ..CqShape::default() });
    let (a, _) = driver.pair(QpShape { sq_blocks: 32768, send_cq: Some(cq), ..QpShape::default() });
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    let write = WorkRequest::write(&from, 0, 8, &to, 0);
    // A whole ring with one doorbell: the counters are 32768 apart, the most that 16 bits tell.
    for round in 0..3 {
        for _ in 0..32768 {
            driver.lay(a, &write);
        }
        driver.ring_doorbell(a).settle();
        for i in 0..32768u32 {
            let cqe = driver.poll_cq(cq).unwrap_or_else(|| panic!("round {round}, {i} completed"));
            assert_eq!(
                (cqe.opcode(), cqe.wqe_counter()),
                (Some(CqeOpcode::Requester), (round * 32768 + i) as u16)
            );
        }
    }
}
