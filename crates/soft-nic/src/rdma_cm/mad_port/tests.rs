//! Which process gets which MAD, and what becomes of those that none gets.

use std::sync::Barrier;

use roce::Packet;
use roce::packet::Deth;
use roce::wire::cm::{CmMad, Dreq, Ids, Message, Req};
use roce::wire::mad::QP1_QKEY;

use super::*;
use crate::link::fabric::Fabric;
use crate::link::mads::{MadCounters, packet};
use crate::os::unix_datagram::KeyedSocket;

fn addressed(message: Message) -> AddressedMad {
    let mad = CmMad { transaction: 1, message, private: &[] }.encode().unwrap();
    AddressedMad { from: Gid([1; 16]), to: Gid([2; 16]), mad: Box::new(mad) }
}

#[test]
fn requests_go_to_who_listens_answers_to_who_asked_and_the_rest_comes_back() {
    let name = format!("mads-{}", std::process::id());
    let routers: Vec<MadRouter> =
        (0..2).map(|_| MadRouter::new(Arc::new(Fabric::join(&name).unwrap()), false)).collect();
    let [(mut a, _), (mut b, bell)] = [
        FabricMads::open(routers[0].clone(), vec![]).unwrap(),
        FabricMads::open(routers[1].clone(), vec![]).unwrap(),
    ];
    b.announce(0x106_1c06, None).unwrap();
    let ask = |service| addressed(Message::Req(Req { service, local_id: 5, ..Req::default() }));
    a.send(ask(0x106_1c06));
    a.send(ask(0x106_1c07));
    assert_eq!(b.receive(), [ask(0x106_1c06)]);
    assert_eq!(a.receive(), [ask(0x106_1c07)], "nobody listens: ours to refuse");
    let id = u32::from(routers[0].slot()) << 25 | 77;
    let answer = addressed(Message::Rtu(Ids { local: 9, remote: id }));
    b.send(answer.clone());
    assert_eq!((a.receive(), b.receive()), (vec![answer], vec![]));
    bell.ring();
    bell.wait(Duration::from_secs(60));
    assert_eq!(b.receive(), []);
}

#[test]
fn what_comes_over_the_wire_is_handed_on_or_refused_and_what_is_for_others_waits_for_the_nic() {
    let name = format!("mads-wire-{}", std::process::id());
    let routers: Vec<MadRouter> =
        (0..2).map(|_| MadRouter::new(Arc::new(Fabric::join(&name).unwrap()), true)).collect();
    let (mut b, _) = FabricMads::open(routers[1].clone(), vec![Gid([2; 16])]).unwrap();
    b.announce(0x106_1c06, None).unwrap();
    let ask = |service| addressed(Message::Req(Req { service, local_id: 5, ..Req::default() }));
    // Router 0 owns the port, and has no connection manager of its own.
    assert_eq!(routers[0].hand_on(ask(0x106_1c06)), None);
    assert_eq!(b.receive(), [ask(0x106_1c06)]);
    let refused = routers[0].hand_on(ask(0x106_1c07)).unwrap();
    assert_eq!((refused.from, refused.to), (Gid([2; 16]), Gid([1; 16])));
    let Message::Rej(rej) = CmMad::decode(&*refused.mad).unwrap().message else { panic!() };
    assert_eq!((rej.reason, rej.ids.remote), (8, 5));
    // Of a process that is gone: its connections are over.
    let gone = Ids { local: 9, remote: 99 << 25 | 1 };
    let over = routers[0].hand_on(addressed(Message::Dreq(Dreq { ids: gone, qpn: 1 }))).unwrap();
    let ended = Message::Drep(Ids { local: gone.remote, remote: gone.local });
    assert_eq!(CmMad::decode(&*over.mad).unwrap().message, ended);
    assert_eq!(routers[0].hand_on(addressed(Message::Rtu(gone))), None, "nothing to be said");
    // By its packet only when it is one of QP1's.
    for (qkey, taken) in [(QP1_QKEY, 1), (QP1_QKEY + 1, 0)] {
        let packet = Packet { deth: Deth { qkey, src_qpn: 1 }, ..packet(7) };
        let (from, at) = ([1; 16].into(), [2; 16].into());
        routers[0].take_packet(from, at, &packet, &*ask(0x106_1c06).mad);
        routers[0].take_packet(from, at, &packet, &[0; 255]);
        assert_eq!(b.receive().len(), taken);
    }
    // Each of the eight is in one counter.
    let counted =
        MadCounters { handed_on: 2, refused: 2, unclaimed: 1, malformed: 3, ..MadCounters::default() };
    assert_eq!(routers[0].counters(), counted);
    let away = AddressedMad { to: Gid([7; 16]), ..ask(0x106_1c06) };
    b.send(away.clone());
    let for_wire = routers[1].for_wire.as_ref().unwrap();
    assert_eq!((for_wire.pop().as_ref(), for_wire.pop()), (Some(&away), None));
    // More than may wait for the wire, and than the socket of a process that does not read holds: counted.
    (0..MAX_WAITING + 3).for_each(|_| b.send(away.clone()));
    assert_eq!(routers[1].counters(), MadCounters { full: 3, ..MadCounters::default() });
    let mut full = 0;
    for sent in 0..2000 {
        assert_eq!(routers[0].hand_on(ask(0x106_1c06)), None);
        full = routers[0].counters().full;
        assert_eq!(routers[0].counters().handed_on + full, 2 + 1 + sent, "each is one or the other");
    }
    assert!(full > 0, "no socket holds so many");
}

#[test]
fn a_full_socket_is_tried_again() {
    let name = format!("mads-full-{}", std::process::id());
    let routers: Vec<MadRouter> =
        (0..2).map(|_| MadRouter::new(Arc::new(Fabric::join(&name).unwrap()), false)).collect();
    let [(mut a, _), (mut b, _)] = [
        FabricMads::open(routers[0].clone(), vec![]).unwrap(),
        FabricMads::open(routers[1].clone(), vec![]).unwrap(),
    ];
    let id = u32::from(routers[1].slot()) << 25 | 1;
    let numbered = |local| addressed(Message::Rtu(Ids { local, remote: id }));
    for local in 0..2000 {
        a.send(numbered(local));
    }
    assert!(a.is_waiting(), "no socket holds so many");
    let mut got = Vec::new();
    for _ in 0..10_000 {
        got.extend(b.receive());
        a.receive();
    }
    assert_eq!(got, (0..2000).map(numbered).collect::<Vec<_>>());
    assert!(!a.is_waiting());
}

#[test]
fn many_that_ask_for_the_socket_at_once_get_one_and_handing_on_makes_none() {
    let name = format!("mads-race-{}", std::process::id());
    let fabric = || Arc::new(Fabric::join(&name).unwrap());
    for _ in 0..20 {
        let router = MadRouter::new(fabric(), true);
        let (gate, threads) = (Arc::new(Barrier::new(4)), 0..4);
        let open = |_| {
            let (router, gate) = (router.clone(), Arc::clone(&gate));
            std::thread::spawn(move || {
                gate.wait();
                router.bound_socket().map(|socket| Arc::as_ptr(&socket) as usize)
            })
        };
        let opened: Vec<_> =
            threads.map(open).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect();
        let first = *opened[0].as_ref().unwrap();
        assert!(opened.iter().all(|one| *one.as_ref().unwrap() == first), "one for all: {opened:?}");
    }
    // A port's owner without a connection manager: a MAD for a connection of its slot is refused, not lost.
    let owner = MadRouter::new(fabric(), true);
    let ids = Ids { local: 9, remote: u32::from(owner.slot()) << 25 | 1 };
    for _ in 0..20 {
        let over = owner.hand_on(addressed(Message::Dreq(Dreq { ids, qpn: 1 }))).expect("an answer");
        let ended = Message::Drep(Ids { local: ids.remote, remote: ids.local });
        assert_eq!(CmMad::decode(&*over.mad).unwrap().message, ended);
    }
}

#[test]
fn a_new_owner_of_a_dead_process_s_slot_is_watched_and_its_requests_stand() {
    let name = format!("mads-successor-{}", std::process::id());
    let routers: Vec<MadRouter> =
        (0..2).map(|_| MadRouter::new(Arc::new(Fabric::join(&name).unwrap()), false)).collect();
    let [(mut a, _), (mut b, _)] = [
        FabricMads::open(routers[0].clone(), vec![]).unwrap(),
        FabricMads::open(routers[1].clone(), vec![]).unwrap(),
    ];
    b.announce(0x106_1c06, None).unwrap();
    let (slot, generation) = (routers[1].slot(), routers[1].fabric.generation());
    // The slot's owner before was asked too, and is killed.
    let mut before = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let peer = Peer { process: Process::of(before.id()), asked: [4].into() };
    locked(&a.watched).insert((slot, generation - 1), peer);
    before.kill().unwrap();
    before.wait().unwrap();
    let ask = addressed(Message::Req(Req { service: 0x106_1c06, local_id: 5, ..Req::default() }));
    a.send(ask.clone());
    a.send(ask.clone());
    assert_eq!(b.receive(), [ask.clone(), ask]);
    assert_eq!(a.receive(), []);
    assert_eq!(a.departed(), [EndedProcess { slot, asked: vec![4] }]);
    assert_eq!(a.departed(), []);
    let still: Vec<_> = locked(&a.watched).keys().copied().collect();
    assert_eq!(still, [(slot, generation)]);
    let asked = |a: &FabricMads| locked(&a.watched)[&(slot, generation)].asked.clone();
    assert_eq!(asked(&a), [5], "once, however often it is sent");
    // What goes to ourselves needs no watch.
    a.announce(0x106_1c07, None).unwrap();
    a.send(addressed(Message::Req(Req { service: 0x106_1c07, local_id: 6, ..Req::default() })));
    assert_eq!((a.receive().len(), asked(&a).len(), locked(&a.watched).len()), (1, 1, 1));
}

/// The end of a process is told after all that it sent, also where one look does not take all of that.
#[test]
fn an_ended_process_departs_after_its_last_mad() {
    let name = format!("mads-last-{}", std::process::id());
    let router = MadRouter::new(Arc::new(Fabric::join(&name).unwrap()), false);
    let (mut a, _) = FabricMads::open(router.clone(), vec![]).unwrap();
    let mut sender = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let peer = Peer { process: Process::of(sender.id()), asked: VecDeque::new() };
    locked(&a.watched).insert((99, 7), peer);
    let (unbound, to) = (KeyedSocket::unbound(router.fabric.key()).unwrap(), router.name().unwrap());
    let last = addressed(Message::Rtu(Ids { local: 1, remote: 2 }));
    let sent = (0..9).take_while(|_| unbound.post(&to, &head(&last), &*last.mad).is_ok()).count();
    assert!(sent > 3, "a socket holds ten");
    sender.kill().unwrap();
    sender.wait().unwrap();
    a.budget = 3;
    let mut received = 0;
    while received < sent {
        assert_eq!(a.departed(), [], "{received} of {sent}");
        received += a.receive().len();
    }
    // A look that took as many as it may has to be followed by one that finds nothing.
    a.receive();
    assert_eq!(a.departed(), [EndedProcess { slot: 99, asked: vec![] }]);
    assert!(locked(&a.watched).is_empty());
}

#[test]
fn every_datagram_that_is_dropped_within_the_fabric_is_counted() {
    let name = format!("mads-dropped-{}", std::process::id());
    let routers: Vec<MadRouter> =
        (0..2).map(|_| MadRouter::new(Arc::new(Fabric::join(&name).unwrap()), false)).collect();
    let (mut a, _) = FabricMads::open(routers[0].clone(), vec![]).unwrap();
    let rtu = |slot: u32| addressed(Message::Rtu(Ids { local: 1, remote: slot << 25 | 1 }));
    // No process has that slot, no socket is bound there.
    a.send(rtu(99));
    a.send(rtu(routers[1].slot().into()));
    // What goes to all: its socket is the only one.
    a.send(addressed(Message::Rtu(Ids { local: 1, remote: 0 })));
    let counted = MadCounters { handed_on: 1, unclaimed: 2, ..MadCounters::default() };
    assert_eq!(routers[0].local_counters(), counted);
    // Those that come and are none: too short, too long. A bell is neither.
    let (mut b, bell) = FabricMads::open(routers[1].clone(), vec![]).unwrap();
    let (foreign, to) = (KeyedSocket::unbound(routers[1].fabric.key()).unwrap(), routers[1].name().unwrap());
    for len in [1, ADDRESSED_BYTES - 1, ADDRESSED_BYTES + 1, 513] {
        foreign.post(&to, &[], &vec![0; len]).unwrap();
    }
    bell.ring();
    assert_eq!(b.receive(), []);
    assert_eq!(routers[1].local_counters(), MadCounters { malformed: 4, ..MadCounters::default() });
    // More than may wait, besides those that its socket holds.
    let to_b = rtu(routers[1].slot().into());
    (0..2 * MAX_WAITING).for_each(|_| a.send(to_b.clone()));
    let local = routers[0].local_counters();
    assert!(local.full > 0 && a.waiting.len() == MAX_WAITING, "{local:?}");
    assert_eq!((local.handed_on - 1 + local.full) as usize + MAX_WAITING, 2 * MAX_WAITING);
}

#[test]
fn a_process_without_descriptors_refuses_nobody_for_that() {
    let name = format!("mads-poor-{}", std::process::id());
    let mut routers: Vec<MadRouter> =
        (0..2).map(|_| MadRouter::new(Arc::new(Fabric::join(&name).unwrap()), true)).collect();
    let (mut b, _) = FabricMads::open(routers[1].clone(), vec![]).unwrap();
    b.announce(0x106_1c06, None).unwrap();
    let ask = addressed(Message::Req(Req { service: 0x106_1c06, local_id: 5, ..Req::default() }));
    for errno in [libc::EMFILE, libc::ENOBUFS, libc::ENOMEM] {
        routers[0].poor = Some(errno);
        assert_eq!(routers[0].hand_on(ask.clone()), None, "errno {errno}");
    }
    routers[0].poor = None;
    assert_eq!(routers[0].hand_on(ask), None);
    assert_eq!(routers[0].counters(), MadCounters { failed: 3, handed_on: 1, ..MadCounters::default() });
    let errors = [libc::EAGAIN, libc::ECONNREFUSED, libc::ENOENT, libc::EMFILE, libc::ENOBUFS, libc::ENOMEM];
    let outcomes = errors.map(|errno| MadOutcome::of(&Err(io::Error::from_raw_os_error(errno))) as usize);
    let [full, unclaimed, failed] =
        [MadOutcome::Full, MadOutcome::Unclaimed, MadOutcome::Failed].map(|outcome| outcome as usize);
    assert_eq!(outcomes, [full, unclaimed, unclaimed, failed, failed, failed]);
}
