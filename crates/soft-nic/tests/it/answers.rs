//! Answers to READs: each has only the bytes of its own request, and only while its memory is granted.

use mlx5_device::carrier::{Carrier as _, Disposition, PathAddress, Payload, Unsent};
use mlx5_device::commands::*;
use mlx5_layout::umr::right::REMOTE_READ;
use mlx5_layout::{CqeOpcode, CqeSyndrome, SendOpcode};
use roce::packet::{Aeth, Deth, Syndrome};
use roce::{Content, Fragment, Packet, Position, ServiceType};
use soft_nic::dma::Host;
use soft_nic::link::{Link, LinkConfig};
use soft_nic::testing::{Driver, Opening, QpId, QpShape, Setup, WorkRequest};

use crate::operations::ALL;
use crate::two::{By, Two, joined, sent};

const OLD: u8 = 0x11;
const NEW: u8 = 0xee;
const GUARD: u8 = 0x55;

#[test]
fn reads_of_some_bytes_and_of_none_that_wait_together_get_an_answer_each() {
    for lengths in [[0, 64, 0, 70_000], [64, 0, 70_000, 0]] {
        let name = format!("together-{}", lengths[0]);
        let mut driver = Driver::new(Setup::new(&name));
        let (a, _) = driver.pair(QpShape::default());
        let (into, from) = (driver.region(1 << 19, ALL), driver.region(1 << 19, ALL));
        let bytes = from.fill(0, 1 << 19, 7);
        into.block.write(0, &[GUARD; 1 << 19]);
        let place = |i: usize| (i << 17) as u64;
        for (i, len) in lengths.into_iter().enumerate() {
            let read = WorkRequest::new(SendOpcode::RdmaRead).remote(&from, place(i));
            driver.lay(a, &if len == 0 { read } else { read.pointer(&into, place(i), len) });
        }
        driver.ring_doorbell(a).settle();
        for (i, len) in lengths.into_iter().enumerate() {
            let (at, len) = (place(i) as usize, len as usize);
            let cqe = driver.poll_send(a).unwrap_or_else(|| panic!("{name}: READ {i} is not answered"));
            assert_eq!((cqe.opcode(), cqe.byte_count() as usize), (Some(CqeOpcode::Requester), len));
            assert!(into.block.bytes(at, len) == bytes[at..at + len], "{name}: READ {i}");
            assert_eq!(into.block.bytes(at + len, 1), [GUARD], "{name}: behind READ {i}");
        }
        assert_eq!(driver.counters().retransmissions, 0, "{name}");
    }
}

/// A peer that is no NIC of ours, and the requests that it was sent.
struct RawPeer {
    link: Link,
    qpn: u32,
}

impl RawPeer {
    /// A process that joins the fabric, a NIC of ours there, and its QP whose peer the process is.
    fn join(name: &str) -> (RawPeer, Driver<Host>, QpId) {
        let setup = Setup::new(name);
        let link = Link::join(LinkConfig { fabric: setup.fabric.clone(), ..LinkConfig::default() });
        let link = link.expect("a second slot");
        let qpn = mlx5_device::first_qpn(link.slot()) | 0x40;
        let mut driver = Driver::new(setup);
        let qp = driver.create_qp(QpShape::default());
        driver.bring_up(qp, &driver.attributes(qpn));
        (RawPeer { link, qpn }, driver, qp)
    }

    /// The next request.
    fn request(&mut self, driver: &mut Driver<Host>) -> Packet {
        for _ in 0..1000 {
            driver.poll();
            let mut next = None;
            self.link.poll(1, |inbound| {
                next = Some(*inbound.packet);
                Disposition::Consumed
            });
            if let Some(request) = next {
                return request;
            }
        }
        panic!("no request arrives");
    }

    /// Answers a READ with these bytes.
    fn answer(&mut self, driver: &mut Driver<Host>, request: &Packet, bytes: &[u8]) {
        let aeth = Some(Aeth { syndrome: Syndrome::Ack, msn: 1 });
        let reply = Packet {
            dst_qpn: request.deth.src_qpn,
            psn: request.psn,
            deth: Deth { qkey: 0, src_qpn: self.qpn },
            content: Content::ReadResponse { position: Position::Only, aeth },
            payload: Fragment { offset: 0, length: bytes.len() as u32 },
            ..Packet::default()
        };
        // The channel back has to be attached to first.
        for _ in 0..1000 {
            match self.link.send_record(&reply, 4096, &PathAddress::default(), Payload::Inline(bytes)) {
                Ok(_) => {
                    self.link.ring_bells();
                    driver.settle();
                    return;
                }
                Err(Unsent::Full) => drop(driver.poll()),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the channel back stays full");
    }
}

#[test]
fn an_answer_of_another_length_fails_its_read_and_places_nothing() {
    for (i, length) in [65, 63, 4096, 0, 64].into_iter().enumerate() {
        let what = format!("{length} bytes");
        let (mut raw_peer, mut driver, a) = RawPeer::join(&format!("too-long-{i}"));
        let into = driver.region(8192, ALL);
        into.block.write(0, &[GUARD; 8192]);
        driver.post(a, &WorkRequest::read(&into, 0, 64, &into, 4096));
        let request = raw_peer.request(&mut driver);
        let Content::ReadRequest(reth) = request.content else { panic!("{request:?}") };
        assert_eq!(reth.dma_bytes, 64);
        raw_peer.answer(&mut driver, &request, &vec![NEW; length]);
        let cqe = driver.poll_send(a).unwrap_or_else(|| panic!("{what}: the READ goes on"));
        let placed = into.block.bytes(0, 8192);
        if length == 64 {
            assert_eq!(
                (cqe.opcode(), &placed[..65]),
                (Some(CqeOpcode::Requester), &[&[NEW; 64][..], &[GUARD]].concat()[..])
            );
            continue;
        }
        assert_eq!(cqe.error().known(), Some(CqeSyndrome::BadResponse), "{what}");
        assert_eq!(placed, [GUARD; 8192], "{what}: bytes of it were placed");
    }
}

#[test]
fn what_another_queue_of_the_peer_s_process_says_is_dropped() {
    let (mut raw_peer, mut driver, a) = RawPeer::join("another-queue");
    let qpn = raw_peer.qpn;
    let into = driver.region(8192, ALL);
    driver.post(a, &WorkRequest::read(&into, 0, 64, &into, 4096));
    let request = raw_peer.request(&mut driver);
    raw_peer.qpn = qpn + 1;
    raw_peer.answer(&mut driver, &request, &[NEW; 64]);
    assert!(driver.poll_send(a).is_none(), "the READ is complete");
    assert_eq!(driver.counters().dropped_replies, 1);
    let send = Packet {
        dst_qpn: request.deth.src_qpn,
        psn: request.psn,
        deth: Deth { qkey: 0, src_qpn: qpn + 1 },
        ..Packet::default()
    };
    raw_peer.link.send_record(&send, 4096, &PathAddress::default(), Payload::Nothing).expect("room");
    raw_peer.link.ring_bells();
    driver.settle();
    assert_eq!(driver.counters().dropped_peer, 1);
    raw_peer.qpn = qpn;
    raw_peer.answer(&mut driver, &request, &[OLD; 64]);
    assert_eq!(driver.poll_send(a).and_then(|cqe| cqe.opcode()), Some(CqeOpcode::Requester));
    assert_eq!(into.block.bytes(0, 64), [OLD; 64]);
}

#[test]
fn an_answer_in_packets_ends_where_its_region_or_window_goes_away() {
    const LEN: u32 = 1 << 17;
    for by_window in [false, true] {
        let mut two = joined(&format!("answer-ends-{by_window}"), ServiceType::Rc, By::Wire);
        let region = two.right.region(LEN as usize, ALL | 1 << 4);
        region.block.write(0, &[OLD; LEN as usize]);
        two.from.block.write(0, &[GUARD; LEN as usize]);
        let read = WorkRequest::read(&two.from, 0, LEN, &region, 0);
        let window = two.right.window(2);
        let read = if by_window {
            let opening = Opening { region: &region, offset: 0, len: LEN.into(), rights: REMOTE_READ };
            let bind = two.right.bind(two.b, &window, 3, &opening);
            two.right.post(two.b, &bind).settle();
            assert_eq!(sent(&mut two.right, two.b), Some(Ok(())), "the bind");
            read.through(window.key(3))
        } else {
            read
        };
        two.left.post(two.a, &read);
        let left_so_far = |two: &Two| two.count(false, "wire_bytes_sent");
        let mut rounds = 0;
        while left_so_far(&two) == 0 {
            two.rounds(1);
            rounds += 1;
            assert!(rounds < 1000, "the READ is not answered");
        }
        if by_window {
            two.right.post(two.b, &WorkRequest::local_invalidate(window.key(3)));
            while sent(&mut two.right, two.b).is_none() {
                two.right.poll();
                rounds += 1;
                assert!(rounds < 1000, "the window is not closed");
            }
        } else {
            two.right.nic.dereg_mr(two.right.context, region.handle).expect("nothing is bound to it");
        }
        assert!(left_so_far(&two) < u64::from(LEN), "the answer was to be on its way still");
        region.block.write(0, &[NEW; LEN as usize]);
        two.rounds(1000);
        let outcome = sent(&mut two.left, two.a);
        assert_eq!(outcome, Some(Err(CqeSyndrome::RemoteAccess)), "by window: {by_window}");
        let placed = two.from.block.bytes(0, LEN as usize);
        assert!(!placed.contains(&NEW), "by window: {by_window}: memory that was the program's again");
        assert!(placed.contains(&OLD), "by window: {by_window}: the first packets had arrived");
    }
}
