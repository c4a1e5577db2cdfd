//! Peers that write what cannot be. They lose their channel; nobody else loses anything.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mlx5_device::carrier::Inbound as _;
use mlx5_device::carrier::{Carrier as _, Disposition, PathAddress, Payload, Unsent};
use mlx5_device::memory::{Order, Segment};
use roce::Opcode;

use super::processes::{MTU, acknowledge, config, fabric_name, read_response, request};
use crate::dma::testing::lease;
use crate::link::channel::{ChannelState, Lane};
use crate::link::{Link, LinkEvent, NoPeer, Room, record};
use crate::os::system;

fn meet(a: &mut Link, b: &mut Link) {
    let slot = b.slot();
    while a.room(slot) != Room::Yes {
        b.poll(1, |_| Disposition::Consumed);
    }
}

/// Puts raw words where the next record of a lane would be, and publishes `len` bytes.
fn forge(link: &mut Link, slot: u8, lane: Lane, words: &[u64], len: usize) {
    let outgoing = link.outgoing[usize::from(slot)].as_mut().unwrap();
    let (ring, at) = outgoing.producer.next(lane);
    for (i, word) in words.iter().enumerate() {
        ring.store(at + 8 * i as u64, [*word]);
    }
    outgoing.producer.commit(lane, len);
    outgoing.producer.publish();
}

#[test]
fn a_bad_record_closes_its_channel_and_no_other() {
    let fabric = fabric_name();
    let join = || Link::join(config(&fabric)).unwrap();
    type Forgery = Box<dyn Fn(&mut Link, u8)>;
    let cases: Vec<(&str, Forgery)> = vec![
        ("zeroes", Box::new(|a, slot| forge(a, slot, Lane::Request, &[0; 8], 64))),
        ("ones", Box::new(|a, slot| forge(a, slot, Lane::Reply, &[u64::MAX; 8], 64))),
        (
            "a reply among the requests",
            Box::new(|a, slot| {
                let asked = request(a, mlx5_device::first_qpn(slot), Opcode::Send, 0, 0, 0);
                let mut reply = acknowledge(&asked, 0);
                reply.deth = asked.deth;
                forge(a, slot, Lane::Request, &record::encode(&reply, 0)[..record::REPLY_WORDS], 32);
            }),
        ),
        (
            "a queue of somebody else",
            Box::new(|a, slot| {
                let mut sent = request(a, mlx5_device::first_qpn(slot), Opcode::Read, 0, 0, 8);
                sent.deth.src_qpn = mlx5_device::first_qpn(77);
                forge(a, slot, Lane::Request, &record::encode(&sent, 0), 56);
            }),
        ),
        (
            "a payload longer than the record",
            Box::new(|a, slot| {
                let sent = request(a, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, 10_000);
                forge(a, slot, Lane::Request, &record::encode(&sent, 10_000), 56 + 9_992);
            }),
        ),
        (
            "more padding than there is payload",
            Box::new(|a, slot| {
                let sent = request(a, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, 0);
                let mut words = record::encode(&sent, 0);
                words[0] |= 7 << 44;
                forge(a, slot, Lane::Request, &words, 56);
            }),
        ),
    ];
    let (mut b, mut good) = (join(), join());
    meet(&mut good, &mut b);
    for (i, (name, forgery)) in cases.iter().enumerate() {
        let mut a = join();
        meet(&mut a, &mut b);
        let slot = b.slot();
        forgery(&mut a, slot);
        assert_eq!(b.poll(10, |inbound| panic!("{name}: {:?} was handed on", inbound.packet)), 0);
        assert_eq!(b.counters().bad_records, i as u64 + 1, "{name}");
        let from = a.slot();
        assert!(
            matches!(b.events.pop_front(), Some(LinkEvent::BadRecord { slot, .. }) if slot == from),
            "{name}"
        );
        assert_eq!(a.room(slot), Room::NoPeer(NoPeer::Closed(slot)), "{name}");
        let write = request(&good, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, 0);
        good.send_record(&write, MTU, &PathAddress::default(), Payload::Nothing).unwrap();
        good.ring_bells();
        assert_eq!(b.poll(10, |_| Disposition::Consumed), 1, "{name}: the good peer goes on");
    }
}

#[test]
fn what_cannot_be_attached_is_refused_and_the_sender_hears_it() {
    let fabric = fabric_name();
    let mut a = Link::join(config(&fabric)).unwrap();
    let mut b = Link::join(config(&fabric)).unwrap();
    let (slot, generation) = (b.slot(), b.fabric.generation());
    let [no_channel, other] = [(); 2].map(|()| system::memfd("softnic-test", 8192).unwrap());
    let raw = no_channel.as_raw_fd();
    let path = format!("/proc/self/fd/{raw}");
    let leased = system::open_memfd(&path).unwrap();
    lease(&leased).expect("shared memory knows leases");
    let since = Instant::now();
    let (kernel, foreign) = (NoPeer::Kernel, NoPeer::Foreign);
    for (i, (name, to_generation, descriptor, why)) in [
        ("a memfd that is under a lease", generation, raw, kernel(libc::EWOULDBLOCK)),
        ("a memfd that is no channel", generation, other.as_raw_fd(), foreign("magic")),
        ("standard input", generation, 0, foreign("not a memfd")),
        ("a descriptor that is not open", generation, 999_999, kernel(libc::ENOENT)),
        (
            "a channel to an earlier process",
            generation - 1,
            other.as_raw_fd(),
            foreign("it is for an earlier process"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        a.fabric.publish_channel(slot, to_generation, descriptor);
        assert_eq!(b.poll(1, |_| Disposition::Consumed), 0);
        assert_eq!(b.counters().attach_failures, i as u64 + 1, "{name}");
        assert!(a.fabric.was_refused(slot), "{name}");
        let event = b.events.pop_front();
        assert_eq!(event, Some(LinkEvent::AttachFailed { slot: a.slot(), why }), "{name}");
        assert!(event.is_some_and(|event| !event.to_string().contains("os error 0")), "{name}");
    }
    assert!(since.elapsed() < Duration::from_secs(20), "the holder of a lease is not waited for");
    // A later good channel is taken.
    meet(&mut a, &mut b);
    assert_eq!(a.room(slot), Room::Yes);
}

#[test]
fn a_peer_s_entry_in_the_directory_is_read_once_to_attach_its_channel() {
    let fabric = fabric_name();
    let mut a = Link::join(config(&fabric)).unwrap();
    let mut b = Link::join(config(&fabric)).unwrap();
    assert_eq!(a.room(b.slot()), Room::Full, "the channel is published");
    let before = b.fabric.looks.load(Ordering::Relaxed);
    b.attach_published();
    assert_eq!((b.incoming.len(), b.fabric.looks.load(Ordering::Relaxed) - before), (1, 1));
}

#[test]
fn an_impossible_tail_is_an_error_of_the_send_and_frees_its_waiters() {
    for lane in [Lane::Request, Lane::Reply] {
        let fabric = fabric_name();
        let mut a = Link::join(config(&fabric)).unwrap();
        let mut b = Link::join(config(&fabric)).unwrap();
        meet(&mut a, &mut b);
        let (slot, from) = (b.slot(), a.slot());
        let payload = vec![1u8; 1 << 20];
        let bytes = Payload::Segments(&[Segment { addr: payload.as_ptr() as u64, len: 1 << 20 }]);
        let asked = request(&b, mlx5_device::first_qpn(from), Opcode::Read, 0, 0, 1 << 20);
        let answer = read_response(&asked);
        let write = request(&a, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, 1 << 20);
        let send = |a: &mut Link| match lane {
            Lane::Request => a.send_record(&write, MTU, &PathAddress::default(), bytes),
            Lane::Reply => a.send_record(&answer, MTU, &PathAddress::default(), bytes),
        };
        let first = send(&mut a).unwrap().position;
        // Fill the ring until only the look at the tail can tell whether a whole fragment fits.
        let ring = |a: &Link| a.outgoing[usize::from(slot)].as_ref().unwrap().producer.next(lane).1;
        while ring(&a) + (super::super::ROOM + super::super::MAX_FRAGMENT) as u64
            <= a.config.ring_bytes as u64
        {
            send(&mut a).unwrap();
        }
        let wild = ring(&a) + 8;
        let consumer = &mut b.incoming[0].consumer;
        consumer.advance(lane, wild as usize);
        consumer.publish();
        let closed = NoPeer::Closed(slot);
        assert_eq!(send(&mut a), Err(Unsent::Unreachable), "{lane:?}");
        assert_eq!(a.room(slot), Room::NoPeer(closed), "{lane:?}");
        assert!(a.consumed(slot, first), "{lane:?}");
    }
}

#[test]
fn a_peer_that_publishes_again_and_again_keeps_one_channel() {
    let fabric = fabric_name();
    let mut a = Link::join(config(&fabric)).unwrap();
    let mut b = Link::join(config(&fabric)).unwrap();
    meet(&mut a, &mut b);
    let (slot, generation) = (b.slot(), b.fabric.generation());
    let descriptor = a.outgoing[usize::from(slot)].as_ref().unwrap().producer.fd.as_raw_fd();
    for round in 1..=5 {
        a.fabric.publish_channel(slot, generation, descriptor);
        assert_eq!(b.poll(1, |_| Disposition::Consumed), 0);
        assert_eq!((b.incoming.len(), b.counters().attach_failures), (1, round));
    }
    assert_eq!(a.room(slot), Room::Yes, "and that one goes on");
}

/// 64-bit steps of a seeded generator (splitmix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn records_rewritten_while_they_are_read_never_reach_beyond_the_target() {
    const TARGET: usize = 32 * 1024;
    let fabric = fabric_name();
    let (mut handled, mut closed) = (0u64, 0u64);
    for seed in 0..60u64 {
        let mut a = Link::join(config(&fabric)).unwrap();
        let mut b = Link::join(config(&fabric)).unwrap();
        meet(&mut a, &mut b);
        let slot = b.slot();
        let source = vec![0x5au8; TARGET];
        let from = [Segment { addr: source.as_ptr() as u64, len: TARGET as u64 }];
        let mut starts = Vec::new();
        for len in [8, 100, 4096, 30_000, 64, 20_000] {
            starts.push(a.outgoing[usize::from(slot)].as_ref().unwrap().producer.next(Lane::Request).1);
            let write = request(&a, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, len);
            a.send_record(&write, MTU, &PathAddress::default(), Payload::Segments(&from)).unwrap();
        }
        a.ring_bells();
        let outgoing = a.outgoing[usize::from(slot)].as_ref().unwrap();
        let stop = AtomicBool::new(false);
        let changes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (ring, _) = outgoing.producer.next(Lane::Request);
            let (stop, changes, records) = (&stop, &changes, starts.len());
            scope.spawn(move || {
                let mut state = seed;
                while !stop.load(Ordering::Relaxed) {
                    // Any bit of any header, or of the segment behind it, set and set back.
                    let start = starts[random(&mut state) as usize % starts.len()];
                    let at = start + 8 * (random(&mut state) % 10);
                    let [old] = ring.load::<1>(at);
                    ring.store(at, [old ^ 1 << (random(&mut state) % 64)]);
                    changes.fetch_add(1, Ordering::Relaxed);
                    (0..random(&mut state) % 256).for_each(|_| std::hint::spin_loop());
                    ring.store(at, [old]);
                }
            });
            // The target lies between two guards.
            let mut memory = vec![0u8; 3 * TARGET];
            let deadline = Instant::now() + Duration::from_secs(60);
            for _record in 0..records {
                let (mut reads, before) = (0, changes.load(Ordering::Relaxed));
                let mut consumed = false;
                while !consumed && !b.incoming.is_empty() {
                    // The other thread may get no core for a while: a record is taken when it was read
                    // often and changed often.
                    consumed = reads >= 600 && changes.load(Ordering::Relaxed) - before >= 100;
                    if reads >= 600 && !consumed {
                        std::thread::yield_now();
                        assert!(Instant::now() < deadline, "the writing thread does not run");
                    }
                    reads += 1;
                    let to = [Segment { addr: memory[TARGET..].as_mut_ptr() as u64, len: TARGET as u64 }];
                    b.poll(1, |inbound| {
                        // Not consumed, so that the same record is read again while it changes.
                        let fits = inbound.packet.payload.length as usize <= TARGET;
                        handled += u64::from(fits && inbound.copy_into(&to, Order::Increasing).is_ok());
                        if consumed { Disposition::Consumed } else { Disposition::NotNow }
                    });
                }
            }
            stop.store(true, Ordering::Relaxed);
            let guards = memory[..TARGET].iter().chain(&memory[2 * TARGET..]);
            assert!(guards.copied().all(|byte| byte == 0), "seed {seed}");
            memory.clear();
        });
        let state = a.outgoing[usize::from(slot)].as_ref().unwrap().producer.state();
        closed += u64::from(state == ChannelState::Closed);
    }
    println!("{handled} messages handled, {closed} of 60 channels closed");
    assert!(handled > 1000 && closed > 0);
}
