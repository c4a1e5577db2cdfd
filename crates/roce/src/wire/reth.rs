//! RETH: address, key and length of the remote memory of a WRITE or READ, 16 bytes.
//!
//! IBTA vol. 1 §9.3.3. The length is the whole message's (at most 2^31), also when the packet carries only its beginning.

use super::WireError;
use super::bytes::{be32, be64, check, put};

/// An RDMA extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reth {
    pub va: u64,
    pub rkey: u32,
    /// Bytes of the whole message.
    pub dma_bytes: u32,
}

impl Reth {
    pub const BYTES: usize = 16;

    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        check("a RETH", bytes, Self::BYTES)?;
        Ok(Self { va: be64(bytes, 0), rkey: be32(bytes, 8), dma_bytes: be32(bytes, 12) })
    }

    /// The 16 bytes.
    #[inline]
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        put(&mut out, 0, self.va.to_be_bytes());
        put(&mut out, 8, self.rkey.to_be_bytes());
        put(&mut out, 12, self.dma_bytes.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
