//! What the receiver says of every state that slots and completions can be in.
//!
//! Slots are filled by hand, as no sender would leave them. Nothing is sent; the device gives the region.

use measure::need;
use verbs::Context;

use super::*;
use crate::payload::fill_body;

/// Four target slots and eight source slots. After ten messages the slots hold 8, 9, 6 and 7.
const PLAN: Plan = Plan {
    op: Op::Write,
    service: Service::Rc,
    payload_bytes: 64,
    qps: 1,
    batch: 2,
    doorbell_batch: 1,
    window: 4,
    inline: false,
    verify: Verify::End,
};
const MESSAGES: u64 = 10;

/// received, checked, verified, torn, lost.
type Counts = [u64; 5];

fn counts(received: &Received) -> Counts {
    assert_eq!(received.received_bytes, received.received * PLAN.payload_bytes);
    [received.received, received.checked, received.verified, received.torn, received.lost]
}

fn region(context: &Context) -> (Pd, Mr<Pages>) {
    let pd = context.alloc_pd().unwrap();
    let region = Mr::register(&pd, Pages::new(4096).unwrap(), ACCESS).unwrap();
    (pd, region)
}

/// Writes `message`'s body into a slot, and sequence word `number` (counted from 0; `None`: never written).
fn lay(lane: &Lane<'_>, slot: u64, message: u64, number: Option<u64>) {
    let mut body = vec![0; lane.plan.body_bytes()];
    fill_body(lane.plan.source_slot(message), &mut body);
    lane.region.write(lane.slots.message_at(slot), &body);
    if lane.plan.op != Op::WriteImm {
        lane.slots.sequence(slot).store(number.map_or(0, |number| number + 1), Ordering::Release);
    }
}

/// Turns one bit of a byte of the message in `slot`.
fn turn(lane: &Lane<'_>, slot: u64, at: usize) {
    let (offset, mut byte) = (lane.slots.message_at(slot) + at, [0]);
    lane.region.read(offset, &mut byte);
    lane.region.write(offset, &[byte[0] ^ 4]);
}

/// A way to spoil what was laid.
type Spoil = fn(&Lane<'_>);

#[test]
fn slots_are_judged_by_what_lies_in_them() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    // Slot 2 holds message 6 (source slot 6), slot 1 the last one, 9 (source slot 1).
    let rows: &[(&str, Spoil, u64, u64, Counts)] = &[
        ("whole", |_| {}, 10, 10, [10, 4, 4, 0, 0]),
        ("first byte turned", |lane| turn(lane, 2, 0), 10, 10, [10, 4, 3, 1, 0]),
        ("last byte of a body turned", |lane| turn(lane, 1, 55), 10, 10, [10, 4, 3, 1, 0]),
        ("two slots torn", |lane| (turn(lane, 0, 7), turn(lane, 3, 8)).0, 10, 10, [10, 4, 2, 2, 0]),
        // Message 2 lay in the slot before: a WRITE that stored its sequence word first.
        ("body of the message before", |lane| lay(lane, 2, 2, Some(6)), 10, 10, [10, 4, 3, 1, 0]),
        ("body of a neighbour", |lane| lay(lane, 2, 7, Some(6)), 10, 10, [10, 4, 3, 1, 0]),
        ("number of a neighbour", |lane| lay(lane, 2, 7, Some(7)), 10, 10, [10, 4, 3, 1, 0]),
        ("the message before", |lane| lay(lane, 2, 2, Some(2)), 10, 10, [9, 4, 4, 0, 1]),
        ("the message before, torn", |lane| lay(lane, 2, 3, Some(2)), 10, 10, [9, 4, 3, 1, 1]),
        ("no number", |lane| lay(lane, 2, 6, None), 10, 10, [9, 3, 3, 0, 1]),
        ("the last message never came", |lane| lay(lane, 1, 5, Some(5)), 10, 10, [9, 4, 4, 0, 1]),
        (
            "the last two never came",
            |lane| (lay(lane, 1, 5, Some(5)), lay(lane, 0, 4, Some(4))).0,
            10,
            10,
            [8, 4, 4, 0, 2],
        ),
        ("nothing came", |lane| (0..4).for_each(|slot| lay(lane, slot, 0, None)), 10, 10, [0, 0, 0, 0, 10]),
        ("a number never posted", |lane| lay(lane, 2, 10, Some(10)), 10, 10, [10, 4, 3, 1, 0]),
        ("the highest number", |lane| lay(lane, 2, 6, Some(u64::MAX - 1)), 10, 10, [10, 4, 3, 1, 0]),
        // A run that was interrupted: what is posted may have come, what is not completed need not.
        ("posted, not completed, arrived", |lane| lay(lane, 2, 10, Some(10)), 11, 10, [11, 4, 4, 0, 0]),
        ("posted, not completed, not arrived", |_| {}, 12, 10, [10, 4, 4, 0, 0]),
        ("not completed and torn", |lane| turn(lane, 1, 9), 10, 9, [10, 4, 3, 1, 0]),
        ("a hole among what was not completed", |lane| lay(lane, 0, 4, Some(4)), 10, 8, [9, 4, 4, 0, 0]),
    ];
    for (name, spoil, posted, completed, expected) in rows {
        let mut lane = Lane::new(&PLAN, &pd, &region, 0).unwrap();
        for message in 0..MESSAGES {
            lay(&lane, PLAN.target_slot(message), message, Some(message));
        }
        spoil(&lane);
        assert_eq!(counts(&lane.finish(*posted, *completed)), *expected, "{name}");
    }
}

#[test]
fn slots_that_no_message_was_meant_for_are_not_missed() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    for (name, laid, posted, expected) in [
        ("nothing was sent", 0..0, 0, [0, 0, 0, 0, 0]),
        ("two of four slots", 0..2, 2, [2, 2, 2, 0, 0]),
        ("the second never came", 0..1, 2, [1, 1, 1, 0, 1]),
        ("the first never came", 1..2, 2, [1, 1, 1, 0, 1]),
        ("more than were sent", 0..3, 2, [2, 3, 2, 1, 0]),
    ] {
        let mut lane = Lane::new(&PLAN, &pd, &region, 0).unwrap();
        (0..4).for_each(|slot| lay(&lane, slot, 0, None));
        laid.for_each(|message| lay(&lane, message, message, Some(message)));
        assert_eq!(counts(&lane.finish(posted, posted)), expected, "{name}");
    }
}

#[test]
fn every_turned_byte_of_every_slot_is_torn() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    for op in [Op::Write, Op::WriteImm, Op::Send] {
        let plan = Plan { op, ..PLAN };
        let slots = u64::from(plan.target_slots());
        for (slot, at) in (0..slots).flat_map(|slot| (0..plan.body_bytes()).map(move |at| (slot, at))) {
            let mut lane = Lane::new(&plan, &pd, &region, 0).unwrap();
            for message in 0..slots {
                lay(&lane, message, message, Some(message));
                if op != Op::Write {
                    lane.arrived(message, Some(message));
                }
            }
            turn(&lane, slot, at);
            let expected = [slots, slots, slots - 1, 1, 0];
            assert_eq!(counts(&lane.finish(slots, slots)), expected, "{op:?}: byte {at} of slot {slot}");
        }
    }
}

/// Name, service, claimed numbers, completed messages, counts.
type Claims<'a> = (&'a str, Service, &'a [Option<u64>], u64, Counts);

#[test]
fn completions_are_judged_by_the_number_that_they_claim() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    let rows: &[Claims<'_>] = &[
        ("in order", Service::Rc, &[Some(0), Some(1), Some(2)], 3, [3, 3, 3, 0, 0]),
        ("the last never came", Service::Rc, &[Some(0), Some(1)], 3, [2, 2, 2, 0, 1]),
        ("RC keeps order: a gap", Service::Rc, &[Some(0), Some(2)], 2, [2, 2, 1, 1, 0]),
        ("RC keeps order: one again", Service::Rc, &[Some(0), Some(0)], 2, [2, 2, 1, 1, 0]),
        ("no number", Service::Rc, &[Some(0), None], 2, [2, 2, 1, 1, 0]),
        ("UC, in order", Service::Uc, &[Some(0), Some(1)], 2, [2, 2, 2, 0, 0]),
        ("UC, a gap of one", Service::Uc, &[Some(0), Some(2)], 3, [2, 2, 2, 0, 1]),
        ("UC, a gap of three", Service::Uc, &[Some(3)], 4, [1, 1, 1, 0, 3]),
        ("UC, a gap and the end", Service::Uc, &[Some(3)], 7, [1, 1, 1, 0, 6]),
        ("UC, one again", Service::Uc, &[Some(0), Some(0)], 2, [2, 2, 1, 1, 0]),
        ("UC, no number", Service::Uc, &[None], 1, [1, 1, 0, 1, 0]),
        ("UC, the largest gap", Service::Uc, &[Some((1 << 32) - 1)], 1 << 32, [1, 1, 1, 0, (1 << 32) - 1]),
        ("UC, a gap too large", Service::Uc, &[Some(1 << 32)], 1, [1, 1, 0, 1, 0]),
    ];
    for (name, service, claims, completed, expected) in rows {
        let plan = Plan { op: Op::WriteImm, service: *service, verify: Verify::All, ..PLAN };
        let mut lane = Lane::new(&plan, &pd, &region, 0).unwrap();
        for claimed in *claims {
            let slot = plan.target_slot(claimed.unwrap_or(0));
            lay(&lane, slot, claimed.unwrap_or(0), None);
            lane.arrived(slot, *claimed);
        }
        assert_eq!(counts(&lane.finish(*completed, *completed)), *expected, "{name}");
    }
}

#[test]
fn a_body_is_compared_before_its_slot_is_given_back() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    // Every 61st message of a sample is compared, the first included.
    for (verify, spoilt, expected) in [
        (Verify::All, 0, [3, 3, 2, 1, 0]),
        (Verify::All, 2, [3, 3, 2, 1, 0]),
        (Verify::Sample, 0, [3, 1, 0, 1, 0]),
        (Verify::Sample, 1, [3, 1, 1, 0, 0]),
    ] {
        let plan = Plan { op: Op::WriteImm, verify, ..PLAN };
        let mut lane = Lane::new(&plan, &pd, &region, 0).unwrap();
        for message in 0..3 {
            lay(&lane, message, message, None);
            if message == spoilt {
                turn(&lane, message, 63);
            }
            lane.arrived(message, Some(message));
            lay(&lane, message, message, None);
        }
        assert_eq!(counts(&lane.finish(3, 3)), expected, "{verify:?}, message {spoilt} torn");
    }
}

#[test]
fn written_messages_are_taken_in_order_and_uc_may_leave_holes() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    let rows: &[(&str, Service, &[u64], bool, Counts)] = &[
        ("all four", Service::Rc, &[0, 1, 2, 3], true, [4, 4, 4, 0, 0]),
        ("RC waits for the second", Service::Rc, &[0, 2, 3], false, [1, 1, 1, 0, 3]),
        ("UC goes on behind the second", Service::Uc, &[0, 2, 3], true, [3, 3, 3, 0, 1]),
        ("UC, the last alone", Service::Uc, &[3], true, [1, 1, 1, 0, 3]),
        ("UC, the last is missing", Service::Uc, &[0, 1, 2], false, [3, 3, 3, 0, 1]),
        ("nothing", Service::Uc, &[], false, [0, 0, 0, 0, 4]),
    ];
    for (name, service, laid, is_complete, expected) in rows {
        let plan = Plan { service: *service, verify: Verify::All, ..PLAN };
        let mut lane = Lane::new(&plan, &pd, &region, 0).unwrap();
        (0..4).for_each(|slot| lay(&lane, slot, 0, None));
        laid.iter().for_each(|&message| lay(&lane, message, message, Some(message)));
        assert_eq!(lane.look().unwrap(), expected[0], "{name}");
        assert_eq!(lane.is_complete(4), *is_complete, "{name}");
        assert_eq!(counts(&lane.finish(4, 4)), *expected, "{name}");
    }
}

#[test]
fn an_immediate_stands_for_the_next_message_of_its_place() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    let plan = Plan { op: Op::WriteImm, service: Service::Uc, ..PLAN };
    let mut lane = Lane::new(&plan, &pd, &region, 0).unwrap();
    for (next, immediate, message) in [(0, 0, 0), (0, 7, 7), (5, 5, 5), (5, 4, 12), (16, 0, 16), (17, 0, 24)]
    {
        lane.next = next;
        assert_eq!(lane.message_of(immediate), message, "{immediate} when {next} is the next");
    }
}

#[test]
fn a_receiver_waits_for_the_last_message_in_its_slot() {
    let context = need!(verbs::open(None), nic, "an RDMA device");
    let (pd, region) = region(&context);
    let lane = Lane::new(&PLAN, &pd, &region, 0).unwrap();
    (0..4).for_each(|slot| lay(&lane, slot, slot, Some(slot)));
    assert!(lane.is_complete(0) && lane.is_complete(4));
    assert!(!lane.is_complete(5), "slot 0 holds message 0, not 4");
    lay(&lane, 0, 4, Some(4));
    assert!(lane.is_complete(5) && lane.is_complete(1) && !lane.is_complete(6));
}
