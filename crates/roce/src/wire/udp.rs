//! UDP header of RoCEv2.
//!
//! RFC 768; Annex A17 (RoCEv2): destination port 4791, checksum 0 allowed since the ICRC covers the packet.
//! The source port is entropy for routers that spread flows over paths. The sender chooses it from 0xc000 up
//! (dynamic range, RFC 6335), the same for all packets of a flow, or they overtake each other.

use super::bytes::header;

/// Destination port of RoCEv2, as registered.
pub const ROCE_PORT: u16 = 4791;
/// First port of the dynamic range, and what the source port lacks besides 14 bits of entropy.
pub const DYNAMIC_PORTS: u16 = 0xc000;

header! {
    /// A UDP header. Reading it checks its length alone.
    Udp("a UDP header", 8) {
        source_port: u16 = 0,
        destination_port: u16 = 2,
        /// Bytes from this header on.
        bytes: u16 = 4,
        /// Checksum as it came, 0 for none. Unchecked: the ICRC covers its bytes, and no router looks inside.
        checksum: u16 = 6,
    }
}

impl Udp {
    /// A header to [`ROCE_PORT`] without a checksum; `bytes` from this header on.
    #[inline]
    pub const fn new(source_port: u16, bytes: u16) -> Self {
        Self { source_port, destination_port: ROCE_PORT, bytes, checksum: 0 }
    }

    /// The 8 bytes as the ICRC sees them: the checksum is all ones.
    pub(super) fn masked(&self) -> [u8; Self::BYTES] {
        Self { checksum: 0xffff, ..*self }.emit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rxe-rc.pcap`, packet 1.
    const GOLDEN: [u8; 8] = [0xc1, 0x21, 0x12, 0xb7, 0x00, 0x20, 0x00, 0x00];

    #[test]
    fn golden_bytes_are_read_and_written() {
        let udp = Udp::new(0xc121, 32);
        assert_eq!(Udp::parse(&GOLDEN), Ok(udp));
        assert_eq!(udp.emit(), GOLDEN);
        assert_eq!(Udp { checksum: 0xabcd, ..udp }.emit()[6..], [0xab, 0xcd]);
    }
}
