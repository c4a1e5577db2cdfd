//! Any value whatsoever from the other side: nothing panics, overflows, or grows.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use super::described::{ACK, Request, answer, found, nak, next_answer, rnr};
use crate::packet::{Aeth, Syndrome};
use crate::{
    Access, Content, DropReason, Fragment, NakCode, Now, Opcode, Outcome, Packet, Position, PostedMessage,
    Psn, Receive, Region, RegionError, ReplyVerdict, Requester, RequesterConfig, Resources, Responder,
    ResponderConfig, ServiceType, Verdict, Work,
};

/// A device that says yes or no at random, but never to more than it was asked.
pub(super) struct RandomResources(pub(super) u64);

impl RandomResources {
    fn yes(&mut self) -> bool {
        self.0 = self.0.rotate_left(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 & 4 != 0
    }
}

impl Resources for RandomResources {
    fn region(&self, key: u32, va: u64, len: u64, _: Access) -> Result<Region, RegionError> {
        if key & 1 == 0 {
            Ok(Region { key, va, len, address: va, rights: Access(0) })
        } else {
            Err(RegionError::UnknownKey { key })
        }
    }

    fn take_receive(&mut self) -> Option<Receive> {
        let capacity = if self.yes() { u64::from(u32::MAX) } else { 100 };
        self.yes().then_some(Receive { capacity, id: 1 })
    }

    fn may_invalidate(&self, rkey: u32) -> bool {
        rkey & 1 == 0
    }
}

pub(super) fn service() -> impl Strategy<Value = ServiceType> {
    prop::sample::select(vec![
        ServiceType::Rc,
        ServiceType::Rc,
        ServiceType::Rc,
        ServiceType::Uc,
        ServiceType::Ud,
    ])
}

fn opcode() -> impl Strategy<Value = Opcode> {
    prop::sample::select(Opcode::ALL.to_vec())
}

/// Mostly small, sometimes at an edge, sometimes anything.
pub(super) fn number() -> impl Strategy<Value = u32> {
    let edges =
        vec![0, 1, 7, 8, 1 << 31, (1 << 31) - 1, (1 << 31) + 1, u32::MAX, u32::MAX - 1, 0xff_ffff, 1 << 23];
    prop_oneof![4 => 0..64u32, 2 => prop::sample::select(edges), 1 => any::<u32>()]
}

/// A request whose PSN lies `psn` from the one expected when it is used.
fn request() -> impl Strategy<Value = Request> {
    let header = (service(), prop::bool::weighted(0.9), opcode(), number(), any::<[u8; 4]>());
    let target = (any::<u64>(), number(), number(), 0..20u8, number(), number());
    (header, target, prop::bool::weighted(0.8)).prop_map(
        |((service, same, opcode, psn, imm), target, near)| {
            let (remote_va, rkey, length, split, offset, piece) = target;
            // Three of four atomics have the length that they must have.
            let length = if opcode.is_atomic() && psn % 4 != 0 { 8 } else { length };
            let fragment = match split {
                0..14 => Fragment { offset: 0, length },
                14..18 => Fragment { offset: 0, length: length / 2 },
                _ => Fragment { offset, length: piece },
            };
            Request {
                src_qpn: 1,
                // Turned into the responder's own where `same`.
                service: if same { ServiceType::Rc } else { service },
                opcode,
                psn: Psn::new(psn),
                solicited: near,
                ack_requested: same,
                imm,
                remote_va: if near { remote_va & !7 } else { remote_va },
                rkey,
                length,
                swap_add: remote_va,
                compare: remote_va,
                qkey: 0,
                fragment,
            }
        },
    )
}

/// Bytes of a READ response.
#[derive(Debug, Clone, Copy)]
enum Size {
    Bytes(u32),
    /// So many packets of the path MTU.
    Packets(u32),
    /// All that its READ asks for from its PSN on.
    Rest,
}

impl Size {
    fn bytes(self, mtu: u32, rest: u32) -> u32 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Packets(packets) => packets.saturating_mul(mtu),
            Size::Rest => rest,
        }
    }
}

fn size() -> impl Strategy<Value = Size> {
    let sizes = vec![Size::Bytes(0), Size::Bytes(16), Size::Packets(1), Size::Packets(2)];
    prop_oneof![2 => prop::sample::select(sizes), 2 => Just(Size::Rest), 1 => number().prop_map(Size::Bytes)]
}

fn reply() -> impl Strategy<Value = (Packet, Size)> {
    let positions = vec![Position::First, Position::Middle, Position::Last, Position::Only];
    let response =
        prop::sample::select(positions).prop_map(|position| Content::ReadResponse { position, aeth: None });
    let content = prop_oneof![
        1 => Just(ACK),
        1 => any::<u8>().prop_map(rnr),
        1 => prop::sample::select(vec![NakCode::PsnSequence, NakCode::InvalidRequest, NakCode::RemoteAccess])
            .prop_map(nak),
        3 => response,
        1 => any::<u64>().prop_map(found),
    ];
    (number(), content, size()).prop_map(|(psn, content, size)| (answer(psn, content, 0), size))
}

fn check_work(request: &Request, work: &Work, qp_grants: Access) -> Result<(), TestCaseError> {
    let in_message =
        |offset: u32, length: u32| u64::from(offset) + u64::from(length) <= u64::from(request.length);
    prop_assert!(qp_grants.contains(request.opcode.remote_access()));
    match *work {
        Work::Receive { receive, scatter_offset, length, .. } => {
            prop_assert!(u64::from(scatter_offset) + u64::from(length) <= receive.capacity);
        }
        Work::Write { region, offset, length, .. } => {
            prop_assert!(in_message(offset, length) && u64::from(offset) + u64::from(length) <= region.len);
        }
        Work::Atomic { region, .. } => prop_assert!(region.len == 8 && region.va % 8 == 0),
    }
    Ok(())
}

#[derive(Debug, Clone)]
struct Attack {
    service: ServiceType,
    path_mtu_bytes: u32,
    access: u32,
    max_dest_rd_atomic: u8,
    expected: u32,
    seed: u64,
    /// Request, outcome of its work, and whether the replies are polled after it.
    requests: Vec<(Request, u8, bool)>,
}

fn mtu() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0u32, 1, 256, 4096, u32::MAX])
}

fn attack() -> impl Strategy<Value = Attack> {
    let requests = prop::collection::vec((request(), 0..20u8, prop::bool::weighted(0.3)), 1..60);
    let resources = prop::sample::select(vec![0u8, 1, 4, 255]);
    (service(), mtu(), 0..16u32, resources, number(), any::<u64>(), requests).prop_map(
        |(service, path_mtu_bytes, access, max_dest_rd_atomic, expected, seed, requests)| Attack {
            service,
            path_mtu_bytes,
            access: access | if seed & 1 == 0 { 0xf } else { 0 },
            max_dest_rd_atomic,
            expected,
            seed,
            requests,
        },
    )
}

/// Mostly the PSN expected, else one beside it.
fn aim(expected: Psn, random: Psn) -> Psn {
    match random.value() % 8 {
        0 => expected.plus(1),
        1 => expected.minus(1),
        2 => expected.minus(2),
        _ => expected,
    }
}

/// What the attacks reached.
#[derive(Default)]
struct Reached {
    executed: [u64; Opcode::ALL.len()],
    dropped: [u64; DropReason::ALL.len()],
    duplicates: u64,
    sequence_errors: u64,
    rnr_naks: u64,
    fatal_naks: u64,
}

impl Reached {
    fn add(&mut self, answer: &Packet) {
        let Content::Acknowledge(Aeth { syndrome, .. }) = answer.content else { return };
        match syndrome {
            Syndrome::Ack => {}
            Syndrome::RnrNak { .. } => self.rnr_naks += 1,
            Syndrome::Nak(NakCode::PsnSequence) => self.sequence_errors += 1,
            Syndrome::Nak(_) => self.fatal_naks += 1,
        }
    }
}

fn attack_with(attack: &Attack, reached: &mut Reached) -> Result<(), TestCaseError> {
    let Attack { service, path_mtu_bytes, max_dest_rd_atomic, .. } = *attack;
    let access = Access(attack.access);
    let config = ResponderConfig {
        service,
        peer_qpn: Some(1),
        expected_psn: Psn::new(attack.expected),
        path_mtu_bytes,
        access,
        max_dest_rd_atomic,
        min_rnr_timer: 0xff,
        qkey: 0,
    };
    let mut responder = Responder::new(config);
    let mut device = RandomResources(attack.seed | 1);
    let mut last = attack.requests[0].0;
    for &(request, outcome, poll) in &attack.requests {
        let aimed = Request {
            service: if request.ack_requested { service } else { request.service },
            psn: if request.solicited { aim(responder.expected_psn(), request.psn) } else { request.psn },
            qkey: u32::from(outcome == 18),
            ..request
        };
        // Now and then the one before once more, or its continuation.
        let request = match outcome {
            17 => last,
            14..=16 => {
                let offset = last.fragment.offset.wrapping_add(last.fragment.length);
                let left = last.length.saturating_sub(offset);
                let length = if outcome == 14 { left } else { left / 2 };
                Request { fragment: Fragment { offset, length }, ..last }
            }
            _ => aimed,
        };
        last = request;
        let messages = responder.counters().messages;
        let verdict = responder.handle_packet(&request.packet(path_mtu_bytes), &mut device);
        let is_new = responder.counters().messages > messages;
        reached.executed[request.opcode as usize] += u64::from(verdict == Verdict::Answered && is_new);
        if let Verdict::Dropped(reason) = verdict {
            reached.dropped[reason as usize] += 1;
            if reason == DropReason::Busy && outcome > 10 {
                responder.executed(Outcome::Done);
            }
        }
        if let Verdict::Execute(work) = verdict {
            check_work(&request, &work, access)?;
            reached.executed[request.opcode as usize] += 1;
            match outcome {
                0 => responder.executed(Outcome::LocalFault { addr: 0 }),
                1 => {}
                2 => responder.executed(Outcome::Revoked),
                _ if request.opcode.is_atomic() => responder.executed(Outcome::Atomic { old: 1 }),
                _ => responder.executed(Outcome::Done),
            }
        }
        if poll {
            let replies = std::iter::from_fn(|| next_answer(&mut responder));
            let replies = replies.inspect(|answer| reached.add(&answer.packet)).count();
            prop_assert!(replies <= 2 * usize::from(max_dest_rd_atomic) + 2, "{} replies", replies);
            while responder.poll_event().is_some() {}
        }
        // A QP in error stays so; the attack goes on with the next.
        if responder.is_failed() && outcome > 3 {
            reached.duplicates += responder.counters().duplicates;
            responder = Responder::new(config);
        }
    }
    reached.duplicates += responder.counters().duplicates;
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    }
}

/// The table shows that the requests reach everything, and are not all thrown away at the door.
#[test]
fn any_sequence_of_requests_is_survived_by_a_responder() {
    let reached = RefCell::new(Reached::default());
    let outcome = TestRunner::new(config(20_000))
        .run(&attack(), |attack| attack_with(&attack, &mut reached.borrow_mut()));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let reached = reached.into_inner();
    let executed =
        Opcode::ALL.into_iter().map(|opcode| (format!("{opcode:?}"), reached.executed[opcode as usize]));
    let dropped = DropReason::ALL.into_iter().map(|why| (format!("{why:?}"), reached.dropped[why as usize]));
    let others = [
        ("duplicates", reached.duplicates),
        ("sequence errors", reached.sequence_errors),
        ("RNR NAKs", reached.rnr_naks),
        ("fatal NAKs", reached.fatal_naks),
    ];
    let others = others.map(|(what, times)| (what.to_string(), times));
    let table: Vec<_> = executed.chain(dropped).chain(others).collect();
    for (what, times) in &table {
        println!("{what:20} {times}");
    }
    let rare: Vec<_> = table.iter().filter(|(_, times)| *times < 100).collect();
    assert!(rare.is_empty(), "reached less than 100 times: {rare:?}");
}

/// What happens, operation and length of a message, whether it is aimed, and a reply.
type Step = (u8, Opcode, u32, bool, (Packet, Size));

/// A requester among messages and replies at random.
#[derive(Debug, Clone)]
struct Script {
    service: ServiceType,
    path_mtu_bytes: u32,
    /// Retries, RNR retries, time-out and READs outstanding.
    codes: [u8; 4],
    window_messages: u32,
    first: u32,
    steps: Vec<Step>,
}

fn script() -> impl Strategy<Value = Script> {
    let steps = prop::collection::vec((0..8u8, opcode(), number(), any::<bool>(), reply()), 1..80);
    (service(), mtu(), any::<[u8; 4]>(), 0..10u32, number(), steps).prop_map(
        |(service, path_mtu_bytes, codes, window_messages, first, steps)| Script {
            service,
            path_mtu_bytes,
            codes,
            window_messages,
            first,
            steps,
        },
    )
}

/// Runs the script; READ responses of it that were placed, those before the last of their READ apart.
fn reply_with(script: Script, placed: &[Cell<u64>; 2]) -> Result<(), TestCaseError> {
    let Script { service, path_mtu_bytes, window_messages, first, steps, .. } = script;
    let [retry_count, rnr_retry, timeout, max_rd_atomic] = script.codes;
    let mut requester = Requester::new(RequesterConfig {
        service,
        first_psn: Psn::new(first),
        path_mtu_bytes,
        retry_count,
        rnr_retry,
        timeout,
        max_rd_atomic,
        window_messages,
    });
    // First PSN and length of the messages that did not end.
    let (mut posted, mut ended) = (VecDeque::new(), 0);
    let mtu = path_mtu_bytes.max(1);
    // Bytes placed of the oldest.
    let mut placed_bytes = 0;
    let mut now = Now(0);
    for (step, opcode, length, near, (reply, size)) in steps {
        match step {
            0 | 1 => {
                // Half of them READs, of some packets.
                let is_read = step == 0;
                let opcode = if is_read { Opcode::Read } else { opcode };
                let length =
                    if is_read { mtu.saturating_mul(length % 5).saturating_add(length % 7) } else { length };
                posted.push_back((requester.next_psn(), length));
                requester.post(PostedMessage { opcode, length, fence: near });
            }
            2 | 3 => {
                while let Some(transmit) = requester.next_packet(u32::MAX) {
                    requester.sent_packet(now, &transmit, transmit.fragment.length);
                }
            }
            4 | 5 => {
                let (oldest, length) = posted.front().copied().unwrap_or_default();
                let psn = match (step, near) {
                    (4, _) => oldest.plus(placed_bytes / mtu),
                    (_, true) => oldest.plus(reply.psn.value() % 4),
                    _ => reply.psn,
                };
                let before = psn.distance_from(oldest).saturating_mul(mtu);
                let bytes = size.bytes(mtu, length.saturating_sub(before));
                let payload = Fragment { offset: 0, length: bytes };
                let verdict = requester.handle_packet(now, &Packet { psn, payload, ..reply });
                if let ReplyVerdict::Place { ticket, fragment } = verdict {
                    let (_, length) = posted[ticket.0 as usize - ended];
                    let end = u64::from(fragment.offset) + u64::from(fragment.length);
                    prop_assert!(fragment.length == bytes && end <= u64::from(length));
                    let is_part = end < u64::from(length);
                    placed_bytes = if is_part { fragment.offset + fragment.length } else { 0 };
                    placed[usize::from(is_part)].update(|times| times + 1);
                }
            }
            6 => {
                now = requester.poll_timeout().unwrap_or(now).max(now.after(u64::from(length)));
                requester.handle_timeout(now);
            }
            _ if near => requester.hold_timer(now),
            _ => {
                requester.fail(crate::Ticket(u64::from(length)), crate::Status::LocalProtection);
                requester.resume();
            }
        }
        let completions = std::iter::from_fn(|| requester.poll_completion()).count();
        if near && requester.is_failed() {
            requester.resume();
        }
        posted.drain(..completions);
        ended += completions;
        placed_bytes = if completions > 0 { 0 } else { placed_bytes };
        prop_assert_eq!(posted.len(), requester.outstanding());
    }
    requester.enter_error();
    let flushed = std::iter::from_fn(|| requester.poll_completion()).count();
    prop_assert_eq!(posted.len(), flushed, "every message ends once");
    prop_assert_eq!(requester.poll_timeout(), None);
    Ok(())
}

#[test]
fn any_sequence_of_replies_is_survived_by_a_requester() {
    let placed = [Cell::new(0), Cell::new(0)];
    let outcome = TestRunner::new(config(4000)).run(&script(), |script| reply_with(script, &placed));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    println!("READ responses placed, last ones and others: {placed:?}");
    assert!(placed.iter().all(|times| times.get() > 50), "{placed:?}");
}
