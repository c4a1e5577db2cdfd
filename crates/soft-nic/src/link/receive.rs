//! Messages that arrived: records taken from the rings, checked, and handed on.

use mlx5_device::carrier::{COPIED_AT_ONCE, Disposition};

use super::channel::{ChannelState, Lane};
use super::inbound::{Body, Inbound};
use super::record::{self, RecordError};
use super::{Incoming, Link, LinkEvent};

/// The room of a record from this length on is given back at once.
const LONG_RECORD: usize = 16 * 1024;

impl Link {
    /// Hands up to `budget` messages that came through shared memory to `handler`, fewer when their payloads are long; returns how
    /// many it consumed. Replies before requests, but for requests that the last round had no time for.
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
        let mut consumed = 0;
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
            let before = consumed;
            let result = self.poll_channel(index, budget, &mut consumed, &mut handler);
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
            finished |= incoming.closed || (incoming.ended && consumed == before);
        }
        if finished {
            let keeps = |i: &Incoming| !i.closed && (!i.ended || i.consumer.pending());
            self.incoming.retain(keeps);
        }
        self.counters.received += consumed as u64;
        consumed
    }

    fn poll_channel(
        &mut self,
        index: usize,
        budget: usize,
        consumed: &mut usize,
        handler: &mut impl FnMut(&mut Inbound<'_>) -> Disposition,
    ) -> Result<(), RecordError> {
        let Incoming { consumer, neglected, .. } = &mut self.incoming[index];
        consumer.look()?;
        let before = consumer.taken(Lane::Request);
        // An endless stream of answers to READs would keep requests waiting for ever.
        let requests_first = *neglected && consumer.requests_are_next();
        for requests in [requests_first, !requests_first] {
            // Behind replies requests are taken when there are no more of them, or not at all: the round's
            // budget is for both.
            let lane = if requests { Lane::Request } else { Lane::Reply };
            self.poll_lane(index, lane, budget, consumed, handler)?;
        }
        let Incoming { consumer, neglected, .. } = &mut self.incoming[index];
        *neglected = consumer.taken(Lane::Request) == before && consumer.pending_in(Lane::Request);
        Ok(())
    }

    fn poll_lane(
        &mut self,
        index: usize,
        lane: Lane,
        budget: usize,
        consumed: &mut usize,
        handler: &mut impl FnMut(&mut Inbound<'_>) -> Disposition,
    ) -> Result<(), RecordError> {
        let Incoming { consumer, closed, .. } = &mut self.incoming[index];
        let from = consumer.ends.from;
        while *consumed < budget && self.copies_left > 0 && !*closed {
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
                addresses: None,
                path: has_path.then(|| record::decode_path(ring.load(path_at))),
                to_port: Some(if record.words[0] & record::SECOND_PORT != 0 { 2 } else { 1 }),
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
                *consumed += 1;
                self.happened(LinkEvent::CopyGivenUp { slot: from });
                return Ok(());
            }
            if disposition == Disposition::NotNow {
                break;
            }
            consumer.advance(lane, record.len);
            *consumed += 1;
            // A long message goes on in the room of this one while the next one is copied.
            if record.len >= LONG_RECORD && consumer.publish() && consumer.notify_wanted() {
                self.to_notify.push(from);
            }
        }
        Ok(())
    }
}
