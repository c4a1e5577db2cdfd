//! Messages that arrived: records from the rings, checked and handed on, payload still in ring or packet.

use mlx5_device::carrier::{self, Addressing, COPIED_AT_ONCE, Disposition};
use mlx5_device::memory::{Fault, Order, Segment};
use roce::Packet;

use super::channel::{ChannelState, Lane};
use super::record::{self, REQUEST_WORDS, RecordError};
use super::{Incoming, Link, LinkCounters, LinkEvent};
use crate::dma::{Host, RingMemory};

/// The room of a record from this length on is given back at once.
const LONG_RECORD: usize = 16 * 1024;

/// Where the payload of a message is.
#[derive(Debug)]
pub(super) enum Body<'a> {
    /// Here: a packet was received.
    Here(&'a [u8]),
    /// In a record, from this position of the ring on.
    Ring(&'a RingMemory, u64),
}

/// A message and the way to its payload; lives as long as the handler's call.
#[derive(Debug)]
pub struct Inbound<'a> {
    pub packet: &'a Packet,
    /// The header of its record as it came; of a packet of the wire zeros.
    pub words: &'a [u64; REQUEST_WORDS],
    pub addressing: Addressing,
    pub(super) body: Body<'a>,
    pub(super) host: &'a Host,
    pub(super) counters: &'a mut LinkCounters,
    /// A copy out of the ring was given up, and may still be under way.
    pub(super) given_up: bool,
}

impl carrier::Inbound for Inbound<'_> {
    fn addressing(&self) -> &Addressing {
        &self.addressing
    }

    fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault> {
        let len = u64::from(self.packet.payload.length);
        if len == 0 {
            return Ok(());
        }
        if order == Order::Relaxed {
            self.counters.relaxed_bytes += len;
        }
        match self.body {
            Body::Here(bytes) => {
                let from = [Segment { addr: bytes.as_ptr() as u64, len }];
                self.host.copy(to, &from, len, order)
            }
            Body::Ring(ring, at) => {
                self.counters.payload_bytes += len;
                let copied = ring.scatter(at, to, len as usize, order);
                self.given_up |= copied.is_err() && ring.may_still_change();
                copied
            }
        }
    }

    fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        if out.len() != self.packet.payload.length as usize {
            return Err(Fault { addr: 0 });
        }
        match self.body {
            Body::Here(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            Body::Ring(ring, at) => {
                self.counters.payload_bytes += u64::from(self.packet.payload.length);
                ring.take(at, out)
            }
        }
    }
}

impl Link {
    /// Hands up to `budget` messages from shared memory to `handler`, fewer with long payloads; returns how
    /// many it consumed. Replies before requests, except requests that the last round had no time for.
    pub(super) fn poll_records(
        &mut self,
        budget: usize,
        mut handler: impl FnMut(&mut Inbound<'_>) -> Disposition,
    ) -> usize {
        if !self.fabric.is_ours() {
            return 0;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(1024) {
            self.watch();
        }
        if self.fabric.has_published() {
            self.attach_published();
        }
        let mut left = budget;
        self.copies_left = COPIED_AT_ONCE;
        let count = self.incoming.len();
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        let mut finished = false;
        for turn in 0..count {
            let index = if self.first < count - turn { self.first + turn } else { self.first + turn - count };
            let incoming = &self.incoming[index];
            if !incoming.ended && !incoming.consumer.pending() {
                continue;
            }
            let before = left;
            let result = self.poll_channel(index, &mut left, &mut handler);
            let incoming = &mut self.incoming[index];
            let slot = incoming.consumer.ends.from;
            if incoming.consumer.publish() && incoming.consumer.notify_wanted() {
                self.to_notify.push(slot);
            }
            if let Err(error) = result {
                incoming.consumer.set_state(ChannelState::Closed);
                incoming.closed = true;
                self.counters.bad_records += 1;
                self.happened(LinkEvent::BadRecord { slot, error });
            }
            let incoming = &self.incoming[index];
            finished |= incoming.closed || (incoming.ended && left == before);
        }
        if finished {
            let keeps = |i: &Incoming| !i.closed && (!i.ended || i.consumer.pending());
            self.incoming.retain(keeps);
        }
        let consumed = budget - left;
        self.counters.received += consumed as u64;
        consumed
    }

    fn poll_channel(
        &mut self,
        index: usize,
        left: &mut usize,
        handler: &mut impl FnMut(&mut Inbound<'_>) -> Disposition,
    ) -> Result<(), RecordError> {
        let Incoming { consumer, requests_waited, .. } = &mut self.incoming[index];
        consumer.look()?;
        let before = consumer.taken(Lane::Request);
        // An endless stream of answers to READs would keep requests waiting for ever.
        let requests_first = *requests_waited && consumer.requests_are_next();
        for requests in [requests_first, !requests_first] {
            // Behind replies requests are taken when there are no more of them, or not at all: the round's
            // budget is for both.
            let lane = if requests { Lane::Request } else { Lane::Reply };
            self.poll_lane(index, lane, left, handler)?;
        }
        let Incoming { consumer, requests_waited, .. } = &mut self.incoming[index];
        *requests_waited = consumer.taken(Lane::Request) == before && consumer.pending_in(Lane::Request);
        Ok(())
    }

    fn poll_lane(
        &mut self,
        index: usize,
        lane: Lane,
        left: &mut usize,
        handler: &mut impl FnMut(&mut Inbound<'_>) -> Disposition,
    ) -> Result<(), RecordError> {
        let Incoming { consumer, closed, .. } = &mut self.incoming[index];
        let from = consumer.ends.from;
        while *left > 0 && self.copies_left > 0 && !*closed {
            let Some(record) = consumer.next(lane)? else { break };
            let ring = consumer.ring(lane);
            let packet = &record::decode(&record.words, record.len, lane == Lane::Request)?;
            // A peer sends for its own queues only.
            if mlx5_device::slot_of(packet.deth.src_qpn) != from {
                return Err(record::unknown(&record.words));
            }
            let payload_at = record.position + record::head_bytes(packet) as u64;
            let path_at = payload_at.wrapping_sub(8 * record::PATH_WORDS as u64);
            let has_path = record::carries_path(packet);
            let mut inbound = Inbound {
                packet,
                words: &record.words,
                addressing: Addressing {
                    path: has_path.then(|| record::decode_path(ring.load(path_at))),
                    to_port: Some(if record.words[0] & record::SECOND_PORT != 0 { 2 } else { 1 }),
                    addresses: None,
                },
                body: Body::Ring(ring, payload_at),
                host: &self.host,
                counters: &mut self.counters,
                given_up: false,
            };
            let disposition = handler(&mut inbound);
            let given_up = inbound.given_up;
            let late = disposition == Disposition::ConsumedLate;
            self.copies_left =
                if late { 0 } else { self.copies_left.saturating_sub(packet.payload.length.into()) };
            if given_up {
                // Its room is never given back: what came to lie there would be copied in its stead.
                consumer.set_state(ChannelState::Closed);
                *closed = true;
                *left -= 1;
                self.happened(LinkEvent::CopyGivenUp { slot: from });
                return Ok(());
            }
            if disposition == Disposition::NotNow {
                break;
            }
            consumer.advance(lane, record.len);
            *left -= 1;
            // A long message goes on in the room of this one while the next one is copied.
            if record.len >= LONG_RECORD && consumer.publish() && consumer.notify_wanted() {
                self.to_notify.push(from);
            }
        }
        Ok(())
    }
}
