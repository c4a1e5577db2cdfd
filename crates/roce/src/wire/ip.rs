//! Either IP header: what RoCEv2 needs of both, in one type.

use super::{Gid, Ipv4, Ipv6};

/// The IP header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpHeader {
    V4(Ipv4),
    V6(Ipv6),
}

impl IpHeader {
    /// The header between two ports, for a datagram of `udp_bytes` (UDP header included); `None` unless both
    /// GIDs are of one family. The caller sets what the network or one host decides: here traffic class and
    /// flow label are 0, the hop limit 64, and over IPv4 the identification is 0 with DF set.
    pub fn between(source: Gid, destination: Gid, udp_bytes: u16) -> Option<Self> {
        match (source.ipv4(), destination.ipv4()) {
            (Some(source), Some(destination)) => {
                let total_bytes = udp_bytes.checked_add(Ipv4::BYTES as u16)?;
                Some(Self::V4(Ipv4::of_udp(source, destination, total_bytes)))
            }
            (None, None) => Some(Self::V6(Ipv6::of_udp(source, destination, udp_bytes))),
            _ => None,
        }
    }

    /// Appends the header, an IPv4 header with its checksum.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::V4(header) => out.extend(header.with_checksum().emit()),
            Self::V6(header) => out.extend(header.emit()),
        }
    }
}
