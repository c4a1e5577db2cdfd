//! DETH: Q_Key and sender of a datagram, 8 bytes.
//!
//! IBTA vol. 1 §9.3.1.

use super::WireError;
use super::bytes::{be24, be32, check, put, put24};

/// A datagram extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deth {
    /// Q_Key that the receiver compares with its own.
    pub qkey: u32,
    /// The reserved byte, as it came.
    pub reserved: u8,
    /// Sender's QPN, 24 bits.
    pub src_qpn: u32,
}

impl Deth {
    pub const BYTES: usize = 8;

    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        check("a DETH", bytes, Self::BYTES)?;
        Ok(Self { qkey: be32(bytes, 0), reserved: bytes[4], src_qpn: be24(bytes, 5) })
    }

    #[inline]
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, self.qkey.to_be_bytes());
        out[4] = self.reserved;
        put24(&mut out, 5, self.src_qpn);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rxe-cm.pcap`, packet 1: a MAD to QP1, sent by QP1 with the Q_Key of QP1.
    const FROM_QP1: [u8; 8] = [0x80, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01];

    #[test]
    fn golden_bytes_are_read_and_written() {
        let deth = Deth { qkey: 0x8001_0000, reserved: 0, src_qpn: 1 };
        assert_eq!(Deth::parse(&FROM_QP1), Ok(deth));
        assert_eq!(deth.emit(), FROM_QP1);
        let odd = Deth { qkey: 1, reserved: 0xa5, src_qpn: 0xff_0012 };
        assert_eq!(Deth::parse(&odd.emit()), Ok(odd));
        let short = Err(WireError::Truncated { what: "a DETH", need: 8, have: 7 });
        assert_eq!(Deth::parse(&FROM_QP1[..7]), short);
    }
}
