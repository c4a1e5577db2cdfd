//! A packet that came over UDP, without its outer headers.

use std::net::IpAddr;

use roce::Packet;

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
pub(super) struct Kept {
    from: IpAddr,
    at: IpAddr,
    packet: Packet,
    payload: Vec<u8>,
}

impl Kept {
    pub(super) fn arrived(&self) -> Arrived<'_> {
        Arrived { from: self.from, at: self.at, packet: self.packet, payload: &self.payload }
    }
}

impl From<Arrived<'_>> for Kept {
    fn from(Arrived { from, at, packet, payload }: Arrived<'_>) -> Kept {
        Kept { from, at, packet, payload: payload.to_vec() }
    }
}
