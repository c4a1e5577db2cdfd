//! DETH: Q_Key and sender of a datagram, 8 bytes.
//!
//! IBTA vol. 1 §9.3.1.

use super::bytes::header;

header! {
    /// A datagram extended transport header.
    Deth("a DETH", 8) {
        /// Q_Key that the receiver compares with its own.
        qkey: u32 = 0,
        /// The reserved byte, as it came.
        reserved: u8 = 4,
        /// Sender's QPN, 24 bits.
        src_qpn: u32 = 5[0, 24],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;

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
