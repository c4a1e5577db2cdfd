//! Completion queue entry: 64 bytes, or the second half of a 128-byte slot.
//!
//! Follows `struct mlx5_cqe64`, `struct mlx5_err_cqe` (`mlx5dv.h`; gpunetio's `mlx5_prm.h` names bytes 52 and
//! 53), `mlx5_parse_cqe`, `get_sw_cqe` and `mlx5_copy_to_recv_wqe` (`cq.c`, `qp.c`). Left out: compressed
//! CQEs, striding receive queues, tag matching, checksum and VLAN fields.

use crate::bytes::{be16, be24, fields, put};
use crate::{CqeOpcode, LayoutError};

pub const CQE_BYTES: usize = 64;
/// Size of the larger slot, whose second half is the CQE.
pub const LARGE_SLOT_BYTES: usize = 128;
/// Last byte of a CQE, the one to poll.
pub const OP_OWN: usize = 63;
/// Most payload that a CQE itself carries.
pub const INLINE_32: usize = 32;
/// Most payload that a 128-byte slot carries, in its first half.
pub const INLINE_64: usize = 64;

pub(crate) mod at {
    pub const ML_PATH: usize = 17;
    pub const SLID: usize = 22;
    pub const FLAGS_RQPN: usize = 24;
    pub const SRQN_UIDX: usize = 32;
    pub const IMM_INVAL: usize = 36;
    pub const BYTE_CNT: usize = 44;
    pub const TIMESTAMP: usize = 48;
    pub const ERROR: usize = 52;
    pub const SOP_QPN: usize = 56;
    pub const WQE_COUNTER: usize = 60;
    pub const OP_OWN: usize = super::OP_OWN;
}

/// Owner bit that the device writes into the CQE of this running index, and that the consumer expects.
/// `entries` is a power of two; the first lap has 0.
pub const fn owner_bit(index: u32, entries: u32) -> bool {
    index & entries != 0
}

/// Where the payload of a small message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum ScatterFormat {
    /// In the buffers of the WQE.
    #[default]
    Buffers = 0x0,
    /// In bytes 0..32 of the CQE (`MLX5_INLINE_SCATTER_32`).
    Inline32 = 0x4,
    /// In the 64 bytes before the CQE, in a 128-byte slot (`MLX5_INLINE_SCATTER_64`).
    Inline64 = 0x8,
    /// Both bits: a compressed block (`include/linux/mlx5/device.h` of Linux).
    Compressed = 0xc,
}

/// The last byte of a CQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpOwn(pub u8);

impl OpOwn {
    /// Puts the byte together.
    pub const fn new(opcode: CqeOpcode, format: ScatterFormat, solicited: bool, owner: bool) -> Self {
        Self(opcode.to_u8() << 4 | format as u8 | (solicited as u8) << 1 | owner as u8)
    }

    /// Bits 7:4.
    pub const fn opcode(self) -> Option<CqeOpcode> {
        CqeOpcode::from_u8(self.0 >> 4)
    }
}

/// Where in a slot of that size the CQE begins.
fn cqe_at(slot: usize) -> Result<usize, LayoutError> {
    match slot {
        CQE_BYTES => Ok(0),
        LARGE_SLOT_BYTES => Ok(LARGE_SLOT_BYTES - CQE_BYTES),
        have if have < CQE_BYTES => Err(LayoutError::TooShort { what: "a CQE", need: CQE_BYTES, have }),
        have => Err(LayoutError::TooShort { what: "a 128-byte CQE slot", need: LARGE_SLOT_BYTES, have }),
    }
}

/// A CQE read in place. Read byte [`OP_OWN`] first and the rest after an acquire; then copy, then look.
#[derive(Debug, Clone, Copy)]
pub struct Cqe<B> {
    pub(crate) slot: B,
    /// Where in the slot it begins.
    pub(crate) at: usize,
}

impl<B: AsRef<[u8]>> Cqe<B> {
    /// Takes a slot: a 64-byte CQE, or 128 bytes whose second half is one.
    pub fn in_slot(slot: B) -> Result<Self, LayoutError> {
        let at = cqe_at(slot.as_ref().len())?;
        Ok(Self { slot, at })
    }

    pub(crate) fn cqe(&self) -> &[u8] {
        &self.slot.as_ref()[self.at..]
    }

    /// Opcode, format, solicited, owner.
    pub fn op_own(&self) -> OpOwn {
        OpOwn(self.cqe()[at::OP_OWN])
    }

    /// Opcode; `None` for a reserved number.
    pub fn opcode(&self) -> Option<CqeOpcode> {
        self.op_own().opcode()
    }

    /// Local QPN.
    pub fn qpn(&self) -> u32 {
        be24(self.cqe(), at::SOP_QPN + 1)
    }

    /// Index of the WQE's first block, or of the receive WQE; 16 bits.
    pub fn wqe_counter(&self) -> u16 {
        be16(self.cqe(), at::WQE_COUNTER)
    }
}

fields! {
    /// Bytes 52..56 of an error CQE.
    #[derive(Default)]
    CqeError(4) {
        /// Hardware syndrome.
        hardware: u8 = 0,
        /// Kind of the hardware syndrome.
        hardware_type: u8 = 1,
        /// Vendor syndrome.
        vendor: u8 = 2,
        syndrome: u8 = 3,
    }
}

/// What a device writes into a CQE. Fields that the opcode does not use keep their default. The default of
/// all fields is a requester CQE of the first lap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CqeFields {
    pub opcode: CqeOpcode,
    /// Solicited bit.
    pub solicited: bool,
    /// Owner bit, see [`owner_bit`].
    pub owner: bool,
    /// User index of the QP, 24 bits.
    pub user_index: u32,
    /// Local QPN, 24 bits.
    pub qpn: u32,
    /// Index of the WQE, 16 bits.
    pub wqe_counter: u16,
    /// Opcode byte of the send WQE.
    pub send_opcode: u8,
    /// Bytes received or read.
    pub byte_count: u32,
    /// Immediate or invalidated key, as on the wire.
    pub immediate: [u8; 4],
    /// Sender's QPN, 24 bits.
    pub source_qpn: u32,
    /// Sender's LID.
    pub source_lid: u16,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether a GRH lies before the payload.
    pub grh: bool,
    /// Path bits, 7 bits.
    pub path_bits: u8,
    /// Device time; error CQEs have none.
    pub timestamp: u64,
    /// Error, of the two error opcodes.
    pub error: CqeError,
}

impl CqeFields {
    /// The 64 bytes of a CQE whose payload is in the WQE's buffers. Write the first 56 bytes first, then the
    /// last 8, which hold byte [`OP_OWN`], by one release store.
    #[inline]
    pub fn emit(&self) -> [u8; CQE_BYTES] {
        let flags = u32::from(self.grh) << 28 | u32::from(self.service_level & 0xf) << 24;
        let op_own = OpOwn::new(self.opcode, ScatterFormat::Buffers, self.solicited, self.owner).0;
        // By whole words: a reader that copies the CQE loads words, and would stall on one stored in pieces.
        let mut words = [0_u64; CQE_BYTES / 8];
        let mut at =
            |at: usize, bytes: usize, value: u64| words[at / 8] |= value << (64 - 8 * (at % 8 + bytes));
        at(at::ML_PATH, 1, (self.path_bits & 0x7f).into());
        at(at::SLID, 2, self.source_lid.into());
        at(at::FLAGS_RQPN, 4, (flags | self.source_qpn & 0xff_ffff).into());
        at(at::SRQN_UIDX, 4, (self.user_index & 0xff_ffff).into());
        at(at::IMM_INVAL, 4, u32::from_be_bytes(self.immediate).into());
        at(at::BYTE_CNT, 4, self.byte_count.into());
        if self.opcode.is_error() {
            at(at::ERROR, CqeError::BYTES, u32::from_be_bytes(self.error.emit()).into());
        } else {
            at(at::TIMESTAMP, 8, self.timestamp);
        }
        at(at::SOP_QPN, 4, (u32::from(self.send_opcode) << 24 | self.qpn & 0xff_ffff).into());
        at(at::WQE_COUNTER, 2, self.wqe_counter.into());
        at(at::OP_OWN, 1, op_own.into());
        let mut out = [0; CQE_BYTES];
        out.as_chunks_mut().0.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_be_bytes());
        out
    }

    /// Fills a slot of 64 or 128 bytes with the CQE and with `payload`, if any. Up to 32 bytes go into the
    /// CQE, over its first half; up to 64 go into the first half of a large slot. `byte_count` must be the
    /// payload's length. Errors: another slot size, or a payload that does not fit.
    pub fn emit_slot(&self, payload: Option<&[u8]>, slot: &mut [u8]) -> Result<(), LayoutError> {
        let size = slot.len();
        let at = cqe_at(size)?;
        put(slot, at, self.emit());
        let Some(payload) = payload else { return Ok(()) };
        let (start, format) = match payload.len() {
            0..=INLINE_32 => (at, ScatterFormat::Inline32),
            33..=INLINE_64 if at != 0 => (0, ScatterFormat::Inline64),
            len => return Err(LayoutError::NotInline { len, slot: size }),
        };
        if payload.len() != self.byte_count as usize {
            return Err(LayoutError::NotInline { len: self.byte_count as usize, slot: size });
        }
        slot[start..start + payload.len()].copy_from_slice(payload);
        slot[at + OP_OWN] = OpOwn::new(self.opcode, format, self.solicited, self.owner).0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
