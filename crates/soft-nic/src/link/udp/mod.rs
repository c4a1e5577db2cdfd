//! RoCEv2 over UDP: what carries packets between hosts, and between network namespaces of one.
//!
//! One address has one UDP port 4791 and any number of NICs behind it ([`SharedPort`]); [`Wire`] is the ports of one process,
//! with the headers of every packet. Nothing here knows queues: the device says which queue gets a packet.

mod counters;
mod encapsulation;
mod holder;
mod port;

use std::borrow::Cow;
use std::net::IpAddr;

use roce::Packet;

pub use counters::WireCounters;
pub use encapsulation::Wire;
pub use holder::Holder;
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
