//! Packets as values, apart from their bytes: what the engine decides about a packet and needs of it.
//!
//! Operations, positions and headers of IBTA vol. 1 chapter 9: BTH, RETH, AtomicETH, AETH (§9.7.5.2), DETH,
//! ImmDt, IETH. Left out: partition keys, migration, pad counts, invariant CRC (all in `wire`), credit count
//! of an AETH. The payload stays with the device: a packet only says which bytes of which message it carries.
//! In shared memory a packet may carry the bytes of several consecutive ones, and then takes as many PSNs.

mod bytes;

use crate::message::psn_count;
pub use crate::wire::{AtomicEth, Position, Reth};
use crate::{Fragment, NakCode, Opcode, Psn, Region, ServiceType, Ticket};

/// The position of a packet that starts, or ends, its message.
pub const fn position_of(starts: bool, ends: bool) -> Position {
    match (starts, ends) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// Whether a packet at this position may carry so many bytes: a first or middle one is full, a last one
/// neither empty nor too long, an only one not too long (IBTA, length checks of §9.7.4).
pub const fn may_carry(position: Position, payload_bytes: u32, path_mtu_bytes: u32) -> bool {
    match position {
        Position::First | Position::Middle => payload_bytes == path_mtu_bytes,
        Position::Last => payload_bytes > 0 && payload_bytes <= path_mtu_bytes,
        Position::Only => payload_bytes <= path_mtu_bytes,
    }
}

/// What follows the headers of a SEND's or WRITE's last packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Trailer {
    #[default]
    None,
    /// ImmDt: immediate data as on the wire.
    Immediate([u8; 4]),
    /// IETH: the rkey to invalidate, big-endian. SENDs only.
    Invalidate([u8; 4]),
}

/// AETH, without its credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Aeth {
    pub syndrome: Syndrome,
    /// Messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// The three kinds of AETH (IBTA §9.7.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to the PSN is acknowledged.
    Ack,
    /// No receive; the 5-bit code of [`crate::retry::rnr_timer_ns`] says when to come again.
    RnrNak { timer: u8 },
    /// Refused.
    Nak(NakCode),
}

/// DETH: the sender of a datagram, and the key that lets it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    pub src_qpn: u32,
}

/// What a packet is, with the headers that its opcode brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    Send {
        /// Where in the message.
        position: Position,
        /// Last and only packets.
        trailer: Trailer,
    },
    Write {
        /// Where in the message.
        position: Position,
        /// Of first and only packets; ignored in others.
        reth: Reth,
        /// Last and only packets.
        trailer: Trailer,
    },
    ReadRequest(Reth),
    CompareSwap(AtomicEth),
    FetchAdd(AtomicEth),
    ReadResponse {
        /// Where in the response.
        position: Position,
        /// All but middle packets.
        aeth: Option<Aeth>,
    },
    Acknowledge(Aeth),
    AtomicAcknowledge {
        /// As in every acknowledgement.
        aeth: Aeth,
        old: u64,
    },
}

impl Content {
    /// Whether a responder takes it; the requester takes the others.
    pub const fn is_request(&self) -> bool {
        !matches!(
            self,
            Content::ReadResponse { .. } | Content::Acknowledge(_) | Content::AtomicAcknowledge { .. }
        )
    }

    /// Content of a whole message. `imm`: immediate data, or the rkey to invalidate. Operands: what to swap
    /// in or add, and what to compare with.
    #[inline(always)]
    pub fn request(opcode: Opcode, imm: [u8; 4], reth: Reth, [swap_add, compare]: [u64; 2]) -> Content {
        let position = Position::Only;
        let atomic = AtomicEth { va: reth.va, rkey: reth.rkey, swap_add, compare };
        match opcode {
            Opcode::Write => Content::Write { position, reth, trailer: Trailer::None },
            Opcode::WriteImm => Content::Write { position, reth, trailer: Trailer::Immediate(imm) },
            Opcode::Send => Content::Send { position, trailer: Trailer::None },
            Opcode::SendImm => Content::Send { position, trailer: Trailer::Immediate(imm) },
            Opcode::SendInvalidate => Content::Send { position, trailer: Trailer::Invalidate(imm) },
            Opcode::Read => Content::ReadRequest(reth),
            Opcode::CompareSwap => Content::CompareSwap(atomic),
            Opcode::FetchAdd => Content::FetchAdd(atomic),
        }
    }

    /// Remote address and rkey, where a request's headers have them.
    pub const fn remote(&self) -> (u64, u32) {
        match *self {
            Content::Write { reth, .. } | Content::ReadRequest(reth) => (reth.va, reth.rkey),
            Content::CompareSwap(eth) | Content::FetchAdd(eth) => (eth.va, eth.rkey),
            _ => (0, 0),
        }
    }

    /// Where in its message a packet of this kind stands.
    pub const fn position(&self) -> Position {
        match *self {
            Content::Send { position, .. }
            | Content::Write { position, .. }
            | Content::ReadResponse { position, .. } => position,
            _ => Position::Only,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    /// Service, from the opcode's upper bits.
    pub service: ServiceType,
    pub dst_qpn: u32,
    pub psn: Psn,
    pub ack_requested: bool,
    /// Solicited event asked for (last and only packets).
    pub solicited: bool,
    /// On a wire datagrams only; in shared memory every packet has its sender.
    pub deth: Deth,
    /// Operation and headers.
    pub content: Content,
    /// Bytes that it carries. Only the sender knows the offset: a receiver counts, and ignores it.
    pub payload: Fragment,
}

impl Default for Packet {
    /// An empty SEND without a destination.
    fn default() -> Packet {
        Packet {
            service: ServiceType::Rc,
            dst_qpn: 0,
            psn: Psn::default(),
            ack_requested: false,
            solicited: false,
            deth: Deth::default(),
            content: Content::Send { position: Position::Only, trailer: Trailer::None },
            payload: Fragment::default(),
        }
    }
}

impl Packet {
    /// PSNs that it takes: one a packet of the path, and those of its response.
    pub const fn psn_count(&self, path_mtu_bytes: u32) -> u32 {
        match self.content {
            Content::ReadRequest(reth) => psn_count(Opcode::Read, reth.dma_bytes, path_mtu_bytes),
            _ => psn_count(Opcode::Send, self.payload.length, path_mtu_bytes),
        }
    }
}

/// Where the bytes of an outgoing packet are: `packet.payload` is a range of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadSource {
    /// None: the packet is all header.
    Nothing,
    /// The message's, as it was posted.
    Message(Ticket),
    /// The memory that a READ was granted.
    Region(Region),
}

/// A packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    pub packet: Packet,
    pub source: PayloadSource,
    pub retransmission: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Position::*;

    #[test]
    fn a_position_says_how_many_bytes_a_packet_carries() {
        for (position, empty, one, nearly, full, over) in [
            (First, false, false, false, true, false),
            (Middle, false, false, false, true, false),
            (Last, false, true, true, true, false),
            (Only, true, true, true, true, false),
        ] {
            for mtu in crate::testing::PATH_MTU_BYTES {
                let got = [0, 1, mtu - 1, mtu, mtu + 1].map(|bytes| may_carry(position, bytes, mtu));
                assert_eq!(got, [empty, one, nearly, full, over], "{position:?}, path MTU {mtu}");
            }
        }
    }

    #[test]
    fn a_position_is_made_of_its_two_ends() {
        for position in [First, Middle, Last, Only] {
            assert_eq!(position_of(position.starts(), position.ends()), position);
        }
    }
}
