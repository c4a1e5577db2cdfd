//! Captured conversations replayed with a [`Connection`] as one end: it sends what the kernel sent, byte for
//! byte from IP header to ICRC, or uses a freedom that the standard leaves, by name.
//!
//! Addresses, source ports and IPv4 identifications are the device's and come from the captured packet; all
//! else is the engine's. A packet that is neither the kernel's nor free is the error.

use std::collections::BTreeMap;

use roce::packet::{Aeth, Syndrome};
use roce::testing::{Arrival, Connection, Event};
use roce::wire::Position;
use roce::{
    Access, Completion, Content, NakCode, Now, Opcode, Packet, PayloadSource, ReceiveCompletion,
    RequesterConfig, ResponderConfig, SendWindow, Status, Verdict,
};

use crate::conversation::{Conversation, Message, STEPPED, conversations, is_at_or_before};
use crate::kernel_host::Host;
use crate::pcap::text;

/// All captures: conversations of each, and packets of these, apart from datagrams to QP1.
const HELD: [(&str, usize, usize); 7] = [
    ("rxe-rc", 7, 85),
    ("rxe-rc-ipv6", 7, 85),
    ("rxe-rc-mtu4096", 7, 77),
    ("rxe-rc-loss", 1, 209),
    ("rxe-cm", 7, 107),
    ("rxe-ud-uc", 4, 24),
    ("rxe-userpeer", 1, 37),
];

/// Where an end may differ from the kernel, and why. No packet shows two more: an end's time to answer, and
/// that ours asks for the rest of a READ at the first response out of order; rxe waits for its timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AllowedDifference {
    /// Captured behind the loss: a missing packet was sent, for the other end behaves as if it was lost.
    LostBeforeTheWire,
    /// A READ resent from its middle is a request like another, and a response begins with a First or Only
    /// packet (IBTA §9.7.5, opcodes of READ responses). rxe goes on with Middle and Last.
    RepeatedReadBegins,
    /// A SEND longer than its receive: the table of NAK codes (IBTA §9.7.5.2) has «invalid request» for it,
    /// rxe says «remote operational error».
    CodeOfALongSend,
    /// Timeouts fire between once and four times the configured time (IBTA §9.7.6), and an RNR wait is a
    /// minimum (§9.7.5.2.8): ours are exact, a kernel's come with its next tick.
    LaterTimer,
    /// Not the kernel's freedom but ours: rxe's timer runs on from an earlier message, and fired before the
    /// configured time was over. Ours waits for the whole time, which is required.
    EarlierTimer,
}

type Differences = BTreeMap<AllowedDifference, usize>;

/// Like the kernel, it acknowledges what asks for it and nothing else, and asks at the end of each message.
fn connection(conversation: &Conversation, peer_qpn: u32) -> Connection {
    let Conversation { service, path_mtu_bytes, .. } = *conversation;
    let first = conversation.first_psn();
    let requester = RequesterConfig {
        service,
        first_psn: first,
        path_mtu_bytes,
        retry_count: 7,
        rnr_retry: 7,
        timeout: 18,
        max_rd_atomic: 8,
        window_messages: 128,
    };
    let responder = ResponderConfig {
        service,
        peer_qpn: Some(peer_qpn),
        expected_psn: first,
        path_mtu_bytes,
        access: Access(0xf),
        max_dest_rd_atomic: 8,
        min_rnr_timer: 24,
        qkey: conversation.packets[0].packet().deth.qkey,
    };
    Connection::new(requester, SendWindow { packets: 1 << 20, ack_every: 1 << 20 }, responder, 1 << 20)
}

/// An answer of ours.
struct Answer {
    /// Index of the request behind which it came.
    after: usize,
    packet: Packet,
    payload: Vec<u8>,
}

/// What a defect makes of a packet before it leaves; `None` swallows it.
type Defect = fn(Packet) -> Option<Packet>;

const SOUND: Defect = Some;

/// Gives our connection all requests of the conversation; returns its answers and how receives completed.
fn answer(conversation: &Conversation, defect: Defect) -> (Vec<Answer>, Host) {
    let mut host = Host::of(conversation);
    let mut connection = connection(conversation, conversation.requester_qpn);
    let mut answers = Vec::new();
    for (after, captured) in conversation.packets.iter().enumerate().filter(|row| row.1.request) {
        host.before(captured);
        let (packet, frame) = (captured.packet(), captured.frame());
        if let Arrival::Request(Verdict::Execute(work)) =
            connection.handle_packet(captured.at, &packet, &mut host)
        {
            let outcome = host.execute(work, frame.packet.payload);
            connection.responder.executed(outcome);
        }
        while let Some(outgoing) = connection.poll_transmit(captured.at) {
            let part = outgoing.packet.payload;
            let payload = match outgoing.source {
                PayloadSource::Region(region) if part.length > 0 => {
                    host.slice(region.address + u64::from(part.offset), part.length as usize).to_vec()
                }
                _ => Vec::new(),
            };
            answers.extend(defect(outgoing.packet).map(|packet| Answer { after, packet, payload }));
        }
        while connection.poll_event().is_some() {}
    }
    (answers, host)
}

/// Our answers beside the kernel's.
fn compare(conversation: &Conversation, answers: &[Answer]) -> Result<Differences, String> {
    let mut differences = Differences::new();
    let mut theirs = conversation.answers().peekable();
    for answer in answers {
        let next = theirs.peek();
        if next.is_some_and(|next| next.bytes == next.rewritten(&answer.packet, &answer.payload)) {
            theirs.next();
            continue;
        }
        let next = next.map(|next| (next.packet(), next.frame().packet.payload.to_vec()));
        let free = difference_of_answer(conversation, answer, next.as_ref()).ok_or_else(|| {
            let asked = &conversation.packets[answer.after];
            let (name, number, request) = (conversation.name(), asked.number, asked.packet());
            format!(
                "{name}: to packet {number}, {request:?},\nwe say   {:?}\nthe kernel {next:?}",
                answer.packet
            )
        })?;
        *differences.entry(free).or_default() += 1;
        if free != AllowedDifference::LostBeforeTheWire {
            theirs.next();
        }
    }
    match theirs.next() {
        None => Ok(differences),
        Some(more) => Err(format!(
            "{}: we have no answer like packet {}, {:?}",
            conversation.name(),
            more.number,
            more.packet()
        )),
    }
}

fn difference_of_answer(
    conversation: &Conversation,
    answer: &Answer,
    next: Option<&(Packet, Vec<u8>)>,
) -> Option<AllowedDifference> {
    let asked = &conversation.packets[answer.after];
    if let Some((theirs, bytes)) = next
        && (theirs.psn, theirs.dst_qpn) == (answer.packet.psn, answer.packet.dst_qpn)
    {
        match (answer.packet.content, theirs.content) {
            (
                Content::ReadResponse { position: Position::First, aeth: Some(Aeth { syndrome, msn }) },
                Content::ReadResponse { position: Position::Middle, .. },
            ) if *bytes == answer.payload
                && syndrome == Syndrome::Ack
                && answer.packet.psn == asked.packet().psn
                && conversation.msn_of_response(answer.after, theirs.psn) == Some(msn) =>
            {
                return Some(AllowedDifference::RepeatedReadBegins);
            }
            (Content::Acknowledge(ours), Content::Acknowledge(theirs))
                if ours.syndrome == Syndrome::Nak(NakCode::InvalidRequest)
                    && theirs.syndrome == Syndrome::Nak(NakCode::RemoteOperation)
                    && ours.msn == theirs.msn
                    && asked.step == 30 =>
            {
                return Some(AllowedDifference::CodeOfALongSend);
            }
            _ => {}
        }
    }
    let lost = conversation.is_lossy() && conversation.asks_again(answer.after, answer.packet.psn);
    lost.then_some(AllowedDifference::LostBeforeTheWire)
}

/// Gives our connection, which posts the same messages, all answers of the conversation: how the messages
/// ended, or where its packets are not the kernel's.
fn ask(conversation: &Conversation, defect: Defect) -> Result<(Vec<Completion>, Differences), String> {
    let (mut differences, mut completions) = (Differences::new(), Vec::new());
    let mut connection = connection(conversation, conversation.responder_qpn);
    let mut host = Host::of(conversation);
    let (messages, mut posted, mut skew) = (conversation.messages(), 0, 0);
    for (index, captured) in conversation.packets.iter().enumerate() {
        let (packet, mut now) = (captured.packet(), captured.at.after(skew));
        if !captured.request {
            connection.handle_packet(now, &packet, &mut host);
        } else {
            while messages.get(posted).is_some_and(|next| is_at_or_before(next.psn, packet.psn)) {
                connection.post(messages[posted].work);
                posted += 1;
            }
            let ours =
                |error: String| format!("{}, packet {}: {error}", conversation.name(), captured.number);
            loop {
                let Some(outgoing) = connection.poll_transmit(now) else {
                    let Some(due) = connection.requester.poll_timeout() else {
                        return Err(ours(format!(
                            "nothing to send and no timer, but the kernel sends {packet:?}"
                        )));
                    };
                    let free = difference_of_timer(now, due).ok_or_else(|| {
                        ours(format!("at {now:?} with a timer due at {due:?}, the kernel sends {packet:?}"))
                    })?;
                    *differences.entry(free).or_default() += 1;
                    // Our time goes on to where the kernel was early.
                    skew += due.0.saturating_sub(now.0);
                    now = now.max(due);
                    connection.requester.handle_timeout(due);
                    continue;
                };
                let Some(sent) = defect(outgoing.packet) else { continue };
                let part = sent.payload;
                let payload = match outgoing.source {
                    PayloadSource::Message(ticket) => {
                        let bytes = part.offset as usize..(part.offset + part.length) as usize;
                        &messages[ticket.0 as usize].payload[bytes]
                    }
                    _ => &[],
                };
                if captured.rewritten(&sent, payload) == captured.bytes {
                    break;
                }
                // What was lost is sent again later, and captured then.
                let again = conversation.packets[index + 1..].iter();
                let again = again.filter(|later| later.request && later.packet().psn == sent.psn).count() > 0;
                if !(conversation.is_lossy() && sent.psn != packet.psn && again) {
                    return Err(ours(format!("\nwe send  {sent:?}\nthe kernel {packet:?}")));
                }
                *differences.entry(AllowedDifference::LostBeforeTheWire).or_default() += 1;
            }
        }
        while let Some(event) = connection.poll_event() {
            if let Event::Sent(completion) = event {
                completions.push(completion);
            }
        }
    }
    Ok((completions, differences))
}

/// The kernel sent at `now` what our timer sends at `due`. Its ack timeout has code 18, 1.07 s.
fn difference_of_timer(now: Now, due: Now) -> Option<AllowedDifference> {
    let configured_ns = 4096 << 18;
    if due <= now {
        return (now.0 - due.0 <= 3 * configured_ns).then_some(AllowedDifference::LaterTimer);
    }
    (due.0 - now.0 <= configured_ns / 10).then_some(AllowedDifference::EarlierTimer)
}

fn each(mut hold: impl FnMut(&Conversation)) {
    for (capture, count, packets) in HELD {
        let conversations = conversations(capture);
        conversations.iter().for_each(&mut hold);
        let held: usize = conversations.iter().map(|conversation| conversation.packets.len()).sum();
        assert_eq!((conversations.len(), held), (count, packets), "{capture}");
    }
}

fn add(all: &mut Differences, some: &Differences) {
    for (free, count) in some {
        *all.entry(*free).or_default() += count;
    }
}

#[test]
fn every_answer_of_a_kernel_is_ours_or_free() {
    let (mut differences, mut answered) = (Differences::new(), 0);
    each(|conversation| {
        let (answers, _) = answer(conversation, SOUND);
        add(&mut differences, &compare(conversation, &answers).unwrap_or_else(|error| panic!("{error}")));
        answered += conversation.answers().count();
    });
    println!("TABLE answers of rdma_rxe, each given by our responder too: {answered}, but {differences:?}");
    let expected = [
        (AllowedDifference::LostBeforeTheWire, 3),
        (AllowedDifference::RepeatedReadBegins, 2),
        (AllowedDifference::CodeOfALongSend, 3),
    ];
    assert_eq!(differences, BTreeMap::from(expected));
}

#[test]
fn every_request_of_a_kernel_is_ours_or_free() {
    let (mut differences, mut asked) = (Differences::new(), 0);
    each(|conversation| {
        // The user-space peer is no kernel: it sets the migration bit.
        if conversation.capture == "rxe-userpeer" {
            return;
        }
        let (completions, some) = ask(conversation, SOUND).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(completions.len(), conversation.messages().len(), "{}", conversation.name());
        add(&mut differences, &some);
        asked += conversation.packets.iter().filter(|captured| captured.request).count();
    });
    println!("TABLE requests of rdma_rxe, each sent by our requester too: {asked}, but {differences:?}");
    let expected = [
        (AllowedDifference::LostBeforeTheWire, 7),
        (AllowedDifference::LaterTimer, 6),
        (AllowedDifference::EarlierTimer, 1),
    ];
    assert_eq!(differences, BTreeMap::from(expected));
}

/// The completions that a text of rdma_rxe's machine lists: opcode, status, length, immediate, flags.
fn listed(file: &str) -> Vec<[u64; 5]> {
    let number = |line: &str, name: &str| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap();
        let word = word.split('(').next().unwrap();
        match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => word.parse().unwrap(),
        }
    };
    let text = text(file);
    let lines = text.lines().filter(|line| line.contains(" CQE "));
    lines.map(|line| ["op=", "status=", "len=", "imm=", "flags="].map(|name| number(line, name))).collect()
}

/// Numbers of `ibv_wc_opcode` and `ibv_wc_status`.
fn wc_opcode(opcode: Opcode) -> u64 {
    match opcode {
        Opcode::Send | Opcode::SendImm | Opcode::SendInvalidate => 0,
        Opcode::Write | Opcode::WriteImm => 1,
        Opcode::Read => 2,
        Opcode::CompareSwap => 3,
        Opcode::FetchAdd => 4,
    }
}

#[test]
fn messages_end_as_the_kernels_did() {
    for capture in STEPPED {
        let mut listed = listed(&format!("{capture}.client.txt")).into_iter();
        for conversation in conversations(capture) {
            let (completions, _) = ask(&conversation, SOUND).unwrap();
            for (completion, Message { work, .. }) in completions.iter().zip(conversation.messages()) {
                let [opcode, status, length, ..] = listed.next().unwrap();
                let ours = match completion.status {
                    Status::Success => 0,
                    Status::RemoteAccess => 10,
                    Status::RemoteOperation => 11,
                    other => panic!("{capture}: {other:?}"),
                };
                assert_eq!(ours, status, "{capture}: {completion:?}");
                // Of a failed one only the status counts (ibv_poll_cq(3)).
                if status == 0 {
                    let ours = (wc_opcode(completion.opcode), u64::from(work.message.length));
                    assert_eq!(ours, (opcode, length), "{capture}: {completion:?}");
                }
            }
        }
        assert_eq!(listed.next(), None, "{capture}");
    }
}

#[test]
fn receives_complete_and_memory_ends_as_the_kernels_did() {
    const RECEIVE: u64 = 128;
    let mut listed = listed("rxe-rc.server.txt").into_iter().filter(|line| line[0] & RECEIVE != 0);
    let mut words = Vec::new();
    for conversation in conversations("rxe-rc") {
        let (_, mut host) = answer(&conversation, SOUND);
        for completion in &host.received {
            let ReceiveCompletion { opcode, byte_len, imm, .. } = *completion;
            let opcode_bit = u64::from(opcode == Opcode::WriteImm);
            // `IBV_WC_WITH_IMM` and `IBV_WC_WITH_INV`.
            let flags = match opcode {
                Opcode::SendImm | Opcode::WriteImm => 2,
                Opcode::SendInvalidate => 4,
                _ => 0,
            };
            let ours = [RECEIVE | opcode_bit, 0, byte_len.into(), u32::from_be_bytes(imm).into(), flags];
            let [op, status, length, imm, kernels_flags] = listed.next().unwrap();
            // The flag 1 says that a GRH came, which on RoCE is always.
            assert_eq!(ours, [op, status, length, imm, kernels_flags & !1], "{completion:?}");
        }
        let atomics = conversation.messages();
        let mut atomics = atomics.iter().filter(|message| message.work.message.opcode.is_atomic());
        words.extend(atomics.next_back().map(|message| host.word(message.work.remote_va)));
    }
    assert_eq!(listed.next(), None);
    // The server's text: the word after the last atomic.
    assert_eq!(words, [0x1_0000_0001]);
}

fn with_aeth(mut packet: Packet, change: fn(&mut Aeth)) -> Packet {
    match &mut packet.content {
        Content::Acknowledge(aeth)
        | Content::AtomicAcknowledge { aeth, .. }
        | Content::ReadResponse { aeth: Some(aeth), .. } => change(aeth),
        _ => {}
    }
    packet
}

fn is_ack(packet: &Packet) -> bool {
    matches!(packet.content, Content::Acknowledge(Aeth { syndrome: Syndrome::Ack, .. }))
}

#[test]
fn an_answer_that_is_wrong_is_seen() {
    let defects: [(&str, Defect); 7] = [
        ("an MSN too many", |packet| Some(with_aeth(packet, |aeth| aeth.msn += 1))),
        ("no ACK", |packet| (!is_ack(&packet)).then_some(packet)),
        ("an ACK of the next PSN", |packet| {
            Some(Packet { psn: packet.psn.plus(is_ack(&packet).into()), ..packet })
        }),
        ("no NAK", |packet| (!packet.is_nak()).then_some(packet)),
        ("another NAK", |packet| {
            Some(with_aeth(packet, |aeth| {
                if aeth.syndrome != Syndrome::Ack {
                    aeth.syndrome = Syndrome::Nak(NakCode::InvalidRequest);
                }
            }))
        }),
        ("a READ response without its end", |packet| {
            let ends = packet.content.position().ends();
            (!ends || !matches!(packet.content, Content::ReadResponse { .. })).then_some(packet)
        }),
        ("the way back to the wrong QP", |packet| Some(Packet { dst_qpn: packet.dst_qpn ^ 1, ..packet })),
    ];
    for (name, defect) in defects {
        let seen = |capture| {
            let conversations = conversations(capture);
            conversations.iter().any(|held| compare(held, &answer(held, defect).0).is_err())
        };
        assert!(seen("rxe-rc"), "{name}");
        assert!(seen("rxe-rc-loss"), "{name}, behind losses");
    }
}

#[test]
fn a_request_that_is_wrong_is_seen() {
    let defects: [(&str, Defect); 5] = [
        ("no AckReq", |packet| Some(Packet { ack_requested: false, ..packet })),
        ("AckReq everywhere", |packet| Some(Packet { ack_requested: true, ..packet })),
        ("no last packet", |packet| {
            let several = matches!(packet.content, Content::Send { .. } | Content::Write { .. });
            (!(several && packet.content.position() == Position::Last)).then_some(packet)
        }),
        ("the next PSN", |packet| Some(Packet { psn: packet.psn.plus(1), ..packet })),
        ("a READ of something else", |mut packet| {
            if let Content::ReadRequest(reth) = &mut packet.content {
                reth.va += 8;
            }
            Some(packet)
        }),
    ];
    for (name, defect) in defects {
        let seen = |capture| conversations(capture).iter().any(|held| ask(held, defect).is_err());
        assert!(seen("rxe-rc"), "{name}");
        assert!(seen("rxe-rc-loss"), "{name}, behind losses");
    }
}
