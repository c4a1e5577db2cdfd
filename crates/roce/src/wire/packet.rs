//! A transport packet as a value: BTH, extended headers, borrowed payload; what UDP port 4791 receives.
//!
//! IBTA vol. 1 chapter 5 and §9.2-9.3. Well-formed is not yet right: the engine checks full first packets,
//! address alignment and PSNs. Padding is written as zeroes and ignored on arrival.

use super::bytes::put;
use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, PacketOpcode, Reth, WireError, icrc};

/// Payload of one packet at most: the largest path MTU.
pub const MAX_PAYLOAD_BYTES: usize = 4096;

pub const MAX_HEADER_BYTES: usize = Bth::BYTES + AtomicEth::BYTES;

/// Declares which sets of extended headers there are, and the headers of each in the order they are written.
macro_rules! extended {
    ($($(#[$doc:meta])* $set:ident $(($one:ident: $first:ident $(, $other:ident: $second:ident)?))?;)*) => {
        /// Which extended headers a packet has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum HeaderSet { $($set,)* }

        impl HeaderSet {
            /// Bytes of these headers together.
            pub const fn bytes(self) -> usize {
                match self { $(Self::$set => 0 $(+ $first::BYTES $(+ $second::BYTES)?)?,)* }
            }
        }

        /// Extended headers, by [`HeaderSet`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Extended { $($(#[$doc])* $set $(($first $(, $second)?))?,)* }

        impl Extended {
            /// Which headers these are.
            pub const fn set(&self) -> HeaderSet {
                match self { $(Self::$set { .. } => HeaderSet::$set,)* }
            }

            /// Reads the headers of `set` from the front of `bytes`. Error: the bytes end inside one of them.
            pub fn parse(set: HeaderSet, bytes: &[u8]) -> Result<Self, WireError> {
                let behind = |header: usize| bytes.get(header..).unwrap_or(&[]);
                Ok(match set { $(HeaderSet::$set => Self::$set $((
                    $first::parse(bytes)? $(, $second::parse(behind($first::BYTES))?)?
                ))?,)* })
            }

            /// Writes the headers to the front of `out`, which has room for them.
            fn emit(&self, out: &mut [u8]) {
                match self { $(Self::$set $(($one $(, $other)?))? => {
                    $(put(out, 0, $one.emit()); $(put(out, $first::BYTES, $other.emit());)?)?
                })* }
            }
        }
    };
}

extended! {
    Nothing;
    Imm(imm: ImmDt);
    /// An rkey to invalidate.
    Ieth(ieth: Ieth);
    Reth(reth: Reth);
    RethImm(reth: Reth, imm: ImmDt);
    Aeth(aeth: Aeth);
    AethAtomicAck(aeth: Aeth, ack: AtomicAckEth);
    Atomic(atomic: AtomicEth);
    /// A datagram's sender.
    Deth(deth: Deth);
    /// A datagram's sender and immediate data.
    DethImm(deth: Deth, imm: ImmDt);
}

impl Extended {
    /// Remote memory, if there is some named by a RETH.
    pub const fn reth(&self) -> Option<Reth> {
        if let Self::Reth(reth) | Self::RethImm(reth, _) = self { Some(*reth) } else { None }
    }

    pub const fn immediate(&self) -> Option<ImmDt> {
        match self {
            Self::Imm(imm) | Self::RethImm(_, imm) | Self::DethImm(_, imm) => Some(*imm),
            _ => None,
        }
    }

    pub const fn aeth(&self) -> Option<Aeth> {
        if let Self::Aeth(aeth) | Self::AethAtomicAck(aeth, _) = self { Some(*aeth) } else { None }
    }

    /// The sender of a datagram.
    pub const fn deth(&self) -> Option<Deth> {
        if let Self::Deth(deth) | Self::DethImm(deth, _) = self { Some(*deth) } else { None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header. Its pad count follows from the payload; [`Packet::emit_headers`] ignores it.
    pub bth: Bth,
    /// What the opcode says follows.
    pub extended: Extended,
    /// Payload without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a UDP payload: BTH to ICRC. The ICRC is there, but unchecked: [`icrc`] does that, with the
    /// headers in front. Errors: those of the headers; a length that is no multiple of 4; padding without
    /// payload; payload where none may be, or more than [`MAX_PAYLOAD_BYTES`].
    pub fn decode(udp_payload: &'a [u8]) -> Result<Self, WireError> {
        let (transport, _) = icrc::split(udp_payload)?;
        let bth = Bth::parse(transport)?;
        let set = bth.opcode.headers();
        let extended = Extended::parse(set, &transport[Bth::BYTES..])?;
        if !udp_payload.len().is_multiple_of(4) {
            return Err(WireError::Misaligned { bytes: udp_payload.len() });
        }
        let padded = &transport[Bth::BYTES + set.bytes()..];
        let Some(bytes) = padded.len().checked_sub(usize::from(bth.pad)) else {
            return Err(WireError::Pad { pad: bth.pad, have: padded.len() });
        };
        check_payload(bth.opcode, bytes)?;
        Ok(Self { bth, extended, payload: &padded[..bytes] })
    }

    /// Bytes of BTH and extended headers.
    #[inline]
    pub const fn header_bytes(&self) -> usize {
        Bth::BYTES + self.bth.opcode.headers().bytes()
    }

    /// Bytes of padding that follow the payload.
    #[inline]
    pub const fn pad_bytes(&self) -> usize {
        self.payload.len().wrapping_neg() & 3
    }

    /// Bytes from BTH to ICRC: what the UDP payload is long.
    #[inline]
    pub const fn wire_bytes(&self) -> usize {
        self.header_bytes() + self.payload.len() + self.pad_bytes() + icrc::ICRC_BYTES
    }

    /// Writes BTH and extended headers to the front of `out`, returns their length; payload, padding and ICRC
    /// come from elsewhere. Errors: headers that the opcode lacks, payload that it cannot carry, no room.
    pub fn emit_headers(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let (wants, has) = (self.bth.opcode.headers(), self.extended.set());
        if wants != has {
            return Err(WireError::HeadersDisagree { opcode: self.bth.opcode.to_u8(), wants, has });
        }
        check_payload(self.bth.opcode, self.payload.len())?;
        let (need, have) = (self.header_bytes(), out.len());
        if have < need {
            return Err(WireError::Truncated { what: "a packet's headers", need, have });
        }
        put(out, 0, Bth { pad: self.pad_bytes() as u8, ..self.bth }.emit());
        self.extended.emit(&mut out[Bth::BYTES..]);
        Ok(need)
    }
}

fn check_payload(opcode: PacketOpcode, bytes: usize) -> Result<(), WireError> {
    if bytes > 0 && !opcode.kind().carries_payload() {
        return Err(WireError::UnexpectedPayload { opcode: opcode.to_u8(), bytes });
    }
    if bytes > MAX_PAYLOAD_BYTES { Err(WireError::Oversized { bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
