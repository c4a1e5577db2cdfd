//! Two endpoints, a link each way, one virtual clock that jumps from event to event.

use std::collections::BTreeMap;

use super::end::End;
use super::endpoint::EndpointConfig;
use super::faults::{Fault, Frame, Kind, Link, Pick, Rng, Wire};
use crate::Now;

pub const A_QPN: u32 = 0xa1;

pub const B_QPN: u32 = 0xb1;

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

/// See the module. Requests usually go from `a` to `b`.
pub struct Pair {
    /// One end.
    pub a: End,
    pub b: End,
    /// What was sent and what arrived, one line each.
    pub trace: Vec<String>,
    now: Now,
    a_to_b: Box<dyn Link>,
    b_to_a: Box<dyn Link>,
    /// Frames in flight by time of arrival and order of sending.
    in_flight: BTreeMap<(Now, u64), (Side, Frame)>,
    sent: u64,
    events: u64,
}

/// Events after which a conversation is taken for one that never ends.
const MOST_EVENTS: u64 = 2_000_000;

impl Pair {
    /// Both ends alike, joined by a link of 1 µs that carries several packets in one.
    pub fn new(config: EndpointConfig) -> Pair {
        Pair::join(|qpn, peer_qpn| End::shared(config, qpn, peer_qpn))
    }

    /// Both ends alike, joined by a wire of 1 µs that carries packets.
    pub fn by_packet(config: EndpointConfig) -> Pair {
        Pair::join(|qpn, peer_qpn| End::new(config, qpn, peer_qpn))
    }

    fn join(end: impl Fn(u32, u32) -> End) -> Pair {
        let wire = || Box::new(Wire { latency_ns: 1_000 });
        Pair {
            a: end(A_QPN, B_QPN),
            b: end(B_QPN, A_QPN),
            trace: Vec::new(),
            now: Now(0),
            a_to_b: wire(),
            b_to_a: wire(),
            in_flight: BTreeMap::new(),
            sent: 0,
            events: 0,
        }
    }

    /// Stacks a fault on the link that leaves `side`.
    #[must_use]
    pub fn with_fault(mut self, side: Side, stack: impl FnOnce(Box<dyn Link>) -> Box<dyn Link>) -> Self {
        let link = match side {
            Side::A => &mut self.a_to_b,
            Side::B => &mut self.b_to_a,
        };
        let below = std::mem::replace(link, Box::new(Wire { latency_ns: 0 }));
        *link = stack(below);
        self
    }

    /// Loses the n-th request of `a`.
    #[must_use]
    pub fn lose_nth_request(self, n: u64) -> Self {
        self.with_fault(Side::A, |below| Fault::lose(below, Pick::Nth(Kind::Request, n)))
    }

    /// Loses the n-th reply to `a`.
    #[must_use]
    pub fn lose_nth_reply(self, n: u64) -> Self {
        self.with_fault(Side::B, |below| Fault::lose(below, Pick::Nth(Kind::Reply, n)))
    }

    /// Random faults on both links: chances in a thousand for loss, duplication, and a delay of up to about
    /// `late_ns`.
    #[must_use]
    pub fn with_noise(mut self, seed: u64, lose: u64, duplicate: u64, delay: u64, late_ns: u64) -> Self {
        for (side, salt) in [(Side::A, 1), (Side::B, 2)] {
            let mut rng = Rng::new(seed ^ (salt << 56));
            let mut fork = || Rng::new(rng.next_u64());
            let (losing, doubling, delaying) = (fork(), fork(), fork());
            self = self
                .with_fault(side, |below| Fault::lose(below, Pick::Chance(lose, losing)))
                .with_fault(side, |below| {
                    Fault::duplicate(below, Pick::Chance(duplicate, doubling), late_ns / 2)
                })
                .with_fault(side, |below| Fault::delay(below, Pick::Chance(delay, delaying), late_ns));
        }
        self
    }

    /// The virtual time.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Lets both ends send what they can.
    pub fn transmit(&mut self) {
        for side in [Side::A, Side::B] {
            let now = self.now;
            let (end, link) = match side {
                Side::A => (&mut self.a, &mut self.a_to_b),
                Side::B => (&mut self.b, &mut self.b_to_a),
            };
            let (in_flight, sent, trace) = (&mut self.in_flight, &mut self.sent, &mut self.trace);
            end.poll_frames(now, &mut |frame| {
                trace.push(line(now, side, "sends", &frame));
                link.carry(now, frame, &mut |at, frame| {
                    *sent += 1;
                    in_flight.insert((at, *sent), (side, frame));
                });
            });
        }
    }

    /// Jumps to the next event: an arrival or a timer. False when there is none until `limit`. Panics when a
    /// timer that ran is still due, or when events never end.
    pub fn step_until(&mut self, limit: Now) -> bool {
        self.transmit();
        let arrival = self.in_flight.first_key_value().map(|(&(at, _), _)| at);
        let timers = [self.a.poll_timeout(), self.b.poll_timeout()];
        let Some(next) = timers.into_iter().flatten().chain(arrival).min() else { return false };
        if next > limit {
            return false;
        }
        self.events += 1;
        assert!(self.events < MOST_EVENTS, "a conversation that never ends");
        self.now = self.now.max(next);
        if arrival == Some(next) {
            self.deliver_first();
        } else {
            self.a.handle_timeout(self.now);
            self.b.handle_timeout(self.now);
            // Or a device would turn in circles.
            for due in [self.a.poll_timeout(), self.b.poll_timeout()].into_iter().flatten() {
                assert!(due > self.now, "after the timers of {:?} one is still due at {due:?}", self.now);
            }
        }
        true
    }

    /// Runs until nothing is in flight and no timer runs.
    pub fn run_until_idle(&mut self) {
        self.run_until(Now(u64::MAX));
    }

    /// Runs what happens until `limit`, and sets the clock to it (unless that is the end of time).
    pub fn run_until(&mut self, limit: Now) {
        while self.step_until(limit) {}
        if limit != Now(u64::MAX) {
            self.now = limit;
        }
    }

    fn deliver_first(&mut self) {
        let Some((_, (sender, frame))) = self.in_flight.pop_first() else { return };
        let (side, end) = match sender {
            Side::A => (Side::B, &mut self.b),
            Side::B => (Side::A, &mut self.a),
        };
        self.trace.push(line(self.now, side, "gets", &frame));
        end.handle_frame(self.now, &frame);
    }
}

fn line(now: Now, side: Side, verb: &str, frame: &Frame) -> String {
    let at = now.0;
    let crate::Packet { psn, content, payload, ack_requested, .. } = &frame.packet;
    let asks = if *ack_requested { " AckReq" } else { "" };
    format!("{at} {side:?} {verb} {content:?} {psn:?} +{}{asks}", payload.length)
}
