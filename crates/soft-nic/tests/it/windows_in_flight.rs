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
use crate::withdrawn::{GUARD, LEN, LONG, NEW, OLD, Scene, filled, is_all, is_old, later, run, syndromes};

/// A scene whose far side has opened all of a region to the near one.
fn opened(name: &str, len: u32, byte: u8, rights: u8, change: fn(&mut Config)) -> (Scene, Region, u32) {
    let mut scene = Scene::new(name, ServiceType::Rc, change);
    let region = scene.far.region(len as usize, ALL | 1 << 4);
    region.block.write(0, &vec![byte; region.block.len()]);
    let window = scene.far.window(2);
    let opening = Opening { region: &region, offset: 0, len: len.into(), rights };
    let (b, key) = (scene.pair.1, window.key(3));
    let bind = scene.far.bind(b, &window, 3, &opening);
    scene.far.post(b, &bind);
    run(&mut scene.far);
    assert_eq!(syndromes(&mut scene.far, b), [None], "{name}: the bind");
    (scene, region, key)
}

#[test]
fn an_answer_that_lies_behind_a_window_goes_with_its_local_invalidation() {
    let (mut scene, from, key) = opened("inv-answer", LONG, OLD, REMOTE_READ, |_| ());
    let (a, b) = scene.pair;
    let into = filled(&mut scene.near, LONG as usize, GUARD);
    scene.near.post(a, &WorkRequest::read(&into, 0, LONG, &from, 0).through(key));
    run(&mut scene.near);
    run(&mut scene.far);
    // It is answered in part. Once the invalidation is complete, the memory is the program's.
    scene.far.post(b, &WorkRequest::local_invalidate(key));
    run(&mut scene.far);
    assert_eq!(syndromes(&mut scene.far, b).first(), Some(&None), "the invalidation itself");
    from.block.write(0, &vec![NEW; LONG as usize]);
    scene.settle();
    assert!(is_old(&into), "the requester saw memory that was the program's again");
    assert_eq!(syndromes(&mut scene.near, a), [Some(CqeSyndrome::RemoteAccess)]);
    let events = scene.far.sinks.take_events();
    assert!(events.iter().any(|e| e.kind == event_type::QP_ACCESS_ERR), "{events:?}");
}

#[test]
fn an_answer_that_lies_behind_a_window_goes_when_another_queue_closes_it() {
    let mut scene = Scene::new("other-closes", ServiceType::Rc, |_| ());
    let (a, _) = scene.pair;
    let (other, _) = scene.far.pair(QpShape::default());
    let from = scene.far.region(LONG as usize, ALL | 1 << 4);
    from.block.write(0, &vec![OLD; LONG as usize]);
    let window = scene.far.window(1);
    let opening = Opening { region: &from, offset: 0, len: LONG.into(), rights: REMOTE_READ };
    let bind = scene.far.bind(other, &window, 3, &opening);
    scene.far.post(other, &bind);
    run(&mut scene.far);
    assert_eq!(syndromes(&mut scene.far, other), [None], "the bind");
    let into = filled(&mut scene.near, LONG as usize, GUARD);
    scene.near.post(a, &WorkRequest::read(&into, 0, LONG, &from, 0).through(window.key(3)));
    run(&mut scene.near);
    run(&mut scene.far);
    scene.far.post(other, &WorkRequest::close(&window, 4));
    run(&mut scene.far);
    assert_eq!(syndromes(&mut scene.far, other), [None], "the close");
    from.block.write(0, &vec![NEW; LONG as usize]);
    scene.settle();
    assert!(is_old(&into), "the requester saw memory that was the program's again");
    assert_eq!(syndromes(&mut scene.near, a), [Some(CqeSyndrome::RemoteAccess)]);
}

#[test]
fn a_read_before_a_send_that_invalidates_is_answered_until_the_region_goes() {
    for dereg in [false, true] {
        let (mut scene, from, key) = opened("inv-read", LONG, OLD, REMOTE_READ, |_| ());
        let (a, b) = scene.pair;
        let into = filled(&mut scene.near, LONG as usize, GUARD);
        let receive = scene.far.region(64, ALL);
        scene.far.post_receive(b, &[receive.pointer(0, 8)]);
        scene.near.lay(a, &WorkRequest::read(&into, 0, LONG, &from, 0).through(key));
        scene.near.lay(a, &WorkRequest::send_invalidate(&into, 0, 8, key)).ring_doorbell(a);
        run(&mut scene.near);
        run(&mut scene.far);
        let cqe = scene.far.poll_receive(b).expect("the SEND");
        assert_eq!(cqe.opcode(), Some(CqeOpcode::ResponderSendInvalidate));
        if dereg {
            assert_eq!(errno(scene.far.nic.dereg_mr(scene.far.context, from.handle)), 0, "nothing is bound");
            from.block.write(0, &vec![NEW; LONG as usize]);
        }
        scene.settle();
        assert!(is_old(&into), "dereg {dereg}");
        assert_eq!(is_all(&into, OLD), !dereg, "dereg {dereg}");
        let ends = syndromes(&mut scene.near, a);
        let wanted = if dereg { Some(CqeSyndrome::RemoteAccess) } else { None };
        assert_eq!(ends.first(), Some(&wanted), "dereg {dereg}: {ends:?}");
    }
}

#[test]
fn a_send_that_has_to_come_again_finds_the_window_open() {
    let (mut scene, _, key) = opened("inv-again", 64, OLD, REMOTE_WRITE, |_| ());
    let (a, b) = scene.pair;
    let (from, to) = (scene.near.region(1 << 17, ALL), scene.far.region(1 << 17, ALL));
    let bytes = from.fill(0, LEN as usize, 7);
    scene.near.post(a, &WorkRequest::send_invalidate(&from, 0, LEN, key));
    // No receive yet: RNR.
    scene.settle();
    scene.far.post_receive(b, &[to.pointer(0, LEN)]);
    later(&mut scene.near, 100);
    scene.settle();
    assert_eq!(syndromes(&mut scene.near, a), [None]);
    let cqe = scene.far.poll_receive(b).expect("the SEND");
    assert_eq!(
        (cqe.opcode(), cqe.immediate()),
        (Some(CqeOpcode::ResponderSendInvalidate), key.to_be_bytes())
    );
    assert!(to.block.bytes(0, LEN as usize) == bytes);
    assert!(scene.near.counters().retransmissions > 0, "it was to come again");
    assert_eq!(scene.far.counters().windows_invalidated, 1);
}

#[test]
fn a_window_that_is_closed_between_two_pieces_ends_the_message_there() {
    let (mut scene, to, key) = opened("inv-pieces", LONG, GUARD, REMOTE_WRITE, |_| ());
    let (a, b) = scene.pair;
    let from = filled(&mut scene.near, LONG as usize, OLD);
    scene.near.post(a, &WorkRequest::write(&from, 0, LONG, &to, 0).through(key));
    run(&mut scene.near);
    run(&mut scene.far);
    run(&mut scene.near);
    scene.far.poll();
    scene.far.post(b, &WorkRequest::local_invalidate(key));
    while syndromes(&mut scene.far, b).is_empty() {
        scene.far.poll();
    }
    to.block.write(0, &vec![NEW; LONG as usize]);
    scene.settle();
    assert!(is_all(&to, NEW), "written to behind the end of the window");
    assert_eq!(syndromes(&mut scene.near, a), [Some(CqeSyndrome::RemoteAccess)]);
}
