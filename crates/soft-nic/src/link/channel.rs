//! One direction between two processes: a memfd with two single-producer single-consumer byte rings.
//!
//! Requests and replies have a ring each, like virtual lanes of a real port: replies are always consumed, so
//! two full request rings cannot wait for each other. Layout of the memfd (version in `record`):
//!
//! ```text
//! 0     magic, version, slots, generations, capacities       written once, before the channel is published
//! 128   producer line: request head, reply head, notify      written by the sender
//! 256   consumer line: request tail, reply tail              written by the receiver
//! 320   state of the receiver                                written by it, seldom
//! 4096  request ring, then reply ring                        each mapped twice in a row: no record wraps
//! ```
//! Head and tail count bytes for ever. Each side keeps its own in a register's reach and publishes it once
//! per batch: a cache line that moves between cores for every message would cost more than the message.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::NoPeer;
use super::delay::DelayLine;
use super::record::{self, RecordError};
use crate::dma::{Host, RingMemory};
use crate::os::{SharedMemory, system};
use roce::Now;

mod at {
    crate::link::record::places! {
        MAGIC = 0;
        VERSION = 8;
        SLOTS = 16;
        GENERATIONS = 24;
        CAPACITIES = 32;
        REQUEST_HEAD = 128;
        REPLY_HEAD = 136;
        NOTIFY = 144;
        REQUEST_TAIL = 256;
        STATE = 320;
        RINGS = 4096;
    }
    pub const HEADS: [usize; 2] = [REQUEST_HEAD, REPLY_HEAD];
    pub const TAILS: [usize; 2] = [REQUEST_TAIL, REQUEST_TAIL + 8];
}
#[cfg(test)]
pub(super) use at::ALL as LAYOUT;

/// "softchan", so that a foreign memfd of the right size is not taken for a channel.
const MAGIC: u64 = u64::from_be_bytes(*b"softchan");

/// The two rings of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Request,
    Reply,
}

/// Bytes that may wait unpublished: small messages go out together, large ones at once.
const PUBLISH_BYTES: u64 = 1024;

/// What the receiver says about a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ChannelState {
    /// Not yet looked at.
    Published = 0,
    /// The receiver takes what comes.
    Attached = 1,
    /// Given up by the receiver after a bad record.
    Closed = 2,
}

/// Slots of a channel's sender and receiver, and the generations of these, as the memfd's first page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    pub from: u8,
    pub to: u8,
    pub from_generation: u32,
    pub to_generation: u32,
}

impl Ends {
    /// The words of the first page that say so, and what each is called.
    fn words(&self) -> [(usize, u64, &'static str); 4] {
        let pair = |from: u32, to: u32| u64::from(from) | u64::from(to) << 32;
        [
            (at::MAGIC, MAGIC, "magic"),
            (at::VERSION, record::VERSION.into(), "version"),
            (at::SLOTS, pair(self.from.into(), self.to.into()), "slots"),
            (at::GENERATIONS, pair(self.from_generation, self.to_generation), "generations"),
        ]
    }
}

/// State of one ring at one end: its own position, and the other end's when last looked at.
#[derive(Debug)]
struct LaneState {
    ring: RingMemory,
    head: u64,
    tail: u64,
    /// The own position as the other end may see it.
    published: u64,
}

impl LaneState {
    /// Those of both rings of a channel.
    fn map(host: Host, fd: &OwnedFd, capacity: usize) -> io::Result<[LaneState; 2]> {
        let lane = |i: usize| -> io::Result<LaneState> {
            let ring = RingMemory::map(host, fd, at::RINGS + i * capacity, capacity)?;
            Ok(LaneState { ring, head: 0, tail: 0, published: 0 })
        };
        Ok([lane(0)?, lane(1)?])
    }

    fn known_free(&self) -> usize {
        self.ring.capacity().saturating_sub(self.head.wrapping_sub(self.tail) as usize)
    }

    /// Shows the other end the own position in its word; true when it did not know it yet.
    fn show(&mut self, word: &AtomicU64, position: u64) -> bool {
        let moved = position != self.published;
        if moved {
            self.published = position;
            word.store(position, Ordering::Release);
        }
        moved
    }
}

/// The sender's end.
#[derive(Debug)]
pub struct Producer {
    /// What the receiver opens through `/proc`.
    pub fd: OwnedFd,
    control: SharedMemory,
    lanes: [LaneState; 2],
    /// What is committed waits for [`Producer::pass`].
    pub holds: bool,
    /// No more is laid into the rings; what was sent goes on. The receiver broke rules, or a copy failed.
    pub closed: bool,
    /// Heads that are not shown yet, each lane's.
    under_way: DelayLine<[u64; 2]>,
}

impl Producer {
    /// Makes a channel; it still has to be published in the directory. `capacity`: bytes of each ring.
    ///
    /// Errors: the kernel's (descriptor limit, memory limit).
    pub fn create(host: Host, ends: Ends, capacity: usize) -> io::Result<Producer> {
        let name = format!("softnic-channel-{}-{}", ends.from, ends.to);
        let fd = system::memfd(&name, at::RINGS + 2 * capacity)?;
        let control = SharedMemory::map(&fd, at::RINGS)?;
        for (offset, value, _) in ends.words() {
            control.word(offset).store(value, Ordering::Release);
        }
        control.word(at::CAPACITIES).store(capacity as u64, Ordering::Release);
        let lanes = LaneState::map(host, &fd, capacity)?;
        Ok(Producer { fd, control, lanes, holds: false, closed: false, under_way: DelayLine::default() })
    }

    pub fn state(&self) -> ChannelState {
        if self.closed {
            return ChannelState::Closed;
        }
        match self.control.half(at::STATE).load(Ordering::Acquire) {
            0 => ChannelState::Published,
            1 => ChannelState::Attached,
            _ => ChannelState::Closed,
        }
    }

    /// Whether `bytes` more fit. Looks at the consumer's tail only when they do not by the last known one.
    pub fn has_room(&mut self, lane: Lane, bytes: usize) -> bool {
        self.free(lane, bytes) >= bytes
    }

    /// Free bytes, looked up again when fewer than `wanted` are known.
    pub fn free(&mut self, lane: Lane, wanted: usize) -> usize {
        let known = self.lanes[lane as usize].known_free();
        if known >= wanted { known } else { self.refresh(lane) }
    }

    fn refresh(&mut self, lane: Lane) -> usize {
        let tail = self.control.word(at::TAILS[lane as usize]).load(Ordering::Acquire);
        let state = &mut self.lanes[lane as usize];
        // A tail outside tail..=published is a receiver gone wild: give the channel up.
        if tail.wrapping_sub(state.tail) > state.published.wrapping_sub(state.tail) {
            self.closed = true;
            return 0;
        }
        state.tail = tail;
        state.known_free()
    }

    /// The ring and the position of the next record, for writing it in place.
    pub fn next(&self, lane: Lane) -> (&RingMemory, u64) {
        let state = &self.lanes[lane as usize];
        (&state.ring, state.head)
    }

    /// Ends the record written at [`Producer::next`]; returns the position after it.
    pub fn commit(&mut self, lane: Lane, bytes: usize) -> u64 {
        let state = &mut self.lanes[lane as usize];
        state.head = state.head.wrapping_add(bytes as u64);
        if state.head.wrapping_sub(state.published) >= PUBLISH_BYTES {
            self.publish();
        }
        self.lanes[lane as usize].head
    }

    /// Shows the receiver everything committed, replies first: a receiver that sees a request sees the
    /// replies before it (see [`Consumer::look`]). With a delay, [`Producer::pass`] does so.
    pub fn publish(&mut self) {
        if !self.holds {
            self.show(self.heads());
        }
    }

    fn heads(&self) -> [u64; 2] {
        self.lanes.each_ref().map(|lane| lane.head)
    }

    /// Shows the receiver the rings up to these heads.
    fn show(&mut self, heads: [u64; 2]) {
        for lane in [Lane::Reply, Lane::Request] {
            let word = self.control.word(at::HEADS[lane as usize]);
            self.lanes[lane as usize].show(word, heads[lane as usize]);
        }
    }

    /// Shows what is due by `now`; what was committed since goes on at `due`. True: something was shown.
    pub fn pass(&mut self, now: Now, due: Now) -> bool {
        let heads = self.heads();
        let shown = self.lanes.each_ref().map(|lane| lane.published);
        if heads != *self.under_way.last().unwrap_or(&shown) {
            self.under_way.put(due, heads);
        }
        let mut moved = false;
        while let Some(heads) = self.under_way.due(now).copied() {
            self.under_way.take();
            self.show(heads);
            moved = true;
        }
        moved
    }

    /// Whether anything was committed to this lane.
    pub fn has_laid(&self, lane: Lane) -> bool {
        self.lanes[lane as usize].head != 0
    }

    /// Whether something is committed and not shown.
    pub fn has_delayed(&self) -> bool {
        self.lanes.iter().any(|lane| lane.head != lane.published)
    }

    /// Whether the receiver has consumed requests up to `position`, or never will: the channel is closed.
    pub fn consumed(&mut self, position: u64) -> bool {
        let passed = |tail: u64| tail.wrapping_sub(position) as i64 >= 0;
        if passed(self.lanes[Lane::Request as usize].tail) {
            return true;
        }
        self.refresh(Lane::Request);
        passed(self.lanes[Lane::Request as usize].tail) || self.state() == ChannelState::Closed
    }

    /// Whether the receiver still has something to consume.
    pub fn pending(&mut self) -> bool {
        [Lane::Request, Lane::Reply].into_iter().any(|lane| {
            self.refresh(lane);
            let state = &self.lanes[lane as usize];
            state.tail != state.head
        })
    }

    /// Asks the receiver to ring when it has consumed something; set before sleeping on a full ring.
    pub fn set_notify(&self, wanted: bool) {
        self.control.half(at::NOTIFY).store(u32::from(wanted), Ordering::SeqCst);
    }
}

/// A record that waits to be consumed.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Where it starts in its ring.
    pub position: u64,
    /// Bytes, checked against what is published.
    pub len: usize,
    /// The copy of its header.
    pub words: [u64; record::REQUEST_WORDS],
}

/// The receiver's end.
#[derive(Debug)]
pub struct Consumer {
    control: SharedMemory,
    lanes: [LaneState; 2],
    /// Requests up to the first of these positions were sent after all replies up to the second.
    order: [u64; 2],
    pub ends: Ends,
}

impl Consumer {
    /// Attaches to what a peer published, after checking that it is what it should be.
    ///
    /// Errors: the kernel's, or `Foreign` with what was wrong.
    pub fn attach(host: Host, fd: &OwnedFd, ends: Ends) -> Result<Consumer, NoPeer> {
        let len = system::sealed_len(fd).ok_or(NoPeer::Foreign("not a sealed memfd of this user"))?;
        if len < at::RINGS {
            return Err(NoPeer::Foreign("too short"));
        }
        let control = SharedMemory::map(fd, at::RINGS)?;
        let word = |offset| control.word(offset).load(Ordering::Acquire);
        let capacity = word(at::CAPACITIES) as usize;
        let sizes = [
            (capacity.is_power_of_two() && capacity >= 2 * record::MAX_RECORD, "capacity"),
            (capacity.checked_mul(2).and_then(|c| c.checked_add(at::RINGS)) == Some(len), "length"),
        ];
        let agreed = ends.words().map(|(offset, value, what)| (word(offset) == value, what));
        match agreed.iter().chain(&sizes).find(|(holds, _)| !holds) {
            Some((_, what)) => Err(NoPeer::Foreign(what)),
            None => Ok(Consumer { lanes: LaneState::map(host, fd, capacity)?, control, order: [0; 2], ends }),
        }
    }

    /// Tells the sender how this channel is used.
    pub fn set_state(&self, state: ChannelState) {
        self.control.half(at::STATE).store(state as u32, Ordering::Release);
    }

    /// Notes the requests that may be taken next, when those of the last time are. Requests are looked up
    /// first: what was answered before one of them is in the ring of replies by then, and no request
    /// overtakes a reply.
    pub fn look(&mut self) -> Result<(), RecordError> {
        if self.lanes[Lane::Request as usize].tail == self.order[0] {
            self.order = [self.end(Lane::Request)?, self.end(Lane::Reply)?];
        }
        Ok(())
    }

    /// Whether requests may be taken: all replies that were sent before them are.
    pub fn requests_are_next(&self) -> bool {
        let replies = self.lanes[Lane::Reply as usize].tail;
        replies.wrapping_sub(self.order[1]) as i64 >= 0 || !self.pending_in(Lane::Reply)
    }

    /// The next record, or `None` when all is consumed, of requests all up to the last [`Consumer::look`].
    /// Its header is loaded here and nowhere else.
    #[inline(always)]
    pub fn next(&mut self, lane: Lane) -> Result<Option<Record>, RecordError> {
        let index = lane as usize;
        let known = self.lanes[index].head;
        if self.lanes[index].tail == known {
            let head = if lane == Lane::Request { self.order[0] } else { self.end(lane)? };
            if head == known {
                return Ok(None);
            }
            self.lanes[index].head = head;
        }
        let state = &self.lanes[index];
        let published = state.head.wrapping_sub(state.tail);
        // The words of a request, also where a shorter reply ends before them: the ring is mapped twice, so
        // they can always be loaded, and a reply's decoder does not look at them.
        let words = state.ring.load(state.tail);
        let len = record::record_len(words[0], published)?;
        // The next ones come along meanwhile; not beyond what is published, where the sender is writing.
        for ahead in [128, 192] {
            if published > ahead {
                state.ring.prefetch(state.tail + ahead);
            }
        }
        Ok(Some(Record { position: state.tail, len, words }))
    }

    fn end(&self, lane: Lane) -> Result<u64, RecordError> {
        let head = self.control.word(at::HEADS[lane as usize]).load(Ordering::Acquire);
        let state = &self.lanes[lane as usize];
        let (tail, capacity) = (state.tail, state.ring.capacity() as u64);
        let fits = head.wrapping_sub(tail) <= capacity;
        if fits { Ok(head) } else { Err(RecordError::Positions { head, tail, capacity }) }
    }

    /// Up to where a lane is consumed.
    pub fn taken(&self, lane: Lane) -> u64 {
        self.lanes[lane as usize].tail
    }

    pub fn ring(&self, lane: Lane) -> &RingMemory {
        &self.lanes[lane as usize].ring
    }

    /// Goes on behind a record.
    pub fn advance(&mut self, lane: Lane, len: usize) {
        let state = &mut self.lanes[lane as usize];
        state.tail = state.tail.wrapping_add(len as u64);
    }

    /// Shows the sender what was consumed; true when there was something to show.
    pub fn publish(&mut self) -> bool {
        let mut moved = false;
        for lane in [Lane::Request, Lane::Reply] {
            let state = &mut self.lanes[lane as usize];
            moved |= state.show(self.control.word(at::TAILS[lane as usize]), state.tail);
        }
        moved
    }

    /// Whether something lies unconsumed.
    #[inline]
    pub fn pending(&self) -> bool {
        self.pending_in(Lane::Request) || self.pending_in(Lane::Reply)
    }

    pub fn pending_in(&self, lane: Lane) -> bool {
        self.control.word(at::HEADS[lane as usize]).load(Ordering::Acquire) != self.taken(lane)
    }

    /// Whether the sender asked to be told of consumption.
    pub fn notify_wanted(&self) -> bool {
        self.control.half(at::NOTIFY).load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests;
