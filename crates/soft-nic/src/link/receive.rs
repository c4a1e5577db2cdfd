//! Messages that arrived: records taken from the rings, checked, and handed on.

use roce::Request;

use super::inbound::{Disposition, Inbound, Message};
use super::peers::Incoming;
use super::record::{self, Form, Header, RecordError};
use super::shared_memory::{ChannelState, Lane, Record};
use super::{Link, LinkEvent, PathAddress};
use crate::dma::{RingMemory, Segment, total};

impl Link {
    /// Hands up to `budget` arrived messages to `handler`; returns how many it consumed. Replies before requests.
    pub fn poll(&mut self, budget: usize, mut handler: impl FnMut(&mut Inbound<'_>) -> Disposition) -> usize {
        if !self.fabric.is_ours() {
            return 0;
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(1024) {
            self.watch();
        }
        self.attach_published();
        let mut consumed = 0;
        let count = self.incoming.len();
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        let mut finished = false;
        for i in 0..count {
            let index = (self.first + i) % count;
            let before = consumed;
            let result = self.poll_channel(index, budget, &mut consumed, &mut handler);
            let incoming = &mut self.incoming[index];
            let slot = incoming.consumer.ends().from;
            if incoming.consumer.publish() && incoming.consumer.notify_wanted() {
                self.to_notify.push(slot);
            }
            if let Err(error) = result {
                incoming.consumer.set_state(ChannelState::Closed);
                incoming.closed = true;
                self.counters.bad_records += 1;
                self.happened(LinkEvent::BadRecord { slot, error });
                finished = true;
            }
            finished |= self.incoming[index].ended && consumed == before;
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
        let Incoming { consumer, memory, .. } = &mut self.incoming[index];
        // Looked up before the replies are read: a request that follows a reply must not overtake it.
        let requests_end = consumer.end(Lane::Request);
        for lane in [Lane::Reply, Lane::Request] {
            while *consumed < budget {
                let Some(record) = consumer.next(lane)? else { break };
                if lane == Lane::Request && record.position == requests_end {
                    break;
                }
                let ends = consumer.ends();
                let ring = consumer.ring(lane);
                let arrived = read(ring, lane, &record, ends.from, &mut self.segments)?;
                let mut inbound = Inbound {
                    from: ends.from,
                    message: arrived.message,
                    path: arrived.path,
                    form: arrived.form,
                    ring,
                    payload_at: arrived.payload_at,
                    segments: &self.segments,
                    memory: *memory,
                    host: &self.host,
                    counters: &mut self.counters,
                    refused: false,
                };
                let disposition = handler(&mut inbound);
                let refused = inbound.refused;
                if refused {
                    consumer.set_state(ChannelState::Staged);
                }
                if disposition == Disposition::NotNow {
                    break;
                }
                consumer.advance(lane, record.len);
                *consumed += 1;
            }
        }
        Ok(())
    }
}

/// What a record says, checked.
struct Arrived {
    message: Message,
    path: Option<PathAddress>,
    form: Form,
    payload_at: u64,
}

/// Checks a record and everything in it but the payload. `from`: the slot whose channel it came by.
fn read(
    ring: &RingMemory,
    lane: Lane,
    record: &Record,
    from: u8,
    segments: &mut Vec<Segment>,
) -> Result<Arrived, RecordError> {
    segments.clear();
    let stranger = RecordError::Unknown { word0: record.words[0], word1: record.words[1] };
    let (arrived, source) = match record::decode(&record.words, record.len)? {
        Header::Request { request, path, form } if lane == Lane::Request => {
            let mut payload_at = record.position + 8 * record::REQUEST_WORDS as u64;
            let path = path.then(|| {
                let words = ring.load(payload_at);
                payload_at += 8 * record::PATH_WORDS as u64;
                record::decode_path(words)
            });
            if let Form::Segments(count) = form {
                segments.extend((0..u64::from(count)).map(|i| {
                    let [addr, len] = ring.load(payload_at + 16 * i);
                    Segment { addr, len }
                }));
                check_segments(segments, &request)?;
            }
            (Arrived { message: Message::Request(request), path, form, payload_at }, request.src_qpn)
        }
        Header::Reply { reply, offset, len, last } if lane == Lane::Reply => {
            let payload_at = record.position + 8 * record::REPLY_WORDS as u64;
            let message = Message::Reply { reply, offset, last };
            (Arrived { message, path: None, form: Form::Inline(len), payload_at }, reply.src_qpn)
        }
        _ => return Err(stranger),
    };
    // A peer speaks for its own queues only.
    if Link::slot_of(source) == from { Ok(arrived) } else { Err(stranger) }
}

/// A record by reference names at least the bytes that it announces, in segments of which none is longer than the
/// message or reaches round the end of the addresses: sums of them cannot overflow.
fn check_segments(segments: &[Segment], request: &Request) -> Result<(), RecordError> {
    let length = if request.opcode.wants_response() { request.length } else { request.fragment.length };
    let possible = |segment: &Segment| {
        segment.len <= u64::from(request.length) && segment.addr.checked_add(segment.len).is_some()
    };
    let have = total(segments);
    if have >= u64::from(length) && segments.iter().all(possible) {
        return Ok(());
    }
    let (offset, length, whole) = (request.fragment.offset, request.fragment.length, request.length);
    Err(RecordError::Payload { have, offset, length, whole })
}
