//! Messages: their operations, what a request packet says of one, and why one is refused.
//!
//! Names and codes are those of IBTA vol. 1: opcodes of the BTH, §9.7.5.2 (AETH: ACK, RNR NAK, NAK codes).
//! Byte layouts: [`crate::packet`]. Values from the peer are unchecked: the engine's halves check them.

use std::fmt;

use crate::{Access, Psn, ServiceType};

/// Longest message of the connected services: 2^31 bytes (IBTA C9-94, DMA length of a RETH).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

listed! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    #[repr(u8)]
    Opcode {
        #[default]
        Send,
        SendImm,
        SendInvalidate,
        Write,
        WriteImm,
        Read,
        CompareSwap,
        FetchAdd,
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Opcode::Send => "SEND",
            Opcode::SendImm => "SEND with immediate",
            Opcode::SendInvalidate => "SEND with invalidate",
            Opcode::Write => "RDMA WRITE",
            Opcode::WriteImm => "RDMA WRITE with immediate",
            Opcode::Read => "RDMA READ",
            Opcode::CompareSwap => "compare and swap",
            Opcode::FetchAdd => "fetch and add",
        })
    }
}

impl Opcode {
    /// Whether the service carries this operation at all (IBTA, the opcodes defined for each service).
    pub const fn allowed_on(self, service: ServiceType) -> bool {
        match service {
            ServiceType::Rc => true,
            ServiceType::Uc => {
                matches!(self, Opcode::Send | Opcode::SendImm | Opcode::Write | Opcode::WriteImm)
            }
            ServiceType::Ud => matches!(self, Opcode::Send | Opcode::SendImm),
        }
    }

    /// READ and atomics: answered by a response of their own, and counted against `max_rd_atomic`.
    pub const fn wants_response(self) -> bool {
        matches!(self, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd)
    }

    /// The two atomics.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Opcode::CompareSwap | Opcode::FetchAdd)
    }

    /// The SENDs, whose payload goes where a receive says.
    pub const fn is_send(self) -> bool {
        matches!(self, Opcode::Send | Opcode::SendImm | Opcode::SendInvalidate)
    }

    /// Whether the responder consumes a receive for it.
    pub const fn takes_receive(self) -> bool {
        self.is_send() || matches!(self, Opcode::WriteImm)
    }

    /// Whether the request carries payload.
    pub const fn carries_payload(self) -> bool {
        !self.wants_response()
    }

    /// What the responder's QP and region must grant; nothing for SENDs.
    pub const fn remote_access(self) -> Access {
        match self {
            Opcode::Send | Opcode::SendImm | Opcode::SendInvalidate => Access(0),
            Opcode::Write | Opcode::WriteImm => Access::REMOTE_WRITE,
            Opcode::Read => Access::REMOTE_READ,
            Opcode::CompareSwap | Opcode::FetchAdd => Access::REMOTE_ATOMIC,
        }
    }
}

/// How many PSNs a message of this length uses: one a packet, at least one; a READ uses those of its response
/// (IBTA, packet sequence numbers of requests and READ responses).
pub const fn psn_count(opcode: Opcode, length: u32, path_mtu_bytes: u32) -> u32 {
    // One packet, the common case, costs no division.
    if length <= path_mtu_bytes || opcode.is_atomic() || path_mtu_bytes == 0 {
        return 1;
    }
    length.div_ceil(path_mtu_bytes)
}

/// Some bytes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Fragment {
    /// First byte, from the start of the message.
    pub offset: u32,
    pub length: u32,
}

/// What a request packet says, with what its message's first packet said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    pub opcode: Opcode,
    /// Solicited event asked for.
    pub solicited: bool,
    /// Acknowledgement asked for.
    pub ack_requested: bool,
    /// Immediate data as on the wire, or the rkey to invalidate, big-endian.
    pub imm: [u8; 4],
    /// First PSN of the message.
    pub psn: Psn,
    pub rkey: u32,
    /// Target address (WRITE, READ, atomics).
    pub remote_va: u64,
    /// Length of the whole message; 8 for atomics. Of a SEND the bytes so far.
    pub length: u32,
    pub src_qpn: u32,
    /// Which bytes of the message it carries, or asks for.
    pub fragment: Fragment,
}

/// NAK codes (IBTA §9.7.5.2, table of NAK codes); the numbers are the AETH's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// PSN sequence error: something before is missing.
    PsnSequence = 0,
    InvalidRequest = 1,
    RemoteAccess = 2,
    RemoteOperation = 3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_uses_one_psn_a_packet_and_at_least_one() {
        for (name, opcode, length, mtu, count) in [
            ("empty", Opcode::Send, 0, 1024, 1),
            ("one byte", Opcode::Write, 1, 1024, 1),
            ("exactly one packet", Opcode::Write, 1024, 1024, 1),
            ("one byte more", Opcode::Write, 1025, 1024, 2),
            // rxe-rc.pcap steps 5 and 9: 3071 bytes in 3 packets, 8193 bytes in 9, path MTU 1024.
            ("step 5 of the capture", Opcode::Send, 3071, 1024, 3),
            ("step 9 of the capture", Opcode::Write, 8193, 1024, 9),
            ("a READ uses its response's", Opcode::Read, 4096, 1024, 4),
            ("an atomic uses one", Opcode::FetchAdd, 8, 1024, 1),
            ("the longest at the smallest MTU", Opcode::Write, MAX_MESSAGE_BYTES, 256, 1 << 23),
        ] {
            assert_eq!(psn_count(opcode, length, mtu), count, "{name}");
        }
    }

    #[test]
    fn services_carry_the_operations_of_the_specification() {
        use Opcode::*;
        for (service, allowed) in [
            (ServiceType::Rc, Opcode::ALL.to_vec()),
            (ServiceType::Uc, vec![Send, SendImm, Write, WriteImm]),
            (ServiceType::Ud, vec![Send, SendImm]),
        ] {
            let got: Vec<_> = Opcode::ALL.into_iter().filter(|opcode| opcode.allowed_on(service)).collect();
            assert_eq!(got, allowed, "{service:?}");
        }
    }
}
