//! A whole packet from the IP header on: decoded with everything checked, or written with everything worked out.
//!
//! What a raw socket, a capture or a test sees. A UDP socket hands over the inner part alone: [`Packet`] and [`icrc`].

use super::{IpHeader, Packet, Udp, WireError, icrc};

/// A packet with its IP and UDP headers, ICRC checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub ip: IpHeader,
    pub udp: Udp,
    pub packet: Packet<'a>,
    pub icrc: u32,
}

impl<'a> Frame<'a> {
    /// Reads a packet from its IP header on; bytes behind the length that this header says (Ethernet's padding) are
    /// ignored. Errors: one for each thing that can be wrong, the ICRC last.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let ip = IpHeader::parse(bytes)?;
        let start = ip.header_bytes();
        // `parse` has compared the length with the bytes that are there.
        let datagram = &bytes[start..start + ip.payload_bytes()];
        let udp = Udp::parse(datagram)?;
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
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<u32, WireError> {
        let bytes = Udp::BYTES + self.packet.wire_bytes();
        let ip = self.ip.with_payload_bytes(bytes)?;
        let start = out.len();
        let transport = start + ip.header_bytes() + Udp::BYTES;
        out.resize(transport, 0);
        // Fits: `with_payload_bytes` has looked at the same number.
        let udp = Udp { source_port: self.source_port, bytes: bytes as u16, checksum: self.udp_checksum };
        let written = ip.emit(&mut out[start..]).and_then(|ip_bytes| {
            out[start + ip_bytes..transport].copy_from_slice(&udp.emit());
            self.packet.append_to(out)?;
            icrc::compute(&ip, &udp, &out[transport..])
        });
        match written {
            Ok(icrc) => out.extend_from_slice(&icrc::stored(icrc)),
            Err(_) => out.truncate(start),
        }
        written
    }
}

#[cfg(test)]
mod tests;
