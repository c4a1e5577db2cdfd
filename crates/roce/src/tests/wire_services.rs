//! UC and UD in packets: what a gap costs, what nobody is told, what a datagram may be.

use super::pair::pattern;
use super::wire_responder::{Fixture, packet, send};
use crate::packet::{Reth, Trailer};
use crate::testing::{EndpointConfig, Fault, LocalWork, Pair, Pick, Rng, Side};
use crate::wire::Position::{self, First, Last, Middle, Only};
use crate::{Content, DropReason, Opcode, Packet, ServiceType, Status, Verdict, Work};

const MTU: u32 = 1024;

fn uc(psn: u32, position: Position, bytes: u32) -> Packet {
    Packet { service: ServiceType::Uc, ..send(psn, position, bytes) }
}

fn uc_write(psn: u32, position: Position, bytes: u32, total: u32, trailer: Trailer) -> Packet {
    let reth = Reth { va: 0, rkey: 1, dma_bytes: total };
    let content = Content::Write { position, reth, trailer };
    Packet { service: ServiceType::Uc, ..packet(psn, content, bytes) }
}

/// One letter a packet: executed `x`, executed and message done `X`, dropped `.` (and why); no answers.
fn run(scene: &mut Fixture, packets: &[Packet]) -> (String, Vec<DropReason>) {
    let mut why = Vec::new();
    let word = |packet: &Packet| {
        let messages = scene.responder.counters().messages;
        let verdict = scene.take(packet);
        assert_eq!(scene.replies(), "", "nobody is told");
        match (verdict, scene.responder.counters().messages - messages) {
            (Verdict::Execute(_), 1) => 'X',
            (Verdict::Execute(_), 0) => 'x',
            (Verdict::Dropped(reason), 0) => {
                why.push(reason);
                '.'
            }
            other => panic!("{other:?}"),
        }
    };
    (packets.iter().map(word).collect(), why)
}

#[test]
fn an_unreliable_message_with_a_hole_is_dropped_to_its_end_and_the_next_one_counts() {
    use DropReason::*;
    let write = |psn, position, bytes, total| uc_write(psn, position, bytes, total, Trailer::None);
    let imm = Trailer::Immediate([1; 4]);
    for (name, packets, result, reason) in [
        ("in order", vec![uc(7, First, MTU), uc(8, Middle, MTU), uc(9, Last, 1)], "xxX", None),
        ("middle lost", vec![uc(7, First, MTU), uc(9, Last, 1), uc(10, Only, 1)], "x.X", Some(Hole)),
        ("first lost", vec![uc(8, Middle, MTU), uc(9, Last, 1), uc(10, Only, 1)], "..X", Some(Hole)),
        ("last lost", vec![uc(7, First, MTU), uc(9, Only, 1)], "xX", None),
        ("a whole message lost", vec![uc(8, Only, 1), uc(9, Only, 1)], "XX", None),
        ("middle of another operation", vec![uc(7, First, MTU), write(8, Last, 1, 0)], "x.", Some(Hole)),
        (
            "a copy of the middle",
            vec![uc(7, First, MTU), uc(8, Middle, MTU), uc(8, Middle, MTU), uc(9, Last, 1)],
            "xx..",
            Some(Hole),
        ),
        ("first too short", vec![uc(7, First, 9), uc(8, Only, 1)], ".X", Some(InvalidRequest)),
        ("middle too short", vec![uc(7, First, MTU), uc(8, Middle, 9), uc(9, Only, 1)], "x.X", Some(Hole)),
        ("a WRITE", vec![write(7, First, MTU, 1025), write(8, Last, 1, 0)], "xX", None),
        (
            "a WRITE that does not add up",
            vec![write(7, First, MTU, 1026), write(8, Last, 1, 0)],
            "x.",
            Some(Hole),
        ),
        (
            "a WRITE with immediate",
            vec![write(7, First, MTU, 1025), uc_write(8, Last, 1, 0, imm)],
            "xX",
            None,
        ),
        (
            "a READ",
            vec![Packet { service: ServiceType::Uc, ..packet(7, Content::ReadRequest(Reth::default()), 0) }],
            ".",
            Some(InvalidRequest),
        ),
        (
            "a key to invalidate",
            vec![
                uc(7, First, MTU),
                Packet {
                    service: ServiceType::Uc,
                    ..packet(8, Content::Send { position: Last, trailer: Trailer::Invalidate([0; 4]) }, 1)
                },
            ],
            "x.",
            Some(InvalidRequest),
        ),
        ("another service", vec![send(7, Only, 1)], ".", Some(WrongService)),
    ] {
        let mut scene = Fixture::new(ServiceType::Uc, 7, 1);
        let (got, mut dropped) = run(&mut scene, &packets);
        assert_eq!(got, result, "{name}");
        dropped.dedup();
        assert_eq!(dropped, reason.into_iter().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn the_receive_of_a_lost_message_serves_the_next() {
    let mut scene = Fixture::new(ServiceType::Uc, 7, 1);
    run(&mut scene, &[uc(7, First, MTU), uc(9, Only, 1)]);
    let receives: Vec<_> = scene
        .work
        .iter()
        .map(|work| match work {
            Work::Receive { receive, .. } => receive.id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(receives, [1, 1]);
}

#[test]
fn an_immediate_without_receive_loses_its_message_and_no_other() {
    let mut scene = Fixture::new(ServiceType::Uc, 7, 1);
    scene.device.receives.clear();
    let imm = Trailer::Immediate([1; 4]);
    let first = |psn| uc_write(psn, First, MTU, 1025, Trailer::None);
    assert_eq!(
        run(&mut scene, &[first(7), uc_write(8, Last, 1, 0, imm)]),
        ("x.".into(), vec![DropReason::NoReceive])
    );
    scene.device.receives = vec![64];
    assert_eq!(run(&mut scene, &[first(9), uc_write(10, Last, 1, 0, imm)]), ("xX".into(), vec![]));
}

/// Whatever a bad link does, a message of UC arrives whole, in order and at most once, or not at all.
#[test]
fn unreliable_messages_arrive_whole_or_not_at_all() {
    let mut arrived = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let sizes: Vec<_> = (0..20).map(|_| rng.below(4000) as usize).collect();
        let delayed = Pick::Chance(30, Rng::new(seed + 1));
        let mut pair =
            Pair::by_packet(EndpointConfig { service: ServiceType::Uc, ..EndpointConfig::default() })
                .with_noise(seed, 20, 20, 0, 2_000)
                .with_fault(Side::A, |below| Fault::delay(below, delayed, 1));
        for (index, size) in sizes.iter().enumerate() {
            pair.b.post_receive(4096);
            let imm = (index as u32).to_be_bytes();
            let send = LocalWork::send(&pattern(*size, index as u8));
            pair.a.post(LocalWork { opcode: Opcode::SendImm, imm, ..send });
        }
        pair.run_until_idle();
        for received in &pair.b.received {
            let imm = received.completion.expect("it ended well").imm;
            let index = u32::from_be_bytes(imm) as usize;
            assert_eq!(received.bytes, pattern(sizes[index], index as u8), "seed {seed}: message {index}");
        }
        arrived += pair.b.received.len();
        assert_eq!(pair.a.statuses(), [Status::Success; 20]);
    }
    println!("{arrived} of 6000 messages arrived");
    assert!((2_000..5_900).contains(&arrived), "{arrived}");
}
