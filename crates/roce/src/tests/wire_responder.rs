//! What a responder answers to which packets, as dialogues. The PSN expected first is 7, the path MTU 1024.

use super::responder::Device;
use crate::packet::{Aeth, AtomicEth, Deth, Reth, Syndrome, Trailer};
use crate::wire::Position::{self, First, Last, Middle, Only};
use crate::{
    Access, AsyncEvent, Content, Fragment, NakCode, Outcome, Outgoing, Packet, PayloadSource, Psn, Responder,
    ResponderConfig, ResponderEvent, ServiceType, Verdict, Work,
};

const MTU: u32 = 1024;

pub(super) struct Fixture {
    pub(super) responder: Responder,
    pub(super) device: Device,
    pub(super) outcome: Outcome,
    pub(super) work: Vec<Work>,
}

impl Fixture {
    pub(super) fn new(service: ServiceType, expected: u32, ack_every: u32) -> Fixture {
        let config = ResponderConfig {
            service,
            peer_qpn: (service != ServiceType::Ud).then_some(0x77),
            expected_psn: Psn::new(expected),
            path_mtu_bytes: MTU,
            access: Access(0xf),
            max_dest_rd_atomic: 2,
            min_rnr_timer: 12,
            qkey: 0x1111,
        };
        Fixture {
            responder: Responder::by_packet(config, ack_every),
            device: Device { receives: vec![4000; 3], taken: 0 },
            outcome: Outcome::Done,
            work: Vec::new(),
        }
    }

    /// Takes a packet, without polling replies.
    pub(super) fn take(&mut self, packet: &Packet) -> Verdict {
        let verdict = self.responder.handle_packet(packet, &mut self.device);
        if let Verdict::Execute(work) = verdict {
            self.work.push(work);
            let atomic = matches!(work, Work::Atomic { .. });
            self.responder.executed(if atomic { Outcome::Atomic { old: 5 } } else { self.outcome });
        }
        verdict
    }

    pub(super) fn replies(&mut self) -> String {
        let all: Vec<_> = std::iter::from_fn(|| self.responder.poll_packet()).map(|out| word(&out)).collect();
        all.join(" ")
    }
}

/// A reply in a word: what, PSN, and of READ responses the position and the bytes of the region.
fn word(outgoing: &Outgoing) -> String {
    let Packet { psn, content, payload, .. } = outgoing.packet;
    let psn = psn.value();
    let nak = |code| match code {
        NakCode::PsnSequence => "seq",
        NakCode::InvalidRequest => "inv",
        NakCode::RemoteAccess => "acc",
        NakCode::RemoteOperation => "op",
    };
    match content {
        Content::Acknowledge(Aeth { syndrome: Syndrome::Ack, .. }) => format!("ack{psn}"),
        Content::Acknowledge(Aeth { syndrome: Syndrome::RnrNak { .. }, .. }) => format!("rnr{psn}"),
        Content::Acknowledge(Aeth { syndrome: Syndrome::Nak(code), .. }) => format!("{}{psn}", nak(code)),
        Content::AtomicAcknowledge { old, .. } => format!("atomic{psn}={old}"),
        Content::ReadResponse { position, aeth } => {
            assert_eq!(aeth.is_none(), position == Middle, "all but middle packets have an AETH");
            let PayloadSource::Region(region) = outgoing.source else { panic!("a READ without bytes") };
            let at = region.address + u64::from(payload.offset);
            format!("{position:?}{psn}@{at}+{}", payload.length)
        }
        other => panic!("a responder sends {other:?}"),
    }
}

pub(super) fn packet(psn: u32, content: Content, payload_bytes: u32) -> Packet {
    Packet {
        service: ServiceType::Rc,
        dst_qpn: 0x42,
        psn: Psn::new(psn),
        ack_requested: content.position().ends(),
        solicited: false,
        deth: Deth { qkey: 0x1111, src_qpn: 0x99 },
        content,
        payload: Fragment { offset: 0, length: payload_bytes },
    }
}

pub(super) fn send(psn: u32, position: Position, bytes: u32) -> Packet {
    packet(psn, Content::Send { position, trailer: Trailer::None }, bytes)
}

/// A packet of a WRITE of `total` bytes.
fn write(psn: u32, position: Position, bytes: u32, total: u32) -> Packet {
    let reth = Reth { va: 0, rkey: 1, dma_bytes: total };
    packet(psn, Content::Write { position, reth, trailer: Trailer::None }, bytes)
}

fn write_imm(psn: u32, position: Position, bytes: u32, total: u32) -> Packet {
    let reth = Reth { va: 0, rkey: 1, dma_bytes: total };
    packet(psn, Content::Write { position, reth, trailer: Trailer::Immediate([1; 4]) }, bytes)
}

fn read(psn: u32, va: u64, length: u32) -> Packet {
    packet(psn, Content::ReadRequest(Reth { va, rkey: 1, dma_bytes: length }), 0)
}

fn add(psn: u32) -> Packet {
    packet(psn, Content::FetchAdd(AtomicEth { va: 8, rkey: 1, swap_add: 1, compare: 0 }), 0)
}

fn dialogue(packets: &[Packet]) -> String {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    let words: Vec<_> = packets
        .iter()
        .map(|packet| {
            scene.take(packet);
            scene.replies()
        })
        .collect();
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[test]
fn psns_and_duplicates_are_answered_as_the_rules_say() {
    let full = MTU;
    for (name, packets, replies) in [
        ("in order", vec![send(7, First, full), send(8, Middle, full), send(9, Last, 1)], "ack9"),
        ("only", vec![send(7, Only, 0), send(8, Only, full)], "ack7 ack8"),
        (
            "a WRITE",
            vec![write(7, First, full, 2049), write(8, Middle, full, 0), write(9, Last, 1, 0)],
            "ack9",
        ),
        ("an empty WRITE", vec![write(7, Only, 0, 0)], "ack7"),
        // PSNs: one NAK for each gap.
        ("gap between messages", vec![send(8, Only, 1), send(9, Only, 1), send(7, Only, 1)], "seq7 ack7"),
        ("gap inside a message", vec![send(7, First, full), send(9, Last, 1), send(10, Only, 1)], "seq8"),
        (
            "gap inside a message, repaired",
            vec![send(7, First, full), send(9, Last, 1), send(8, Middle, full), send(9, Last, 1)],
            "seq8 ack9",
        ),
        (
            "two gaps",
            vec![send(8, Only, 1), send(7, Only, 1), send(9, Only, 1), send(8, Only, 1)],
            "seq7 ack7 seq8 ack8",
        ),
        // Duplicates.
        ("first again", vec![send(7, First, full), send(8, Last, 1), send(7, First, full)], "ack8 ack8"),
        ("last again", vec![send(7, First, full), send(8, Last, 1), send(8, Last, 1)], "ack8 ack8"),
        (
            "first again within",
            vec![send(7, First, full), send(7, First, full), send(8, Last, 1)],
            "ack7 ack8",
        ),
        ("duplicate in a gap", vec![send(7, Only, 1), send(9, Only, 1), send(7, Only, 1)], "ack7 seq8 ack7"),
        ("atomic again", vec![add(7), send(8, Only, 1), add(7)], "atomic7=5 ack8 atomic7=5"),
    ] {
        assert_eq!(dialogue(&packets), replies, "{name}");
    }
}

#[test]
fn opcodes_and_lengths_are_answered_as_the_rules_say() {
    let invalidating_write =
        Content::Write { position: Last, reth: Reth::default(), trailer: Trailer::Invalidate([0; 4]) };
    let (full, half) = (MTU, MTU / 2);
    let begun = |rest: Packet| vec![send(7, First, full), rest];
    let writing = |total, rest: Packet| vec![write(7, First, full, total), rest];
    for (name, packets, replies) in [
        // Sequences.
        ("middle of nothing", vec![send(7, Middle, full)], "inv7"),
        ("last of nothing", vec![write(7, Last, 1, 1)], "inv7"),
        ("first in a message", begun(send(8, First, full)), "inv8"),
        ("only in a message", begun(send(8, Only, 1)), "inv8"),
        ("READ in a message", begun(read(8, 0, 8)), "inv8"),
        ("atomic in a message", begun(add(8)), "inv8"),
        ("WRITE middle in a SEND", begun(write(8, Middle, full, 4096)), "inv8"),
        ("SEND last in a WRITE", writing(1025, send(8, Last, 1)), "inv8"),
        ("key to invalidate in a WRITE", writing(1025, packet(8, invalidating_write, 1)), "inv8"),
        // Lengths of packets.
        ("first too short", vec![send(7, First, full - 1)], "inv7"),
        ("first too long", vec![send(7, First, full + 1)], "inv7"),
        ("middle too short", begun(send(8, Middle, full - 1)), "inv8"),
        ("last empty", begun(send(8, Last, 0)), "inv8"),
        ("last full", begun(send(8, Last, full)), "ack8"),
        ("last too long", begun(send(8, Last, full + 1)), "inv8"),
        ("only too long", vec![send(7, Only, full + 1)], "inv7"),
        ("READ with payload", vec![packet(7, read(7, 0, 8).content, 1)], "inv7"),
        // Lengths of messages.
        ("WRITE longer than its RETH", writing(1500, write(8, Last, half, 0)), "inv8"),
        ("WRITE shorter than its RETH", writing(1500, write(8, Last, 1, 0)), "inv8"),
        ("WRITE complete before its last", writing(2048, write(8, Middle, full, 0)), "inv8"),
        ("first as long as its RETH", vec![write(7, First, full, full)], "inv7"),
        ("only longer than its RETH", vec![write(7, Only, 9, 8)], "inv7"),
        ("only shorter than its RETH", vec![write(7, Only, 8, 9)], "inv7"),
        ("WRITE of more than 2^31", vec![write(7, First, full, (1 << 31) + 1)], "inv7"),
    ] {
        assert_eq!(dialogue(&packets), replies, "{name}");
    }
}

#[test]
fn a_refused_packet_is_explained_by_the_check_it_failed_and_its_values() {
    let full = MTU;
    for (packets, wanted) in [
        (vec![send(7, Middle, full)], "its Middle packet came outside a message"),
        (vec![send(7, First, full), write(8, Last, 1, 0)], "its Last packet came inside a SEND"),
        (vec![send(7, First, full), read(8, 0, 8)], "its Only packet came inside a SEND"),
        (
            vec![send(7, First, full - 1)],
            "its First packet of 1023 bytes ends at byte 1023 of 1023, path MTU 1024",
        ),
        (
            vec![write(7, First, full, 1500), write(8, Last, 1, 0)],
            "its Last packet of 1 bytes ends at byte 1025 of 1500",
        ),
        (vec![write(7, First, full, (1 << 31) + 1)], "2147483649 bytes are more than the 2147483648"),
    ] {
        let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
        for packet in &packets {
            scene.take(packet);
        }
        let last = std::iter::from_fn(|| scene.responder.poll_event()).last();
        let Some(ResponderEvent::Failed(failure)) = last else { panic!("{wanted}: {last:?}") };
        let why = failure.why.to_string();
        assert!(why.starts_with(wanted), "{wanted}: {why}");
    }
}

#[test]
fn keys_and_reads_are_answered_as_the_rules_say() {
    let wrong_key = Content::Write {
        position: First,
        reth: Reth { va: 0, rkey: 100, dma_bytes: 1500 },
        trailer: Trailer::None,
    };
    let full = MTU;
    for (name, packets, replies) in [
        // Keys; nothing is answered after a fatal NAK.
        ("wrong key", vec![packet(7, wrong_key, full), write(8, Last, 1, 0), read(7, 0, 8)], "acc7"),
        (
            "SEND longer than the receive",
            vec![send(7, First, full), send(8, Middle, full), send(9, Middle, full), send(10, Last, 929)],
            "inv10",
        ),
        (
            "SEND as long as the receive",
            vec![send(7, First, full), send(8, Middle, full), send(9, Middle, full), send(10, Last, 928)],
            "ack10",
        ),
        // READs.
        ("READ", vec![read(7, 64, 2049)], "First7@64+1024 Middle8@1088+1024 Last9@2112+1"),
        ("READ of nothing", vec![read(7, 0, 0)], "Only7@0+0"),
        (
            "READ from its middle",
            vec![read(7, 64, 2049), read(8, 1088, 1025)],
            "First7@64+1024 Middle8@1088+1024 Last9@2112+1 First8@1088+1024 Last9@2112+1",
        ),
        (
            "READ of its end",
            vec![read(7, 64, 2049), read(9, 2112, 1)],
            "First7@64+1024 Middle8@1088+1024 Last9@2112+1 Only9@2112+1",
        ),
        ("another READ in its place", vec![read(7, 0, 8), read(7, 8, 8)], "Only7@0+8"),
        ("SEND after a READ", vec![read(7, 0, 1025), send(9, Only, 1)], "First7@0+1024 Last8@1024+1 ack9"),
    ] {
        assert_eq!(dialogue(&packets), replies, "{name}");
    }
}

#[test]
fn the_psn_wraps_inside_a_message_and_inside_a_response() {
    let mut scene = Fixture::new(ServiceType::Rc, 0xff_ffff, 100);
    for packet in [send(0xff_ffff, First, MTU), send(0, Middle, MTU), send(1, Last, 3)] {
        scene.take(&packet);
    }
    assert_eq!(scene.replies(), "ack1");
    let mut scene = Fixture::new(ServiceType::Rc, 0xff_ffff, 100);
    scene.take(&read(0xff_ffff, 0, 2048));
    assert_eq!(scene.replies(), "First16777215@0+1024 Last0@1024+1024");
    scene.take(&read(0, 1024, 1024));
    assert_eq!(scene.replies(), "Only0@1024+1024");
}

#[test]
fn acknowledgements_come_when_asked_for_and_after_so_many_packets() {
    let quiet = |psn| Packet { ack_requested: false, ..send(psn, Only, 1) };
    let mut scene = Fixture::new(ServiceType::Rc, 7, 3);
    scene.device.receives = vec![4000; 9];
    for (name, packet, replies) in [
        ("first", quiet(7), ""),
        ("second", quiet(8), ""),
        ("third", quiet(9), "ack9"),
        ("fourth", quiet(10), ""),
        ("asked for", send(11, Only, 1), "ack11"),
        ("counted from there", quiet(12), ""),
        ("and one", quiet(13), ""),
        ("and one more", quiet(14), "ack14"),
        ("a duplicate is always answered", quiet(9), "ack14"),
    ] {
        scene.take(&packet);
        assert_eq!(scene.replies(), replies, "{name}");
    }
    assert_eq!(scene.responder.msn(), 8);
}

/// MSN counts messages, not packets, each once; a NAK carries the count so far (as in rxe's captures).
#[test]
fn every_answer_counts_the_messages_completed() {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 1);
    for (packet, expected) in [
        (send(7, First, MTU), vec![0]),
        (send(8, Last, 1), vec![1]),
        (send(8, Last, 1), vec![1]),
        (read(9, 0, 2048), vec![2, 2]),
        (add(11), vec![3]),
        (read(9, 0, 2048), vec![3, 3]),
        (send(13, Only, 1), vec![3]),
        (write(12, Only, 8, 8), vec![4]),
    ] {
        scene.take(&packet);
        let msns: Vec<_> = std::iter::from_fn(|| scene.responder.poll_packet())
            .filter_map(|outgoing| match outgoing.packet.content {
                Content::Acknowledge(aeth) | Content::AtomicAcknowledge { aeth, .. } => Some(aeth.msn),
                Content::ReadResponse { aeth, .. } => aeth.map(|aeth| aeth.msn),
                _ => None,
            })
            .collect();
        assert_eq!(msns, expected, "{packet:?}");
    }
}

#[test]
fn a_write_takes_its_receive_with_the_immediate_and_only_its_last_packet_waits_for_one() {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    scene.device.receives.clear();
    let last = write_imm(9, Last, 2, 0);
    for (name, packet, replies) in [
        ("first", write(7, First, MTU, 2050), ""),
        ("middle", write(8, Middle, MTU, 0), ""),
        ("not ready", last, "rnr9"),
        ("behind it", send(10, Only, 1), ""),
        ("still not", last, "rnr9"),
    ] {
        scene.take(&packet);
        assert_eq!(scene.replies(), replies, "{name}");
    }
    scene.device.receives = vec![4000];
    scene.take(&last);
    assert_eq!(scene.replies(), "ack9");
    let Some(Work::Write { offset: 2048, length: 2, completion: Some((receive, done)), .. }) =
        scene.work.last()
    else {
        panic!("{:?}", scene.work)
    };
    assert_eq!((receive.id, done.byte_len, done.imm), (1, 2050, [1; 4]));
    assert_eq!(scene.work.len(), 3, "each packet once");
}

#[test]
fn a_send_without_receive_waits_from_its_first_packet_on() {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    scene.device.receives.clear();
    scene.take(&send(7, First, MTU));
    scene.take(&send(8, Last, 1));
    assert_eq!(scene.replies(), "rnr7");
    scene.device.receives = vec![4000];
    scene.take(&send(7, First, MTU));
    scene.take(&send(8, Last, 1));
    assert_eq!(scene.replies(), "ack8");
}

#[test]
fn a_read_asked_for_again_while_it_goes_out_starts_over_there() {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    scene.take(&read(7, 0, 5000));
    let mut next = || word(&scene.responder.poll_packet().expect("a response"));
    assert_eq!([next(), next(), next()], ["First7@0+1024", "Middle8@1024+1024", "Middle9@2048+1024"]);
    scene.take(&read(8, 1024, 3976));
    assert_eq!(
        scene.replies(),
        "First8@1024+1024 Middle9@2048+1024 Middle10@3072+1024 Last11@4096+904",
        "once, and to the end"
    );
    // From exactly where it has come to: the answer to a request begins with a first packet there too.
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    scene.take(&read(7, 0, 3000));
    assert_eq!(word(&scene.responder.poll_packet().expect("a response")), "First7@0+1024");
    scene.take(&read(8, 1024, 1976));
    assert_eq!(scene.replies(), "First8@1024+1024 Last9@2048+952");
}

#[test]
fn a_read_asked_for_again_before_its_turn_is_answered_once() {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    scene.take(&read(7, 0, 1025));
    scene.take(&read(7, 0, 1025));
    scene.take(&read(8, 1024, 1));
    assert_eq!(scene.replies(), "First7@0+1024 Last8@1024+1");
    assert_eq!(scene.responder.counters().duplicates, 2);
}

#[test]
fn bytes_of_a_read_that_cannot_be_read_end_it_at_their_psn() {
    for (outcome, replies, event) in [
        (Outcome::Revoked, "acc8", AsyncEvent::AccessError),
        (Outcome::LocalFault { addr: 0 }, "op8", AsyncEvent::QpFatal),
    ] {
        let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
        scene.take(&read(7, 0, 3000));
        scene.take(&send(10, Only, 1));
        assert_eq!(scene.responder.poll_packet().map(|out| word(&out)), Some("First7@0+1024".into()));
        assert!(scene.responder.poll_packet().is_some());
        scene.responder.read_failed(outcome);
        assert_eq!(scene.replies(), replies);
        let events: Vec<_> = std::iter::from_fn(|| scene.responder.poll_event()).collect();
        let Some(ResponderEvent::Failed(failure)) = events.last() else { panic!("{events:?}") };
        assert_eq!(failure.event, Some(event));
    }
}

#[test]
fn bytes_of_a_repeated_read_that_cannot_be_read_end_in_silence() {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    scene.take(&read(7, 0, 3000));
    scene.replies();
    scene.take(&read(7, 0, 3000));
    assert!(scene.responder.poll_packet().is_some());
    scene.responder.read_failed(Outcome::Revoked);
    assert_eq!(scene.replies(), "");
    assert!(!scene.responder.is_failed());
    scene.take(&send(10, Only, 1));
    assert_eq!(scene.replies(), "ack10", "the connection goes on");
}

#[test]
fn a_response_may_leave_several_packets_at_a_time_and_as_few_of_them_as_there_is_room_for() {
    let mut scene = Fixture::new(ServiceType::Rc, 7, 100);
    scene.take(&read(7, 0, 5000));
    let mut next = |most, carried| {
        let outgoing = scene.responder.next_packet(most).expect("a response");
        assert_eq!(scene.responder.next_packet(most), Some(outgoing), "nothing has left");
        scene.responder.sent_packet(carried);
        word(&outgoing)
    };
    assert_eq!(next(u32::MAX, 2048), "Only7@0+5000");
    assert_eq!(next(2 * MTU + 5, 2048), "Middle9@2048+2048");
    assert_eq!(next(904, 904), "Last11@4096+904");
    assert_eq!(scene.replies(), "");
}
