//! One address, many NICs: the owner of UDP port 4791 of an address hands on what is for queues of others.
//!
//! QPNs are unique on a fabric, and their upper bits say whose they are, so the owner reads only the
//! destination QPN. It hands a packet on as a datagram, from port 4791 to the other process's port on the
//! same address. A process that can send from there owns the port. That needs no right, so any user may own
//! it: the fabric's key in front says that the owner is of the fabric. (Not a Unix socket: it holds ten
//! datagrams, `net.unix.max_dgram_qlen`, and a full one blocks the sender for all.) When the owner ends, so
//! do its sockets; the process that asks next owns the port, and packets in flight are lost. A stopped owner
//! stops its address. QP1, which connection managers use, is the owner's. Nothing that arrives is trusted.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use roce::Now;
use roce::wire::bth::Bth;
use roce::wire::mad::QP1;
use roce::wire::udp::{DYNAMIC_PORTS, ROCE_PORT};

use super::WireCounters;
use crate::link::delay::DelayLine;
use crate::os::address::{ADDRESS_BYTES, from_bytes, to_bytes};
use crate::os::datagrams::{Datagrams, Posted, SendBatch};

/// Bytes in front of a packet that is handed on: the address and port that it came from, the fabric's key.
const HEAD_BYTES: usize = ADDRESS_BYTES + 8;

/// A socket with data less long ago is polled in every round, ns …
const WARM_NS: u64 = 1_000_000;

/// … and another one so often: a poll is a system call, and most rounds of a NIC find nothing …
const COLD_NS: u64 = 5_000;

/// … or so often, while other sockets have data: that goes first.
const BUSY_NS: u64 = 50_000;

/// Decides in which rounds a socket is polled.
#[derive(Debug, Default)]
struct PollTimer {
    last_data_ns: u64,
    last_poll_ns: u64,
}

impl PollTimer {
    /// `busy`: another socket had data in this round.
    fn is_due(&mut self, now_ns: u64, busy: bool) -> bool {
        let warm = now_ns.saturating_sub(self.last_data_ns) < WARM_NS;
        let often = if busy { BUSY_NS } else { COLD_NS };
        let due = warm || now_ns.saturating_sub(self.last_poll_ns) >= often;
        if due {
            self.last_poll_ns = now_ns;
        }
        due
    }

    fn got(&mut self, count: usize) {
        if count > 0 {
            self.last_data_ns = self.last_poll_ns;
        }
    }
}

/// This process's share in the port of one address.
#[derive(Debug)]
pub struct SharedPort {
    pub address: IpAddr,
    slot: u8,
    key: u64,
    owned: Option<Datagrams>,
    /// Packets for other processes, to leave from the owned port.
    handing: SendBatch,
    /// What is sent goes out here, whichever process owns the port, and what is handed on to us comes in.
    own: Datagrams,
    batch: SendBatch,
    /// What waits for its time, and the memory that it takes.
    under_way: DelayLine<SendBatch>,
    under_way_bytes: usize,
    /// Of the owned port, and of our own.
    poll_timers: [PollTimer; 2],
    pub counters: WireCounters,
    /// With which errnos the kernel has refused to send, and how many of them were reported.
    errnos: Vec<i32>,
    reported: usize,
}

impl SharedPort {
    /// Takes part in the port of `address`, and owns it when no other process does. `slot`: ours on the
    /// fabric; `key`: known only to processes of the fabric.
    ///
    /// Errors: what the kernel says; `AddrNotAvailable`: this host has no such address.
    pub fn open((slot, key): (u8, u64), address: IpAddr) -> io::Result<SharedPort> {
        let mut port = SharedPort {
            address,
            slot,
            key,
            owned: None,
            handing: SendBatch::default(),
            own: open_dynamic(slot, address)?,
            batch: SendBatch::default(),
            under_way: DelayLine::default(),
            under_way_bytes: 0,
            poll_timers: Default::default(),
            counters: WireCounters::default(),
            errnos: Vec::new(),
            reported: 0,
        };
        port.try_own()?;
        Ok(port)
    }

    /// Whether this process hands on what arrives.
    pub fn is_owner(&self) -> bool {
        self.owned.is_some()
    }

    /// Takes the port when no process has it; to be called now and then. True: this process owns it.
    ///
    /// Errors: what the kernel says, but for the port being in use.
    pub fn try_own(&mut self) -> io::Result<bool> {
        if self.owned.is_none() {
            match Datagrams::open(SocketAddr::new(self.address, ROCE_PORT)) {
                Ok(socket) => {
                    self.owned = Some(socket);
                    self.counters.ports_owned += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.is_owner())
    }

    /// The port of our own, where packets leave from and an owner hands them on to: the others must be told.
    pub fn own_port(&self) -> u16 {
        self.own.local().port()
    }

    /// Adds a packet of `len` bytes, from its BTH on, for the NICs of `to`, as [`SendBatch::push`] does. It
    /// leaves with the next [`SharedPort::flush`].
    pub fn push<E>(
        &mut self,
        to: IpAddr,
        len: usize,
        fill: impl FnOnce(&mut [u8], u16) -> Result<(), E>,
    ) -> Result<bool, E> {
        self.batch.push(SocketAddr::new(to, ROCE_PORT), len, fill)
    }

    /// Sends what was added. What the kernel has no room for now stays. `shown`: see [`Datagrams::send`].
    pub fn flush(&mut self, shown: impl FnMut(SocketAddr, u16, &[u8])) -> Posted {
        if self.batch.is_empty() {
            return Posted::default();
        }
        let posted = self.own.send(&mut self.batch, shown);
        self.count(posted);
        posted
    }

    /// As [`SharedPort::flush`], with a delay: what was added goes on at `due`, and what is due by `now` is
    /// sent. Returns how many datagrams the kernel took or lost.
    pub fn pass(&mut self, now: Now, due: Now, mut shown: impl FnMut(SocketAddr, u16, &[u8])) -> usize {
        if !self.batch.is_empty() {
            self.under_way_bytes += self.batch.memory_bytes();
            self.under_way.put(due, self.batch.take());
        }
        let mut gone = 0;
        while let Some(batch) = self.under_way.due(now) {
            let before = batch.memory_bytes();
            let posted = self.own.send(batch, &mut shown);
            self.batch.learn(batch);
            let is_sent = batch.is_empty();
            let left = if is_sent { 0 } else { batch.memory_bytes() };
            self.under_way_bytes = self.under_way_bytes.saturating_sub(before - left);
            gone += posted.taken + posted.lost;
            self.count(posted);
            if !is_sent {
                // The kernel has no room now.
                break;
            }
            self.under_way.take();
        }
        gone
    }

    fn count(&mut self, posted: Posted) {
        self.counters.unsent += posted.lost as u64;
        // Two destinations that fail, each in its own way, are two lines, not two a round.
        if posted.lost > 0 && !self.errnos.contains(&posted.errno) {
            self.errnos.push(posted.errno);
        }
    }

    /// Whether something is under way.
    pub fn has_delayed(&self) -> bool {
        !self.under_way.is_empty() || !self.batch.is_empty()
    }

    /// An errno with which the kernel refused to send: each one once.
    pub fn take_refusal(&mut self) -> Option<i32> {
        let errno = self.errnos.get(self.reported).copied()?;
        self.reported += 1;
        Some(errno)
    }

    /// Its sockets: ours, and the address's when we own it.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        [Some(&self.own), self.owned.as_ref()].into_iter().flatten().map(Datagrams::descriptor)
    }

    /// Bytes that wait to be sent, and those under way with what describes them.
    pub fn waiting_bytes(&self) -> usize {
        self.batch.bytes() + self.under_way_bytes
    }

    /// Hands packets for our queues to `deliver`, with source address and port, and others on; `ports` gives
    /// the port of each slot's process at this address. Returns how many datagrams were looked at; bounded.
    /// An idle socket is asked only now and then. `now_ns`: monotonic; `busy`: another address had something.
    ///
    /// Errors: what the kernel says.
    pub fn poll(
        &mut self,
        (now_ns, busy): (u64, bool),
        ports: impl Fn(u8) -> Option<u16>,
        mut deliver: impl FnMut(SocketAddr, &[u8]),
    ) -> io::Result<usize> {
        let Self { address, owned, handing, counters, slot, key, own, poll_timers, .. } = self;
        let [of_owned, of_own] = poll_timers;
        let mut looked = Ok(0);
        if let Some(socket) = owned.as_mut().filter(|_| of_owned.is_due(now_ns, busy)) {
            looked = socket.receive(|from, packet| {
                let Some(qpn) = destination(packet) else {
                    counters.malformed += 1;
                    return;
                };
                let to = mlx5_device::slot_of(qpn);
                if qpn == QP1 || to == *slot {
                    deliver(from, packet);
                    return;
                }
                let len = HEAD_BYTES + packet.len();
                let whole = |bytes: &mut [u8], _| {
                    let (head, rest) = bytes.split_at_mut(HEAD_BYTES);
                    head.copy_from_slice(&origin_head(from, *key));
                    rest.copy_from_slice(packet);
                    Ok::<(), Infallible>(())
                };
                let to_port = ports(to).map(|port| SocketAddr::new(*address, port));
                if to_port.is_none_or(|at| handing.push(at, len, whole) != Ok(true)) {
                    counters.undeliverable += 1;
                }
            });
            of_owned.got(*looked.as_ref().unwrap_or(&0));
            let posted = socket.send(handing, |_, _, _| ());
            counters.handed_on += posted.taken as u64;
            // One that has no room now never gets any: a wire loses it too.
            counters.undeliverable += (posted.lost + handing.discard()) as u64;
        }
        if !of_own.is_due(now_ns, busy || looked.as_ref().is_ok_and(|count| *count > 0)) {
            return looked;
        }
        let owner = SocketAddr::new(*address, ROCE_PORT);
        // Whatever the address's socket said: what was handed on to us is read all the same.
        let handed_on = own.receive(|from, datagram| {
            let known = datagram.split_at_checked(HEAD_BYTES);
            let known = known.and_then(|(head, packet)| Some((origin(head, *key)?, packet)));
            let ours =
                |packet: &[u8]| destination(packet).is_some_and(|qpn| mlx5_device::slot_of(qpn) == *slot);
            match known {
                Some((origin, packet)) if from == owner && ours(packet) => deliver(origin, packet),
                _ => counters.refused += 1,
            }
        });
        of_own.got(*handed_on.as_ref().unwrap_or(&0));
        Ok(looked? + handed_on?)
    }
}

/// Destination QPN of a packet's BTH, the least that a packet has.
fn destination(packet: &[u8]) -> Option<u32> {
    let bth = packet.get(..Bth::BYTES)?;
    Some(u32::from_be_bytes([0, bth[5], bth[6], bth[7]]))
}

fn origin_head(from: SocketAddr, key: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    let (address, place) = head.split_at_mut(ADDRESS_BYTES);
    address.copy_from_slice(&to_bytes(&from).0);
    place.copy_from_slice(&key.to_ne_bytes());
    head
}

/// `None`: the head does not have the key, or is none.
fn origin(head: &[u8], key: u64) -> Option<SocketAddr> {
    head.strip_suffix(&key.to_ne_bytes()).and_then(from_bytes)
}

/// A socket with a port of the dynamic range (RFC 6335), as a RoCEv2 source port is to have; if some tries
/// find none free, with any port.
fn open_dynamic(slot: u8, address: IpAddr) -> io::Result<Datagrams> {
    const TRIES: u16 = 16;
    let first = (std::process::id() as u16).wrapping_mul(31) ^ u16::from(slot) << 7;
    for offset in 0..TRIES {
        let port = DYNAMIC_PORTS | first.wrapping_add(offset.wrapping_mul(977));
        match Datagrams::open(SocketAddr::new(address, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Datagrams::open(SocketAddr::new(address, 0))
}

#[cfg(test)]
mod tests;
