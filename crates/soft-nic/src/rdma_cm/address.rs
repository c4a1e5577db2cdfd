//! Socket addresses as programs pass them, and IP addresses as GIDs, which they are on RoCE.
//!
//! `struct sockaddr_in` and `sockaddr_in6` of ip(7) and ipv6(7), `struct sockaddr_ib` of `rdma/ib.h`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use roce::wire::Gid;

const AF_IB: u16 = 27;
/// Bytes of a `struct sockaddr_storage`.
pub const STORAGE_BYTES: usize = 128;

/// An address with its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Address {
    #[default]
    None,
    /// IPv4.
    V4 { ip: [u8; 4], port: u16 },
    /// IPv6.
    V6 {
        ip: [u8; 16],
        port: u16,
        /// Interface, for link-local ones.
        scope: u32,
    },
    /// InfiniBand's own: kept, never resolved. librdmacm binds one to learn whether a kernel knows the newer commands.
    Ib([u8; 48]),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Address::V4 { ip, port } => write!(f, "{}:{port}", Ipv4Addr::from(ip)),
            Address::V6 { ip, port, .. } => write!(f, "[{}]:{port}", Ipv6Addr::from(ip)),
            Address::None | Address::Ib(_) => f.write_str("no IP address"),
        }
    }
}

impl Address {
    /// Reads what is at the beginning of `bytes`; `None` for a family that is not known here, or too few bytes.
    pub fn read(bytes: &[u8]) -> Option<Address> {
        let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        Some(match i32::from(family) {
            libc::AF_INET => Address::V4 { ip: bytes.get(4..8)?.try_into().ok()?, port },
            libc::AF_INET6 => Address::V6 {
                ip: bytes.get(8..24)?.try_into().ok()?,
                port,
                scope: u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?),
            },
            _ if family == AF_IB => Address::Ib(bytes.get(..48)?.try_into().ok()?),
            _ => return None,
        })
    }

    /// From a GID: IPv4 when it is a mapped one.
    pub fn of_gid(gid: Gid, port: u16) -> Address {
        match gid.ipv4() {
            Some(ip) => Address::V4 { ip, port },
            None => Address::V6 { ip: gid.0, port, scope: 0 },
        }
    }

    /// Bytes of the C struct; 0 when there is none.
    pub fn size(&self) -> usize {
        match self {
            Address::None => 0,
            Address::V4 { .. } => 16,
            Address::V6 { .. } => 28,
            Address::Ib(_) => 48,
        }
    }

    /// The C struct, with zeroes behind it.
    pub fn write(&self) -> [u8; STORAGE_BYTES] {
        let mut out = [0; STORAGE_BYTES];
        match self {
            Address::None => {}
            Address::V4 { ip, port } => {
                out[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                out[2..4].copy_from_slice(&port.to_be_bytes());
                out[4..8].copy_from_slice(ip);
            }
            Address::V6 { ip, port, scope } => {
                out[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                out[2..4].copy_from_slice(&port.to_be_bytes());
                out[8..24].copy_from_slice(ip);
                out[24..28].copy_from_slice(&scope.to_ne_bytes());
            }
            Address::Ib(bytes) => out[..48].copy_from_slice(bytes),
        }
        out
    }

    /// A `struct sockaddr_ib` with this GID, P_Key and service id.
    pub fn ib(gid: Gid, service: u64) -> [u8; STORAGE_BYTES] {
        let mut out = [0; STORAGE_BYTES];
        out[..2].copy_from_slice(&AF_IB.to_ne_bytes());
        out[2..4].copy_from_slice(&0xffff_u16.to_be_bytes());
        out[8..24].copy_from_slice(&gid.0);
        out[24..32].copy_from_slice(&service.to_be_bytes());
        out[32..40].copy_from_slice(&u64::MAX.to_be_bytes());
        out
    }

    /// Bytes of what [`Address::ib`] writes.
    pub const IB_BYTES: u16 = 48;

    pub fn port(&self) -> u16 {
        match self {
            Address::V4 { port, .. } | Address::V6 { port, .. } => *port,
            Address::None | Address::Ib(_) => 0,
        }
    }

    /// The same with another port.
    pub fn with_port(self, port: u16) -> Address {
        match self {
            Address::V4 { ip, .. } => Address::V4 { ip, port },
            Address::V6 { ip, scope, .. } => Address::V6 { ip, port, scope },
            other => other,
        }
    }

    /// Whether it stands for every address.
    pub fn is_any(&self) -> bool {
        match self {
            Address::None => true,
            Address::V4 { ip, .. } => *ip == [0; 4],
            Address::V6 { ip, .. } => *ip == [0; 16],
            Address::Ib(bytes) => bytes[8..24] == [0; 16],
        }
    }

    /// The GID that it is on RoCE, if it is one address. InfiniBand's is another one: `Ids::gid_at`.
    pub fn gid(&self) -> Option<Gid> {
        match self {
            Address::V4 { ip, .. } if !self.is_any() => Some(Gid::from_ipv4(*ip)),
            Address::V6 { ip, .. } if !self.is_any() => Some(Gid(*ip)),
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
        assert_eq!(read, Address::V4 { ip: [10, 9, 0, 1], port: 7174 });
        assert_eq!((read.size(), &read.write()[..16]), (16, &v4[..]));
        let mut v6 = [0; 28];
        v6[..2].copy_from_slice(&[10, 0]);
        v6[2..4].copy_from_slice(&[0, 80]);
        v6[8] = 0xfe;
        v6[24] = 3;
        let read = Address::read(&v6).unwrap();
        assert_eq!((read.port(), read.size(), read.gid().unwrap().0[0]), (80, 28, 0xfe));
        assert_eq!(read.write()[..28], v6);
        let ib = Address::read(&Address::ib(Gid([0; 16]), 0x0106_0000)).unwrap();
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
        let one = Address::V4 { ip: [10, 9, 0, 1], port: 0 };
        assert_eq!(one.gid(), Some(Gid::from_ipv4([10, 9, 0, 1])));
        assert_eq!(Address::of_gid(one.gid().unwrap(), 7), one.with_port(7));
        assert_eq!(Address::V4 { ip: [0; 4], port: 7 }.gid(), None);
        assert!(Address::None.is_any());
    }
}
