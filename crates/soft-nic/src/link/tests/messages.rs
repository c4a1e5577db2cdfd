//! Messages of every kind and size between two links and within one; payloads on every way.

use std::time::Duration;

use mlx5_device::carrier::{COPIED_AT_ONCE, Disposition, PathAddress, Payload, Unsent};
use mlx5_device::carrier::{Carrier as _, Inbound as _};
use mlx5_device::memory::{Fault, Order, Segment};
use roce::packet::{Aeth, AtomicEth, Reth, Syndrome, Trailer};
use roce::{Content, Fragment, NakCode, Opcode, Packet, ServiceType};

use super::processes::{MTU, answer, config, connect, fabric_name, go_on, read_response, request};
use crate::dma::Copiers;
use crate::link::{Link, LinkConfig, MAX_FRAGMENT, MAX_INLINE, NoPeer, Room};

/// Two links of one process, as two processes would have them.
fn pair() -> (Link, Link) {
    pair_with([0, 0])
}

/// The same with so many helpers that copy long payloads, at either end.
fn pair_with(helpers: [u8; 2]) -> (Link, Link) {
    let fabric = fabric_name();
    let [mut a, mut b] = helpers
        .map(|helpers| Link::join(LinkConfig { copiers: Copiers::new(helpers), ..config(&fabric) }).unwrap());
    meet(&mut a, &mut b);
    (a, b)
}

pub fn meet(a: &mut Link, b: &mut Link) {
    let (a_slot, b_slot) = (a.slot(), b.slot());
    while a.room(b_slot) != Room::Yes || b.room(a_slot) != Room::Yes {
        a.poll(1, |_| Disposition::Consumed);
        b.poll(1, |_| Disposition::Consumed);
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect()
}

pub fn segment(bytes: &[u8]) -> Segment {
    Segment { addr: bytes.as_ptr() as u64, len: bytes.len() as u64 }
}

/// Sizes where something changes: nothing, one byte, words, inline limit, fragment limit, several fragments.
const SIZES: [usize; 12] = [
    0,
    1,
    8,
    63,
    MAX_INLINE - 1,
    MAX_INLINE,
    MAX_INLINE + 1,
    MAX_FRAGMENT,
    MAX_FRAGMENT + 1,
    65_536,
    200_001,
    1 << 20,
];

/// Sends a WRITE or SEND of `source`, cut in three, and returns what arrived.
fn deliver(a: &mut Link, b: &mut Link, opcode: Opcode, source: &[u8], order: Order) -> Vec<u8> {
    let cut = source.len() / 3;
    let pieces = [segment(&source[..cut]), segment(&source[cut..2 * cut]), segment(&source[2 * cut..])];
    let target = vec![0xee; source.len() + 8];
    let mut sending = request(a, mlx5_device::first_qpn(b.slot()), opcode, 7, 0x1000, source.len() as u32);
    let (mut whole, mut arrived) = (false, 0);
    let mut sent_all = false;
    while !whole {
        if !sent_all {
            match a.send_record(&sending, MTU, &PathAddress::default(), Payload::Segments(&pieces)) {
                Ok(sent) => {
                    sent_all = go_on(&mut sending, sent.carried);
                }
                Err(Unsent::Full) => {}
                Err(error) => panic!("{error}"),
            }
            a.ring_bells();
        }
        b.poll(1, |inbound| {
            let Packet { content, psn, payload, .. } = *inbound.packet;
            let position = content.position();
            let (is_write, trailed) = match content {
                Content::Write { reth, trailer, .. } => {
                    let starts = Reth { va: 0x1000, rkey: 1, dma_bytes: source.len() as u32 };
                    assert_eq!(reth, if position.starts() { starts } else { Reth::default() });
                    (true, trailer != Trailer::None)
                }
                Content::Send { trailer, .. } => (false, trailer != Trailer::None),
                _ => panic!("{content:?}"),
            };
            assert_eq!(is_write, opcode != Opcode::Send);
            assert_eq!(trailed, opcode == Opcode::WriteImm && position.ends(), "with the last byte");
            assert_eq!((position.starts(), psn.value()), (arrived == 0, 7 + arrived as u32 / MTU));
            let to = &target[arrived..][..payload.length as usize];
            arrived += to.len();
            // Cut elsewhere than the source, so that pieces never match.
            let middle = to.len() / 2;
            inbound.copy_into(&[segment(&to[..middle]), segment(&to[middle..])], order).unwrap();
            whole = position.ends();
            Disposition::Consumed
        });
        b.ring_bells();
    }
    assert_eq!(target[source.len()..], [0xee; 8]);
    target[..source.len()].to_vec()
}

#[test]
fn a_record_says_which_port_of_its_receiver_it_is_for() {
    let (mut a, mut b) = pair();
    for (to_port, wanted) in [(0, 1), (1, 1), (2, 2)] {
        let packet = request(&a, mlx5_device::first_qpn(b.slot()), Opcode::Write, 7, 0x1000, 0);
        let path = PathAddress { to_port, ..PathAddress::default() };
        a.send_record(&packet, MTU, &path, Payload::Nothing).unwrap();
        a.ring_bells();
        let mut found = None;
        while found.is_none() {
            b.poll(1, |inbound| {
                found = inbound.addressing().to_port;
                Disposition::Consumed
            });
        }
        assert_eq!(found, Some(wanted));
    }
}

#[test]
fn payloads_of_every_size_arrive_whole() {
    let _one = crate::dma::copiers::tests::ONE.lock();
    for helpers in [[0, 0], [1, 0], [2, 1], [0, 2]] {
        let (mut a, mut b) = pair_with(helpers);
        let mut bytes = 0;
        for order in [Order::Increasing, Order::Relaxed] {
            for (i, len) in SIZES.into_iter().enumerate() {
                let source = pattern(len, i as u8);
                let opcode = [Opcode::Write, Opcode::Send, Opcode::WriteImm][i % 3];
                let got = deliver(&mut a, &mut b, opcode, &source, order);
                assert!(got == source, "{len} bytes, {helpers:?} helpers, {order:?}");
                bytes += len as u64;
            }
        }
        assert_eq!(b.counters().payload_bytes, bytes, "{helpers:?}");
    }
}

#[test]
fn a_process_reaches_its_own_queues_the_same_way() {
    let mut link = Link::join(config(&fabric_name())).unwrap();
    let slot = link.slot();
    connect(&mut link, slot);
    for len in SIZES {
        let source = pattern(len, 3);
        let target = vec![0; len];
        let mut sending = request(&link, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, len as u32);
        let (mut whole, mut arrived) = (false, 0);
        while !whole {
            let sent = link.send_record(
                &sending,
                MTU,
                &PathAddress::default(),
                Payload::Segments(&[segment(&source)]),
            );
            let carried = sent.unwrap().carried;
            go_on(&mut sending, carried);
            link.ring_bells();
            link.poll(16, |inbound| {
                let to = &target[arrived..][..inbound.packet.payload.length as usize];
                arrived += to.len();
                inbound.copy_into(&[segment(to)], Order::Increasing).unwrap();
                whole = inbound.packet.content.position().ends();
                Disposition::Consumed
            });
        }
        assert!(target == source, "{len} bytes to ourselves");
    }
}

/// What a READ gets.
fn read(a: &mut Link, b: &mut Link, source: &[u8], from_offset: u32) -> Vec<u8> {
    let target = vec![0xee; source.len()];
    let reading = request(a, mlx5_device::first_qpn(b.slot()), Opcode::Read, 3, 0x2000, source.len() as u32);
    a.send_record(&reading, MTU, &PathAddress::default(), Payload::Segments(&[segment(&target)])).unwrap();
    a.ring_bells();
    let mut asked = None;
    while asked.is_none() {
        b.poll(1, |inbound| {
            assert_eq!(inbound.packet.payload.length, 0, "a READ carries nothing there");
            asked = Some(*inbound.packet);
            Disposition::Consumed
        });
    }
    let got = asked.unwrap();
    let mut reply = read_response(&got);
    reply.payload = Fragment { offset: from_offset, length: source.len() as u32 - from_offset };
    let mut arrived = from_offset;
    let mut done = false;
    let mut sent_all = false;
    while !done {
        if !sent_all {
            match b.send_record(&reply, MTU, &PathAddress::default(), Payload::Segments(&[segment(source)])) {
                Ok(sent) => {
                    sent_all = go_on(&mut reply, sent.carried);
                }
                Err(Unsent::Full) => {}
                Err(error) => panic!("{error}"),
            }
            b.ring_bells();
        }
        a.poll(1, |inbound| {
            let packet = inbound.packet;
            let Content::ReadResponse { position, .. } = packet.content else { panic!("{packet:?}") };
            assert_eq!(position.starts(), arrived == from_offset);
            assert_eq!(packet.psn, got.psn.plus((arrived - from_offset) / MTU));
            let rest = &target[arrived as usize..][..inbound.packet.payload.length as usize];
            arrived += inbound.packet.payload.length;
            let (first, second) = rest.split_at(rest.len() / 4);
            inbound.copy_into(&[segment(first), segment(second)], Order::Increasing).unwrap();
            done = position.ends();
            Disposition::Consumed
        });
        a.ring_bells();
    }
    target
}

#[test]
fn a_long_payload_behind_others_that_leave_little_room_goes_all_the_same() {
    let _one = crate::dma::copiers::tests::ONE.lock();
    let (mut a, mut b) = pair_with([1, 0]);
    let (long, short) = (pattern(1 << 20, 1), pattern(MAX_INLINE, 2));
    let to = mlx5_device::first_qpn(b.slot());
    let write = |a: &mut Link, bytes: &[u8]| {
        let request = request(a, to, Opcode::Write, 1, 0x1000, bytes.len() as u32);
        a.send_record(&request, MTU, &PathAddress::default(), Payload::Segments(&[segment(bytes)]))
    };
    while write(&mut a, &short).is_ok() {}
    a.ring_bells();
    assert_eq!(b.poll(2, |_| Disposition::Consumed), 2);
    assert!(a.room(b.slot()) == Room::Yes);
    assert!(
        matches!(write(&mut a, &long), Err(Unsent::Full)),
        "two short ones' room is little for a long one"
    );
    assert!(write(&mut a, &short).is_ok(), "another one takes as much as it could have had");
    let carried = write(&mut a, &long).map(|sent| sent.carried);
    assert!(carried.as_ref().is_ok_and(|carried| *carried < 65_536), "{carried:?}");
}

#[test]
fn answers_to_reads_come_whole_and_from_the_middle() {
    let (mut a, mut b) = pair();
    for len in SIZES {
        let source = pattern(len, 9);
        assert!(read(&mut a, &mut b, &source, 0) == source, "{len} bytes");
    }
    // A READ asked for again from the middle leaves the first bytes alone.
    for len in [2000, 50_000, 200_000] {
        let source = pattern(len, 1);
        let got = read(&mut a, &mut b, &source, 1024);
        assert!(got[..1024].iter().all(|b| *b == 0xee) && got[1024..] == source[1024..], "{len} bytes");
    }
}

#[test]
fn atomics_and_naks_carry_their_values() {
    let (mut a, mut b) = pair();
    let mut swap = request(&a, mlx5_device::first_qpn(b.slot()), Opcode::CompareSwap, 5, 0x4000, 8);
    let eth = AtomicEth { va: 0x4000, rkey: 1, swap_add: u64::MAX, compare: 3 };
    swap.content = Content::CompareSwap(eth);
    let place = [0u8; 8];
    a.send_record(&swap, MTU, &PathAddress::default(), Payload::Segments(&[segment(&place)])).unwrap();
    a.ring_bells();
    let mut got = None;
    b.poll(1, |inbound| {
        got = Some(*inbound.packet);
        Disposition::Consumed
    });
    assert_eq!(got, Some(swap));
    let aeth = |syndrome| Aeth { syndrome, msn: 7 };
    for content in [
        Content::AtomicAcknowledge { aeth: aeth(Syndrome::Ack), old: 77 },
        Content::Acknowledge(aeth(Syndrome::Nak(NakCode::RemoteAccess))),
        Content::Acknowledge(aeth(Syndrome::RnrNak { timer: 12 })),
    ] {
        let reply = answer(&swap, content);
        b.send_record(&reply, MTU, &PathAddress::default(), Payload::Nothing).unwrap();
        b.ring_bells();
        let mut got = None;
        a.poll(1, |inbound| {
            got = Some(*inbound.packet);
            Disposition::Consumed
        });
        assert_eq!(got, Some(reply));
    }
}

#[test]
fn a_datagram_brings_the_address_it_came_from() {
    let (mut a, mut b) = pair();
    let path =
        PathAddress { sgid: [7; 16], slid: 3, sl: 2, hop_limit: 64, grh: true, ..PathAddress::default() };
    for service in [ServiceType::Ud, ServiceType::Rc] {
        let mut datagram = request(&a, mlx5_device::first_qpn(b.slot()), Opcode::Send, 0, 0, 5);
        (datagram.service, datagram.deth.qkey) = (service, if service == ServiceType::Ud { 0x11 } else { 0 });
        a.send_record(&datagram, MTU, &path, Payload::Inline(b"hello")).unwrap();
        a.ring_bells();
        let mut seen = false;
        b.poll(1, |inbound| {
            assert_eq!(inbound.addressing.path, (service == ServiceType::Ud).then_some(path));
            let mut text = [0; 5];
            inbound.copy_to_buffer(&mut text).unwrap();
            assert_eq!(&text, b"hello");
            assert_eq!(*inbound.packet, datagram);
            seen = true;
            Disposition::Consumed
        });
        assert!(seen);
    }
}

#[test]
fn each_side_meets_the_faults_of_its_own_memory() {
    let (mut a, mut b) = pair();
    let b_qpn = mlx5_device::first_qpn(b.slot());
    let nowhere = |len: usize| [Segment { addr: 4096, len: len as u64 }];
    for len in [64, 65_536] {
        let lost = request(&a, b_qpn, Opcode::Write, 0, 0, len as u32);
        let sent = a.send_record(&lost, MTU, &PathAddress::default(), Payload::Segments(&nowhere(len)));
        assert_eq!(sent, Err(Unsent::Fault(Fault { addr: 4096 })));
        assert_eq!(a.counters().requests_sent, 0, "and nothing was sent");
    }
    let large = request(&a, b_qpn, Opcode::Write, 0, 0, 65_536);
    let buffer = vec![0u8; 65_536];
    a.send_record(&large, MTU, &PathAddress::default(), Payload::Segments(&[segment(&buffer)])).unwrap();
    a.ring_bells();
    let mut got = None;
    b.poll(1, |inbound| {
        got = Some(inbound.copy_into(&nowhere(65_536), Order::Increasing));
        Disposition::Consumed
    });
    assert_eq!(got, Some(Err(Fault { addr: 4096 })));
}

#[test]
fn payloads_that_contradict_the_request_are_not_sent() {
    let (mut a, b) = pair();
    let buffer = vec![0u8; 2 * MAX_INLINE];
    let write = |len| request(&a, mlx5_device::first_qpn(b.slot()), Opcode::Write, 0, 0, len);
    let refused = [
        (write(9), Payload::Inline(&buffer[..8])),
        (write(8), Payload::Nothing),
        (write(MAX_INLINE as u32 + 1), Payload::Inline(&buffer[..MAX_INLINE + 1])),
        (write(buffer.len() as u32 + 1), Payload::Segments(&[segment(&buffer)])),
    ]
    .map(|(request, payload)| a.send_record(&request, MTU, &PathAddress::default(), payload).is_err());
    assert_eq!(refused, [true; 4]);
    assert_eq!(a.counters().requests_sent, 0);
}

#[test]
fn a_round_takes_no_further_message_when_it_has_copied_enough() {
    let most = COPIED_AT_ONCE as usize;
    for (len, messages, in_a_round) in [(MAX_FRAGMENT, 48, most / MAX_FRAGMENT), (8, 64, 64)] {
        let fabric = fabric_name();
        let join = || Link::join(LinkConfig { ring_bytes: 8 << 20, ..config(&fabric) }).unwrap();
        let (mut a, mut b) = (join(), join());
        meet(&mut a, &mut b);
        let source = pattern(len, 3);
        let target = vec![0u8; len];
        let to = mlx5_device::first_qpn(b.slot());
        for i in 0..messages {
            let write = request(&a, to, Opcode::Write, i as u32, 0x1000, len as u32);
            let from = [segment(&source)];
            a.send_record(&write, MTU, &PathAddress::default(), Payload::Segments(&from)).unwrap();
        }
        a.ring_bells();
        let what = format!("{len} bytes");
        for round in 0..messages / in_a_round {
            let taken = b.poll(messages, |inbound| {
                inbound.copy_into(&[segment(&target)], Order::Increasing).unwrap();
                Disposition::Consumed
            });
            assert_eq!(taken, in_a_round, "{what}, round {round}");
        }
        assert!(target == source, "{what}");
        assert_eq!(b.poll(messages, |_| Disposition::Consumed), 0, "{what}");
    }
}

#[test]
fn a_full_ring_says_so_and_consumption_makes_room() {
    let (mut a, mut b) = pair();
    let slot = b.slot();
    let buffer = vec![0u8; 4096];
    let write = request(&a, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, 4096);
    let mut positions = Vec::new();
    while a.room(slot) == Room::Yes {
        let sent = a.send_record(&write, MTU, &PathAddress::default(), Payload::Inline(&buffer)).unwrap();
        positions.push(sent.position);
    }
    assert_eq!(
        a.send_record(&write, MTU, &PathAddress::default(), Payload::Inline(&buffer)),
        Err(Unsent::Full)
    );
    assert!((490..=512).contains(&positions.len()), "{} messages in 2 MiB", positions.len());
    // Replies have their own ring, so two full request rings cannot wait for each other.
    assert!(a.has_reply_room(slot));
    a.ring_bells();
    assert_eq!(b.poll(1000, |_| Disposition::NotNow), 0, "what is not taken stays");
    assert!(!a.consumed(slot, positions[0]));
    assert_eq!(b.poll(3, |_| Disposition::Consumed), 3, "the budget is kept");
    let taken: Vec<bool> = positions.iter().map(|p| a.consumed(slot, *p)).collect();
    assert_eq!(taken.iter().filter(|t| **t).count(), 3);
    assert_eq!(a.room(slot), Room::Yes);
}

#[test]
fn the_room_of_a_long_record_is_free_while_the_next_one_is_copied() {
    let (mut a, mut b) = pair();
    let source = pattern(MAX_FRAGMENT, 3);
    let sending =
        request(&a, mlx5_device::first_qpn(b.slot()), Opcode::Write, 7, 0x1000, source.len() as u32);
    let mut send = || {
        let pieces = [segment(&source)];
        a.send_record(&sending, MTU, &PathAddress::default(), Payload::Segments(&pieces)).map(|_| ())
    };
    while send().is_ok() {}
    let mut seen = 0;
    b.poll(4, |_| {
        seen += 1;
        assert_eq!(send(), if seen == 1 { Err(Unsent::Full) } else { Ok(()) }, "record {seen}");
        Disposition::Consumed
    });
    assert_eq!(seen, 4);
}

#[test]
fn ten_thousand_messages_of_mixed_sizes_wrap_the_ring_in_order() {
    let (mut a, mut b) = pair();
    let slot = b.slot();
    let (mut sent, mut received) = (0u32, 0u32);
    let buffer = pattern(4096, 0);
    while received < 10_000 {
        while sent < 10_000 && a.room(slot) == Room::Yes {
            let len = (sent * 37) % 4097;
            let write = request(&a, mlx5_device::first_qpn(slot), Opcode::Write, sent, 0, len);
            a.send_record(&write, MTU, &PathAddress::default(), Payload::Inline(&buffer[..len as usize]))
                .unwrap();
            sent += 1;
        }
        a.ring_bells();
        b.poll(50, |inbound| {
            let got = inbound.packet;
            assert_eq!((got.psn.value(), got.payload.length), (received, received * 37 % 4097));
            let mut out = vec![0; got.payload.length as usize];
            inbound.copy_to_buffer(&mut out).unwrap();
            assert!(out == buffer[..out.len()]);
            received += 1;
            Disposition::Consumed
        });
    }
}

#[test]
fn empty_slots_and_leavers_are_no_peers() {
    let fabric = fabric_name();
    let mut a = Link::join(config(&fabric)).unwrap();
    assert_eq!(a.room(5), Room::NoPeer(NoPeer::Empty(5)));
    assert!(!a.is_alive(5).unwrap() && a.is_alive(a.slot()).unwrap());
    let mut b = Link::join(config(&fabric)).unwrap();
    meet(&mut a, &mut b);
    let slot = b.slot();
    assert!(a.is_alive(slot).unwrap());
    // What was sent before leaving still arrives.
    let write = request(&b, mlx5_device::first_qpn(a.slot()), Opcode::Write, 0, 0, 0);
    b.send_record(&write, MTU, &PathAddress::default(), Payload::Nothing).unwrap();
    drop(b);
    assert!(!a.is_alive(slot).unwrap());
    assert_eq!(a.poll(10, |_| Disposition::Consumed), 1);
    std::thread::sleep(Duration::from_millis(11));
    a.sleep(Duration::from_nanos(1));
    assert_eq!(a.room(slot), Room::NoPeer(NoPeer::Empty(slot)));
    assert_eq!(
        (a.counters().peers_lost, a.events.pop_front()),
        (1, None),
        "a peer that leaves in order is no event"
    );
}

#[test]
fn a_sleeper_is_woken_by_a_message_by_room_and_by_its_own_process() {
    let (mut a, mut b) = pair();
    let long = Duration::from_secs(20);
    let begun = std::time::Instant::now();
    let write = request(&a, mlx5_device::first_qpn(b.slot()), Opcode::Write, 0, 0, 0);
    // Neither sleeps before it has seen that its channel was attached.
    a.sleep(Duration::ZERO);
    b.sleep(Duration::ZERO);
    // Each is rung for once: it has said that it sleeps before the other looks.
    let sleep = b.prepare_sleep().expect("nothing has arrived");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            a.send_record(&write, MTU, &PathAddress::default(), Payload::Nothing).unwrap();
            a.ring_bells();
        });
        sleep.wait(long);
    });
    b.end_sleep();
    assert_eq!(b.poll(1, |_| Disposition::Consumed), 1);
    let waker = b.waker();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            waker.rouse();
        });
        b.sleep(long);
    });
    // The sender sleeps on a full ring.
    while a.room(b.slot()) == Room::Yes {
        a.send_record(&write, MTU, &PathAddress::default(), Payload::Nothing).unwrap();
    }
    a.ring_bells();
    let sleep = a.prepare_sleep().expect("nothing has arrived");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            b.poll(100, |_| Disposition::Consumed);
            b.ring_bells();
        });
        sleep.wait(long);
    });
    a.end_sleep();
    // A wake just before the sleep ends it too.
    waker.rouse();
    b.sleep(long);
    assert!(begun.elapsed() < long, "four sleeps took {:?}", begun.elapsed());
    assert_eq!(a.counters().bells + b.counters().bells, 2);
}

#[test]
fn a_channel_that_was_attached_or_refused_before_the_sleep_ends_it_once() {
    for refuses in [false, true] {
        let fabric = fabric_name();
        let mut a = Link::join(config(&fabric)).unwrap();
        let mut b = Link::join(config(&fabric)).unwrap();
        assert_eq!(a.room(b.slot()), Room::Full, "nobody has attached");
        // No bell is rung for it: `a` is awake.
        if refuses {
            b.fabric.refuse_channel(a.slot());
        } else {
            b.poll(1, |_| Disposition::Consumed);
        }
        assert!(a.prepare_sleep().is_none(), "refused: {refuses}");
        assert!(a.prepare_sleep().is_some(), "refused: {refuses}");
        a.end_sleep();
    }
}
