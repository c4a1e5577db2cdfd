//! The driver's side of the layout, for tests: writes WQEs, records and registers, reads CQEs, like libmlx5.
//!
//! Follows the sources that the modules of the structures name.

use crate::bytes::{BitField, Field, bits, check, put};
use crate::cqe::{CqeError, INLINE_32, INLINE_64, OpOwn, ScatterFormat, at, owner_bit};
use crate::doorbell::{Arm, ArmFor, CONSUMER_MASK, Doorbell};
use crate::send_wqe::{
    AddressVector, Atomic, Control, DataPointer, INLINE_FLAG, MAX_DS, RemoteAddress, UNIT_BYTES,
};
use crate::umr::{Klm, Umr};
use crate::{Cqe, CqeOpcode, CqeSyndrome, LayoutError, recv_wqe, srq_wqe};

/// Offset of the CQ arm register in a UAR page.
pub const CQ_ARM_OFFSET: usize = 0x20;
/// Word of a CQ's record that arms it.
pub const ARM_WORD: usize = 1;
/// Place of a CQE's signature byte.
const SIGNATURE: usize = 62;

/// More segments than the 6-bit length field can say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a WQE of {units} 16-byte units is above the limit of {MAX_DS}")]
pub struct WqeTooLong {
    pub units: usize,
}

/// Writes a send WQE into a buffer of its own, segment by segment, in the order they are added.
///
/// It lets any order and any value through, so that wrong WQEs can be made too.
#[derive(Debug, Clone)]
pub struct SendWqeBuilder {
    control: Control,
    bytes: Vec<u8>,
}

impl SendWqeBuilder {
    /// Starts with the control segment; its `ds` is filled in by [`Self::finish`].
    pub fn new(control: Control) -> Self {
        Self { control, bytes: vec![0; Control::BYTES] }
    }

    pub fn datagram(self, vector: &AddressVector) -> Self {
        self.raw(&vector.emit())
    }

    pub fn remote(self, va: u64, rkey: u32) -> Self {
        self.raw(&RemoteAddress { va, rkey }.emit())
    }

    pub fn atomic(self, swap_add: u64, compare: u64) -> Self {
        self.raw(&Atomic { swap_add, compare }.emit())
    }

    pub fn pointer(self, byte_count: u32, lkey: u32, va: u64) -> Self {
        self.raw(&DataPointer { byte_count, lkey, va }.emit())
    }

    /// Adds inline bytes with their header, padded with zeroes to 16 bytes.
    pub fn inline(self, data: &[u8]) -> Self {
        let header = INLINE_FLAG | (data.len() as u32 & !INLINE_FLAG);
        let mut filled = self.raw(&header.to_be_bytes()).raw(data);
        filled.bytes.resize(filled.bytes.len().next_multiple_of(UNIT_BYTES), 0);
        filled
    }

    /// Adds bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The WQE, padded to 16 bytes, with its length in `ds`. Error: more than 63 units.
    pub fn finish(mut self) -> Result<Vec<u8>, WqeTooLong> {
        self.bytes.resize(self.bytes.len().next_multiple_of(UNIT_BYTES), 0);
        let units = self.bytes.len() / UNIT_BYTES;
        match u8::try_from(units) {
            Ok(ds) if ds <= MAX_DS => self.control.ds = ds,
            _ => return Err(WqeTooLong { units }),
        }
        put(&mut self.bytes, 0, self.control.emit());
        Ok(self.bytes)
    }
}

impl Umr {
    /// The bytes behind the control segment.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = [&self.control.emit()[..], &self.context.emit()].concat();
        out.extend(self.klm.iter().flat_map(Klm::emit));
        out
    }
}

/// Writes a receive queue's entry: the pointers, then the terminator if it fits. Later bytes stay.
pub fn emit_receive(entry: &mut [u8], pointers: &[DataPointer]) -> Result<(), LayoutError> {
    check("a receive WQE", entry, recv_wqe::MIN_STRIDE.max(pointers.len() * DataPointer::BYTES))?;
    for (index, pointer) in pointers.iter().enumerate() {
        put(entry, index * DataPointer::BYTES, pointer.emit());
    }
    let end = pointers.len() * DataPointer::BYTES;
    if end + DataPointer::BYTES <= entry.len() {
        put(entry, end, DataPointer { byte_count: 0, lkey: recv_wqe::INVALID_LKEY, va: 0 }.emit());
    }
    Ok(())
}

/// Writes the link of a shared receive queue's entry; the rest stays.
pub fn link_shared_receive(entry: &mut [u8], next_index: u16) -> Result<(), LayoutError> {
    check("a shared receive WQE", entry, srq_wqe::MIN_STRIDE)?;
    put(entry, srq_wqe::NEXT_INDEX, next_index.to_be_bytes());
    Ok(())
}

/// Writes the pointers of a shared receive queue's entry, with their terminator if it fits; the link stays.
pub fn emit_shared_receive(entry: &mut [u8], pointers: &[DataPointer]) -> Result<(), LayoutError> {
    check("a shared receive WQE", entry, srq_wqe::MIN_STRIDE)?;
    emit_receive(&mut entry[srq_wqe::NEXT_BYTES..], pointers)
}

/// Word of a QP's record (either) for a counter: its low 16 bits. The device expects no more bits.
pub const fn counter_word(counter: u32) -> [u8; 4] {
    (counter & 0xffff).to_be_bytes()
}

/// Consumer word of a CQ's record: 24 bits.
pub const fn consumer_word(index: u32) -> [u8; 4] {
    (index & CONSUMER_MASK).to_be_bytes()
}

impl Doorbell {
    /// The convention of gpunetio and NVSHMEM: only the next index and the QPN.
    pub const fn of_next_index(next_index: u16, qpn: u32) -> Self {
        Self { opmod: 0, index: next_index, opcode: 0, qpn, ds: 0 }
    }
}

impl Arm {
    pub const REGISTER_BYTES: usize = 8;

    pub const fn word(&self) -> [u8; 4] {
        let solicited = match self.what {
            ArmFor::Any => 0,
            ArmFor::Solicited => 1,
        };
        ((self.sequence as u32 & 3) << 28 | solicited << 24 | self.consumer_index & CONSUMER_MASK)
            .to_be_bytes()
    }

    /// The 8 bytes for the register at [`CQ_ARM_OFFSET`].
    pub fn register(&self, cqn: u32) -> [u8; Self::REGISTER_BYTES] {
        let mut out = [0; Self::REGISTER_BYTES];
        put(&mut out, 0, self.word());
        put(&mut out, 4, cqn.to_be_bytes());
        out
    }
}

impl OpOwn {
    /// Bits 3:2.
    pub const fn format(self) -> ScatterFormat {
        match self.0 & 0xc {
            0x0 => ScatterFormat::Buffers,
            0x4 => ScatterFormat::Inline32,
            0x8 => ScatterFormat::Inline64,
            _ => ScatterFormat::Compressed,
        }
    }

    /// Bit 1.
    pub const fn is_solicited(self) -> bool {
        self.0 & 2 != 0
    }

    /// Bit 0.
    pub const fn owner(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether the slot holds the CQE with this running index, in a ring of `entries` (`get_sw_cqe`).
    pub const fn is_valid(self, index: u32, entries: u32) -> bool {
        self.0 >> 4 != CqeOpcode::Invalid.to_u8() && self.owner() == owner_bit(index, entries)
    }
}

/// Declares a field read from a CQE: a value of whole bytes at a place, or some bits there, see [`bits`].
macro_rules! accessors {
    (@read $cqe:expr, $type:ty, $at:expr) => {
        <$type as Field>::read($cqe, $at)
    };
    (@read $cqe:expr, $type:ty, $at:expr, $shift:literal, $width:literal) => {
        <$type as BitField>::of_bits(bits($cqe, $at, $shift, $width))
    };
    ($($(#[$doc:meta])* $name:ident: $type:ty = $at:expr $(, [$shift:literal, $width:literal])?;)*) => { $(
        $(#[$doc])*
        pub fn $name(&self) -> $type {
            accessors!(@read self.cqe(), $type, $at $(, $shift, $width)?)
        }
    )* };
}

impl<B: AsRef<[u8]>> Cqe<B> {
    accessors! {
        /// Path bits of the receiver's port.
        path_bits: u8 = at::ML_PATH, [0, 7];
        /// Sender's LID.
        source_lid: u16 = at::SLID;
        /// Sender's QPN, of a datagram.
        source_qpn: u32 = at::FLAGS_RQPN + 1, [0, 24];
        /// Service level of the packet.
        service_level: u8 = at::FLAGS_RQPN, [0, 4];
        /// Whether a GRH came with the message (bits 29:28).
        has_grh: bool = at::FLAGS_RQPN, [4, 2];
        /// User index that the QP was created with (CQE version 1), or SRQ number; 24 bits.
        user_index: u32 = at::SRQN_UIDX + 1, [0, 24];
        /// Immediate data in network order, or the invalidated rkey in big-endian order.
        immediate: [u8; 4] = at::IMM_INVAL;
        /// Bytes received; for an RDMA READ, bytes read.
        byte_count: u32 = at::BYTE_CNT;
        /// Device time.
        timestamp: u64 = at::TIMESTAMP;
        /// Opcode byte of the send WQE (requester CQEs).
        send_opcode: u8 = at::SOP_QPN;
        /// Signature byte.
        signature: u8 = SIGNATURE;
        /// Error of an error CQE.
        error: CqeError = at::ERROR;
    }

    /// Payload that lies in the slot; `None` if it is in the WQE's buffers. Error: the CQE is compressed or
    /// claims more payload than its place holds.
    pub fn inline_payload(&self) -> Result<Option<&[u8]>, LayoutError> {
        let slot = self.slot.as_ref();
        let len = self.byte_count() as usize;
        let misfit = LayoutError::NotInline { len, slot: slot.len() };
        match self.op_own().format() {
            ScatterFormat::Buffers => Ok(None),
            ScatterFormat::Inline32 if len <= INLINE_32 => Ok(Some(&self.cqe()[..len])),
            ScatterFormat::Inline64 if self.at != 0 && len <= INLINE_64 => Ok(Some(&slot[..len])),
            _ => Err(misfit),
        }
    }
}

impl CqeError {
    pub fn known(&self) -> Option<CqeSyndrome> {
        CqeSyndrome::from_u8(self.syndrome)
    }
}
