//! Ports of the wire that change hands, or belong to another process.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::processes::{config, fabric_name};
use crate::config::{MAX_DEVICES, MAX_PORTS};
use crate::link::{Link, LinkConfig, LinkError};
use crate::os::testing::DEADLINE;

/// A loopback address of its own for each test of each process.
fn place(test: u8) -> IpAddr {
    let process = std::process::id().to_be_bytes();
    IpAddr::from([127, 192 + test + 8 * (process[1] & 7), process[2], process[3]])
}

fn wired(fabric: &str, address: IpAddr) -> Link {
    Link::join(LinkConfig { addresses: vec![address], ..config(fabric) }).unwrap()
}

/// Looks after peers and ports now, whenever that was done last.
fn look(link: &mut Link) {
    link.watched_ns = 0;
    link.watch();
}

#[test]
fn a_taken_over_port_that_epoll_refuses_is_added_later() {
    let (fabric, address) = (fabric_name(), place(0));
    let first = wired(&fabric, address);
    let mut second = wired(&fabric, address);
    let owned = |link: &Link| link.wire_counters().unwrap().ports_owned;
    assert_eq!((owned(&first), owned(&second)), (1, 0));
    let epoll = second.epoll().unwrap();
    epoll.failing.store(u32::MAX, std::sync::atomic::Ordering::Relaxed);
    drop(first);
    let begun = Instant::now();
    while owned(&second) == 0 {
        assert!(begun.elapsed() < DEADLINE, "nobody else has the port");
        look(&mut second);
    }
    let foreign = UdpSocket::bind((address, 0)).unwrap();
    foreign.send_to(&[0; 64], (address, crate::link::udp::ROCE_PORT)).unwrap();
    look(&mut second);
    epoll.arm();
    assert!(!epoll.wait(Duration::from_millis(20)).unwrap(), "it cannot be heard");
    epoll.failing.store(0, std::sync::atomic::Ordering::Relaxed);
    look(&mut second);
    epoll.arm();
    assert!(epoll.wait(DEADLINE).unwrap(), "the socket that was taken over is heard");
}

#[test]
fn the_port_of_a_process_of_the_fabric_is_not_foreign() {
    let (fabric, address) = (fabric_name(), place(1));
    let _first = wired(&fabric, address);
    let mut second = wired(&fabric, address);
    for second_of in 1..200 {
        second.check_foreign_ports(second_of * 1_000_000_000);
    }
    assert_eq!(second.events.pop_front(), None);
}

#[test]
fn a_process_that_takes_a_port_over_says_so_and_one_that_has_left_owns_none() {
    let (fabric, address) = (fabric_name(), place(2));
    let first = wired(&fabric, address);
    let (mut second, third) = (wired(&fabric, address), wired(&fabric, address));
    assert!(third.fabric.has_port_owner(address));
    assert!(!third.fabric.has_port_owner(place(3)));
    drop(first);
    assert!(!third.fabric.has_port_owner(address));
    let begun = Instant::now();
    while !third.fabric.has_port_owner(address) {
        assert!(begun.elapsed() < DEADLINE, "no other process has the port");
        look(&mut second);
    }
    assert_eq!(second.wire_counters().unwrap().ports_owned, 1);
}

/// So many addresses below those of the other tests, 32 for a process at most.
fn crowd(count: usize) -> Vec<IpAddr> {
    let first = (std::process::id() & 0x7fff) << 5;
    (0..count as u32).map(|i| IpAddr::from((127 << 24 | first | i).to_be_bytes())).collect()
}

#[test]
fn every_address_of_a_process_is_told_to_the_others_and_more_than_can_be_told_are_refused() {
    let fabric = fabric_name();
    let most = 2 * usize::from(MAX_DEVICES) * usize::from(MAX_PORTS);
    let join = |addresses| Link::join(LinkConfig { addresses, ..config(&fabric) });
    let owner = join(crowd(most)).unwrap();
    let other = join(crowd(most)).unwrap();
    let ports: Vec<_> = other.wire.as_ref().unwrap().own_ports().collect();
    assert_eq!(ports.len(), 32);
    for (address, port, _) in ports {
        assert_eq!(owner.fabric.port_of(other.slot(), address), Some(port), "{address}");
    }
    let refused = join([crowd(most), vec![place(3)]].concat()).unwrap_err();
    assert!(matches!(refused, LinkError::Addresses { count: 33 }), "{refused}");
}
