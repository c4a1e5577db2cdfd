//! What a requester sends, when, and how its messages end.

use super::described::{ACK, RESPONSE, answer, found, nak, rnr};
use crate::{
    Completion, Content, Fragment, NakCode, Now, Opcode, Packet, PacketTransmit, Position, PostedMessage,
    Psn, ReplyVerdict, Requester, RequesterConfig, SendWindow, ServiceType, Status, Ticket,
};

const MTU: u32 = 1024;
/// Time-out code 8.
const TIMEOUT_NS: u64 = 4096 << 8;

fn config() -> RequesterConfig {
    RequesterConfig {
        service: ServiceType::Rc,
        first_psn: Psn::new(7),
        path_mtu_bytes: MTU,
        retry_count: 3,
        rnr_retry: 2,
        timeout: 8,
        max_rd_atomic: 2,
        window_messages: 8,
    }
}

fn requester(opcodes: &[Opcode]) -> Requester {
    let mut requester = Requester::new(config());
    post(&mut requester, opcodes);
    requester
}

fn post(requester: &mut Requester, opcodes: &[Opcode]) {
    for &opcode in opcodes {
        let length = if opcode.is_atomic() { 8 } else { 16 };
        requester.post(PostedMessage { opcode, length, fence: false });
    }
}

/// The answer to a READ has 16 bytes.
fn reply(psn: u32, content: Content) -> Packet {
    answer(psn, content, if content == RESPONSE { 16 } else { 0 })
}

/// What goes out now: in shared memory a message is one packet, however long it is.
fn next(requester: &mut Requester, now: u64) -> Option<PacketTransmit> {
    let transmit = requester.next_packet(u32::MAX)?;
    requester.sent_packet(Now(now), &transmit, transmit.fragment.length);
    Some(transmit)
}

fn take(requester: &mut Requester, now: u64, reply: &Packet) -> ReplyVerdict {
    requester.handle_packet(Now(now), reply)
}

const SEQUENCE: Content = nak(NakCode::PsnSequence);
const RNR: Content = rnr(12);

/// PSNs of everything that goes out now.
fn sent(requester: &mut Requester, now: u64) -> Vec<u32> {
    std::iter::from_fn(|| next(requester, now)).map(|transmit| transmit.psn.value()).collect()
}

fn ended(requester: &mut Requester) -> Vec<(u64, Status)> {
    std::iter::from_fn(|| requester.poll_completion()).map(|c| (c.ticket.0, c.status)).collect()
}

use Opcode::{FetchAdd, Read, Send, Write};
use Status::{Flushed, Success};

/// A message that left in part comes again as far as it had left; its rest goes for the first time.
#[test]
fn what_was_sent_before_and_what_never_was_are_two_packets() {
    let mut requester = Requester::new(config());
    requester.post(PostedMessage { opcode: Write, length: 8 * MTU, fence: false });
    let first = requester.next_packet(u32::MAX).expect("a message");
    requester.sent_packet(Now(0), &first, 3 * MTU);
    assert!(first.begins && requester.waits_for_room());
    requester.handle_timeout(Now(TIMEOUT_NS));
    assert!(!requester.waits_for_room(), "all of it is to go again");
    let said = std::iter::from_fn(|| next(&mut requester, TIMEOUT_NS))
        .map(|it| (it.psn.value(), it.fragment.length / MTU, it.position, it.retransmission, it.begins));
    let first = (7, 3, Position::First, true, true);
    assert_eq!(said.collect::<Vec<_>>(), [first, (10, 5, Position::Last, false, false)]);
    assert!(!requester.waits_for_room());
}

/// Four messages with PSNs 7..=10 are on their way; one reply comes.
#[test]
fn a_reply_completes_resends_or_fails_what_the_specification_says() {
    let all = [7, 8, 9, 10];
    let writes = [Write; 4];
    let read_second = [Write, Read, Write, Write];
    let ok = |n: u64| (0..n).map(|ticket| (ticket, Success)).collect::<Vec<_>>();
    let failed = |n: u64, status| {
        let mut list = ok(n);
        list.push((n, status));
        list.extend((n + 1..4).map(|ticket| (ticket, Flushed)));
        list
    };
    let rows = [
        ("ack of the first", writes, reply(7, ACK), ok(1), vec![]),
        ("ack of all", writes, reply(10, ACK), ok(4), vec![]),
        ("ack from the past", writes, reply(6, ACK), vec![], vec![]),
        ("ack from the future", writes, reply(11, ACK), vec![], vec![]),
        ("sequence NAK goes back and acks what is before", writes, reply(9, SEQUENCE), ok(2), vec![9, 10]),
        ("sequence NAK of the first", writes, reply(7, SEQUENCE), vec![], all.to_vec()),
        ("sequence NAK from the future", writes, reply(11, SEQUENCE), vec![], vec![]),
        (
            "invalid request",
            writes,
            reply(9, nak(NakCode::InvalidRequest)),
            failed(2, Status::RemoteInvalidRequest),
            vec![],
        ),
        (
            "remote access",
            writes,
            reply(7, nak(NakCode::RemoteAccess)),
            failed(0, Status::RemoteAccess),
            vec![],
        ),
        (
            "remote operation",
            writes,
            reply(10, nak(NakCode::RemoteOperation)),
            failed(3, Status::RemoteOperation),
            vec![],
        ),
        ("response acks what is before", read_second, reply(8, RESPONSE), ok(2), vec![]),
        ("ack past a READ is an implied NAK", read_second, reply(9, ACK), ok(1), vec![8, 9, 10]),
        ("ack of the READ itself is one too", read_second, reply(8, ACK), ok(1), vec![8, 9, 10]),
        (
            "NAK past a READ is one too",
            read_second,
            reply(10, nak(NakCode::RemoteAccess)),
            ok(1),
            vec![8, 9, 10],
        ),
        (
            "NAK of the READ",
            read_second,
            reply(8, nak(NakCode::RemoteAccess)),
            failed(1, Status::RemoteAccess),
            vec![],
        ),
        ("response to a WRITE", writes, reply(7, RESPONSE), failed(0, Status::BadResponse), vec![]),
        ("response to a later WRITE", writes, reply(9, RESPONSE), failed(2, Status::BadResponse), vec![]),
        (
            "atomic response to a READ",
            read_second,
            reply(8, found(1)),
            failed(1, Status::BadResponse),
            vec![],
        ),
        ("RNR NAK of a WRITE", writes, reply(7, RNR), vec![], vec![]),
    ];
    for (name, posted, reply, completions, resent) in rows {
        let mut requester = requester(&posted);
        assert_eq!(sent(&mut requester, 0), all, "{name}");
        take(&mut requester, 1, &reply);
        assert_eq!(ended(&mut requester).get(..completions.len()), Some(&completions[..]), "{name}");
        assert_eq!(sent(&mut requester, 2), resent, "{name}");
    }
}

#[test]
fn retry_exceeded_comes_exactly_after_the_configured_time_outs() {
    for retry_count in 0..=7u8 {
        let mut requester = Requester::new(RequesterConfig { retry_count, ..config() });
        post(&mut requester, &[Write, Write]);
        let mut now = Now(50);
        for attempt in 0..=retry_count {
            let first: Vec<_> = sent(&mut requester, now.0);
            assert_eq!(first, [7, 8], "attempt {attempt} of {retry_count}");
            let due = requester.poll_timeout().expect("the timer runs");
            assert_eq!(due, now.after(TIMEOUT_NS));
            requester.handle_timeout(Now(due.0 - 1));
            assert_eq!(sent(&mut requester, due.0 - 1), [], "nothing before its time");
            assert_eq!(ended(&mut requester), []);
            requester.handle_timeout(due);
            now = due;
        }
        assert_eq!(now, Now(50 + TIMEOUT_NS * (u64::from(retry_count) + 1)));
        assert_eq!(ended(&mut requester), [(0, Status::RetryExceeded), (1, Flushed)]);
        assert_eq!(requester.poll_timeout(), None);
    }
}

#[test]
fn time_out_code_zero_waits_for_ever() {
    let mut requester = Requester::new(RequesterConfig { timeout: 0, ..config() });
    post(&mut requester, &[Write]);
    assert_eq!(sent(&mut requester, 0), [7]);
    assert_eq!(requester.poll_timeout(), None);
    requester.handle_timeout(Now(u64::MAX));
    assert_eq!(ended(&mut requester), []);
}

#[test]
fn progress_gives_the_next_message_the_whole_time_and_all_retries() {
    let mut requester = requester(&[Write, Write]);
    sent(&mut requester, 0);
    for round in 1..=3 {
        requester.handle_timeout(Now(round * TIMEOUT_NS));
        sent(&mut requester, round * TIMEOUT_NS);
    }
    take(&mut requester, 3 * TIMEOUT_NS + 5, &reply(7, ACK));
    assert_eq!(requester.poll_timeout(), Some(Now(4 * TIMEOUT_NS + 5)));
    for round in 4..=6 {
        requester.handle_timeout(Now(round * TIMEOUT_NS + 5));
        assert_eq!(sent(&mut requester, round * TIMEOUT_NS + 5), [8]);
    }
    requester.handle_timeout(Now(7 * TIMEOUT_NS + 5));
    assert_eq!(ended(&mut requester), [(0, Success), (1, Status::RetryExceeded)]);
}

#[test]
fn a_lossless_link_can_hold_the_timer() {
    let mut requester = requester(&[Write]);
    sent(&mut requester, 0);
    requester.hold_timer(Now(TIMEOUT_NS - 1));
    requester.handle_timeout(Now(TIMEOUT_NS));
    assert_eq!(sent(&mut requester, TIMEOUT_NS), [], "nothing goes again");
    assert_eq!(requester.poll_timeout(), Some(Now(2 * TIMEOUT_NS - 1)));
}

#[test]
fn rnr_naks_wait_their_time_and_are_counted_apart() {
    // Code 12 is 0.64 ms.
    const WAIT_NS: u64 = 640_000;
    for (rnr_retry, naks_survived) in [(0, 0), (1, 1), (6, 6), (7, 100)] {
        let mut requester = Requester::new(RequesterConfig { rnr_retry, retry_count: 0, ..config() });
        post(&mut requester, &[Send, Send]);
        let mut now = 0;
        for _ in 0..naks_survived {
            assert_eq!(sent(&mut requester, now), [7, 8]);
            assert_eq!(take(&mut requester, now, &reply(7, RNR)), ReplyVerdict::Resend);
            assert_eq!(take(&mut requester, now, &reply(7, RNR)), ReplyVerdict::Ignored, "an echo");
            assert_eq!(requester.poll_timeout(), Some(Now(now + WAIT_NS)));
            assert_eq!(sent(&mut requester, now), [], "silence while it waits");
            now += WAIT_NS;
            requester.handle_timeout(Now(now));
        }
        assert_eq!(sent(&mut requester, now), [7, 8], "rnr_retry {rnr_retry}");
        take(&mut requester, now, &reply(7, RNR));
        let exceeded = vec![(0, Status::RnrRetryExceeded), (1, Flushed)];
        assert_eq!(
            ended(&mut requester),
            if rnr_retry == 7 { vec![] } else { exceeded },
            "rnr_retry {rnr_retry}"
        );
    }
}

#[test]
fn a_late_ack_ends_an_rnr_wait_without_a_resend() {
    let mut requester = requester(&[Send]);
    sent(&mut requester, 0);
    take(&mut requester, 1, &reply(7, RNR));
    take(&mut requester, 2, &reply(7, ACK));
    assert_eq!(ended(&mut requester), [(0, Success)]);
    requester.handle_timeout(Now(640_001));
    assert_eq!(sent(&mut requester, 640_001), []);
    assert_eq!(requester.poll_timeout(), None);
}

#[test]
fn a_loss_is_repaired_once_however_often_it_is_naked() {
    let mut requester = requester(&[Write; 4]);
    sent(&mut requester, 0);
    assert_eq!(take(&mut requester, 1, &reply(8, SEQUENCE)), ReplyVerdict::Resend);
    for _ in 0..20 {
        assert_eq!(take(&mut requester, 1, &reply(8, SEQUENCE)), ReplyVerdict::Ignored);
    }
    let resent = |requester: &mut Requester, now| -> Vec<_> {
        std::iter::from_fn(|| next(requester, now)).map(|it| (it.psn.value(), it.retransmission)).collect()
    };
    assert_eq!(resent(&mut requester, 2), [8, 9, 10].map(|psn| (psn, true)));
    assert_eq!(take(&mut requester, 3, &reply(10, SEQUENCE)), ReplyVerdict::Resend, "another loss");
    assert_eq!(resent(&mut requester, 4), [(10, true)]);
}

/// IBTA §9.7.6: a sequence NAK takes a retry like a timeout; a peer that only NAKs would keep a queue alive.
#[test]
fn sequence_naks_and_time_outs_use_up_the_same_retries() {
    for retry_count in 0..=7u8 {
        for by_packet in [false, true] {
            let config = RequesterConfig { retry_count, ..config() };
            let mut requester = either(config, by_packet);
            post(&mut requester, &[Write]);
            let (mut now, mut naks) = (0, 0);
            // A NAK of each transmission, and a time-out of each repetition that nobody answers.
            while !requester.is_failed() {
                go_out(&mut requester, by_packet, now);
                take(&mut requester, now, &reply(7, SEQUENCE));
                naks += 1;
                go_out(&mut requester, by_packet, now);
                now = requester.poll_timeout().map_or(now, |due| due.0);
                requester.handle_timeout(Now(now));
            }
            let what = format!("{retry_count} retries, by packet: {by_packet}");
            assert_eq!(naks, retry_count / 2 + 1, "{what}");
            assert_eq!(ended(&mut requester), [(0, Status::RetryExceeded)], "{what}");
        }
    }
}

/// A requester in shared memory, or on a wire.
fn either(config: RequesterConfig, by_packet: bool) -> Requester {
    if by_packet { Requester::by_packet(config, SendWindow::default()) } else { Requester::new(config) }
}

/// Sends all that may go now.
fn go_out(requester: &mut Requester, by_packet: bool, now: u64) {
    match by_packet {
        true => while requester.poll_packet(Now(now)).is_some() {},
        false => while next(requester, now).is_some() {},
    }
}

#[test]
fn each_acknowledgement_gives_all_rnr_retries_back() {
    for by_packet in [false, true] {
        // Two RNR retries, used up by each of five messages.
        let mut requester = either(config(), by_packet);
        post(&mut requester, &[Send; 5]);
        let mut now = 0;
        for psn in 7..12 {
            for _ in 0..2 {
                go_out(&mut requester, by_packet, now);
                let verdict = take(&mut requester, now, &reply(psn, RNR));
                assert_eq!(verdict, ReplyVerdict::Resend, "{psn}, by packet: {by_packet}");
                now = requester.poll_timeout().expect("it waits").0;
                requester.handle_timeout(Now(now));
            }
            go_out(&mut requester, by_packet, now);
            take(&mut requester, now, &reply(psn, ACK));
        }
        let wanted: Vec<_> = (0..5).map(|ticket| (ticket, Success)).collect();
        assert_eq!(ended(&mut requester), wanted, "by packet: {by_packet}");
    }
}

#[test]
fn an_ack_for_an_earlier_transmission_spares_the_resend() {
    let mut requester = requester(&[Write; 4]);
    sent(&mut requester, 0);
    requester.handle_timeout(Now(TIMEOUT_NS));
    assert_eq!(
        next(&mut requester, TIMEOUT_NS).map(|t| (t.ticket, t.retransmission)),
        Some((Ticket(0), true))
    );
    take(&mut requester, TIMEOUT_NS + 1, &reply(9, ACK));
    assert_eq!(sent(&mut requester, TIMEOUT_NS + 2), [10]);
}

#[test]
fn reads_and_atomics_wait_for_depth_and_fences_for_their_answers() {
    let mut requester = requester(&[Read, FetchAdd]);
    assert!(!requester.can_post(Read, false), "the depth is 2");
    assert!(requester.can_post(Write, false));
    assert!(!requester.can_post(Write, true), "fenced behind two answers");
    // Posted all the same, they wait inside.
    post(&mut requester, &[Read]);
    requester.post(PostedMessage { opcode: Write, length: 16, fence: true });
    assert_eq!(sent(&mut requester, 0), [7, 8]);
    take(&mut requester, 1, &reply(7, RESPONSE));
    assert_eq!(sent(&mut requester, 1), [9], "one answer makes room for one READ; the fence still holds");
    take(&mut requester, 2, &reply(8, found(55)));
    assert_eq!(sent(&mut requester, 2), []);
    take(&mut requester, 3, &reply(9, RESPONSE));
    assert_eq!(sent(&mut requester, 3), [10]);
    take(&mut requester, 4, &reply(10, ACK));
    let old: Vec<_> = std::iter::from_fn(|| requester.poll_completion()).map(|c| c.atomic_old).collect();
    assert_eq!(old, [None, Some(55), None, None]);
    assert!(requester.is_idle());
    assert!(requester.can_post(Read, true));
}

#[test]
fn the_window_holds_messages_back() {
    let mut requester = Requester::new(RequesterConfig { window_messages: 2, ..config() });
    post(&mut requester, &[Write, Write]);
    assert!(!requester.can_post(Write, false));
    post(&mut requester, &[Write]);
    assert_eq!(sent(&mut requester, 0), [7, 8]);
    take(&mut requester, 1, &reply(7, ACK));
    assert_eq!(sent(&mut requester, 1), [9]);
}

#[test]
fn no_more_than_half_the_psn_space_is_outstanding() {
    let mut requester = Requester::new(RequesterConfig { path_mtu_bytes: 256, ..config() });
    for _ in 0..3 {
        requester.post(PostedMessage { opcode: Write, length: 1 << 30, fence: false });
    }
    assert_eq!(sent(&mut requester, 0), [7, 7 + (1 << 22)]);
    take(&mut requester, 1, &reply(6 + (1 << 22), ACK));
    assert_eq!(sent(&mut requester, 1), [7 + (1 << 23)]);
    let mut longest = Requester::new(RequesterConfig { path_mtu_bytes: 256, ..config() });
    longest.post(PostedMessage { opcode: Write, length: 1 << 31, fence: false });
    longest.post(PostedMessage { opcode: Write, length: 1, fence: false });
    assert_eq!(sent(&mut longest, 0), [7]);
    take(&mut longest, 1, &reply(6 + (1 << 23), ACK));
    assert_eq!(ended(&mut longest), [(0, Success)]);
    assert_eq!(sent(&mut longest, 1), [7 + (1 << 23)]);
}

#[test]
fn psns_of_a_message_are_those_of_its_packets_across_the_wrap() {
    let mut requester = Requester::new(RequesterConfig { first_psn: Psn::new(0xff_fffe), ..config() });
    for (opcode, length) in [(Send, 3072), (Read, 16), (Send, 8)] {
        requester.post(PostedMessage { opcode, length, fence: false });
    }
    // rxe-rc.pcap steps 23-25: SEND 3072, READ 16, SEND 8 from PSN 0xfffffe on.
    assert_eq!(sent(&mut requester, 0), [0xff_fffe, 1, 2]);
    take(&mut requester, 1, &reply(0xff_ffff, ACK));
    assert_eq!(ended(&mut requester), [], "an ACK inside a message does not complete it");
    take(&mut requester, 1, &reply(1, RESPONSE));
    assert_eq!(ended(&mut requester), [(0, Success), (1, Success)]);
}

#[test]
fn what_the_service_cannot_carry_fails_in_its_turn() {
    for (name, service, max_rd_atomic, opcode, length, status) in [
        ("a READ with depth 0", ServiceType::Rc, 0, Read, 16, Status::LocalQpOperation),
        ("a READ over UC", ServiceType::Uc, 1, Read, 16, Status::LocalQpOperation),
        ("an atomic over UD", ServiceType::Ud, 1, FetchAdd, 8, Status::LocalQpOperation),
        ("a WRITE over UD", ServiceType::Ud, 1, Write, 8, Status::LocalQpOperation),
        ("an atomic of 4 bytes", ServiceType::Rc, 1, FetchAdd, 4, Status::LocalQpOperation),
        ("a datagram of two packets", ServiceType::Ud, 1, Send, MTU + 1, Status::LocalLength),
        ("more than 2^31 bytes", ServiceType::Rc, 1, Write, (1 << 31) + 1, Status::LocalLength),
    ] {
        let mut requester = Requester::new(RequesterConfig { service, max_rd_atomic, ..config() });
        post(&mut requester, &[Send]);
        let bad = requester.post(PostedMessage { opcode, length, fence: false });
        post(&mut requester, &[Send]);
        assert_eq!(sent(&mut requester, 0), [7], "{name}");
        let mut all = ended(&mut requester);
        assert_eq!(all.is_empty(), service == ServiceType::Rc, "{name}: without an answer, sent is done");
        take(&mut requester, 1, &reply(7, ACK));
        all.extend(ended(&mut requester));
        assert_eq!(all, [(0, Success), (bad.0, status), (2, Flushed)], "{name}");
        assert!(requester.is_failed());
    }
}

#[test]
fn a_local_error_completes_in_its_turn() {
    let mut requester = requester(&[Write]);
    requester.post_failed_with(Write, Status::LocalProtection, ());
    post(&mut requester, &[Write]);
    assert_eq!(sent(&mut requester, 0), [7]);
    take(&mut requester, 1, &reply(7, ACK));
    assert_eq!(ended(&mut requester), [(0, Success), (1, Status::LocalProtection), (2, Flushed)]);
    // A response that cannot be placed fails though the peer has answered.
    let mut requester = self::requester(&[Read, Write]);
    sent(&mut requester, 0);
    let verdict = take(&mut requester, 1, &reply(7, RESPONSE));
    let fragment = Fragment { offset: 0, length: 16 };
    assert_eq!(verdict, ReplyVerdict::Place { ticket: Ticket(0), fragment });
    requester.fail(Ticket(0), Status::LocalProtection);
    assert_eq!(ended(&mut requester), [(0, Status::LocalProtection), (1, Flushed)]);
}

#[test]
fn nothing_is_sent_behind_a_message_that_failed_while_it_was_sent() {
    for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
        let mut requester = Requester::new(RequesterConfig { service, ..config() });
        post(&mut requester, &[Send, Send, Send]);
        next(&mut requester, 0).expect("room");
        let second = next(&mut requester, 0).expect("room");
        // Its payload cannot be read.
        requester.fail(second.ticket, Status::LocalProtection);
        assert_eq!(next(&mut requester, 0), None, "{service:?}: the third would be taken by a peer");
        take(&mut requester, 1, &reply(7, ACK));
        let wanted = [(0, Success), (1, Status::LocalProtection), (2, Flushed)];
        assert_eq!(ended(&mut requester), wanted, "{service:?}");
        requester.resume();
        post(&mut requester, &[Send]);
        assert!(next(&mut requester, 2).is_some(), "{service:?}: after SQE to RTS");
    }
}

#[test]
fn unreliable_messages_are_complete_when_the_link_has_them() {
    for service in [ServiceType::Uc, ServiceType::Ud] {
        let mut requester = Requester::new(RequesterConfig { service, ..config() });
        post(&mut requester, &[Send, Send, Send]);
        let first = next(&mut requester, 0).expect("room");
        assert!(!first.ack_requested);
        next(&mut requester, 0);
        assert_eq!(requester.poll_timeout(), None, "no timer");
        assert_eq!(ended(&mut requester), [(0, Success), (1, Success)], "the third was not sent");
        assert_eq!(take(&mut requester, 1, &reply(9, ACK)), ReplyVerdict::Ignored);
    }
}

#[test]
fn an_error_state_flushes_and_an_unreliable_queue_can_resume() {
    let mut requester = Requester::new(RequesterConfig { service: ServiceType::Uc, ..config() });
    post(&mut requester, &[Send, Send]);
    next(&mut requester, 0).expect("room");
    requester.enter_error();
    post(&mut requester, &[Send]);
    assert_eq!(sent(&mut requester, 1), []);
    assert_eq!(ended(&mut requester), [(0, Success), (1, Flushed), (2, Flushed)]);
    requester.resume();
    post(&mut requester, &[Send]);
    assert_eq!(sent(&mut requester, 2).len(), 1);
    let Some(Completion { ticket, status, .. }) = requester.poll_completion() else { panic!() };
    assert_eq!((ticket, status), (Ticket(3), Success));
}
