//! Both directions of a connection: requester and responder share only their number (IBTA vol. 1 chapter 9).

use std::time::Duration;

use mlx5_device::command::ModifyQp;
use mlx5_device::commands::*;
use mlx5_layout::CqeOpcode;
use roce::qp_state::{AttrMask, QpState};
use roce::{Now, ServiceType};
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpShape, Region, Setup, WorkRequest};

use crate::operations::{ALL, on_the_wire};
use crate::two::{By, Two, joined, sent};

/// A READ whose answer takes a responder many rounds.
const LONG: u32 = 4 << 20;

/// Rounds after which nothing is expected any more.
const ENOUGH: u32 = 100_000;

fn counter(driver: &Driver<Host>, wanted: &str) -> u64 {
    driver.counters().fields().find(|(name, _)| *name == wanted).expect("a counter").1
}

/// Rounds until `done`, ENOUGH at most.
fn rounds(driver: &mut Driver<Host>, mut done: impl FnMut(&mut Driver<Host>) -> bool) -> u32 {
    (1..ENOUGH)
        .find(|_| {
            driver.poll();
            done(driver)
        })
        .unwrap_or(ENOUGH)
}

#[test]
fn a_message_does_not_wait_for_the_answer_to_a_read_that_its_queue_streams() {
    for (name, setup) in [("wire", on_the_wire("duplex-wire")), ("shared memory", Setup::new("duplex"))] {
        let mut driver = Driver::new(setup);
        let (a, b) = driver.pair(QpShape::default());
        let (from, to) = (driver.region(LONG as usize, ALL), driver.region(LONG as usize, ALL));
        driver.post_receive(a, &[to.pointer(0, 64)]);
        driver.post(a, &WorkRequest::read(&to, 0, LONG, &from, 0));
        // The answer has begun.
        let sent = |driver: &mut Driver<Host>| {
            let packets = driver.nic.link().wire_counters().map_or(0, |wire| wire.packets_sent);
            driver.nic.link().counters().payload_bytes + packets
        };
        rounds(&mut driver, |driver| sent(driver) > 8);
        driver.post(b, &WorkRequest::send(&from, 0, 8));
        let waited = rounds(&mut driver, |driver| driver.poll_send(b).is_some());
        assert!(waited < ENOUGH, "{name}: the SEND never ended");
        assert!(driver.poll_send(a).is_none(), "{name}: the SEND waited for the whole READ");
        // And it has taken nothing from the other.
        rounds(&mut driver, |driver| counter(driver, "bytes_read") >= u64::from(LONG));
        driver.settle();
        assert!(driver.poll_send(a).is_some_and(|cqe| cqe.opcode() == Some(CqeOpcode::Requester)), "{name}");
        assert!(driver.poll_receive(a).is_some(), "{name}");
    }
}

#[test]
fn a_turnaround_lasts_from_the_last_message_until_its_queue_s_next_send() {
    let mut driver = Driver::new(Setup::new("turnaround"));
    const MS: u64 = 1_000_000;
    let (a, b) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    let write = WorkRequest::new(mlx5_layout::SendOpcode::RdmaWrite).pointer(&from, 0, 8).remote(&to, 0);
    let found = |driver: &Driver<_>| (driver.counters().turnarounds, driver.counters().turnaround_ns);
    driver.post(a, &write).settle().advance(50 * MS);
    driver.post(a, &write).settle();
    assert_eq!(found(&driver), (0, 0), "nothing was sent behind a message of the peer");
    driver.advance(5 * MS);
    driver.post(b, &write).settle();
    let (count, ns) = found(&driver);
    assert!(count == 1 && (5 * MS..50 * MS).contains(&ns), "{count} {ns}");
    driver.post(b, &write).settle();
    assert_eq!(found(&driver), (1, ns), "the second one answers nothing");
}

/// Rounds of both until `done`. A kernel slow to hand a packet over gets real time, hardly any virtual.
fn until(two: &mut Two, what: &str, mut done: impl FnMut(&mut Two) -> bool) -> u32 {
    const PROMPT: u32 = 200;
    const MOST: u32 = PROMPT + 20_000;
    for count in 1..MOST {
        two.rounds(1);
        if done(two) {
            return count;
        }
        if count > PROMPT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    panic!("{what}: not within {MOST} rounds, and not within 20 s");
}

/// Packets that a NIC has given to the kernel.
fn packets(driver: &mut Driver<Host>) -> u64 {
    driver.nic.link().wire_counters().expect("a wire").packets_sent
}

/// Two NICs on the wire, with receives at both ends.
fn two_programs(name: &str) -> Two {
    let mut two = joined(name, ServiceType::Rc, By::Wire);
    for _ in 0..16 {
        let (left, right) = (two.from.pointer(0, 64), two.to.pointer(0, 64));
        two.left.post_receive(two.a, &[left]);
        two.right.post_receive(two.b, &[right]);
    }
    two
}

/// Left says something; returns when right has got it.
fn left_says(two: &mut Two) {
    two.left.post(two.a, &WorkRequest::send(&two.from, 0, 8));
    until(two, "a word to the right", |two| two.right.poll_receive(two.b).is_some());
}

/// Right says something, and the answer is there; returns right's packets when the first of them leaves.
fn right_answers(two: &mut Two) -> u64 {
    let before = packets(&mut two.right);
    two.right.post(two.b, &WorkRequest::send(&two.to, 0, 8));
    until(two, "an answer leaves", |two| packets(&mut two.right) > before);
    let left = packets(&mut two.right);
    until(two, "the answer", |two| two.left.poll_receive(two.a).is_some());
    left
}

/// What left has said is complete, and so is what right has answered.
fn both_complete(two: &mut Two) {
    until(two, "a completion on the left", |two| sent(&mut two.left, two.a) == Some(Ok(())));
    until(two, "a completion on the right", |two| sent(&mut two.right, two.b) == Some(Ok(())));
}

#[test]
fn in_a_conversation_an_acknowledgement_leaves_with_the_answer_and_waits_for_none_that_does_not_come() {
    let mut two = two_programs("duplex-talk");
    let before = packets(&mut two.right);
    // Nobody knows yet that they converse.
    left_says(&mut two);
    assert_eq!(packets(&mut two.right), before + 1, "the first acknowledgement leaves at once");
    right_answers(&mut two);
    for turn in 0..3 {
        both_complete(&mut two);
        let before = packets(&mut two.right);
        left_says(&mut two);
        two.rounds(4);
        assert_eq!(packets(&mut two.right), before, "turn {turn}: it left before the answer");
        assert_eq!(right_answers(&mut two), before + 2, "turn {turn}: it leaves with the answer");
    }
    // No answer: ten microseconds; then none is awaited. The virtual clock says when it leaves, not arrives.
    both_complete(&mut two);
    let before = packets(&mut two.right);
    left_says(&mut two);
    let waited = until(&mut two, "its acknowledgement", |two| packets(&mut two.right) > before);
    assert!((6..=14).contains(&waited), "an acknowledgement without an answer left after {waited} rounds");
    left_says(&mut two);
    assert_eq!(packets(&mut two.right), before + 2, "the one after it leaves at once");
}

/// How a queue goes away.
#[derive(Debug, Clone, Copy)]
enum End {
    Destroyed,
    Moved(QpState),
    Closed,
    /// The program ends: the NIC's last rounds.
    Last,
    /// A send of its own fails, and then its program destroys it.
    Failed,
}

fn end(two: &mut Two, end: End) {
    let (driver, b) = (&mut two.right, two.b);
    let (context, handle) = (driver.context, driver.qp(b).handle);
    match end {
        End::Destroyed => drop(driver.nic.destroy_qp(context, handle).expect("the QP")),
        End::Moved(state) => {
            let mask = AttrMask::STATE.0;
            let request = ModifyQp { state: state.number(), mask, ..ModifyQp::default() };
            driver.modify(b, &request).expect("allowed from everywhere");
        }
        End::Closed => driver.nic.close_context(context),
        End::Last => drop(driver.nic.poll_last(Now(driver.now))),
        End::Failed => {
            let nowhere = Region { lkey: !two.to.lkey, ..two.to.clone() };
            driver.post(b, &WorkRequest::send(&nowhere, 0, 8));
            rounds(driver, |driver| driver.state(b) == QpState::Err.number());
            driver.nic.destroy_qp(context, handle).expect("the QP");
        }
    }
}

#[test]
fn what_a_program_has_seen_arrive_is_acknowledged_though_its_queue_goes_away_at_once() {
    use End::{Closed, Destroyed, Failed, Last, Moved};
    let mut lost = Vec::new();
    for way in [Destroyed, Moved(QpState::Err), Moved(QpState::Reset), Closed, Last, Failed] {
        let mut two = two_programs("duplex-end");
        left_says(&mut two);
        right_answers(&mut two);
        both_complete(&mut two);
        let before = packets(&mut two.right);
        left_says(&mut two);
        assert_eq!(
            packets(&mut two.right),
            before,
            "{way:?}: nothing waits for an answer that could be lost"
        );
        end(&mut two, way);
        // Right does nothing any more: what has not left is lost, and left asks again until it gives up.
        let mut outcome = None;
        for _ in 0..2_000_000 {
            two.left.poll();
            outcome = outcome.or_else(|| sent(&mut two.left, two.a));
            if outcome.is_some() {
                break;
            }
            std::thread::yield_now();
        }
        lost.extend(outcome.filter(|outcome| outcome.is_ok()).is_none().then_some((way, outcome)));
    }
    assert!(lost.is_empty(), "executed and seen, but not acknowledged: {lost:?}");
}

#[test]
fn the_first_message_between_two_processes_is_acknowledged_though_its_queue_goes_away_at_once() {
    use End::{Closed, Destroyed, Last, Moved};
    for way in [Destroyed, Moved(QpState::Err), Moved(QpState::Reset), Closed, Last] {
        let mut two = joined("duplex-first", ServiceType::Rc, By::Memory);
        two.right.post_receive(two.b, &[two.to.pointer(0, 64)]);
        two.left.post(two.a, &WorkRequest::send(&two.from, 0, 8));
        while two.right.poll_receive(two.b).is_none() {
            two.left.poll();
            two.right.poll();
        }
        end(&mut two, way);
        // Left has not attached to right's channel yet, in which nothing was before.
        let mut outcome = None;
        rounds(&mut two.left, |left| {
            outcome = sent(left, two.a);
            outcome.is_some()
        });
        assert_eq!(outcome, Some(Ok(())), "{way:?}");
    }
}
