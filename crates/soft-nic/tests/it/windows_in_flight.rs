//! Windows that are closed while messages through them are under way between two NICs.

use mlx5_device::command::event_type;
use mlx5_device::commands::*;
use mlx5_layout::umr::right::{REMOTE_READ, REMOTE_WRITE};
use mlx5_layout::{CqeOpcode, CqeSyndrome};
use roce::ServiceType;
use soft_nic::config::Config;
use soft_nic::testing::{Opening, QpShape, Region, WorkRequest};

use crate::operations::ALL;
use crate::operations::errno;
use crate::withdrawn::{GUARD, LEN, LONG, NEW, OLD, TwoNics, filled, is_all, is_old, later, run, syndromes};

/// Two NICs whose far side has opened all of a region to the near one.
fn opened(name: &str, len: u32, byte: u8, rights: u8, change: fn(&mut Config)) -> (TwoNics, Region, u32) {
    let mut nics = TwoNics::new(name, ServiceType::Rc, change);
    let region = nics.far.region(len as usize, ALL | 1 << 4);
    region.block.write(0, &vec![byte; region.block.len()]);
    let window = nics.far.window(2);
    let opening = Opening { region: &region, offset: 0, len: len.into(), rights };
    let (b, key) = (nics.pair.1, window.key(3));
    let bind = nics.far.bind(b, &window, 3, &opening);
    nics.far.post(b, &bind);
    run(&mut nics.far);
    assert_eq!(syndromes(&mut nics.far, b), [None], "{name}: the bind");
    (nics, region, key)
}

#[test]
fn an_answer_that_lies_behind_a_window_goes_with_its_local_invalidation() {
    let (mut nics, from, key) = opened("inv-answer", LONG, OLD, REMOTE_READ, |_| ());
    let (a, b) = nics.pair;
    let into = filled(&mut nics.near, LONG as usize, GUARD);
    nics.near.post(a, &WorkRequest::read(&into, 0, LONG, &from, 0).through(key));
    run(&mut nics.near);
    run(&mut nics.far);
    // It is answered in part. Once the invalidation is complete, the memory is the program's.
    nics.far.post(b, &WorkRequest::local_invalidate(key));
    run(&mut nics.far);
    assert_eq!(syndromes(&mut nics.far, b).first(), Some(&None), "the invalidation itself");
    from.block.write(0, &vec![NEW; LONG as usize]);
    nics.settle();
    assert!(is_old(&into), "the requester saw memory that was the program's again");
    assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::RemoteAccess)]);
    let events = nics.far.sinks.take_events();
    assert!(events.iter().any(|e| e.kind == event_type::QP_ACCESS_ERR), "{events:?}");
}

#[test]
fn an_answer_that_lies_behind_a_window_goes_when_another_queue_closes_it() {
    let mut nics = TwoNics::new("other-closes", ServiceType::Rc, |_| ());
    let (a, _) = nics.pair;
    let (other, _) = nics.far.pair(QpShape::default());
    let from = nics.far.region(LONG as usize, ALL | 1 << 4);
    from.block.write(0, &vec![OLD; LONG as usize]);
    let window = nics.far.window(1);
    let opening = Opening { region: &from, offset: 0, len: LONG.into(), rights: REMOTE_READ };
    let bind = nics.far.bind(other, &window, 3, &opening);
    nics.far.post(other, &bind);
    run(&mut nics.far);
    assert_eq!(syndromes(&mut nics.far, other), [None], "the bind");
    let into = filled(&mut nics.near, LONG as usize, GUARD);
    nics.near.post(a, &WorkRequest::read(&into, 0, LONG, &from, 0).through(window.key(3)));
    run(&mut nics.near);
    run(&mut nics.far);
    nics.far.post(other, &WorkRequest::close(&window, 4));
    run(&mut nics.far);
    assert_eq!(syndromes(&mut nics.far, other), [None], "the close");
    from.block.write(0, &vec![NEW; LONG as usize]);
    nics.settle();
    assert!(is_old(&into), "the requester saw memory that was the program's again");
    assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::RemoteAccess)]);
}

#[test]
fn a_read_before_a_send_that_invalidates_is_answered_until_the_region_goes() {
    for dereg in [false, true] {
        let (mut nics, from, key) = opened("inv-read", LONG, OLD, REMOTE_READ, |_| ());
        let (a, b) = nics.pair;
        let into = filled(&mut nics.near, LONG as usize, GUARD);
        let receive = nics.far.region(64, ALL);
        nics.far.post_receive(b, &[receive.pointer(0, 8)]);
        nics.near.lay(a, &WorkRequest::read(&into, 0, LONG, &from, 0).through(key));
        nics.near.lay(a, &WorkRequest::send_invalidate(&into, 0, 8, key)).ring_doorbell(a);
        run(&mut nics.near);
        run(&mut nics.far);
        let cqe = nics.far.poll_receive(b).expect("the SEND");
        assert_eq!(cqe.opcode(), Some(CqeOpcode::ResponderSendInvalidate));
        if dereg {
            assert_eq!(errno(nics.far.nic.dereg_mr(nics.far.context, from.handle)), 0, "nothing is bound");
            from.block.write(0, &vec![NEW; LONG as usize]);
        }
        nics.settle();
        assert!(is_old(&into), "dereg {dereg}");
        assert_eq!(is_all(&into, OLD), !dereg, "dereg {dereg}");
        let ends = syndromes(&mut nics.near, a);
        let wanted = if dereg { Some(CqeSyndrome::RemoteAccess) } else { None };
        assert_eq!(ends.first(), Some(&wanted), "dereg {dereg}: {ends:?}");
    }
}

#[test]
fn a_send_that_has_to_come_again_finds_the_window_open() {
    let (mut nics, _, key) = opened("inv-again", 64, OLD, REMOTE_WRITE, |_| ());
    let (a, b) = nics.pair;
    let (from, to) = (nics.near.region(1 << 17, ALL), nics.far.region(1 << 17, ALL));
    let bytes = from.fill(0, LEN as usize, 7);
    nics.near.post(a, &WorkRequest::send_invalidate(&from, 0, LEN, key));
    // No receive yet: RNR.
    nics.settle();
    nics.far.post_receive(b, &[to.pointer(0, LEN)]);
    later(&mut nics.near, 100);
    nics.settle();
    assert_eq!(syndromes(&mut nics.near, a), [None]);
    let cqe = nics.far.poll_receive(b).expect("the SEND");
    assert_eq!(
        (cqe.opcode(), cqe.immediate()),
        (Some(CqeOpcode::ResponderSendInvalidate), key.to_be_bytes())
    );
    assert!(to.block.bytes(0, LEN as usize) == bytes);
    assert!(nics.near.counters().retransmissions > 0, "it was to come again");
    assert_eq!(nics.far.counters().windows_invalidated, 1);
}

#[test]
fn a_window_that_is_closed_between_two_pieces_ends_the_message_there() {
    let (mut nics, to, key) = opened("inv-pieces", LONG, GUARD, REMOTE_WRITE, |_| ());
    let (a, b) = nics.pair;
    let from = filled(&mut nics.near, LONG as usize, OLD);
    nics.near.post(a, &WorkRequest::write(&from, 0, LONG, &to, 0).through(key));
    run(&mut nics.near);
    run(&mut nics.far);
    run(&mut nics.near);
    nics.far.poll();
    nics.far.post(b, &WorkRequest::local_invalidate(key));
    while syndromes(&mut nics.far, b).is_empty() {
        nics.far.poll();
    }
    to.block.write(0, &vec![NEW; LONG as usize]);
    nics.settle();
    assert!(is_all(&to, NEW), "written to behind the end of the window");
    assert_eq!(syndromes(&mut nics.near, a), [Some(CqeSyndrome::RemoteAccess)]);
}
