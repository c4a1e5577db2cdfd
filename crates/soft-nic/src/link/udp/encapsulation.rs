//! The engine's packets on UDP: headers, padding and ICRC put on and taken off.
//!
//! RoCEv2 as IBTA Annex A17 has it, over IPv4 and IPv6. Every packet of a process leaves from one port of the
//! dynamic range. Type of service, flow label and hop limit are the kernel's defaults, unknown of arrivals,
//! and not in the ICRC. Nor does a socket say an IPv4 identification, see [`icrc::check_any_identification`].

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mlx5_device::carrier::{Icrc, Payload, Unsent};
use roce::wire::bth::{Bth, DEFAULT_PKEY, pkeys_match};
use roce::wire::icrc::{self, ICRC_BYTES};
use roce::wire::{self, IpHeader, Udp, gid_of};
use roce::{Now, Packet};

use super::{Arrived, SharedPort, WireCounters};
use crate::dma::Host;
use crate::link::capture::{Capture, WirePacket};
use crate::link::delay;
use crate::link::report::LinkError;
use crate::os::{OneShotEpoll, system};

/// Packets that may wait until [`Wire::poll`] takes them, so many as the socket's buffer holds short ones.
const MOST_KEPT: usize = 4096;

/// Bytes that may wait for the kernel at one port: what is sent later anyhow is better not made yet.
const WAITING_BYTES: usize = 256 * 1024;

/// A congestion notification (Annex A17): BTH with this opcode, 16 bytes of nothing, ICRC.
const CNP_OPCODE: u8 = 0x81;
const CNP_BYTES: usize = Bth::BYTES + 16 + ICRC_BYTES;

/// The counter of the reason why a packet was dropped before its destination was looked at.
type Dropped = fn(&mut WireCounters) -> &mut u64;

/// The ports of this process's addresses.
#[derive(Debug)]
pub struct Wire {
    ports: Vec<SharedPort>,
    /// Reports packets at the sockets while the NIC sleeps.
    pub epoll: Arc<OneShotEpoll>,
    /// It could not be told of a socket yet.
    refused_by_epoll: bool,
    counters: WireCounters,
    /// Packets that are taken in the next round.
    kept: VecDeque<Arrived<'static>>,
    /// The running capture, if any: it sees every packet that leaves or comes for this process, whole or not.
    pub capture: Option<Capture>,
    /// What is written waits for its time, for [`Wire::pass`], and more of it may.
    pub holds: bool,
}

impl Wire {
    /// Opens a port at each of the addresses. `member`: our slot, and the fabric's key.
    ///
    /// Errors: [`LinkError::Wire`], [`LinkError::OneShotEpoll`].
    pub fn open(member: (u8, u64), addresses: &[IpAddr]) -> Result<Wire, LinkError> {
        let open = |address: IpAddr| {
            SharedPort::open(member, address).map_err(|error| LinkError::Wire { address, error })
        };
        let ports = addresses.iter().copied().map(open).collect::<Result<Vec<_>, _>>()?;
        let epoll = Arc::new(OneShotEpoll::new().map_err(LinkError::OneShotEpoll)?);
        let watch = |port: &SharedPort| port.descriptors().try_for_each(|fd| epoll.add(fd));
        ports.iter().try_for_each(watch).map_err(LinkError::OneShotEpoll)?;
        let counters = WireCounters::default();
        let kept = VecDeque::new();
        Ok(Wire { ports, epoll, refused_by_epoll: false, counters, kept, capture: None, holds: false })
    }

    /// Each address with the port that an owner hands packets on to, and whether we are that owner.
    pub fn own_ports(&self) -> impl Iterator<Item = (IpAddr, u16, bool)> {
        self.ports.iter().map(|port| (port.address, port.own_port(), port.is_owner()))
    }

    /// Takes over ports whose owner has ended; to be called now and then. True: there was one.
    pub fn take_over_ports(&mut self) -> bool {
        let mut taken = false;
        for port in self.ports.iter_mut().filter(|port| !port.is_owner()) {
            match port.try_own() {
                Ok(owned) => taken |= owned,
                Err(_) => self.counters.socket_errors += 1,
            }
        }
        if taken || self.refused_by_epoll {
            // Sockets already added stay so. One that fails is retried at every look; until then its
            // datagrams are found when something else ends a sleep.
            let sockets = self.ports.iter().flat_map(SharedPort::descriptors);
            self.refused_by_epoll = sockets.filter(|fd| self.epoll.add(*fd).is_err()).count() > 0;
        }
        taken
    }

    /// Addresses whose port another process has.
    pub fn foreign_ports(&self) -> impl Iterator<Item = IpAddr> {
        self.ports.iter().filter(|port| !port.is_owner()).map(|port| port.address)
    }

    /// Packets of all ports so far, and what the ports did.
    pub fn counters(&self) -> WireCounters {
        let mut sum = self.counters;
        self.ports.iter().for_each(|port| sum += &port.counters);
        sum
    }

    /// Whether [`Wire::send`] from this address will not say `Full`.
    pub fn has_room(&self, from: IpAddr) -> bool {
        let port = self.ports.iter().find(|port| port.address == from);
        port.is_none_or(|port| port.waiting_bytes() < self.most_waiting_bytes())
    }

    fn most_waiting_bytes(&self) -> usize {
        if self.holds { delay::MAX_BYTES } else { WAITING_BYTES }
    }

    /// Writes a packet from one of our addresses to another host's or process's; reads `payload`, the whole
    /// message's, from `host`. It leaves with the next [`Wire::flush`]. Returns its bytes, from BTH to ICRC.
    ///
    /// Errors: see [`Unsent`]; nothing was sent then.
    pub fn send(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        packet: &Packet,
        icrc: Icrc,
        payload: Payload<'_>,
        host: &Host,
    ) -> Result<usize, Unsent> {
        let most = self.most_waiting_bytes();
        let port = self.ports.iter_mut().find(|port| port.address == from).ok_or(Unsent::Unreachable)?;
        if port.waiting_bytes() >= most {
            return Err(Unsent::Full);
        }
        let headers = packet.to_wire(&[]).ok_or(Unsent::Unreachable)?.header_bytes();
        let carried = packet.payload.length as usize;
        let transport = headers + carried.next_multiple_of(4);
        let len = transport + ICRC_BYTES;
        let udp = Udp::new(port.own_port(), udp_bytes(len));
        let ip = IpHeader::between(gid_of(from), gid_of(to), udp.bytes).ok_or(Unsent::Unreachable)?;
        let write = |bytes: &mut [u8], identification| -> Result<(), Unsent> {
            let (head, rest) = bytes.split_at_mut(headers);
            payload.read(host, packet.payload.offset, &mut rest[..carried])?;
            let headed = packet.to_wire(&rest[..carried]).ok_or(Unsent::Unreachable)?;
            headed.emit_headers(head).map_err(|_| Unsent::Unreachable)?;
            let ip = match ip {
                IpHeader::V4(header) => IpHeader::V4(wire::Ipv4 { identification, ..header }),
                v6 => v6,
            };
            let (covered, place) = bytes.split_at_mut(transport);
            let wrong_bit = u32::from(icrc == Icrc::Wrong) << 15;
            let right = icrc::compute(&ip, &udp, covered).map_err(|_| Unsent::Unreachable)?;
            place.copy_from_slice(&icrc::stored(right ^ wrong_bit));
            Ok(())
        };
        if !port.push(to, len, write)? {
            return Err(Unsent::Unreachable);
        }
        self.counters.packets_sent += 1;
        Ok(len)
    }

    /// Whether packets wait for room in the kernel; if all wait for their time, whether no more may wait.
    pub fn has_waiting(&self) -> bool {
        let least = if self.holds { delay::MAX_BYTES } else { 1 };
        self.ports.iter().any(|port| port.waiting_bytes() >= least)
    }

    /// Gives the kernel what was written; what it takes is captured now, as it leaves. With a delay,
    /// [`Wire::pass`] does so.
    pub fn flush(&mut self) {
        if self.holds {
            return;
        }
        for port in &mut self.ports {
            port.flush(shown(&mut self.capture, port.address, port.own_port()));
        }
    }

    /// Sends what is due by `now`; what was written since goes on at `due`. Returns how many packets went.
    pub fn pass(&mut self, now: Now, due: Now) -> usize {
        let capture = &mut self.capture;
        let pass = |port: &mut SharedPort| port.pass(now, due, shown(capture, port.address, port.own_port()));
        self.ports.iter_mut().map(pass).sum()
    }

    pub fn has_delayed(&self) -> bool {
        self.ports.iter().any(SharedPort::has_delayed)
    }

    /// Why the kernel would not send, for each reason at each address once: an address and an errno.
    pub fn take_refusal(&mut self) -> Option<(IpAddr, i32)> {
        self.ports.iter_mut().find_map(|port| Some((port.address, port.take_refusal()?)))
    }

    /// Hands what came for this process to `deliver` until that returns false, and keeps the rest for the
    /// next call. Hands on what came for other processes in any case: `ports` gives the port of a slot's
    /// process at an address. Returns how many datagrams were looked at; bounded.
    pub fn poll(
        &mut self,
        now: Now,
        ports: impl Fn(u8, IpAddr) -> Option<u16>,
        mut deliver: impl FnMut(Arrived<'_>) -> bool,
    ) -> usize {
        let Wire { counters, capture, kept, .. } = self;
        let (mut looked, mut goes_on, mut untaken) = (0, true, 0);
        while goes_on && let Some(packet) = kept.pop_front() {
            looked += 1;
            goes_on = deliver(packet);
        }
        let mut deliver = |arrived: Arrived<'_>| match goes_on {
            true => goes_on = deliver(arrived),
            false if kept.len() < MOST_KEPT => kept.push_back(arrived.kept()),
            false => untaken += 1,
        };
        for port in &mut self.ports {
            let at = port.address;
            let got = port.poll(
                (now.0, looked > 0),
                |slot| ports(slot, at),
                |from, bytes| {
                    let read = read(from, at, bytes);
                    if let Some(capture) = capture {
                        let (source, source_port, destination) = (from.ip(), from.port(), at);
                        // Of a packet that no identification explains, none is known.
                        let identification = read.as_ref().map_or(0, |(_, identification)| *identification);
                        let packet = WirePacket { source, source_port, destination, identification, bytes };
                        capture.received(Now(system::monotonic_ns()), &packet);
                    }
                    match read {
                        Ok((arrived, _)) => {
                            counters.packets_received += 1;
                            counters.received_bytes += bytes.len() as u64;
                            deliver(arrived);
                        }
                        Err(dropped) => *dropped(counters) += 1,
                    }
                },
            );
            match got {
                Ok(got) => looked += got,
                Err(_) => counters.socket_errors += 1,
            }
        }
        counters.untaken += untaken;
        looked
    }
}

/// Shows a port's packets to the capture, if there is one.
fn shown(capture: &mut Option<Capture>, source: IpAddr, port: u16) -> impl FnMut(SocketAddr, u16, &[u8]) {
    move |to, identification, bytes| {
        if let Some(capture) = capture {
            let destination = to.ip();
            let packet = WirePacket { source, source_port: port, destination, identification, bytes };
            capture.sent(Now(system::monotonic_ns()), &packet);
        }
    }
}

/// Length field of a UDP header in front of `len` bytes, of which no packet has more than fit.
fn udp_bytes(len: usize) -> u16 {
    (Udp::BYTES + len) as u16
}

/// Takes the headers off; checks all that depends on no queue. Also returns the IPv4 identification.
fn read(from: SocketAddr, at: IpAddr, bytes: &[u8]) -> Result<(Arrived<'_>, u16), Dropped> {
    let udp = Udp::new(from.port(), udp_bytes(bytes.len()));
    let malformed: Dropped = |counters| &mut counters.malformed;
    let ip = IpHeader::between(gid_of(from.ip()), gid_of(at), udp.bytes).ok_or(malformed)?;
    let check = || -> Result<u16, Dropped> {
        match &ip {
            IpHeader::V4(header) => icrc::check_any_identification(header, &udp, bytes),
            v6 => icrc::check(v6, &udp, bytes).map(|()| 0),
        }
        .map_err(|_| -> Dropped { |counters| &mut counters.icrc_errors })
    };
    if bytes.len() == CNP_BYTES && bytes[0] == CNP_OPCODE {
        return Err(check().err().unwrap_or(|counters| &mut counters.cnps));
    }
    let decoded = wire::Packet::decode(bytes).map_err(|_| malformed)?;
    let identification = check()?;
    // Ports of this NIC are in the default partition only.
    if !pkeys_match(decoded.bth.pkey, DEFAULT_PKEY) {
        return Err(|counters| &mut counters.pkey_violations);
    }
    let reserved: Dropped = |counters| &mut counters.reserved;
    let packet = Packet::from_wire(&decoded).ok_or(reserved)?;
    Ok((Arrived { from: from.ip(), at, packet, payload: decoded.payload.into() }, identification))
}

#[cfg(test)]
mod tests;
