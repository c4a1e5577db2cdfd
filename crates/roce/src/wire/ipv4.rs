//! IPv4 header as RoCEv2 uses it: 20 bytes, no options, never a fragment.
//!
//! RFC 791; Annex A17 (RoCEv2): no options, DF set. The ICRC covers identification and flags, so a sender
//! must know both. Linux sends identification 0 with DF from an unconnected UDP socket, otherwise another.

use super::bytes::{be16, header};

/// Version 4, and 5 words of 4 bytes.
pub const VERSION_WORDS: u8 = 0x45;
/// DF, of the flags.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// IP protocol of UDP.
pub const UDP: u8 = 17;
/// Hops that a packet may make.
pub(super) const HOPS: u8 = 64;

header! {
    /// An IPv4 header in front of UDP. Reading it checks its length alone.
    Ipv4("an IPv4 header", 20) {
        /// Version, and length of this header in words of 4 bytes: [`VERSION_WORDS`].
        version_words: u8 = 0,
        tos: u8 = 1,
        /// Bytes of the packet from this header on.
        total_bytes: u16 = 2,
        identification: u16 = 4,
        /// Flags and fragment offset: [`DONT_FRAGMENT`] or nothing.
        fragment: u16 = 6,
        ttl: u8 = 8,
        /// Protocol: [`UDP`].
        protocol: u8 = 9,
        checksum: u16 = 10,
        /// Source address.
        source: [u8; 4] = 12,
        /// Destination address.
        destination: [u8; 4] = 16,
    }
}

impl Ipv4 {
    /// The header in front of UDP: DF set, 64 hops, identification 0; `total_bytes` from this header on.
    pub fn of_udp(source: [u8; 4], destination: [u8; 4], total_bytes: u16) -> Self {
        Self {
            version_words: VERSION_WORDS,
            total_bytes,
            fragment: DONT_FRAGMENT,
            ttl: HOPS,
            protocol: UDP,
            source,
            destination,
            ..Self::default()
        }
    }

    /// The header with its checksum, the Internet checksum (RFC 1071).
    #[must_use]
    pub fn with_checksum(self) -> Self {
        let bytes = Self { checksum: 0, ..self }.emit();
        let sum: u32 = (0..Self::BYTES).step_by(2).map(|at| u32::from(be16(&bytes, at))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        Self { checksum: !((folded & 0xffff) + (folded >> 16)) as u16, ..self }
    }

    /// The 20 bytes as the ICRC sees them: what routers change is all ones.
    pub(super) fn masked(&self) -> [u8; Self::BYTES] {
        Self { tos: 0xff, ttl: 0xff, checksum: 0xffff, ..*self }.emit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rxe-rc.pcap`, packet 1.
    const GOLDEN: [u8; 20] = [
        0x45, 0x00, 0x00, 0x34, 0x4a, 0x5c, 0x40, 0x00, 0x40, 0x11, 0xdc, 0x48, 0x0a, 0x09, 0x00, 0x02, 0x0a,
        0x09, 0x00, 0x01,
    ];

    #[test]
    fn golden_bytes_are_read_and_written() {
        let header = Ipv4 {
            version_words: VERSION_WORDS,
            tos: 0,
            total_bytes: 52,
            identification: 0x4a5c,
            fragment: DONT_FRAGMENT,
            ttl: 64,
            protocol: UDP,
            checksum: 0xdc48,
            source: [10, 9, 0, 2],
            destination: [10, 9, 0, 1],
        };
        assert_eq!(Ipv4::parse(&GOLDEN), Ok(header));
        assert_eq!(Ipv4 { checksum: 7, ..header }.with_checksum().emit(), GOLDEN);
    }

    #[test]
    fn the_checksum_carries_twice() {
        // 0xffff eight times (without the checksum) and 0x0001 sum to 0x7_fff9: folding once leaves a carry.
        let mut header = [0xff; 20];
        (header[2], header[3]) = (0, 1);
        assert_eq!(Ipv4::parse(&header).unwrap().with_checksum().checksum, 0xfffe);
    }
}
