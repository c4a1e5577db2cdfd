//! AETH: syndrome and MSN of an answer, 4 bytes.
//!
//! IBTA vol. 1 §9.3.5 and §9.7.5.1-2: three bits of the syndrome say ACK, RNR NAK or NAK, five bits how. The
//! engine gives codes a meaning; numbers without one stay numbers here, and are written as they were read.

use super::WireError;
use super::bytes::{be24, check, put24};

/// Credit code of an ACK that grants none, and asks for no credits to be counted: all that rxe ever sends.
pub const NO_CREDITS: u8 = 31;

/// The syndrome byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syndrome {
    /// Positive acknowledgement with a 5-bit credit code, [`NO_CREDITS`] where credits are not used.
    Ack { credits: u8 },
    /// Receiver not ready, with a 5-bit timer code.
    RnrNak { timer: u8 },
    /// Negative acknowledgement with a 5-bit NAK code: 0 PSN sequence, 1 invalid request, 2 remote access, 3
    /// remote operation, 4 invalid RD request; the others are reserved.
    Nak { code: u8 },
    /// Reserved: a value that is none of the three.
    Reserved { byte: u8 },
}

impl Syndrome {
    /// Reads the byte.
    #[inline]
    pub const fn from_u8(byte: u8) -> Self {
        let code = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: code },
            0b001 => Self::RnrNak { timer: code },
            0b011 => Self::Nak { code },
            _ => Self::Reserved { byte },
        }
    }

    /// The byte; of a code its low five bits.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0b001 << 5 | timer & 0x1f,
            Self::Nak { code } => 0b011 << 5 | code & 0x1f,
            Self::Reserved { byte } => byte,
        }
    }
}

/// An ACK extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, 24 bits.
    pub msn: u32,
}

impl Aeth {
    pub const BYTES: usize = 4;

    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        check("an AETH", bytes, Self::BYTES)?;
        Ok(Self { syndrome: Syndrome::from_u8(bytes[0]), msn: be24(bytes, 1) })
    }

    #[inline]
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut out = [self.syndrome.to_u8(), 0, 0, 0];
        put24(&mut out, 1, self.msn);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_are_read_and_written() {
        // `rxe-rc.pcap`, packets 2 (ACK), 54 (RNR NAK, timer 24), 64 (remote access), 85 (remote operation).
        for (bytes, syndrome, msn) in [
            ([0x1f, 0, 0, 1], Syndrome::Ack { credits: NO_CREDITS }, 1),
            ([0x38, 0, 0, 18], Syndrome::RnrNak { timer: 24 }, 18),
            ([0x62, 0, 0, 21], Syndrome::Nak { code: 2 }, 21),
            ([0x63, 0, 0, 0], Syndrome::Nak { code: 3 }, 0),
        ] {
            let aeth = Aeth { syndrome, msn };
            assert_eq!(Aeth::parse(&bytes), Ok(aeth));
            assert_eq!(aeth.emit(), bytes);
        }
    }

    #[test]
    fn every_syndrome_comes_out_as_it_went_in() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_u8(byte).to_u8(), byte);
            let reserved = matches!(Syndrome::from_u8(byte), Syndrome::Reserved { .. });
            assert_eq!(reserved, !matches!(byte >> 5, 0 | 1 | 3), "{byte:#x}");
        }
        assert_eq!(
            Aeth { syndrome: Syndrome::Nak { code: 0xff }, msn: u32::MAX }.emit(),
            [0x7f, 255, 255, 255]
        );
    }

    #[test]
    fn one_byte_short_is_refused() {
        assert_eq!(Aeth::parse(&[0; 3]), Err(WireError::Truncated { what: "an AETH", need: 4, have: 3 }));
    }
}
