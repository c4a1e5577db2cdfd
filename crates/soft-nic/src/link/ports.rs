//! Owners of the UDP ports of our addresses: one outside the fabric is reported.
//!
//! The process that owns the port of an address gets every packet for it, and hands on those for other
//! processes of its fabric. It says in the directory that it owns the port. A process of another fabric, a
//! plain socket or the kernel's soft-RoCE (`rdma_rxe`) does not: then no packet arrives here, and no counter
//! moves. `/proc/net/udp` and `/proc/net/udp6` (proc_net(5)) have the user of such a socket.

use std::net::IpAddr;

use super::udp::ROCE_PORT;
use super::{Link, LinkEvent};

/// Time between two looks at the ports that are not ours: as long as a process may take to end, from leaving
/// the fabric to closing its sockets.
const LOOK_NS: u64 = 1_000_000_000;

impl Link {
    /// Reports, once, that a process outside this fabric owns the port of an address.
    pub(super) fn check_foreign_ports(&mut self, now_ns: u64) {
        let Some(wire) = self.wire.as_ref().filter(|_| now_ns >= self.ports_due_ns) else { return };
        self.ports_due_ns = now_ns.saturating_add(LOOK_NS);
        let foreign = wire.foreign_ports();
        let unowned: Vec<IpAddr> = foreign.filter(|address| !self.fabric.has_port_owner(*address)).collect();
        let before = std::mem::take(&mut self.unowned_ports);
        for address in unowned {
            // Seen once, its owner may be about to end, or to say so.
            let reported = before.get(&address).is_some_and(|done| *done || self.report_owner(address));
            self.unowned_ports.insert(address, reported);
        }
    }

    fn report_owner(&mut self, address: IpAddr) -> bool {
        // By the main thread's namespace, which is that of the NIC's thread as well.
        let table = |name| std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
        let user = user_of(&(table("udp") + &table("udp6")), address, ROCE_PORT);
        user.is_some_and(|user| self.happened(LinkEvent::PortTaken { address, user }))
    }
}

/// The user whose socket receives what is sent to a port of this address, by the lines of both tables.
fn user_of(tables: &str, address: IpAddr, port: u16) -> Option<u32> {
    // One word, or four: the kernel holds network order, and prints in this machine's byte order.
    let printed = |octets: &[u8]| -> String {
        let words = octets.as_chunks().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
        words.chain([format!(":{port:04X}")]).collect()
    };
    // Of two, the one with the address gets the packets. A socket of every IPv6 address may take IPv4's.
    let [every_v4, every_v6] = [printed(&[0; 4]), printed(&[0; 16])];
    let places = match address {
        IpAddr::V4(v4) => {
            vec![printed(&v4.octets()), printed(&v4.to_ipv6_mapped().octets()), every_v4, every_v6]
        }
        IpAddr::V6(v6) => vec![printed(&v6.octets()), every_v6],
    };
    let user_at = |place: &String| {
        tables.lines().find_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().filter(|local| local == place)?;
            fields.nth(5)?.parse().ok()
        })
    };
    places.iter().find_map(user_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkConfig;
    use crate::os::system;
    use std::net::UdpSocket;

    /// As a kernel prints them, 127.0.0.1 and every address; 4791 is 12B7.
    const UDP: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  163: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0
  164: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     1        0 4712 2 0000000000000000 0
";
    const UDP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  163: B80D0120000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     7        0 4713 2 0000000000000000 0
  164: 0000000000000000FFFF00000200007F:12B9 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     3        0 4715 2 0000000000000000 0
  165: 00000000000000000000000000000000:12B9 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     2        0 4714 2 0000000000000000 0
";

    #[test]
    fn a_foreign_port_owner_is_reported_once_when_seen_twice_and_as_soon_as_there_is_room() {
        let fabric = format!("foreign-ports-{}", std::process::id());
        let process = std::process::id().to_be_bytes();
        let address = IpAddr::from([127, 136, process[2], process[3]]);
        let socket = UdpSocket::bind((address, ROCE_PORT)).unwrap();
        let mut link =
            Link::join(LinkConfig { fabric, addresses: vec![address], ..LinkConfig::default() }).unwrap();
        let events = |link: &mut Link| std::iter::from_fn(|| link.events.pop_front()).collect::<Vec<_>>();
        link.check_foreign_ports(LOOK_NS);
        link.check_foreign_ports(2 * LOOK_NS - 1);
        assert_eq!(events(&mut link), [], "it may have been about to end");
        let other = LinkEvent::Unsent { address, errno: 1 };
        while link.happened(other) {}
        link.check_foreign_ports(2 * LOOK_NS);
        assert!(events(&mut link).iter().all(|event| *event == other));
        let reported = [LinkEvent::PortTaken { address, user: system::user() }];
        for look in 3..10 {
            link.check_foreign_ports(look * LOOK_NS);
            assert_eq!(events(&mut link), if look == 3 { &reported[..] } else { &[] });
        }
        // The next one is another one.
        drop(socket);
        link.wire.as_mut().unwrap().take_over_ports();
        link.check_foreign_ports(10 * LOOK_NS);
        assert!(link.unowned_ports.is_empty());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_port_s_owner_is_read_as_the_kernel_prints_it() {
        let tables = UDP.to_owned() + UDP6;
        for (address, port, user) in [
            ("127.0.0.1", 4791, Some(1000)),
            ("127.0.0.2", 4791, None),
            // Of every address, of one family or of both.
            ("127.0.0.2", 4792, Some(1)),
            ("::1", 4792, None),
            ("::1", 4793, Some(2)),
            ("127.0.0.1", 4793, Some(2)),
            ("127.0.0.2", 4793, Some(3)),
            ("2001:db8::1", 4791, Some(7)),
            ("2001:db8::2", 4791, None),
        ] {
            assert_eq!(user_of(&tables, address.parse().unwrap(), port), user, "{address} {port}");
        }
        for nonsense in
            ["", "a b c d e f g h i j", "1: 0100007F:12B7 0 0 0 0 0 x 0 1", "1: 01:12B7 0 0 0 0 0 0 0 1"]
        {
            assert_eq!(user_of(nonsense, [127, 0, 0, 1].into(), 4791), None, "{nonsense}");
        }
    }
}
