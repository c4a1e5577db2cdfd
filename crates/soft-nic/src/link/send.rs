//! Messages on their way out: laid into the ring of the peer's channel, payload and all or by reference.

use roce::{Fragment, Reply, ReplyKind, Request, ServiceType};

use super::loan::LOAN_WORDS;
use super::peers::Outgoing;
use super::record::{self, Form, MAX_FRAGMENT, MAX_GPU_FRAGMENT, MAX_HELPED_FRAGMENT, MAX_SEGMENTS};
use super::shared_memory::{ChannelState, Lane};
use super::{Link, LinkEvent, MAX_INLINE, NoPeer, PathAddress, Payload, Position, Room, SendError, Sent};
use crate::dma::{Fault, Host, RingMemory, Segment, Segments, can_be_lent, gpu, total};

/// How often long pieces are refused for want of room for a good part of one, whosever they are, before one takes what there is. The
/// ring empties in 10 µs or so, which are some hundred rounds; where many queues wait one of them may take a short piece earlier.
const PATIENCE: u16 = 1000;

impl Link {
    /// Sends a request, or the fragment of it that `request.fragment` names.
    ///
    /// `path` travels with datagrams; of others its port alone. `payload` is always the whole message's; the fragment's offset counts in it. When
    /// payloads must be staged, fewer bytes than asked for may be `carried`: the rest is another call.
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
        let staged_part;
        let mut request = request;
        let own = slot == self.fabric.slot();
        let staged = self.config.staging || outgoing.producer.state() == ChannelState::Staged;
        let staged = staged || !is_lent(&self.host, payload, own, request.length.into());
        // Within this process one copy does where two commands would: into the ring, and out of it.
        let in_place =
            |from: &[Segment]| own && !staged && request.service == ServiceType::Rc && gpu::touched_by(from);
        let head = 8 * record::REQUEST_WORDS
            + if record::carries_path(request) { 8 * record::PATH_WORDS } else { 0 };
        let offset = u64::from(request.fragment.offset);
        let length = request.fragment.length;
        self.segments.clear();
        let form = match payload {
            // Its bytes come with the reply.
            _ if request.opcode.wants_response() => Form::None,
            Payload::Nothing => exactly(0, length, Form::None)?,
            Payload::Inline(bytes) => exactly(bytes.len(), length, Form::Inline(length))?,
            Payload::Segments(from) if length as usize <= MAX_INLINE && !(length > 0 && in_place(from)) => {
                Form::Inline(length)
            }
            Payload::Segments(from) if !staged => list(&mut self.segments, from, offset, length)?,
            Payload::Segments(from) => {
                let most = fragment_of(&self.host, from, request.length.into());
                let free = outgoing.producer.free(Lane::Request, head + most);
                let Some(free) = free.checked_sub(head) else { return Err(given_up(outgoing, slot)) };
                need_stretch(outgoing, Lane::Request, most, length as usize, free)?;
                let carried = (length as usize).min(most).min(free & !7) as u32;
                self.counters.staged_bytes += u64::from(carried);
                staged_part =
                    Request { fragment: Fragment { length: carried, ..request.fragment }, ..*request };
                request = &staged_part;
                Form::Inline(carried)
            }
        };
        let (ring, at) = outgoing.producer.next(Lane::Request);
        match (form, payload) {
            (Form::Inline(len), Payload::Segments(from)) => {
                if let Err(fault) = ring.gather(&self.host, at + head as u64, from, offset, len as usize) {
                    return Err(self.copy_failed(slot, Lane::Request, fault));
                }
            }
            (Form::Inline(_), Payload::Inline(bytes)) => ring.put(&self.host, at + head as u64, bytes)?,
            _ => {}
        }
        let lent_at = if let Form::Segments(_) = form {
            Some(name(ring, at + head as u64, &self.segments))
        } else {
            None
        };
        let mut words = record::encode_request(request, form);
        if path.to_port > 1 {
            words[0] = record::to_second_port(words[0]);
        }
        ring.store(at, words);
        if record::carries_path(request) {
            ring.store(at + 8 * record::REQUEST_WORDS as u64, record::encode_path(path));
        }
        let offset = outgoing.producer.commit(Lane::Request, head + form.padded());
        let loan = lent_at.map(|at| outgoing.producer.lend(Lane::Request, at));
        let position = Position { channel: outgoing.serial, offset };
        self.counters.requests_sent += 1;
        outgoing.note(slot, &mut self.to_publish);
        Ok(Sent { position, carried: request.fragment.length, loan })
    }

    /// Sends a reply. For a READ's, `payload` is the whole answer's memory and `offset` says from where on. When payloads must
    /// be staged, fewer than all the bytes may be `carried`: the rest is another call with the offset moved on.
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
        let Some(rest) = whole.checked_sub(offset.into()).filter(|rest| carries || *rest == 0) else {
            return Err(SendError::Length { have: whole, want: offset.into() });
        };
        let own = slot == self.fabric.slot();
        let staged = self.config.staging || outgoing.producer.state() == ChannelState::Staged;
        let staged = staged || !is_lent(&self.host, payload, own, whole);
        self.segments.clear();
        let (form, carried) = match payload {
            Payload::Segments(from) if !staged && rest > MAX_INLINE as u64 => {
                let want = u32::try_from(rest);
                let want = want.map_err(|_| SendError::Length { have: whole, want: u32::MAX.into() })?;
                (list(&mut self.segments, from, offset.into(), want)?, want)
            }
            _ => {
                let most = match payload {
                    Payload::Segments(from) => fragment_of(&self.host, from, whole),
                    _ => MAX_FRAGMENT,
                };
                let free = outgoing.producer.free(Lane::Reply, head + most.min(rest as usize + 8));
                let Some(free) = free.checked_sub(head) else { return Err(given_up(outgoing, slot)) };
                need_stretch(outgoing, Lane::Reply, most, rest as usize, free)?;
                let carried = rest.min(most as u64).min(free as u64 & !7) as u32;
                (if carried > 0 { Form::Inline(carried) } else { Form::None }, carried)
            }
        };
        let (ring, at) = outgoing.producer.next(Lane::Reply);
        let mut lent_at = None;
        match payload {
            Payload::Segments(_) if matches!(form, Form::Segments(_)) => {
                lent_at = Some(name(ring, at + head as u64, &self.segments));
            }
            Payload::Segments(from) => {
                let to = at + head as u64;
                if let Err(fault) = ring.gather(&self.host, to, from, offset.into(), carried as usize) {
                    return Err(self.copy_failed(slot, Lane::Reply, fault));
                }
            }
            Payload::Inline(bytes) => {
                let from = offset as usize;
                ring.put(&self.host, at + head as u64, &bytes[from..from + carried as usize])?;
            }
            Payload::Nothing => {}
        }
        if whole > MAX_INLINE as u64 && lent_at.is_none() {
            self.counters.staged_bytes += u64::from(carried);
        }
        let last = u64::from(carried) == rest;
        ring.store(at, record::encode_reply(reply, offset, carried, form, last));
        let offset = outgoing.producer.commit(Lane::Reply, head + form.padded());
        let loan = lent_at.map(|at| outgoing.producer.lend(Lane::Reply, at));
        let position = Position { channel: outgoing.serial, offset };
        self.counters.replies_sent += 1;
        outgoing.note(slot, &mut self.to_publish);
        Ok(Sent { position, carried, loan })
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

/// Whether the receiver copies the payload of a message of `len` bytes out of our memory by itself; short ones it never does.
/// Within one process (`own`) the NIC reaches a GPU's memory at either end, and one copy is enough; between two, what helpers
/// have a part in is faster through the ring.
#[inline]
fn is_lent(host: &Host, payload: Payload<'_>, own: bool, len: u64) -> bool {
    match payload {
        Payload::Segments(from) => {
            can_be_lent(from) && (own || (gpu::can_be_lent(from) && !host.is_helped(len)))
        }
        Payload::Nothing | Payload::Inline(_) => true,
    }
}

/// The most that one record takes of these. Where helpers copy, and out of a GPU, a few long pieces are faster than many short ones.
#[inline]
fn fragment_of(host: &Host, from: &[Segment], len: u64) -> usize {
    if gpu::touched_by(from) {
        MAX_GPU_FRAGMENT
    } else if host.is_helped(len) {
        MAX_HELPED_FRAGMENT
    } else {
        MAX_FRAGMENT
    }
}

/// Where long pieces are faster the ring is given time to empty; not for ever, since other queues fill it too.
fn need_stretch(
    outgoing: &mut Outgoing,
    lane: Lane,
    most: usize,
    length: usize,
    free: usize,
) -> Result<(), SendError> {
    let (ring, _) = outgoing.producer.next(lane);
    let stretch = length.min(most / 2).min(ring.capacity() / 4);
    let cramped = &mut outgoing.cramped[lane as usize];
    if most > MAX_FRAGMENT && free < stretch && *cramped < PATIENCE {
        *cramped += 1;
        return Err(SendError::Full);
    }
    *cramped = 0;
    Ok(())
}

/// Lays the word of state and the segments of a payload by reference; returns the position of the word.
fn name(ring: &RingMemory, at: u64, segments: &[Segment]) -> u64 {
    ring.store(at, [0; LOAN_WORDS]);
    for (i, segment) in segments.iter().enumerate() {
        ring.store(at + (8 * LOAN_WORDS + 16 * i) as u64, record::encode_segment(*segment));
    }
    at
}

/// There was room a moment ago, and a closer look at the receiver's tail found none: it wrote one that cannot be.
fn given_up(outgoing: &Outgoing, slot: u8) -> SendError {
    match outgoing.producer.state() {
        ChannelState::Closed => SendError::NoPeer(NoPeer::Closed(slot)),
        _ => SendError::Full,
    }
}

fn exactly(have: usize, want: u32, form: Form) -> Result<Form, SendError> {
    let (have, want) = (have as u64, u64::from(want));
    if have == want && have <= MAX_INLINE as u64 { Ok(form) } else { Err(SendError::Length { have, want }) }
}

/// Lists the pieces of `length` bytes from `skip` on.
fn list(out: &mut Vec<Segment>, segments: &[Segment], skip: u64, length: u32) -> Result<Form, SendError> {
    let mut walk = Segments::new(segments);
    walk.advance(skip);
    let mut left = u64::from(length);
    while left > 0 {
        let Some(piece) = walk.peek(left).filter(|_| out.len() < MAX_SEGMENTS) else {
            return Err(SendError::Length { have: u64::from(length) - left, want: length.into() });
        };
        walk.advance(piece.len);
        left -= piece.len;
        out.push(piece);
    }
    Ok(Form::Segments(out.len() as u8))
}
