//! When a NIC asks for its next round, if nobody rings: `Nic::due`.

use mlx5_device::command::{ModifyQp, event_type};
use mlx5_device::faults::Settings;
use mlx5_device::testing::{By, MS, TIMEOUT_NS, WorkRequest, sent};
use roce::qp_state::AttrMask;
use roce::{Now, ServiceType};

use crate::machine::{Two, joined};

/// Lets the left NIC alone look until its queues have cooled, and says when it is due.
fn left_alone(two: &mut Two) -> Option<Now> {
    while two.left.poll() > 0 {}
    assert_eq!(two.left.nic.due(), Some(Now(two.left.now)), "it has just moved");
    two.left.now += 2 * MS;
    assert_eq!(two.left.poll(), 0);
    two.left.nic.due()
}

/// What a queue waits for after this was posted.
type Wait = (&'static str, By, fn(&Two) -> Vec<WorkRequest>);

fn write(two: &Two, len: u32) -> WorkRequest {
    WorkRequest::write(&two.from, 0, len, &two.to, 0)
}

const WAITS: [Wait; 4] = [
    ("an acknowledgement", By::Memory, |two| vec![write(two, 8)]),
    ("an acknowledgement", By::Wire, |two| vec![write(two, 8)]),
    ("an answer, for which a fence holds a WQE", By::Memory, |two| {
        let read = WorkRequest::read(&two.from, 0, 8, &two.to, 0);
        vec![read.clone(), WorkRequest { fence: true, ..read }]
    }),
    ("a window of packets", By::Wire, |two| vec![write(two, 1 << 17); 4]),
];

#[test]
fn a_queue_that_waits_for_its_peer_alone_is_due_with_its_timer() {
    for (number, (what, by, requests)) in WAITS.into_iter().enumerate() {
        let mut two = joined(&format!("due-{number}"), ServiceType::Rc, by);
        let (begun, requests) = (two.left.now, requests(&two));
        for request in &requests {
            two.left.post(two.a, request);
        }
        let due = left_alone(&mut two).expect("a timer runs").0;
        assert!(due > two.left.now + MS, "{what} by {by:?}: due {due}, at {}", two.left.now);
        if by == By::Memory {
            assert!((begun + TIMEOUT_NS..begun + TIMEOUT_NS + MS).contains(&due), "{what}: due {due}");
        }
        // And it waited for that alone.
        two.right.now = two.left.now;
        two.rounds(2_000);
        let done = std::iter::from_fn(|| sent(&mut two.left, two.a)).filter(Result::is_ok).count();
        assert_eq!(done, requests.len(), "{what}");
    }
}

#[test]
fn a_queue_without_a_time_out_is_never_due() {
    let mut two = joined("never", ServiceType::Rc, By::Memory);
    let attributes = ModifyQp { timeout: 0, ..two.left.attributes(two.right.qp(two.b).qpn) };
    two.left.reset(two.a);
    two.left.bring_up(two.a, &attributes);
    two.left.post(two.a, &WorkRequest::write(&two.from, 0, 8, &two.to, 0));
    assert_eq!(left_alone(&mut two), None);
    two.rounds(100);
    assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
}

#[test]
fn a_full_ring_rings_for_its_sender_and_a_rate_does_not() {
    let mut two = joined("room", ServiceType::Rc, By::Memory);
    let fabric = two.left.nic.link().fabric.clone();
    fabric.borrow_mut().full = true;
    two.left.post(two.a, &WorkRequest::read(&two.from, 0, 1 << 17, &two.to, 0));
    assert_eq!(left_alone(&mut two), None, "a request");
    (fabric.borrow_mut().full, fabric.borrow_mut().replies_full) = (false, true);
    two.right.now = two.left.now;
    two.rounds(3);
    assert_eq!(two.count(false, "messages_received"), 1);
    two.right.now += 2 * MS;
    assert_eq!((two.right.poll(), two.right.nic.due()), (0, None), "a reply");
    fabric.borrow_mut().replies_full = false;
    two.left.now = two.right.now;
    two.rounds(100);
    assert_eq!(sent(&mut two.left, two.a), Some(Ok(())));
    // Another answer leaves a second after the first.
    let by_messages = Settings { messages_per_second: Some(Some(1.0)), ..Settings::default() };
    let by_bytes = Settings { rate_gbps: Some(Some(0.001)), ..Settings::default() };
    for settings in [by_messages, by_bytes] {
        let mut two = joined("rate", ServiceType::Rc, By::Memory);
        two.right.nic.set(&settings).unwrap();
        for answered in [Some(Ok(())), None] {
            two.left.post(two.a, &WorkRequest::read(&two.from, 0, 1 << 17, &two.to, 0));
            two.rounds(100);
            assert_eq!(sent(&mut two.left, two.a), answered, "{settings}");
        }
        two.right.now += 2 * MS;
        assert_eq!((two.right.poll(), two.right.nic.due()), (0, Some(Now(two.right.now))), "{settings}");
    }
}

#[test]
fn a_queue_that_leaves_sqd_before_it_has_drained_owes_no_event() {
    let asked = AttrMask::STATE.0 | AttrMask::EN_SQD_ASYNC_NOTIFY.0;
    for (to, drains) in [(4, true), (3, false), (6, false)] {
        let mut two = joined(&format!("drains-{to}"), ServiceType::Rc, By::Memory);
        two.left.post(two.a, &WorkRequest::write(&two.from, 0, 8, &two.to, 0));
        two.left.poll();
        for (state, mask) in [(4, asked), (to, AttrMask::STATE.0)] {
            two.left.modify(two.a, &ModifyQp { state, mask, ..ModifyQp::default() }).unwrap();
        }
        if to != 6 {
            // It waits for the acknowledgement, and for nothing else.
            assert!(left_alone(&mut two).is_some_and(|due| due.0 > two.left.now), "to {to}");
        }
        two.rounds(100);
        two.left.now += 2 * MS;
        two.left.poll();
        assert_eq!(two.left.nic.due(), None, "to {to}");
        let events = two.left.sinks.take_events();
        let drained = events.iter().any(|event| event.kind == event_type::SQ_DRAINED);
        assert_eq!(drained, drains, "to {to}: {events:?}");
    }
}
