//! Both directions of one connection: its requester and its responder share nothing but their number (IBTA vol. 1 chapter 9).

use mlx5_layout::CqeOpcode;
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpId, QpShape, Setup, WorkRequest};

use crate::operations::{ALL, on_the_wire};

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
    for (name, setup) in [
        ("wire", on_the_wire("duplex-wire")),
        ("staged", Setup::new("duplex-staged").with(|config| config.staging = true)),
    ] {
        let mut driver = Driver::new(setup);
        let (a, b) = driver.pair(QpShape::default());
        let (from, to) = (driver.region(LONG as usize, ALL), driver.region(LONG as usize, ALL));
        driver.post_receive(a, &[to.pointer(0, 64)]);
        driver.post(a, &WorkRequest::read(&to, 0, LONG, &from, 0));
        // The answer has begun.
        let sent = |driver: &mut Driver<Host>| {
            let packets = driver.nic.link().wire_counters().map_or(0, |(wire, _)| wire.sent);
            driver.nic.link().counters().inline_bytes + packets
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

/// Sends from one end, and waits until it has come to the other.
fn say(driver: &mut Driver<Host>, (from, to): (QpId, QpId), request: &WorkRequest) {
    driver.post(from, request);
    let waited = rounds(driver, |driver| driver.poll_receive(to).is_some());
    assert!(waited < 8, "a round takes a microsecond; it came after {waited}");
}

#[test]
fn in_a_conversation_an_acknowledgement_leaves_with_the_answer_and_waits_for_none_that_does_not_come() {
    let mut driver = Driver::new(on_the_wire("duplex-talk"));
    let (a, b) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(64, ALL), driver.region(64, ALL));
    for _ in 0..8 {
        driver.post_receive(a, &[to.pointer(0, 64)]);
        driver.post_receive(b, &[to.pointer(0, 64)]);
    }
    let word = WorkRequest::send(&from, 0, 8);
    let acknowledged = |driver: &mut Driver<Host>| driver.poll_send(a).is_some();
    // Nobody knows yet that they converse.
    say(&mut driver, (a, b), &word);
    let waited = rounds(&mut driver, acknowledged);
    assert!(waited <= 3, "the first acknowledgement came after {waited} rounds");
    say(&mut driver, (b, a), &word);
    for turn in 0..3 {
        rounds(&mut driver, |driver| driver.poll_send(b).is_some());
        say(&mut driver, (a, b), &word);
        for _ in 0..4 {
            driver.poll();
        }
        assert!(driver.poll_send(a).is_none(), "turn {turn}: it left before the answer");
        say(&mut driver, (b, a), &word);
        assert!(rounds(&mut driver, acknowledged) <= 2, "turn {turn}: it did not leave with the answer");
    }
    // No answer: ten microseconds; and then nobody waits for one.
    rounds(&mut driver, |driver| driver.poll_send(b).is_some());
    say(&mut driver, (a, b), &word);
    let waited = rounds(&mut driver, acknowledged);
    assert!((6..=14).contains(&waited), "an acknowledgement without an answer came after {waited} rounds");
    say(&mut driver, (a, b), &word);
    let waited = rounds(&mut driver, acknowledged);
    assert!(waited <= 3, "the one after it came after {waited} rounds");
}
