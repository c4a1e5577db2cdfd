//! What happens to queue pairs in a replay: WQEs, doorbells, packets and completions.

use std::collections::BTreeMap;
use std::ops::Range;

use mlx5_device::carrier::{Sent, Unsent};
use mlx5_device::command::{Answer, ContextId, CreateQp, CreatedQp, Handle, ModifyQp};
use mlx5_layout::doorbell::Doorbell;
use mlx5_layout::send_wqe::{BLOCK_BYTES, Control};
use mlx5_layout::{Cqe, CqeOpcode, SendOpcode};
use roce::qp_state::{AttrMask, QpState};
use roce::{Packet, Psn};

/// Numbers of the commands that are told apart.
pub mod number {
    pub const CLOSE: u64 = 2;
    pub const ALLOC_UAR: u64 = 3;
    pub const CREATE_QP: u64 = 13;
    pub const MODIFY_QP: u64 = 14;
    pub const DESTROY_QP: u64 = 15;
}

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
    /// It left, but nothing leads to its peer.
    pub lost: bool,
}

/// Gets each event with its time, ns, and its queue pair.
pub type Observer = Box<dyn FnMut(u64, u32, Event) + Send>;

/// The queue pairs that a recording makes.
#[derive(Debug, Default)]
pub struct Objects {
    qps: BTreeMap<(ContextId, Handle), Queue>,
}

#[derive(Debug)]
struct Queue {
    qpn: u32,
    sends: Range<u64>,
}

impl Event {
    pub fn doorbell(register: [u8; 8]) -> (u32, Event) {
        let doorbell = Doorbell::parse(register);
        (doorbell.qpn, Event::Doorbell { next: doorbell.next_index() })
    }

    pub fn arrival(packet: &Packet) -> (u32, Event) {
        (packet.dst_qpn, Event::Arrived(of_packet(packet)))
    }

    pub fn of_record(packet: &Packet, sent: &Result<Sent, Unsent>) -> Option<(u32, Event)> {
        let mut transfer = of_packet(packet);
        if let Ok(sent) = sent {
            // The device asks for all that is left.
            transfer.last &= sent.carried == transfer.bytes;
            transfer.bytes = sent.carried;
        }
        Event::left(packet, transfer, sent.err())
    }

    pub fn of_packet(packet: &Packet, sent: &Result<usize, Unsent>) -> Option<(u32, Event)> {
        Event::left(packet, of_packet(packet), sent.err())
    }

    /// What became of a transfer: nothing where it had no room, and what has no way to its peer is lost.
    fn left(packet: &Packet, transfer: Transfer, unsent: Option<Unsent>) -> Option<(u32, Event)> {
        let lost = match unsent {
            None => false,
            Some(Unsent::Unreachable) => true,
            Some(Unsent::Full | Unsent::Paced | Unsent::Fault(_) | Unsent::Failed(_)) => return None,
        };
        Some((packet.deth.src_qpn, Event::Sent(Transfer { lost, ..transfer })))
    }

    /// The CQE that was written, if it was one.
    pub fn completion(bytes: &[u8]) -> Option<(u32, Event)> {
        let cqe = Cqe::in_slot(bytes).ok()?;
        let opcode = cqe.opcode()?;
        let requester = matches!(opcode, CqeOpcode::Requester | CqeOpcode::RequesterError);
        let (index, opcode) = (cqe.wqe_counter(), format!("{opcode:?}"));
        Some((cqe.qpn(), Event::Completion { index, opcode, requester }))
    }
}

impl Objects {
    /// Takes a command with its answer. Returns the numbers of the queue pairs that it resets.
    pub fn answered(&mut self, command: &[u8], answer: &[u8]) -> Option<Vec<u32>> {
        let (number, command) = postcard::take_from_bytes(command).ok()?;
        match number {
            number::CREATE_QP => {
                let (context, wanted): (ContextId, CreateQp) = postcard::from_bytes(command).ok()?;
                let created = postcard::from_bytes::<Answer<CreatedQp>>(answer).ok()?.ok()?;
                let shared = wanted.srq.is_some() || wanted.rq_wqe_count == 0;
                let receives = if shared {
                    0
                } else {
                    u64::from(wanted.rq_wqe_count).checked_shl(wanted.rq_wqe_shift)?
                };
                let start = wanted.buffer.wrapping_add(receives);
                let sends = start..start.wrapping_add(u64::from(wanted.sq_wqe_count) * BLOCK_BYTES as u64);
                self.qps.insert((context, created.handle), Queue { qpn: created.qpn, sends });
            }
            number::MODIFY_QP => {
                let (context, qp, wanted): (ContextId, Handle, ModifyQp) =
                    postcard::from_bytes(command).ok()?;
                postcard::from_bytes::<Answer<()>>(answer).ok()?.ok()?;
                if AttrMask(wanted.mask).contains(AttrMask::STATE) && wanted.state == QpState::Reset.number()
                {
                    return Some(vec![self.qps.get(&(context, qp))?.qpn]);
                }
            }
            number::DESTROY_QP => {
                let object: (ContextId, Handle) = postcard::from_bytes(command).ok()?;
                postcard::from_bytes::<Answer<u32>>(answer).ok()?.ok()?;
                return Some(vec![self.qps.remove(&object)?.qpn]);
            }
            number::CLOSE => {
                let closed: ContextId = postcard::from_bytes(command).ok()?;
                let gone = self.qps.extract_if(.., |(context, _), _| *context == closed);
                return Some(gone.map(|(_, queue)| queue.qpn).collect());
            }
            _ => {}
        }
        Some(Vec::new())
    }

    /// The WQE that was read, if it was one.
    pub fn wqe(&self, addr: u64, bytes: &[u8]) -> Option<(u32, Event)> {
        let queue = self.qps.values().find(|queue| queue.sends.contains(&addr))?;
        let control = Control::parse(bytes.get(..Control::BYTES)?).ok()?;
        let block = (addr - queue.sends.start) / BLOCK_BYTES as u64;
        let blocks = (queue.sends.end - queue.sends.start) / BLOCK_BYTES as u64;
        // Further blocks of a WQE are read by themselves.
        let first = control.qpn == queue.qpn && u64::from(control.wqe_index) % blocks.max(1) == block;
        let opcode = control.send_opcode();
        let sends = opcode.is_some_and(sends);
        let opcode = opcode.map_or("unknown".to_owned(), |opcode| format!("{opcode:?}"));
        first.then_some((queue.qpn, Event::Wqe { index: control.wqe_index, opcode, sends }))
    }
}

/// Whether a WQE of this kind leads to a request to the peer.
fn sends(opcode: SendOpcode) -> bool {
    use SendOpcode::{Send, SendImm, SendInvalidate};
    matches!(opcode, Send | SendImm | SendInvalidate) || opcode.has_remote_address()
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
        lost: false,
    }
}
