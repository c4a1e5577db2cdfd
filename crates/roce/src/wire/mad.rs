//! MAD: management datagram, 256 bytes in a UD packet to QP0 or QP1; its header of 24.
//!
//! IBTA vol. 1 §13.4.2-3 (base header). Left out: RMPP, vendors' headers (the CM has none).

use super::WireError;
use super::bytes::{Field, check, fields};

pub const MAD_BYTES: usize = 256;
/// Bytes of a MAD behind the header.
pub const BODY_BYTES: usize = MAD_BYTES - MadHeader::BYTES;
/// QP that takes general management datagrams.
pub const QP1: u32 = 1;
/// Q_Key of QP1 (IBTA vol. 1 §3.5.3, as `IB_QP1_QKEY` in public sources).
pub const QP1_QKEY: u32 = 0x8001_0000;

fields! {
    #[derive(Default)]
    MadHeader(24) {
        /// Version of this header: 1.
        base_version: u8 = 0,
        /// Management class: the agent that the datagram is for.
        class: u8 = 1,
        class_version: u8 = 2,
        /// Method; its upper bit says that it is a response.
        method: u8 = 3,
        status: u16 = 4,
        class_specific: u16 = 6,
        /// Transaction: ties an answer to its question.
        transaction: u64 = 8,
        /// Attribute: what the body is.
        attribute: u16 = 16,
        /// Attribute modifier.
        modifier: u32 = 20,
    }
}

impl MadHeader {
    /// Reads the header of a whole MAD. Error: fewer than [`MAD_BYTES`].
    pub fn parse(mad: &[u8]) -> Result<Self, WireError> {
        check("a MAD", mad, MAD_BYTES)?;
        Ok(Self::read(mad, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rxe-cm.pcap`, packet 1: a connection request.
    const GOLDEN: [u8; 24] = [
        0x01, 0x07, 0x02, 0x03, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x97, 0x92, 0x99, 0x8c, 0x00, 0x10, 0, 0, 0, 0, 0,
        0,
    ];

    #[test]
    fn golden_bytes_are_read_and_written() {
        let mut mad = [0; MAD_BYTES];
        mad[..24].copy_from_slice(&GOLDEN);
        let header = MadHeader {
            base_version: 1,
            class: 7,
            class_version: 2,
            method: 3,
            transaction: 0x2_9792_998c,
            attribute: 0x10,
            ..MadHeader::default()
        };
        assert_eq!(MadHeader::parse(&mad), Ok(header));
        assert_eq!(header.emit(), GOLDEN);
        let other = MadHeader { status: 0x1234, class_specific: 0x5678, modifier: 0x9abc_def0, ..header };
        mad[..24].copy_from_slice(&other.emit());
        assert_eq!(MadHeader::parse(&mad), Ok(other));
        let short = Err(WireError::Truncated { what: "a MAD", need: 256, have: 255 });
        assert_eq!(MadHeader::parse(&mad[..255]), short);
    }
}
