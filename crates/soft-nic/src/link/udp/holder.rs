//! The process that holds the UDP port of an address, as far as the kernel tells: `/proc/net/udp` and `/proc/net/udp6` (proc_net(5)) name the socket
//! and its user, the descriptors of processes name the process. The sockets of the kernel itself, soft-RoCE's (`rdma_rxe`) for one, are
//! no process's. Only this network namespace is looked at, and only processes whose descriptors this user may see.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::link::fabric::{descriptors, descriptors_of};

/// The process that receives what is sent to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub inode: u64,
    pub user: u32,
}

impl Holder {
    /// The holder of this port, at this address or at all; `None`: no socket has it, or the kernel does not say.
    pub fn of(address: IpAddr, port: u16) -> Option<Holder> {
        // By the main thread's namespace, which is that of the NIC's thread as well.
        let table = |name| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
        find(&table("udp"), &table("udp6"), address, port)
    }

    /// Whether a process has the socket. Errors: its descriptors cannot be seen.
    pub fn is_of(&self, pid: u32) -> io::Result<bool> {
        let wanted = self.link_target();
        Ok(descriptors_of(pid)?.any(|(.., target)| target == wanted))
    }

    /// The process that has the socket, of those that can be seen.
    pub fn process(&self) -> Option<u32> {
        let wanted = self.link_target();
        descriptors().find(|(.., target)| *target == wanted).map(|(pid, ..)| pid)
    }

    /// What `/proc` says of a descriptor of the socket.
    fn link_target(&self) -> PathBuf {
        format!("socket:[{}]", self.inode).into()
    }
}

/// Looks the port up in the texts of both tables. A socket of every IPv6 address may take IPv4's packets too.
fn find(udp: &str, udp6: &str, address: IpAddr, port: u16) -> Option<Holder> {
    let of_family = |(ip, ..): &(IpAddr, u16, Holder)| address.is_ipv4() || ip.is_ipv6();
    let of_both = udp.lines().chain(udp6.lines()).filter_map(entry).filter(of_family);
    let is_its = |ip: IpAddr| ip.is_unspecified() || ip.to_canonical() == address.to_canonical();
    let matching = of_both.filter(|(ip, at, _)| *at == port && is_its(*ip));
    // Of two the one that names the address gets the packets.
    let (_, _, holder) = matching.min_by_key(|(ip, ..)| ip.is_unspecified())?;
    Some(holder)
}

/// Local address, port and socket of a line; `None` for the heading.
fn entry(line: &str) -> Option<(IpAddr, u16, Holder)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (ip, port) = fields.get(1)?.split_once(':')?;
    let holder = Holder { user: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()? };
    Some((ip_of(ip)?, u16::from_str_radix(port, 16).ok()?, holder))
}

/// One word, or four: what the kernel holds in network order, printed with the bytes of this machine's order.
fn ip_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let octets = [word(0)?, word(1)?, word(2)?, word(3)?];
            Some(IpAddr::from(<[u8; 16]>::try_from(octets.as_flattened()).ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    /// As a kernel prints them, 127.0.0.1 and every address; 4791 is 12B7.
    const UDP: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  163: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0
  164: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 0
";
    const UDP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  163: B80D0120000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     7        0 4713 2 0000000000000000 0
  165: 00000000000000000000000000000000:12B9 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4714 2 0000000000000000 0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_port_s_holder_is_read_as_the_kernel_prints_it() {
        for (address, port, holder) in [
            ("127.0.0.1", 4791, Some((4711, 1000))),
            ("127.0.0.2", 4791, None),
            // Of every address, of one family or of both.
            ("127.0.0.2", 4792, Some((4712, 0))),
            ("::1", 4792, None),
            ("::1", 4793, Some((4714, 0))),
            ("127.0.0.1", 4793, Some((4714, 0))),
            ("2001:db8::1", 4791, Some((4713, 7))),
            ("2001:db8::2", 4791, None),
        ] {
            let found = find(UDP, UDP6, address.parse().unwrap(), port);
            assert_eq!(found.map(|holder| (holder.inode, holder.user)), holder, "{address} {port}");
        }
        for nonsense in
            ["", "a b c d e f g h i j", "1: 0100007F:12B7 0 0 0 0 0 x 0 1", "1: 01:12B7 0 0 0 0 0 0 0 1"]
        {
            assert_eq!(find(nonsense, nonsense, [127, 0, 0, 1].into(), 4791), None, "{nonsense}");
        }
    }

    #[test]
    fn a_socket_of_this_process_is_found_by_its_address_and_port() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let holder = Holder::of(at.ip(), at.port()).expect("it is in the table");
        assert!(holder.is_of(std::process::id()).unwrap());
        assert!(holder.process().is_some());
        // Process 1 cannot have it; whether its descriptors can be seen is another matter.
        assert!(!holder.is_of(1).unwrap_or(false));
        assert!(holder.is_of(u32::MAX).is_err());
    }
}
