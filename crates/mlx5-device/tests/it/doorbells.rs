//! Rung, not rung, rung wrongly: what a card would not execute is not executed here, and is said.

use mlx5_device::command::event_type;
use mlx5_device::config::DoorbellOrder;
use mlx5_device::doorbell::{LOOK_NS, PATIENCE_NS};
use mlx5_device::testing::{QpId, QpShape, WorkRequest};
use mlx5_device::{UarKind, Violation};
use mlx5_layout::SendOpcode;
use mlx5_layout::doorbell::Doorbell;
use roce::Now;

use crate::machine::{Driver, Setup};

fn nop() -> WorkRequest {
    WorkRequest::new(SendOpcode::Nop)
}

fn completions(driver: &mut Driver, qp: QpId) -> usize {
    std::iter::from_fn(|| driver.poll_send(qp)).count()
}

/// Rings by `ring`, then waits; returns how many of four NOPs were executed, and the violations counted.
fn attempt(name: &str, order: DoorbellOrder, ring: impl Fn(&mut Driver, QpId)) -> (usize, Vec<Violation>) {
    let mut driver = Driver::new(Setup::new(name).with(|c| c.doorbell_order = order));
    let (qp, _) = driver.pair(QpShape::default());
    ring(&mut driver, qp);
    driver.settle().advance(2 * PATIENCE_NS);
    let violations: Vec<_> =
        Violation::ALL.into_iter().filter(|v| driver.counters().violations(*v) > 0).collect();
    let events = driver.sinks.take_events();
    let named =
        events.iter().filter(|e| e.kind == event_type::QP_REQ_ERR && e.element == driver.qp(qp).user_handle);
    assert_eq!(named.count(), violations.len(), "{name}: one event for the QP");
    let lines = driver.sinks.take_lines();
    let qpn = format!("QP {:#x}", driver.qp(qp).qpn);
    assert_eq!(
        lines.iter().filter(|line| line.contains(&qpn)).count(),
        violations.len(),
        "{name}: {lines:?}"
    );
    (completions(&mut driver, qp), violations)
}

#[test]
fn a_queue_with_its_own_register_executes_what_the_register_covers() {
    use DoorbellOrder::{Early, Strict};
    let four = |d: &mut Driver, qp| {
        d.lay(qp, &nop()).lay(qp, &nop()).lay(qp, &nop()).lay(qp, &nop());
    };
    let right = attempt("right", Strict, |d, qp| {
        four(d, qp);
        d.ring_doorbell(qp);
    });
    assert_eq!(right, (4, vec![]));
    let next_index = attempt("next-index", Strict, |d, qp| {
        four(d, qp);
        d.write_record(qp).write_register_next_index(qp);
    });
    assert_eq!(next_index, (4, vec![]), "the convention of GPU libraries");
    let half = attempt("half", Strict, |d, qp| {
        d.lay(qp, &nop()).lay(qp, &nop()).ring_doorbell(qp).lay(qp, &nop()).lay(qp, &nop()).write_record(qp);
    });
    assert_eq!(half, (2, vec![Violation::Missing]));
    let missing = attempt("missing", Strict, |d, qp| {
        four(d, qp);
        d.write_record(qp);
    });
    assert_eq!(missing, (0, vec![Violation::Missing]));
    let wrong_qpn = attempt("wrong-qpn", Strict, |d, qp| {
        four(d, qp);
        let qpn = d.qp(qp).qpn + 0x100;
        let doorbell = Doorbell { index: 3, qpn, ds: 1, ..Doorbell::default() };
        d.write_record(qp).write_register_with(qp, doorbell.emit());
    });
    assert_eq!(wrong_qpn, (0, vec![Violation::WrongQpn]));
    let late = |d: &mut Driver, qp| {
        four(d, qp);
        d.write_register(qp);
        d.poll();
        d.write_record(qp);
    };
    assert_eq!(attempt("late", Strict, late), (0, vec![Violation::RecordLate]));
    assert_eq!(attempt("late-but-early", Early, late), (4, vec![]));
    let twice = attempt("twice", Strict, |d, qp| {
        four(d, qp);
        d.write_register(qp);
        d.poll();
        d.write_record(qp).write_register(qp);
    });
    assert_eq!(twice, (4, vec![]), "gpunetio rings, stores the record, and rings again");
    let range = attempt("range", Strict, |d, qp| {
        four(d, qp);
        let qp_mut = d.qp_mut(qp);
        qp_mut.posted = qp_mut.posted.wrapping_add(0x4000);
        d.write_record(qp);
    });
    assert_eq!(range, (0, vec![Violation::RecordRange]));
}

#[test]
fn a_doorbell_within_a_second_is_in_time() {
    let mut driver = Driver::new(Setup::new("in-time"));
    let (qp, _) = driver.pair(QpShape::default());
    for _ in 0..5 {
        driver.lay(qp, &nop()).write_record(qp).advance(PATIENCE_NS - 20_000_000);
        assert_eq!(completions(&mut driver, qp), 0, "only the register starts it");
        driver.write_register(qp).settle();
        assert_eq!(completions(&mut driver, qp), 1);
    }
    assert_eq!(driver.sinks.take_events(), []);
}

#[test]
fn a_process_that_was_stopped_between_record_and_register_is_not_accused() {
    let mut driver = Driver::new(Setup::new("stopped"));
    let (qp, _) = driver.pair(QpShape::default());
    driver.lay(qp, &nop()).write_record(qp);
    for _ in 0..50 {
        // The NIC's thread stands still as long as the poster, and may go on first.
        driver.poll();
        driver.now += 60 * 1_000_000_000;
    }
    driver.write_register(qp).settle();
    assert_eq!((completions(&mut driver, qp), driver.sinks.take_events()), (1, vec![]));
    assert_eq!(Violation::ALL.map(|v| driver.counters().violations(v)), [0; 4]);
}

/// Each look takes the register's line from the core of a program that writes it again and again.
#[test]
fn while_messages_are_outstanding_registers_are_looked_at_every_half_microsecond() {
    let mut driver = Driver::new(Setup::new("pace"));
    let qp = driver.create_qp(QpShape::default());
    // Nobody there answers.
    let attributes = driver.attributes(driver.qp(qp).qpn + 1);
    driver.bring_up(qp, &attributes);
    let region = driver.region(64, 7);
    let write = WorkRequest::write(&region, 0, 8, &region, 32);
    let taken_after = |driver: &mut Driver, ns: u64| {
        driver.now += ns;
        driver.nic.poll(Now(driver.now));
        driver.counters().doorbells_taken
    };
    driver.post(qp, &write);
    assert_eq!(taken_after(&mut driver, 10_000), 1, "nothing was outstanding");
    driver.post(qp, &write);
    assert_eq!([0, LOOK_NS - 1, 1].map(|ns| taken_after(&mut driver, ns)), [1, 1, 2]);
    driver.post(qp, &write);
    assert_eq!([0, LOOK_NS].map(|ns| taken_after(&mut driver, ns)), [2, 3]);
}

#[test]
fn a_violation_is_said_once_and_the_queue_goes_on_when_it_is_rung() {
    let mut driver = Driver::new(Setup::new("once"));
    let (qp, _) = driver.pair(QpShape::default());
    driver.lay(qp, &nop()).write_record(qp).advance(5 * PATIENCE_NS);
    assert_eq!(driver.counters().violations(Violation::Missing), 1);
    driver.write_register(qp).settle();
    assert_eq!(completions(&mut driver, qp), 1);
    driver.lay(qp, &nop()).write_record(qp).advance(2 * PATIENCE_NS);
    assert_eq!(driver.counters().violations(Violation::Missing), 2, "another incident");
}

#[test]
fn queues_that_share_a_register_are_executed_by_record_and_this_is_said() {
    let mut driver = Driver::new(Setup::new("shared"));
    let page = driver.create_page(UarKind::BlueFlame);
    let shape = QpShape { page: Some(page), ..QpShape::default() };
    let (a, b) = driver.pair(shape);
    // Both ring between two looks: only the second write is left in the register.
    for round in 0..10 {
        let (first, second) = if round % 2 == 0 { (a, b) } else { (b, a) };
        driver.lay(first, &nop()).ring_doorbell(first);
        driver.lay(second, &nop()).ring_doorbell(second);
        driver.settle();
        if round == 0 {
            // The first one was never seen to ring: after 10 ms the NIC takes their register for shared.
            driver.advance(20_000_000);
        }
        assert_eq!((completions(&mut driver, a), completions(&mut driver, b)), (1, 1), "round {round}");
    }
    assert!(driver.counters().doorbells_unchecked > 0);
    assert_eq!(Violation::ALL.map(|v| driver.counters().violations(v)), [0; 4]);
    assert_eq!(driver.counters().doorbells_unchecked_queues, 2, "each of the two, once");
    let lines = driver.sinks.take_lines();
    assert!(lines.len() == 1 && lines[0].contains("shares its doorbell register"), "said once: {lines:?}");
}

#[test]
fn two_queues_on_two_registers_of_one_page_are_checked() {
    let mut driver = Driver::new(Setup::new("two-registers"));
    let page = driver.create_page(UarKind::BlueFlame);
    let shape = |register| QpShape { page: Some(page), register, ..QpShape::default() };
    let (a, b) = (driver.create_qp(shape(0)), driver.create_qp(shape(1)));
    driver.connect(a, b);
    for _ in 0..3 {
        driver.lay(a, &nop()).ring_doorbell(a).lay(b, &nop()).ring_doorbell(b).settle();
        assert_eq!((completions(&mut driver, a), completions(&mut driver, b)), (1, 1));
    }
    driver.lay(a, &nop()).write_record(a).advance(2 * PATIENCE_NS);
    assert_eq!(completions(&mut driver, a), 0);
    assert_eq!(driver.counters().violations(Violation::Missing), 1);
    assert_eq!(driver.counters().doorbells_unchecked, 0);
}

#[test]
fn a_doorbell_that_names_the_neighbour_does_not_pass_for_sharing() {
    let mut driver = Driver::new(Setup::new("neighbour"));
    let page = driver.create_page(UarKind::BlueFlame);
    let shape = |register| QpShape { page: Some(page), register, ..QpShape::default() };
    let (a, b) = (driver.create_qp(shape(0)), driver.create_qp(shape(1)));
    driver.connect(a, b);
    driver.lay(a, &nop()).ring_doorbell(a).lay(b, &nop()).ring_doorbell(b).settle();
    assert_eq!((completions(&mut driver, a), completions(&mut driver, b)), (1, 1));
    let qpn = driver.qp(b).qpn;
    let doorbell = Doorbell { index: 1, qpn, ds: 1, ..Doorbell::default() };
    driver.lay(a, &nop()).write_record(a).write_register_with(a, doorbell.emit()).settle();
    // The neighbour's own doorbell says nothing of this one.
    driver.lay(b, &nop()).ring_doorbell(b).advance(2 * PATIENCE_NS);
    assert_eq!(
        (completions(&mut driver, a), completions(&mut driver, b)),
        (0, 1),
        "not executed by its record"
    );
    assert_eq!(driver.counters().violations(Violation::WrongQpn), 1);
    assert_eq!(driver.counters().doorbells_unchecked, 0);
}

#[test]
fn queues_of_a_non_cached_page_are_not_checked_once_there_are_two() {
    let mut driver = Driver::new(Setup::new("non-cached"));
    let page = driver.create_page(UarKind::NonCached);
    let shape = QpShape { page: Some(page), ..QpShape::default() };
    let (a, b) = driver.pair(shape);
    for qp in [a, b] {
        driver.lay(qp, &nop()).write_record(qp).settle();
        driver.advance(1_000_000);
        assert_eq!(completions(&mut driver, qp), 1, "by its record");
    }
    assert_eq!(driver.counters().doorbells_unchecked, 2);
}

#[test]
fn without_strictness_the_record_is_enough() {
    let mut driver = Driver::new(Setup::new("lax").with(|c| c.strict = false));
    let (qp, _) = driver.pair(QpShape::default());
    driver.lay(qp, &nop()).write_record(qp).advance(1_000_000);
    assert_eq!(completions(&mut driver, qp), 1);
    assert_eq!(driver.sinks.take_lines(), [""; 0], "nothing was asked to be checked");
}

#[test]
fn a_register_that_nobody_has_is_counted() {
    let mut driver = Driver::new(Setup::new("stray"));
    let (a, b) = driver.pair(QpShape::default());
    let qpn = driver.qp(b).qpn;
    let other = Doorbell { index: 0, qpn, ds: 1, ..Doorbell::default() };
    // B's number in A's register: B is not on that page.
    driver.write_register_with(a, other.emit()).advance(2_000_000);
    assert_eq!((driver.counters().doorbells_stray, driver.counters().doorbells_taken), (1, 1));
}

#[test]
fn an_idle_queue_among_a_thousand_is_heard_within_a_millisecond() {
    let mut driver = Driver::new(Setup::new("thousand"));
    let cq = Some(driver.create_cq(mlx5_device::testing::CqShape::default()));
    let page = driver.create_page(UarKind::NonCached);
    let shape = QpShape { send_cq: cq, recv_cq: cq, page: Some(page), ..QpShape::default() };
    let queues: Vec<_> = (0..1000).map(|_| driver.create_qp(shape)).collect();
    for qp in queues.iter().copied() {
        let attributes = driver.attributes(driver.qp(qp).qpn);
        driver.bring_up(qp, &attributes);
    }
    driver.advance(10_000_000);
    for qp in queues.into_iter().step_by(97) {
        driver.lay(qp, &nop()).write_record(qp);
        let start = driver.now;
        while driver.poll_send(qp).is_none() {
            driver.poll();
            assert!(driver.now - start < 1_000_000, "still not heard");
        }
    }
}

#[test]
fn a_queue_that_was_reset_after_a_stray_doorbell_works() {
    let mut driver = Driver::new(Setup::new("reset-after-stray"));
    let (a, b) = driver.pair(QpShape::default());
    for next_index in [false, true] {
        let mut wqe = nop().wqe(driver.qp(a).qpn, driver.qp(a).posted).expect("a WQE");
        wqe[5] ^= 1;
        driver.lay_bytes(a, &wqe).ring_doorbell(a);
        driver.settle();
        assert_eq!(completions(&mut driver, a), 0);
        driver.reset(a);
        driver.reset(b);
        driver.connect(a, b);
        driver.lay(a, &nop()).write_record(a);
        if next_index {
            driver.write_register_next_index(a);
        } else {
            driver.write_register(a);
        }
        driver.settle();
        assert_eq!(completions(&mut driver, a), 1, "{next_index}");
    }
}
