//! AtomicETH and AtomicAckETH: operands of an atomic, and the value that it found.
//!
//! IBTA vol. 1 §9.3.4, §9.3.5.3. Operands are numbers; the memory they work on has the host's byte order.

use super::bytes::header;

header! {
    /// An atomic extended transport header.
    AtomicEth("an AtomicETH", 28) {
        /// Remote virtual address, a multiple of 8 (not checked here).
        va: u64 = 0,
        rkey: u32 = 8,
        /// Value to swap in, or to add.
        swap_add: u64 = 12,
        /// Value to compare with (CmpSwap only).
        compare: u64 = 20,
    }
}

header! {
    /// An atomic acknowledge extended transport header.
    AtomicAckEth("an AtomicAckETH", 8) {
        /// Value in memory before the operation.
        original: u64 = 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;

    /// `rxe-rc.pcap`, packet 47: CmpSwap that hits.
    const COMPARE_SWAP: [u8; 28] = [
        0x00, 0x00, 0x7f, 0x0c, 0xf0, 0x7a, 0xc0, 0x00, 0x00, 0x00, 0x02, 0x47, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5,
        0xa6, 0xa7, 0xa8, 0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44,
    ];
    /// `rxe-rc.pcap`, packet 48: its answer, behind the AETH.
    const ORIGINAL: [u8; 8] = [0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44];

    #[test]
    fn golden_bytes_are_read_and_written() {
        let eth = AtomicEth {
            va: 0x7f0c_f07a_c000,
            rkey: 0x247,
            swap_add: 0xa1a2_a3a4_a5a6_a7a8,
            compare: 0x1111_2222_3333_4444,
        };
        assert_eq!(AtomicEth::parse(&COMPARE_SWAP), Ok(eth));
        assert_eq!(eth.emit(), COMPARE_SWAP);
        let ack = AtomicAckEth { original: 0x1111_2222_3333_4444 };
        assert_eq!(AtomicAckEth::parse(&ORIGINAL), Ok(ack));
        assert_eq!(ack.emit(), ORIGINAL);
    }

    #[test]
    fn one_byte_short_is_refused() {
        let short = Err(WireError::Truncated { what: "an AtomicETH", need: 28, have: 27 });
        assert_eq!(AtomicEth::parse(&COMPARE_SWAP[..27]), short);
        let short = Err(WireError::Truncated { what: "an AtomicAckETH", need: 8, have: 7 });
        assert_eq!(AtomicAckEth::parse(&ORIGINAL[..7]), short);
    }
}
