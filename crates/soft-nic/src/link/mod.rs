//! Carries packets between NICs: in memfd rings between processes of one host, where one packet may have the
//! bytes of several, and over UDP to others ([`udp`]).
//!
//! [`Link::join`] takes a slot on the fabric; channels to peers are made when first needed. Packets go out by
//! [`Link::send_record`] and come in by [`Carrier::poll_rings`]. The peer sees them at the latest after
//! [`Link::ring_bells`], which the NIC's loop calls once a round. The sender copies a payload into the ring,
//! the receiver out of it: no NIC reaches into another process, where it would wait for a page that never
//! comes. Nothing here knows keys, queues or completions, and nothing trusts what a peer wrote (INV-13).
#![forbid(unsafe_code)]

mod bell;
pub mod capture;
mod carrier;
mod channel;
pub mod delay;
pub(crate) mod fabric;
pub mod mads;
mod peers;
mod ports;
mod receive;
pub(crate) mod record;
mod report;
#[cfg(any(test, feature = "testing"))]
mod testing;
#[cfg(test)]
mod tests;
pub mod udp;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use mlx5_device::carrier::{Carrier, Icrc, PathAddress, Payload};
use roce::Now;
use roce::wire::{gid_of, ip_of};

use crate::dma::{Copiers, Host};
use crate::os::OneShotEpoll;
use capture::{Capture, CaptureReader};
use channel::{Consumer, Producer};
use fabric::{Fabric, Process, SlotOwner};
pub use fabric::{FabricError, FabricMember, FabricView, SLOTS, ServiceError, other_version};
use mads::{MadOutcome, MadRouter};
pub use receive::Inbound;
pub use record::{MAX_FRAGMENT, RecordError, VERSION};
pub use report::{LinkCounters, LinkError, LinkEvent, NoPeer};
use udp::Wire;
pub use udp::WireCounters;

/// Most events that were not polled yet.
const MOST_EVENTS: usize = 64;

/// Largest payload that a record takes whole: a longer one may be cut to what room there is.
pub const MAX_INLINE: usize = 16 * 1024;

/// Free bytes that a ring must have to be sent to: any header with the largest payload of a whole record.
const ROOM: usize = 8 * (record::REQUEST_WORDS + record::PATH_WORDS) + MAX_INLINE;

/// A datagram's path over UDP: its addresses. The socket does not say the rest; the hop limit is Linux's.
pub(crate) fn path_of_wire(from: IpAddr, at: IpAddr) -> PathAddress {
    const HOPS: u8 = 64;
    let (sgid, dgid) = (gid_of(from).0, gid_of(at).0);
    PathAddress { sgid, dgid, hop_limit: HOPS, grh: true, ..PathAddress::default() }
}

/// How a process joins.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Fabric name: processes see each other only within one.
    pub fabric: String,
    /// Bytes of each ring of a channel: a power of two, at least 512 KiB.
    pub ring_bytes: usize,
    /// Addresses of this host where packets come and go; none: no wire.
    pub addresses: Vec<IpAddr>,
    /// Helpers for the copies of long payloads.
    pub copiers: Copiers,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            fabric: "default".to_owned(),
            ring_bytes: 2 << 20,
            addresses: Vec::new(),
            copiers: Copiers::default(),
        }
    }
}

/// Whether a message can be sent to a slot now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Yes: a record of up to [`MAX_INLINE`] bytes of payload fits. A longer one may still be `Full`.
    Yes,
    /// The ring is full, or the peer has not attached to it yet; ask again in the next round.
    Full,
    /// No process is there to receive it.
    NoPeer(NoPeer),
}

/// A peer that we have a channel with.
#[derive(Debug)]
struct Peer {
    owner: SlotOwner,
    process: Process,
}

/// A channel from a peer, or from ourselves.
#[derive(Debug)]
struct Incoming {
    consumer: Consumer,
    /// The sender has ended: drop the channel when it is empty.
    ended: bool,
    /// It sent a record that cannot be.
    closed: bool,
    /// Requests waited in the last round, and none was taken.
    requests_waited: bool,
}

/// A channel to a peer, or to ourselves.
#[derive(Debug)]
struct Outgoing {
    producer: Producer,
    /// Number of the channel among all that this link has made.
    serial: u32,
    /// Whether it is in the link's list of channels to publish.
    dirty: bool,
    /// What it could not send before the receiver attached may wait.
    awaits_attach: bool,
    /// Where each lane ended when it first had too little room for a long piece that waits.
    waits_since: [Option<u64>; 2],
}

/// A process's slot on the fabric with its channels. One thread at a time uses it.
#[derive(Debug)]
pub struct Link {
    fabric: Arc<Fabric>,
    host: Host,
    config: LinkConfig,
    peers: Vec<Option<Peer>>,
    /// Generation of the last owner of each slot that was found dead.
    dead: Vec<u32>,
    /// Memory or descriptors for a channel were lacking once.
    is_short: bool,
    outgoing: Vec<Option<Outgoing>>,
    /// Slots with an outgoing channel.
    open: Vec<u8>,
    /// Slots with unpublished records, and slots whose NIC waits for us to consume.
    to_publish: Vec<u8>,
    to_notify: Vec<u8>,
    incoming: Vec<Incoming>,
    events: VecDeque<LinkEvent>,
    counters: LinkCounters,
    serial: u32,
    first: usize,
    polls: u32,
    /// Bytes that the present poll may still copy from elsewhere.
    copies_left: u64,
    watched_ns: u64,
    /// The slot that the next closer look at peers begins with.
    examined: u8,
    /// Slots asked to ring when they consume, while we sleep.
    waiting: Vec<u8>,
    mads: MadRouter,
    /// PSN of the last datagram from QP1.
    mad_psn: u32,
    wire: Option<Wire>,
    /// Addresses whose port no process of the fabric owned at the last look; true: that was reported.
    unowned_ports: BTreeMap<IpAddr, bool>,
    ports_due_ns: u64,
    /// One-way delay of what leaves, ns.
    delay_ns: u64,
    /// There is a delay, or something of an earlier one is under way still.
    delays: bool,
}

impl Link {
    /// Joins the fabric.
    ///
    /// Errors: sentences for the user.
    pub fn join(config: LinkConfig) -> Result<Link, LinkError> {
        let ring_bytes = config.ring_bytes;
        if !ring_bytes.is_power_of_two() || ring_bytes < 2 * record::MAX_RECORD {
            return Err(LinkError::RingBytes { ring_bytes });
        }
        // An address with no place in the directory gets no packets: an owner drops what comes for us.
        let count = config.addresses.len();
        if count > fabric::PORTS {
            return Err(LinkError::Addresses { count });
        }
        let host = Host::new().map_err(LinkError::Guard)?.helped_by(config.copiers);
        let fabric = Arc::new(Fabric::join(&config.fabric)?);
        let open = || Wire::open((fabric.slot(), fabric.key()), &config.addresses);
        let wire = (count > 0).then(open).transpose()?;
        if let Some(wire) = &wire {
            fabric.publish_ports(wire.own_ports());
        }
        let mads = MadRouter::new(Arc::clone(&fabric), wire.is_some());
        Ok(Link {
            fabric,
            mads,
            mad_psn: 0,
            host,
            config,
            peers: (0..SLOTS).map(|_| None).collect(),
            dead: vec![0; SLOTS],
            is_short: false,
            outgoing: (0..SLOTS).map(|_| None).collect(),
            open: Vec::new(),
            to_publish: Vec::new(),
            to_notify: Vec::new(),
            incoming: Vec::new(),
            events: VecDeque::new(),
            counters: LinkCounters::default(),
            serial: 0,
            first: 0,
            polls: 0,
            copies_left: 0,
            watched_ns: 0,
            examined: 0,
            waiting: Vec::new(),
            wire,
            unowned_ports: BTreeMap::new(),
            ports_due_ns: 0,
            delay_ns: 0,
            delays: false,
        })
    }

    /// What went over the wire, and what the ports did; `None` without one.
    pub fn wire_counters(&self) -> Option<WireCounters> {
        self.wire.as_ref().map(Wire::counters)
    }

    /// The epoll over the wire's sockets: a thread waits there while this link sleeps, and then wakes it.
    pub fn epoll(&self) -> Option<Arc<OneShotEpoll>> {
        self.wire.as_ref().map(|wire| Arc::clone(&wire.epoll))
    }

    /// Our slot: the upper bits of every QPN of this process.
    pub fn slot(&self) -> u8 {
        self.fabric.slot()
    }

    /// What ends this link's sleep from another thread ([`Fabric::rouse`]).
    pub fn waker(&self) -> Arc<Fabric> {
        Arc::clone(&self.fabric)
    }

    pub fn mad_router(&self) -> MadRouter {
        self.mads.clone()
    }

    /// Notes an event, unless too many were not polled yet. False: it is not noted.
    fn happened(&mut self, event: LinkEvent) -> bool {
        let noted = self.events.len() < MOST_EVENTS;
        if noted {
            self.events.push_back(event);
        }
        noted
    }

    /// Sends the connection manager's datagrams that are for other hosts.
    fn send_mads(&mut self) {
        while let Some(addressed) = self.mads.for_wire.as_ref().and_then(|for_wire| for_wire.pop()) {
            let (Some(from), Some(to)) = (ip_of(addressed.from), ip_of(addressed.to)) else {
                self.mads.tally.count(MadOutcome::Unsent);
                continue;
            };
            if !self.has_wire_room(from) {
                if let Some(for_wire) = &self.mads.for_wire {
                    for_wire.push_front(addressed);
                }
                return;
            }
            self.mad_psn = self.mad_psn.wrapping_add(1) & 0xff_ffff;
            let packet = mads::packet(self.mad_psn);
            let payload = Payload::Inline(&*addressed.mad);
            // One that cannot leave is lost; its connection manager sends it again.
            if self.send_packet(from, to, &packet, Icrc::Right, payload).is_err() {
                self.mads.tally.count(MadOutcome::Unsent);
            }
        }
    }

    /// Gives the slot back before the link is dropped: for a program that ends without dropping anything.
    pub fn leave(&self) {
        self.fabric.leave();
    }

    pub fn take_call(&self) -> Option<u64> {
        if self.fabric.is_ours() { self.fabric.take_call() } else { None }
    }

    /// Captures the packets that this NIC sends and receives from now on. `now` and `epoch_ns`, nanoseconds
    /// since 1970, are the same moment. Ends after so many `packets`; 0: when the reader goes away.
    ///
    /// Errors: a sentence; there are no packets where messages travel through shared memory.
    pub fn begin_capture(&mut self, now: Now, epoch_ns: u64, packets: u64) -> Result<CaptureReader, String> {
        let Some(wire) = &mut self.wire else {
            let no = "its messages travel through shared memory, where there are no packets to capture";
            return Err(no.to_owned());
        };
        if wire.capture.as_ref().is_some_and(|other| !other.is_over()) {
            return Err("its packets are captured by another already".to_owned());
        }
        let (capture, captured) = Capture::begin("wire", now, epoch_ns, packets);
        wire.capture = Some(capture);
        Ok(captured)
    }

    /// Ends a capture that goes on; to be waited for, when the process ends.
    pub fn end_capture(&mut self) -> Option<Capture> {
        self.wire.as_mut()?.capture.take().map(Capture::end)
    }

    pub fn counters(&self) -> LinkCounters {
        self.counters
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ring_bells();
        self.fabric.leave();
    }
}
