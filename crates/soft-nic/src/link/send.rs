//! Messages on their way out: laid into the ring of the peer's channel, payload and all, long ones in pieces.

use mlx5_device::carrier::{PathAddress, Payload, Position, Sent};
use mlx5_device::memory::{Fault, Segment, total};
use roce::{Fragment, Reply, ReplyKind, Request};

use super::peers::Outgoing;
use super::record::{self, Form, MAX_FRAGMENT, MAX_GPU_FRAGMENT};
use super::shared_memory::{ChannelState, Lane};
use super::{Link, LinkEvent, MAX_INLINE, NoPeer, Room, SendError};
use crate::dma::{Host, RingMemory, gpu};

impl Link {
    /// Sends a request, or the fragment of it that `request.fragment` names.
    ///
    /// `path` travels with datagrams; of others its port alone. `payload` is always the whole message's; the fragment's offset counts in it.
    /// Of a long one fewer bytes than asked for may be `carried`: the rest is another call.
    ///
    /// Errors: see [`SendError`].
    pub fn send_request(
        &mut self,
        request: &Request,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, SendError> {
        let slot = Self::slot_of(request.dst_qpn);
        self.need_room(slot, Lane::Request)?;
        let Some(outgoing) = &mut self.outgoing[usize::from(slot)] else { return Err(SendError::Full) };
        let head = 8 * record::REQUEST_WORDS
            + if record::carries_path(request) { 8 * record::PATH_WORDS } else { 0 };
        let Fragment { offset, length } = request.fragment;
        let mut request = *request;
        let form = match payload {
            // Its bytes come with the reply.
            _ if request.opcode.wants_response() => Form::None,
            Payload::Nothing => exactly(0, length, Form::None)?,
            Payload::Inline(bytes) => exactly(bytes.len(), length, Form::Inline(length))?,
            Payload::Segments(from) => {
                let carried = room_for(outgoing, slot, Lane::Request, head, from, length)?;
                request.fragment.length = carried;
                Form::Inline(carried)
            }
        };
        let (ring, at) = outgoing.producer.next(Lane::Request);
        if let Form::Inline(len) = form
            && let Err(fault) = fill(ring, &self.host, at + head as u64, payload, offset, len)
        {
            return Err(self.copy_failed(slot, Lane::Request, fault));
        }
        let mut words = record::encode_request(&request, form);
        if path.to_port > 1 {
            words[0] = record::to_second_port(words[0]);
        }
        ring.store(at, words);
        if record::carries_path(&request) {
            ring.store(at + 8 * record::REQUEST_WORDS as u64, record::encode_path(path));
        }
        let offset = outgoing.producer.commit(Lane::Request, head + form.padded());
        let position = Position { channel: outgoing.serial, offset };
        self.counters.requests_sent += 1;
        outgoing.note(slot, &mut self.to_publish);
        Ok(Sent { position, carried: request.fragment.length })
    }

    /// Sends a reply. For a READ's, `payload` is the whole answer's memory and `offset` says from where on. Fewer than all the
    /// bytes may be `carried`: the rest is another call with the offset moved on.
    /// `offset + carried` at the end of the answer makes this its last piece; other replies carry nothing.
    ///
    /// Errors: see [`SendError`]; `LocalFault`: the answer's memory cannot be read.
    pub fn send_reply(
        &mut self,
        reply: &Reply,
        payload: Payload<'_>,
        offset: u32,
    ) -> Result<Sent, SendError> {
        let slot = Self::slot_of(reply.dst_qpn);
        self.need_room(slot, Lane::Reply)?;
        let Some(outgoing) = &mut self.outgoing[usize::from(slot)] else { return Err(SendError::Full) };
        let head = 8 * record::REPLY_WORDS;
        let whole = match payload {
            Payload::Nothing => 0,
            Payload::Inline(bytes) => bytes.len() as u64,
            Payload::Segments(from) => total(from),
        };
        let carries = matches!(reply.kind, ReplyKind::ReadResponse);
        let rest = whole.checked_sub(offset.into()).filter(|rest| carries || *rest == 0);
        let Some(rest) = rest.and_then(|rest| u32::try_from(rest).ok()) else {
            return Err(SendError::Length { have: whole, want: offset.into() });
        };
        let carried = match payload {
            Payload::Segments(from) => room_for(outgoing, slot, Lane::Reply, head, from, rest)?,
            Payload::Inline(_) => exactly(rest as usize, rest, rest)?,
            Payload::Nothing => 0,
        };
        let (ring, at) = outgoing.producer.next(Lane::Reply);
        if carried > 0
            && let Err(fault) = fill(ring, &self.host, at + head as u64, payload, offset, carried)
        {
            return Err(self.copy_failed(slot, Lane::Reply, fault));
        }
        ring.store(at, record::encode_reply(reply, offset, carried, carried == rest));
        let offset = outgoing.producer.commit(Lane::Reply, head + carried.next_multiple_of(8) as usize);
        let position = Position { channel: outgoing.serial, offset };
        self.counters.replies_sent += 1;
        outgoing.note(slot, &mut self.to_publish);
        Ok(Sent { position, carried })
    }

    /// A payload was not laid into the ring. A GPU may do so later, over whatever lies there then: so nothing does.
    #[cold]
    fn copy_failed(&mut self, slot: u8, lane: Lane, fault: Fault) -> SendError {
        if let Some(outgoing) = &mut self.outgoing[usize::from(slot)]
            && outgoing.producer.next(lane).0.may_still_change()
        {
            outgoing.producer.close();
            self.happened(LinkEvent::CopyGivenUp { slot });
        }
        SendError::LocalFault(fault)
    }

    #[inline]
    fn need_room(&mut self, slot: u8, lane: Lane) -> Result<(), SendError> {
        if self.has_room(slot, lane) {
            return Ok(());
        }
        match self.lane_room(slot, lane) {
            Room::Yes => Ok(()),
            Room::Full => Err(SendError::Full),
            Room::NoPeer(reason) => Err(SendError::NoPeer(reason)),
        }
    }
}

/// How many of `rest` bytes the next record takes: all of a short payload, of a long one what there is room for. The ring is given
/// time to empty, since long pieces are faster; until other queues' records have taken as much room as the
/// shortest piece needs.
#[inline]
fn room_for(
    outgoing: &mut Outgoing,
    slot: u8,
    lane: Lane,
    head: usize,
    from: &[Segment],
    rest: u32,
) -> Result<u32, SendError> {
    if rest as usize <= MAX_INLINE {
        return Ok(rest);
    }
    let most = if gpu::touched_by(from) { MAX_GPU_FRAGMENT } else { MAX_FRAGMENT };
    let most = most.min(rest as usize);
    let Some(free) = outgoing.producer.free(lane, head + most.next_multiple_of(8)).checked_sub(head) else {
        // There was room a moment ago, and a closer look at the receiver's tail found none: it wrote one that cannot be.
        return Err(match outgoing.producer.state() {
            ChannelState::Closed => SendError::NoPeer(NoPeer::Closed(slot)),
            _ => SendError::Full,
        });
    };
    let stretch = most.min(MAX_FRAGMENT / 2).min(outgoing.producer.next(lane).0.capacity() / 4);
    let head = outgoing.producer.next(lane).1;
    let since = &mut outgoing.waits_since[lane as usize];
    if free < stretch && head.wrapping_sub(*since.get_or_insert(head)) < MAX_INLINE as u64 {
        return Err(SendError::Full);
    }
    *since = None;
    Ok(most.min(free & !7) as u32)
}

/// Lays the bytes from `offset` on into a record.
#[inline]
fn fill(
    ring: &RingMemory,
    host: &Host,
    at: u64,
    payload: Payload<'_>,
    offset: u32,
    len: u32,
) -> Result<(), Fault> {
    match payload {
        Payload::Segments(from) => ring.gather(host, at, from, offset.into(), len as usize),
        Payload::Inline(bytes) => {
            match bytes.get(offset as usize..).and_then(|rest| rest.get(..len as usize)) {
                Some(bytes) => ring.put(host, at, bytes),
                None => Err(Fault { addr: 0 }),
            }
        }
        Payload::Nothing => Ok(()),
    }
}

fn exactly<T>(have: usize, want: u32, result: T) -> Result<T, SendError> {
    let (have, want) = (have as u64, u64::from(want));
    if have == want && have <= MAX_INLINE as u64 { Ok(result) } else { Err(SendError::Length { have, want }) }
}
