//! Turns of long and short messages in one ring, and of requests and replies in one round.

use mlx5_device::carrier::{Carrier as _, Disposition, PathAddress, Payload, Unsent};
use roce::{Opcode, Packet};

use super::messages::{meet, segment};
use super::processes::{MTU, acknowledge, config, fabric_name, go_on, msn, read_response, request};
use crate::link::channel::Lane;
use crate::link::{Link, MAX_FRAGMENT, MAX_INLINE};

/// A sender and a receiver.
fn pair() -> (Link, Link) {
    let fabric = fabric_name();
    let (mut a, mut b) = (Link::join(config(&fabric)).unwrap(), Link::join(config(&fabric)).unwrap());
    meet(&mut a, &mut b);
    (a, b)
}

/// What one queue sends: WRITEs, or answers to READs.
struct Queue<'a> {
    asked: Packet,
    lane: Lane,
    bytes: &'a [u8],
    /// How many of them have been sent.
    sent: u32,
}

impl Queue<'_> {
    /// A record with what is left; true: all is sent.
    fn send(&mut self, a: &mut Link) -> Result<bool, Unsent> {
        let payload = [segment(self.bytes)];
        let payload = Payload::Segments(&payload);
        let mut packet = if self.lane == Lane::Reply { read_response(&self.asked) } else { self.asked };
        packet.payload.length = self.bytes.len() as u32;
        go_on(&mut packet, self.sent);
        let sent = a.send_record(&packet, MTU, &PathAddress::default(), payload);
        self.sent += sent?.carried;
        a.ring_bells();
        Ok(self.sent as usize == self.bytes.len())
    }
}

#[test]
fn a_long_message_goes_on_beside_short_ones_that_take_all_the_room_there_is() {
    for lane in [Lane::Request, Lane::Reply] {
        let (mut a, mut b) = pair();
        let bytes = vec![7u8; 1 << 20];
        let queue = |len: usize, number: u32| {
            let asked = match lane {
                Lane::Request => {
                    request(&a, mlx5_device::first_qpn(b.slot()) + number, Opcode::Write, 0, 0, len as u32)
                }
                Lane::Reply => {
                    request(&b, mlx5_device::first_qpn(a.slot()) + number, Opcode::Read, 0, 0, len as u32)
                }
            };
            Queue { asked, lane, bytes: &bytes[..len], sent: 0 }
        };
        let (mut short, mut long) = (queue(MAX_INLINE, 1), queue(1 << 20, 2));
        let mut shorts = |a: &mut Link| {
            while short.send(a).is_ok() {
                short.sent = 0;
            }
        };
        shorts(&mut a);
        // In turns: 64 pieces as short as they can be, and as much of the others. What was in the ring before
        // goes first.
        let rounds = (0..10_000).find(|_| {
            let whole = long.send(&mut a) == Ok(true);
            shorts(&mut a);
            assert_eq!(b.poll(1, |_| Disposition::Consumed), 1, "a record at a time");
            whole
        });
        assert!(rounds.is_some_and(|rounds| rounds < 200), "{lane:?}: {rounds:?}");
    }
}

#[test]
fn requests_have_their_turn_beside_an_endless_stream_of_answers_and_answers_beside_requests() {
    for (stream, other) in [(Lane::Reply, Lane::Request), (Lane::Request, Lane::Reply)] {
        for (what, len, disposition, budget) in [
            ("long ones", MAX_FRAGMENT, Disposition::Consumed, 32),
            ("short ones", 8, Disposition::Consumed, 32),
            ("ones whose copies take long", MAX_FRAGMENT, Disposition::ConsumedLate, 32),
            ("ones that are taken one a round", 8, Disposition::Consumed, 1),
        ] {
            let (mut a, mut b) = pair();
            let bytes = vec![7u8; len];
            let queue = |lane, number: u32, bytes| {
                let (from, to) = if lane == Lane::Request { (&a, &b) } else { (&b, &a) };
                let opcode = if lane == Lane::Request { Opcode::Write } else { Opcode::Read };
                let asked =
                    request(from, mlx5_device::first_qpn(to.slot()) + number, opcode, 0, 0, len as u32);
                Queue { asked, lane, bytes, sent: 0 }
            };
            let (mut stream_of, mut one) = (queue(stream, 1, &bytes[..]), queue(other, 2, &bytes[..]));
            let mut fill = |a: &mut Link| {
                // Enough for some rounds, and whatever is taken comes anew at once.
                for _ in 0..256 {
                    if stream_of.send(a).is_err() {
                        break;
                    }
                    stream_of.sent = 0;
                }
            };
            fill(&mut a);
            assert_eq!(one.send(&mut a), Ok(true));
            let mut arrived = false;
            let rounds = (1..=1000).find(|_| {
                b.poll(budget, |inbound| {
                    let is_request = inbound.packet.content.is_request();
                    arrived |= is_request == (other == Lane::Request);
                    fill(&mut a);
                    disposition
                });
                b.ring_bells();
                arrived
            });
            // The stream that was sent before a request goes before it: a ring of it at most.
            let most = if stream == Lane::Reply { 256 / budget + 16 } else { 2 };
            assert!(rounds.is_some_and(|rounds| rounds <= most), "{stream:?}, {what}: {rounds:?}");
        }
    }
}

#[test]
fn no_request_overtakes_a_reply_whatever_a_round_takes() {
    let (mut a, mut b) = pair();
    let mut sent = 0;
    let (mut replied, mut requested) = (0, 0);
    for round in 0u32..30_000 {
        // More of both than a round takes, in runs of different lengths.
        for _ in 0..if round < 20_000 { round % 5 } else { 0 } {
            sent += 1;
            let asked = request(&b, mlx5_device::first_qpn(a.slot()) + 1, Opcode::Read, 0, 0, 0);
            a.send_record(&acknowledge(&asked, sent), MTU, &PathAddress::default(), Payload::Nothing)
                .unwrap();
            if sent % 3 == 0 {
                let write =
                    request(&a, mlx5_device::first_qpn(b.slot()) + 1, Opcode::Write, 0, u64::from(sent), 0);
                a.send_record(&write, MTU, &PathAddress::default(), Payload::Nothing).unwrap();
            }
        }
        a.ring_bells();
        b.poll([1, 4, 2][round as usize % 3], |inbound| {
            let packet = inbound.packet;
            if packet.content.is_request() {
                let at = packet.content.remote().0 as u32;
                assert!(at > requested && at <= replied, "{at} behind {requested}, replies up to {replied}");
                requested = at;
            } else {
                assert_eq!(msn(packet), replied + 1);
                replied = msn(packet);
            }
            if round % 7 == 0 { Disposition::ConsumedLate } else { Disposition::Consumed }
        });
        b.ring_bells();
    }
    assert_eq!((sent, replied, requested), (40_000, 40_000, 39_999));
}
