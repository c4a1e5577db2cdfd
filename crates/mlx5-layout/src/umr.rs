//! UMR WQE as libmlx5 writes it for memory windows: control, UMR control, key context, one piece of memory.
//!
//! Follows `struct mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg` and `mlx5_wqe_umr_klm_seg`
//! (`mlx5dv.h`), in the order of `set_bind_wr` (`qp.c`). The key stands in the control segment's immediate
//! field. A bind has a piece of memory, 64 bytes of which 16 are used; an unbind and an invalidation have
//! none. Left out: lists of several pieces, lists behind a pointer, strides, signatures, `mlx5dv` keys.

use crate::LayoutError;
use crate::bytes::{Rest, segment};

/// Bits of [`UmrControl::flags`] (`MLX5_WQE_UMR_CTRL_FLAG_*`).
pub mod flag {
    /// Fail unless the key belongs to the queue that [`super::KeyContext::qpn`] names.
    pub const CHECK_QPN: u8 = 1 << 3;
    /// `translation_offset` means something.
    pub const TRANSLATION_OFFSET: u8 = 1 << 4;
    /// Fail unless the key is free.
    pub const CHECK_FREE: u8 = 1 << 5;
    /// The pieces of memory follow in the WQE.
    pub const INLINE: u8 = 1 << 7;
}

/// Bits of [`UmrControl::mask`]: which fields of the key context change (`MLX5_WQE_UMR_CTRL_MKEY_MASK_*`).
pub mod change {
    pub const LEN: u64 = 1;
    /// First address.
    pub const START: u64 = 1 << 6;
    /// Last byte of the key.
    pub const TAG: u64 = 1 << 13;
    pub const QPN: u64 = 1 << 14;
    /// Right to local writes.
    pub const LOCAL_WRITE: u64 = 1 << 18;
    /// Right to READs.
    pub const REMOTE_READ: u64 = 1 << 19;
    /// Right to WRITEs.
    pub const REMOTE_WRITE: u64 = 1 << 20;
    /// Right to atomics.
    pub const ATOMIC: u64 = 1 << 21;
    /// Free or in use.
    pub const FREE: u64 = 1 << 29;
    /// What a bind changes, besides the queue of a type-2 window.
    pub const BIND: u64 = FREE | TAG | LEN | START | LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | ATOMIC;
}

/// Bits of [`KeyContext::access`] (`MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_*`).
pub mod right {
    pub const LOCAL_WRITE: u8 = 1 << 3;
    pub const REMOTE_READ: u8 = 1 << 4;
    pub const REMOTE_WRITE: u8 = 1 << 5;
    pub const ATOMIC: u8 = 1 << 6;
}

/// The queue of a key that belongs to all queues of its protection domain.
pub const ANY_QPN: u32 = 0xff_ffff;

segment! {
    /// What is done to the key.
    UmrControl("a UMR control segment", 48) {
        /// Bits of [`flag`].
        flags: u8 = 0,
        /// Length of the list of pieces in units of 16 bytes, a multiple of four: 4 for one piece.
        octowords: u16 = 4,
        /// First piece that changes, in the same units.
        translation_offset: u16 = 6,
        /// Bits of [`change`].
        mask: u64 = 8,
    }
}

segment! {
    /// What the key becomes; the control segment's mask says which of it is meant.
    KeyContext("a key context", 64) {
        /// It names no memory (`MLX5_WQE_MKEY_CONTEXT_FREE`).
        free: bool = 0[6, 1],
        /// Bits of [`right`].
        access: u8 = 2,
        /// The queue that it belongs to, 24 bits, or [`ANY_QPN`].
        qpn: u32 = 4[0, 24],
        /// Last byte of the key.
        tag: u8 = 7,
        flags_pd: u32 = 12,
        /// First address, as peers name it.
        start: u64 = 16,
        len: u64 = 24,
    }
}

segment! {
    /// A piece of memory behind a key, padded to a block's four units.
    Klm("a piece of memory", 64) {
        /// Length in bytes, at most 2 GiB.
        byte_count: u32 = 0,
        /// Key of the region that it is in.
        mkey: u32 = 4,
        /// First byte, as that region's key names it.
        address: u64 = 8,
    }
}

impl Klm {
    /// [`Klm::BYTES`] as [`UmrControl::octowords`] says it.
    pub const OCTOWORDS: u16 = 4;
}

/// Everything of a UMR WQE behind its control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Umr {
    pub control: UmrControl,
    /// What the key becomes.
    pub context: KeyContext,
    /// Its memory; none: nothing, or the WQE has no room for it.
    pub klm: Option<Klm>,
}

impl Umr {
    /// Reads what follows a WQE's control segment. Error: it ends inside one of the two required segments.
    pub(crate) fn parse(mut rest: Rest<'_>) -> Result<Self, LayoutError> {
        let control = UmrControl::parse(rest.take(UmrControl::BYTES, "UMR control segment")?)?;
        let context = KeyContext::parse(rest.take(KeyContext::BYTES, "key context")?)?;
        let klm = rest.take(Klm::BYTES, "piece of memory").and_then(Klm::parse).ok();
        Ok(Self { control, context, klm })
    }
}

#[cfg(test)]
mod tests;
