//! Any packet at all from the peer, on a wire and in shared memory: nothing panics, overflows or grows.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use super::hostile::{RandomResources, number, service};
use crate::message::MAX_MESSAGE_BYTES;
use crate::packet::{Aeth, AtomicEth, Deth, Reth, Syndrome, Trailer};
use crate::testing::{Arrival, Connection, WorkRequest};
use crate::wire::Position;
use crate::{
    Access, Content, Fragment, NakCode, Now, Opcode, Outcome, Packet, PostedMessage, Psn, ReplyVerdict,
    RequesterConfig, ResponderConfig, SendWindow, ServiceType, Verdict, Work,
};

/// Path MTU, and the most bytes of a packet in shared memory; none: on a wire.
type Path = (u32, Option<u32>);

/// The paths, and how many cases each is for.
const PATHS: [(Path, u32); 4] = [
    ((256, None), 6000),
    ((256, Some(4 * 256)), 1000),
    ((1024, Some(4 * 1024)), 1000),
    ((4096, Some(4 * 4096)), 1000),
];

/// Length of half of the messages posted.
const fn usual_length(mtu: u32) -> u32 {
    2 * mtu + 88
}

fn content() -> impl Strategy<Value = Content> {
    let position =
        || prop::sample::select(vec![Position::First, Position::Middle, Position::Last, Position::Only]);
    let trailer = || {
        prop_oneof![
            3 => Just(Trailer::None),
            1 => any::<[u8; 4]>().prop_map(Trailer::Immediate),
            1 => any::<[u8; 4]>().prop_map(Trailer::Invalidate),
        ]
    };
    let reth = || {
        (any::<u64>(), number(), number()).prop_map(|(va, rkey, length)| Reth { va, rkey, dma_bytes: length })
    };
    let atomic = || {
        (0..99u64, number(), any::<u64>()).prop_map(|(va, rkey, swap_add)| AtomicEth {
            va: va * 4,
            rkey,
            swap_add,
            compare: 0,
        })
    };
    let code = prop::sample::select(vec![
        NakCode::PsnSequence,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperation,
    ]);
    let syndrome = prop_oneof![
        8 => Just(Syndrome::Ack),
        2 => any::<u8>().prop_map(|timer| Syndrome::RnrNak { timer }),
        1 => code.prop_map(Syndrome::Nak),
    ];
    let aeth = (syndrome, number()).prop_map(|(syndrome, msn)| Aeth { syndrome, msn });
    prop_oneof![
        4 => (position(), trailer()).prop_map(|(position, trailer)| Content::Send { position, trailer }),
        4 => (position(), reth(), trailer())
            .prop_map(|(position, reth, trailer)| Content::Write { position, reth, trailer }),
        2 => reth().prop_map(Content::ReadRequest),
        1 => atomic().prop_map(Content::CompareSwap),
        1 => atomic().prop_map(Content::FetchAdd),
        3 => position().prop_map(|position| Content::ReadResponse { position, aeth: None }),
        2 => aeth.prop_map(Content::Acknowledge),
        1 => any::<u64>().prop_map(|old| {
            Content::AtomicAcknowledge { aeth: Aeth { syndrome: Syndrome::Ack, msn: 0 }, old }
        }),
    ]
}

/// A packet whose PSN lies `psn` from the one that is expected when it is used; mostly full ones.
fn packet(mtu: u32) -> impl Strategy<Value = (u32, Packet)> {
    let size = prop_oneof![3 => Just(mtu), 1 => Just(2 * mtu), 2 => 0..mtu, 1 => number()];
    (service(), prop_oneof![4 => Just(0), 1 => number()], content(), size, any::<bool>()).prop_map(
        |(service, psn, content, length, ack_requested)| {
            let packet = Packet {
                service,
                dst_qpn: 2,
                psn: Psn::new(0),
                ack_requested,
                solicited: false,
                deth: Deth { qkey: 0, src_qpn: 1 },
                content,
                payload: Fragment { offset: u32::MAX, length },
            };
            (psn, packet)
        },
    )
}

fn fresh(service: ServiceType, (path_mtu_bytes, most): Path) -> Connection {
    let requester = RequesterConfig {
        service,
        first_psn: Psn::new(0xff_fff0),
        path_mtu_bytes,
        retry_count: 7,
        rnr_retry: 7,
        timeout: 8,
        max_rd_atomic: 4,
        window_messages: 16,
    };
    let responder = ResponderConfig {
        service,
        peer_qpn: Some(1),
        expected_psn: Psn::new(0xff_fff0),
        path_mtu_bytes,
        access: Access(0xf),
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        qkey: 0,
    };
    match most {
        Some(most) => Connection::shared(requester, responder, most),
        None => Connection::new(requester, SendWindow { packets: 32, ack_every: 4 }, responder, 4),
    }
}

fn post(connection: &mut Connection, opcode: Opcode, length: u32) {
    if !connection.requester.can_post(opcode, false) {
        return;
    }
    connection.post(WorkRequest {
        message: PostedMessage { opcode, length: if opcode.is_atomic() { 8 } else { length }, fence: false },
        solicited: true,
        imm: [7; 4],
        remote_va: u64::MAX - 3,
        rkey: 1,
        swap_add: 1,
        compare: 2,
        src_qpn: 2,
        dst_qpn: 1,
        qkey: 0,
    });
}

/// The outcome of a work is within what it was granted. On a wire a packet has at most the path MTU, in
/// shared memory as many bytes as its message.
fn answer(connection: &mut Connection, packet: &Packet, work: Work, (mtu, most): Path, fault: u64) {
    let longest = if most.is_some() { MAX_MESSAGE_BYTES } else { mtu };
    match work {
        Work::Receive { receive, scatter_offset, length, .. } => {
            assert!(length == packet.payload.length && length <= longest);
            assert!(u64::from(scatter_offset) + u64::from(length) <= receive.capacity);
        }
        Work::Write { region, offset, length, .. } => {
            assert!(length == packet.payload.length && length <= longest);
            assert!(u64::from(offset) + u64::from(length) <= region.len.max(u64::from(length)));
            assert!(length == 0 || region.len > 0, "bytes without a region");
        }
        Work::Atomic { region, .. } => assert_eq!((region.len, region.va % 8), (8, 0)),
    }
    connection.responder.executed(match (fault, work) {
        (0, _) => Outcome::LocalFault { addr: 0 },
        (1, _) => Outcome::Revoked,
        (_, Work::Atomic { .. }) => Outcome::Atomic { old: 1 },
        _ => Outcome::Done,
    });
}

/// The packet at a PSN where it may matter; for two of three the length also fits what their headers say.
fn aimed(
    connection: &Connection,
    service: ServiceType,
    packet: Packet,
    (distance, number): (u32, u32),
    (mtu, most): Path,
) -> Packet {
    let mut packet = packet;
    let base = if packet.content.is_request() {
        connection.responder.expected_psn()
    } else {
        packet.psn.plus(number / 3 % 3)
    };
    packet.psn = base.plus(distance);
    if number.is_multiple_of(3) {
        return packet;
    }
    packet.service = service;
    // Of the packets of a WRITE or of a response, which has `usual_length`, some hold two of the path MTU.
    let is_double = most.is_some() && number % 4 < 2;
    let full = if is_double { 2 * mtu } else { mtu };
    match &mut packet.content {
        Content::Write { position, reth, .. } => {
            packet.payload.length = full;
            let packets = if most.is_some() { 3 } else { 2 };
            reth.dma_bytes = if *position == Position::Only { full } else { packets * mtu };
            reth.rkey &= !1;
        }
        Content::Send { .. } => {
            packet.payload.length = packet.payload.length.clamp(1, most.unwrap_or(mtu));
        }
        Content::ReadResponse { position, .. } => {
            packet.payload.length = match *position {
                Position::Only if is_double => usual_length(mtu),
                Position::Only | Position::Last => usual_length(mtu) % mtu + full - mtu,
                Position::First | Position::Middle => full,
            };
        }
        _ => packet.payload.length = 0,
    }
    packet
}

/// Packets that came to something: those of the path MTU at most, and longer ones.
#[derive(Debug, Default)]
struct Reached {
    executed: [Cell<u64>; 2],
    placed: [Cell<u64>; 2],
    sent: [Cell<u64>; 2],
}

fn count(times: &[Cell<u64>; 2], bytes: u32, mtu: u32) {
    times[usize::from(bytes > mtu)].update(|times| times + 1);
}

#[test]
fn any_packet_leaves_a_connection_whole() {
    for (path, cases) in PATHS {
        let reached = attack(path, cases);
        let Reached { executed, placed, sent } = &reached;
        println!("{path:?}: executed {executed:?}, READ packets placed {placed:?}, sent {sent:?}");
        let rows = [(executed, 5_000, 500), (placed, 100, 12), (sent, 10_000, 1_000)];
        for ([short, long], least_short, least_long) in rows {
            assert!(short.get() > least_short * u64::from(cases) / 6_000, "{path:?}: {reached:?}");
            assert!(
                path.1.is_none() || long.get() > least_long * u64::from(cases) / 6_000,
                "{path:?}: {reached:?}"
            );
        }
    }
}

fn attack(path: Path, cases: u32) -> Reached {
    let (mtu, most) = path;
    let most = most.unwrap_or(mtu);
    let longest = 12 * mtu;
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(3),
        ..ProptestConfig::default()
    };
    let steps =
        prop::collection::vec((packet(mtu), prop::sample::select(Opcode::ALL.to_vec()), number()), 1..60);
    let reached = Reached::default();
    let outcome = TestRunner::new(config).run(&(steps, any::<u64>(), service()), |(steps, seed, service)| {
        let (mut connection, mut device) = (fresh(service, path), RandomResources(seed));
        let mut read_psn = Psn::new(0xff_fff0);
        for (step, ((distance, packet), opcode, number)) in steps.into_iter().enumerate() {
            if connection.responder.is_failed() || connection.requester.is_failed() {
                connection = fresh(service, path);
            }
            let length = if number % 2 == 0 { usual_length(mtu) } else { number.min(longest) };
            post(&mut connection, opcode, length);
            // Half of what goes out is polled: responses are cut off anywhere.
            for _ in 0..number % 8 {
                if let Some(outgoing) = connection.poll_transmit(Now(step as u64)) {
                    let length = outgoing.packet.payload.length;
                    prop_assert!(length <= most);
                    count(&reached.sent, length, mtu);
                    if let Content::ReadRequest(_) = outgoing.packet.content {
                        read_psn = outgoing.packet.psn;
                    }
                    if number % 97 == 3 {
                        connection.responder.read_failed(Outcome::Revoked);
                    }
                }
            }
            let packet = Packet { psn: read_psn, ..packet };
            let packet = aimed(&connection, service, packet, (distance, number), path);
            let length = packet.payload.length;
            match connection.handle_packet(Now(step as u64), &packet, &mut device) {
                Arrival::Request(Verdict::Execute(work)) => {
                    count(&reached.executed, length, mtu);
                    answer(&mut connection, &packet, work, path, device.0 % 50);
                }
                Arrival::Reply(ReplyVerdict::Place { fragment, .. }) => {
                    count(&reached.placed, length, mtu);
                    prop_assert_eq!(fragment.length, length);
                    prop_assert!(fragment.offset + length <= longest);
                }
                Arrival::Request(_) | Arrival::Reply(_) => {}
            }
            connection.requester.handle_timeout(Now((step as u64) << 20));
        }
        // Whatever was asked for, it comes to an end: no reply makes another.
        for _ in 0..100_000_000u64 {
            let Some(outgoing) = connection.responder.next_packet(most) else { break };
            prop_assert!(outgoing.packet.payload.length <= most);
            connection.responder.sent_packet(outgoing.packet.payload.length);
        }
        prop_assert!(!connection.responder.has_reply());
        while connection.poll_event().is_some() {}
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    reached
}
