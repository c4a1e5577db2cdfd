//! Payloads taken back: who sees what, for how long it is waited, and what a peer that breaks the rules costs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roce::{Opcode, ReplyKind};

use super::processes::{Peer, child_config, config, connect, end_flag, fabric_name, reply_to, request};
use crate::dma::testing::Absent;
use crate::dma::{Order, Segment};
use crate::link::loan::{self, HELD, Hold, VOID};
use crate::link::{
    CopyError, Disposition, Link, LinkEvent, Loan, MAX_INLINE, Message, NoPeer, PathAddress, Payload, Room,
    TakenBack,
};

const LEN: usize = 64 * 1024;

/// Longer than any wait that the link allows itself, and shorter than two.
const BOUND: Duration = Duration::from_millis(1_900);

/// Longest wait of one thread of a test for another: a crowded machine is slow, what was lost never comes.
const PATIENCE: Duration = Duration::from_secs(30);

fn wait_for(what: &str, came: impl Fn() -> bool) {
    let begun = Instant::now();
    while !came() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not come within {PATIENCE:?}");
        std::thread::yield_now();
    }
}

/// Says that a thread ends, also when it panics, so that the other does not go on without it.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn pair() -> (Link, Link) {
    let fabric = fabric_name();
    let mut a = Link::join(config(&fabric, false)).unwrap();
    let mut b = Link::join(config(&fabric, false)).unwrap();
    while a.room(b.slot()) != Room::Yes || b.room(a.slot()) != Room::Yes {
        a.poll(1, |_| Disposition::Consumed);
        b.poll(1, |_| Disposition::Consumed);
    }
    (a, b)
}

fn segment(words: &[AtomicU64]) -> Segment {
    Segment { addr: words.as_ptr() as u64, len: 8 * words.len() as u64 }
}

fn words(value: u64) -> Vec<AtomicU64> {
    (0..LEN / 8).map(|_| AtomicU64::new(value)).collect()
}

fn all(words: &[AtomicU64], value: u64) -> bool {
    words.iter().all(|word| word.load(Ordering::Relaxed) == value)
}

/// Lends `source` to whoever has the slot, as a WRITE.
fn lend(link: &mut Link, slot: u8, source: &[AtomicU64]) -> Loan {
    let write = request(link, Link::first_qpn(slot), Opcode::Write, 0, 0, LEN as u32);
    let sent = link.send_request(&write, &PathAddress::default(), Payload::Segments(&[segment(source)]));
    link.ring_bells();
    sent.unwrap().loan.expect("a payload of this size goes by reference")
}

#[test]
fn what_was_taken_back_is_stepped_over_and_what_comes_behind_it_arrives() {
    let (mut a, mut b) = pair();
    let (source, slot) = (words(1), b.slot());
    let loans: Vec<Loan> = (0..3).map(|_| lend(&mut a, slot, &source)).collect();
    assert_eq!(loans[1].take_back(), TakenBack::InTime);
    assert_eq!(loans[1].take_back(), TakenBack::InTime, "again");
    let target = words(0);
    let mut copied = 0;
    let consumed = b.poll(10, |inbound| {
        copied += u64::from(inbound.copy_into(&[segment(&target)], Order::Increasing).is_ok());
        Disposition::Consumed
    });
    assert_eq!((consumed, copied, b.counters().taken_back), (3, 2, 1));
    assert!(loans.iter().all(Loan::is_over));
    assert_eq!(loans[0].take_back(), TakenBack::TooLate);
}

#[test]
fn answers_to_reads_are_taken_back_the_same_way() {
    let (mut a, mut b) = pair();
    let source = words(1);
    let asked = request(&a, Link::first_qpn(b.slot()), Opcode::Read, 0, 0, LEN as u32);
    let reply = reply_to(&asked, ReplyKind::ReadResponse);
    for back in [true, false] {
        let sent = b.send_reply(&reply, Payload::Segments(&[segment(&source)]), 0).unwrap();
        let loan = sent.loan.expect("an answer of this size goes by reference");
        b.ring_bells();
        if back {
            assert_eq!(loan.take_back(), TakenBack::InTime);
        }
        let mut seen = 0;
        assert_eq!(
            a.poll(10, |inbound| {
                assert!(matches!(*inbound.message, Message::Reply { last: true, .. }));
                seen += inbound.payload_len();
                Disposition::Consumed
            }),
            1
        );
        assert_eq!(seen as usize, if back { 0 } else { LEN });
    }
}

#[test]
fn a_peer_whose_pages_come_late_lends_nothing_more() {
    let absent = measure::need!(
        Absent::new(LEN),
        "the right to userfaultfd(2) for the kernel's accesses, as root has"
    );
    let (mut a, mut b) = pair();
    let slot = b.slot();
    let write = request(&a, Link::first_qpn(slot), Opcode::Write, 0, 0, LEN as u32);
    let late = Payload::Segments(&[Segment { addr: absent.address(), len: LEN as u64 }]);
    let send = |a: &mut Link| {
        let sent = a.send_request(&write, &PathAddress::default(), late).unwrap();
        a.ring_bells();
        sent.loan
    };
    let loan = send(&mut a).expect("a payload of this size goes by reference");
    let target = words(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("the copy", || loan.word().load(Ordering::Acquire) & HELD != 0);
            std::thread::sleep(Duration::from_millis(1_500));
            absent.serve().unwrap();
        });
        b.poll(1, |inbound| {
            inbound.copy_into(&[segment(&target)], Order::Increasing).unwrap();
            Disposition::Consumed
        });
    });
    assert!(all(&target, 0), "it came in the end");
    assert!(send(&mut a).is_none(), "the owner's thread waits for its pages from now on");
    let said = std::iter::from_fn(|| b.poll_event()).find(|event| matches!(event, LinkEvent::Staging { .. }));
    assert!(said.is_some(), "the way of its payloads changes, and nobody is told");
}

#[test]
fn nothing_is_lent_that_fits_a_record() {
    let (mut a, b) = pair();
    let source = words(1);
    for (len, lent) in [(8, false), (MAX_INLINE, false), (MAX_INLINE + 8, true)] {
        let write = request(&a, Link::first_qpn(b.slot()), Opcode::Write, 0, 0, len as u32);
        let from = [segment(&source[..len / 8])];
        let sent = a.send_request(&write, &PathAddress::default(), Payload::Segments(&from)).unwrap();
        assert_eq!(sent.loan.is_some(), lent, "{len} bytes");
    }
}

#[test]
fn a_copy_that_is_going_on_is_waited_for_and_then_counts_for_nothing() {
    let (mut a, mut b) = pair();
    let source = words(1);
    let loan = lend(&mut a, b.slot(), &source);
    b.poll(1, |inbound| {
        let word = inbound.state_word();
        let hold = Hold::take(word).unwrap();
        std::thread::scope(|scope| {
            let owner = scope.spawn(|| (loan.take_back(), Instant::now()));
            wait_for("the owner's VOID", || word.load(Ordering::Acquire) & VOID != 0);
            assert!(!hold.is_granted(), "the receiver is asked to stop");
            std::thread::sleep(Duration::from_millis(30));
            let released = Instant::now();
            assert!(!hold.release(true), "what it copied counts for nothing");
            let (taken, returned) = owner.join().unwrap();
            assert_eq!(taken, TakenBack::InTime);
            assert!(returned >= released, "the owner came back while the copy was going on");
        });
        assert_eq!(inbound.copy_into(&[], Order::Relaxed), Err(CopyError::TakenBack));
        Disposition::Consumed
    });
}

/// The memory is used anew as soon as it was taken back; the receiver must have seen all of the old or say that it got nothing.
#[test]
fn a_receiver_reports_old_bytes_or_nothing_while_the_owner_takes_back_at_any_moment() {
    const ROUNDS: u64 = 1_000;
    let (mut a, mut b) = pair();
    let slot = b.slot();
    let ended = AtomicBool::new(false);
    let (mut got, mut lost, mut in_time) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        let (ended, sender_ends) = (&ended, Ends(&ended));
        let receiver = scope.spawn(move || {
            let _receiver_ends = Ends(ended);
            let target = words(0);
            let (mut got, mut lost, mut latest) = (0, 0, Instant::now());
            while !ended.load(Ordering::Acquire) {
                let consumed = b.poll(1, |inbound| {
                    let Message::Request(write) = *inbound.message else { panic!("a request") };
                    match inbound.copy_into(&[segment(&target)], Order::Increasing) {
                        Ok(()) => {
                            assert!(
                                all(&target, u64::from(write.psn.value())),
                                "new bytes of message {:?}",
                                write.psn
                            );
                            got += 1;
                        }
                        Err(CopyError::TakenBack) => lost += 1,
                        Err(error) => panic!("{error}"),
                    }
                    Disposition::Consumed
                });
                b.ring_bells();
                if consumed > 0 {
                    latest = Instant::now();
                }
                assert!(
                    latest.elapsed() < PATIENCE,
                    "neither a record nor the end came within {PATIENCE:?}: {got} and {lost}"
                );
            }
            (got, lost + b.counters().taken_back)
        });
        let source = words(0);
        for round in 1..=ROUNDS {
            source.iter().for_each(|word| word.store(round, Ordering::Relaxed));
            let write = request(&a, Link::first_qpn(slot), Opcode::Write, round as u32, 0, LEN as u32);
            let from = [segment(&source)];
            let sent = a.send_request(&write, &PathAddress::default(), Payload::Segments(&from)).unwrap();
            let loan = sent.loan.unwrap();
            let is_over = || {
                assert!(!ended.load(Ordering::Acquire), "the receiver ended in round {round}");
                loan.is_over()
            };
            // Both ends happen however fast the machine is: before the record is shown, and after its tail has passed.
            match round % 4 {
                0 => {}
                1 => {
                    a.ring_bells();
                    wait_for("the receiver's tail behind a record", is_over);
                }
                // From at once to after the copy.
                _ => {
                    a.ring_bells();
                    (0..round * 7919 % 20_000).for_each(|_| std::hint::spin_loop());
                }
            }
            let taken = loan.take_back();
            match round % 4 {
                0 => assert_eq!(taken, TakenBack::InTime),
                1 => assert_eq!(taken, TakenBack::TooLate),
                _ => assert_ne!(taken, TakenBack::Overdue),
            }
            in_time += u64::from(taken == TakenBack::InTime);
            source.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            a.ring_bells();
            wait_for("the receiver's tail behind a record", is_over);
        }
        drop(sender_ends);
        (got, lost) = receiver.join().unwrap();
    });
    println!("{got} arrived, {lost} were taken back, {in_time} of them say so");
    assert_eq!((got + lost, lost), (ROUNDS, in_time));
    assert!(got > 20 && lost > 20, "both happen: {got} {lost}");
}

#[test]
fn a_peer_that_holds_for_ever_costs_a_second_once_and_its_channel() {
    let (mut a, mut b) = pair();
    let (source, slot) = (words(1), b.slot());
    let loans: Vec<Loan> = (0..3).map(|_| lend(&mut a, slot, &source)).collect();
    b.poll(10, |inbound| {
        inbound.hold_for_ever();
        // It does not say that it is done, either.
        Disposition::NotNow
    });
    let word = loans[1].word();
    word.store(HELD, Ordering::Release);
    let begun = Instant::now();
    let taken: Vec<TakenBack> = loans.iter().map(Loan::take_back).collect();
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    assert_eq!(taken, [TakenBack::Overdue, TakenBack::Overdue, TakenBack::InTime]);
    assert_eq!(a.room(slot), Room::NoPeer(NoPeer::Closed(slot)));
}

#[test]
fn a_word_of_state_that_makes_no_sense_is_a_payload_taken_back() {
    for nonsense in [HELD, 8, u64::MAX, 1 << 63, VOID | HELD] {
        let (mut a, mut b) = pair();
        let source = words(1);
        let loan = lend(&mut a, b.slot(), &source);
        loan.word().store(nonsense, Ordering::Release);
        assert!(loan::is_void(loan.word()));
        b.poll(1, |inbound| panic!("{nonsense:#x}: {:?} was handed on", inbound.message));
        assert_eq!(b.counters().taken_back, 1, "{nonsense:#x}");
    }
}

/// Takes hold of the first payload, says so, and does nothing any more.
pub fn holder() {
    let mut link = Link::join(child_config()).unwrap();
    println!("holder {}", link.slot());
    let end = end_flag();
    let mut held = false;
    while !end.load(Ordering::Relaxed) {
        if held {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        link.poll(1, |inbound| {
            inbound.hold_for_ever();
            held = true;
            println!("held 1");
            Disposition::NotNow
        });
        link.ring_bells();
    }
}

#[test]
fn a_peer_killed_while_it_holds_a_payload_is_not_waited_for() {
    let fabric = fabric_name();
    let mut link = Link::join(config(&fabric, false)).unwrap();
    let mut peer = Peer::start("holder", &fabric, false);
    let slot = peer.hear("holder ")[0] as u8;
    connect(&mut link, slot);
    let source = words(1);
    let loan = lend(&mut link, slot, &source);
    peer.hear("held ");
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let begun = Instant::now();
            (loan.take_back(), begun.elapsed())
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!owner.is_finished(), "it lives and holds");
        peer.kill();
        let (taken, waited) = owner.join().unwrap();
        assert_eq!(taken, TakenBack::InTime);
        assert!(waited < Duration::from_millis(900), "{waited:?}");
    });
}
