//! Shared receive queues: which QP gets which receive, completions, events, and what ends a queue.

use mlx5_device::command::{CreateSrq, ModifyQp, ModifySrq, event_type};
use mlx5_device::commands::*;
use mlx5_device::errno;
use mlx5_device::testing::{QpId, QpShape, SrqId, WorkRequest};
use mlx5_layout::send_wqe::AddressVector;
use mlx5_layout::{CqeOpcode, CqeSyndrome};
use roce::ServiceType;
use roce::qp_state::AttrMask;

use crate::machine::{ALL, Driver, Setup, syndrome};

/// `count` connected pairs; the second of each takes from one queue of `max_wr` receives.
fn pairs(driver: &mut Driver, count: usize, max_wr: u32) -> (SrqId, Vec<(QpId, QpId)>) {
    let srq = driver.create_srq(max_wr, 2);
    let pairs = (0..count).map(|_| {
        let a = driver.create_qp(QpShape::default());
        let b = driver.create_qp(QpShape { srq: Some(srq), rq_entries: 0, ..QpShape::default() });
        driver.connect(a, b);
        (a, b)
    });
    (srq, pairs.collect())
}

fn events(driver: &Driver) -> Vec<(u64, u32)> {
    let established = |event: &(u64, u32)| event.1 != event_type::COMM_EST;
    driver.sinks.take_events().iter().map(|e| (e.element, e.kind)).filter(established).collect()
}

#[test]
fn queues_take_the_list_in_its_order_and_completions_name_the_entry() {
    let mut driver = Driver::new(Setup::new("srq-order"));
    let (srq, pairs) = pairs(&mut driver, 3, 7);
    let (from, to) = (driver.region(4096, ALL), driver.region(4096, ALL));
    let mut expected = std::collections::VecDeque::new();
    let mut free = Vec::new();
    // Past the wrap of the 16-bit count of posts.
    for round in 0..30_000u32 {
        while driver.srq(srq).head != driver.srq(srq).tail {
            let at = u64::from(driver.srq(srq).head) * 16;
            let entry = driver.post_shared(srq, &[to.pointer(at, 8), to.pointer(at + 8, 8)]);
            expected.push_back(entry);
        }
        for (a, b) in pairs.iter().copied() {
            let wanted = expected.pop_front().expect("seven are posted");
            let bytes = from.fill(0, 16, round as u8);
            driver.post(a, &WorkRequest::send(&from, 0, 16));
            while driver.poll_send(a).is_none() {
                driver.poll();
            }
            let cqe = driver.poll_receive(b).expect("a receive");
            assert_eq!((cqe.opcode(), cqe.wqe_counter()), (Some(CqeOpcode::ResponderSend), wanted));
            assert_eq!(to.block.bytes(usize::from(wanted) * 16, 16), bytes, "round {round}");
            free.push(wanted);
        }
        // They come back in another order than they went.
        free.rotate_left(round as usize % 3);
        free.drain(..).for_each(|entry| driver.free_shared(srq, entry));
    }
    assert_eq!(driver.counters().rnr_naks_sent, 0);
}

#[test]
fn a_queue_in_the_place_of_one_that_failed_is_not_taken_for_it() {
    let mut driver = Driver::new(Setup::new("srq-replaced"));
    let (srq, pairs) = pairs(&mut driver, 1, 3);
    // The command finds the record ahead of the ring; the queue's QPs would follow in the next round.
    driver.write_shared_record(srq, 12);
    driver.arm_limit(srq, 1).expect("a limit");
    let failed = (driver.srq(srq).user_handle, event_type::SRQ_ERR);
    assert_eq!(events(&driver), [failed]);
    driver.replace_shared(pairs[0].1);
    driver.settle();
    assert_eq!(events(&driver), []);
}

#[test]
fn an_empty_queue_is_not_ready_and_a_datagram_for_it_is_dropped() {
    let mut driver = Driver::new(Setup::new("srq-empty"));
    let (srq, pairs) = pairs(&mut driver, 1, 3);
    let (a, b) = pairs[0];
    let (from, to) = (driver.region(64, ALL), driver.region(128, ALL));
    let bytes = from.fill(0, 64, 3);
    driver.post(a, &WorkRequest::send(&from, 0, 64)).settle();
    assert!(driver.poll_receive(b).is_none());
    assert!(driver.counters().rnr_naks_sent > 0);
    driver.post_shared(srq, &[to.pointer(0, 64)]);
    driver.advance(100_000_000);
    assert_eq!(driver.poll_send(a).and_then(|cqe| cqe.opcode()), Some(CqeOpcode::Requester));
    assert_eq!(driver.poll_receive(b).map(|cqe| cqe.wqe_counter()), Some(0));
    assert_eq!(to.block.bytes(0, 64), bytes);

    let shape = QpShape { service: ServiceType::Ud, ..QpShape::default() };
    let (c, d) = (driver.create_qp(shape), driver.create_qp(QpShape { srq: Some(srq), ..shape }));
    driver.connect(c, d);
    let vector = AddressVector {
        qkey: 0x1111_1111,
        destination_qpn: driver.qp(d).qpn,
        extended: true,
        lid_or_udp_port: driver.address().dlid,
        ..AddressVector::default()
    };
    let datagram = WorkRequest { datagram: Some(vector), ..WorkRequest::send(&from, 0, 64) };
    driver.post(c, &datagram).settle();
    let entry = driver.post_shared(srq, &[to.pointer(0, 104)]);
    driver.post(c, &datagram).settle();
    let cqe = driver.poll_receive(d).expect("the second datagram");
    assert_eq!((cqe.wqe_counter(), cqe.byte_count()), (entry, 104));
    assert_eq!(to.block.bytes(40, 64), bytes);
    assert!(driver.poll_receive(d).is_none());
}

#[test]
fn the_limit_event_comes_once_an_arming() {
    let mut driver = Driver::new(Setup::new("srq-limit"));
    let (srq, pairs) = pairs(&mut driver, 2, 15);
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    let element = driver.srq(srq).user_handle;
    let limit = |driver: &Driver| {
        driver.nic.query_srq(driver.context, driver.srq(srq).handle).expect("the SRQ").limit
    };
    let send = |driver: &mut Driver, pair: usize| {
        driver.post(pairs[pair].0, &WorkRequest::send(&from, 0, 8)).settle();
        assert!(driver.poll_receive(pairs[pair].1).is_some());
    };
    for _ in 0..8 {
        driver.post_shared(srq, &[to.pointer(0, 8)]);
    }
    driver.arm_limit(srq, 6).expect("a limit");
    assert_eq!((events(&driver), limit(&driver)), (vec![], 6));
    send(&mut driver, 0);
    send(&mut driver, 1);
    assert_eq!((events(&driver), limit(&driver)), (vec![], 6), "six are left, as many as the limit");
    // Posts count, though the device had no reason to look at the record since.
    driver.post_shared(srq, &[to.pointer(0, 8)]);
    send(&mut driver, 0);
    assert_eq!(events(&driver), []);
    send(&mut driver, 0);
    assert_eq!(events(&driver), [(element, event_type::SRQ_LIMIT_REACHED)], "five are left");
    assert_eq!(limit(&driver), 0, "not armed any more");
    send(&mut driver, 1);
    assert_eq!(events(&driver), [], "once an arming");
    driver.arm_limit(srq, 5).expect("a limit");
    assert_eq!(events(&driver), [(element, event_type::SRQ_LIMIT_REACHED)], "four are there: at once");
    driver.arm_limit(srq, 4).expect("a limit");
    driver.arm_limit(srq, 0).expect("disarmed");
    send(&mut driver, 0);
    assert_eq!(events(&driver), []);
    let handle = driver.srq(srq).handle;
    for (_, b) in pairs {
        driver.nic.destroy_qp(driver.context, driver.qp(b).handle).expect("the QP");
    }
    assert_eq!(
        driver.nic.destroy_srq(driver.context, handle),
        Ok(2),
        "events that the program must have read"
    );
}

#[test]
fn a_queue_in_error_says_that_it_takes_nothing_more_and_leaves_the_rest_to_others() {
    let mut driver = Driver::new(Setup::new("srq-last"));
    let (srq, pairs) = pairs(&mut driver, 2, 7);
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    for _ in 0..3 {
        driver.post_shared(srq, &[to.pointer(0, 8)]);
    }
    let (_, b) = pairs[0];
    let to_error = ModifyQp { state: 6, mask: AttrMask::STATE.0, ..ModifyQp::default() };
    driver.modify(b, &to_error).expect("ERR is always allowed");
    driver.settle();
    assert_eq!(events(&driver), [(driver.qp(b).user_handle, event_type::QP_LAST_WQE_REACHED)]);
    assert!(driver.poll_receive(b).is_none(), "nothing is flushed: the receives are not its own");
    for _ in 0..3 {
        driver.post(pairs[1].0, &WorkRequest::send(&from, 0, 8)).settle();
        let opcode = driver.poll_receive(pairs[1].1).and_then(|cqe| cqe.opcode());
        assert_eq!(opcode, Some(CqeOpcode::ResponderSend));
    }
    // By itself, with the receive that failed.
    driver.post_shared(srq, &[to.pointer(0, 4)]);
    driver.post(pairs[1].0, &WorkRequest::send(&from, 0, 8)).settle();
    let failed = driver.poll_receive(pairs[1].1).expect("an error");
    assert_eq!((syndrome(&failed), failed.wqe_counter()), (Some(CqeSyndrome::LocalLength), 3));
    let kinds: Vec<u32> = events(&driver).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == event_type::QP_LAST_WQE_REACHED).count(), 1, "{kinds:?}");
}

#[test]
fn a_list_that_leads_nowhere_ends_the_queue_and_those_that_take_from_it() {
    type Spoil = fn(&mut Driver, SrqId);
    let cases: [(&str, Spoil); 3] = [
        ("a link out of the ring", |driver, srq| driver.link_shared(srq, 0, 8)),
        ("a record ahead of the ring", |driver, srq| driver.write_shared_record(srq, 12)),
        ("a record behind what was taken", |driver, srq| driver.write_shared_record(srq, 0)),
    ];
    for (i, (name, spoil)) in cases.into_iter().enumerate() {
        let mut driver = Driver::new(Setup::new(&format!("srq-invalid-{i}")));
        let (srq, pairs) = pairs(&mut driver, 2, 7);
        let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
        driver.post_shared(srq, &[to.pointer(0, 8)]);
        if name.contains("link") {
            driver.post_shared(srq, &[to.pointer(0, 8)]);
            spoil(&mut driver, srq);
        }
        driver.post(pairs[0].0, &WorkRequest::send(&from, 0, 8)).settle();
        assert!(driver.poll_receive(pairs[0].1).is_some(), "{name}: the first is right");
        if !name.contains("link") {
            spoil(&mut driver, srq);
        }
        events(&driver);
        driver.post(pairs[1].0, &WorkRequest::send(&from, 0, 8)).settle();
        let all = events(&driver);
        assert_eq!(all[0], (driver.srq(srq).user_handle, event_type::SRQ_ERR), "{name}");
        for (_, b) in pairs {
            let of: Vec<u32> = all.iter().filter(|e| e.0 == driver.qp(b).user_handle).map(|e| e.1).collect();
            assert_eq!(of, [event_type::QP_FATAL, event_type::QP_LAST_WQE_REACHED], "{name}");
            assert_eq!(driver.state(b), 6, "{name}");
        }
        let lines = driver.sinks.take_lines();
        assert!(lines.iter().any(|line| line.contains("it and its QPs are in error")), "{name}: {lines:?}");
        driver.arm_limit(srq, 3).expect("a limit");
        assert_eq!(events(&driver), [], "{name}: once");
    }
}

/// The limit that is being armed is not reached: the record cannot be read.
#[test]
fn an_unmapped_record_ends_the_queue_where_its_limit_is_armed() {
    let mut driver = Driver::new(Setup::new("srq-unmapped"));
    let (srq, pairs) = pairs(&mut driver, 1, 7);
    driver.srq(srq).record.protect(0);
    driver.arm_limit(srq, 3).expect("it is taken");
    driver.settle();
    let all = events(&driver);
    assert_eq!(all[0], (driver.srq(srq).user_handle, event_type::SRQ_ERR), "{all:?}");
    assert_eq!(driver.state(pairs[0].1), 6);
}

#[test]
fn keys_belong_to_the_domain_of_the_shared_queue() {
    let mut driver = Driver::new(Setup::new("srq-pd"));
    let from = driver.region(64, ALL);
    let own = driver.pd;
    driver.pd = driver.nic.alloc_pd(driver.context).expect("a PD").handle;
    let (srq, there) = (driver.create_srq(7, 1), driver.region(64, ALL));
    driver.pd = own;
    let here = driver.region(64, ALL);
    for (to, wanted) in [(&there, None), (&here, Some(CqeSyndrome::LocalProtection))] {
        let a = driver.create_qp(QpShape::default());
        let b = driver.create_qp(QpShape { srq: Some(srq), rq_entries: 0, ..QpShape::default() });
        driver.connect(a, b);
        driver.post_shared(srq, &[to.pointer(0, 8)]);
        driver.post(a, &WorkRequest::send(&from, 0, 8)).settle();
        let cqe = driver.poll_receive(b).expect("a completion");
        let failed = cqe.opcode() == Some(CqeOpcode::ResponderError);
        assert_eq!(if failed { syndrome(&cqe) } else { None }, wanted);
    }
}

#[test]
fn commands_are_refused_as_the_driver_refuses_them() {
    let mut driver = Driver::new(Setup::new("srq-commands"));
    let (ring, record) = (driver.block(16 * 32), driver.block(64));
    let good = CreateSrq {
        pd: driver.pd,
        max_wr: 15,
        max_sge: 1,
        user_handle: 1,
        buffer: ring.address(),
        record: record.address(),
    };
    for (name, request, errno) in [
        ("good", good, 0),
        ("no receives", CreateSrq { max_wr: 0, ..good }, 0),
        ("more receives than a queue has", CreateSrq { max_wr: 32768, ..good }, errno::EINVAL),
        ("the most that a number holds", CreateSrq { max_wr: u32::MAX, ..good }, errno::EINVAL),
        ("entries beyond a descriptor", CreateSrq { max_sge: 32, ..good }, errno::EINVAL),
        ("entries that overflow", CreateSrq { max_sge: u32::MAX, ..good }, errno::EINVAL),
        ("ring outside memory", CreateSrq { max_wr: 16, ..good }, errno::EFAULT),
        ("record nowhere", CreateSrq { record: 8, ..good }, errno::EFAULT),
        ("ring not aligned", CreateSrq { buffer: good.buffer + 8, ..good }, errno::EINVAL),
        ("no such PD", CreateSrq { pd: 99, ..good }, errno::EINVAL),
    ] {
        let made = driver.nic.create_srq(driver.context, &request);
        let got = made.as_ref().map_or_else(|error| error.errno, |_| 0);
        assert_eq!(got, errno, "{name}");
        if let Ok(srq) = made {
            assert_eq!(driver.nic.destroy_srq(driver.context, srq.handle), Ok(0));
        }
    }
    let srq = driver.create_srq(15, 2);
    let handle = driver.srq(srq).handle;
    let modify = |driver: &mut Driver, handle, mask, limit| {
        let answer = driver.nic.modify_srq(driver.context, handle, &ModifySrq { mask, limit });
        answer.map_or_else(|error| error.errno, |()| 0)
    };
    assert_eq!(modify(&mut driver, handle, 2, 15), 0);
    assert_eq!(modify(&mut driver, handle, 2, 16), errno::EINVAL, "above its size");
    assert_eq!(modify(&mut driver, handle, 1, 0), errno::EINVAL, "no resize");
    assert_eq!(modify(&mut driver, 99, 2, 1), errno::EINVAL);
    assert!(driver.nic.query_srq(driver.context, 99).is_err());
    let qp = driver.create_qp(QpShape { srq: Some(srq), ..QpShape::default() });
    let cap = driver.nic.query_qp(driver.context, driver.qp(qp).handle).expect("the QP").cap;
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
    let busy = driver.nic.destroy_srq(driver.context, handle).unwrap_err();
    assert_eq!(busy.errno, errno::EBUSY);
    driver.nic.destroy_qp(driver.context, driver.qp(qp).handle).expect("the QP");
    driver.nic.destroy_srq(driver.context, handle).expect("nobody uses it");
    driver.nic.lower_limits(|limits| limits.max_srq = 0);
    assert_eq!(driver.nic.create_srq(driver.context, &good).unwrap_err().errno, errno::ENOMEM);
}
