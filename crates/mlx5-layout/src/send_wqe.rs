//! Send WQE: control segment, then address, atomic and data segments, in 64-byte blocks.
//!
//! Follows `struct mlx5_wqe_{ctrl,raddr,atomic,data,inl_data}_seg`, `struct mlx5_wqe_av` (`mlx5dv.h`) and the
//! segment order of `_mlx5_post_send` (`qp.c`). The ring wraps at its end on a block boundary; callers hand
//! in a contiguous copy. UMR is in [`crate::umr`]. A field `4[0, 24]` is the low 24 bits of a big-endian
//! number at byte 4, of as many bytes as they need (here 3). Left out: segments of raw-packet, DC and XRC
//! queues, 4-byte masked atomics.

use crate::bytes::{Field, Rest, be32, check, segment};
use crate::umr::Umr;
use crate::{LayoutError, SendOpcode};

/// The producer index counts these (`MLX5_SEND_WQE_BB`).
pub const BLOCK_BYTES: usize = 64;
/// Segments are multiples of this, and `ds` counts it.
pub const UNIT_BYTES: usize = 16;
/// Largest value of the 6-bit `ds` field.
pub const MAX_DS: u8 = 0x3f;
/// Space that holds any WQE: 16 blocks.
pub const MAX_WQE_BYTES: usize = 1024;
/// Bytes of the header before inline data.
pub const INLINE_HEADER_BYTES: usize = 4;
/// Bit of the header that tells inline data from a data pointer (`MLX5_INLINE_SEG`).
pub const INLINE_FLAG: u32 = 0x8000_0000;

/// Blocks that a WQE of `ds` 16-byte units takes.
pub const fn blocks(ds: u8) -> u16 {
    (ds as u16).div_ceil((BLOCK_BYTES / UNIT_BYTES) as u16)
}

/// Bit 3 of `fm_ce_se` (of CE, bits 3:2; `doca_gpunetio_verbs_def.h` has all four): the device writes a CQE
/// when the WQE ends, not only when it fails. `IBV_SEND_SIGNALED`, `MLX5_WQE_CTRL_CQ_UPDATE`.
pub const CQ_UPDATE: u8 = 0x08;

/// Fence and small fence in FM, bits 7:5 of `fm_ce_se`: what the WQE waits for. `IBV_SEND_FENCE` sets it
/// (`MLX5_WQE_CTRL_FENCE`).
pub const FENCE: u8 = 0x80;

/// Bit 1 of `fm_ce_se`: the receiver's completion is solicited.
pub const SOLICITED: u8 = 0x02;

segment! {
    /// Control segment: the first 16 bytes of each send WQE.
    Control("a control segment", 16) {
        opmod: u8 = 0,
        /// Producer index of the WQE's first block, 16 bits whatever the ring's size.
        wqe_index: u16 = 1,
        /// Opcode byte, see [`SendOpcode`].
        opcode: u8 = 3,
        /// QP number, 24 bits.
        qpn: u32 = 4[0, 24],
        /// Length of the WQE in 16-byte units, this segment included; 6 bits are used.
        ds: u8 = 7,
        /// XOR signature, 0 unless the queue was created with signatures.
        signature: u8 = 8,
        /// Stream of a DC initiator.
        stream: u16 = 9,
        /// Fence mode, completion mode, solicited.
        fm_ce_se: u8 = 11,
        /// Immediate as the application gave it (network order), or the rkey to invalidate (big-endian).
        immediate: [u8; 4] = 12,
    }
}

impl Control {
    #[inline]
    pub fn send_opcode(&self) -> Option<SendOpcode> {
        SendOpcode::from_u8(self.opcode)
    }

    /// Whether a CQE is wanted when the WQE ends well.
    #[inline]
    pub fn is_signalled(&self) -> bool {
        self.fm_ce_se & CQ_UPDATE != 0
    }

    /// Whether the receiver's completion is solicited.
    #[inline]
    pub fn is_solicited(&self) -> bool {
        self.fm_ce_se & SOLICITED != 0
    }

    /// Length field as the device uses it: 6 bits.
    #[inline]
    pub fn units(&self) -> u8 {
        self.ds & MAX_DS
    }

    /// Blocks of the ring that the WQE takes.
    #[inline]
    pub fn blocks(&self) -> u16 {
        blocks(self.units())
    }
}

segment! {
    /// Remote-address segment of WRITE, READ and atomics.
    RemoteAddress("a remote-address segment", 16) {
        /// Virtual address at the peer.
        va: u64 = 0,
        /// Key of the peer's region.
        rkey: u32 = 8,
    }
}

segment! {
    /// Atomic segment. Operands are numbers: the target memory is in the host's byte order.
    Atomic("an atomic segment", 16) {
        /// Value to swap in, or to add.
        swap_add: u64 = 0,
        /// Value to compare with (compare-and-swap only).
        compare: u64 = 8,
    }
}

segment! {
    /// Data pointer: a piece of local memory.
    DataPointer("a data segment", 16) {
        /// Length in bytes, 31 bits. libmlx5 never writes 0 in a send WQE: the device takes it as 2^31.
        byte_count: u32 = 0,
        /// Key of the local region.
        lkey: u32 = 4,
        va: u64 = 8,
    }
}

segment! {
    /// Address vector of a UD send, 48 bytes (`struct mlx5_wqe_av`).
    AddressVector("an address vector", 48) {
        /// Q_Key.
        qkey: u32 = 0,
        /// Destination QPN, 24 bits.
        destination_qpn: u32 = 9[0, 24],
        /// Whether the vector has 48 bytes (`MLX5_EXTENDED_UD_AV`); libmlx5 always sets it.
        extended: bool = 8[7, 1],
        /// Static rate in bits 7:4. Service level in bits 3:0 (InfiniBand) or 3:1 (Ethernet).
        rate_service_level: u8 = 12,
        /// Source path bits (InfiniBand).
        path_bits: u8 = 13,
        /// Destination LID (InfiniBand), or UDP source port (RoCE v2).
        lid_or_udp_port: u16 = 14,
        /// Destination MAC (Ethernet).
        mac: [u8; 6] = 20,
        traffic_class: u8 = 26,
        hop_limit: u8 = 27,
        /// Whether a GRH is present. InfiniBand only: RoCE always has one, and leaves the bit clear.
        grh: bool = 28[6, 1],
        /// Index of the source GID, 8 bits.
        source_gid_index: u8 = 28[20, 8],
        /// Flow label, 20 bits.
        flow_label: u32 = 29[0, 20],
        /// Destination GID.
        gid: [u8; 16] = 32,
    }
}

/// How a queue finds its peer: decides which segment follows the control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// RC and UC: nothing.
    Connected,
    /// UD: an [`AddressVector`].
    Datagram,
}

/// A send WQE in one piece: the bytes of its blocks, copied out of the ring.
#[derive(Debug, Clone, Copy)]
pub struct SendWqe<B>(B);

impl<B: AsRef<[u8]>> SendWqe<B> {
    /// Checks that the WQE has a control segment, a length other than 0, and all the bytes of that length.
    #[inline]
    pub fn new(bytes: B) -> Result<Self, LayoutError> {
        let control = Control::parse(bytes.as_ref())?;
        if control.units() == 0 {
            return Err(LayoutError::WqeEndsEarly { ds: control.ds, segment: "control segment" });
        }
        check("a send WQE", bytes.as_ref(), usize::from(control.units()) * UNIT_BYTES)?;
        Ok(Self(bytes))
    }

    /// The control segment, read anew each time: a kept copy is stored by bytes, and loading it would stall.
    #[inline(always)]
    pub fn control(&self) -> Control {
        Control::read(self.0.as_ref(), 0)
    }

    /// What follows the control segment, as far as the length field covers it.
    #[inline]
    fn rest(&self) -> Rest<'_> {
        let control = self.control();
        let end = usize::from(control.units()) * UNIT_BYTES;
        Rest { ds: control.ds, bytes: &self.0.as_ref()[Control::BYTES..end] }
    }

    /// The segments of a UMR WQE. Errors: another opcode, or a WQE that ends inside them.
    pub fn umr(&self) -> Result<Umr, LayoutError> {
        let control @ Control { opcode, opmod, .. } = self.control();
        if control.send_opcode() != Some(SendOpcode::Umr) {
            return Err(LayoutError::UnknownSendOpcode { opcode, opmod });
        }
        Umr::parse(self.rest())
    }

    /// Sorts the segments behind the control segment. Errors: an opcode not described here, or a WQE that
    /// ends inside an address segment. A wrong data segment shows when [`Body::data`] reaches it.
    #[inline]
    pub fn body(&self, addressing: Addressing) -> Result<Body<'_>, LayoutError> {
        let control @ Control { opcode, opmod, .. } = self.control();
        let unknown = LayoutError::UnknownSendOpcode { opcode, opmod };
        let opcode = control.send_opcode().ok_or(unknown)?;
        let mut rest = self.rest();
        let mut body = Body {
            opcode,
            vector: &[],
            remote: RemoteAddress { va: 0, rkey: 0 },
            atomic: Atomic { swap_add: 0, compare: 0 },
            data: DataSegments(rest),
        };
        match opcode {
            SendOpcode::Nop => {
                // NVSHMEM gives its NOPs ds 2: what follows the control segment means nothing.
                rest.bytes = &[];
            }
            SendOpcode::Send | SendOpcode::SendImm | SendOpcode::SendInvalidate => {
                if addressing == Addressing::Datagram {
                    body.vector = rest.take(AddressVector::BYTES, "address vector")?;
                }
            }
            _ if opcode.has_remote_address() && addressing == Addressing::Connected => {
                let bytes = rest.take(RemoteAddress::BYTES, "remote-address segment")?;
                body.remote = RemoteAddress::parse(bytes)?;
                match opcode {
                    SendOpcode::AtomicMaskedCompareSwap | SendOpcode::AtomicMaskedFetchAdd => {
                        return Err(unknown);
                    }
                    SendOpcode::AtomicCompareSwap | SendOpcode::AtomicFetchAdd => {
                        let bytes = rest.take(Atomic::BYTES, "atomic segment")?;
                        body.atomic = Atomic::parse(bytes)?;
                    }
                    _ => {}
                }
            }
            _ => return Err(unknown),
        }
        body.data = DataSegments(rest);
        Ok(body)
    }
}

/// Segments of a send WQE, sorted.
#[derive(Debug, Clone, Copy)]
pub struct Body<'a> {
    pub opcode: SendOpcode,
    /// Bytes of the address vector, which only a datagram has.
    vector: &'a [u8],
    /// Remote memory of a one-sided operation; zeros of another.
    pub remote: RemoteAddress,
    /// Zeros of what is no atomic.
    pub atomic: Atomic,
    /// Local memory and inline bytes, in order.
    pub data: DataSegments<'a>,
}

impl Body<'_> {
    /// Where a datagram goes.
    pub fn datagram(&self) -> Option<AddressVector> {
        AddressVector::parse(self.vector).ok()
    }
}

/// Local side of a send WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataSegment<'a> {
    /// Memory named by address and key.
    Pointer(DataPointer),
    /// Bytes that the WQE carries itself.
    Inline(&'a [u8]),
}

/// Iterator over [`DataSegment`]s; ends for good after an error.
#[derive(Debug, Clone, Copy)]
pub struct DataSegments<'a>(Rest<'a>);

impl<'a> Iterator for DataSegments<'a> {
    type Item = Result<DataSegment<'a>, LayoutError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.bytes.is_empty() {
            return None;
        }
        let segment = self.0.data_segment();
        if segment.is_err() {
            self.0.bytes = &[];
        }
        Some(segment)
    }
}

impl<'a> Rest<'a> {
    #[inline]
    fn data_segment(&mut self) -> Result<DataSegment<'a>, LayoutError> {
        check("a data segment", self.bytes, UNIT_BYTES)?;
        let header = be32(self.bytes, 0);
        if header & INLINE_FLAG == 0 {
            return Ok(DataSegment::Pointer(DataPointer::parse(self.take(UNIT_BYTES, "data segment")?)?));
        }
        let len = (header & !INLINE_FLAG) as usize;
        let padded = (INLINE_HEADER_BYTES + len).next_multiple_of(UNIT_BYTES);
        let bytes = self.take(padded, "inline data")?;
        Ok(DataSegment::Inline(&bytes[INLINE_HEADER_BYTES..INLINE_HEADER_BYTES + len]))
    }
}

#[cfg(test)]
mod tests;
