//! Memory windows of the mock driver: the commands, and UMR WQEs as libmlx5's `set_bind_wr` lays them.

use crate::command::{AllocMw, Handle};
use mlx5_layout::SendOpcode;
use mlx5_layout::umr::{ANY_QPN, KeyContext, Klm, Umr, UmrControl, change, flag};

use super::driver::{DriverOf, TestNic};
use super::shapes::{QpId, Region};
use super::work::WorkRequest;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub handle: Handle,
    /// Its key when it was allocated; the last byte is a bind's to choose.
    pub rkey: u32,
    /// 1 or 2.
    pub kind: u8,
}

impl Window {
    /// The key with this last byte.
    pub fn key(&self, tag: u8) -> u32 {
        self.rkey & !0xff | u32::from(tag)
    }
}

/// What a bind opens.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'r> {
    pub region: &'r Region,
    /// First byte in it.
    pub offset: u64,
    pub len: u64,
    /// Bits of `mlx5_layout::umr::right`.
    pub rights: u8,
}

impl WorkRequest {
    fn umr(key: u32, umr: Umr) -> WorkRequest {
        WorkRequest { immediate: key.to_be_bytes(), umr: Some(umr), ..WorkRequest::new(SendOpcode::Umr) }
    }

    /// `IBV_WR_LOCAL_INV`.
    pub fn local_invalidate(key: u32) -> WorkRequest {
        WorkRequest::umr(key, closing(2, 0))
    }

    /// A bind of length 0: closes a window, whose key gets this last byte.
    pub fn close(window: &Window, tag: u8) -> WorkRequest {
        WorkRequest::umr(window.rkey, closing(window.kind, tag))
    }

    /// SEND of a piece of a region that closes the receiver's key.
    pub fn send_invalidate(from: &Region, offset: u64, len: u32, key: u32) -> WorkRequest {
        let send = WorkRequest::new(SendOpcode::SendInvalidate).pointer(from, offset, len);
        WorkRequest { immediate: key.to_be_bytes(), ..send }
    }

    /// The same request through a window: its key instead of a region's.
    pub fn through(self, key: u32) -> WorkRequest {
        WorkRequest { remote: self.remote.map(|(va, _)| (va, key)), ..self }
    }
}

fn closing(kind: u8, tag: u8) -> Umr {
    let (owned, checked) = if kind == 2 { (change::QPN, flag::CHECK_QPN) } else { (0, 0) };
    let mask = change::FREE | change::TAG | owned;
    let flags = flag::TRANSLATION_OFFSET | flag::INLINE | checked;
    let control = UmrControl { flags, mask, ..UmrControl::default() };
    Umr { control, context: KeyContext { free: true, qpn: ANY_QPN, tag, ..KeyContext::default() }, klm: None }
}

impl<N: TestNic> DriverOf<N> {
    /// Allocates a window of type 1 or 2.
    pub fn window(&mut self, kind: u8) -> Window {
        let made = self.nic.alloc_mw(self.context, &AllocMw { pd: self.pd, kind }).expect("a window");
        Window { handle: made.handle, rkey: made.number, kind }
    }

    /// `IBV_WR_BIND_MW` on this queue, for peers that name the bytes by the region's own addresses.
    pub fn bind(&self, qp: QpId, window: &Window, tag: u8, opening: &Opening<'_>) -> WorkRequest {
        let Opening { region, offset, len, rights } = *opening;
        let owned = window.kind == 2;
        let flags = flag::TRANSLATION_OFFSET | flag::INLINE | if owned { flag::CHECK_FREE } else { 0 };
        let mask = change::BIND | if owned { change::QPN } else { 0 };
        let address = region.address + offset;
        let context = KeyContext {
            access: rights,
            qpn: if owned { self.qp(qp).qpn } else { ANY_QPN },
            tag,
            start: address,
            len,
            ..KeyContext::default()
        };
        let control = UmrControl { flags, octowords: Klm::OCTOWORDS, translation_offset: 0, mask };
        let klm = Some(Klm { byte_count: len as u32, mkey: region.lkey, address });
        WorkRequest::umr(window.rkey, Umr { control, context, klm })
    }
}
