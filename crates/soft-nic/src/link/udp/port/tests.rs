//! Several processes' shares of one port, in one process.

use std::time::Instant;

use super::*;
use crate::os::testing::DEADLINE;

/// The fabric's.
const KEY: u64 = 0x0123_4567_89ab_cdef;

/// A packet for a queue of `slot` with a mark behind its BTH.
fn packet(slot: u8, mark: u8) -> Vec<u8> {
    packet_to(mlx5_device::first_qpn(slot) | 5, mark)
}

fn packet_to(qpn: u32, mark: u8) -> Vec<u8> {
    let mut packet = vec![mark; Bth::BYTES + 4];
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet
}

/// A loopback address of its own for each test of each process.
fn place(test: u8) -> IpAddr {
    let process = std::process::id().to_be_bytes();
    IpAddr::from([127, 64 + test + 8 * (process[1] & 7), process[2], process[3]])
}

impl SharedPort {
    /// Behaves as if the kernel had no room for what is sent.
    pub fn stall(&mut self, stalled: bool) {
        self.own.stalled = stalled;
    }

    /// The bytes that wait to be sent, one packet behind the other.
    pub fn waiting_packet(&self) -> &[u8] {
        self.batch.waiting()
    }
}

fn send(from: &mut SharedPort, to: IpAddr, packet: &[u8]) {
    let written = from.push(to, packet.len(), |bytes, _| {
        bytes.copy_from_slice(packet);
        Ok::<(), Infallible>(())
    });
    assert_eq!(written, Ok(true));
    assert_eq!(from.flush(|_, _, _| ()).taken, 1);
}

/// The ports of all, as the fabric's directory would tell.
fn directory(ports: &[&mut SharedPort]) -> Vec<(u8, u16)> {
    ports.iter().map(|port| (port.slot, port.own_port())).collect()
}

fn look_up(directory: &[(u8, u16)]) -> impl Fn(u8) -> Option<u16> + '_ {
    |slot| directory.iter().find(|entry| entry.0 == slot).map(|entry| entry.1)
}

/// Origins and marks of what each of the ports got, polling all of them until there are `count`.
fn polled(ports: &mut [&mut SharedPort], count: usize) -> Vec<Vec<(IpAddr, u8)>> {
    let directory = directory(ports);
    let mut got = vec![Vec::new(); ports.len()];
    let begun = Instant::now();
    while got.iter().map(Vec::len).sum::<usize>() < count && begun.elapsed() < DEADLINE {
        for (port, got) in ports.iter_mut().zip(&mut got) {
            port.poll((0, false), look_up(&directory), |from, packet| {
                got.push((from.ip(), packet[Bth::BYTES]))
            })
            .unwrap();
        }
    }
    got
}

fn marks(ports: &mut [&mut SharedPort], count: usize) -> Vec<Vec<u8>> {
    let got = polled(ports, count);
    got.into_iter().map(|got| got.into_iter().map(|(_, mark)| mark).collect()).collect()
}

#[test]
fn packets_reach_the_process_that_their_qpn_names_whoever_owns_the_port() {
    let address = place(0);
    let [mut a, mut b, mut c] = [3, 9, 127].map(|slot| SharedPort::open((slot, KEY), address).unwrap());
    assert_eq!([a.is_owner(), b.is_owner(), c.is_owner()], [true, false, false]);
    for (mark, slot) in [3, 9, 127, 9, 3].into_iter().enumerate() {
        send(&mut c, address, &packet(slot, mark as u8));
    }
    send(&mut c, address, &packet_to(QP1, 99));
    let got = marks(&mut [&mut a, &mut b, &mut c], 6);
    assert_eq!(got, [vec![0, 4, 99], vec![1, 3], vec![2]]);
    let counters = a.counters;
    assert_eq!((counters.handed_on, counters.undeliverable), (3, 0));
}

#[test]
fn one_that_does_not_read_keeps_nothing_from_another() {
    let address = place(1);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|slot| SharedPort::open((slot, KEY), address).unwrap());
    let ports = directory(&[&mut a, &mut b, &mut c]);
    // More than any socket buffer holds for b, which never looks.
    let long = [&packet(2, 1)[..], &[0; 4000]].concat();
    for _ in 0..3_000 {
        send(&mut c, address, &long);
        a.poll((0, false), look_up(&ports), |_, _| unreachable!()).unwrap();
    }
    send(&mut c, address, &packet(3, 7));
    assert_eq!(marks(&mut [&mut a, &mut c], 1), [vec![], vec![7]]);
}

#[test]
fn when_the_owner_ends_another_takes_the_port_and_traffic_goes_on() {
    let address = place(2);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|slot| SharedPort::open((slot, KEY), address).unwrap());
    assert!(!b.try_own().unwrap() && !c.try_own().unwrap());
    send(&mut c, address, &packet(2, 7));
    assert_eq!(marks(&mut [&mut a, &mut b], 1), [vec![], vec![7]]);
    drop(a);
    // A program that another test starts may hold copies of a's sockets for a moment.
    let begun = Instant::now();
    while !c.try_own().unwrap() {
        assert!(begun.elapsed() < DEADLINE, "nobody else has the port");
    }
    assert!(!b.try_own().unwrap());
    for (slot, mark) in [(2, 8), (3, 9), (1, 10)] {
        send(&mut b, address, &packet(slot, mark));
    }
    assert_eq!(marks(&mut [&mut b, &mut c], 2), [vec![8], vec![9]]);
    let begun = Instant::now();
    while c.counters.undeliverable == 0 && begun.elapsed() < DEADLINE {
        c.poll((0, false), |_| None, |_, _| ()).unwrap();
    }
    assert_eq!((c.counters.undeliverable, c.counters.ports_owned), (1, 1), "nobody sits in slot 1");
}

#[test]
fn a_packet_says_where_it_came_from() {
    let (address, other) = (place(3), place(4));
    let [mut owner, mut third] = [1, 2].map(|slot| SharedPort::open((slot, KEY), address).unwrap());
    let mut sender = SharedPort::open((3, KEY), other).unwrap();
    send(&mut sender, address, &packet(1, 1));
    send(&mut sender, address, &packet(2, 2));
    assert_eq!(polled(&mut [&mut owner, &mut third], 2), [vec![(other, 1)], vec![(other, 2)]]);
    for at in [other, "2001:db8::17".parse().unwrap()] {
        let from = SocketAddr::new(at, 7);
        let head = origin_head(from, KEY);
        assert_eq!((origin(&head, KEY), origin(&head, KEY ^ 1)), (Some(from), None));
    }
}

#[test]
fn what_is_no_packet_or_no_owner_s_is_counted_and_dropped() {
    let address = place(5);
    let [mut owner, mut other] = [1, 2].map(|slot| SharedPort::open((slot, KEY), address).unwrap());
    let wire = std::net::UdpSocket::bind((address, 0)).unwrap();
    for bytes in [&[][..], &[1; Bth::BYTES - 1], &[1; 5000]] {
        wire.send_to(bytes, (address, ROCE_PORT)).unwrap();
    }
    let head = origin_head((address, 1).into(), KEY);
    let good = [&head[..], &packet(2, 1)].concat();
    let wrong_family = [&[5; HEAD_BYTES][..], &packet(2, 1)].concat();
    let not_theirs = [&head[..], &packet(1, 1)].concat();
    // Right in every byte, but not from the port.
    wire.send_to(&good, (address, other.own_port())).unwrap();
    let to = SocketAddr::new(address, other.own_port());
    for datagram in [&good[..HEAD_BYTES - 1], &good[..HEAD_BYTES + 3], &wrong_family, &not_theirs, &good] {
        let fill = |bytes: &mut [u8], _| {
            bytes.copy_from_slice(datagram);
            Ok::<(), Infallible>(())
        };
        assert_eq!(owner.handing.push(to, datagram.len(), fill), Ok(true));
    }
    assert_eq!(marks(&mut [&mut owner, &mut other], 1), [vec![], vec![1]]);
    let begun = Instant::now();
    while owner.counters.malformed < 3 && begun.elapsed() < DEADLINE {
        owner.poll((0, false), |_| None, |_, _| unreachable!()).unwrap();
    }
    assert_eq!((owner.counters.malformed, other.counters.refused), (3, 5));
}

#[test]
fn an_owner_that_is_not_of_the_fabric_hands_nothing_on() {
    let address = place(2);
    // Any user may have the port.
    let foreign = std::net::UdpSocket::bind((address, ROCE_PORT)).unwrap();
    let mut ours = SharedPort::open((2, KEY), address).unwrap();
    assert!(!ours.is_owner());
    let origin: SocketAddr = "192.0.2.7:4791".parse().unwrap();
    let mut delivered = Vec::new();
    for (count, (key, mark)) in [(0, 1), (!KEY, 2), (KEY, 3)].into_iter().enumerate() {
        let datagram = [&origin_head(origin, key)[..], &packet(2, mark)].concat();
        foreign.send_to(&datagram, (address, ours.own_port())).unwrap();
        let begun = Instant::now();
        while ours.counters.refused as usize + delivered.len() <= count && begun.elapsed() < DEADLINE {
            let take = |from, packet: &[u8]| delivered.push((from, packet[Bth::BYTES]));
            ours.poll((0, false), |_| None, take).unwrap();
        }
    }
    // The third is a process of the fabric's, for all that can be known.
    assert_eq!((ours.counters.refused, delivered), (2, vec![(origin, 3)]));
}

#[test]
fn an_address_of_another_host_is_refused() {
    let error = SharedPort::open((1, KEY), "192.0.2.1".parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
}

#[test]
fn a_socket_that_gives_nothing_is_asked_now_and_then_and_one_that_gives_in_every_round() {
    let mut timer = PollTimer::default();
    // Twenty rounds of half a microsecond; the last one that asks gets `gives`.
    let mut asked = |from: u64, gives: usize| {
        let count = (0..20).filter(|round| timer.is_due(from + 500 * round, false)).count();
        timer.got(gives);
        count
    };
    assert_eq!(asked(1 << 40, 1), 2, "cold");
    let gave = (1 << 40) + COLD_NS;
    assert_eq!(asked(gave + 10_000, 0), 20, "warm");
    assert_eq!(asked(gave + WARM_NS, 0), 2, "cold again");
    let busy = (0..200).filter(|round| timer.is_due(gave + 2 * WARM_NS + 500 * round, true)).count();
    assert_eq!(busy, 2, "while others give, in 0.1 ms");
}

#[test]
fn each_reason_for_which_the_kernel_does_not_send_is_told_once() {
    let mut port = SharedPort::open((1, KEY), place(7)).unwrap();
    let mut reported = Vec::new();
    for round in 0..20 {
        for errno in [libc::ENETUNREACH, libc::EPERM] {
            port.count(Posted { taken: 0, lost: 1, errno });
        }
        // Asked once a round, as a NIC does.
        reported.extend(port.take_refusal().map(|errno| (round, errno)));
    }
    assert_eq!(reported, [(0, libc::ENETUNREACH), (1, libc::EPERM)]);
    assert_eq!(port.counters.unsent, 40);
}
