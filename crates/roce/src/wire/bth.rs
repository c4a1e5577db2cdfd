//! BTH: 12 bytes at the head of every packet: opcode, partition, destination QP, PSN.
//!
//! IBTA vol. 1 §9.2; FECN and BECN are of Annex A10, in a once reserved byte. Reserved bits are kept as they
//! came: the ICRC covers them (but not the byte of FECN and BECN, which routers may change).

use super::bytes::{be16, be24, check, put, put24};
use super::{PacketOpcode, Psn, WireError};

mod at {
    pub const OPCODE: usize = 0;
    pub const FLAGS: usize = 1;
    pub const PKEY: usize = 2;
    pub const CONGESTION: usize = 4;
    pub const DST_QPN: usize = 5;
    pub const ACK: usize = 8;
    pub const PSN: usize = 9;
}

/// P_Key of the default partition, full member: what RoCE uses (Annex A16).
pub const DEFAULT_PKEY: u16 = 0xffff;

/// A base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// Service, operation and position.
    pub opcode: PacketOpcode,
    /// SE: the receiver's completion raises an event that was asked for.
    pub solicited: bool,
    /// M, state of path migration. rxe leaves it 0, ConnectX sets it.
    pub migrated: bool,
    /// Pad count: 0 to 3 bytes behind the payload, not part of it. [`super::Packet`] computes it itself.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN: a router met congestion on the way here.
    pub fecn: bool,
    /// BECN: the answer to a FECN.
    pub becn: bool,
    /// Low six bits of the byte that holds FECN and BECN.
    pub reserved6: u8,
    /// Destination QPN, 24 bits.
    pub dst_qpn: u32,
    /// A: the requester wants an acknowledgement.
    pub ack_requested: bool,
    /// The seven bits behind A.
    pub reserved7: u8,
    pub psn: Psn,
}

impl Bth {
    pub const BYTES: usize = 12;

    /// A header for the default partition with no flag set and nothing reserved used.
    pub const fn new(opcode: PacketOpcode, dst_qpn: u32, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: false,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            reserved6: 0,
            dst_qpn,
            ack_requested: false,
            reserved7: 0,
            psn,
        }
    }

    /// Reads 12 bytes. Errors: too few of them, an opcode of no service described here, a version but 0.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        check("a BTH", bytes, Self::BYTES)?;
        let opcode = PacketOpcode::from_u8(bytes[at::OPCODE])?;
        let (flags, congestion, ack) = (bytes[at::FLAGS], bytes[at::CONGESTION], bytes[at::ACK]);
        let version = flags & 0xf;
        if version != 0 {
            return Err(WireError::TransportVersion { version });
        }
        Ok(Self {
            opcode,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: be16(bytes, at::PKEY),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            reserved6: congestion & 0x3f,
            dst_qpn: be24(bytes, at::DST_QPN),
            ack_requested: ack & 0x80 != 0,
            reserved7: ack & 0x7f,
            psn: Psn::new(be24(bytes, at::PSN)),
        })
    }

    /// The 12 bytes; of fields wider than their place the low bits.
    #[inline]
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[at::OPCODE] = self.opcode.to_u8();
        out[at::FLAGS] = u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad & 3) << 4;
        put(&mut out, at::PKEY, self.pkey.to_be_bytes());
        out[at::CONGESTION] = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6 | self.reserved6 & 0x3f;
        put24(&mut out, at::DST_QPN, self.dst_qpn);
        out[at::ACK] = u8::from(self.ack_requested) << 7 | self.reserved7 & 0x7f;
        put24(&mut out, at::PSN, self.psn.value());
        out
    }
}

/// Whether two P_Keys match: the same partition (15 bits), and at least one full member (upper bit) (IBTA
/// vol. 1 §10.9.3, «partition key matching»). Partition 0 is invalid.
pub const fn pkeys_match(one: u16, other: u16) -> bool {
    const MEMBER: u16 = 0x8000;
    one & !MEMBER == other & !MEMBER && one & !MEMBER != 0 && (one | other) & MEMBER != 0
}

#[cfg(test)]
mod tests {
    use super::super::{PacketKind, Service};
    use super::*;

    /// `rxe-rc.pcap`, packet 1: SEND Only of 5 bytes.
    const SEND_ONLY: [u8; 12] = [0x04, 0x30, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x00, 0x01, 0x00];

    fn opcode(service: Service, kind: PacketKind) -> PacketOpcode {
        PacketOpcode::new(service, kind).unwrap()
    }

    fn send_only() -> Bth {
        let bth = Bth::new(opcode(Service::Rc, PacketKind::SendOnly), 0x11, Psn::new(0x100));
        Bth { pad: 3, ack_requested: true, ..bth }
    }

    #[test]
    fn golden_bytes_are_read_and_written() {
        assert_eq!(Bth::parse(&SEND_ONLY), Ok(send_only()));
        assert_eq!(send_only().emit(), SEND_ONLY);
    }

    #[test]
    fn each_bit_has_its_place() {
        let plain = Bth { pad: 0, ack_requested: false, ..send_only() };
        for (name, bth, at, value) in [
            ("solicited", Bth { solicited: true, ..plain }, 1, 0x80),
            ("migrated", Bth { migrated: true, ..plain }, 1, 0x40),
            ("pad", Bth { pad: 2, ..plain }, 1, 0x20),
            ("pkey", Bth { pkey: 0x7f01, ..plain }, 2, 0x7f),
            ("fecn", Bth { fecn: true, ..plain }, 4, 0x80),
            ("becn", Bth { becn: true, ..plain }, 4, 0x40),
            ("reserved6", Bth { reserved6: 0x2a, ..plain }, 4, 0x2a),
            ("dst_qpn", Bth { dst_qpn: 0xab_cdef, ..plain }, 5, 0xab),
            ("ack", Bth { ack_requested: true, ..plain }, 8, 0x80),
            ("reserved7", Bth { reserved7: 0x55, ..plain }, 8, 0x55),
            ("psn", Bth { psn: Psn::new(0xfe_0000), ..plain }, 9, 0xfe),
            ("opcode", Bth { opcode: opcode(Service::Ud, PacketKind::SendOnlyImm), ..plain }, 0, 0x65),
        ] {
            assert_eq!(bth.emit()[at], value, "{name}");
            assert_eq!(Bth::parse(&bth.emit()), Ok(bth), "{name}");
        }
        // What does not fit stays out of the neighbours.
        let wide = Bth { pad: 0xff, reserved6: 0xff, reserved7: 0xff, dst_qpn: u32::MAX, ..plain };
        assert_eq!(wide.emit()[1..9], [0x30, 0xff, 0xff, 0x3f, 0xff, 0xff, 0xff, 0x7f]);
    }

    #[test]
    fn a_short_or_foreign_header_is_refused() {
        let short = Bth::parse(&SEND_ONLY[..11]);
        assert_eq!(short, Err(WireError::Truncated { what: "a BTH", need: 12, have: 11 }));
        let mut foreign = SEND_ONLY;
        foreign[1] |= 1;
        assert_eq!(Bth::parse(&foreign), Err(WireError::TransportVersion { version: 1 }));
        foreign[0] = 0x15;
        assert_eq!(Bth::parse(&foreign), Err(WireError::UnknownOpcode { opcode: 0x15 }));
    }

    #[test]
    fn partitions_match_with_a_full_member() {
        for (one, other, matches) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0x7fff, false),
            (0x8001, 0x8002, false),
            (0x8000, 0x8000, false),
            (0x8001, 0x0001, true),
        ] {
            assert_eq!(pkeys_match(one, other), matches, "{one:#x} {other:#x}");
            assert_eq!(pkeys_match(other, one), matches, "{other:#x} {one:#x}");
        }
    }
}
