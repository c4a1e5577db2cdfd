//! What a responder answers to which requests, as dialogues.

use super::described::{Request, next_answer};
use crate::packet::{Aeth, Syndrome};
use crate::{
    Access, AsyncEvent, Content, DropReason, Fragment, NakCode, Opcode, Outcome, Packet, Position, Psn,
    Receive, Region, RegionError, Resources, Responder, ResponderConfig, ResponderEvent, ServiceType, Status,
    Verdict, Work,
};

const PEER: u32 = 0x77;
pub(super) const MTU: u32 = 1024;
const ALL_ACCESS: Access = Access(0xf);

/// Memory and receives of no size: keys below 100 are good, up to 1 MiB.
pub(super) struct Device {
    pub(super) receives: Vec<u64>,
    pub(super) taken: u64,
}

impl Resources for Device {
    fn region(&self, key: u32, va: u64, len: u64, _need: Access) -> Result<Region, RegionError> {
        if key >= 100 {
            return Err(RegionError::UnknownKey { key });
        }
        if va.checked_add(len).is_none_or(|end| end > 1 << 20) {
            return Err(RegionError::OutOfBounds { key, va, len, start: 0, length: 1 << 20 });
        }
        Ok(Region { key, va, len, address: va, rights: Access(0) })
    }

    fn take_receive(&mut self) -> Option<Receive> {
        let capacity = self.receives.pop()?;
        self.taken += 1;
        Some(Receive { capacity, id: self.taken })
    }

    fn may_invalidate(&self, rkey: u32) -> bool {
        rkey < 100
    }
}

pub(super) struct Fixture {
    pub responder: Responder,
    device: Device,
    outcome: Outcome,
}

fn config(service: ServiceType) -> ResponderConfig {
    ResponderConfig {
        service,
        peer_qpn: (service != ServiceType::Ud).then_some(PEER),
        expected_psn: Psn::new(7),
        path_mtu_bytes: MTU,
        access: ALL_ACCESS,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 12,
        qkey: 0x1111,
    }
}

pub(super) fn scene(service: ServiceType, receives: &[u64]) -> Fixture {
    scene_of(Responder::new(config(service)), receives)
}

/// In shared memory and on a wire.
pub(super) fn both_scenes(service: ServiceType, receives: &[u64]) -> [Fixture; 2] {
    [Responder::new(config(service)), Responder::by_packet(config(service), 100)]
        .map(|responder| scene_of(responder, receives))
}

fn scene_of(responder: Responder, receives: &[u64]) -> Fixture {
    let device = Device { receives: receives.to_vec(), taken: 0 };
    Fixture { responder, device, outcome: Outcome::Done }
}

pub(super) fn request(opcode: Opcode, psn: u32) -> Request {
    let length = if opcode.is_atomic() { 8 } else { 16 };
    Request {
        src_qpn: PEER,
        service: ServiceType::Rc,
        opcode,
        psn: Psn::new(psn),
        solicited: false,
        ack_requested: true,
        imm: [0, 0, 0, 9],
        remote_va: 0x40,
        rkey: 1,
        length,
        swap_add: 1,
        compare: 0,
        qkey: 0x1111,
        fragment: Fragment { offset: 0, length },
    }
}

pub(super) fn sized(opcode: Opcode, psn: u32, length: u32) -> Request {
    Request { length, fragment: Fragment { offset: 0, length }, ..request(opcode, psn) }
}

pub(super) fn part(whole: Request, offset: u32, length: u32) -> Request {
    Request { fragment: Fragment { offset, length }, ..whole }
}

impl Fixture {
    /// Runs one request to its end; says what was executed and what was replied.
    pub fn take(&mut self, request: &Request) -> String {
        let mut words = Vec::new();
        match self.responder.handle_packet(&request.packet(MTU), &mut self.device) {
            Verdict::Execute(work) => {
                words.push(self.execute(work));
            }
            Verdict::Answered => {}
            Verdict::Dropped(reason) => words.push(format!("drop:{reason:?}")),
        }
        words.extend(std::iter::from_fn(|| next_answer(&mut self.responder)).map(|out| word(&out.packet)));
        words.join(" ")
    }

    fn execute(&mut self, work: Work) -> String {
        let (word, outcome) = match work {
            Work::Receive { receive, scatter_offset, length, completion } => (
                format!("recv{}@{scatter_offset}+{length}{}", receive.id, tick(completion.is_some())),
                self.outcome,
            ),
            Work::Write { offset, length, completion, .. } => {
                (format!("write@{offset}+{length}{}", tick(completion.is_some())), self.outcome)
            }
            Work::Atomic { .. } if self.outcome == Outcome::Done => {
                ("atomic".to_string(), Outcome::Atomic { old: 100 + u64::from(self.responder.msn()) })
            }
            Work::Atomic { .. } => ("atomic".to_string(), self.outcome),
        };
        self.responder.executed(outcome);
        word
    }

    pub fn dialogue(&mut self, requests: &[Request]) -> String {
        requests.iter().map(|request| self.take(request)).collect::<Vec<_>>().join(" | ")
    }

    fn events(&mut self) -> Vec<ResponderEvent> {
        std::iter::from_fn(|| self.responder.poll_event()).collect()
    }
}

/// An answer in a word: what and PSN, and of READs their bytes and their last PSN.
fn word(packet: &Packet) -> String {
    let (psn, Fragment { offset, length }) = (packet.psn.value(), packet.payload);
    match packet.content {
        Content::Acknowledge(Aeth { syndrome: Syndrome::Ack, .. }) => format!("ack{psn}"),
        Content::Acknowledge(Aeth { syndrome: Syndrome::RnrNak { timer }, .. }) => {
            format!("rnr{psn}/{timer}")
        }
        Content::Acknowledge(Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), .. }) => {
            format!("nak{psn}")
        }
        Content::Acknowledge(Aeth { syndrome: Syndrome::Nak(code), .. }) => format!("{code:?}{psn}"),
        Content::ReadResponse { position: Position::Only, .. } => {
            let last = packet.psn.plus(packet.psn_count(MTU)).minus(1).value();
            format!("read@{offset}+{length} data{last}")
        }
        Content::AtomicAcknowledge { old, .. } => format!("old{psn}={old}"),
        other => panic!("a responder sends {other:?}"),
    }
}

fn tick(completes: bool) -> &'static str {
    if completes { "!" } else { "" }
}

#[test]
fn writes_are_executed_once_in_order_and_each_gap_is_naked_once() {
    let w = |psn| sized(Opcode::Write, psn, 16);
    for (name, arrivals, replies) in [
        ("in order", vec![7, 8], "write@0+16 ack7 | write@0+16 ack8"),
        ("duplicate_write_is_acked_not_executed", vec![7, 7], "write@0+16 ack7 | ack7"),
        ("old duplicate hears the latest", vec![7, 8, 7], "write@0+16 ack7 | write@0+16 ack8 | ack8"),
        ("gap, then more", vec![7, 9, 10], "write@0+16 ack7 | nak8 | drop:AfterNak"),
        ("gap repaired", vec![9, 7, 8, 9], "nak7 | write@0+16 ack7 | write@0+16 ack8 | write@0+16 ack9"),
        ("second gap after repair", vec![9, 7, 9], "nak7 | write@0+16 ack7 | nak8"),
        ("duplicate within a gap", vec![7, 9, 7], "write@0+16 ack7 | nak8 | ack7"),
        ("from nowhere ahead", vec![0x40_0000], "nak7"),
        ("from nowhere behind", vec![0xc0_0000], "ack6"),
    ] {
        let requests: Vec<_> = arrivals.into_iter().map(w).collect();
        assert_eq!(scene(ServiceType::Rc, &[]).dialogue(&requests), replies, "{name}");
    }
}

#[test]
fn the_count_of_messages_wraps_at_24_bits() {
    let mut scene = scene(ServiceType::Rc, &[]);
    for psn in 0..1 << 24 {
        let verdict =
            scene.responder.handle_packet(&sized(Opcode::Write, 7 + psn, 0).packet(MTU), &mut scene.device);
        assert!(matches!(verdict, Verdict::Execute(_)));
        scene.responder.executed(Outcome::Done);
    }
    assert_eq!(scene.responder.msn(), 0);
}

#[test]
fn psns_advance_by_packets_and_wrap() {
    let mut scene = scene(ServiceType::Rc, &[]);
    scene.responder =
        Responder::new(ResponderConfig { expected_psn: Psn::new(0xff_fffe), ..config(ServiceType::Rc) });
    let got = scene.dialogue(&[
        sized(Opcode::Write, 0xff_fffe, 3 * MTU),
        sized(Opcode::Write, 1, 0),
        sized(Opcode::Read, 2, 2 * MTU + 1),
        sized(Opcode::Write, 5, 1),
        sized(Opcode::Write, 0xff_ffff, 1),
    ]);
    assert_eq!(got, "write@0+3072 ack0 | write@0+0 ack1 | read@0+2049 data4 | write@0+1 ack5 | ack5");
    assert_eq!(scene.responder.expected_psn(), Psn::new(6));
    assert_eq!(scene.responder.msn(), 4);
}

#[test]
fn duplicate_reads_run_again_and_atomics_answer_from_the_list() {
    let read = |psn, length| sized(Opcode::Read, psn, length);
    let add = |psn| request(Opcode::FetchAdd, psn);
    let swap = |psn| request(Opcode::CompareSwap, psn);
    let middle = Request { remote_va: 0x40 + 1024, ..read(8, 1024) };
    for (name, arrivals, replies) in [
        ("read twice", vec![read(7, 16), read(7, 16)], "read@0+16 data7 | read@0+16 data7"),
        ("read again from its middle", vec![read(7, 3000), middle], "read@0+3000 data9 | read@0+1024 data8"),
        ("read of another length", vec![read(7, 16), read(7, 17)], "read@0+16 data7 | drop:UnknownDuplicate"),
        (
            "read that never was",
            vec![request(Opcode::Write, 7), read(7, 16)],
            "write@0+16 ack7 | drop:UnknownDuplicate",
        ),
        ("atomic twice", vec![add(7), add(7)], "atomic old7=100 | old7=100"),
        (
            "two atomics, the first again",
            vec![add(7), swap(8), add(7)],
            "atomic old7=100 | atomic old8=101 | old7=100",
        ),
        ("another operation", vec![add(7), swap(7)], "atomic old7=100 | drop:UnknownDuplicate"),
        (
            "the same at another address",
            vec![add(7), Request { remote_va: add(7).remote_va + 8, ..add(7) }],
            "atomic old7=100 | drop:UnknownDuplicate",
        ),
        (
            "the same through another key",
            vec![add(7), Request { rkey: add(7).rkey + 1, ..add(7) }],
            "atomic old7=100 | drop:UnknownDuplicate",
        ),
        (
            "older than the resources",
            vec![add(7), add(8), add(9), add(7)],
            "atomic old7=100 | atomic old8=101 | atomic old9=102 | drop:UnknownDuplicate",
        ),
    ] {
        assert_eq!(scene(ServiceType::Rc, &[]).dialogue(&arrivals), replies, "{name}");
    }
}

#[test]
fn no_receive_gives_one_rnr_nak_and_then_silence_until_that_message_comes_again() {
    let send = |psn| request(Opcode::Send, psn);
    let mut scene = scene(ServiceType::Rc, &[]);
    assert_eq!(scene.dialogue(&[send(7), send(8), send(9)]), "rnr7/12 | drop:AfterNak | drop:AfterNak");
    assert_eq!(scene.dialogue(&[send(7)]), "rnr7/12", "still none");
    scene.device.receives = vec![64, 64];
    assert_eq!(scene.dialogue(&[send(7), send(8)]), "recv1@0+16! ack7 | recv2@0+16! ack8");
    assert_eq!(
        scene.dialogue(&[request(Opcode::WriteImm, 9)]),
        "rnr9/12",
        "a write with immediate takes one too"
    );
}

#[test]
fn a_bad_request_is_naked_and_ends_the_responder() {
    use AsyncEvent::{AccessError, RequestError};
    let write = request(Opcode::Write, 7);
    let add = request(Opcode::FetchAdd, 7);
    for (name, bad, answer, event) in [
        ("wrong key", Request { rkey: 100, ..write }, "RemoteAccess7", AccessError),
        ("out of bounds", Request { remote_va: (1 << 20) - 8, ..write }, "RemoteAccess7", AccessError),
        ("address overflow", Request { remote_va: u64::MAX, ..write }, "RemoteAccess7", AccessError),
        (
            "wrong key of a read",
            Request { rkey: 100, ..request(Opcode::Read, 7) },
            "RemoteAccess7",
            AccessError,
        ),
        ("unaligned atomic", Request { remote_va: 0x44, ..add }, "InvalidRequest7", RequestError),
        ("too long", sized(Opcode::Write, 7, (1 << 31) + 1), "InvalidRequest7", RequestError),
        ("more bytes than the message", part(write, 0, 17), "InvalidRequest7", RequestError),
        ("a fragment without bytes", part(write, 0, 0), "InvalidRequest7", RequestError),
        (
            "invalidates a foreign key",
            Request { imm: [0, 0, 1, 0], ..request(Opcode::SendInvalidate, 7) },
            "RemoteAccess7",
            AccessError,
        ),
    ] {
        let mut scene = scene(ServiceType::Rc, &[64]);
        assert_eq!(scene.take(&bad), answer, "{name}");
        let failures: Vec<_> = scene.events();
        let [ResponderEvent::Failed(failure)] = failures[..] else { panic!("{name}: {failures:?}") };
        assert_eq!(failure.event, Some(event), "{name}");
        // A receive that was taken for it is flushed, not lost.
        assert!(failure.receive.is_none_or(|failed| failed.status == Status::Flushed), "{name}");
        assert_eq!(scene.take(&write), "drop:InError", "{name}");
    }
}

#[test]
fn an_operation_that_the_qp_does_not_grant_is_an_invalid_request() {
    for (opcode, missing) in [
        (Opcode::Write, Access::REMOTE_WRITE),
        (Opcode::WriteImm, Access::REMOTE_WRITE),
        (Opcode::Read, Access::REMOTE_READ),
        (Opcode::CompareSwap, Access::REMOTE_ATOMIC),
        (Opcode::FetchAdd, Access::REMOTE_ATOMIC),
    ] {
        let mut scene = scene(ServiceType::Rc, &[64]);
        scene.responder.set_attributes(Access(ALL_ACCESS.0 & !missing.0), 12, 0x1111);
        assert_eq!(scene.take(&request(opcode, 7)), "InvalidRequest7", "{opcode:?}");
        assert_eq!(scene.device.taken, 0, "{opcode:?} took a receive");
    }
}

#[test]
fn reads_beyond_the_responder_resources_are_an_invalid_request() {
    let reads = [7, 8, 9].map(|psn| request(Opcode::Read, psn));
    for mut scene in both_scenes(ServiceType::Rc, &[]) {
        assert_eq!(replies_after(&mut scene, &reads), "read@0+16 data7 read@0+16 data8 InvalidRequest9");
    }
    let mut none = scene(ServiceType::Rc, &[]);
    none.responder = Responder::new(ResponderConfig { max_dest_rd_atomic: 0, ..config(ServiceType::Rc) });
    assert_eq!(none.take(&request(Opcode::Read, 7)), "InvalidRequest7");
}

#[test]
fn a_send_longer_than_its_receive_ends_that_receive_with_local_length() {
    let long = sized(Opcode::Send, 7, 1025);
    for (capacity, parts, answers) in [
        (15, vec![request(Opcode::Send, 7)], "InvalidRequest7"),
        (1024, vec![part(long, 0, 1024), part(long, 1024, 1)], "recv1@0+1024 | InvalidRequest8"),
    ] {
        let mut scene = scene(ServiceType::Rc, &[capacity]);
        assert_eq!(scene.dialogue(&parts), answers);
        let events = scene.events();
        let Some(ResponderEvent::Failed(failure)) = events.last() else { panic!("{events:?}") };
        let failed = failure.receive.expect("the receive is reported");
        assert_eq!((failed.receive.id, failed.status, failure.event), (1, Status::LocalLength, None));
    }
}

#[test]
fn a_fault_in_the_responders_memory_is_a_remote_operation_error() {
    for (opcode, answer, status, event) in [
        (Opcode::Send, "recv1@0+16! RemoteOperation7", Some(Status::LocalProtection), None),
        (Opcode::Write, "write@0+16 RemoteOperation7", None, Some(AsyncEvent::QpFatal)),
        (Opcode::WriteImm, "write@0+16! RemoteOperation7", Some(Status::Flushed), Some(AsyncEvent::QpFatal)),
        (Opcode::FetchAdd, "atomic RemoteOperation7", None, Some(AsyncEvent::QpFatal)),
    ] {
        let mut scene = scene(ServiceType::Rc, &[64]);
        scene.outcome = Outcome::LocalFault { addr: 0 };
        assert_eq!(scene.take(&request(opcode, 7)), answer, "{opcode:?}");
        let events = scene.events();
        let Some(ResponderEvent::Failed(failure)) = events.last() else { panic!("{events:?}") };
        assert_eq!(failure.receive.map(|failed| failed.status), status, "{opcode:?}");
        assert_eq!(failure.event, event, "{opcode:?}");
    }
}

#[test]
fn a_region_that_went_away_between_two_fragments_is_a_remote_access_error() {
    for (service, total, length, answer, failed) in [
        (ServiceType::Rc, 2000, 976, "write@1024+976 RemoteAccess8", true),
        (ServiceType::Rc, 3000, 1024, "write@1024+1024 RemoteAccess8", true),
        (ServiceType::Uc, 2000, 976, "write@1024+976", false),
    ] {
        let whole = Request { service, ack_requested: false, ..sized(Opcode::Write, 7, total) };
        for mut scene in both_scenes(service, &[]) {
            assert_eq!(scene.take(&part(whole, 0, 1024)), "write@0+1024", "{service:?}");
            scene.outcome = Outcome::Revoked;
            assert_eq!(scene.take(&part(whole, 1024, length)), answer, "{service:?}");
            assert_eq!(scene.responder.is_failed(), failed, "{service:?}");
        }
    }
}

#[test]
fn packets_of_several_continue_exactly_and_a_hole_is_a_gap_like_any_other() {
    let whole = sized(Opcode::Send, 7, 3500);
    let (one, two, three) = (part(whole, 0, 1024), part(whole, 1024, 2048), part(whole, 3072, 428));
    let next = request(Opcode::Write, 11);
    for (name, arrivals, replies) in [
        (
            "in order",
            vec![one, two, three, next],
            "recv1@0+1024 | recv1@1024+2048 | recv1@3072+428! ack10 | write@0+16 ack11",
        ),
        ("a hole", vec![one, three], "recv1@0+1024 | nak8"),
        (
            "a hole, then all again",
            vec![one, three, one, two, three],
            "recv1@0+1024 | nak8 | ack7 | recv1@1024+2048 | recv1@3072+428! ack10",
        ),
        (
            "two that change places",
            vec![one, three, two, three],
            "recv1@0+1024 | nak8 | recv1@1024+2048 | recv1@3072+428! ack10",
        ),
        (
            "two holes",
            vec![one, three, three, two, next, three],
            "recv1@0+1024 | nak8 | drop:AfterNak | recv1@1024+2048 | nak10 | recv1@3072+428! ack10",
        ),
        (
            "the next message comes too soon",
            vec![one, next, two, three, next],
            "recv1@0+1024 | nak8 | recv1@1024+2048 | recv1@3072+428! ack10 | write@0+16 ack11",
        ),
        ("a middle without a start", vec![two, three], "nak7 | drop:AfterNak"),
        ("a middle twice", vec![one, two, two], "recv1@0+1024 | recv1@1024+2048 | ack9"),
        (
            "the start twice",
            vec![one, one, two, three],
            "recv1@0+1024 | ack7 | recv1@1024+2048 | recv1@3072+428! ack10",
        ),
        (
            "several of which the first came before",
            vec![one, part(whole, 0, 3072), two],
            "recv1@0+1024 | nak8 | recv1@1024+2048",
        ),
        (
            "the same again, because its NAK was lost",
            vec![one, part(whole, 0, 3072), part(whole, 0, 3072), two],
            "recv1@0+1024 | nak8 | ack7 | recv1@1024+2048",
        ),
        ("a whole message cuts in", vec![one, sized(Opcode::Write, 8, 16)], "recv1@0+1024 | InvalidRequest8"),
        ("no whole packets", vec![part(whole, 0, 1000)], "InvalidRequest7"),
        (
            "a duplicate afterwards",
            vec![one, two, three, two],
            "recv1@0+1024 | recv1@1024+2048 | recv1@3072+428! ack10 | ack10",
        ),
    ] {
        assert_eq!(scene(ServiceType::Rc, &[4096, 4096]).dialogue(&arrivals), replies, "{name}");
    }
}

#[test]
fn replies_keep_psn_order_and_acks_are_one_for_all() {
    let mut scene = scene(ServiceType::Rc, &[]);
    for (opcode, psn) in [
        (Opcode::Write, 7),
        (Opcode::Write, 8),
        (Opcode::Read, 9),
        (Opcode::FetchAdd, 10),
        (Opcode::Write, 11),
        (Opcode::Write, 12),
    ] {
        if let Verdict::Execute(work) =
            scene.responder.handle_packet(&request(opcode, psn).packet(MTU), &mut scene.device)
        {
            scene.execute(work);
        }
    }
    let answers: Vec<_> = std::iter::from_fn(|| next_answer(&mut scene.responder)).collect();
    let msns = answers.iter().map(|answer| match answer.packet.content {
        Content::Acknowledge(aeth) | Content::AtomicAcknowledge { aeth, .. } => aeth.msn,
        Content::ReadResponse { aeth, .. } => aeth.unwrap().msn,
        other => panic!("{other:?}"),
    });
    assert_eq!(msns.collect::<Vec<_>>(), [3, 4, 6]);
    let words: Vec<_> = answers.iter().map(|answer| word(&answer.packet)).collect();
    assert_eq!(words, ["read@0+16 data9", "old10=103", "ack12"]);
}

#[test]
fn work_not_reported_yet_holds_the_next_request() {
    let mut scene = scene(ServiceType::Rc, &[]);
    let first = scene.responder.handle_packet(&request(Opcode::Write, 7).packet(MTU), &mut scene.device);
    assert!(matches!(first, Verdict::Execute(_)));
    let second = scene.responder.handle_packet(&request(Opcode::Write, 8).packet(MTU), &mut scene.device);
    assert_eq!(second, Verdict::Dropped(DropReason::Busy));
    assert_eq!(next_answer(&mut scene.responder), None, "nothing is acknowledged before it is done");
}

#[test]
fn a_request_of_another_service_is_dropped() {
    let write = request(Opcode::Write, 7);
    let mut scene = scene(ServiceType::Rc, &[]);
    assert_eq!(scene.take(&Request { service: ServiceType::Uc, ..write }), "drop:WrongService");
}

#[test]
fn without_bytes_neither_key_nor_address_is_checked() {
    let empty = Request { rkey: 9999, remote_va: u64::MAX, ..sized(Opcode::Write, 7, 0) };
    let read = Request { opcode: Opcode::Read, psn: Psn::new(8), ..empty };
    assert_eq!(scene(ServiceType::Rc, &[]).dialogue(&[empty, read]), "write@0+0 ack7 | read@0+0 data8");
}

#[test]
fn communication_is_reported_once_and_only_for_accepted_requests() {
    let mut scene = scene(ServiceType::Rc, &[]);
    scene.take(&request(Opcode::Write, 9));
    assert_eq!(scene.events(), []);
    scene.dialogue(&[request(Opcode::Write, 7), request(Opcode::Write, 8)]);
    assert_eq!(scene.events(), [ResponderEvent::CommunicationEstablished]);
}

#[test]
fn the_receive_in_use_is_given_back_when_the_qp_goes_to_error() {
    let mut scene = scene(ServiceType::Rc, &[4096]);
    let whole = sized(Opcode::Send, 7, 3000);
    scene.take(&part(whole, 0, 1024));
    assert_eq!(scene.responder.enter_error().map(|receive| receive.id), Some(1));
    assert_eq!(scene.take(&part(whole, 1024, 1976)), "drop:InError");
}

/// Runs requests without polling a reply in between, then says what is replied.
fn replies_after(scene: &mut Fixture, requests: &[Request]) -> String {
    for request in requests {
        if let Verdict::Execute(work) = scene.responder.handle_packet(&request.packet(MTU), &mut scene.device)
        {
            scene.execute(work);
        }
    }
    let answers: Vec<_> = std::iter::from_fn(|| next_answer(&mut scene.responder)).collect();
    answers.iter().map(|answer| word(&answer.packet)).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_was_repaired_or_implied_before_the_poll_is_not_said() {
    let (write, send, read) = (Opcode::Write, Opcode::Send, Opcode::Read);
    let whole = sized(Opcode::Write, 7, 2000);
    for (name, requests, replies) in [
        ("a gap repaired", vec![request(write, 8), request(write, 7)], "ack7"),
        ("a gap repaired by a READ", vec![request(write, 8), request(read, 7)], "read@0+16 data7"),
        ("a hole repaired", vec![part(whole, 0, 1024), request(write, 9), part(whole, 1024, 976)], "ack8"),
        ("a response after a WRITE", vec![request(write, 7), request(read, 8)], "read@0+16 data8"),
        ("a NAK after a WRITE", vec![request(write, 7), request(write, 9)], "nak8"),
        ("an RNR NAK after a WRITE", vec![request(write, 7), request(send, 8)], "rnr8/12"),
        ("a READ twice", vec![request(read, 7), request(read, 7)], "read@0+16 data7"),
    ] {
        for mut scene in both_scenes(ServiceType::Rc, &[]) {
            assert_eq!(replies_after(&mut scene, &requests), replies, "{name}");
        }
    }
}

#[test]
fn replays_waiting_for_the_link_are_bounded_by_the_responder_resources() {
    let mut scene = scene(ServiceType::Rc, &[]);
    assert_eq!(scene.take(&sized(Opcode::Read, 7, 4 * MTU)), "read@0+4096 data10");
    // Parts that end on different PSNs, each an answer of its own.
    let parts: Vec<_> = (1..=4).map(|packets| sized(Opcode::Read, 7, packets * MTU)).collect();
    let replies = replies_after(&mut scene, &parts);
    assert_eq!(replies, "read@0+1024 data7 read@0+2048 data8");
}
