//! Memory windows: keys that open a piece of a region to peers, and the binds that open and close them.
//!
//! `ibv_alloc_mw(3)`, `ibv_bind_mw(3)`, `ibv_post_send(3)`. Close windows first: else a region stays
//! registered, and [`Mr`] keeps its memory. Left out: bind flags but `IBV_SEND_SIGNALED`, extended QPs.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use super::device::Pd;
use super::memory::{Memory, Mr};
use super::queue_pair::QueuePair;
use super::work_request::PostError;
use crate::result::code::Access;
use crate::result::{Result, object, queue_pair, raw};

/// The kinds of window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum MwKind {
    /// For every queue pair of the protection domain; bound by [`QueuePair::bind`], which chooses the key.
    One = raw::IBV_MW_TYPE_1,
    /// For the queue pair that bound it, by [`QueuePair::post_bind`] under a key that the program chooses.
    Two = raw::IBV_MW_TYPE_2,
}

#[derive(Debug)]
pub struct Mw {
    mw: NonNull<raw::ibv_mw>,
    kind: MwKind,
    _pd: Pd,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for Mw {}
// SAFETY: what takes `&self` only reads; a bind that changes the key takes `&mut`.
unsafe impl Sync for Mw {}

impl Mw {
    /// A window that opens nothing yet.
    pub fn alloc(pd: &Pd, kind: MwKind) -> Result<Self> {
        // SAFETY: the domain is live, and is kept.
        let mw = unsafe { object::alloc_mw(pd.raw(), kind as u32) }?;
        Ok(Self { mw, kind, _pd: pd.clone() })
    }

    pub fn kind(&self) -> MwKind {
        self.kind
    }

    /// Its key: type 1, of the last bind; type 2, as it was allocated.
    pub fn rkey(&self) -> u32 {
        // SAFETY: libibverbs keeps the object until it is deallocated.
        unsafe { (*self.mw.as_ptr()).rkey }
    }

    /// The key with another last byte, which is what a bind may choose.
    pub fn key(&self, tag: u8) -> u32 {
        self.rkey() & !0xff | u32::from(tag)
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: the window is live and not used afterwards.
        let _ = unsafe { object::dealloc_mw(self.mw) };
    }
}

/// What a bind opens: a piece of a region, and what peers may do there.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'m> {
    mr: NonNull<raw::ibv_mr>,
    address: u64,
    length: u64,
    access: Access,
    _region: PhantomData<&'m ()>,
}

impl<'m> Opening<'m> {
    /// Any range: the device checks it.
    pub fn new<M: Memory>(mr: &'m Mr<M>, range: Range<usize>, access: Access) -> Self {
        let address = mr.address().wrapping_add(range.start as u64);
        Self { mr: mr.raw(), address, length: range.len() as u64, access, _region: PhantomData }
    }

    fn to_raw(self) -> raw::ibv_mw_bind_info {
        raw::ibv_mw_bind_info {
            mr: self.mr.as_ptr(),
            addr: self.address,
            length: self.length,
            mw_access_flags: self.access.0,
        }
    }
}

impl QueuePair {
    /// Posts the bind of a type-2 window (`IBV_WR_BIND_MW`). An opening without bytes closes it.
    pub fn post_bind(
        &mut self,
        id: u64,
        window: &Mw,
        rkey: u32,
        opening: &Opening<'_>,
    ) -> std::result::Result<(), PostError> {
        let mut request = raw::ibv_send_wr {
            wr_id: id,
            opcode: raw::IBV_WR_BIND_MW,
            send_flags: raw::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        let bind_info = opening.to_raw();
        request.__bindgen_anon_2.bind_mw =
            raw::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: window.mw.as_ptr(), rkey, bind_info };
        // SAFETY: the queue pair is live; window and region outlive the call, which copies what it needs.
        let posted = unsafe { queue_pair::post_send(self.raw(), &raw mut request) };
        posted.map_err(|(_, source)| PostError { index: 0, source })
    }

    /// Binds a type-1 window (`ibv_bind_mw`), which gets a new key; none closes it.
    pub fn bind(
        &mut self,
        id: u64,
        window: &mut Mw,
        opening: Option<&Opening<'_>>,
    ) -> std::result::Result<u32, PostError> {
        let bind_info = opening.map_or_else(Default::default, |opening| opening.to_raw());
        let mut bind = raw::ibv_mw_bind { wr_id: id, send_flags: raw::IBV_SEND_SIGNALED, bind_info };
        // SAFETY: queue pair and window are live; the region outlives the call, which copies what it needs.
        let bound = unsafe { queue_pair::bind_mw(self.raw(), window.mw, &mut bind) };
        bound.map_err(|source| PostError { index: 0, source })?;
        Ok(window.rkey())
    }
}
