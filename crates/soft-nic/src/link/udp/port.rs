//! One address, many NICs: the process that owns UDP port 4791 of an address hands on what is for queues of another.
//!
//! QPNs are unique on a fabric, and their upper bits say whose they are, so the owner looks at nothing but the destination
//! QPN. When it ends, its sockets end with it, and who asks next owns the port; what was under way then is lost, as packets
//! are. QP1, which connection managers talk to, is the owner's. Nothing that arrives is trusted: neither datagrams, nor letters.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::dma::datagrams::{Datagrams, Outbox, Posted};
use crate::dma::mailbox::Mailbox;
use crate::link::{Link, SLOTS};

/// The UDP port of RoCEv2 (IANA; IBTA Annex A17).
pub const ROCE_PORT: u16 = 4791;

/// Bytes of a BTH, the least that a packet has (IBTA vol. 1 §9.2).
const BTH_BYTES: usize = 12;

/// Queue pair of the connection managers.
const GSI_QPN: u32 = 1;

/// Bytes in front of a packet that is handed on: family, nothing, port, address.
const HEAD_BYTES: usize = 20;

/// What the port did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortCounters {
    /// Datagrams that came from the wire to this process.
    pub received: u64,
    /// Of those, handed on to another process.
    pub handed_on: u64,
    /// For a process that is not there, or whose mailbox is full.
    pub undeliverable: u64,
    /// Too short for a packet, or too long for one.
    pub malformed: u64,
    /// Letters from other users, or ones that no owner writes.
    pub refused: u64,
    /// Datagrams that the kernel would not send.
    pub unsent: u64,
    /// Times this process became the owner.
    pub owned: u64,
}

/// This process's share in the port of one address.
#[derive(Debug)]
pub struct SharedPort {
    address: IpAddr,
    slot: u8,
    /// Names of the mailboxes, before the slot.
    name: String,
    owned: Option<Datagrams>,
    /// What is sent goes out here, whoever owns the port.
    out: Datagrams,
    outbox: Outbox,
    mailbox: Mailbox,
    /// Slots that got something since this was asked.
    handed: u128,
    counters: PortCounters,
}

impl SharedPort {
    /// Takes part in the port of `address`, and owns it when nobody else of the fabric does. `fabric`: its full name;
    /// `slot`: our seat there.
    ///
    /// Errors: what the kernel says; `AddrNotAvailable`: this host has no such address.
    pub fn open(fabric: &str, slot: u8, address: IpAddr) -> io::Result<SharedPort> {
        let name = format!("softnic-port-{:016x}", hash(&format!("{fabric} {address}")));
        let mut port = SharedPort {
            address,
            slot,
            owned: None,
            out: Datagrams::open(SocketAddr::new(address, 0))?,
            outbox: Outbox::default(),
            mailbox: Mailbox::open(&mailbox(&name, slot))?,
            name,
            handed: 0,
            counters: PortCounters::default(),
        };
        port.try_own()?;
        Ok(port)
    }

    /// Whether this process hands on what arrives.
    pub fn is_owner(&self) -> bool {
        self.owned.is_some()
    }

    /// Takes the port when nobody has it; to be called now and then. True: this process owns it.
    ///
    /// Errors: what the kernel says, but for the port being in use.
    pub fn try_own(&mut self) -> io::Result<bool> {
        if self.owned.is_none() {
            match Datagrams::open(SocketAddr::new(self.address, ROCE_PORT)) {
                Ok(socket) => {
                    self.owned = Some(socket);
                    self.counters.owned += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.is_owner())
    }

    /// What was done so far.
    pub fn counters(&self) -> PortCounters {
        self.counters
    }

    /// Our address and the port that packets leave from.
    pub fn source(&self) -> SocketAddr {
        self.out.local()
    }

    /// Adds a packet of `len` bytes, from its BTH on, for the NICs of `to`; `fill` writes it, and is told the identification
    /// of its IPv4 header. It leaves with the next [`SharedPort::flush`].
    ///
    /// Errors: a length that no packet has.
    pub fn push(&mut self, to: IpAddr, len: usize, fill: impl FnOnce(&mut [u8], u16)) -> io::Result<()> {
        self.outbox.push(SocketAddr::new(to, ROCE_PORT), len, fill)
    }

    /// Sends what was added. What the kernel has no room for now stays.
    pub fn flush(&mut self) -> Posted {
        if self.outbox.is_empty() {
            return Posted::default();
        }
        let posted = self.out.send(&mut self.outbox);
        self.counters.unsent += posted.lost as u64;
        posted
    }

    /// Packets that wait to be sent.
    pub fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Hands packets for queues of this process to `deliver`, with the address that they came from, and those for others on.
    /// Returns how many datagrams were looked at; bounded.
    ///
    /// Errors: what the kernel says.
    pub fn poll(&mut self, mut deliver: impl FnMut(IpAddr, &[u8])) -> io::Result<usize> {
        let mut looked = 0;
        let Self { owned, mailbox: letters, counters, handed, name, slot, .. } = self;
        if let Some(socket) = owned {
            looked += socket.receive(|from, packet| {
                counters.received += 1;
                let Some(qpn) = destination(packet) else {
                    counters.malformed += 1;
                    return;
                };
                let to = Link::slot_of(qpn);
                if qpn == GSI_QPN || to == *slot {
                    deliver(from.ip(), packet);
                } else if letters.post(&mailbox(name, to), &head(from), packet).is_ok() {
                    counters.handed_on += 1;
                    *handed |= 1 << (usize::from(to) % SLOTS);
                } else {
                    counters.undeliverable += 1;
                }
            })?;
        }
        let collected = letters.collect(64, |letter| {
            let known =
                letter.split_at_checked(HEAD_BYTES).and_then(|(from, packet)| Some((origin(from)?, packet)));
            let ours = |packet: &&[u8]| destination(packet).is_some_and(|qpn| Link::slot_of(qpn) == *slot);
            match known {
                Some((from, packet)) if ours(&packet) => deliver(from, packet),
                _ => counters.refused += 1,
            }
        })?;
        counters.refused += collected.refused as u64;
        Ok(looked + collected.letters + collected.refused)
    }

    /// The slots that got something since this was asked, a bit each: their NICs may be asleep.
    pub fn take_handed_on(&mut self) -> u128 {
        std::mem::take(&mut self.handed)
    }
}

/// Destination QPN of a packet's BTH.
fn destination(packet: &[u8]) -> Option<u32> {
    let bth = packet.get(..BTH_BYTES)?;
    Some(u32::from_be_bytes([0, bth[5], bth[6], bth[7]]))
}

fn mailbox(name: &str, slot: u8) -> String {
    format!("{name}-{slot}")
}

fn head(from: SocketAddr) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[2..4].copy_from_slice(&from.port().to_be_bytes());
    match from.ip() {
        IpAddr::V4(ip) => {
            head[0] = 4;
            head[4..8].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            head[0] = 6;
            head[4..].copy_from_slice(&ip.octets());
        }
    }
    head
}

fn origin(head: &[u8]) -> Option<IpAddr> {
    match head.first()? {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(head.get(4..8)?).ok()?)),
        6 => Some(IpAddr::from(<[u8; 16]>::try_from(head.get(4..20)?).ok()?)),
        _ => None,
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): names must be short, and the same in every process.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A packet for a queue of `slot` with a mark behind its BTH.
    fn packet(slot: u8, mark: u8) -> Vec<u8> {
        packet_to(Link::first_qpn(slot) | 5, mark)
    }

    fn packet_to(qpn: u32, mark: u8) -> Vec<u8> {
        let mut packet = vec![mark; BTH_BYTES + 4];
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        packet
    }

    /// A fabric and an address of its own for each test.
    fn place(test: u8) -> (String, IpAddr) {
        let process = std::process::id().to_be_bytes();
        (
            format!("test-{test}-{}", std::process::id()),
            IpAddr::from([127, 64 + test, process[2], process[3] | 1]),
        )
    }

    fn send(from: &mut SharedPort, to: IpAddr, packet: &[u8]) {
        from.push(to, packet.len(), |bytes, _| bytes.copy_from_slice(packet)).unwrap();
        assert_eq!(from.flush().taken, 1);
    }

    /// Marks that each of the ports got, polling all of them until there are `count`.
    fn marks(ports: &mut [&mut SharedPort], count: usize) -> Vec<Vec<u8>> {
        let mut got = vec![Vec::new(); ports.len()];
        let begun = Instant::now();
        while got.iter().map(Vec::len).sum::<usize>() < count && begun.elapsed() < Duration::from_secs(5) {
            for (port, got) in ports.iter_mut().zip(&mut got) {
                port.poll(|_, packet| got.push(packet[BTH_BYTES])).unwrap();
            }
        }
        got
    }

    #[test]
    fn packets_reach_the_process_that_their_qpn_names_whoever_owns_the_port() {
        let (fabric, address) = place(0);
        let [mut a, mut b, mut c] = [3, 9, 127].map(|slot| SharedPort::open(&fabric, slot, address).unwrap());
        assert_eq!([a.is_owner(), b.is_owner(), c.is_owner()], [true, false, false]);
        for (mark, slot) in [3, 9, 127, 9, 3].into_iter().enumerate() {
            send(&mut c, address, &packet(slot, mark as u8));
        }
        send(&mut c, address, &packet_to(GSI_QPN, 99));
        let got = marks(&mut [&mut a, &mut b, &mut c], 6);
        assert_eq!(got, [vec![0, 4, 99], vec![1, 3], vec![2]]);
        assert_eq!(a.take_handed_on(), 1 << 9 | 1 << 127);
        assert_eq!(a.take_handed_on(), 0);
        let counters = a.counters();
        assert_eq!((counters.received, counters.handed_on, counters.undeliverable), (6, 3, 0));
    }

    #[test]
    fn when_the_owner_ends_another_takes_the_port_and_traffic_goes_on() {
        let (fabric, address) = place(1);
        let mut a = SharedPort::open(&fabric, 1, address).unwrap();
        let mut b = SharedPort::open(&fabric, 2, address).unwrap();
        let mut c = SharedPort::open(&fabric, 3, address).unwrap();
        assert!(!b.try_own().unwrap() && !c.try_own().unwrap());
        send(&mut c, address, &packet(2, 7));
        assert_eq!(marks(&mut [&mut a, &mut b], 1), [vec![], vec![7]]);
        drop(a);
        // A program that another test starts may hold copies of a's sockets for a moment.
        let begun = Instant::now();
        while !c.try_own().unwrap() {
            assert!(begun.elapsed() < Duration::from_secs(5), "nobody else has the port");
        }
        assert!(!b.try_own().unwrap());
        send(&mut b, address, &packet(2, 8));
        send(&mut b, address, &packet(3, 9));
        send(&mut b, address, &packet(1, 10));
        assert_eq!(marks(&mut [&mut b, &mut c], 2), [vec![8], vec![9]]);
        let begun = Instant::now();
        while c.counters().undeliverable == 0 && begun.elapsed() < Duration::from_secs(5) {
            c.poll(|_, _| ()).unwrap();
        }
        assert_eq!((c.counters().undeliverable, c.counters().owned), (1, 1), "nobody sits in slot 1");
    }

    #[test]
    fn both_families_say_where_a_packet_came_from() {
        for (address, other) in [(place(2).1, place(3).1), ("::1".parse().unwrap(), "::1".parse().unwrap())] {
            let fabric = place(2).0;
            let mut owner = SharedPort::open(&fabric, 1, address).unwrap();
            let mut third = SharedPort::open(&fabric, 2, address).unwrap();
            let mut sender = SharedPort::open("another", 3, other).unwrap();
            if !owner.is_owner() {
                // Another test process has the only IPv6 loopback address.
                continue;
            }
            send(&mut sender, address, &packet(1, 1));
            send(&mut sender, address, &packet(2, 2));
            let mut from = Vec::new();
            let begun = Instant::now();
            while from.len() < 2 && begun.elapsed() < Duration::from_secs(5) {
                owner.poll(|ip, _| from.push(ip)).unwrap();
                third.poll(|ip, _| from.push(ip)).unwrap();
            }
            assert_eq!(from, [other, other]);
        }
    }

    #[test]
    fn what_is_no_packet_or_no_letter_of_an_owner_is_counted_and_dropped() {
        let (fabric, address) = place(4);
        let mut owner = SharedPort::open(&fabric, 1, address).unwrap();
        let mut other = SharedPort::open(&fabric, 2, address).unwrap();
        let wire = std::net::UdpSocket::bind((address, 0)).unwrap();
        for bytes in [&[][..], &[1; BTH_BYTES - 1], &[1; 5000]] {
            wire.send_to(bytes, (address, ROCE_PORT)).unwrap();
        }
        let good = [&head((address, 1).into())[..], &packet(2, 1)].concat();
        let wrong_family = [&[5; HEAD_BYTES][..], &packet(2, 1)].concat();
        let not_theirs = [&head((address, 1).into())[..], &packet(1, 1)].concat();
        for letter in [&good[..HEAD_BYTES - 1], &good[..HEAD_BYTES + 3], &wrong_family, &not_theirs, &good] {
            owner.mailbox.post(&mailbox(&other.name, 2), &[], letter).unwrap();
        }
        assert_eq!(marks(&mut [&mut owner, &mut other], 1), [vec![], vec![1]]);
        let begun = Instant::now();
        while owner.counters().malformed < 3 && begun.elapsed() < Duration::from_secs(5) {
            owner.poll(|_, _| unreachable!()).unwrap();
        }
        assert_eq!((owner.counters().malformed, other.counters().refused), (3, 4));
    }

    #[test]
    fn an_address_of_another_host_is_refused() {
        let error = SharedPort::open("x", 1, "192.0.2.1".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
