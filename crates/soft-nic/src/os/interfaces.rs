//! The network interfaces of this host, as a NIC's ports need them: names, addresses, MTU.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use super::address::of_storage;
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
    let found = getifaddrs()?.filter_map(|element| {
        let address = of_storage(&element.address?)?.ip();
        let name = element.interface_name;
        let (index, mtu) = (if_nametoindex(&*name).unwrap_or(0), mtu(&name).unwrap_or(1500));
        Some(Interface { index, address, mtu, up: element.flags.contains(InterfaceFlags::IFF_UP), name })
    });
    Ok(found.collect())
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
