//! The captures as conversations: each direction of a connection apart, requests with their answers.
//!
//! QPs set up by hand have the same QPN at both ends, but for the user-space peer's; so do the connection
//! manager's, as its REQs and REPs say. Datagrams to QP1 are left out: the transport owes them no answer.

use std::collections::HashMap;

use roce::packet::{Aeth, Trailer};
use roce::testing::WorkRequest;
use roce::testing::frame::{Frame, FrameBuilder};
use roce::wire::Gid;
use roce::wire::mad::QP1;
use roce::{Content, Now, Opcode, Packet, PostedMessage, Psn, ServiceType};

use crate::pcap::{text, timed_packets};

/// Captures whose text has the steps of the data's README.
pub const STEPPED: [&str; 3] = ["rxe-rc", "rxe-rc-ipv6", "rxe-rc-mtu4096"];

/// A packet of a conversation.
pub struct Captured {
    /// Its number in the capture, from 1.
    pub number: usize,
    /// Its step in the data's README; 0 in captures without steps.
    pub step: u32,
    /// When it was captured, from the capture's first packet on.
    pub at: Now,
    /// A request, not an answer.
    pub request: bool,
    /// From the IP header on.
    pub bytes: Vec<u8>,
}

impl Captured {
    /// Its headers and payload.
    pub fn frame(&self) -> Frame<'_> {
        Frame::decode(&self.bytes).unwrap()
    }

    /// What it says.
    pub fn packet(&self) -> Packet {
        Packet::from_wire(&self.frame().packet).unwrap()
    }

    /// The packet that says `packet`, with the addresses, ports and identification of this one.
    pub fn rewritten(&self, packet: &Packet, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let packet = packet.to_wire(payload).unwrap();
        FrameBuilder { packet, ..self.frame().builder() }.append_to(&mut bytes).unwrap();
        bytes
    }
}

/// See the module.
pub struct Conversation {
    /// The capture.
    pub capture: &'static str,
    /// Service.
    pub service: ServiceType,
    /// QPN that asks.
    pub requester_qpn: u32,
    /// QPN that answers.
    pub responder_qpn: u32,
    /// Path MTU.
    pub path_mtu_bytes: u32,
    /// All of it, in the order of the capture.
    pub packets: Vec<Captured>,
}

/// A message that the requester posted, put together from its packets.
pub struct Message {
    /// As it was posted.
    pub work: WorkRequest,
    /// Bytes of a SEND or WRITE.
    pub payload: Vec<u8>,
    /// Its first PSN.
    pub psn: Psn,
}

fn partner(capture: &str, qpn: u32) -> u32 {
    match (capture, qpn) {
        ("rxe-userpeer", 0x11) => 0x777,
        ("rxe-userpeer", 0x777) => 0x11,
        _ => qpn,
    }
}

/// The step of each packet of a capture, from its text.
fn steps(capture: &str) -> Vec<u32> {
    let (mut steps, mut step) = (Vec::new(), 0);
    if STEPPED.contains(&capture) {
        for line in text(&format!("{capture}.txt")).lines() {
            match line.strip_prefix("-- step ") {
                Some(heading) => step = heading.split(':').next().unwrap().parse().unwrap(),
                None => steps.push(step),
            }
        }
    }
    steps
}

/// All conversations of a capture, in the order of their first packets.
pub fn conversations(capture: &'static str) -> Vec<Conversation> {
    let (steps, packets) = (steps(capture), timed_packets(capture));
    let began = packets.first().unwrap().0;
    let mut found: Vec<((Gid, Gid, u32), Conversation)> = Vec::new();
    for (index, (at, bytes)) in packets.into_iter().enumerate() {
        let frame = Frame::decode(&bytes).unwrap();
        let (bth, qpn) = (frame.packet.bth, frame.packet.bth.dst_qpn);
        if qpn == QP1 {
            continue;
        }
        let (from, to) = (frame.ip.source(), frame.ip.destination());
        let request = !bth.opcode.kind().operation().is_response();
        let (key, requester_qpn) = match request {
            true => ((from, to, qpn), partner(capture, qpn)),
            false => ((to, from, partner(capture, qpn)), qpn),
        };
        let service = bth.opcode.service();
        let step = steps.get(index).copied().unwrap_or(0);
        let captured = Captured { number: index + 1, step, at: Now(at - began), request, bytes };
        match found.iter_mut().find(|row| row.0 == key) {
            Some((_, conversation)) => conversation.packets.push(captured),
            None => found.push((
                key,
                Conversation {
                    capture,
                    service,
                    requester_qpn,
                    responder_qpn: key.2,
                    path_mtu_bytes: if capture == "rxe-rc-mtu4096" { 4096 } else { 1024 },
                    packets: vec![captured],
                },
            )),
        }
    }
    found.into_iter().map(|row| row.1).collect()
}

impl Conversation {
    /// What to call it in a sentence.
    pub fn name(&self) -> String {
        let Conversation { capture, requester_qpn, responder_qpn, .. } = self;
        let first = self.packets[0].number;
        format!("{capture} from packet {first} on, QP {requester_qpn:#x} to {responder_qpn:#x}")
    }

    /// PSN of the first request.
    pub fn first_psn(&self) -> Psn {
        assert!(self.packets[0].request, "{}", self.name());
        self.packets[0].packet().psn
    }

    /// Whether packets of it were lost before they were captured.
    pub fn is_lossy(&self) -> bool {
        self.capture == "rxe-rc-loss"
    }

    /// Captured answers.
    pub fn answers(&self) -> impl Iterator<Item = &Captured> {
        self.packets.iter().filter(|captured| !captured.request)
    }

    /// Whether the requester asks for this PSN, or an earlier one, after the packet at `index`: the answer
    /// was not what it waited for.
    pub fn asks_again(&self, index: usize, psn: Psn) -> bool {
        let later = self.packets[index + 1..].iter().filter(|captured| captured.request);
        later.map(|captured| captured.packet().psn).any(|again| is_at_or_before(again, psn))
    }

    /// The bytes of each PSN that a READ response brought.
    pub fn read_bytes(&self) -> HashMap<u32, Vec<u8>> {
        let responses = self
            .answers()
            .filter(|captured| matches!(captured.packet().content, Content::ReadResponse { .. }));
        responses
            .map(|captured| (captured.packet().psn.value(), captured.frame().packet.payload.to_vec()))
            .collect()
    }

    /// What the answer to each atomic says was there before it, by PSN.
    pub fn found_by_atomics(&self) -> HashMap<u32, u64> {
        let found = self.answers().filter_map(|captured| match captured.packet() {
            Packet { psn, content: Content::AtomicAcknowledge { old, .. }, .. } => Some((psn.value(), old)),
            _ => None,
        });
        found.collect()
    }

    /// MSN of the answer that ends the READ response in which this PSN lies.
    pub fn msn_of_response(&self, index: usize, psn: Psn) -> Option<u32> {
        let later = self.packets[index + 1..].iter().filter(|captured| !captured.request);
        later.map(Captured::packet).find_map(|packet| match packet.content {
            Content::ReadResponse { aeth: Some(Aeth { msn, .. }), position }
                if position.ends() && is_at_or_before(psn, packet.psn) =>
            {
                Some(msn)
            }
            _ => None,
        })
    }

    /// The messages that were posted, in order, each from whichever copies of its packets were captured.
    pub fn messages(&self) -> Vec<Message> {
        let mut requests = HashMap::new();
        for captured in self.packets.iter().filter(|captured| captured.request) {
            requests.entry(captured.packet().psn.value()).or_insert(captured);
        }
        let (mut messages, mut psn) = (Vec::new(), self.first_psn());
        while let Some(first) = requests.get(&psn.value()) {
            let head = first.packet();
            let (mut last, mut payload, mut count) = (head, first.frame().packet.payload.to_vec(), 1);
            while !last.content.position().ends() {
                let next = requests.get(&psn.plus(count).value()).unwrap_or_else(|| {
                    panic!("{}: PSN {:?} never came", self.name(), psn.plus(count));
                });
                payload.extend_from_slice(next.frame().packet.payload);
                (last, count) = (next.packet(), count + 1);
            }
            let work = work_request(&head, &last, payload.len());
            if let Content::ReadRequest(reth) = head.content {
                count = reth.dma_bytes.div_ceil(self.path_mtu_bytes).max(1);
            }
            messages.push(Message { work, payload, psn });
            psn = psn.plus(count);
        }
        messages
    }
}

/// Whether `psn` is `other` or lies before it, as far as half the space reaches.
pub fn is_at_or_before(psn: Psn, other: Psn) -> bool {
    other.distance_from(psn) < 1 << 23
}

/// What was posted, by its first and its last packet.
fn work_request(head: &Packet, last: &Packet, payload_bytes: usize) -> WorkRequest {
    let trailer = match last.content {
        Content::Send { trailer, .. } | Content::Write { trailer, .. } => trailer,
        _ => Trailer::None,
    };
    let imm = match trailer {
        Trailer::None => [0; 4],
        Trailer::Immediate(bytes) | Trailer::Invalidate(bytes) => bytes,
    };
    let sent = u32::try_from(payload_bytes).unwrap();
    let (opcode, length, remote_va, rkey, swap_add, compare) = match head.content {
        Content::Send { .. } => {
            let opcode = match trailer {
                Trailer::None => Opcode::Send,
                Trailer::Immediate(_) => Opcode::SendImm,
                Trailer::Invalidate(_) => Opcode::SendInvalidate,
            };
            (opcode, sent, 0, 0, 0, 0)
        }
        Content::Write { reth, .. } => {
            assert_eq!(reth.dma_bytes, sent);
            let opcode = if trailer == Trailer::None { Opcode::Write } else { Opcode::WriteImm };
            (opcode, sent, reth.va, reth.rkey, 0, 0)
        }
        Content::ReadRequest(reth) => (Opcode::Read, reth.dma_bytes, reth.va, reth.rkey, 0, 0),
        Content::CompareSwap(eth) => (Opcode::CompareSwap, 8, eth.va, eth.rkey, eth.swap_add, eth.compare),
        Content::FetchAdd(eth) => (Opcode::FetchAdd, 8, eth.va, eth.rkey, eth.swap_add, eth.compare),
        _ => panic!("no request: {head:?}"),
    };
    WorkRequest {
        message: PostedMessage { opcode, length, fence: false },
        solicited: last.solicited,
        imm,
        remote_va,
        rkey,
        swap_add,
        compare,
        src_qpn: head.deth.src_qpn,
        dst_qpn: head.dst_qpn,
        qkey: head.deth.qkey,
    }
}
