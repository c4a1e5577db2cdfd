//! A message that arrived: its header as one checked copy, its payload still in the ring or in the packet.

use std::net::IpAddr;

use roce::{Packet, Reply, Request};

use super::{LinkCounters, PathAddress};
use crate::dma::{Fault, Host, Order, RingMemory, Segment};

/// What arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A request, whole or a fragment; for the responder.
    Request(Request),
    /// A reply; for the requester.
    Reply {
        /// The reply. A READ response may come in pieces: it counts with the last one.
        reply: Reply,
        /// Where the bytes that come with it belong, in the READ's answer.
        offset: u32,
        /// Whether all bytes of the answer are there.
        last: bool,
    },
    /// A packet of the wire, for either.
    Packet {
        /// What it says.
        packet: Packet,
        /// Address of the sender.
        from: IpAddr,
        /// Address of ours that it was sent to.
        at: IpAddr,
    },
}

/// What the handler did with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Done with it.
    Consumed,
    /// Done with it, and no other is to follow in this round: it took long, and its acknowledgement is due.
    ConsumedLate,
    /// Cannot take it now: it stays first in its ring, and so does all behind it. Never for replies.
    NotNow,
}

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
    /// The message.
    pub message: &'a Message,
    /// Where a datagram came from; `None` for connected services.
    pub path: Option<PathAddress>,
    /// The port, from 1, of our device that its address names; packets of a wire name an address, and none here.
    pub to_port: Option<u8>,
    pub(super) body: Body<'a>,
    /// Bytes of payload.
    pub(super) len: u32,
    pub(super) host: &'a Host,
    pub(super) counters: &'a mut LinkCounters,
    /// Set when a copy out of the ring was given up and may still be under way.
    pub(super) given_up: bool,
}

impl Inbound<'_> {
    /// Bytes of payload that came with this message.
    pub fn payload_len(&self) -> u32 {
        self.len
    }

    /// Copies the payload to memory of this process, whose segments must hold [`Inbound::payload_len`] bytes.
    ///
    /// Errors: that memory cannot be accessed or is too short; a part may have been copied.
    pub fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), Fault> {
        let len = u64::from(self.len);
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

    /// Copies the payload into a buffer of the NIC's own (scatter to CQE); `out` has [`Inbound::payload_len`] bytes.
    ///
    /// Errors: for another length.
    pub fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        if out.len() != self.len as usize {
            return Err(Fault { addr: 0 });
        }
        match self.body {
            Body::Here(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            Body::Ring(ring, at) => {
                self.counters.payload_bytes += u64::from(self.len);
                ring.take(self.host, at, out)
            }
        }
    }
}
