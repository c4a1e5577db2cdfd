//! RoCEv2 over UDP: what carries packets between hosts, and between network namespaces of one.
//!
//! One address has one UDP port 4791 and any number of NICs behind it ([`SharedPort`]); [`Wire`] is the ports of one process,
//! with the headers of every packet. Nothing here knows queues: the device says which queue gets a packet.

mod counters;
mod encapsulation;
mod holder;
mod port;

use std::net::IpAddr;

use roce::Packet;

pub use counters::WireCounters;
pub use encapsulation::Wire;
pub use holder::Holder;
pub use port::{ROCE_PORT, SharedPort};

/// A packet that came.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a> {
    /// Address of the sender.
    pub from: IpAddr,
    /// Address of ours that it was sent to.
    pub at: IpAddr,
    pub packet: Packet,
    /// What it carries.
    pub payload: &'a [u8],
}

/// A packet that came, with its bytes: it is taken later.
#[derive(Debug)]
struct Kept {
    from: IpAddr,
    at: IpAddr,
    packet: Packet,
    payload: Vec<u8>,
}

impl Kept {
    fn arrived(&self) -> Arrived<'_> {
        Arrived { from: self.from, at: self.at, packet: self.packet, payload: &self.payload }
    }
}

impl From<Arrived<'_>> for Kept {
    fn from(Arrived { from, at, packet, payload }: Arrived<'_>) -> Kept {
        Kept { from, at, packet, payload: payload.to_vec() }
    }
}
