//! Between what the engine says of a packet and its headers on a wire ([`crate::wire`]).
//!
//! Opcodes and headers as in IBTA vol. 1 §9.2; golden bytes from `rdma_rxe` in the tests. The partition key
//! is the default, and an AETH grants no credits, as in rxe. In a received packet, reserved fields, migration
//! and congestion are ignored: a counter of such things reads the bytes.

use super::{Aeth, Content, Deth, Packet, Syndrome, Trailer};
use crate::wire::aeth::NO_CREDITS;
use crate::wire::packet::Extended;
use crate::wire::{
    self, AtomicAckEth, Bth, Ieth, ImmDt, Operation, PacketKind, PacketOpcode, Position, Service,
};
use crate::{Fragment, NakCode};

impl Packet {
    /// The packet with its payload, to be written. `None` when no opcode expresses it: an operation that the
    /// service lacks, which the engine never sends.
    pub fn to_wire<'a>(&self, payload: &'a [u8]) -> Option<wire::Packet<'a>> {
        let (operation, extended) = headers(&self.content);
        let kind = PacketKind::of(operation, self.content.position(), extended.set())?;
        let service = self.service;
        let deth = wire::Deth { qkey: self.deth.qkey, reserved: 0, src_qpn: self.deth.src_qpn };
        let extended = match extended {
            Extended::Nothing if service == Service::Ud => Extended::Deth(deth),
            Extended::Imm(imm) if service == Service::Ud => Extended::DethImm(deth, imm),
            other => other,
        };
        let bth = Bth {
            solicited: self.solicited,
            ack_requested: self.ack_requested,
            ..Bth::new(PacketOpcode::new(service, kind)?, self.dst_qpn, self.psn)
        };
        Some(wire::Packet { bth, extended, payload })
    }

    /// What a received packet says; its payload stays in place. `None` for an AETH with a reserved syndrome
    /// or NAK code, which is dropped unanswered.
    pub fn from_wire(packet: &wire::Packet<'_>) -> Option<Packet> {
        let wire::Packet { bth, extended, payload } = *packet;
        let deth = extended.deth().map(|deth| Deth { qkey: deth.qkey, src_qpn: deth.src_qpn });
        Some(Packet {
            service: bth.opcode.service(),
            dst_qpn: bth.dst_qpn,
            psn: bth.psn,
            ack_requested: bth.ack_requested,
            solicited: bth.solicited,
            deth: deth.unwrap_or_default(),
            content: content(bth.opcode.kind(), &extended)?,
            payload: Fragment { offset: 0, length: u32::try_from(payload.len()).ok()? },
        })
    }
}

/// What a packet does, and the headers behind its BTH, those of datagrams apart.
fn headers(content: &Content) -> (Operation, Extended) {
    let behind = |trailer| match trailer {
        Trailer::None => Extended::Nothing,
        Trailer::Immediate(imm) => Extended::Imm(ImmDt { imm }),
        Trailer::Invalidate(key) => Extended::Ieth(Ieth { rkey: u32::from_be_bytes(key) }),
    };
    match *content {
        Content::Send { trailer, .. } => (Operation::Send, behind(trailer)),
        Content::Write { position, reth, trailer } => {
            let extended = match (position.starts(), behind(trailer)) {
                (true, Extended::Nothing) => Extended::Reth(reth),
                (true, Extended::Imm(imm)) => Extended::RethImm(reth, imm),
                (_, other) => other,
            };
            (Operation::Write, extended)
        }
        Content::ReadRequest(reth) => (Operation::ReadRequest, Extended::Reth(reth)),
        Content::CompareSwap(eth) => (Operation::CompareSwap, Extended::Atomic(eth)),
        Content::FetchAdd(eth) => (Operation::FetchAdd, Extended::Atomic(eth)),
        Content::ReadResponse { aeth, .. } => {
            let extended = aeth.map_or(Extended::Nothing, |aeth| Extended::Aeth(written(aeth)));
            (Operation::ReadResponse, extended)
        }
        Content::Acknowledge(aeth) => (Operation::Acknowledge, Extended::Aeth(written(aeth))),
        Content::AtomicAcknowledge { aeth, old } => {
            let ack = AtomicAckEth { original: old };
            (Operation::AtomicAcknowledge, Extended::AethAtomicAck(written(aeth), ack))
        }
    }
}

fn content(kind: PacketKind, extended: &Extended) -> Option<Content> {
    let position: Position = kind.position();
    let trailer = match *extended {
        Extended::Ieth(Ieth { rkey }) => Trailer::Invalidate(rkey.to_be_bytes()),
        _ => extended.immediate().map_or(Trailer::None, |ImmDt { imm }| Trailer::Immediate(imm)),
    };
    let aeth = extended.aeth().map(read);
    Some(match kind.operation() {
        Operation::Send => Content::Send { position, trailer },
        Operation::Write => Content::Write { position, reth: extended.reth().unwrap_or_default(), trailer },
        Operation::ReadRequest => Content::ReadRequest(extended.reth()?),
        Operation::CompareSwap | Operation::FetchAdd => {
            let Extended::Atomic(eth) = *extended else { return None };
            let swap = kind.operation() == Operation::CompareSwap;
            if swap { Content::CompareSwap(eth) } else { Content::FetchAdd(eth) }
        }
        Operation::ReadResponse => {
            let aeth = if let Some(aeth) = aeth { Some(aeth?) } else { None };
            Content::ReadResponse { position, aeth }
        }
        Operation::Acknowledge => Content::Acknowledge(aeth??),
        Operation::AtomicAcknowledge => {
            let Extended::AethAtomicAck(_, ack) = *extended else { return None };
            Content::AtomicAcknowledge { aeth: aeth??, old: ack.original }
        }
    })
}

fn written(aeth: Aeth) -> wire::Aeth {
    let syndrome = match aeth.syndrome {
        Syndrome::Ack => wire::Syndrome::Ack { credits: NO_CREDITS },
        Syndrome::RnrNak { timer } => wire::Syndrome::RnrNak { timer },
        Syndrome::Nak(code) => wire::Syndrome::Nak { code: code as u8 },
    };
    wire::Aeth { syndrome, msn: aeth.msn }
}

fn read(aeth: wire::Aeth) -> Option<Aeth> {
    let syndrome = match aeth.syndrome {
        wire::Syndrome::Ack { .. } => Syndrome::Ack,
        wire::Syndrome::RnrNak { timer } => Syndrome::RnrNak { timer },
        wire::Syndrome::Nak { code } => Syndrome::Nak(match code {
            0 => NakCode::PsnSequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperation,
            _ => return None,
        }),
        wire::Syndrome::Reserved { .. } => return None,
    };
    Some(Aeth { syndrome, msn: aeth.msn })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Psn;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<_> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// The first two packets of `rxe-rc.pcap` from the BTH on: a SEND of 5 bytes with PSN 0x100, and its ACK.
    #[test]
    fn a_kernels_first_packets_read_and_write_as_they_are() {
        let send = hex("0430ffff 00000011 80000100 01080f16 1d000000 1b55f4b8");
        let ack = hex("1100ffff 00000011 00000100 1f000001 215add99");
        for (name, bytes, content, length) in [
            ("SEND", send, Content::Send { position: Position::Only, trailer: Trailer::None }, 5),
            ("ACK", ack, Content::Acknowledge(Aeth { syndrome: Syndrome::Ack, msn: 1 }), 0),
        ] {
            let decoded = wire::Packet::decode(&bytes).expect("well-formed");
            let packet = Packet::from_wire(&decoded).expect("nothing reserved");
            assert_eq!((packet.content, packet.payload.length), (content, length), "{name}");
            assert_eq!((packet.psn, packet.dst_qpn), (Psn::new(0x100), 0x11), "{name}");
            assert_eq!(packet.ack_requested, name == "SEND");
            let mut written = Vec::new();
            packet.to_wire(decoded.payload).expect("an opcode").append_to(&mut written).expect("room");
            assert_eq!(written, bytes[..bytes.len() - 4], "{name}");
        }
    }

    #[test]
    fn every_opcode_means_something_and_means_it_both_ways() {
        let mut opcodes = 0;
        for byte in 0..=u8::MAX {
            let Ok(opcode) = PacketOpcode::from_u8(byte) else { continue };
            opcodes += 1;
            let mut bytes = vec![byte, 0, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 1, 2];
            bytes.extend((1..=opcode.headers().bytes() as u8).map(|i| i.wrapping_mul(3) & 0x1f));
            bytes.extend(if opcode.kind().carries_payload() { &[9; 4][..] } else { &[] });
            // The DETH's reserved byte is not kept.
            if opcode.service() == Service::Ud {
                bytes[12 + 4] = 0;
            }
            let aeth = matches!(opcode.headers(), wire::HeaderSet::Aeth | wire::HeaderSet::AethAtomicAck);
            for syndrome in if aeth { vec![0x1f, 0x2c, 0x60, 0x61, 0x62, 0x63] } else { vec![bytes[11]] } {
                if aeth {
                    bytes[12] = syndrome;
                }
                let whole = [&bytes[..], &[0; 4]].concat();
                let decoded = wire::Packet::decode(&whole).expect("well-formed");
                let packet = Packet::from_wire(&decoded).expect("nothing reserved");
                let mut written = Vec::new();
                packet.to_wire(decoded.payload).expect("an opcode").append_to(&mut written).expect("room");
                assert_eq!(written, bytes, "opcode {byte:#04x}");
                assert_eq!(packet.content.is_request(), !opcode.kind().operation().is_response());
            }
        }
        // RC has 23, UC 12, UD 2.
        assert_eq!(opcodes, 37);
    }

    #[test]
    fn a_reserved_answer_means_nothing() {
        for syndrome in [0x40, 0x64, 0x7f, 0x80, 0xff] {
            let bytes = [&hex("1100ffff 00000011 00000100")[..], &[syndrome, 0, 0, 1], &[0; 4]].concat();
            let decoded = wire::Packet::decode(&bytes).expect("well-formed");
            assert_eq!(Packet::from_wire(&decoded), None, "{syndrome:#04x}");
        }
    }

    #[test]
    fn what_no_opcode_says_is_not_written() {
        let read = |service| Packet {
            service,
            dst_qpn: 1,
            psn: Psn::new(1),
            ack_requested: true,
            solicited: false,
            deth: Deth::default(),
            content: Content::ReadRequest(wire::Reth::default()),
            payload: Fragment::default(),
        };
        assert!(read(Service::Rc).to_wire(&[]).is_some());
        assert!(read(Service::Uc).to_wire(&[]).is_none());
        assert!(read(Service::Ud).to_wire(&[]).is_none());
    }
}
