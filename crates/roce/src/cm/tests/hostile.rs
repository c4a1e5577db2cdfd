//! Bytes and messages from nowhere: nothing panics, grows without bound, or ends another's connection.

use super::*;

fn mad_of(message: Message, transaction: u64) -> [u8; MAD_BYTES] {
    CmMad { transaction, message, private: &[] }.encode().unwrap()
}

fn route(end: usize) -> Route {
    Route { local: gid(end), remote: gid(1 - end) }
}

#[test]
fn random_bytes_and_damaged_messages_are_dropped_by_cause_or_taken() {
    let mut rng = Rng::new(5);
    let mut net = Net::new(1, Faults::default());
    let [asking, asked] = net.connect();
    let ids = Ids { local: asked.0, remote: asking.0 };
    let sidr = SidrRep { request: 1, status: 0, info_bytes: 0, qpn: 1, service: 1, qkey: 1, info: [0; 72] };
    let kinds = [
        Message::Req(Req { local_id: 77, qpn: 99, ..request() }),
        Message::Mra(Mra { ids, message: 0, timeout: 31 }),
        Message::Rej(rej(ids, 0, 28, &[])),
        Message::Rep(Rep { ids, ..reply() }),
        Message::Rtu(ids),
        Message::Dreq(Dreq { ids, qpn: QPNS[0] }),
        Message::Drep(ids),
        Message::SidrReq(SidrReq { request: 3, pkey: 0xffff, service: SERVICE }),
        Message::SidrRep(sidr),
    ];
    let (mut taken, mut dropped) = (0, 0);
    for round in 0..60_000 {
        let mut mad = if round % 10 == 9 {
            std::array::from_fn(|_| rng.next_u64() as u8)
        } else {
            mad_of(kinds[round % kinds.len()], rng.next_u64())
        };
        for _ in 0..rng.next_u64() % 4 {
            let at = (rng.next_u64() % MAD_BYTES as u64) as usize;
            mad[at] = rng.next_u64() as u8;
        }
        let cut = if rng.next_u64().is_multiple_of(16) { (rng.next_u64() % 256) as usize } else { MAD_BYTES };
        let end = (rng.next_u64() % 2) as usize;
        net.now = net.now.after(rng.next_u64() % 200_000_000);
        match net.ends[end].handle_mad(net.now, route(end), &mad[..cut]) {
            Ok(()) => taken += 1,
            Err(_) => dropped += 1,
        }
        net.ends[end].handle_timeout(net.now);
        while net.ends[end].poll_transmit().is_some() {}
        while let Some(event) = net.ends[end].poll_event() {
            if let Event { id, cause: Cause::Received(Message::Req(_), _), .. } = event {
                let _ = net.ends[end].accept(net.now, id, &reply(), b"");
            }
        }
        assert!(net.ends[end].connections() <= 100);
    }
    let counted: u64 = net
        .ends
        .iter()
        .map(Cm::counters)
        .map(|c| c.malformed + c.no_connection + c.out_of_state + c.full)
        .sum();
    assert_eq!(counted, dropped, "every drop is counted");
    assert!(taken > 1_000 && dropped > 1_000, "{taken} taken, {dropped} dropped");
}

#[test]
fn a_flood_of_requests_takes_no_more_room_than_there_is() {
    let mut end = Cm::new(CmConfig { slot: 2, seed: 1, max_connections: 100 });
    end.listen(SERVICE, None, 1_000_000).unwrap();
    for number in 1..=5_000 {
        let req = Req { local_id: number, qpn: number, ..request() };
        let _ = end.handle_mad(Now(0), route(1), &mad_of(Message::Req(req), 0));
    }
    assert_eq!((end.connections(), end.counters().full), (100, 4_900));
    assert_eq!(std::iter::from_fn(|| end.poll_event()).count(), 100);
}

#[test]
fn a_stranger_ends_nobody_s_connection() {
    let mut net = Net::new(1, Faults::default());
    let [asking, asked] = net.connect();
    let ids = Ids { local: asked.0, remote: asking.0 };
    let stranger = Route { local: gid(0), remote: gid(8) };
    let wrong = Ids { local: asked.0 + 1, ..ids };
    for (name, from, message) in [
        ("DREQ from elsewhere", stranger, Message::Dreq(Dreq { ids, qpn: QPNS[0] })),
        ("DREQ with another id", route(0), Message::Dreq(Dreq { ids: wrong, qpn: QPNS[0] })),
        ("DREQ for another QP", route(0), Message::Dreq(Dreq { ids, qpn: QPNS[0] + 1 })),
        ("REJ from elsewhere", stranger, Message::Rej(rej(ids, 2, 28, &[]))),
        ("REJ of the REQ, late", route(0), Message::Rej(rej(ids, 0, 10, &[]))),
        (
            "REJ of the REQ, late, from elsewhere",
            stranger,
            Message::Rej(rej(Ids { local: 0, ..ids }, 0, 8, &[])),
        ),
        ("DREP without a DREQ", route(0), Message::Drep(ids)),
        ("RTU to the side that sends it", route(0), Message::Rtu(ids)),
        ("MRA of a REQ, late", route(0), Message::Mra(Mra { ids, message: 0, timeout: 3 })),
    ] {
        let _ = net.ends[0].handle_mad(net.now, from, &mad_of(message, 1));
        assert_eq!(net.ends[0].state(asking), Some(State::Established), "{name}");
        assert_eq!(net.ends[0].poll_event(), None, "{name}");
    }
}

/// What each state makes of each message; the rows are chapter 12's, as Linux reads it.
#[test]
fn each_state_takes_its_messages_and_no_other() {
    use State::{DreqReceived, DreqSent, Established, RepReceived, RepSent, ReqReceived, ReqSent, TimeWait};
    for (state, takes) in [
        (ReqSent, "REP MRA0 REJ"),
        (ReqReceived, "REJ"),
        (RepSent, "RTU MRA1 REJ DREQ"),
        (RepReceived, "REJ"),
        (Established, "DREQ REJ"),
        (DreqSent, "DREQ DREP REJ"),
        (DreqReceived, "DREP"),
        (TimeWait, "DREQ"),
    ] {
        for message in ["REP", "RTU", "MRA0", "MRA1", "REJ", "DREQ", "DREP"] {
            let (mut end, id, remote) = in_state(state);
            let ids = Ids { local: remote, remote: id.0 };
            let qpn = if matches!(state, RepSent) || end.0 == 1 { QPNS[1] } else { QPNS[0] };
            let mad = match message {
                "REP" => Message::Rep(Rep { ids, ..reply() }),
                "RTU" => Message::Rtu(ids),
                "MRA0" => Message::Mra(Mra { ids, message: 0, timeout: 20 }),
                "MRA1" => Message::Mra(Mra { ids, message: 1, timeout: 20 }),
                "REJ" => Message::Rej(rej(ids, 2, 28, &[])),
                "DREQ" => Message::Dreq(Dreq { ids, qpn }),
                _ => Message::Drep(ids),
            };
            let taken = end.1.handle_mad(Now(5_000), route(end.0), &mad_of(mad, 1)).is_ok();
            // The side that asked answers a REP again once it stands.
            let again = message == "REP" && state == Established;
            assert_eq!(
                taken,
                takes.split(' ').any(|name| name == message) || again,
                "{message} in {state:?}"
            );
        }
    }
}

/// An end in this state: which one, its connection, and the other's id.
fn in_state(state: State) -> ((usize, Cm), ConnectionId, u32) {
    let mut net = Net::new(1, Faults::default());
    let soon = Now(1_000_000);
    net.ends[1].listen(SERVICE, None, 8).unwrap();
    let asking = net.ends[0].connect(net.now, &request(), b"").unwrap();
    let pick = |net: Net, end: usize, id: ConnectionId, other: u32| {
        let mut ends = net.ends.into_iter();
        let cm = ends.nth(end).unwrap();
        assert_eq!(cm.state(id), Some(state));
        ((end, cm), id, other)
    };
    if state == State::ReqSent {
        return pick(net, 0, asking, 0x0400_0100);
    }
    let Some((1, Event { id: asked, cause: Cause::Received(Message::Req(_), _), .. })) = net.next_event(soon)
    else {
        panic!()
    };
    if state == State::ReqReceived {
        return pick(net, 1, asked, asking.0);
    }
    net.ends[1].accept(net.now, asked, &reply(), b"").unwrap();
    if state == State::RepSent {
        return pick(net, 1, asked, asking.0);
    }
    let Some((0, Event { cause: Cause::Received(Message::Rep(_), _), .. })) = net.next_event(soon) else {
        panic!()
    };
    if state == State::RepReceived {
        return pick(net, 0, asking, asked.0);
    }
    net.ends[0].ready(asking, b"").unwrap();
    let Some((1, Event { cause: Cause::Received(Message::Rtu(_), _), .. })) = net.next_event(soon) else {
        panic!()
    };
    if state == State::Established {
        return pick(net, 0, asking, asked.0);
    }
    net.ends[0].disconnect(net.now, asking, b"").unwrap();
    if state == State::DreqSent {
        return pick(net, 0, asking, asked.0);
    }
    let Some((1, Event { cause: Cause::Received(Message::Dreq(_), _), .. })) = net.next_event(soon) else {
        panic!()
    };
    if state == State::DreqReceived {
        return pick(net, 1, asked, asking.0);
    }
    net.ends[1].disconnect(net.now, asked, b"").unwrap();
    pick(net, 1, asked, asking.0)
}
