//! Memory windows: keys that open a piece of a region to peers, bound and closed by WQEs or by a peer's SEND.
//!
//! IBTA vol. 1 §10.6 (memory windows, types 1 and 2B); what libmlx5 posts for `IBV_WR_BIND_MW`, `ibv_bind_mw`
//! and `IBV_WR_LOCAL_INV` is one UMR WQE (`mlx5_layout::umr`). A type-1 window opens to every queue of its
//! protection domain and may be rebound at any time. A type-2 window opens to the queue that bound it, and
//! must be closed before a rebind. A UMR names its key by the index. A card cannot compare the last byte:
//! Linux's fast registration gives the one the key is to have, libmlx5 the one last written.
//!
//! A UMR is performed when its WQE would be handed over. Later WQEs find it done; with a fence, earlier READs
//! and atomics complete first. A refused one completes with `IBV_WC_MW_BIND_ERR`, and the queue is in error.
//! A WQE that is no bind, unbind or invalidation at all is a local QP operation error.
//! Left out: keys of `mlx5dv_create_mkey`, lists of several pieces, windows on windows. A destroyed queue
//! leaves its windows closed; one that is reset, or in error, keeps them.

use mlx5_layout::send_wqe::SendWqe;
use mlx5_layout::umr::{ANY_QPN, KeyContext, Klm, Umr, change, flag, right};
use roce::{Access, RegionError, ServiceType};

use super::command::{Answer, refusal};
use super::mr::MemoryRegion;
use super::reason::{CheckFailure, Checked};

/// The two kinds of window, with their numbers in `ALLOC_MW`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowKind {
    /// For every queue of the protection domain.
    One = 1,
    /// For the queue that bound it.
    Two = 2,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// Its key as the last bind, or the allocation, left it.
    pub key: u32,
    pub pd: u32,
    pub kind: WindowKind,
    /// What it opens; none: nothing.
    pub bound: Option<Bound>,
}

/// What a window opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bound {
    /// Key of the region.
    pub region: u32,
    /// The queue that it is for; none: all of the protection domain.
    pub qpn: Option<u32>,
    /// First byte, as peers name it.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// First byte, as address of the application.
    pub address: u64,
    /// `IBV_ACCESS_REMOTE_*` bits, and of its region `IBV_ACCESS_RELAXED_ORDERING`.
    pub access: u32,
}

impl WindowKind {
    /// By its number in `ALLOC_MW`.
    pub(super) fn of(number: u8) -> Answer<WindowKind> {
        match number {
            1 => Ok(WindowKind::One),
            2 => Ok(WindowKind::Two),
            other => Err(refusal!(EINVAL, "memory windows of type {other} do not exist")),
        }
    }
}

impl Window {
    /// The application's address of `va`, and the rights, if a peer may access `len` bytes there so, through
    /// queue `qpn` of domain `pd`.
    pub(super) fn translate(
        &self,
        pd: u32,
        qpn: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(u64, u32), RegionError> {
        let key = self.key;
        let bound = self.bound.ok_or(RegionError::UnknownKey { key })?;
        if bound.qpn.map_or(self.pd != pd, |owner| owner != qpn) {
            return Err(RegionError::ProtectionDomain { key });
        }
        let inside = va.checked_sub(bound.start).filter(|o| *o <= bound.length && len <= bound.length - *o);
        let Bound { start, length, .. } = bound;
        let offset = inside.ok_or(RegionError::OutOfBounds { key, va, len, start, length })?;
        let address = bound.address.wrapping_add(offset);
        // Where addresses count from 0, an aligned one may still name bytes that are not.
        let misplaced = need.contains(Access::REMOTE_ATOMIC) && !address.is_multiple_of(8);
        if bound.access & need.0 != need.0 || misplaced {
            return Err(RegionError::AccessDenied { key, need: need.0 });
        }
        Ok((address, bound.access))
    }
}

/// What a UMR WQE asks for: a bind, an unbind or a local invalidation of one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UmrRequest {
    /// The key, of which the index counts.
    pub key: u32,
    pub kind: WindowKind,
    /// Last byte that the key gets.
    pub tag: u8,
    /// What to open; none: close it.
    pub opens: Option<(KeyContext, Klm)>,
}

impl UmrRequest {
    /// Reads the WQE. `qpn`: the queue that it is on.
    #[cold]
    pub(super) fn of(wqe: &SendWqe<impl AsRef<[u8]>>, service: ServiceType, qpn: u32) -> Checked<UmrRequest> {
        let Umr { control, context, klm } = wqe.umr().map_err(CheckFailure::malformed)?;
        let kind = if control.mask & change::QPN != 0 { WindowKind::Two } else { WindowKind::One };
        let owner = if kind == WindowKind::Two && !context.free { qpn } else { ANY_QPN };
        let wanted = if context.free { change::FREE | change::TAG } else { change::BIND };
        if service == ServiceType::Ud
            || control.flags & flag::INLINE == 0
            || control.translation_offset != 0
            || control.octowords != if context.free { 0 } else { Klm::OCTOWORDS }
            || control.mask & !change::QPN != wanted
            || context.qpn != owner
        {
            return Err(CheckFailure::malformed(
                "a UMR that neither binds nor closes one window of this queue",
            ));
        }
        let piece = || klm.ok_or_else(|| CheckFailure::malformed("a bind that names no region"));
        let opens = if context.free { None } else { Some((context, piece()?)) };
        Ok(UmrRequest { key: u32::from_be_bytes(wqe.control().immediate), kind, tag: context.tag, opens })
    }

    /// The piece of a region that a bind of queue `qpn` in domain `pd` names, if it may be opened so.
    pub(super) fn piece(
        &self,
        (context, klm): &(KeyContext, Klm),
        region: &MemoryRegion,
        (pd, qpn): (u32, u32),
    ) -> Result<Bound, RegionError> {
        let KeyContext { start, len: length, .. } = *context;
        let rights = remote_rights(context);
        let writes = rights & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
        let needed = Access::MW_BIND.0 | if writes { Access::LOCAL_WRITE.0 } else { 0 };
        if start.checked_add(length).is_none() || length == 0 || length > klm.byte_count.into() {
            return Err(region.out_of_bounds(klm.address, length));
        }
        let address = region.translate(pd, klm.address, length, Access(needed))?;
        let qpn = (self.kind == WindowKind::Two).then_some(qpn);
        let access = rights | region.access & Access::RELAXED_ORDERING.0;
        Ok(Bound { region: region.key, qpn, start, length, address, access })
    }
}

/// `IBV_ACCESS_*` bits of a key context's rights, for peers.
fn remote_rights(context: &KeyContext) -> u32 {
    [
        (right::REMOTE_WRITE, Access::REMOTE_WRITE.0),
        (right::REMOTE_READ, Access::REMOTE_READ.0),
        (right::ATOMIC, Access::REMOTE_ATOMIC.0),
    ]
    .into_iter()
    .filter(|(bit, _)| context.access & bit != 0)
    .fold(0, |rights, (_, flag)| rights | flag)
}
