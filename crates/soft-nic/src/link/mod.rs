//! Carries messages between NICs. This path: memfd rings between processes of one host; the wire comes next.
//!
//! [`Link::join`] takes a seat on the fabric; channels to peers are made when first needed. Requests and replies go out
//! by [`Link::send_request`] and [`Link::send_reply`], come in by [`Link::poll`], and become visible to the peer at the
//! latest with [`Link::ring_bells`], which the NIC's loop calls once a round. A payload is copied once, by the
//! receiving side. Nothing here knows keys, queues or completions, and nothing trusts what a peer wrote (INV-13).
#![forbid(unsafe_code)]

mod fabric;
mod idle;
mod inbound;
mod loopback;
mod record;
mod shape;
mod shared_memory;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use roce::{Reply, ReplyKind, Request};

use crate::dma::{Fault, Host, PeerMemory, Segment, Segments, system};
use fabric::{Fabric, Process};
pub use fabric::{FabricError, SLOTS};
pub use idle::{IdleClock, IdlePolicy, IdleTimes, Pause, SystemClock};
use inbound::SenderMemory;
pub use inbound::{CopyError, Disposition, Inbound, Message};
use record::{Form, Header, RecordError};
pub use record::{MAX_FRAGMENT, MAX_SEGMENTS};
pub use shape::TokenBucket;
use shared_memory::{AttachError, ChannelState, Consumer, Ends, Lane, Producer};

/// Largest payload that travels in a record when copies between the processes are possible. Above it one system call
/// is cheaper than the second copy.
pub const MAX_INLINE: usize = 4096;

/// Free bytes that a ring must have to be sent to: any header with the largest inline payload or list of segments.
const ROOM: usize = 8 * (record::REQUEST_WORDS + record::PATH_WORDS) + MAX_INLINE;

/// Bits of a QPN below the slot.
const SLOT_SHIFT: u32 = 17;

/// How often peers are looked at, in ns: well below the second within which a killed peer must be noticed.
const WATCH_NS: u64 = 2_000_000;

/// Where a payload is, on the sending side.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// No bytes.
    Nothing,
    /// Bytes that the caller has gathered (inline data of a WQE); at most [`MAX_INLINE`].
    Inline(&'a [u8]),
    /// The whole message's memory, in this process: the source of SEND, WRITE and of a READ's answer, or where the
    /// answer to a READ goes. The link gathers it into the record when it is small, else the receiving side copies it
    /// once from there. It must stay as it is until the message is acknowledged.
    Segments(&'a [Segment]),
}

/// Address of a path, as a datagram's receiver sees it in GRH and completion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathAddress {
    /// Source GID.
    pub sgid: [u8; 16],
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Source LID.
    pub slid: u16,
    /// Destination LID.
    pub dlid: u16,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Whether a GRH is present.
    pub grh: bool,
}

/// How a process joins.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Fabric name: processes see each other only within one.
    pub fabric: String,
    /// Carry every payload in the rings, as if the kernel refused copies between processes.
    pub staging: bool,
    /// Bytes of each ring of a channel: a power of two, at least 128 KiB.
    pub ring_bytes: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig { fabric: "default".to_owned(), staging: false, ring_bytes: 512 * 1024 }
    }
}

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Joining the fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The fault handler could not be installed.
    #[error("installing the handler for SIGSEGV and SIGBUS: {0}")]
    Guard(std::io::Error),
    /// A ring size that cannot be.
    #[error("rings of {ring_bytes} bytes: a power of two of at least 131072 is needed")]
    RingBytes {
        /// As configured.
        ring_bytes: usize,
    },
}

/// Whether a message can be sent to a slot now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Yes: the next send will not say `Full`.
    Yes,
    /// The ring is full, or the peer has not attached to it yet; ask again in the next round.
    Full,
    /// Nobody is there to receive it.
    NoPeer(NoPeer),
}

/// Why a slot cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPeer {
    /// The QPN names a slot where no process is.
    #[error("no process has slot {0} of the fabric")]
    Empty(u8),
    /// The process that was there has ended.
    #[error("the process in slot {0} of the fabric has ended")]
    Gone(u8),
    /// The peer could not or would not attach to our channel.
    #[error(
        "the process in slot {0} of the fabric could not attach to our channel (another version, or no permission)"
    )]
    Refused(u8),
    /// The peer gave the channel up, or wrote nonsense into it.
    #[error("the channel to slot {0} of the fabric is closed after a bad record")]
    Closed(u8),
    /// The kernel did not give us memory or a descriptor for a channel.
    #[error("no channel to slot {slot} of the fabric: errno {errno}")]
    Kernel {
        /// Slot.
        slot: u8,
        /// What the kernel said.
        errno: i32,
    },
    /// This process is a fork child of the one that joined.
    #[error("a fork child cannot use its parent's link")]
    Forked,
}

/// Why a message was not sent. Nothing was sent then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// As [`Room::Full`].
    #[error("the ring is full")]
    Full,
    /// As [`Room::NoPeer`].
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The payload could not be read: a local protection error of this work request.
    #[error(transparent)]
    LocalFault(#[from] Fault),
    /// The payload has not the bytes that the request names, or more segments than a record carries.
    #[error("a payload of {have} bytes where {want} are announced")]
    Length {
        /// Bytes that the payload has.
        have: u64,
        /// Bytes that the request names.
        want: u64,
    },
}

/// A place in the stream of requests to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Serial number of the channel among all that this link has made.
    channel: u32,
    offset: u64,
}

/// What was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Where the request ends; see [`Link::consumed`].
    pub position: Position,
    /// Bytes of the message that are now on their way. Fewer than asked for: call again for the rest, with the
    /// offset moved on.
    pub carried: u32,
}

/// Things that happened which no call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkEvent {
    /// A peer ended or left.
    #[error("the process in slot {slot} (pid {pid}) has left the fabric")]
    PeerLost {
        /// Slot.
        slot: u8,
        /// Its process number.
        pid: u32,
    },
    /// A peer wrote a record that cannot be; its channel is closed.
    #[error("slot {slot} sent {error}; its channel is closed")]
    BadRecord {
        /// Slot.
        slot: u8,
        /// What was wrong.
        error: RecordError,
    },
    /// Payloads from this peer have to be staged.
    #[error("the kernel allows no copies from process {pid} (slot {slot}): its payloads are staged")]
    Staging {
        /// Slot.
        slot: u8,
        /// Its process number.
        pid: u32,
    },
    /// A channel that a peer published was not attached.
    #[error("the channel that slot {slot} published cannot be used")]
    AttachFailed {
        /// Slot.
        slot: u8,
    },
}

/// What a link has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Requests and fragments of requests sent.
    pub requests_sent: u64,
    /// Replies and pieces of replies sent.
    pub replies_sent: u64,
    /// Records handed to the handler and consumed.
    pub received: u64,
    /// Payload bytes copied out of records.
    pub inline_bytes: u64,
    /// Payload bytes copied once, between the two processes' memory.
    pub direct_bytes: u64,
    /// Payload bytes sent through the ring because they could not be copied directly.
    pub staged_bytes: u64,
    /// Records that could not be; each closed a channel.
    pub bad_records: u64,
    /// Channels that could not be attached.
    pub attach_failures: u64,
    /// Peers that ended or left.
    pub peers_lost: u64,
    /// Sleeping peers woken.
    pub bells: u64,
    /// Times this NIC slept.
    pub sleeps: u64,
}

/// A peer that we have a channel with.
#[derive(Debug)]
struct Peer {
    pid: u32,
    generation: u32,
    process: Process,
}

#[derive(Debug)]
struct Incoming {
    consumer: Consumer,
    memory: SenderMemory,
    /// The sender has ended: drop the channel when it is empty.
    ended: bool,
}

#[derive(Debug)]
struct Outgoing {
    producer: Producer,
    serial: u32,
    dirty: bool,
}

/// Wakes a sleeping NIC from another thread of its process.
#[derive(Debug, Clone)]
pub struct Waker {
    fabric: Arc<Fabric>,
}

impl Waker {
    /// Makes a sleep that is going on, or about to begin, end at once.
    pub fn wake(&self) {
        if self.fabric.is_ours() {
            self.fabric.wake(self.fabric.slot());
        }
    }
}

/// A process's seat on the fabric with its channels. One thread at a time uses it.
#[derive(Debug)]
pub struct Link {
    fabric: Arc<Fabric>,
    host: Host,
    config: LinkConfig,
    peers: Vec<Option<Peer>>,
    /// Generation of the last occupant of each slot that was found dead.
    dead: Vec<u32>,
    outgoing: Vec<Option<Outgoing>>,
    /// Slots with an outgoing channel.
    open: Vec<u8>,
    /// Slots with unpublished records, and slots whose NIC waits for us to consume.
    to_publish: Vec<u8>,
    to_notify: Vec<u8>,
    incoming: Vec<Incoming>,
    segments: Vec<Segment>,
    events: Vec<LinkEvent>,
    counters: LinkCounters,
    serial: u32,
    first: usize,
    polls: u32,
    watched_ns: u64,
}

impl Link {
    /// Takes a seat.
    ///
    /// Errors: sentences for the user.
    pub fn join(config: LinkConfig) -> Result<Link, LinkError> {
        let ring_bytes = config.ring_bytes;
        if !ring_bytes.is_power_of_two() || ring_bytes < 2 * record::MAX_RECORD {
            return Err(LinkError::RingBytes { ring_bytes });
        }
        let host = Host::new().map_err(LinkError::Guard)?;
        let fabric = Arc::new(Fabric::join(&config.fabric)?);
        Ok(Link {
            fabric,
            host,
            config,
            peers: (0..SLOTS).map(|_| None).collect(),
            dead: vec![0; SLOTS],
            outgoing: (0..SLOTS).map(|_| None).collect(),
            open: Vec::new(),
            to_publish: Vec::new(),
            to_notify: Vec::new(),
            incoming: Vec::new(),
            segments: Vec::with_capacity(MAX_SEGMENTS),
            events: Vec::new(),
            counters: LinkCounters::default(),
            serial: 0,
            first: 0,
            polls: 0,
            watched_ns: 0,
        })
    }

    /// Our slot: the upper bits of every QPN of this process.
    pub fn slot(&self) -> u8 {
        self.fabric.slot()
    }

    /// The slot that a QPN belongs to.
    pub fn slot_of(qpn: u32) -> u8 {
        (qpn >> SLOT_SHIFT) as u8 & (SLOTS as u8 - 1)
    }

    /// The first QPN of a slot.
    pub fn first_qpn(slot: u8) -> u32 {
        u32::from(slot) << SLOT_SHIFT
    }

    /// What wakes this link's [`Link::sleep`] from another thread.
    pub fn waker(&self) -> Waker {
        Waker { fabric: Arc::clone(&self.fabric) }
    }

    /// What was done so far.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// The next event that nobody has asked about.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// Whether a process with a NIC is in this slot and has not ended.
    pub fn alive(&mut self, slot: u8) -> bool {
        let index = usize::from(slot) % SLOTS;
        if slot == self.slot() {
            return self.fabric.is_ours();
        }
        match (&self.peers[index], self.fabric.occupant(slot)) {
            (Some(peer), Some(who)) if peer.generation == who.generation => !peer.process.has_ended(),
            (_, Some(who)) if self.dead[index] != who.generation => {
                let alive = self.fabric.watch(&who).is_some();
                if !alive {
                    self.dead[index] = who.generation;
                }
                alive
            }
            _ => false,
        }
    }

    /// Whether a request can be sent to a slot now. Makes the channel when there is none.
    pub fn room(&mut self, slot: u8) -> Room {
        self.lane_room(slot, Lane::Request)
    }

    /// Whether a reply can be sent to a slot now.
    pub fn reply_room(&mut self, slot: u8) -> Room {
        self.lane_room(slot, Lane::Reply)
    }

    fn lane_room(&mut self, slot: u8, lane: Lane) -> Room {
        if !self.fabric.is_ours() {
            return Room::NoPeer(NoPeer::Forked);
        }
        let index = usize::from(slot) % SLOTS;
        if let Some(outgoing) = &mut self.outgoing[index] {
            return match outgoing.producer.state() {
                ChannelState::Direct | ChannelState::Staged if outgoing.producer.has_room(lane, ROOM) => {
                    Room::Yes
                }
                ChannelState::Closed => Room::NoPeer(NoPeer::Closed(slot)),
                ChannelState::Published if self.fabric.was_refused(slot) => {
                    Room::NoPeer(NoPeer::Refused(slot))
                }
                _ => Room::Full,
            };
        }
        match self.open_channel(slot) {
            Ok(()) if slot == self.slot() => Room::Yes,
            Ok(()) => Room::Full,
            Err(reason) => Room::NoPeer(reason),
        }
    }

    fn open_channel(&mut self, slot: u8) -> Result<(), NoPeer> {
        let index = usize::from(slot) % SLOTS;
        let (from, from_generation) = (self.slot(), self.fabric.generation());
        let failed = |error: AttachError| NoPeer::Kernel { slot, errno: errno(&error) };
        let producer = if slot == from {
            let (producer, consumer) =
                loopback::open(from, from_generation, self.config.ring_bytes).map_err(failed)?;
            self.incoming.push(Incoming { consumer, memory: SenderMemory::Own, ended: false });
            producer
        } else {
            let to_generation = self.meet(slot)?;
            let ends = Ends { from, to: slot, from_generation, to_generation };
            let producer = Producer::create(ends, self.config.ring_bytes).map_err(|e| failed(e.into()))?;
            self.fabric.publish_channel(slot, to_generation, producer.descriptor());
            producer
        };
        self.serial = self.serial.wrapping_add(1);
        self.outgoing[index] = Some(Outgoing { producer, serial: self.serial, dirty: false });
        self.open.push(slot);
        Ok(())
    }

    /// Starts watching who sits in a slot; returns the generation.
    fn meet(&mut self, slot: u8) -> Result<u32, NoPeer> {
        let index = usize::from(slot) % SLOTS;
        let who = self.fabric.occupant(slot).ok_or(NoPeer::Empty(slot))?;
        if let Some(peer) = &self.peers[index] {
            // A new process where the old one's end was not noticed yet: the next look clears it.
            return if peer.generation == who.generation {
                Ok(peer.generation)
            } else {
                Err(NoPeer::Gone(slot))
            };
        }
        if self.dead[index] == who.generation {
            return Err(NoPeer::Gone(slot));
        }
        let Some(process) = self.fabric.watch(&who) else {
            self.dead[index] = who.generation;
            return Err(NoPeer::Gone(slot));
        };
        self.peers[index] = Some(Peer { pid: who.pid, generation: who.generation, process });
        Ok(who.generation)
    }

    /// Sends a request, or the fragment of it that `request.fragment` names.
    ///
    /// `path` travels with datagrams. `payload` is always the whole message's; the fragment's offset counts in it. When
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
        let staged = self.config.staging || outgoing.producer.state() == ChannelState::Staged;
        let mut request = *request;
        let head = 8 * record::REQUEST_WORDS
            + if record::carries_path(&request) { 8 * record::PATH_WORDS } else { 0 };
        let offset = u64::from(request.fragment.offset);
        let length = request.fragment.length;
        self.segments.clear();
        let form = match payload {
            _ if request.opcode.wants_response() => match payload {
                Payload::Segments(to) if !staged && request.length as usize > MAX_INLINE => {
                    list(&mut self.segments, to, 0, request.length)?
                }
                _ => Form::None,
            },
            Payload::Nothing => exactly(0, length, Form::None)?,
            Payload::Inline(bytes) => exactly(bytes.len(), length, Form::Inline(length))?,
            Payload::Segments(_) if length as usize <= MAX_INLINE => Form::Inline(length),
            Payload::Segments(from) if !staged => list(&mut self.segments, from, offset, length)?,
            Payload::Segments(_) => {
                let free = outgoing.producer.free(Lane::Request, head + MAX_FRAGMENT) - head;
                let carried = (length as usize).min(MAX_FRAGMENT).min(free & !7) as u32;
                self.counters.staged_bytes += u64::from(carried);
                request.fragment.length = carried;
                Form::Inline(carried)
            }
        };
        let (ring, at) = outgoing.producer.next(Lane::Request);
        match (form, payload) {
            (Form::Inline(len), Payload::Segments(from)) => {
                ring.gather(&self.host, at + head as u64, from, offset, len as usize)?;
            }
            (Form::Inline(_), Payload::Inline(bytes)) => ring.put(&self.host, at + head as u64, bytes)?,
            _ => {
                for (i, segment) in self.segments.iter().enumerate() {
                    ring.store(at + (head + 16 * i) as u64, record::encode_segment(*segment));
                }
            }
        }
        ring.store(at, record::encode_request(&request, form));
        if record::carries_path(&request) {
            ring.store(at + 8 * record::REQUEST_WORDS as u64, record::encode_path(path));
        }
        let offset = outgoing.producer.commit(Lane::Request, head + form.padded());
        let position = Position { channel: outgoing.serial, offset };
        self.counters.requests_sent += 1;
        self.touch(slot);
        Ok(Sent { position, carried: request.fragment.length })
    }

    /// Sends a reply. For a READ whose answer was not put in place, `payload` is the whole answer's memory and `offset`
    /// says from where on; fewer than all the bytes may be `carried`: the rest is another call with the offset moved on.
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
            Payload::Segments(from) => from.iter().map(|s| s.len).sum(),
        };
        let carries = matches!(reply.kind, ReplyKind::ReadResponse);
        let Some(rest) = whole.checked_sub(offset.into()).filter(|rest| carries || *rest == 0) else {
            return Err(SendError::Length { have: whole, want: offset.into() });
        };
        let free = outgoing.producer.free(Lane::Reply, head + MAX_FRAGMENT.min(rest as usize + 8)) - head;
        let carried = rest.min(MAX_FRAGMENT as u64).min(free as u64 & !7) as u32;
        let (ring, at) = outgoing.producer.next(Lane::Reply);
        match payload {
            Payload::Segments(from) => {
                ring.gather(&self.host, at + head as u64, from, offset.into(), carried as usize)?;
            }
            Payload::Inline(bytes) => {
                let from = offset as usize;
                ring.put(&self.host, at + head as u64, &bytes[from..from + carried as usize])?;
            }
            Payload::Nothing => {}
        }
        if whole > MAX_INLINE as u64 {
            self.counters.staged_bytes += u64::from(carried);
        }
        ring.store(at, record::encode_reply(reply, offset, carried, u64::from(carried) == rest));
        let offset = outgoing.producer.commit(Lane::Reply, head + Form::Inline(carried).padded());
        let position = Position { channel: outgoing.serial, offset };
        self.counters.replies_sent += 1;
        self.touch(slot);
        Ok(Sent { position, carried })
    }

    fn need_room(&mut self, slot: u8, lane: Lane) -> Result<(), SendError> {
        match self.lane_room(slot, lane) {
            Room::Yes => Ok(()),
            Room::Full => Err(SendError::Full),
            Room::NoPeer(reason) => Err(SendError::NoPeer(reason)),
        }
    }

    fn touch(&mut self, slot: u8) {
        if let Some(outgoing) = &mut self.outgoing[usize::from(slot)]
            && !outgoing.dirty
        {
            outgoing.dirty = true;
            self.to_publish.push(slot);
        }
    }

    /// Whether the request that ended at `position` is no longer in a ring: the peer took it, or the ring is gone with
    /// the peer.
    pub fn consumed(&mut self, slot: u8, position: Position) -> bool {
        match &mut self.outgoing[usize::from(slot) % SLOTS] {
            Some(outgoing) if outgoing.serial == position.channel => {
                outgoing.producer.consumed(position.offset)
            }
            _ => true,
        }
    }

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
                incoming.ended = true;
                self.counters.bad_records += 1;
                self.events.push(LinkEvent::BadRecord { slot, error });
                finished = true;
            }
            finished |= incoming.ended && consumed == before;
        }
        if finished {
            let closed = |event: &LinkEvent| matches!(event, LinkEvent::BadRecord { .. });
            let bad = self.events.iter().any(closed);
            self.incoming.retain(|incoming| !incoming.ended || (!bad && incoming.consumer.pending()));
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
        for lane in [Lane::Reply, Lane::Request] {
            while *consumed < budget {
                let Some(record) = consumer.next(lane)? else { break };
                let header = record::decode(&record.words, record.len)?;
                self.segments.clear();
                let ring = consumer.ring(lane);
                let mut payload_at = record.position;
                let (message, path, form) = match header {
                    Header::Request { request, path, form } if lane == Lane::Request => {
                        payload_at += 8 * record::REQUEST_WORDS as u64;
                        let path = path.then(|| {
                            let words = ring.load(payload_at);
                            payload_at += 8 * record::PATH_WORDS as u64;
                            record::decode_path(words)
                        });
                        if let Form::Segments(count) = form {
                            let segments = (0..u64::from(count)).map(|i| {
                                let [addr, len] = ring.load(payload_at + 16 * i);
                                Segment { addr, len }
                            });
                            self.segments.extend(segments);
                            check_segments(&self.segments, &request)?;
                        }
                        (Message::Request(request), path, form)
                    }
                    Header::Reply { reply, offset, len, last } if lane == Lane::Reply => {
                        payload_at += 8 * record::REPLY_WORDS as u64;
                        (Message::Reply { reply, offset, last }, None, Form::Inline(len))
                    }
                    _ => {
                        return Err(RecordError::Unknown { word0: record.words[0], word1: record.words[1] });
                    }
                };
                let ends = consumer.ends();
                let source = match message {
                    Message::Request(request) => request.src_qpn,
                    Message::Reply { reply, .. } => reply.src_qpn,
                };
                if Self::slot_of(source) != ends.from {
                    // A peer speaks for its own queues only.
                    return Err(RecordError::Unknown { word0: record.words[0], word1: record.words[1] });
                }
                let mut inbound = Inbound {
                    from: ends.from,
                    message,
                    path,
                    form,
                    ring,
                    payload_at,
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

    /// Attaches to channels that peers have published.
    fn attach_published(&mut self) {
        for (i, mut bits) in self.fabric.take_published().into_iter().enumerate() {
            while bits != 0 {
                let slot = (64 * i) as u8 + bits.trailing_zeros() as u8;
                bits &= bits - 1;
                if self.attach(slot).is_none() {
                    self.fabric.refuse_channel(slot);
                    self.counters.attach_failures += 1;
                    self.events.push(LinkEvent::AttachFailed { slot });
                }
            }
        }
    }

    fn attach(&mut self, slot: u8) -> Option<()> {
        let descriptor = self.fabric.channel_from(slot)?;
        if self.peers[usize::from(slot)].as_ref().is_some_and(|peer| peer.process.has_ended()) {
            self.lose(slot);
        }
        let from_generation = self.meet(slot).ok()?;
        let who = self.fabric.occupant(slot)?;
        let fd = system::open_read_write(&format!("/proc/{}/fd/{descriptor}", who.pid)).ok()?;
        let ends =
            Ends { from: slot, to: self.slot(), from_generation, to_generation: self.fabric.generation() };
        let consumer = Consumer::attach(&fd, ends).ok()?;
        let memory = PeerMemory::new(who.pid);
        let direct = !self.config.staging && memory.answers(&self.host, who.cookie_address, who.cookie);
        consumer.set_state(if direct { ChannelState::Direct } else { ChannelState::Staged });
        if !direct && !self.config.staging {
            self.events.push(LinkEvent::Staging { slot, pid: who.pid });
        }
        self.incoming.push(Incoming { consumer, memory: SenderMemory::Peer(memory), ended: false });
        // The sender may sleep until it can send.
        self.fabric.wake(slot);
        Some(())
    }

    /// Shows peers what was sent and consumed since the last call, and wakes those that sleep.
    pub fn ring_bells(&mut self) {
        if self.to_publish.is_empty() && self.to_notify.is_empty() || !self.fabric.is_ours() {
            return;
        }
        for slot in &self.to_publish {
            if let Some(outgoing) = &mut self.outgoing[usize::from(*slot)] {
                outgoing.producer.publish();
                outgoing.dirty = false;
            }
        }
        // Between our head and their bell: either they see the head before they sleep, or we see that they sleep.
        fence(Ordering::SeqCst);
        let own = self.slot();
        for slot in self.to_publish.drain(..).chain(self.to_notify.drain(..)) {
            if slot != own && self.fabric.ring(slot) {
                self.counters.bells += 1;
            }
        }
    }

    /// Sleeps until a peer rings, [`Waker::wake`] is called, or `max` is over. Returns at once when something has
    /// arrived meanwhile.
    pub fn sleep(&mut self, max: Duration) {
        if !self.fabric.is_ours() {
            return;
        }
        self.ring_bells();
        self.watch();
        let own = self.slot();
        let mut waiting = Vec::new();
        for slot in &self.open {
            if let Some(outgoing) = &mut self.outgoing[usize::from(*slot)]
                && outgoing.producer.pending()
            {
                outgoing.producer.set_notify(true);
                waiting.push(*slot);
            }
        }
        self.fabric.lie_down();
        let arrived = self.fabric.has_published() || self.incoming.iter().any(|i| i.consumer.pending());
        // What was consumed between the look and the bell would ring nobody.
        let progressed = waiting.iter().any(|slot| {
            *slot == own
                || self.outgoing[usize::from(*slot)]
                    .as_mut()
                    .is_none_or(|outgoing| !outgoing.producer.pending())
        });
        if !arrived && !progressed {
            self.counters.sleeps += 1;
            self.fabric.sleep(max);
        }
        self.fabric.get_up();
        for slot in waiting {
            if let Some(outgoing) = &self.outgoing[usize::from(slot)] {
                outgoing.producer.set_notify(false);
            }
        }
    }

    /// Spins or sleeps, as an [`IdlePolicy`] said.
    pub fn pause(&mut self, pause: Pause) {
        match pause {
            Pause::Spin => {
                self.ring_bells();
                std::hint::spin_loop();
            }
            Pause::Sleep(max) => self.sleep(max),
        }
    }

    /// Looks after the peers, every few milliseconds.
    fn watch(&mut self) {
        let now = system::monotonic_ns();
        if now.wrapping_sub(self.watched_ns) < WATCH_NS {
            return;
        }
        self.watched_ns = now;
        for slot in 0..SLOTS as u8 {
            let Some(peer) = &self.peers[usize::from(slot)] else { continue };
            let left = self.fabric.occupant(slot).is_none_or(|who| who.generation != peer.generation);
            if left || peer.process.has_ended() {
                self.lose(slot);
            }
        }
    }

    fn lose(&mut self, slot: u8) {
        let index = usize::from(slot);
        let Some(peer) = self.peers[index].take() else { return };
        self.dead[index] = peer.generation;
        self.outgoing[index] = None;
        self.open.retain(|open| *open != slot);
        for incoming in &mut self.incoming {
            // What it sent before it ended still counts; the channel goes when it is empty.
            incoming.ended |= incoming.consumer.ends().from == slot;
        }
        self.counters.peers_lost += 1;
        self.events.push(LinkEvent::PeerLost { slot, pid: peer.pid });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ring_bells();
        self.fabric.leave();
    }
}

fn errno(error: &AttachError) -> i32 {
    match error {
        AttachError::Kernel(error) => error.raw_os_error().unwrap_or(0),
        AttachError::Foreign { .. } => 0,
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

/// A record by reference names at least the bytes that it announces, and no address space's end in between.
fn check_segments(segments: &[Segment], request: &Request) -> Result<(), RecordError> {
    let length = if request.opcode.wants_response() { request.length } else { request.fragment.length };
    let mut have = 0u64;
    for segment in segments {
        let fits = segment.addr.checked_add(segment.len).is_some();
        have = have.saturating_add(if fits { segment.len } else { 0 });
    }
    if have >= u64::from(length) {
        return Ok(());
    }
    let (offset, length, whole) = (request.fragment.offset, request.fragment.length, request.length);
    Err(RecordError::Payload { have, offset, length, whole })
}
