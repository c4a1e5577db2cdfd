//! What a responder answers to which requests, as dialogues.

use crate::{
    Access, AsyncEvent, DropReason, Fragment, NakCode, Opcode, Outcome, Psn, Receive, Region, RegionError,
    ReplyKind, Request, Resources, Responder, ResponderConfig, ResponderEvent, ServiceType, Status, Verdict,
    Work,
};

const PEER: u32 = 0x77;
const QPN: u32 = 0x42;
pub(super) const MTU: u32 = 1024;
const ALL_ACCESS: Access = Access(0xf);

/// Memory and receives of no size: keys below 100 are good, up to 1 MiB.
struct Device {
    receives: Vec<u64>,
    taken: u64,
}

impl Resources for Device {
    fn region(&self, key: u32, va: u64, len: u64, _need: Access) -> Result<Region, RegionError> {
        if key >= 100 {
            return Err(RegionError::UnknownKey { key });
        }
        if va.checked_add(len).is_none_or(|end| end > 1 << 20) {
            return Err(RegionError::OutOfBounds { key, va, len, start: 0, length: 1 << 20 });
        }
        Ok(Region { key, va, len, address: va })
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
        qpn: QPN,
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
    let device = Device { receives: receives.to_vec(), taken: 0 };
    Fixture { responder: Responder::new(config(service)), device, outcome: Outcome::Done }
}

pub(super) fn request(opcode: Opcode, psn: u32) -> Request {
    let length = if opcode.is_atomic() { 8 } else { 16 };
    Request {
        src_qpn: PEER,
        dst_qpn: QPN,
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
        match self.responder.handle_request(request, &mut self.device) {
            Verdict::Execute(work) => {
                words.push(self.execute(work));
            }
            Verdict::Answered => {}
            Verdict::Dropped(reason) => words.push(format!("drop:{reason:?}")),
        }
        while let Some(reply) = self.responder.poll_reply() {
            assert_eq!((reply.src_qpn, reply.dst_qpn), (QPN, PEER));
            let psn = reply.psn.value();
            words.push(match reply.kind {
                ReplyKind::Ack => format!("ack{psn}"),
                ReplyKind::RnrNak { timer } => format!("rnr{psn}/{timer}"),
                ReplyKind::Nak(NakCode::PsnSequence) => format!("nak{psn}"),
                ReplyKind::Nak(code) => format!("{code:?}{psn}"),
                ReplyKind::ReadResponse => format!("data{psn}"),
                ReplyKind::AtomicResponse { old } => format!("old{psn}={old}"),
            });
        }
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
            Work::Read { region, offset } => (format!("read@{offset}+{}", region.len), self.outcome),
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
        let verdict = scene.responder.handle_request(&sized(Opcode::Write, 7 + psn, 0), &mut scene.device);
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
        (
            "read again from its middle",
            vec![read(7, 3000), middle],
            "read@0+3000 data9 | read@1024+1024 data8",
        ),
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
    assert_eq!(scene.responder.counters().rnr_naks, 3);
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
        (
            "atomic of 4 bytes",
            Request { length: 4, fragment: Fragment { offset: 0, length: 4 }, ..add },
            "InvalidRequest7",
            RequestError,
        ),
        ("too long", sized(Opcode::Write, 7, (1 << 31) + 1), "InvalidRequest7", RequestError),
        ("more bytes than the message", part(write, 0, 17), "InvalidRequest7", RequestError),
        ("a fragment without bytes", part(write, 0, 0), "InvalidRequest7", RequestError),
        ("a read in pieces", part(request(Opcode::Read, 7), 0, 8), "InvalidRequest7", RequestError),
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
        scene.responder.set_access(Access(ALL_ACCESS.0 & !missing.0));
        assert_eq!(scene.take(&request(opcode, 7)), "InvalidRequest7", "{opcode:?}");
        assert_eq!(scene.device.taken, 0, "{opcode:?} took a receive");
    }
}

#[test]
fn reads_beyond_the_responder_resources_are_an_invalid_request() {
    let mut scene = scene(ServiceType::Rc, &[]);
    for psn in 7..9 {
        let work = scene.responder.handle_request(&request(Opcode::Read, psn), &mut scene.device);
        assert!(matches!(work, Verdict::Execute(Work::Read { .. })), "{work:?}");
        scene.responder.executed(Outcome::Done);
    }
    assert_eq!(scene.take(&request(Opcode::Read, 9)), "data7 data8 InvalidRequest9");
    let mut none = self::scene(ServiceType::Rc, &[]);
    none.responder = Responder::new(ResponderConfig { max_dest_rd_atomic: 0, ..config(ServiceType::Rc) });
    assert_eq!(none.take(&request(Opcode::Read, 7)), "InvalidRequest7");
}

#[test]
fn a_send_longer_than_its_receive_ends_that_receive_with_local_length() {
    let mut scene = scene(ServiceType::Rc, &[15]);
    assert_eq!(scene.take(&request(Opcode::Send, 7)), "InvalidRequest7");
    let [ResponderEvent::Failed(failure)] = scene.events()[..] else { panic!() };
    let failed = failure.receive.expect("the receive is reported");
    assert_eq!((failed.receive.id, failed.status, failure.event), (1, Status::LocalLength, None));
}

#[test]
fn a_fault_in_the_responders_memory_is_a_remote_operation_error() {
    for (opcode, answer, status, event) in [
        (Opcode::Send, "recv1@0+16! RemoteOperation7", Some(Status::LocalProtection), None),
        (Opcode::Write, "write@0+16 RemoteOperation7", None, Some(AsyncEvent::QpFatal)),
        (Opcode::WriteImm, "write@0+16! RemoteOperation7", Some(Status::Flushed), Some(AsyncEvent::QpFatal)),
        (Opcode::Read, "read@0+16 RemoteOperation7", None, Some(AsyncEvent::QpFatal)),
        (Opcode::FetchAdd, "atomic RemoteOperation7", None, Some(AsyncEvent::QpFatal)),
    ] {
        let mut scene = scene(ServiceType::Rc, &[64]);
        scene.outcome = Outcome::LocalFault;
        assert_eq!(scene.take(&request(opcode, 7)), answer, "{opcode:?}");
        let events = scene.events();
        let Some(ResponderEvent::Failed(failure)) = events.last() else { panic!("{events:?}") };
        assert_eq!(failure.receive.map(|failed| failed.status), status, "{opcode:?}");
        assert_eq!(failure.event, event, "{opcode:?}");
    }
}

#[test]
fn a_region_that_went_away_between_two_fragments_is_a_remote_access_error() {
    let whole = sized(Opcode::Write, 7, 3000);
    for (service, answer, failed) in [
        (ServiceType::Rc, "write@1000+2000 RemoteAccess7", true),
        (ServiceType::Uc, "write@1000+2000", false),
    ] {
        let mut scene = scene(service, &[]);
        let whole = Request { service, ..whole };
        assert_eq!(scene.take(&part(whole, 0, 1000)), "write@0+1000", "{service:?}");
        scene.outcome = Outcome::Revoked;
        assert_eq!(scene.take(&part(whole, 1000, 2000)), answer, "{service:?}");
        assert_eq!(scene.responder.is_failed(), failed, "{service:?}");
        let counted = scene.responder.counters().dropped[DropReason::RemoteAccess as usize];
        assert_eq!(counted, u64::from(!failed), "{service:?}: a silent service counts it");
    }
}

#[test]
fn fragments_continue_exactly_and_a_hole_is_a_gap_like_any_other() {
    let whole = sized(Opcode::Send, 7, 3000);
    let (one, two, three) = (part(whole, 0, 1000), part(whole, 1000, 1500), part(whole, 2500, 500));
    let other = Request { imm: [1; 4], ..two };
    let next = request(Opcode::Write, 10);
    for (name, arrivals, replies) in [
        (
            "in order",
            vec![one, two, three, next],
            "recv1@0+1000 | recv1@1000+1500 | recv1@2500+500! ack9 | write@0+16 ack10",
        ),
        ("a hole", vec![one, three], "recv1@0+1000 | nak7"),
        (
            "a hole, then all again",
            vec![one, three, one, two, three],
            "recv1@0+1000 | nak7 | drop:RepeatedFragment | recv1@1000+1500 | recv1@2500+500! ack9",
        ),
        (
            "two that change places",
            vec![one, three, two, three],
            "recv1@0+1000 | nak7 | recv1@1000+1500 | recv1@2500+500! ack9",
        ),
        (
            "two holes",
            vec![one, three, three, two, part(whole, 2700, 300), three],
            "recv1@0+1000 | nak7 | drop:AfterNak | recv1@1000+1500 | nak7 | recv1@2500+500! ack9",
        ),
        (
            "the next message comes too soon",
            vec![one, next, two, three, next],
            "recv1@0+1000 | nak7 | recv1@1000+1500 | recv1@2500+500! ack9 | write@0+16 ack10",
        ),
        ("a middle without a start", vec![two, three], "nak7 | drop:AfterNak"),
        ("a middle twice", vec![one, two, two], "recv1@0+1000 | recv1@1000+1500 | drop:RepeatedFragment"),
        ("another header", vec![one, other], "recv1@0+1000 | nak7"),
        (
            "the start twice",
            vec![one, one, two, three],
            "recv1@0+1000 | drop:RepeatedFragment | recv1@1000+1500 | recv1@2500+500! ack9",
        ),
        ("a whole message cuts in", vec![one, sized(Opcode::Write, 7, 16)], "recv1@0+1000 | write@0+16 ack7"),
        ("past the end", vec![one, part(whole, 1000, 2001)], "recv1@0+1000 | nak7"),
        (
            "a duplicate fragment afterwards",
            vec![one, two, three, two],
            "recv1@0+1000 | recv1@1000+1500 | recv1@2500+500! ack9 | ack9",
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
        let Verdict::Execute(work) = scene.responder.handle_request(&request(opcode, psn), &mut scene.device)
        else {
            panic!()
        };
        scene.execute(work);
    }
    let kinds: Vec<_> =
        std::iter::from_fn(|| scene.responder.poll_reply()).map(|r| (r.psn.value(), r.msn, r.kind)).collect();
    let expected = [
        (9, 3, ReplyKind::ReadResponse),
        (10, 4, ReplyKind::AtomicResponse { old: 103 }),
        (12, 6, ReplyKind::Ack),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn work_not_reported_yet_holds_the_next_request() {
    let mut scene = scene(ServiceType::Rc, &[]);
    let first = scene.responder.handle_request(&request(Opcode::Write, 7), &mut scene.device);
    assert!(matches!(first, Verdict::Execute(_)));
    let second = scene.responder.handle_request(&request(Opcode::Write, 8), &mut scene.device);
    assert_eq!(second, Verdict::Dropped(DropReason::Busy));
    assert_eq!(scene.responder.poll_reply(), None, "nothing is acknowledged before it is done");
}

#[test]
fn a_request_of_another_qp_or_service_is_dropped() {
    let write = request(Opcode::Write, 7);
    let mut scene = scene(ServiceType::Rc, &[]);
    assert_eq!(scene.take(&Request { src_qpn: PEER + 1, ..write }), "drop:WrongPeer");
    assert_eq!(scene.take(&Request { service: ServiceType::Uc, ..write }), "drop:WrongService");
    assert_eq!(scene.responder.counters().dropped(DropReason::WrongPeer), 1);
    assert_eq!(scene.responder.counters().dropped(DropReason::WrongService), 1);
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
    scene.take(&part(whole, 0, 1000));
    assert_eq!(scene.responder.enter_error().map(|receive| receive.id), Some(1));
    assert_eq!(scene.take(&part(whole, 1000, 2000)), "drop:InError");
}

/// Runs requests without polling a reply in between, then says what is replied.
fn replies_after(scene: &mut Fixture, requests: &[Request]) -> Vec<(u32, ReplyKind)> {
    for request in requests {
        if let Verdict::Execute(work) = scene.responder.handle_request(request, &mut scene.device) {
            scene.execute(work);
        }
    }
    std::iter::from_fn(|| scene.responder.poll_reply()).map(|reply| (reply.psn.value(), reply.kind)).collect()
}

#[test]
fn what_was_repaired_or_implied_before_the_poll_is_not_said() {
    let (write, send, read) = (Opcode::Write, Opcode::Send, Opcode::Read);
    let whole = sized(Opcode::Write, 7, 2000);
    let nak = ReplyKind::Nak(NakCode::PsnSequence);
    for (name, requests, replies) in [
        ("a gap repaired", vec![request(write, 8), request(write, 7)], vec![(7, ReplyKind::Ack)]),
        (
            "a gap repaired by a READ",
            vec![request(write, 8), request(read, 7)],
            vec![(7, ReplyKind::ReadResponse)],
        ),
        (
            "a hole repaired",
            vec![part(whole, 0, 1000), request(write, 9), part(whole, 1000, 1000)],
            vec![(8, ReplyKind::Ack)],
        ),
        (
            "a response after a WRITE",
            vec![request(write, 7), request(read, 8)],
            vec![(8, ReplyKind::ReadResponse)],
        ),
        ("a NAK after a WRITE", vec![request(write, 7), request(write, 9)], vec![(8, nak)]),
        (
            "an RNR NAK after a WRITE",
            vec![request(write, 7), request(send, 8)],
            vec![(8, ReplyKind::RnrNak { timer: 12 })],
        ),
        ("a READ twice", vec![request(read, 7), request(read, 7)], vec![(7, ReplyKind::ReadResponse)]),
    ] {
        assert_eq!(replies_after(&mut scene(ServiceType::Rc, &[]), &requests), replies, "{name}");
    }
}

#[test]
fn replays_waiting_for_the_link_are_bounded_by_the_responder_resources() {
    let mut scene = scene(ServiceType::Rc, &[]);
    assert_eq!(scene.take(&sized(Opcode::Read, 7, 4 * MTU)), "read@0+4096 data10");
    // Parts that end on different PSNs, each an answer of its own.
    let parts: Vec<_> = (1..=4).map(|packets| sized(Opcode::Read, 7, packets * MTU)).collect();
    let replies = replies_after(&mut scene, &parts);
    assert_eq!(replies, [(7, ReplyKind::ReadResponse), (8, ReplyKind::ReadResponse)]);
    assert_eq!(scene.responder.counters().dropped(DropReason::UnknownDuplicate), 2);
}
