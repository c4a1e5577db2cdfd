//! IPv6 header as RoCEv2 uses it: 40 bytes straight in front of UDP; and GIDs, which are IPv6 addresses.
//!
//! RFC 8200; Annex A17 (RoCEv2): a GID is the port's IPv6 address, or its IPv4 address mapped into IPv6 (RFC 4291
//! §2.5.5.2, `::ffff:a.b.c.d`).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::WireError;
use super::bytes::{Field, array, be16, be32, check, put};
use super::ipv4::UDP;

mod at {
    pub const VERSION_CLASS_FLOW: usize = 0;
    pub const PAYLOAD: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SOURCE: usize = 8;
    pub const DESTINATION: usize = 24;
}

/// Address of a RoCE port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

    /// The GID of a port with this IPv4 address.
    pub fn from_ipv4(address: [u8; 4]) -> Self {
        let mut gid = [0; 16];
        put(&mut gid, 0, Self::MAPPED);
        put(&mut gid, 12, address);
        Self(gid)
    }

    /// The IPv4 address that packets to this GID go to; `None`: they go to the GID itself, over IPv6.
    pub fn ipv4(&self) -> Option<[u8; 4]> {
        self.0.starts_with(&Self::MAPPED).then(|| array(&self.0, 12))
    }
}

impl Field for Gid {
    fn read(bytes: &[u8], at: usize) -> Self {
        Self(array(bytes, at))
    }

    fn write(&self, bytes: &mut [u8], at: usize) {
        put(bytes, at, self.0);
    }
}

/// The GID that an address stands for (Annex A17).
pub fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid::from_ipv4(v4.octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

/// The IP address that a GID stands for (Annex A17), the reverse of [`gid_of`]; none for an address that is no place, and for one that
/// is good on one link only: which one is not said, so that packets cannot go there.
pub fn ip_of(gid: Gid) -> Option<IpAddr> {
    match (gid.ipv4().map(Ipv4Addr::from), Ipv6Addr::from(gid.0)) {
        (Some(v4), _) => Some(IpAddr::V4(v4)).filter(|v4| !v4.is_unspecified()),
        (None, v6) if v6.is_unicast_link_local() || v6.is_unspecified() => None,
        (None, v6) => Some(IpAddr::V6(v6)),
    }
}

/// An IPv6 header in front of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipv6 {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes behind this header.
    pub payload_bytes: u16,
    pub hop_limit: u8,
    pub source: Gid,
    pub destination: Gid,
}

impl Ipv6 {
    pub const BYTES: usize = 40;

    /// Reads 40 bytes. `bytes` is all of the packet that there is: what lies behind the payload length is not part of it.
    /// Errors: too short, another version, anything but UDP next.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        check("an IPv6 header", bytes, Self::BYTES)?;
        let first = be32(bytes, at::VERSION_CLASS_FLOW);
        let version = (first >> 28) as u8;
        if version != 6 {
            return Err(WireError::IpVersion { version });
        }
        let payload_bytes = be16(bytes, at::PAYLOAD);
        let (says, have) = (usize::from(payload_bytes), bytes.len() - Self::BYTES);
        if says > have {
            return Err(WireError::Length { what: "the IPv6 header", says, have });
        }
        if bytes[at::NEXT_HEADER] != UDP {
            return Err(WireError::NotUdp { protocol: bytes[at::NEXT_HEADER] });
        }
        Ok(Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_bytes,
            hop_limit: bytes[at::HOP_LIMIT],
            source: Gid(array(bytes, at::SOURCE)),
            destination: Gid(array(bytes, at::DESTINATION)),
        })
    }

    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put(&mut out, at::VERSION_CLASS_FLOW, first.to_be_bytes());
        put(&mut out, at::PAYLOAD, self.payload_bytes.to_be_bytes());
        out[at::NEXT_HEADER] = UDP;
        out[at::HOP_LIMIT] = self.hop_limit;
        put(&mut out, at::SOURCE, self.source.0);
        put(&mut out, at::DESTINATION, self.destination.0);
        out
    }

    /// The 40 bytes as the ICRC sees them: what routers change is all ones.
    pub(super) fn masked(&self) -> [u8; Self::BYTES] {
        Self { traffic_class: 0xff, flow_label: 0xf_ffff, hop_limit: 0xff, ..*self }.emit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rxe-rc-ipv6.pcap`, packet 1: fd00:9::2 to fd00:9::1, 32 bytes behind the header.
    const GOLDEN: [u8; 40] = [
        0x60, 0x00, 0x00, 0x00, 0x00, 0x20, 0x11, 0x40, 0xfd, 0x00, 0x00, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0x02, 0xfd, 0x00, 0x00, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01,
    ];

    fn header() -> Ipv6 {
        let [source, destination] = [2, 1].map(|last| {
            let mut gid = [0; 16];
            gid[..4].copy_from_slice(&[0xfd, 0, 0, 9]);
            gid[15] = last;
            Gid(gid)
        });
        Ipv6 { traffic_class: 0, flow_label: 0, payload_bytes: 32, hop_limit: 64, source, destination }
    }

    #[test]
    fn golden_bytes_are_read_and_written() {
        let mut packet = [0; 72];
        packet[..40].copy_from_slice(&GOLDEN);
        assert_eq!(Ipv6::parse(&packet), Ok(header()));
        assert_eq!(header().emit(), GOLDEN);
        let other = Ipv6 { traffic_class: 0xa5, flow_label: 0xf_1234, hop_limit: 1, ..header() };
        packet[..40].copy_from_slice(&other.emit());
        assert_eq!(Ipv6::parse(&packet), Ok(other));
    }

    #[test]
    fn each_wrong_header_has_its_error() {
        let mut packet = [0; 72];
        packet[..40].copy_from_slice(&GOLDEN);
        for (name, at, value, error) in [
            ("version", 0, 0x45, WireError::IpVersion { version: 4 }),
            ("length", 5, 33, WireError::Length { what: "the IPv6 header", says: 33, have: 32 }),
            ("next header", 6, 44, WireError::NotUdp { protocol: 44 }),
        ] {
            let mut packet = packet;
            packet[at] = value;
            assert_eq!(Ipv6::parse(&packet), Err(error), "{name}");
        }
        let short = WireError::Truncated { what: "an IPv6 header", need: 40, have: 39 };
        assert_eq!(Ipv6::parse(&GOLDEN[..39]), Err(short));
    }

    #[test]
    fn a_gid_is_an_ipv6_address_or_a_mapped_ipv4_address() {
        let gid = Gid::from_ipv4([10, 9, 0, 2]);
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 2]);
        assert_eq!(gid.ipv4(), Some([10, 9, 0, 2]));
        assert_eq!(header().source.ipv4(), None);
        assert_eq!(Gid::default().ipv4(), None);
    }

    #[test]
    fn an_address_and_its_gid_are_one_but_for_those_where_no_packet_can_go() {
        for (address, gid, place) in [
            ("10.1.2.3", "::ffff:10.1.2.3", true),
            ("2001:db8::7", "2001:db8::7", true),
            ("::1", "::1", true),
            // Of a link that nobody names.
            ("fe80::1", "fe80::1", false),
            ("febf::1", "febf::1", false),
            ("fec0::1", "fec0::1", true),
            ("0.0.0.0", "::ffff:0.0.0.0", false),
            ("::", "::", false),
            ("169.254.0.1", "::ffff:169.254.0.1", true),
        ] {
            let (ip, wanted): (IpAddr, Ipv6Addr) = (address.parse().unwrap(), gid.parse().unwrap());
            assert_eq!(gid_of(ip), Gid(wanted.octets()), "{address}");
            assert_eq!(ip_of(gid_of(ip)), place.then_some(ip), "{address}");
        }
    }
}
