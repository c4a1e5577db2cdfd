//! A one-way delay on demand: never shorter than asked for, in order, bounded by back-pressure, and changed
//! while messages are in flight. In shared memory and on a wire; time is the virtual clock's.

use mlx5_device::Span;
use mlx5_device::faults::Settings;
use roce::ServiceType;
use soft_nic::testing::WorkRequest;

use crate::two::{BOTH, By, Two, joined, sent};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn delay(ns: u64) -> Settings {
    Settings { delay: Some(Span(ns)), ..Settings::default() }
}

/// Rounds until the request is complete; how long that took, ns.
fn round_trip(two: &mut Two, request: &WorkRequest) -> u64 {
    let begun = two.left.now;
    two.left.post(two.a, request);
    for _ in 0..200_000 {
        two.rounds(1);
        if let Some(outcome) = sent(&mut two.left, two.a) {
            assert_eq!(outcome, Ok(()));
            return two.left.now - begun;
        }
    }
    panic!("no completion within {} ns", two.left.now - begun);
}

#[test]
fn a_round_trip_takes_both_delays_at_least_and_no_time_when_they_are_lifted() {
    for by in BOTH {
        let mut two = joined("delay-trip", ServiceType::Rc, by);
        let write = WorkRequest::write(&two.from, 0, 3000, &two.to, 0);
        let read = WorkRequest::read(&two.from, 0, 3000, &two.to, 0);
        // The channel is open before.
        round_trip(&mut two, &write);
        for (there, back) in [(2 * MS, 3 * MS), (0, 500 * US), (700 * US, 0), (0, 0)] {
            two.left.nic.set(&delay(there)).expect("a possible delay");
            two.right.nic.set(&delay(back)).expect("a possible delay");
            for (name, request) in [("WRITE", &write), ("READ", &read)] {
                let took = round_trip(&mut two, request);
                assert!(took >= there + back, "{name} by {by:?}: {took} ns of {there} + {back}");
                // On this clock nothing else takes time in shared memory; on a wire the kernel is asked.
                let rounds = if by == By::Memory { 20 * US } else { 2 * MS };
                assert!(took <= there + back + rounds, "{name} by {by:?}: {took} ns of {there} + {back}");
            }
        }
        assert_eq!(two.count(true, "retransmissions"), 0, "{by:?}");
        assert_eq!(two.count(true, "ctl_changes"), 4, "{by:?}");
    }
}

#[test]
fn a_delay_that_is_changed_loses_nothing_and_nothing_overtakes() {
    for by in BOTH {
        let mut two = joined("delay-live", ServiceType::Uc, by);
        for entry in 0..12 {
            let pointer = two.to.pointer(64 * entry, 64);
            two.right.post_receive(two.b, &[pointer]);
        }
        two.rounds(100);
        let begun = two.left.now;
        // Each SEND says its number; three of each delay, the second and third delay much shorter.
        for (number, ns) in [(0, 5 * MS), (3, 100 * US), (6, 0)] {
            two.left.nic.set(&delay(ns)).expect("a possible delay");
            for number in number..number + 3 {
                two.from.block.write(64 * number as usize, &[number as u8 + 1; 64]);
                two.left.post(two.a, &WorkRequest::send(&two.from, 64 * number, 64));
            }
            two.rounds(100);
        }
        let mut came = Vec::new();
        let mut first = None;
        for _ in 0..20_000 {
            two.rounds(1);
            while two.right.poll_receive(two.b).is_some() {
                first.get_or_insert(two.right.now - begun);
                came.push(two.to.block.bytes(64 * came.len(), 64)[0]);
            }
        }
        assert_eq!(came, [1, 2, 3, 4, 5, 6, 7, 8, 9], "{by:?}");
        assert!(first.is_some_and(|first| first >= 5 * MS), "{by:?}: {first:?} ns");
        // With nothing under way there is no delay any more.
        two.left.post(two.a, &WorkRequest::send(&two.from, 0, 64));
        // A queue that was quiet for so long is found within half a millisecond.
        two.rounds(600);
        assert!(two.right.poll_receive(two.b).is_some(), "{by:?}");
        assert_eq!(two.count(false, "messages_received"), 10, "{by:?}");
    }
}

#[test]
fn delayed_packets_are_bounded_and_the_rest_wait_for_room() {
    // Messages of 4 KiB: a ring has 2 MiB. On a wire, 16 MiB of packets of 1 KiB.
    for (by, count, most) in [(By::Memory, 1_200, 2048 / 4), (By::Wire, 6_000, (16 << 10) / 4)] {
        let mut two = joined("delay-full", ServiceType::Uc, by);
        let write = WorkRequest::write(&two.from, 0, 4096, &two.to, 0);
        two.left.post(two.a, &write);
        two.rounds(100);
        assert_eq!((sent(&mut two.left, two.a), two.count(false, "messages_received")), (Some(Ok(())), 1));
        two.left.nic.set(&delay(10 * MS)).expect("a possible delay");
        let (begun, mut posted, mut done, mut done_before) = (two.left.now, 0, 0, 0);
        while two.count(false, "messages_received") < count + 1 {
            assert!(two.left.now < begun + 500 * MS, "{by:?}: {done} done of {posted} posted");
            while posted < count && posted - done < 32 {
                two.left.post(two.a, &write);
                posted += 1;
            }
            two.rounds(1);
            while let Some(outcome) = sent(&mut two.left, two.a) {
                assert_eq!(outcome, Ok(()));
                done += 1;
            }
            if two.left.now < begun + 9 * MS {
                done_before = done;
                assert_eq!(two.count(false, "messages_received"), 1, "{by:?}: before its time");
            }
        }
        // Unreliable messages are complete when they have left: so many did before the first arrived.
        assert!((most / 2..=most + 8).contains(&done_before), "{by:?}: {done_before} of {most}");
        two.rounds(100);
        assert_eq!(two.count(false, "messages_received"), count + 1, "{by:?}: each once");
        assert_eq!(two.count(true, "retransmissions"), 0, "{by:?}");
    }
}

#[test]
fn a_delay_that_cannot_be_is_refused() {
    let mut two = joined("delay-refused", ServiceType::Rc, By::Memory);
    let why = two.left.nic.set(&delay(1_000 * MS + 1)).expect_err("longer than a second");
    assert!(why.contains("0 to 1s"), "{why}");
    two.left.nic.set(&delay(1_000 * MS)).expect("a second");
    assert_eq!(two.left.nic.link().delay_ns(), 1_000 * MS);
    assert_eq!(two.left.nic.changes(), ["set delay=1s"]);
}
