//! IP socket addresses as the kernel has them: `struct sockaddr_in` (family, port, address) of ip(7), and
//! `sockaddr_in6` (family, port, flow, address, scope) of ipv6(7).

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::sys::socket::SockaddrStorage;

/// Bytes of the longer struct.
pub const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// The struct, with zeros behind it, and its length.
pub fn to_bytes(address: &SocketAddr) -> ([u8; ADDRESS_BYTES], usize) {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, len) = match address {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(v6) => {
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    (bytes, len)
}

/// `None`: another family.
pub fn of_storage(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))
}

/// The address at the beginning of these bytes; `None`: another family, or too few.
pub fn from_bytes(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match i32::from(u16::from_ne_bytes(*bytes.first_chunk()?)) {
        libc::AF_INET => Some(SocketAddr::from((*bytes[4..].first_chunk::<4>()?, port))),
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?);
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
        _ => None,
    }
}
