//! Either IP header: what RoCEv2 needs of both, in one type.

use super::{Gid, Ipv4, Ipv6, WireError};

/// The IP header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpHeader {
    /// IPv4.
    V4(Ipv4),
    /// IPv6.
    V6(Ipv6),
}

impl IpHeader {
    /// The longer of both.
    pub const MAX_BYTES: usize = Ipv6::BYTES;

    /// Reads the header that the first nibble names. Errors: those of [`Ipv4::parse`] and [`Ipv6::parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        match bytes.first().map(|first| first >> 4) {
            None => Err(WireError::Truncated { what: "an IP header", need: Ipv4::BYTES, have: 0 }),
            Some(4) => Ipv4::parse(bytes).map(Self::V4),
            Some(6) => Ipv6::parse(bytes).map(Self::V6),
            Some(version) => Err(WireError::IpVersion { version }),
        }
    }

    /// The header between two ports, for a datagram of `udp_bytes` (UDP header included). Both GIDs have to be of one
    /// family, `None` otherwise. What the network may change, and what one host alone decides, is set by the caller: here
    /// traffic class and flow label are 0, the hop limit 64, and over IPv4 the identification is 0 with DF set.
    pub fn between(source: Gid, destination: Gid, udp_bytes: u16) -> Option<Self> {
        const HOPS: u8 = 64;
        match (source.ipv4(), destination.ipv4()) {
            (Some(source), Some(destination)) => Some(Self::V4(Ipv4 {
                tos: 0,
                total_bytes: udp_bytes.checked_add(Ipv4::BYTES as u16)?,
                identification: 0,
                dont_fragment: true,
                ttl: HOPS,
                source,
                destination,
            })),
            (None, None) => Some(Self::V6(Ipv6 {
                traffic_class: 0,
                flow_label: 0,
                payload_bytes: udp_bytes,
                hop_limit: HOPS,
                source,
                destination,
            })),
            _ => None,
        }
    }

    #[inline]
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
    pub fn with_payload_bytes(self, bytes: usize) -> Result<Self, WireError> {
        let too_long = WireError::Length { what: "the IP header", says: usize::from(u16::MAX), have: bytes };
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

    /// Writes the header to the front of `out` and says how long it is. Error: `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let need = self.header_bytes();
        let have = out.len();
        let Some(out) = out.get_mut(..need) else {
            return Err(WireError::Truncated { what: "an IP header", need, have });
        };
        match self {
            Self::V4(header) => out.copy_from_slice(&header.emit()),
            Self::V6(header) => out.copy_from_slice(&header.emit()),
        }
        Ok(need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(last: u8) -> Gid {
        Gid([0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
    }

    #[test]
    fn a_header_between_two_ports_is_read_back() {
        let v4 = |last| Gid::from_ipv4([10, 9, 0, last]);
        for (source, destination, header_bytes) in [(v4(2), v4(1), 20), (v6(2), v6(1), 40)] {
            let header = IpHeader::between(source, destination, 32).unwrap();
            assert_eq!((header.source(), header.destination()), (source, destination));
            assert_eq!((header.header_bytes(), header.payload_bytes()), (header_bytes, 32));
            let mut out = [0; 80];
            assert_eq!(header.emit(&mut out), Ok(header_bytes));
            assert_eq!(IpHeader::parse(&out), Ok(header));
            let longer = header.with_payload_bytes(40).unwrap();
            assert_eq!((longer.payload_bytes(), longer.destination()), (40, destination));
            assert!(header.with_payload_bytes(65536).is_err());
            assert!(header.emit(&mut [0; 19]).is_err());
        }
        assert_eq!(IpHeader::between(v4(2), v6(1), 32), None, "two families");
        assert_eq!(IpHeader::between(v4(2), v4(1), u16::MAX), None, "longer than IPv4 can say");
    }

    #[test]
    fn nothing_and_another_version_are_refused() {
        assert!(matches!(IpHeader::parse(&[]), Err(WireError::Truncated { .. })));
        assert_eq!(IpHeader::parse(&[0x54; 60]), Err(WireError::IpVersion { version: 5 }));
    }
}
