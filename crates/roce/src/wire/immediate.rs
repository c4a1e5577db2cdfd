//! ImmDt and IETH: four bytes beside a message's payload: immediate data, or an rkey to invalidate.
//!
//! IBTA vol. 1 §9.3.6 (immediate data) and §9.3.7 (invalidate).

use super::bytes::header;

header! {
    /// Immediate data. Four bytes without a byte order of their own: programs see them as they were given.
    ImmDt("an ImmDt", 4) {
        imm: [u8; 4] = 0,
    }
}

header! {
    /// An invalidate extended transport header: the rkey that the receiver is to invalidate.
    Ieth("an IETH", 4) {
        rkey: u32 = 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;

    #[test]
    fn golden_bytes_are_read_and_written() {
        // `rxe-rc.pcap`, packet 7: SEND Only with immediate 0xdeadbeef.
        let imm = [0xde, 0xad, 0xbe, 0xef];
        assert_eq!(ImmDt::parse(&imm), Ok(ImmDt { imm }));
        assert_eq!(ImmDt { imm }.emit(), imm);
        // `rxe-rc.pcap`, packet 61: SEND Only with invalidate, the memory window's rkey.
        let invalidate = [0x08, 0x00, 0x01, 0x6b];
        assert_eq!(Ieth::parse(&invalidate), Ok(Ieth { rkey: 0x0800_016b }));
        assert_eq!(Ieth { rkey: 0x0800_016b }.emit(), invalidate);
    }

    #[test]
    fn one_byte_short_is_refused() {
        assert_eq!(ImmDt::parse(&[0; 3]), Err(WireError::Truncated { what: "an ImmDt", need: 4, have: 3 }));
        assert_eq!(Ieth::parse(&[0; 3]), Err(WireError::Truncated { what: "an IETH", need: 4, have: 3 }));
    }
}
