//! How a requester of packets reacts to replies and time. Path MTU 256, first PSN 0, depth 2 for READs.

use super::described::{ACK, answer, nak, rnr};
use crate::wire::Position::{self, First, Last, Middle, Only};
use crate::{
    Content, Fragment, NakCode, Now, Opcode, PacketTransmit, PostedMessage, Psn, ReplyVerdict, Requester,
    RequesterConfig, SendWindow, ServiceType, Status, Ticket,
};

const MTU: u32 = 256;
/// Time-out code 8.
const TIMEOUT_NS: u64 = 4096 << 8;

fn requester(messages: &[(Opcode, u32)]) -> Requester {
    let config = RequesterConfig {
        service: ServiceType::Rc,
        first_psn: Psn::new(0),
        path_mtu_bytes: MTU,
        retry_count: 2,
        rnr_retry: 2,
        timeout: 8,
        max_rd_atomic: 2,
        window_messages: 64,
    };
    let mut requester = Requester::by_packet(config, SendWindow { packets: 64, ack_every: 16 });
    for &(opcode, length) in messages {
        requester.post(PostedMessage { opcode, length, fence: false });
    }
    requester
}

/// Everything that goes out now: operation, PSN, and of READs the bytes asked for.
fn sends(requester: &mut Requester, now: Now) -> String {
    let word = |packet: PacketTransmit| {
        let PacketTransmit { opcode, psn, position, fragment, .. } = packet;
        match opcode {
            Opcode::Read => format!("read{}@{}+{}", psn.value(), fragment.offset, fragment.length),
            Opcode::FetchAdd => format!("add{}", psn.value()),
            _ => format!("{position:?}{}", psn.value()),
        }
    };
    let all: Vec<_> = std::iter::from_fn(|| requester.poll_packet(now)).map(word).collect();
    all.join(" ")
}

fn reply(requester: &mut Requester, psn: u32, content: Content) -> ReplyVerdict {
    requester.handle_packet(Now(0), &answer(psn, content, 0))
}

fn response(requester: &mut Requester, psn: u32, position: Position, bytes: u32) -> ReplyVerdict {
    requester.handle_packet(Now(0), &answer(psn, Content::ReadResponse { position, aeth: None }, bytes))
}

fn statuses(requester: &mut Requester) -> Vec<Status> {
    std::iter::from_fn(|| requester.poll_completion()).map(|done| done.status).collect()
}

const MISSING: Content = nak(NakCode::PsnSequence);

/// A WRITE of three packets, 0 to 2, and a SEND of two, 3 and 4.
fn five_packets() -> Requester {
    let mut requester = requester(&[(Opcode::Write, 700), (Opcode::Send, 300)]);
    assert_eq!(sends(&mut requester, Now(0)), "First0 Middle1 Last2 First3 Last4");
    requester
}

#[test]
fn replies_acknowledge_and_repeat_from_exactly_their_psn() {
    use ReplyVerdict::{Ignored, Progress, Resend};
    let rnr = rnr(1);
    for (name, replies, again, ended) in [
        ("all at once", vec![(4, ACK, Progress)], "", 2),
        ("inside a message", vec![(1, ACK, Progress)], "", 0),
        ("a ghost of it", vec![(1, ACK, Progress), (1, ACK, Ignored), (0, ACK, Ignored)], "", 0),
        ("not yet sent", vec![(5, ACK, Ignored), (0xff_ffff, ACK, Ignored)], "", 0),
        ("a gap in the first message", vec![(1, MISSING, Resend)], "Middle1 Last2 First3 Last4", 0),
        ("a gap at the end of it", vec![(2, MISSING, Resend)], "Last2 First3 Last4", 0),
        ("a gap in the second", vec![(4, MISSING, Resend)], "Last4", 1),
        (
            "the same gap twice",
            vec![(1, MISSING, Resend), (1, MISSING, Ignored)],
            "Middle1 Last2 First3 Last4",
            0,
        ),
        ("a gap, then a late ACK", vec![(1, MISSING, Resend), (2, ACK, Progress)], "First3 Last4", 1),
        (
            "a gap, then an ACK inside",
            vec![(0, MISSING, Resend), (1, ACK, Progress)],
            "Last2 First3 Last4",
            0,
        ),
        ("not ready, of a WRITE", vec![(1, rnr, Ignored)], "", 0),
    ] {
        let mut requester = five_packets();
        for (psn, kind, verdict) in replies {
            assert_eq!(reply(&mut requester, psn, kind), verdict, "{name}: {psn}");
        }
        assert_eq!(sends(&mut requester, Now(0)), again, "{name}");
        assert_eq!(statuses(&mut requester), vec![Status::Success; ended], "{name}");
    }
}

#[test]
fn a_receiver_that_is_not_ready_gets_the_same_packet_after_the_time_of_its_code() {
    let mut requester = five_packets();
    let rnr = rnr(1);
    assert_eq!(reply(&mut requester, 3, rnr), ReplyVerdict::Resend);
    assert_eq!(reply(&mut requester, 3, rnr), ReplyVerdict::Ignored, "an echo");
    assert_eq!(sends(&mut requester, Now(9_999)), "");
    // Code 1 is 10 µs.
    assert_eq!(requester.poll_timeout(), Some(Now(10_000)));
    requester.handle_timeout(Now(10_000));
    assert_eq!(sends(&mut requester, Now(10_000)), "First3 Last4");
    assert_eq!(statuses(&mut requester), [Status::Success]);
}

#[test]
fn a_nak_of_a_loss_does_not_cut_an_rnr_wait_short() {
    let mut requester = five_packets();
    reply(&mut requester, 3, rnr(1));
    assert_eq!(reply(&mut requester, 3, MISSING), ReplyVerdict::Ignored);
    assert_eq!((sends(&mut requester, Now(0)), requester.poll_timeout()), (String::new(), Some(Now(10_000))));
}

#[test]
fn a_peer_that_is_not_ready_lives_so_losses_are_counted_anew() {
    let mut requester = requester(&[(Opcode::Send, 100)]);
    let lose_twice = |requester: &mut Requester, mut now: Now| {
        for _ in 0..2 {
            assert_eq!(sends(requester, now), "Only0");
            now = requester.poll_timeout().expect("the timer runs");
            requester.handle_timeout(now);
            assert_eq!(statuses(requester), []);
        }
        assert_eq!(sends(requester, now), "Only0");
    };
    // Both retries are used up, the peer answers, and both are there again.
    lose_twice(&mut requester, Now(0));
    assert_eq!(reply(&mut requester, 0, rnr(1)), ReplyVerdict::Resend);
    requester.handle_timeout(Now(10_000));
    lose_twice(&mut requester, Now(10_000));
    requester.handle_timeout(requester.poll_timeout().expect("the timer runs"));
    assert_eq!(statuses(&mut requester), [Status::RetryExceeded]);
}

#[test]
fn an_unreliable_queue_that_resumes_begins_with_a_first_packet() {
    let config = RequesterConfig { service: ServiceType::Uc, ..*requester(&[]).config() };
    let mut requester = Requester::by_packet(config, SendWindow::default());
    let write = PostedMessage { opcode: Opcode::Write, length: 700, fence: false };
    requester.post(write);
    assert!(requester.poll_packet(Now(0)).is_some_and(|sent| sent.position == Position::First));
    requester.enter_error();
    assert_eq!(statuses(&mut requester), [Status::Flushed]);
    requester.resume();
    requester.post(write);
    assert_eq!(sends(&mut requester, Now(0)), "First3 Middle4 Last5");
}

#[test]
fn rnr_retries_are_counted_apart_and_end_in_their_own_error() {
    let mut requester = requester(&[(Opcode::WriteImm, 300)]);
    // The receive is missed by the last packet; progress of the first does not count for it twice.
    for _ in 0..=2 {
        sends(&mut requester, Now(0));
        assert_ne!(reply(&mut requester, 1, rnr(1)), ReplyVerdict::Ignored);
        requester.handle_timeout(Now(10_000));
    }
    assert_eq!(statuses(&mut requester), [Status::RnrRetryExceeded]);
}

#[test]
fn time_outs_repeat_from_the_oldest_packet_and_any_progress_gives_all_retries_back() {
    let mut requester = five_packets();
    let at = |n: u64| Now(n * TIMEOUT_NS);
    for n in [1, 2] {
        assert_eq!(requester.poll_timeout(), Some(at(n)));
        requester.handle_timeout(at(n));
        assert_eq!(sends(&mut requester, at(n)), "First0 Middle1 Last2 First3 Last4");
    }
    requester.handle_packet(at(2), &answer(0, ACK, 0));
    for n in [3, 4] {
        requester.handle_timeout(at(n));
        assert_eq!(sends(&mut requester, at(n)), "Middle1 Last2 First3 Last4");
    }
    requester.handle_timeout(at(5));
    assert_eq!(statuses(&mut requester), [Status::RetryExceeded, Status::Flushed]);
}

#[test]
fn progress_inside_a_message_gives_the_next_packet_the_whole_time() {
    let (half, later) = (Now(TIMEOUT_NS / 2), Some(Now(TIMEOUT_NS / 2 + TIMEOUT_NS)));
    let mut writing = five_packets();
    writing.handle_packet(half, &answer(1, ACK, 0));
    assert_eq!(writing.poll_timeout(), later);
    // A ghost is no progress.
    writing.handle_packet(Now(TIMEOUT_NS), &answer(0, ACK, 0));
    assert_eq!(writing.poll_timeout(), later);
    let mut reading = requester(&[(Opcode::Read, 600)]);
    sends(&mut reading, Now(0));
    let first = Content::ReadResponse { position: First, aeth: None };
    reading.handle_packet(half, &answer(0, first, 256));
    assert_eq!(reading.poll_timeout(), later);
}

#[test]
fn read_responses_are_taken_in_order_and_asked_for_again_from_the_first_missing() {
    use ReplyVerdict::Place;
    let mut requester = requester(&[(Opcode::Read, 600), (Opcode::Send, 1)]);
    assert_eq!(sends(&mut requester, Now(0)), "read0@0+600 Only3");
    let placed = |arrival| match arrival {
        Place { fragment, .. } => (fragment.offset, fragment.length),
        other => panic!("{other:?}"),
    };
    assert_eq!(placed(response(&mut requester, 0, First, 256)), (0, 256));
    assert_eq!(response(&mut requester, 0, First, 256), ReplyVerdict::Ignored, "a copy");
    assert_eq!(response(&mut requester, 2, Last, 88), ReplyVerdict::Resend, "the second is missing");
    assert_eq!(response(&mut requester, 2, Last, 88), ReplyVerdict::Ignored, "known");
    assert_eq!(sends(&mut requester, Now(0)), "read1@256+344 Only3");
    // What is left of the first answer serves as well as the new one.
    assert_eq!(placed(response(&mut requester, 1, Middle, 256)), (256, 256));
    assert_eq!(placed(response(&mut requester, 2, Last, 88)), (512, 88));
    assert_eq!(response(&mut requester, 1, First, 256), ReplyVerdict::Ignored, "and that is a copy then");
    reply(&mut requester, 3, ACK);
    assert_eq!(statuses(&mut requester), [Status::Success; 2]);
}

#[test]
fn an_acknowledgement_past_a_read_or_an_atomic_says_that_its_response_is_lost() {
    for (name, messages, before, ack, again) in [
        ("READ", [(Opcode::Read, 600), (Opcode::Send, 1)], "read0@0+600 Only3", 3, "read0@0+600 Only3"),
        ("atomic", [(Opcode::FetchAdd, 8), (Opcode::Send, 1)], "add0 Only1", 1, "add0 Only1"),
    ] {
        let mut requester = requester(&messages);
        assert_eq!(sends(&mut requester, Now(0)), before, "{name}");
        assert_eq!(reply(&mut requester, ack, ACK), ReplyVerdict::Resend, "{name}");
        assert_eq!(sends(&mut requester, Now(0)), again, "{name}: as it was");
    }
}

#[test]
fn no_more_reads_are_in_flight_than_the_initiator_depth() {
    let mut requester =
        requester(&[(Opcode::Read, 600), (Opcode::FetchAdd, 8), (Opcode::Read, 1), (Opcode::Send, 1)]);
    assert_eq!(sends(&mut requester, Now(0)), "read0@0+600 add3");
    for (psn, position, bytes) in [(0, First, 256), (1, Middle, 256)] {
        response(&mut requester, psn, position, bytes);
        assert_eq!(sends(&mut requester, Now(0)), "", "not before the last of its packets");
    }
    response(&mut requester, 2, Last, 88);
    assert_eq!(sends(&mut requester, Now(0)), "read4@0+1 Only5");
}

#[test]
fn a_response_that_cannot_be_is_an_error_of_its_read() {
    for (name, psn, position, bytes) in [
        ("first too short", 0, First, 255),
        ("ends too soon", 0, Only, 256),
        ("last too long", 0, Last, 257),
        ("empty", 0, First, 0),
    ] {
        let mut requester = requester(&[(Opcode::Read, 600)]);
        sends(&mut requester, Now(0));
        let verdict = response(&mut requester, psn, position, bytes);
        assert_eq!(verdict, ReplyVerdict::Failed, "{name}");
        assert_eq!(statuses(&mut requester), [Status::BadResponse], "{name}");
    }
    let mut requester = five_packets();
    assert_eq!(response(&mut requester, 3, First, 256), ReplyVerdict::Failed);
    assert_eq!(statuses(&mut requester), [Status::Success, Status::BadResponse], "a SEND was answered so");
}

#[test]
fn a_nak_of_a_read_between_its_packets_is_its_error() {
    let mut requester = requester(&[(Opcode::Read, 600)]);
    sends(&mut requester, Now(0));
    response(&mut requester, 0, First, 256);
    assert_eq!(reply(&mut requester, 1, nak(NakCode::RemoteAccess)), ReplyVerdict::Failed);
    assert_eq!(statuses(&mut requester), [Status::RemoteAccess]);
}

#[test]
fn a_response_may_come_several_packets_at_a_time_but_not_on_a_wire() {
    let config = *requester(&[]).config();
    let place =
        |offset, length| ReplyVerdict::Place { ticket: Ticket(0), fragment: Fragment { offset, length } };
    let bad = ReplyVerdict::Failed;
    for (name, arrivals) in [
        ("all at once", vec![(0, Only, 700, place(0, 700))]),
        ("in two", vec![(0, First, 512, place(0, 512)), (2, Last, 188, place(512, 188))]),
        ("from before on", vec![(0, First, 256, place(0, 256)), (0, First, 512, place(0, 512))]),
        ("an echo", vec![(0, First, 512, place(0, 512)), (1, Middle, 256, ReplyVerdict::Ignored)]),
        ("no whole packets", vec![(0, First, 300, bad)]),
        ("more than is left", vec![(1, Middle, 512, ReplyVerdict::Resend)]),
        ("an end too soon", vec![(0, Only, 512, bad)]),
        ("an end too late", vec![(0, Only, 768, bad)]),
        ("no end", vec![(0, First, 700, bad)]),
    ] {
        let mut shared = Requester::new(config);
        shared.post(PostedMessage { opcode: Opcode::Read, length: 700, fence: false });
        assert!(shared.poll_packet(Now(0)).is_some());
        for (psn, position, bytes, wanted) in arrivals {
            assert_eq!(response(&mut shared, psn, position, bytes), wanted, "{name}: {psn}");
        }
    }
    let mut wire = requester(&[(Opcode::Read, 700)]);
    assert_eq!(sends(&mut wire, Now(0)), "read0@0+700");
    assert_eq!(response(&mut wire, 0, Only, 700), bad);
}
