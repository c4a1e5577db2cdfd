//! A ring that its receiver does not empty: what the sender's NIC does meanwhile, and who goes on when there is room again.

use std::time::{Duration, Instant};

use mlx5_layout::CqeOpcode;
use roce::{Fragment, Opcode, Psn, Request, ServiceType};
use soft_nic::dma::Host;
use soft_nic::link::{Disposition, Link, LinkConfig, MAX_INLINE, PathAddress, Payload, Room, SendError};
use soft_nic::testing::{Driver, QpId, QpShape, Region, Setup, WorkRequest};

use crate::withdrawn::{GUARD, LONG, OLD, Scene, filled, run};

/// Most bytes of a record that is never cut.
const SHORT: u32 = MAX_INLINE as u32;

/// What fills a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    LongWrite,
    ShortWrites,
    Answer,
}

#[test]
fn a_nic_with_a_full_ring_finds_nothing_to_do_sleeps_and_is_woken_by_room() {
    for filling in [Filled::LongWrite, Filled::ShortWrites, Filled::Answer] {
        let mut scene = Scene::new("full", ServiceType::Rc, |_| ());
        let (a, _) = scene.pair;
        let near = filled(&mut scene.near, LONG as usize, OLD);
        let far = filled(&mut scene.far, LONG as usize, GUARD);
        let requests: Vec<_> = match filling {
            Filled::LongWrite => vec![WorkRequest::write(&near, 0, LONG, &far, 0)],
            Filled::Answer => vec![WorkRequest::read(&near, 0, LONG, &far, 0)],
            Filled::ShortWrites => {
                let at = |i: u32| u64::from(i * SHORT);
                (0..200).map(|i| WorkRequest::write(&near, at(i), SHORT, &far, at(i))).collect()
            }
        };
        for request in &requests {
            scene.near.lay(a, request);
        }
        scene.near.ring_doorbell(a);
        run(&mut scene.near);
        let by_far = filling == Filled::Answer;
        if by_far {
            run(&mut scene.far);
        }
        let Scene { near: left, far: right, .. } = &mut scene;
        let (sender, receiver) = if by_far { (right, left) } else { (left, right) };
        if filling == Filled::ShortWrites {
            let slot = receiver.nic.link().slot();
            assert_eq!(sender.nic.link().room(slot), Room::Full);
        }
        let rounds: Vec<usize> = (0..100).map(|_| sender.poll()).collect();
        assert_eq!(rounds, [0; 100], "{filling:?}: what was done with a full ring");
        let sleep = sender.nic.link().lie_down().expect("nothing has arrived");
        let rung = receiver.nic.link().counters().bells;
        receiver.poll();
        assert_eq!(receiver.nic.link().counters().bells, rung + 1, "{filling:?}: there is room");
        let (since, long) = (Instant::now(), Duration::from_secs(20));
        sleep.wait(long);
        assert!(since.elapsed() < long, "{filling:?}: it slept on");
        sender.nic.link().get_up();
        assert!(sender.poll() > 0, "{filling:?}: it goes on");
        let mut done = 0;
        while done < requests.len() {
            scene.settle();
            while let Some(cqe) = scene.near.poll_send(a) {
                assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester), "{filling:?}");
                done += 1;
            }
        }
        let (target, byte) = if by_far { (&near, GUARD) } else { (&far, OLD) };
        let filled = if filling == Filled::ShortWrites { 200 * SHORT } else { LONG };
        assert!(target.block.bytes(0, filled as usize).iter().all(|b| *b == byte), "{filling:?}");
    }
}

/// A peer that is no NIC: it takes a record when it is told to.
struct Peer {
    link: Link,
    driver: Driver<Host>,
    a: QpId,
}

impl Peer {
    fn new(name: &str) -> Peer {
        let setup = Setup::new(name);
        let config = LinkConfig { fabric: setup.fabric.clone(), ..LinkConfig::default() };
        let link = Link::join(config).expect("a second seat");
        let mut driver = Driver::new(setup);
        let a = driver.create_qp(QpShape::default());
        driver.bring_up(a, &driver.attributes(Link::first_qpn(link.slot()) | 0x40));
        Peer { link, driver, a }
    }

    /// Asks the driver's queue for memory of the driver's.
    fn read(&mut self, from: &Region, psn: u32, length: u32) {
        let request = Request {
            src_qpn: Link::first_qpn(self.link.slot()) | 0x40,
            dst_qpn: self.driver.qp(self.a).qpn,
            opcode: Opcode::Read,
            psn: Psn::new(psn),
            ack_requested: true,
            remote_va: from.block.address(),
            rkey: from.rkey,
            length,
            fragment: Fragment { offset: 0, length },
            ..Request::default()
        };
        let path = PathAddress { to_port: 1, ..PathAddress::default() };
        for _ in 0..1000 {
            match self.link.send_request(&request, &path, Payload::Nothing) {
                Ok(_) => return self.link.ring_bells(),
                Err(SendError::Full) => drop(self.driver.poll()),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the channel is not attached to");
    }
}

#[test]
fn a_nic_that_waits_for_room_for_a_long_piece_finds_nothing_to_do() {
    const FIRST: u32 = 40 << 10;
    for answers in [false, true] {
        let mut peer = Peer::new(&format!("cramped-{answers}"));
        let from = filled(&mut peer.driver, LONG as usize, OLD);
        if answers {
            peer.read(&from, 0x1000, FIRST);
            peer.read(&from, 0x1000 + FIRST / 1024, LONG);
        } else {
            peer.driver.lay(peer.a, &WorkRequest::write(&from, 0, FIRST, &from, 0));
            peer.driver.post(peer.a, &WorkRequest::write(&from, 0, LONG, &from, 0));
        }
        for _ in 0..100 {
            peer.link.poll(0, |_| Disposition::NotNow);
            run(&mut peer.driver);
        }
        assert_eq!(peer.link.poll(1, |_| Disposition::Consumed), 1);
        let sent = |driver: &mut Driver<Host>| driver.nic.link().counters();
        let before = sent(&mut peer.driver);
        let rounds: Vec<usize> = (0..40).map(|_| peer.driver.poll()).collect();
        assert_eq!(rounds, [0; 40], "answers: {answers}");
        assert_eq!(sent(&mut peer.driver), before, "answers: {answers}: {FIRST} bytes are too few");
        assert_eq!(peer.link.poll(1, |_| Disposition::Consumed), 1);
        assert!(peer.driver.poll() > 0, "answers: {answers}: there is room for a long piece");
    }
}
