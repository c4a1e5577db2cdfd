//! Any packet whatsoever from the other side: nothing panics, overflows, or grows.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use super::hostile::{RandomResources, number, service};
use crate::packet::{Aeth, AtomicEth, Deth, Reth, Syndrome, Trailer};
use crate::testing::{Arrival, Connection, WorkRequest};
use crate::wire::Position;
use crate::{
    Access, Content, Fragment, NakCode, Now, Opcode, Outcome, Packet, PostedMessage, Psn, ReplyVerdict,
    RequesterConfig, ResponderConfig, SendWindow, ServiceType, Verdict, Work,
};

const MTU: u32 = 256;
/// Of half of the messages posted.
const LENGTH: u32 = 2 * MTU + 88;

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
fn packet() -> impl Strategy<Value = (u32, Packet)> {
    let size = prop_oneof![4 => Just(MTU), 2 => 0..MTU, 1 => number()];
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

fn fresh(service: ServiceType) -> Connection {
    let requester = RequesterConfig {
        service,
        first_psn: Psn::new(0xff_fff0),
        path_mtu_bytes: MTU,
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
        path_mtu_bytes: MTU,
        access: Access(0xf),
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        qkey: 0,
    };
    Connection::new(requester, SendWindow { packets: 32, ack_every: 4 }, responder, 4)
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

/// What may come of a work is within what it was granted.
fn answer(connection: &mut Connection, packet: &Packet, work: Work, fault: u64) {
    match work {
        Work::Receive { receive, scatter_offset, length, .. } => {
            assert!(length == packet.payload.length && length <= MTU);
            assert!(u64::from(scatter_offset) + u64::from(length) <= receive.capacity);
        }
        Work::Write { region, offset, length, .. } => {
            assert!(length == packet.payload.length && length <= MTU);
            assert!(u64::from(offset) + u64::from(length) <= region.len.max(u64::from(length)));
            assert!(length == 0 || region.len > 0, "bytes without a region");
        }
        Work::Atomic { region, .. } => assert_eq!((region.len, region.va % 8), (8, 0)),
    }
    connection.executed(match (fault, work) {
        (0, _) => Outcome::LocalFault,
        (1, _) => Outcome::Revoked,
        (_, Work::Atomic { .. }) => Outcome::Atomic { old: 1 },
        _ => Outcome::Done,
    });
}

/// The packet at a PSN where it may matter; two of three also fitting in what their headers say, if not in where they come.
fn aimed(
    connection: &Connection,
    service: ServiceType,
    packet: Packet,
    distance: u32,
    number: u32,
) -> Packet {
    let mut packet = packet;
    let base = if packet.content.is_request() {
        connection.responder.expected_psn()
    } else {
        Psn::new(0xff_fff0).plus(number % 3)
    };
    packet.psn = base.plus(distance);
    if number.is_multiple_of(3) {
        return packet;
    }
    packet.service = service;
    let ends = packet.content.position().ends();
    match &mut packet.content {
        Content::Write { position, reth, .. } => {
            packet.payload.length = MTU;
            reth.dma_bytes = if *position == Position::Only { MTU } else { 2 * MTU };
            reth.rkey &= !1;
        }
        Content::Send { .. } => packet.payload.length = packet.payload.length.clamp(1, MTU),
        Content::ReadResponse { .. } => packet.payload.length = if ends { LENGTH % MTU } else { MTU },
        _ => packet.payload.length = 0,
    }
    packet
}

#[test]
fn any_packet_leaves_a_connection_whole() {
    let config = ProptestConfig {
        cases: 6000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(3),
        ..ProptestConfig::default()
    };
    let steps =
        prop::collection::vec((packet(), prop::sample::select(Opcode::ALL.to_vec()), number()), 1..60);
    let (executed, placed, sent) = (Cell::new(0u64), Cell::new(0u64), Cell::new(0u64));
    let outcome = TestRunner::new(config).run(&(steps, any::<u64>(), service()), |(steps, seed, service)| {
        let (mut connection, mut device) = (fresh(service), RandomResources(seed));
        for (step, ((distance, packet), opcode, number)) in steps.into_iter().enumerate() {
            if connection.responder.is_failed() || connection.requester.is_failed() {
                connection = fresh(service);
            }
            post(&mut connection, opcode, if number % 2 == 0 { LENGTH } else { number.min(3000) });
            // Half of what goes out is polled: responses are cut off anywhere.
            for _ in 0..number % 8 {
                if let Some(outgoing) = connection.poll_transmit(Now(step as u64)) {
                    prop_assert!(outgoing.packet.payload.length <= MTU);
                    sent.set(sent.get() + 1);
                    if number % 97 == 3 {
                        connection.responder.read_failed(Outcome::Revoked);
                    }
                }
            }
            let packet = aimed(&connection, service, packet, distance, number);
            match connection.handle_packet(Now(step as u64), &packet, &mut device) {
                Arrival::Request(Verdict::Execute(work)) => {
                    executed.set(executed.get() + 1);
                    answer(&mut connection, &packet, work, device.0 % 50);
                }
                Arrival::Reply(ReplyVerdict::Place(placement)) => {
                    placed.set(placed.get() + 1);
                    prop_assert_eq!(placement.fragment.length, packet.payload.length);
                    prop_assert!(placement.fragment.offset + placement.fragment.length <= 3000);
                }
                Arrival::Request(_) | Arrival::Reply(_) => {}
            }
            connection.handle_timeout(Now((step as u64) << 20));
        }
        // Whatever was asked for, it comes to an end: no reply makes another.
        for _ in 0..100_000_000u64 {
            if connection.responder.poll_packet().is_none() {
                break;
            }
        }
        prop_assert!(connection.responder.poll_packet().is_none());
        while connection.poll_event().is_some() {}
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    println!(
        "{} requests executed, {} READ packets placed, {} sent",
        executed.get(),
        placed.get(),
        sent.get()
    );
    assert!(executed.get() > 5_000 && placed.get() > 100 && sent.get() > 10_000);
}
