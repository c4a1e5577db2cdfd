//! IPv6 header as RoCEv2 uses it: 40 bytes straight in front of UDP; and GIDs, which are IPv6 addresses.
//!
//! RFC 8200; Annex A17 (RoCEv2): a GID is the port's IPv6 address, or its IPv4 address mapped into IPv6 (RFC
//! 4291 §2.5.5.2, `::ffff:a.b.c.d`).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::bytes::{Field, array, header, put};
use super::ipv4;

/// Version of the header.
pub const VERSION: u8 = 6;

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

/// The IP address of a GID (Annex A17), the reverse of [`gid_of`]. `None` if it is unspecified, or
/// link-local: the link is not known, so packets cannot go there.
pub fn ip_of(gid: Gid) -> Option<IpAddr> {
    match (gid.ipv4().map(Ipv4Addr::from), Ipv6Addr::from(gid.0)) {
        (Some(v4), _) => Some(IpAddr::V4(v4)).filter(|v4| !v4.is_unspecified()),
        (None, v6) if v6.is_unicast_link_local() || v6.is_unspecified() => None,
        (None, v6) => Some(IpAddr::V6(v6)),
    }
}

header! {
    /// An IPv6 header in front of UDP, or a GRH. Reading it checks its length alone.
    Ipv6("an IPv6 header", 40) {
        /// Version: [`VERSION`].
        version: u8 = 0[4, 4],
        /// DSCP and ECN.
        traffic_class: u8 = 0[4, 8],
        /// Flow label, 20 bits.
        flow_label: u32 = 1[0, 20],
        /// Bytes behind this header.
        payload_bytes: u16 = 4,
        /// Protocol of what follows: UDP, or 0x1b in a GRH.
        next_header: u8 = 6,
        hop_limit: u8 = 7,
        source: Gid = 8,
        destination: Gid = 24,
    }
}

impl Ipv6 {
    /// The header in front of UDP: 64 hops; `payload_bytes` behind this header.
    pub fn of_udp(source: Gid, destination: Gid, payload_bytes: u16) -> Self {
        let (version, next_header, hop_limit) = (VERSION, ipv4::UDP, ipv4::HOPS);
        Self { version, payload_bytes, next_header, hop_limit, source, destination, ..Self::default() }
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
        let (payload_bytes, hop_limit) = (32, 64);
        Ipv6 {
            version: VERSION,
            next_header: 17,
            payload_bytes,
            hop_limit,
            source,
            destination,
            ..Ipv6::default()
        }
    }

    #[test]
    fn golden_bytes_are_read_and_written() {
        assert_eq!(Ipv6::parse(&GOLDEN), Ok(header()));
        assert_eq!(header().emit(), GOLDEN);
        let other = Ipv6 { traffic_class: 0xa5, flow_label: 0xf_1234, hop_limit: 1, ..header() };
        assert_eq!(other.emit()[..4], [0x6a, 0x5f, 0x12, 0x34]);
        assert_eq!(Ipv6::parse(&other.emit()), Ok(other));
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
