//! Socket addresses as programs pass them, and IP addresses as GIDs, which they are on RoCE.
//!
//! `struct sockaddr_ib` of `rdma/ib.h`; those of IP are in [`crate::os::address`].

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use roce::wire::{Gid, gid_of};

use crate::os::address::{ADDRESS_BYTES, from_bytes, to_bytes};

const AF_IB: u16 = 27;
/// Bytes of a `struct sockaddr_storage`.
pub const STORAGE_BYTES: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Address {
    #[default]
    None,
    Ip(SocketAddr),
    /// InfiniBand's own: kept, never resolved. librdmacm binds one to see if a kernel has the newer commands.
    Ib([u8; 48]),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without its scope.
            Address::Ip(SocketAddr::V6(v6)) => write!(f, "[{}]:{}", v6.ip(), v6.port()),
            Address::Ip(v4) => v4.fmt(f),
            Address::None | Address::Ib(_) => f.write_str("no IP address"),
        }
    }
}

impl Address {
    /// Every IPv4 address, and no port.
    pub const ANY_V4: Address = Address::Ip(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)));

    /// Reads the start of `bytes`; `None` for a family that is not known here, or too few bytes.
    pub fn read(bytes: &[u8]) -> Option<Address> {
        if bytes.starts_with(&AF_IB.to_ne_bytes()) {
            return bytes.first_chunk().copied().map(Address::Ib);
        }
        from_bytes(bytes).map(Address::Ip)
    }

    /// From a GID: IPv4 when it is a mapped one.
    pub fn of_gid(gid: Gid, port: u16) -> Address {
        Address::Ip(gid.ipv4().map_or_else(|| (gid.0, port).into(), |ip| (ip, port).into()))
    }

    /// Bytes of the C struct; 0 when there is none.
    pub fn size(&self) -> usize {
        match self {
            Address::None => 0,
            Address::Ip(address) => to_bytes(address).1,
            Address::Ib(bytes) => bytes.len(),
        }
    }

    /// The C struct, with zeroes behind it.
    pub fn write(&self) -> [u8; STORAGE_BYTES] {
        let mut out = [0; STORAGE_BYTES];
        match self {
            Address::None => {}
            Address::Ip(address) => out[..ADDRESS_BYTES].copy_from_slice(&to_bytes(address).0),
            Address::Ib(bytes) => out[..48].copy_from_slice(bytes),
        }
        out
    }

    /// A `struct sockaddr_ib` with this GID and service id, of the default partition.
    pub fn ib(gid: Gid, service: u64) -> Address {
        let mut out = [0; 48];
        out[..2].copy_from_slice(&AF_IB.to_ne_bytes());
        out[2..4].copy_from_slice(&0xffff_u16.to_be_bytes());
        out[8..24].copy_from_slice(&gid.0);
        out[24..32].copy_from_slice(&service.to_be_bytes());
        out[32..40].copy_from_slice(&u64::MAX.to_be_bytes());
        Address::Ib(out)
    }

    pub fn port(&self) -> u16 {
        if let Address::Ip(address) = self { address.port() } else { 0 }
    }

    /// The same with another port.
    pub fn with_port(mut self, port: u16) -> Address {
        if let Address::Ip(address) = &mut self {
            address.set_port(port);
        }
        self
    }

    pub fn is_v4(&self) -> bool {
        matches!(self, Address::Ip(SocketAddr::V4(_)))
    }

    /// Whether it stands for every address.
    pub fn is_any(&self) -> bool {
        match self {
            Address::None => true,
            Address::Ip(address) => address.ip().is_unspecified(),
            Address::Ib(bytes) => bytes[8..24] == [0; 16],
        }
    }

    /// The GID that it is on RoCE, if it is one address. InfiniBand's is another one: `Ids::gid_at`.
    pub fn gid(&self) -> Option<Gid> {
        match self {
            Address::Ip(address) if !self.is_any() => Some(gid_of(address.ip())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_as_the_c_structs() {
        let mut v4 = [0; 16];
        v4[..8].copy_from_slice(&[2, 0, 0x1c, 0x06, 10, 9, 0, 1]);
        let read = Address::read(&v4).unwrap();
        assert_eq!(read, Address::Ip("10.9.0.1:7174".parse().unwrap()));
        assert_eq!((read.size(), &read.write()[..16]), (16, &v4[..]));
        let mut v6 = [0; 28];
        v6[..2].copy_from_slice(&[10, 0]);
        v6[2..4].copy_from_slice(&[0, 80]);
        v6[8] = 0xfe;
        v6[24] = 3;
        let read = Address::read(&v6).unwrap();
        assert_eq!((read.port(), read.size(), read.gid().unwrap().0[0]), (80, 28, 0xfe));
        assert_eq!(read.write()[..28], v6);
        let ib = Address::read(&Address::ib(Gid([0; 16]), 0x0106_0000).write()).unwrap();
        assert_eq!((ib.size(), ib.is_any(), ib.gid()), (48, true, None));
    }

    #[test]
    fn too_few_bytes_and_unknown_families_are_none() {
        for bytes in
            [&[][..], &[2], &[2, 0, 0, 1, 10, 9, 0], &[10, 0, 0, 1, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0]]
        {
            assert_eq!(Address::read(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn an_address_is_a_gid_and_the_wildcard_is_none() {
        let one = Address::Ip("10.9.0.1:0".parse().unwrap());
        assert_eq!(one.gid(), Some(Gid::from_ipv4([10, 9, 0, 1])));
        assert_eq!(Address::of_gid(one.gid().unwrap(), 7), one.with_port(7));
        assert_eq!(Address::ANY_V4.with_port(7).gid(), None);
        assert!(Address::None.is_any());
    }
}
