//! A whole packet from the IP header on: decoded with every check, or written with every field computed.
//!
//! What a capture or a test sees; a NIC on a UDP socket sees only the inner part. RFC 791, 768 and 8200;
//! Annex A17 (RoCEv2). Left out: Ethernet, IPv4 options and IPv6 extension headers (RoCEv2 sends none).

use crate::wire::packet::MAX_HEADER_BYTES;
use crate::wire::{
    Gid, IpHeader, Ipv4, Ipv6, Operation, Packet, PacketKind, Udp, WireError, icrc, ipv4, udp,
};

/// Why bytes are not the packet they were taken for, or a packet cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error(transparent)]
    Wire(#[from] WireError),
    /// An IPv4 header with options, or one shorter than a header can be.
    #[error("an IPv4 header of {words} words, RoCEv2 has 5 (no options)")]
    Ipv4HeaderWords {
        /// The field, in words of 4 bytes.
        words: u8,
    },
    /// A fragment, or the reserved flag is set: RoCEv2 packets are whole.
    #[error("IPv4 flags and fragment offset {field:#06x}: only DF (0x4000) may be set")]
    Fragment { field: u16 },
    #[error("IPv4 header checksum {found:#06x}, the header's is {computed:#06x}")]
    Ipv4Checksum { found: u16, computed: u16 },
    #[error("IP protocol {protocol} where RoCEv2 has 17 (UDP)")]
    NotUdp { protocol: u8 },
    #[error("UDP port {port} where RoCEv2 has 4791")]
    NotRoce { port: u16 },
    #[error("{what} says {says} bytes, {have} are there")]
    Length { what: &'static str, says: usize, have: usize },
}

/// A packet with its IP and UDP headers, ICRC checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub ip: IpHeader,
    pub udp: Udp,
    pub packet: Packet<'a>,
    pub icrc: u32,
}

impl<'a> Frame<'a> {
    /// Reads a packet from its IP header on; bytes beyond that header's length (Ethernet padding) are
    /// ignored. Errors: one for each thing that can be wrong, the ICRC last.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let ip = IpHeader::decode(bytes)?;
        let start = ip.header_bytes();
        // `decode` has compared the length with the bytes that are there.
        let datagram = &bytes[start..start + ip.payload_bytes()];
        let udp = Udp::decode(datagram)?;
        let udp_payload = &datagram[Udp::BYTES..];
        let packet = Packet::decode(udp_payload)?;
        icrc::check(&ip, &udp, udp_payload)?;
        let (_, icrc) = icrc::split(udp_payload)?;
        Ok(Self { ip, udp, packet, icrc })
    }

    /// The same packet, ready to be written again.
    pub const fn builder(&self) -> FrameBuilder<'a> {
        FrameBuilder {
            ip: self.ip,
            source_port: self.udp.source_port,
            udp_checksum: self.udp.checksum,
            packet: self.packet,
        }
    }
}

/// A packet to be written: lengths, checksums, padding and ICRC are worked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBuilder<'a> {
    /// IP header; its length field is not read.
    pub ip: IpHeader,
    /// UDP source port.
    pub source_port: u16,
    /// UDP checksum, written as it is: 0 says that there is none.
    pub udp_checksum: u16,
    /// The transport's part.
    pub packet: Packet<'a>,
}

impl FrameBuilder<'_> {
    /// Appends the packet from its IP header to its ICRC, and returns the ICRC. Errors: those of
    /// [`Packet::emit_headers`]; `out` is as before then.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<u32, FrameError> {
        let bytes = Udp::BYTES + self.packet.wire_bytes();
        let ip = self.ip.with_payload_bytes(bytes)?;
        // Fits: `with_payload_bytes` has looked at the same number.
        let udp = Udp { checksum: self.udp_checksum, ..Udp::new(self.source_port, bytes as u16) };
        let mut transport = Vec::new();
        self.packet.append_to(&mut transport)?;
        let icrc = icrc::compute(&ip, &udp, &transport)?;
        ip.append_to(out);
        out.extend(udp.emit());
        out.extend(transport);
        out.extend(icrc::stored(icrc));
        Ok(icrc)
    }
}

impl IpHeader {
    /// Reads the header that the first nibble names. `bytes` is the packet as it came: bytes behind the
    /// header's length (Ethernet padding) are no part of it. Errors: too short, another version, options, a
    /// fragment, anything but UDP next, a wrong checksum.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        match bytes.first().map(|first| first >> 4) {
            None => Err(WireError::Truncated { what: "an IP header", need: Ipv4::BYTES, have: 0 }.into()),
            Some(4) => decode_ipv4(bytes).map(Self::V4),
            Some(6) => decode_ipv6(bytes).map(Self::V6),
            Some(version) => Err(WireError::IpVersion { version }.into()),
        }
    }

    pub const fn header_bytes(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4::BYTES,
            Self::V6(_) => Ipv6::BYTES,
        }
    }

    /// Bytes behind this header, as its length field says.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::V4(header) => usize::from(header.total_bytes).saturating_sub(Ipv4::BYTES),
            Self::V6(header) => usize::from(header.payload_bytes),
        }
    }

    /// The same header in front of another number of bytes. Error: more than the length field can say.
    pub fn with_payload_bytes(self, bytes: usize) -> Result<Self, FrameError> {
        let too_long = FrameError::Length { what: "the IP header", says: usize::from(u16::MAX), have: bytes };
        match self {
            Self::V4(header) => {
                let total_bytes = u16::try_from(bytes + Ipv4::BYTES).map_err(|_| too_long)?;
                Ok(Self::V4(Ipv4 { total_bytes, ..header }))
            }
            Self::V6(header) => {
                let payload_bytes = u16::try_from(bytes).map_err(|_| too_long)?;
                Ok(Self::V6(Ipv6 { payload_bytes, ..header }))
            }
        }
    }

    pub fn source(&self) -> Gid {
        match self {
            Self::V4(header) => Gid::from_ipv4(header.source),
            Self::V6(header) => header.source,
        }
    }

    pub fn destination(&self) -> Gid {
        match self {
            Self::V4(header) => Gid::from_ipv4(header.destination),
            Self::V6(header) => header.destination,
        }
    }
}

fn decode_ipv4(bytes: &[u8]) -> Result<Ipv4, FrameError> {
    let header = Ipv4::parse(bytes)?;
    let words = header.version_words & 0xf;
    if words != ipv4::VERSION_WORDS & 0xf {
        return Err(FrameError::Ipv4HeaderWords { words });
    }
    let says = usize::from(header.total_bytes);
    if says < Ipv4::BYTES || says > bytes.len() {
        return Err(FrameError::Length { what: "the IPv4 header", says, have: bytes.len() });
    }
    if header.fragment & !ipv4::DONT_FRAGMENT != 0 {
        return Err(FrameError::Fragment { field: header.fragment });
    }
    if header.protocol != ipv4::UDP {
        return Err(FrameError::NotUdp { protocol: header.protocol });
    }
    let (found, computed) = (header.checksum, header.with_checksum().checksum);
    if found == computed { Ok(header) } else { Err(FrameError::Ipv4Checksum { found, computed }) }
}

fn decode_ipv6(bytes: &[u8]) -> Result<Ipv6, FrameError> {
    let header = Ipv6::parse(bytes)?;
    let (says, have) = (usize::from(header.payload_bytes), bytes.len() - Ipv6::BYTES);
    if says > have {
        return Err(FrameError::Length { what: "the IPv6 header", says, have });
    }
    if header.next_header != ipv4::UDP {
        return Err(FrameError::NotUdp { protocol: header.next_header });
    }
    Ok(header)
}

impl Udp {
    /// Reads the header of a datagram. `bytes` is the whole IP payload, and the length field must match.
    /// Errors: too short, another destination port, another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let header = Udp::parse(bytes)?;
        if header.destination_port != udp::ROCE_PORT {
            return Err(FrameError::NotRoce { port: header.destination_port });
        }
        let says = usize::from(header.bytes);
        if says != bytes.len() {
            return Err(FrameError::Length { what: "the UDP header", says, have: bytes.len() });
        }
        Ok(header)
    }
}

impl Operation {
    /// Whether a responder sends it.
    pub const fn is_response(self) -> bool {
        matches!(self, Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge)
    }
}

impl PacketKind {
    /// Whether an ImmDt follows.
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm)
    }
}

impl Packet<'_> {
    /// Appends everything but the ICRC. Errors: those of [`Packet::emit_headers`]; `out` is as before then.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let mut headers = [0; MAX_HEADER_BYTES];
        let length = self.emit_headers(&mut headers)?;
        out.extend_from_slice(&headers[..length]);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(&[0; 3][..self.pad_bytes()]);
        Ok(())
    }
}

/// Source port of a flow with this 20-bit flow label, as Linux chooses it: both parts folded into 14 bits.
/// Seen in `rxe-cm.pcap`, whose REQs name the label.
pub const fn port_of_flow_label(label: u32) -> u16 {
    (label & 0x3fff ^ label >> 14 & 0x3f) as u16 | udp::DYNAMIC_PORTS
}

#[cfg(test)]
mod tests;
