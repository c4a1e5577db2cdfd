//! A channel's two ends: what they see of each other, in which order, and what is not attached.

use super::*;

const CAPACITY: usize = 512 * 1024;

fn host() -> Host {
    Host::new().unwrap()
}

/// A channel of a process to itself, both ends.
fn loopback(slot: u8, generation: u32, capacity: usize) -> Result<(Producer, Consumer), NoPeer> {
    let ends = Ends { from: slot, to: slot, from_generation: generation, to_generation: generation };
    let producer = Producer::create(host(), ends, capacity)?;
    let consumer = Consumer::attach(host(), &producer.fd, ends)?;
    consumer.set_state(ChannelState::Attached);
    Ok((producer, consumer))
}

#[test]
fn what_lies_in_a_closed_channel_counts_as_taken() {
    let (mut producer, consumer) = loopback(0, 1, CAPACITY).unwrap();
    let end = producer.commit(Lane::Request, 64);
    producer.publish();
    assert!(!producer.consumed(end));
    consumer.set_state(ChannelState::Closed);
    assert!(producer.consumed(end));
}

/// A reply header that a consumer accepts.
fn acknowledge() -> [u64; record::REPLY_WORDS] {
    [(8 * record::REPLY_WORDS as u64) | (2 << 32) | (32 << 48), 0, 0, 0]
}

#[test]
fn heads_and_tails_that_cannot_be_are_noticed_by_the_other_side() {
    for (name, head) in [("beyond the ring", CAPACITY as u64 + 1), ("behind the tail", u64::MAX - 7)] {
        for lane in [Lane::Request, Lane::Reply] {
            let (producer, mut consumer) = loopback(0, 1, CAPACITY).unwrap();
            producer.control.word(at::HEADS[lane as usize]).store(head, Ordering::Release);
            let looked = consumer.look();
            assert!(matches!(looked, Err(RecordError::Positions { .. })), "{lane:?} {name}");
        }
    }
    for head in [8, 24] {
        let (producer, mut consumer) = loopback(0, 1, CAPACITY).unwrap();
        producer.control.word(at::HEADS[1]).store(head, Ordering::Release);
        assert!(
            matches!(consumer.next(Lane::Reply), Err(RecordError::Length { .. })),
            "half a record, {head}"
        );
    }
    for (name, tail) in [("ahead of the head", 8), ("behind the last", u64::MAX)] {
        let (mut producer, consumer) = loopback(0, 1, CAPACITY).unwrap();
        consumer.control.word(at::TAILS[0]).store(tail, Ordering::Release);
        assert_eq!(producer.free(Lane::Request, CAPACITY + 1), 0, "{name}");
        assert_eq!(producer.state(), ChannelState::Closed, "{name}");
        assert!(producer.consumed(64), "{name}: its waiter need not wait any more");
    }
}

#[test]
fn positions_count_on_past_many_turns_of_the_ring() {
    let (mut producer, mut consumer) = loopback(0, 1, CAPACITY).unwrap();
    for turn in 0..20_000u64 {
        let (ring, at) = producer.next(Lane::Reply);
        let mut words = acknowledge();
        words[2] = turn;
        ring.store(at, words);
        producer.commit(Lane::Reply, 8 * record::REPLY_WORDS);
        producer.publish();
        let record = consumer.next(Lane::Reply).unwrap().unwrap();
        assert_eq!((record.len, record.words[2]), (8 * record::REPLY_WORDS, turn));
        consumer.advance(Lane::Reply, record.len);
        consumer.publish();
        assert!(consumer.next(Lane::Reply).unwrap().is_none());
    }
    assert!(!producer.pending());
    assert_eq!(producer.free(Lane::Reply, CAPACITY), CAPACITY);
}

/// Takes the records of `lane` that may be taken.
fn drain(consumer: &mut Consumer, lane: Lane, mut each: impl FnMut(u64)) {
    while let Some(record) = consumer.next(lane).unwrap() {
        each(record.words[2]);
        consumer.advance(lane, record.len);
    }
}

#[test]
fn a_request_is_never_seen_before_a_reply_that_was_sent_first() {
    const ROUNDS: u64 = 300_000;
    let (mut producer, mut consumer) = loopback(0, 1, CAPACITY).unwrap();
    let mut send = move |lane, round| {
        while !producer.has_room(lane, 8 * record::REPLY_WORDS) {
            producer.publish();
            std::thread::yield_now();
        }
        let (ring, at) = producer.next(lane);
        let mut words = acknowledge();
        words[2] = round;
        ring.store(at, words);
        producer.commit(lane, 8 * record::REPLY_WORDS);
        // Mostly shown together, and often enough by themselves.
        if lane == Lane::Request && round % 3 != 0 {
            producer.publish();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                send(Lane::Reply, round);
                send(Lane::Request, round);
            }
        });
        let (mut replied, mut requested) = (0, 0);
        while requested < ROUNDS - 3 {
            consumer.look().unwrap();
            drain(&mut consumer, Lane::Reply, |round| replied = round);
            drain(&mut consumer, Lane::Request, |round| {
                assert!(round <= replied, "request {round} before its reply, the last one was {replied}");
                requested = round;
            });
            consumer.publish();
        }
    });
}

#[test]
fn what_is_not_a_channel_of_these_two_is_not_attached() {
    let ends = Ends { from: 1, to: 2, from_generation: 3, to_generation: 4 };
    let producer = Producer::create(host(), ends, CAPACITY).unwrap();
    assert!(Consumer::attach(host(), &producer.fd, ends).is_ok());
    for (name, other) in [
        ("another sender", Ends { from: 9, ..ends }),
        ("another receiver", Ends { to: 9, ..ends }),
        ("an earlier life of the sender", Ends { from_generation: 2, ..ends }),
        ("an earlier life of the receiver", Ends { to_generation: 3, ..ends }),
    ] {
        assert!(matches!(Consumer::attach(host(), &producer.fd, other), Err(NoPeer::Foreign(_))), "{name}");
    }
    for (name, offset, value) in [
        ("magic", at::MAGIC, 0),
        ("version", at::VERSION, u64::from(record::VERSION) + 1),
        ("capacity", at::CAPACITIES, 2 * CAPACITY as u64),
        ("a capacity that overflows", at::CAPACITIES, 1 << 63),
        ("no capacity", at::CAPACITIES, 0),
    ] {
        let word = producer.control.word(offset);
        let good = word.swap(value, Ordering::Relaxed);
        let attached = Consumer::attach(host(), &producer.fd, ends);
        assert!(matches!(attached, Err(NoPeer::Foreign(_))), "{name}");
        word.store(good, Ordering::Relaxed);
    }
    let short = system::memfd("softnic-test", 4096).unwrap();
    assert!(matches!(Consumer::attach(host(), &short, ends), Err(NoPeer::Foreign(_))), "one page of nothing");
    // A file that can shrink would make the receiver's loads fault.
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    assert!(matches!(Consumer::attach(host(), &file, ends), Err(NoPeer::Foreign(_))), "not sealed");
}
