//! A packet that arrived: its header as one checked copy, its payload still in the ring or in the packet.

use std::net::IpAddr;

use mlx5_device::carrier::{self, PathAddress};
use mlx5_device::memory::{Fault, Order, Segment};
use roce::Packet;

use super::LinkCounters;
use super::record::REQUEST_WORDS;
use crate::dma::{Host, RingMemory};

/// Where the payload of a message is.
#[derive(Debug)]
pub(super) enum Body<'a> {
    /// Here: a packet was received.
    Here(&'a [u8]),
    /// In a record, from this position of the ring on.
    Ring(&'a RingMemory, u64),
}

/// A message and the way to its payload; lives as long as the handler's call.
#[derive(Debug)]
pub struct Inbound<'a> {
    pub packet: &'a Packet,
    /// The header of its record as it came; of a packet of the wire zeros.
    pub words: &'a [u64; REQUEST_WORDS],
    /// Of a packet of the wire: where it came from, and our address that it came to.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// Where a datagram came from; `None` for connected services.
    pub path: Option<PathAddress>,
    /// The port, from 1, of our device that its address names; packets of a wire name an address, and none here.
    pub to_port: Option<u8>,
    pub(super) body: Body<'a>,
    pub(super) host: &'a Host,
    pub(super) counters: &'a mut LinkCounters,
    /// Set when a copy out of the ring was given up and may still be under way.
    pub(super) given_up: bool,
}

impl carrier::Inbound for Inbound<'_> {
    fn path(&self) -> Option<PathAddress> {
        self.path
    }

    fn to_port(&self) -> Option<u8> {
        self.to_port
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.addresses
    }

    fn payload_len(&self) -> u32 {
        self.packet.payload.length
    }

    fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault> {
        let len = u64::from(self.packet.payload.length);
        if len == 0 {
            return Ok(());
        }
        if order == Order::Relaxed {
            self.counters.relaxed_bytes += len;
        }
        match self.body {
            Body::Here(bytes) => {
                let from = [Segment { addr: bytes.as_ptr() as u64, len }];
                self.host.copy(to, &from, len, order)
            }
            Body::Ring(ring, at) => {
                self.counters.payload_bytes += len;
                let copied = ring.scatter(self.host, at, to, len as usize, order);
                self.given_up |= copied.is_err() && ring.may_still_change();
                copied
            }
        }
    }

    fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        if out.len() != self.packet.payload.length as usize {
            return Err(Fault { addr: 0 });
        }
        match self.body {
            Body::Here(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            Body::Ring(ring, at) => {
                self.counters.payload_bytes += u64::from(self.packet.payload.length);
                ring.take(self.host, at, out)
            }
        }
    }
}
