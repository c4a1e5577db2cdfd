//! Owners of the UDP ports of our addresses: one outside the fabric is reported.
//!
//! The process that owns the port of an address gets every packet for it, and hands on what is for other processes of its fabric. A process of
//! another fabric, a plain socket or the kernel's own soft-RoCE does not, and then nothing ever comes here: no counter of ours moves.
//!
//! `/proc/net/udp` and `/proc/net/udp6` (proc_net(5)) name the socket and its user, the descriptors of processes name the process.
//! The sockets of the kernel itself, soft-RoCE's (`rdma_rxe`) for one, are no process's. Only this network namespace is looked at,
//! and only processes whose descriptors this user may see.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc::{TryRecvError, sync_channel};

use super::fabric::{descriptors, descriptors_of};
use super::port_watch::{Found, Standing};
use super::udp::ROCE_PORT;
use super::{Link, LinkEvent, SLOTS};
use crate::os::signals::{NIC_THREAD, spawn};

/// Between two looks at the holder of a port that is not ours: as long as a process may take to end between its leaving the fabric and
/// the closing of its sockets …
const SOON_NS: u64 = 1_000_000_000;
/// … and, after many looks that found nothing, as long as a change may go unnoticed.
const SELDOM_NS: u64 = 64_000_000_000;

impl Link {
    /// Reports, once, which process outside this fabric holds this NIC's UDP port. Waits for nothing.
    pub(super) fn check_foreign_ports(&mut self, now_ns: u64) {
        if let Some(look) = &self.port_watch.look {
            match look.try_recv() {
                Ok(found) => self.judge(found, now_ns),
                Err(TryRecvError::Empty) => return,
                // The thread died of it, and the next one tries again.
                Err(TryRecvError::Disconnected) => self.port_watch.wait(now_ns, SELDOM_NS),
            }
            self.port_watch.look = None;
            return;
        }
        let Some(wire) = &self.wire else { return };
        if now_ns < self.port_watch.due_ns {
            return;
        }
        let others: Vec<IpAddr> = wire.foreign_ports().collect();
        if others.is_empty() {
            return self.judge(Vec::new(), now_ns);
        }
        let owners = (0..SLOTS as u8).filter_map(|slot| self.fabric.slot_owner(slot));
        let pids: Vec<u32> = owners.map(|owner| owner.pid).collect();
        let known = self.port_watch.known.clone();
        let look = move |address: IpAddr| {
            let holder = Holder::of(address, ROCE_PORT)?;
            let socket = (address, holder.inode);
            let is = |standing| known.contains(&(socket, standing));
            if is(Standing::Reported) {
                return None;
            }
            let of_fabric = is(Standing::Friend) || is_of_fabric(&holder, &pids);
            let pid = if !of_fabric && is(Standing::Suspect) { holder.process() } else { None };
            Some(Found { socket, user: holder.user, of_fabric, pid })
        };
        let (result, taken) = sync_channel(1);
        // With the pump a thread of the program makes it.
        match spawn(NIC_THREAD, move || _ = result.send(others.into_iter().filter_map(look).collect())) {
            Ok(_) => self.port_watch.look = Some(taken),
            Err(_) => self.port_watch.wait(now_ns, SOON_NS),
        }
    }

    /// What a look found.
    fn judge(&mut self, found: Vec<Found>, now_ns: u64) {
        let before = std::mem::take(&mut self.port_watch.known);
        let mut known: Vec<_> = before.iter().copied().filter(|(_, is)| *is == Standing::Reported).collect();
        // Taking an address from process to process is not to fill memory.
        known.drain(..known.len().saturating_sub(SLOTS));
        let mut pause_ns = (2 * self.port_watch.pause_ns).clamp(SOON_NS, SELDOM_NS);
        for Found { socket, user, of_fabric, pid } in found {
            let standing = if of_fabric {
                Standing::Friend
            } else if before.contains(&(socket, Standing::Suspect))
                && self.happened(LinkEvent::PortTaken { address: socket.0, user, pid })
            {
                Standing::Reported
            } else {
                pause_ns = SOON_NS;
                Standing::Suspect
            };
            known.push((socket, standing));
        }
        self.port_watch.known = known;
        self.port_watch.wait(now_ns, pause_ns);
    }
}

/// Whether one of these processes, those of this fabric, has the socket; also when one of them does not let us see.
fn is_of_fabric(holder: &Holder, pids: &[u32]) -> bool {
    let has = |pid: &u32| match holder.is_of(*pid) {
        Ok(has) => has,
        // One that has ended has no socket.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    pids.iter().any(has)
}

/// The process that receives what is sent to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    inode: u64,
    user: u32,
}

impl Holder {
    /// The holder of this port, at this address or at all; `None`: no socket has it, or the kernel does not say.
    fn of(address: IpAddr, port: u16) -> Option<Holder> {
        // By the main thread's namespace, which is that of the NIC's thread as well.
        let table = |name| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
        find(&table("udp"), &table("udp6"), address, port)
    }

    /// Whether a process has the socket. Errors: its descriptors cannot be seen.
    fn is_of(&self, pid: u32) -> io::Result<bool> {
        let wanted = self.link_target();
        Ok(descriptors_of(pid)?.any(|(.., target)| target == wanted))
    }

    /// The process that has the socket, of those that can be seen.
    fn process(&self) -> Option<u32> {
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
    use crate::link::LinkConfig;
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
    fn a_foreign_port_owner_is_reported_once_when_seen_twice_and_as_soon_as_there_is_room() {
        let fabric = format!("foreign-ports-{}", std::process::id());
        let mut link = Link::join(LinkConfig { fabric, ..LinkConfig::default() }).unwrap();
        let address = IpAddr::from([127, 0, 0, 9]);
        let found = || vec![Found { socket: (address, 4711), user: 7, of_fabric: false, pid: Some(9) }];
        let told = |link: &mut Link| std::iter::from_fn(|| link.events.pop_front()).collect::<Vec<_>>();
        link.judge(found(), 0);
        assert_eq!(told(&mut link), [], "it may have been about to end");
        let other = LinkEvent::Unsent { address, errno: 1 };
        while link.happened(other) {}
        link.judge(found(), 1);
        assert!(told(&mut link).iter().all(|event| *event == other));
        link.judge(found(), 2);
        assert_eq!(told(&mut link), [LinkEvent::PortTaken { address, user: 7, pid: Some(9) }]);
        assert_eq!(link.port_watch.known, [((address, 4711), Standing::Reported)]);
    }

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
