//! What happened, in the order of a recording: WQEs, doorbells, packets and completions, each with its time and its queue pair.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;

use mlx5_device::carrier::{Icrc, Message, PathAddress, Sent, Unsent};
use mlx5_device::command::Answer;
use mlx5_device::command::{
    ContextId, CreateCq, CreateQp, CreatedCq, CreatedQp, DestroyedCq, Handle, ModifyQp, ResizeCq,
};
use mlx5_device::memory::Fault;
use mlx5_layout::doorbell::Doorbell;
use mlx5_layout::send_wqe::{BLOCK_BYTES, Control};
use mlx5_layout::{Cqe, SendOpcode};
use roce::qp_state::{AttrMask, QpState};
use roce::{Packet, Psn, Request};

use super::format::{Reader, RecordingError};
use super::recorder::Head;
use super::tag::Tag;
use super::values::{AnyPayload, Facts, ReplyPiece, Take, Words, number};

/// Something that happened to a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The program rang: the index of the next WQE.
    Doorbell { next: u16 },
    /// The device read a WQE; whether one of its kind sends a message.
    Wqe { index: u16, opcode: String, sends: bool },
    /// A packet, or a message of shared memory, left.
    Sent(Transfer),
    /// One arrived.
    Arrived(Transfer),
    /// The device wrote a CQE.
    Completion { index: u16, opcode: String, requester: bool },
    /// It went to RESET, or was destroyed.
    Reset,
}

/// A packet or a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    pub what: String,
    pub psn: Psn,
    pub bytes: u32,
    /// A request, and no answer to one.
    pub request: bool,
    /// The last packet of its message.
    pub last: bool,
}

/// The rings of the objects that a recording makes.
#[derive(Debug, Default)]
pub struct Objects {
    command: Vec<u64>,
    cqs: BTreeMap<(ContextId, Handle), (Range<u64>, u32)>,
    qps: BTreeMap<(ContextId, Handle), Queue>,
}

#[derive(Debug)]
struct Queue {
    qpn: u32,
    sends: Range<u64>,
    peer: u32,
}

impl Objects {
    /// Whether a write at this address is one of a CQE.
    pub fn is_completion(&self, addr: u64) -> bool {
        self.cqs.values().any(|(ring, _)| ring.contains(&addr))
    }

    /// Takes an entry of a command or an answer. Returns the numbers of the queue pairs that this resets.
    pub fn note(&mut self, tag: Tag, words: &[u64]) -> Vec<u32> {
        match tag {
            Tag::Command => self.command = words.to_vec(),
            Tag::Answer => return self.answered(&mut Words(words)).unwrap_or_default(),
            _ => {}
        }
        Vec::new()
    }

    fn answered(&mut self, answer: &mut Words<'_>) -> Option<Vec<u32>> {
        let command = std::mem::take(&mut self.command);
        let command = &mut Words(&command);
        let number = command.word()?;
        match number {
            number::CREATE_CQ => {
                let (context, wanted): (ContextId, CreateCq) = Take::take(command)?;
                let created = Answer::<CreatedCq>::take(answer)?.ok()?;
                let ring = cq_ring(wanted.buffer, wanted.cqe, wanted.cqe_size);
                self.cqs.insert((context, created.handle), (ring, wanted.cqe_size));
            }
            number::RESIZE_CQ => {
                let (context, cq, wanted): (ContextId, Handle, ResizeCq) = Take::take(command)?;
                let cqe = Answer::<u32>::take(answer)?.ok()?;
                let ring = cq_ring(wanted.buffer, cqe, wanted.cqe_size);
                self.cqs.insert((context, cq), (ring, wanted.cqe_size));
            }
            number::CREATE_QP => {
                let (context, wanted): (ContextId, CreateQp) = Take::take(command)?;
                let created = Answer::<CreatedQp>::take(answer)?.ok()?;
                let shared = wanted.srq.is_some() || wanted.rq_wqe_count == 0;
                let receives = if shared {
                    0
                } else {
                    u64::from(wanted.rq_wqe_count).checked_shl(wanted.rq_wqe_shift)?
                };
                let start = wanted.buffer.wrapping_add(receives);
                let sends = start..start.wrapping_add(u64::from(wanted.sq_wqe_count) * BLOCK_BYTES as u64);
                self.qps.insert((context, created.handle), Queue { qpn: created.qpn, sends, peer: 0 });
            }
            number::MODIFY_QP => {
                let (context, qp, wanted): (ContextId, Handle, ModifyQp) = Take::take(command)?;
                Answer::<()>::take(answer)?.ok()?;
                let queue = self.qps.get_mut(&(context, qp))?;
                queue.peer = if wanted.dest_qpn == 0 { queue.peer } else { wanted.dest_qpn };
                if AttrMask(wanted.mask).contains(AttrMask::STATE) && wanted.state == QpState::Reset.number()
                {
                    queue.peer = 0;
                    return Some(vec![queue.qpn]);
                }
            }
            number::DESTROY_QP => {
                let object: (ContextId, Handle) = Take::take(command)?;
                Answer::<u32>::take(answer)?.ok()?;
                return Some(vec![self.qps.remove(&object)?.qpn]);
            }
            number::DESTROY_CQ => {
                let object: (ContextId, Handle) = Take::take(command)?;
                Answer::<DestroyedCq>::take(answer)?.ok()?;
                self.cqs.remove(&object);
            }
            number::CLOSE => {
                let closed = ContextId::take(command)?;
                let gone = self.qps.iter().filter(|((context, _), _)| *context == closed);
                let gone = gone.map(|(_, queue)| queue.qpn).collect();
                self.qps.retain(|(context, _), _| *context != closed);
                self.cqs.retain(|(context, _), _| *context != closed);
                return Some(gone);
            }
            _ => {}
        }
        Some(Vec::new())
    }

    /// The queue pair whose peer has this number.
    fn to(&self, peer: u32) -> Option<u32> {
        self.qps.values().find(|queue| queue.peer == peer).map(|queue| queue.qpn)
    }

    /// What an entry says of a queue pair.
    fn event(&self, tag: Tag, words: &mut Words<'_>) -> Option<(u32, Event)> {
        match tag {
            Tag::TakeRegister => {
                let (_, stored): (u64, Option<[u8; 8]>) = Take::take(words)?;
                let doorbell = Doorbell::parse(stored?);
                Some((doorbell.qpn, Event::Doorbell { next: doorbell.next_index() }))
            }
            Tag::Read => {
                let (addr, _, read): (u64, u64, Result<Vec<u8>, Fault>) = Take::take(words)?;
                let queue = self.qps.values().find(|queue| queue.sends.contains(&addr))?;
                let control = Control::parse(read.ok()?.get(..Control::BYTES)?).ok()?;
                let block = (addr - queue.sends.start) / BLOCK_BYTES as u64;
                let blocks = (queue.sends.end - queue.sends.start) / BLOCK_BYTES as u64;
                // Further blocks of a WQE are read by themselves.
                let first = control.qpn == queue.qpn && u64::from(control.wqe_index) % blocks.max(1) == block;
                let opcode = control.send_opcode();
                let sends = opcode.is_some_and(sends);
                let opcode = opcode.map_or("unknown".to_owned(), |opcode| format!("{opcode:?}"));
                first.then_some((queue.qpn, Event::Wqe { index: control.wqe_index, opcode, sends }))
            }
            Tag::SendPacket => {
                let (packet, ..): (Packet, IpAddr, IpAddr, Icrc) = Take::take(words)?;
                let sent: Result<usize, Unsent> = Take::take(words)?;
                let own = self.to(packet.dst_qpn).unwrap_or(packet.deth.src_qpn);
                Some((own, left(of_packet(&packet), sent.err())?))
            }
            Tag::SendRequest => {
                let (mut request, ..): (Request, u8, Option<PathAddress>, AnyPayload) = Take::take(words)?;
                let sent: Result<Sent, Unsent> = Take::take(words)?;
                // The device asks for all that is left of the message.
                request.fragment.length = sent.map_or(request.fragment.length, |sent| sent.carried);
                Some((request.src_qpn, left(of_request(&request), sent.err())?))
            }
            Tag::SendReply => {
                let (ReplyPiece(reply, ..), ..): (ReplyPiece, AnyPayload, u32) = Take::take(words)?;
                let sent: Result<Sent, Unsent> = Take::take(words)?;
                let bytes = sent.map_or(0, |sent| sent.carried);
                Some((reply.src_qpn, left(of_reply(&reply, bytes), sent.err())?))
            }
            Tag::Message => {
                let (message, (.., bytes)): (Message, Facts) = Take::take(words)?;
                Some(match message {
                    Message::Request(request) => (request.dst_qpn, Event::Arrived(of_request(&request))),
                    Message::Reply { reply, .. } => (reply.dst_qpn, Event::Arrived(of_reply(&reply, bytes))),
                    Message::Packet { packet, .. } => (packet.dst_qpn, Event::Arrived(of_packet(&packet))),
                })
            }
            Tag::Write => {
                let (addr, bytes): (u64, Vec<u8>) = Take::take(words)?;
                let cqe = Cqe::in_slot(&bytes[..]).ok().filter(|_| self.is_completion(addr))?;
                let opcode = cqe.opcode()?;
                let requester = matches!(
                    opcode,
                    mlx5_layout::CqeOpcode::Requester | mlx5_layout::CqeOpcode::RequesterError
                );
                let (index, opcode) = (cqe.wqe_counter(), format!("{opcode:?}"));
                Some((cqe.qpn(), Event::Completion { index, opcode, requester }))
            }
            _ => None,
        }
    }
}

fn cq_ring(buffer: u64, cqe: u32, cqe_size: u32) -> Range<u64> {
    buffer..buffer.wrapping_add((u64::from(cqe) + 1) * u64::from(cqe_size))
}

/// Whether a WQE of this kind leads to a request to the peer.
fn sends(opcode: SendOpcode) -> bool {
    use SendOpcode::{Send, SendImm, SendInvalidate};
    matches!(opcode, Send | SendImm | SendInvalidate) || opcode.has_remote_address()
}

/// What became of a transfer: nothing where it had no room, and what has no way to its peer is lost.
fn left(transfer: Transfer, unsent: Option<Unsent>) -> Option<Event> {
    match unsent {
        None => Some(Event::Sent(transfer)),
        Some(Unsent::Unreachable) => {
            Some(Event::Sent(Transfer { what: transfer.what + " lost", ..transfer }))
        }
        Some(Unsent::Full | Unsent::Fault(_) | Unsent::Failed(_)) => None,
    }
}

fn of_packet(packet: &Packet) -> Transfer {
    let kind = format!("{:?}", packet.content);
    let kind = kind.split([' ', '(']).next().unwrap_or_default();
    let position = packet.content.position();
    Transfer {
        what: format!("{kind} {position:?}"),
        psn: packet.psn,
        bytes: packet.payload.length,
        request: packet.content.is_request(),
        last: position.ends(),
    }
}

fn of_request(request: &Request) -> Transfer {
    Transfer {
        what: request.opcode.to_string(),
        psn: request.psn,
        bytes: request.fragment.length,
        request: true,
        last: request.fragment.offset.saturating_add(request.fragment.length) == request.length,
    }
}

fn of_reply(reply: &roce::Reply, bytes: u32) -> Transfer {
    Transfer { what: format!("{:?}", reply.kind), psn: reply.psn, bytes, request: false, last: true }
}

/// The events of a recording, each with its time, ns, and its queue pair.
pub struct Events {
    reader: Reader,
    objects: Objects,
    now: u64,
    ready: VecDeque<(u64, u32, Event)>,
    ended: bool,
}

impl Events {
    /// Errors: a file that is no whole recording.
    pub fn open(file: &Path) -> Result<Events, RecordingError> {
        let reader = Reader::open(file)?;
        let now = reader.start_ns;
        Ok(Events { reader, objects: Objects::default(), now, ready: VecDeque::new(), ended: false })
    }

    pub fn file(&self) -> &Path {
        &self.reader.file
    }

    /// When the recording began.
    pub fn start_ns(&self) -> u64 {
        self.reader.start_ns
    }

    /// The next event; `None` at the end of the recording.
    pub fn next_event(&mut self) -> Result<Option<(u64, u32, Event)>, RecordingError> {
        while self.ready.is_empty() && !self.ended {
            let Some(block) = self.reader.block()? else {
                return Err(self.reader.cut_off("the end mark is missing"));
            };
            let mut rest = &block[..];
            while let Some((head, words)) = split(&mut rest, &self.reader)? {
                self.take(head, words);
            }
        }
        Ok(self.ready.pop_front())
    }

    fn take(&mut self, head: Head, words: &[u64]) {
        let Some(tag) = Tag::of(head.tag) else { return };
        match tag {
            Tag::Round | Tag::LastRound | Tag::Stamp => {
                self.now = self.now.saturating_add(head.number.into())
            }
            Tag::Time => self.now = words.first().copied().unwrap_or(0),
            Tag::End => self.ended = true,
            Tag::Command | Tag::Answer => {
                let reset = self.objects.note(tag, words);
                self.ready.extend(reset.into_iter().map(|qpn| (self.now, qpn, Event::Reset)));
            }
            _ => {
                let event = self.objects.event(tag, &mut Words(words));
                self.ready.extend(event.map(|(qpn, event)| (self.now, qpn, event)));
            }
        }
    }
}

/// The next entry of a block: its head and its words.
pub fn split<'a>(rest: &mut &'a [u64], reader: &Reader) -> Result<Option<(Head, &'a [u64])>, RecordingError> {
    let Some((first, after)) = rest.split_first() else { return Ok(None) };
    let head = Head::of(*first);
    if Tag::of(head.tag).is_none() {
        return Err(reader.damaged(format!("an entry of unknown kind {}", head.tag)));
    }
    let count = if head.tag < Tag::FIRST_VALUE { head.number as usize } else { 0 };
    let Some((words, after)) = after.split_at_checked(count) else {
        return Err(reader.damaged(format!("an entry of {count} words in a block with {}", after.len())));
    };
    *rest = after;
    Ok(Some((head, words)))
}
