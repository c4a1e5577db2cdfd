//! A ring that its receiver does not empty: what the sender's NIC does meanwhile, and in which order queues
//! send again.

use std::time::{Duration, Instant};

use mlx5_device::carrier::{Carrier as _, Disposition, PathAddress, Payload, Unsent};
use mlx5_layout::CqeOpcode;
use roce::packet::{Deth, Reth};
use roce::{Content, Packet, Psn, ServiceType};
use soft_nic::dma::Host;
use soft_nic::link::{Link, LinkConfig, MAX_FRAGMENT, MAX_INLINE, Room};
use soft_nic::testing::{Driver, QpId, QpShape, Region, Setup, WorkRequest};

use crate::operations::ALL;
use crate::withdrawn::{GUARD, LONG, OLD, TwoNics, filled, run};

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
        let mut nics = TwoNics::new("full", ServiceType::Rc, |_| ());
        let (a, _) = nics.pair;
        let near = filled(&mut nics.near, LONG as usize, OLD);
        let far = filled(&mut nics.far, LONG as usize, GUARD);
        let requests: Vec<_> = match filling {
            Filled::LongWrite => vec![WorkRequest::write(&near, 0, LONG, &far, 0)],
            Filled::Answer => vec![WorkRequest::read(&near, 0, LONG, &far, 0)],
            Filled::ShortWrites => {
                let at = |i: u32| u64::from(i * SHORT);
                (0..200).map(|i| WorkRequest::write(&near, at(i), SHORT, &far, at(i))).collect()
            }
        };
        for request in &requests {
            nics.near.lay(a, request);
        }
        nics.near.ring_doorbell(a);
        run(&mut nics.near);
        let by_far = filling == Filled::Answer;
        if by_far {
            run(&mut nics.far);
        }
        let TwoNics { near: left, far: right, .. } = &mut nics;
        let (sender, receiver) = if by_far { (right, left) } else { (left, right) };
        if filling == Filled::ShortWrites {
            let slot = receiver.nic.link().slot();
            assert_eq!(sender.nic.link().room(slot), Room::Full);
        }
        let rounds: Vec<usize> = (0..100).map(|_| sender.poll()).collect();
        assert_eq!(rounds, [0; 100], "{filling:?}: what was done with a full ring");
        sender.now += 2_000_000;
        assert_eq!(sender.poll(), 0);
        let due = sender.nic.due();
        assert!(due.is_none_or(|due| due.0 > sender.now), "{filling:?}: due {due:?}, at {}", sender.now);
        // It does not sleep before it has seen that its channel was attached.
        sender.nic.link().sleep(Duration::ZERO);
        let sleep = sender.nic.link().prepare_sleep().expect("nothing has arrived");
        let rung = receiver.nic.link().counters().bells;
        receiver.poll();
        assert_eq!(receiver.nic.link().counters().bells, rung + 1, "{filling:?}: there is room");
        let (since, long) = (Instant::now(), Duration::from_secs(20));
        sleep.wait(long);
        assert!(since.elapsed() < long, "{filling:?}: it slept on");
        sender.nic.link().end_sleep();
        assert!(sender.poll() > 0, "{filling:?}: it goes on");
        let mut done = 0;
        for _ in 0..1000 {
            if done == requests.len() {
                break;
            }
            nics.settle();
            while let Some(cqe) = nics.near.poll_send(a) {
                assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester), "{filling:?}");
                done += 1;
            }
        }
        assert_eq!(done, requests.len(), "{filling:?}: all are complete");
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
        let link = Link::join(config).expect("a second slot");
        let mut driver = Driver::new(setup);
        let a = driver.create_qp(QpShape::default());
        driver.bring_up(a, &driver.attributes(mlx5_device::first_qpn(link.slot()) | 0x40));
        Peer { link, driver, a }
    }

    /// Asks the driver's queue for memory of the driver's.
    fn read(&mut self, from: &Region, psn: u32, length: u32) {
        let reth = Reth { va: from.block.address(), rkey: from.rkey, dma_bytes: length };
        let request = Packet {
            dst_qpn: self.driver.qp(self.a).qpn,
            psn: Psn::new(psn),
            ack_requested: true,
            deth: Deth { qkey: 0, src_qpn: mlx5_device::first_qpn(self.link.slot()) | 0x40 },
            content: Content::ReadRequest(reth),
            ..Packet::default()
        };
        let path = PathAddress { to_port: 1, ..PathAddress::default() };
        for _ in 0..1000 {
            match self.link.send_record(&request, 4096, &path, Payload::Nothing) {
                Ok(_) => return self.link.ring_bells(),
                Err(Unsent::Full) => drop(self.driver.poll()),
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

#[test]
fn a_long_message_goes_on_beside_other_queues_short_ones() {
    let mut peer = Peer::new("two-queues");
    let peer_qpn = mlx5_device::first_qpn(peer.link.slot()) | 0x41;
    let attributes = peer.driver.attributes(peer_qpn);
    let from = filled(&mut peer.driver, LONG as usize, OLD);
    // More than a ring holds; nothing is acknowledged.
    for _ in 0..2 {
        let shorts = peer.driver.create_qp(QpShape { sq_blocks: 256, ..QpShape::default() });
        peer.driver.bring_up(shorts, &attributes);
        for _ in 0..120 {
            peer.driver.lay(shorts, &WorkRequest::write(&from, 0, SHORT, &from, 0));
        }
        peer.driver.ring_doorbell(shorts);
    }
    for _ in 0..100 {
        peer.link.poll(0, |_| Disposition::NotNow);
        run(&mut peer.driver);
    }
    peer.driver.post(peer.a, &WorkRequest::write(&from, 0, 16 * SHORT, &from, 0));
    run(&mut peer.driver);
    let (mut short, mut whole) = (0, false);
    while !whole {
        let taken = peer.link.poll(1, |inbound| {
            let packet = inbound.packet;
            if packet.content.is_request() {
                short += u32::from(packet.dst_qpn == peer_qpn);
                whole = packet.dst_qpn != peer_qpn && packet.content.position().ends();
            }
            Disposition::Consumed
        });
        assert!(taken == 1, "the long message does not end");
        peer.driver.poll();
    }
    // What was in the ring, and in turns 16 of each.
    assert!(short < 180, "{short} of 240 went before the 16 records of the long one");
}

/// Bytes of a record that is full.
const RECORD: u32 = MAX_FRAGMENT as u32;

/// A NIC whose bytes go to others: by WRITEs of its own, or by answers to READs of theirs.
struct FanOut {
    reads: bool,
    source: Driver<Host>,
    others: Vec<Driver<Host>>,
    /// For each connection its queue at the source, the NIC at the other end, and the queue there.
    connections: Vec<(QpId, usize, QpId)>,
    /// Memory of the source, and of each of the others.
    near: Region,
    far: Vec<Region>,
    /// A NIC among the others that has stopped.
    stopped: Option<usize>,
    /// Messages of each connection that were posted, and that are complete.
    posted: Vec<usize>,
    done: Vec<usize>,
}

impl FanOut {
    /// A connection to each of `ends`, by the number of the NIC.
    fn new(name: &str, reads: bool, ends: &[usize]) -> FanOut {
        let name = format!("{name}-{reads}-{}", ends.iter().map(usize::to_string).collect::<String>());
        let join = || Driver::new(Setup::new(&name));
        let mut source = join();
        let mut others: Vec<_> = (0..=ends.iter().copied().max().unwrap_or(0)).map(|_| join()).collect();
        let connect = |end: &usize| {
            let other = &mut others[*end];
            let (a, b) = (source.create_qp(QpShape::default()), other.create_qp(QpShape::default()));
            let (qpn_a, qpn_b) = (source.qp(a).qpn, other.qp(b).qpn);
            source.bring_up(a, &source.attributes(qpn_b));
            other.bring_up(b, &other.attributes(qpn_a));
            (a, *end, b)
        };
        let connections: Vec<_> = ends.iter().map(connect).collect();
        let region = |driver: &mut Driver<Host>| driver.region(LONG as usize, ALL);
        let (near, far) = (region(&mut source), others.iter_mut().map(region).collect());
        let (posted, done) = (vec![0; ends.len()], vec![0; ends.len()]);
        let mut fan_out =
            FanOut { reads, source, others, connections, near, far, stopped: None, posted, done };
        // The channels are open then, and all queues among those that every round looks at.
        for messages in [1, 2] {
            (0..ends.len()).for_each(|connection| fan_out.post(connection, 8));
            let mut rounds = 0..5000;
            while fan_out.done.iter().any(|done| *done < messages) {
                rounds.next().expect("all messages arrive");
                fan_out.round();
            }
        }
        fan_out
    }

    fn post(&mut self, connection: usize, len: u32) {
        let (a, end, b) = self.connections[connection];
        let far = &self.far[end];
        self.posted[connection] += 1;
        if self.reads {
            self.others[end].post(b, &WorkRequest::read(far, 0, len, &self.near, 0));
        } else {
            self.source.post(a, &WorkRequest::write(&self.near, 0, len, far, 0));
        }
    }

    /// A round of the others, then one of the source.
    fn round(&mut self) {
        for (number, other) in self.others.iter_mut().enumerate() {
            if self.stopped != Some(number) {
                other.poll();
            }
        }
        self.source.poll();
        for (connection, (a, end, b)) in self.connections.iter().enumerate() {
            let (driver, qp) = if self.reads { (&mut self.others[*end], *b) } else { (&mut self.source, *a) };
            while let Some(cqe) = driver.poll_send(qp) {
                assert_eq!(cqe.opcode(), Some(CqeOpcode::Requester));
                self.done[connection] += 1;
            }
        }
    }

    /// Records with payload that the source has laid into rings.
    fn records(&mut self) -> u64 {
        let counters = self.source.nic.link().counters();
        if self.reads { counters.replies_sent } else { counters.requests_sent }
    }
}

#[test]
fn a_round_lays_no_more_into_all_rings_together_than_it_takes_out_of_them() {
    for reads in [false, true] {
        let mut fan_out = FanOut::new("sum", reads, &[0, 1, 2]);
        (0..30).for_each(|i| fan_out.post(i % 3, RECORD));
        for other in &mut fan_out.others {
            other.poll();
        }
        for records in [16, 14] {
            let before = fan_out.records();
            fan_out.source.poll();
            assert_eq!(fan_out.records() - before, records, "reads: {reads}");
        }
    }
}

#[test]
fn a_queue_gets_its_turn_beside_others_that_could_fill_every_round() {
    for reads in [false, true] {
        // One ring for all of them; a ring each, and what a round copies at most; more long messages than a
        // ring holds records. The same behind a connection, the first of all, to a NIC that has stopped.
        for (ends, len, depth, stopped) in [
            (&[0, 0, 0][..], RECORD, 48, None),
            (&[0, 1, 2], RECORD, 48, None),
            (&[0; 20], LONG, 2, None),
            (&[1, 0, 0, 0], RECORD, 48, Some(1)),
            (&[3, 0, 1, 2], RECORD, 48, Some(3)),
            (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], LONG, 2, Some(1)),
        ] {
            let what = format!("reads: {reads}, {ends:?}");
            let mut fan_out = FanOut::new("turns", reads, ends);
            let (first, last) = (usize::from(stopped.is_some()), ends.len() - 1);
            if stopped.is_some() {
                fan_out.post(0, LONG);
                fan_out.round();
                fan_out.stopped = stopped;
                (0..50).for_each(|_| fan_out.round());
            }
            let stream = |fan_out: &mut FanOut| {
                for connection in first..last {
                    while fan_out.posted[connection] - fan_out.done[connection] < depth {
                        fan_out.post(connection, len);
                    }
                }
                fan_out.round();
            };
            (0..20).for_each(|_| stream(&mut fan_out));
            for message in 3..13 {
                fan_out.post(last, RECORD);
                let before = fan_out.records();
                let rounds = (1..=200).take_while(|_| {
                    stream(&mut fan_out);
                    fan_out.done[last] < message
                });
                let (rounds, others) = (rounds.count(), fan_out.records() - before);
                assert!(rounds < 8, "{what}: message {message} waited for {others} records of the others");
            }
        }
    }
}
