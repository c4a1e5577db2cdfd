//! UDP header of RoCEv2, and the source port that tells flows apart.
//!
//! RFC 768; Annex A17 (RoCEv2): destination port 4791, checksum 0 allowed since the ICRC covers the packet. The source
//! port is entropy for routers that spread flows over paths: any value, but the same for all packets of one flow, or they
//! overtake each other; from the dynamic range 0xc000 up (RFC 6335). Which value is the sender's choice: below is Linux's.

use super::WireError;
use super::bytes::{be16, check, put};

/// Destination port of RoCEv2, as registered.
pub const ROCE_PORT: u16 = 4791;
/// First port of the dynamic range, and what the source port lacks besides 14 bits of entropy.
pub const DYNAMIC_PORTS: u16 = 0xc000;

/// A UDP header to [`ROCE_PORT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Udp {
    pub source_port: u16,
    /// Bytes from this header on.
    pub bytes: u16,
    /// Checksum as it came, 0 for none. Not checked: the ICRC covers all that it covers, and routers do not see inside.
    pub checksum: u16,
}

impl Udp {
    pub const BYTES: usize = 8;

    /// Reads 8 bytes. `bytes` is the whole IP payload, and the length field has to say so. Errors: too short, another
    /// destination port, another length.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        check("a UDP header", bytes, Self::BYTES)?;
        let port = be16(bytes, 2);
        if port != ROCE_PORT {
            return Err(WireError::NotRoce { port });
        }
        let says = be16(bytes, 4);
        if usize::from(says) != bytes.len() {
            let says = usize::from(says);
            return Err(WireError::Length { what: "the UDP header", says, have: bytes.len() });
        }
        Ok(Self { source_port: be16(bytes, 0), bytes: says, checksum: be16(bytes, 6) })
    }

    #[inline]
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, self.source_port.to_be_bytes());
        put(&mut out, 2, ROCE_PORT.to_be_bytes());
        put(&mut out, 4, self.bytes.to_be_bytes());
        put(&mut out, 6, self.checksum.to_be_bytes());
        out
    }

    /// The 8 bytes as the ICRC sees them: the checksum is all ones.
    pub(super) fn masked(&self) -> [u8; Self::BYTES] {
        Self { checksum: 0xffff, ..*self }.emit()
    }
}

/// Source port of a flow with this 20-bit flow label: both parts folded into 14 bits. Seen in the connections of
/// `rxe-cm.pcap`, whose REQs name the label.
pub const fn port_of_flow_label(label: u32) -> u16 {
    (label & 0x3fff ^ label >> 14 & 0x3f) as u16 | DYNAMIC_PORTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rxe-rc.pcap`, packet 1.
    const GOLDEN: [u8; 8] = [0xc1, 0x21, 0x12, 0xb7, 0x00, 0x20, 0x00, 0x00];

    #[test]
    fn golden_bytes_are_read_and_written() {
        let mut datagram = [0; 32];
        datagram[..8].copy_from_slice(&GOLDEN);
        let udp = Udp { source_port: 0xc121, bytes: 32, checksum: 0 };
        assert_eq!(Udp::parse(&datagram), Ok(udp));
        assert_eq!(udp.emit(), GOLDEN);
        assert_eq!(Udp { checksum: 0xabcd, ..udp }.emit()[6..], [0xab, 0xcd]);
    }

    #[test]
    fn each_wrong_header_has_its_error() {
        let mut datagram = [0; 32];
        datagram[..8].copy_from_slice(&GOLDEN);
        let short = Udp::parse(&datagram[..31]);
        assert_eq!(short, Err(WireError::Length { what: "the UDP header", says: 32, have: 31 }));
        datagram[3] = 0xb8;
        assert_eq!(Udp::parse(&datagram), Err(WireError::NotRoce { port: 4792 }));
        let none = Udp::parse(&datagram[..7]);
        assert_eq!(none, Err(WireError::Truncated { what: "a UDP header", need: 8, have: 7 }));
    }

    #[test]
    fn source_ports_are_those_of_the_captures() {
        // The REQ in packet 1 of `rxe-cm.pcap`, and the traffic from packet 4 on.
        assert_eq!(port_of_flow_label(0x6_634c), 0xe355);
        assert_eq!(port_of_flow_label(0xf_ffff), DYNAMIC_PORTS | 0x3fff ^ 0x3f);
    }
}
