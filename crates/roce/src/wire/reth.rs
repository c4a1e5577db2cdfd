//! RETH: address, key and length of the remote memory of a WRITE or READ, 16 bytes.
//!
//! IBTA vol. 1 §9.3.3. The length is the whole message's (at most 2^31), even if the packet has only a part.

use super::bytes::header;

header! {
    /// An RDMA extended transport header.
    Reth("a RETH", 16) {
        va: u64 = 0,
        rkey: u32 = 8,
        /// Bytes of the whole message.
        dma_bytes: u32 = 12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;

    /// `rxe-rc.pcap`, packet 16: WRITE Only of 64 bytes.
    const WRITE_64: [u8; 16] =
        [0x00, 0x00, 0x7f, 0x0c, 0xf0, 0x7a, 0x40, 0x00, 0x00, 0x00, 0x02, 0x47, 0x00, 0x00, 0x00, 0x40];

    #[test]
    fn golden_bytes_are_read_and_written() {
        let reth = Reth { va: 0x7f0c_f07a_4000, rkey: 0x247, dma_bytes: 64 };
        assert_eq!(Reth::parse(&WRITE_64), Ok(reth));
        assert_eq!(reth.emit(), WRITE_64);
        let short = Err(WireError::Truncated { what: "a RETH", need: 16, have: 15 });
        assert_eq!(Reth::parse(&WRITE_64[..15]), short);
    }
}
