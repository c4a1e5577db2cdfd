//! The network interfaces of this host, as a NIC's ports need them: names, addresses, MTU.

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use super::address::from_bytes;
use super::system::{check, new_descriptor};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `eth0`.
    pub name: String,
    pub index: u32,
    pub address: IpAddr,
    /// Largest IP packet, bytes; what the kernel does not say counts as Ethernet's 1500.
    pub mtu: u32,
    pub up: bool,
}

/// Every IPv4 and IPv6 address of this network namespace.
///
/// Errors: what `getifaddrs` says.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` receives a list that `freeifaddrs` below gives back.
    check(i64::from(unsafe { libc::getifaddrs(&raw mut list) }))?;
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is an element of the list, which lives until `freeifaddrs`.
        let element = unsafe { &*at };
        at = element.ifa_next;
        // SAFETY: null, or the address of this element.
        let Some(address) = (unsafe { address_of(element.ifa_addr) }) else { continue };
        // SAFETY: every element has a name, a C string.
        let name = unsafe { CStr::from_ptr(element.ifa_name) };
        // SAFETY: as above.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let Ok(name) = name.to_str() else { continue };
        let up = element.ifa_flags & libc::IFF_UP as u32 != 0;
        found.push(Interface { name: name.to_owned(), index, address, mtu: mtu(name).unwrap_or(1500), up });
    }
    // SAFETY: `list` came from `getifaddrs` and is not used after this.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address whose family says how long it is.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so an address of at least this length.
    let len = match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: an address of this family has this length.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast(), len) };
    from_bytes(bytes).map(|address| address.ip())
}

/// `SIOCGIFMTU`, by raw system calls: the interposer hooks `ioctl`.
fn mtu(name: &str) -> Option<u32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let socket = new_descriptor!(SYS_socket, libc::AF_INET, kind, 0).ok()?;
    // SAFETY: plain old data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    // SAFETY: the request lives through the call.
    check(unsafe { libc::syscall(libc::SYS_ioctl, socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })
        .ok()?;
    // SAFETY: SIOCGIFMTU fills this member.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_there_with_its_address_and_mtu() {
        let all = interfaces().unwrap();
        let loopback = all.iter().find(|i| i.address == IpAddr::from([127, 0, 0, 1])).expect("127.0.0.1");
        let names = std::fs::read_to_string("/proc/net/dev").unwrap();
        assert!(names.contains(&format!("{}:", loopback.name)) && loopback.up && loopback.index > 0);
        assert!((1280..=65_536).contains(&loopback.mtu), "{}", loopback.mtu);
    }
}
