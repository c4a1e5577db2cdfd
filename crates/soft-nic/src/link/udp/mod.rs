//! RoCEv2 over UDP: what carries packets between hosts, and between network namespaces of one.
//!
//! One address has one UDP port 4791 and any number of NICs behind it ([`SharedPort`]). [`Wire`] is the ports
//! of one process, with the headers of every packet. The device says which queue gets a packet.

mod encapsulation;
mod port;

use std::borrow::Cow;
use std::net::IpAddr;

use roce::Packet;

pub use encapsulation::Wire;
pub use port::SharedPort;
pub use roce::wire::udp::ROCE_PORT;

/// A packet that came.
#[derive(Debug)]
pub struct Arrived<'a> {
    /// Address of the sender.
    pub from: IpAddr,
    /// Address of ours that it was sent to.
    pub at: IpAddr,
    pub packet: Packet,
    /// What it carries: a copy where the packet is taken later.
    pub payload: Cow<'a, [u8]>,
}

impl Arrived<'_> {
    fn kept(self) -> Arrived<'static> {
        let Arrived { from, at, packet, payload } = self;
        Arrived { from, at, packet, payload: payload.into_owned().into() }
    }
}

roce::counters! {
    /// Packets of the wire, and of the UDP ports that they take.
    #[derive(Copy)]
    WireCounters [fields "wire_"] {
        /// Packets given to the kernel, or waiting to be.
        packets_sent,
        /// Packets that came and were whole.
        packets_received,
        /// Their bytes, from BTH to ICRC.
        received_bytes,
        /// Dropped: a wrong ICRC.
        icrc_errors,
        /// Dropped: no packet of the transport, or a datagram too short or too long for one.
        malformed,
        /// Dropped: of another partition.
        pkey_violations,
        /// Dropped: an answer with a reserved code.
        reserved,
        /// Dropped: congestion notifications, which nothing here slows down for.
        cnps,
        /// Of those received: lost, because too many wait for a copy that takes long.
        untaken,
        /// Datagrams handed on to another process.
        handed_on,
        /// For a process that is not there, or that the kernel would not hand on.
        undeliverable,
        /// Sent to our own port by a process that does not own the address's, or not for us.
        refused,
        /// Datagrams that the kernel would not send.
        unsent,
        /// Times this process became the owner of an address's port.
        ports_owned,
        /// The kernel would not say what has come.
        socket_errors,
    }
}
