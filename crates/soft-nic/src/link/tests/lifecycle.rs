//! Processes that come, go, are killed and fork.

use std::time::{Duration, Instant};

use mlx5_device::carrier::{Carrier as _, Disposition, PathAddress, Payload, Unsent};
use mlx5_device::memory::Segment;
use roce::Opcode;

use super::processes::{MTU, Peer, config, connect, fabric_name, request, send};
use crate::link::{FabricError, Link, LinkConfig, LinkError, LinkEvent, NoPeer, Room, SLOTS};
use crate::os::testing::true_in_fork_child;

/// Longest wait for what a link notices within a second on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn join(fabric: &str) -> Link {
    Link::join(config(fabric)).unwrap()
}

/// Whether any process of ours still has a piece of this fabric.
fn memfds_of(fabric: &str) -> usize {
    let mut count = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        for descriptor in std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let target = std::fs::read_link(descriptor.path()).unwrap_or_default();
            count += usize::from(target.to_string_lossy().contains(&format!("-{fabric} (deleted)")));
        }
    }
    count
}

#[test]
fn a_process_that_lacked_descriptors_reaches_a_peer_when_it_has_some_again() {
    let fabric = fabric_name();
    let other = join(&fabric);
    let slot = other.slot();
    assert!(true_in_fork_child(|| {
        let mut link = join(&fabric);
        let mut held = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            held.push(file);
        }
        let lacking = link.room(slot);
        drop(held);
        matches!(lacking, Room::NoPeer(NoPeer::Kernel(_))) && link.room(slot) == Room::Full
    }));
}

#[test]
fn a_killed_peer_is_noticed_and_its_slot_is_given_out_again() {
    let fabric = fabric_name();
    let mut link = join(&fabric);
    let mut peer = Peer::start("sink", &fabric);
    let [slot, to] = peer.read_line("sink ")[..] else { panic!("two numbers") };
    let slot = slot as u8;
    connect(&mut link, slot);
    let write = request(&link, mlx5_device::first_qpn(slot), Opcode::Write, 0, to, 8);
    send(&mut link, &write, Payload::Inline(&[1; 8]), |_| Disposition::Consumed);
    assert!(link.is_alive(slot).unwrap());
    peer.kill();
    let killed = Instant::now();
    while link.room(slot) == Room::Yes || link.room(slot) == Room::Full {
        link.sleep(Duration::from_millis(1));
        assert!(killed.elapsed() < PATIENCE, "{:?}", link.room(slot));
    }
    assert!(!link.is_alive(slot).unwrap());
    assert_eq!(link.events.pop_front(), Some(LinkEvent::PeerLost { slot, pid: peer.child.id() }));
    assert_eq!(link.room(slot), Room::NoPeer(NoPeer::Gone(slot)));
    let sent = link.send_record(&write, MTU, &PathAddress::default(), Payload::Inline(&[1; 8]));
    assert_eq!(sent, Err(Unsent::Unreachable));
    // Every other slot is used first, then the dead one's.
    let mut others: Vec<Link> = (0..SLOTS - 2).map(|_| join(&fabric)).collect();
    assert!(others.iter().all(|other| other.slot() != slot));
    let heir = join(&fabric);
    assert_eq!((heir.slot(), heir.fabric.generation()), (slot, 2));
    // Full of the living.
    match Link::join(config(&fabric)) {
        Err(LinkError::Fabric(error @ FabricError::Full { .. })) => {
            assert!(error.to_string().contains("128 processes"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    others.truncate(3);
    assert!(join(&fabric).slot() != slot, "and what left makes room");
}

#[test]
fn a_peer_that_becomes_another_program_is_noticed() {
    let fabric = fabric_name();
    let mut link = join(&fabric);
    let mut peer = Peer::start("changeling", &fabric);
    let slot = peer.read_line("changeling ")[0] as u8;
    connect(&mut link, slot);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        link.sleep(Duration::from_millis(1));
        assert_eq!(link.room(slot), Room::Yes, "a peer that stays is not lost");
    }
    peer.hang_up();
    let begun = Instant::now();
    while link.room(slot) != Room::NoPeer(NoPeer::Gone(slot)) {
        link.sleep(Duration::from_millis(1));
        assert!(begun.elapsed() < PATIENCE, "{:?}", link.room(slot));
    }
    assert!(peer.child.try_wait().unwrap().is_none(), "the process lives on");
    assert_eq!(link.events.pop_front(), Some(LinkEvent::PeerLost { slot, pid: peer.child.id() }));
}

#[test]
fn nothing_is_left_when_all_are_killed() {
    let fabric = fabric_name();
    let mut peers = [Peer::start("sink", &fabric), Peer::start("sink", &fabric)];
    let slots: Vec<u64> = peers.iter_mut().map(|peer| peer.read_line("sink ")[0]).collect();
    assert_eq!(memfds_of(&fabric), 2, "the directory, once in each process");
    assert_ne!(slots[0], slots[1]);
    for peer in &mut peers {
        peer.kill();
    }
    assert_eq!(memfds_of(&fabric), 0);
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!sockets.contains(&fabric), "an abstract socket is left");
    for place in ["/dev/shm", "/tmp", "/run"] {
        for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
            assert!(!entry.file_name().to_string_lossy().contains(&fabric), "{:?} is left", entry.path());
        }
    }
    let link = join(&fabric);
    assert_eq!((link.slot(), link.fabric.generation()), (0, 1), "a fresh fabric");
}

#[test]
fn processes_that_join_at_once_meet_on_one_fabric() {
    for _ in 0..3 {
        let fabric = fabric_name();
        let mut peers: Vec<Peer> = (0..6).map(|_| Peer::start("sink", &fabric)).collect();
        let links: Vec<Link> = std::thread::scope(|scope| {
            let joins: Vec<_> = (0..4).map(|_| scope.spawn(|| join(&fabric))).collect();
            joins.into_iter().map(|join| join.join().unwrap()).collect()
        });
        let mut slots: Vec<u8> = peers.iter_mut().map(|peer| peer.read_line("sink ")[0] as u8).collect();
        slots.extend(links.iter().map(Link::slot));
        slots.sort_unstable();
        assert_eq!(slots, (0..10).collect::<Vec<u8>>());
        for slot in slots {
            assert!(links[0].is_alive(slot).unwrap());
        }
        peers.into_iter().for_each(Peer::finish);
    }
}

#[test]
fn fabrics_with_other_names_never_meet() {
    let (one, two) = (fabric_name(), fabric_name());
    let (a, b) = (join(&one), join(&two));
    assert_eq!((a.slot(), b.slot()), (0, 0));
    assert!(!a.is_alive(1).unwrap());
    for name in ["", "with space", "../x", "ü", &"x".repeat(65)] {
        let refused = Link::join(LinkConfig { fabric: name.to_owned(), ..LinkConfig::default() });
        assert!(matches!(refused, Err(LinkError::Fabric(FabricError::Name { .. }))), "{name:?}");
    }
    for ring_bytes in [0, 4096, 100_000] {
        let refused = Link::join(LinkConfig { fabric: one.clone(), ring_bytes, ..LinkConfig::default() });
        assert!(matches!(refused, Err(LinkError::RingBytes { .. })), "{ring_bytes}");
    }
}

#[test]
fn a_fork_child_gets_nothing_of_its_parents_link_and_may_join_itself() {
    let fabric = fabric_name();
    let mut link = join(&fabric);
    let mut peer = Peer::start("sink", &fabric);
    let [slot, to] = peer.read_line("sink ")[..] else { panic!("two numbers") };
    let slot = slot as u8;
    connect(&mut link, slot);
    let write = request(&link, mlx5_device::first_qpn(slot), Opcode::Write, 0, to, 8);
    let own = link.slot();
    assert!(true_in_fork_child(|| {
        let path = PathAddress::default();
        let refused = link.send_record(&write, MTU, &path, Payload::Inline(&[1; 8]));
        link.ring_bells();
        link.sleep(Duration::from_secs(5));
        link.waker().rouse();
        let idle = link.poll(10, |_| Disposition::Consumed) == 0;
        let deaf = link.room(slot) == Room::NoPeer(NoPeer::Forked) && !link.is_alive(own).unwrap();
        let fresh = Link::join(config(&fabric)).unwrap();
        refused == Err(Unsent::Unreachable) && idle && deaf && fresh.slot() != own
    }));
    // A child that drops what it inherited takes nothing from the parent either.
    let mut inherited = Some(link);
    assert!(true_in_fork_child(|| {
        drop(inherited.take());
        true
    }));
    let mut link = inherited.unwrap();
    assert!(link.is_alive(own).unwrap());
    send(&mut link, &write, Payload::Inline(&[1; 8]), |_| Disposition::Consumed);
    peer.finish();
}

#[test]
fn a_peer_killed_in_the_middle_of_copies_costs_only_its_messages() {
    let fabric = fabric_name();
    let mut link = join(&fabric);
    let payload = vec![1u8; 1 << 20];
    for _ in 0..5 {
        let mut peer = Peer::start("sink", &fabric);
        let [slot, to] = peer.read_line("sink ")[..] else { panic!("two numbers") };
        let slot = slot as u8;
        connect(&mut link, slot);
        let from = [Segment { addr: payload.as_ptr() as u64, len: payload.len() as u64 }];
        let write = request(&link, mlx5_device::first_qpn(slot), Opcode::Write, 0, to, payload.len() as u32);
        let mut last = None;
        for _ in 0..20 {
            match link.send_record(&write, MTU, &PathAddress::default(), Payload::Segments(&from)) {
                Ok(sent) => last = Some(sent.position),
                sent => assert_eq!(sent, Err(Unsent::Full)),
            }
        }
        let last = last.expect("an empty ring takes something");
        link.ring_bells();
        std::thread::sleep(Duration::from_millis(1));
        peer.kill();
        let begun = Instant::now();
        while !link.consumed(slot, last) {
            link.sleep(Duration::from_millis(1));
            assert!(begun.elapsed() < PATIENCE, "what lay in the ring is given up");
        }
    }
}

#[test]
fn an_idle_link_takes_little_memory() {
    let resident = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = status.lines().find(|line| line.starts_with("Pss_Shmem")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let fabric = fabric_name();
    let before = resident();
    let mut links: Vec<Link> = (0..4).map(|_| join(&fabric)).collect();
    let slots: Vec<u8> = links.iter().map(Link::slot).collect();
    // Channels between all of them, with nothing in them.
    for _ in 0..3 {
        for link in &mut links {
            for slot in &slots {
                let _ = link.room(*slot);
            }
            link.poll(1, |_| Disposition::Consumed);
        }
    }
    let grown = resident().saturating_sub(before);
    // Other tests of this process run at the same time, so the bound is a generous one.
    assert!(grown < 16 * 1024, "{grown} KiB for four links");
}
