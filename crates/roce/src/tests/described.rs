//! Packets as tests describe them: requests as bytes of a message with all their headers, and answers.

use crate::packet::{Aeth, Deth, Reth, Syndrome, position_of};
use crate::{
    Content, Fragment, NakCode, Opcode, Outgoing, Packet, PacketTransmit, Position, Psn, Responder,
    ServiceType, Ticket,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub service: ServiceType,
    pub opcode: Opcode,
    /// First PSN of the message.
    pub psn: Psn,
    pub solicited: bool,
    pub ack_requested: bool,
    pub imm: [u8; 4],
    pub remote_va: u64,
    pub rkey: u32,
    /// Length of the whole message.
    pub length: u32,
    pub swap_add: u64,
    pub compare: u64,
    pub qkey: u32,
    pub src_qpn: u32,
    pub fragment: Fragment,
}

impl Request {
    /// The packet of this fragment, which begins at a multiple of the path MTU.
    pub(super) fn packet(&self, path_mtu_bytes: u32) -> Packet {
        let Fragment { offset, length } = self.fragment;
        let reth = Reth { va: self.remote_va, rkey: self.rkey, dma_bytes: self.length };
        let carries = self.opcode.carries_payload();
        let whole = Packet {
            service: self.service,
            solicited: self.solicited,
            deth: Deth { qkey: self.qkey, src_qpn: self.src_qpn },
            content: Content::request(self.opcode, self.imm, reth, [self.swap_add, self.compare]),
            payload: Fragment { offset: 0, length: if carries { self.length } else { 0 } },
            ..Packet::default()
        };
        let ends = u64::from(offset) + u64::from(length) == u64::from(self.length);
        let cut = PacketTransmit {
            ticket: Ticket(0),
            opcode: self.opcode,
            psn: self.psn.plus(offset.checked_div(path_mtu_bytes).unwrap_or(0)),
            packets: 1,
            position: position_of(offset == 0, ends),
            fragment: self.fragment,
            ack_requested: self.ack_requested,
            retransmission: false,
            begins: true,
        };
        let packet = cut.cut(&whole);
        // A packet that carries nothing is cut as it is described all the same.
        let length = if carries { length } else { 0 };
        Packet { payload: Fragment { offset: 0, length }, ..packet }
    }
}

pub(super) const ACK: Content = says(Syndrome::Ack);

/// The whole answer to a READ.
pub(super) const RESPONSE: Content = Content::ReadResponse { position: Position::Only, aeth: None };

pub(super) const fn nak(code: NakCode) -> Content {
    says(Syndrome::Nak(code))
}

pub(super) const fn rnr(timer: u8) -> Content {
    says(Syndrome::RnrNak { timer })
}

/// The answer to an atomic.
pub(super) const fn found(old: u64) -> Content {
    Content::AtomicAcknowledge { aeth: Aeth { syndrome: Syndrome::Ack, msn: 0 }, old }
}

const fn says(syndrome: Syndrome) -> Content {
    Content::Acknowledge(Aeth { syndrome, msn: 0 })
}

/// An answer; `bytes`: of a READ response.
pub(super) fn answer(psn: u32, content: Content, bytes: u32) -> Packet {
    let payload = Fragment { offset: 0, length: bytes };
    Packet { psn: Psn::new(psn), content, payload, ..Packet::default() }
}

/// The next packet that a responder in shared memory sends, all of an answer.
pub(super) fn next_answer(responder: &mut Responder) -> Option<Outgoing> {
    let outgoing = responder.next_packet(u32::MAX)?;
    responder.sent_packet(outgoing.packet.payload.length);
    Some(outgoing)
}
