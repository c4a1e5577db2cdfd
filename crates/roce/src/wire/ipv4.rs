//! IPv4 header as RoCEv2 uses it: 20 bytes, no options, never a fragment.
//!
//! RFC 791; Annex A17 (RoCEv2): no options, DF set. The ICRC covers the identification and the flags, so a sender has to
//! know both; Linux sends identification 0 from an unconnected UDP socket with DF set, another one otherwise.

use super::WireError;
use super::bytes::{array, be16, check, put};

mod at {
    pub const VERSION_WORDS: usize = 0;
    pub const TOS: usize = 1;
    pub const TOTAL: usize = 2;
    pub const IDENTIFICATION: usize = 4;
    pub const FRAGMENT: usize = 6;
    pub const TTL: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: usize = 10;
    pub const SOURCE: usize = 12;
    pub const DESTINATION: usize = 16;
}

const DONT_FRAGMENT: u16 = 0x4000;
/// IP protocol of UDP.
pub(super) const UDP: u8 = 17;

/// An IPv4 header in front of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipv4 {
    pub tos: u8,
    /// Bytes of the packet from this header on.
    pub total_bytes: u16,
    pub identification: u16,
    /// DF.
    pub dont_fragment: bool,
    pub ttl: u8,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
}

impl Ipv4 {
    pub const BYTES: usize = 20;

    /// Reads 20 bytes. `bytes` is all of the packet that there is: what lies behind the total length (Ethernet's padding)
    /// is not part of it. Errors: too short, another version, options, a fragment, another protocol, a wrong checksum.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        check("an IPv4 header", bytes, Self::BYTES)?;
        let (version, words) = (bytes[at::VERSION_WORDS] >> 4, bytes[at::VERSION_WORDS] & 0xf);
        if version != 4 {
            return Err(WireError::IpVersion { version });
        }
        if words != 5 {
            return Err(WireError::Ipv4HeaderWords { words });
        }
        let total_bytes = be16(bytes, at::TOTAL);
        let says = usize::from(total_bytes);
        if says < Self::BYTES || says > bytes.len() {
            return Err(WireError::Length { what: "the IPv4 header", says, have: bytes.len() });
        }
        let field = be16(bytes, at::FRAGMENT);
        if field & !DONT_FRAGMENT != 0 {
            return Err(WireError::Fragment { field });
        }
        if bytes[at::PROTOCOL] != UDP {
            return Err(WireError::NotUdp { protocol: bytes[at::PROTOCOL] });
        }
        let header = Self {
            tos: bytes[at::TOS],
            total_bytes,
            identification: be16(bytes, at::IDENTIFICATION),
            dont_fragment: field != 0,
            ttl: bytes[at::TTL],
            source: array(bytes, at::SOURCE),
            destination: array(bytes, at::DESTINATION),
        };
        let (found, computed) = (be16(bytes, at::CHECKSUM), be16(&header.emit(), at::CHECKSUM));
        if found != computed {
            return Err(WireError::Ipv4Checksum { found, computed });
        }
        Ok(header)
    }

    /// The 20 bytes, checksum included.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = self.without_checksum();
        let checksum = checksum(&out);
        put(&mut out, at::CHECKSUM, checksum.to_be_bytes());
        out
    }

    /// The 20 bytes as the ICRC sees them: what routers change is all ones.
    pub(super) fn masked(&self) -> [u8; Self::BYTES] {
        let mut out = self.without_checksum();
        out[at::TOS] = 0xff;
        out[at::TTL] = 0xff;
        put(&mut out, at::CHECKSUM, [0xff; 2]);
        out
    }

    fn without_checksum(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[at::VERSION_WORDS] = 0x45;
        out[at::TOS] = self.tos;
        put(&mut out, at::TOTAL, self.total_bytes.to_be_bytes());
        put(&mut out, at::IDENTIFICATION, self.identification.to_be_bytes());
        put(&mut out, at::FRAGMENT, if self.dont_fragment { DONT_FRAGMENT } else { 0 }.to_be_bytes());
        out[at::TTL] = self.ttl;
        out[at::PROTOCOL] = UDP;
        put(&mut out, at::SOURCE, self.source);
        put(&mut out, at::DESTINATION, self.destination);
        out
    }
}

/// The Internet checksum (RFC 1071) of a header whose checksum field is 0.
fn checksum(header: &[u8; Ipv4::BYTES]) -> u16 {
    let sum: u32 = (0..Ipv4::BYTES).step_by(2).map(|at| u32::from(be16(header, at))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rxe-rc.pcap`, packet 1.
    const GOLDEN: [u8; 20] = [
        0x45, 0x00, 0x00, 0x34, 0x4a, 0x5c, 0x40, 0x00, 0x40, 0x11, 0xdc, 0x48, 0x0a, 0x09, 0x00, 0x02, 0x0a,
        0x09, 0x00, 0x01,
    ];
    const HEADER: Ipv4 = Ipv4 {
        tos: 0,
        total_bytes: 52,
        identification: 0x4a5c,
        dont_fragment: true,
        ttl: 64,
        source: [10, 9, 0, 2],
        destination: [10, 9, 0, 1],
    };

    fn packet() -> [u8; 52] {
        let mut packet = [0; 52];
        packet[..20].copy_from_slice(&GOLDEN);
        packet
    }

    #[test]
    fn golden_bytes_are_read_and_written() {
        assert_eq!(Ipv4::parse(&packet()), Ok(HEADER));
        assert_eq!(HEADER.emit(), GOLDEN);
        let other = Ipv4 { tos: 0x6a, dont_fragment: false, ttl: 1, identification: 0xffff, ..HEADER };
        let mut padded = [0; 60];
        padded[..20].copy_from_slice(&other.emit());
        assert_eq!(Ipv4::parse(&padded), Ok(other), "Ethernet's padding is let through");
    }

    #[test]
    fn each_wrong_header_has_its_error() {
        for (name, at, value, error) in [
            ("version", 0, 0x65, WireError::IpVersion { version: 6 }),
            ("options", 0, 0x46, WireError::Ipv4HeaderWords { words: 6 }),
            ("total length", 3, 53, WireError::Length { what: "the IPv4 header", says: 53, have: 52 }),
            ("short total", 3, 19, WireError::Length { what: "the IPv4 header", says: 19, have: 52 }),
            ("more fragments", 6, 0x20, WireError::Fragment { field: 0x2000 }),
            ("offset", 7, 0x01, WireError::Fragment { field: 0x4001 }),
            ("protocol", 9, 6, WireError::NotUdp { protocol: 6 }),
            ("checksum", 11, 0x49, WireError::Ipv4Checksum { found: 0xdc49, computed: 0xdc48 }),
        ] {
            let mut packet = packet();
            packet[at] = value;
            assert_eq!(Ipv4::parse(&packet), Err(error), "{name}");
        }
        let short = WireError::Truncated { what: "an IPv4 header", need: 20, have: 19 };
        assert_eq!(Ipv4::parse(&GOLDEN[..19]), Err(short));
    }

    #[test]
    fn the_checksum_carries_twice() {
        // 0xffff nine times and 0x0001 once sum to 9 * 0xffff + 1: folding once leaves a carry.
        let mut header = [0xff; 20];
        (header[10], header[11]) = (0, 1);
        assert_eq!(checksum(&header), 0xfffe);
    }
}
