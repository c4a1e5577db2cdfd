//! What carries packets between devices: shared memory, a wire, or the queue of a test.
//!
//! A peer in reach of shared memory is a slot, and a packet there may have the bytes of several; any other is
//! an address. Packets become visible at the latest by [`Carrier::ring_bells`], once a round.

use core::hash::{Hash, Hasher};
use core::mem::discriminant;
use core::net::IpAddr;

use mlx5_layout::CqeSyndrome;
use roce::{Fragment, Now, Packet};
use serde::{Deserialize, Serialize};

use crate::memory::{Fault, Memory, Order, Segment, Segments, total};

/// A round takes and sends no further message once either copied this much, about 0.2 ms. Acknowledgements
/// wait for its end, and so does a program that shares the core.
pub const COPIED_AT_ONCE: u64 = 2 << 20;

/// Longest delay of what leaves, ns: a program that ends waits for what it has sent, no longer than this.
pub const MAX_DELAY_NS: u64 = 1_000_000_000;

/// The carrier of one device. One thread at a time uses it.
pub trait Carrier {
    /// A packet that arrived, as the carrier holds it.
    type Inbound<'a>: Inbound;

    /// Our slot: the upper bits of every QPN of this process.
    fn slot(&self) -> u8;

    /// Whether packets can leave this host.
    fn has_wire(&self) -> bool;

    /// Delays from now on what leaves by so many ns, at most [`MAX_DELAY_NS`]; 0: not at all.
    fn set_delay(&mut self, delay_ns: u64);

    // In.

    /// Begins a round at `now`: sends packets whose delay is over. Hands up to `budget` messages of peers in
    /// shared memory to `handler`, fewer when long. Returns how much was done.
    fn poll_rings(
        &mut self,
        now: Now,
        budget: usize,
        handler: impl FnMut(&Packet, &mut Self::Inbound<'_>) -> Disposition,
    ) -> usize;

    /// Hands the packets of the wire to `handler`; returns how many there were.
    fn poll_wire(
        &mut self,
        now: Now,
        handler: impl FnMut(&Packet, &mut Self::Inbound<'_>) -> Disposition,
    ) -> usize;

    /// Whether replies of the process in `slot` have come and were not handed on yet.
    fn replies_wait(&self, slot: u8) -> bool;

    /// The next thing that happened to the carrier, as a sentence.
    fn poll_event(&mut self) -> Option<String>;

    /// What is sent next is of this queue: for an impairment; others do not ask.
    fn sends(&mut self, _: impl FnOnce() -> Sender) {}

    // Out, through shared memory.

    /// Whether a rate lets a request of this queue go now.
    fn has_request_room(&mut self) -> bool {
        true
    }

    /// Sends a packet to the process of its QPN; one may have the bytes of several of `mtu` bytes each.
    ///
    /// `path` travels with datagrams; otherwise only its port. `payload` is the whole message's;
    /// `packet.payload` counts in it. A long one may go in part, whole packets: call again for the rest.
    fn send_record(
        &mut self,
        packet: &Packet,
        mtu: u32,
        path: &PathAddress,
        payload: Payload<'_>,
    ) -> Result<Sent, Unsent>;

    /// False: a reply to this slot would find no room now.
    fn has_reply_room(&mut self, slot: u8) -> bool;

    /// Whether the request that ended at `position` was taken by the peer, or never will be.
    fn consumed(&mut self, slot: u8, position: Position) -> bool;

    // Out, over the wire.

    /// Whether a packet from this address would be taken now.
    fn has_wire_room(&mut self, from: IpAddr) -> bool;

    /// Sends a packet; `payload` is the whole message's. Returns the packet's bytes, from BTH to ICRC.
    fn send_packet(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        icrc: Icrc,
        payload: Payload<'_>,
    ) -> Result<usize, Unsent>;

    /// Reads the payload of a packet that is sent later.
    fn read_payload(&mut self, part: Fragment, payload: Payload<'_>) -> Result<Vec<u8>, Fault>;

    /// A packet is lost on its way out: a recording notes it in its place. Not called for a lost request or
    /// reply in shared memory.
    fn loses_packet(&mut self, _from: IpAddr, _to: IpAddr, _packet: &Packet) {}

    /// Whether packets of an earlier round wait for room.
    fn has_packets_waiting(&self) -> bool;

    /// Whether something waits for its time: a further round is due soon.
    fn has_delayed(&self) -> bool;

    /// What was sent in this round becomes visible to the peers.
    fn ring_bells(&mut self);

    // For a person who looks for a silent peer.

    /// What processes must have in common with this one to be peers in shared memory, in words.
    fn fabric_in_words(&self) -> String;

    /// The process in a slot, and whether it lives: «process 7 there has such QP numbers, and is silent».
    fn peer_in_words(&self, slot: u8) -> String;
}

/// Where a packet came from and where to, as far as its carrier knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addressing {
    /// Where a datagram came from; `None` for connected services.
    pub path: Option<PathAddress>,
    /// The port, from 1, of our device that its address names; none for packets of a wire.
    pub to_port: Option<u8>,
    /// Of a packet of the wire: the address of its sender, and that of ours that it was sent to.
    pub addresses: Option<(IpAddr, IpAddr)>,
}

/// An arrived packet: its data beside the [`Packet`], and its payload. Lives as long as the handler's call.
pub trait Inbound {
    fn addressing(&self) -> &Addressing;

    /// Copies the payload to memory of this process, whose segments must hold all of it.
    ///
    /// Errors: that memory cannot be accessed or is too short; a part may have been copied.
    fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault>;

    /// Copies the payload into a buffer of the NIC's own (scatter to CQE); `out` is as long.
    ///
    /// Errors: for another length.
    fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault>;

    /// Whether the port at this place, which it is for, is down; no port is without an impairment.
    fn is_dropped_at(&self, _port: usize) -> bool {
        false
    }

    /// This queue answers a READ, which counts: when it may; at once without an impairment.
    fn answer_from(&mut self, _qpn: u32) -> Now {
        Now(0)
    }
}

/// What the handler did with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// Done with it.
    Consumed,
    /// Done with it, and no other is to follow in this round: it took long, and its acknowledgement is due.
    ConsumedLate,
    /// Cannot take it now: it stays first in its ring, and so does all behind it. Never for replies.
    NotNow,
}

/// Where a payload is, on the sending side.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// No bytes.
    Nothing,
    /// Bytes that the caller holds: inline data, below 1008 bytes; an overtaken packet, up to 4096; a MAD.
    Inline(&'a [u8]),
    /// The whole message's memory, in this process: the source of SEND, WRITE and of a READ's answer.
    Segments(&'a [Segment]),
    /// Memory beside inline data of a WQE, which the device keeps in memory of its own.
    Mixed(&'a [Segment]),
}

impl Payload<'_> {
    /// Reads the bytes from `offset` on, as many as `out` has.
    pub fn read(self, memory: &impl Memory, offset: u32, out: &mut [u8]) -> Result<(), Fault> {
        let nowhere = Fault { addr: 0 };
        let segments = match self {
            Payload::Nothing => &[],
            Payload::Inline(bytes) => {
                let rest = bytes.get(offset as usize..).unwrap_or_default();
                out.copy_from_slice(rest.get(..out.len()).ok_or(nowhere)?);
                return Ok(());
            }
            Payload::Segments(segments) | Payload::Mixed(segments) => segments,
        };
        let mut walk = Segments::new(segments);
        walk.advance(offset.into());
        let mut rest = out;
        while !rest.is_empty() {
            let piece = walk.peek(rest.len() as u64).ok_or(nowhere)?;
            let (now, later) = rest.split_at_mut(piece.len as usize);
            memory.read(piece.addr, now)?;
            walk.advance(piece.len);
            rest = later;
        }
        Ok(())
    }
}

/// A digest has the address and length of memory, and inline bytes. Of [`Payload::Mixed`] it has only the
/// length: inline data lies at another address in each run.
impl Hash for Payload<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        discriminant(self).hash(state);
        match self {
            Payload::Nothing => {}
            Payload::Inline(bytes) => bytes.hash(state),
            Payload::Segments(segments) => segments.hash(state),
            Payload::Mixed(segments) => total(segments).hash(state),
        }
    }
}

/// Address of a path, as a datagram's receiver sees it in GRH and completion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PathAddress {
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
    pub slid: u16,
    pub dlid: u16,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    pub sl: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub grh: bool,
    /// The receiver's port that has the destination address. Only the record has it, if not the first.
    pub to_port: u8,
}

/// A queue that sends.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sender {
    pub qpn: u32,
    /// Place of its port among all of the NIC.
    pub port: usize,
    /// It sends requests, not replies.
    pub is_requester: bool,
    /// The next one begins its message, or begins it again.
    pub begins: bool,
    /// It waits for the port's rate.
    pub is_shaped: bool,
    /// Where its last request lies: a lost one lies nowhere.
    pub last_sent: Option<Position>,
}

/// A place in the stream of requests to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// Serial number of the channel among all that the carrier has made.
    pub channel: u32,
    pub offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Where the request ends; see [`Carrier::consumed`].
    pub position: Position,
    /// Bytes of the message that were sent. Fewer than asked for: call again for the rest, with the offset
    /// moved on.
    pub carried: u32,
}

/// Why a message or a packet was not sent. Nothing was sent then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unsent {
    #[error("there is no room now")]
    Full,
    /// The payload is unreadable or shorter than announced: a local protection error of this work request.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// No peer, no port or no header is there for it: lost on the way.
    #[error("nothing leads there")]
    Unreachable,
    /// The send is to end with this syndrome: a fault on demand.
    #[error("{0:?}, on demand")]
    Failed(#[serde(with = "syndrome")] CqeSyndrome),
    #[error("a rate holds it back")]
    Paced,
}

/// A syndrome for serde: its number.
pub(crate) mod syndrome {
    use mlx5_layout::CqeSyndrome;
    use serde::Deserialize;

    pub fn serialize<S: serde::Serializer>(syndrome: &CqeSyndrome, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(syndrome.to_u8())
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<CqeSyndrome, D::Error> {
        let number = u8::deserialize(from)?;
        CqeSyndrome::from_u8(number).ok_or_else(|| serde::de::Error::custom("no syndrome"))
    }
}

/// The invariant CRC that a packet leaves with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Icrc {
    /// What its receiver computes.
    Right,
    /// Another: a fault on demand.
    Wrong,
}
