//! Memory windows: keys that open a piece of a region to peers, bound and closed by the send queue or by a peer's SEND.
//!
//! IBTA vol. 1 §10.6 (memory windows, types 1 and 2B); what libmlx5 posts for `IBV_WR_BIND_MW`, `ibv_bind_mw` and
//! `IBV_WR_LOCAL_INV` is one UMR WQE (`mlx5_layout::umr`). A type-1 window opens to every queue of its protection domain and
//! may be bound anew at any time; a type-2 window opens to the queue that bound it, and must be closed before it is bound
//! again. A UMR names its key by the index: Linux's fast registration names a free key by the last byte that it is to have, and
//! libmlx5 by the one that the program wrote down last, so that a card cannot compare that byte.
//!
//! The work is done when the WQE's turn comes to be handed over: what is posted behind it finds it done, READs and atomics
//! before it are waited for if it carries a fence. What is refused completes with `IBV_WC_MW_BIND_ERR`, and the queue is in
//! error; a WQE that is no bind, unbind or invalidation at all is a local QP operation error.
//! Left out: keys of `mlx5dv_create_mkey`, lists of several pieces, windows on windows. A queue that goes leaves its windows
//! closed; one that is reset, or in error, keeps them.

use mlx5_layout::send_wqe::SendWqe;
use mlx5_layout::umr::{ANY_QPN, KeyContext, Klm, Umr, change, flag, right};
use roce::{Access, Opcode, RegionError, ServiceType, Status};

use super::command::{AllocMw, AllocatedMw, CommandError, ContextId, Handle};
use super::commands::Answer;
use super::core::Core;
use super::mr::{Regions, access};
use super::nic::Nic;
use super::qp::Qp;
use super::qpn::Qps;
use super::sq::{Kind, SendRequest};
use crate::carrier::Carrier;
use crate::memory::Memory;

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
    /// `IBV_ACCESS_REMOTE_*` bits.
    pub access: u32,
}

impl Window {
    /// The application's address of `va`, when a peer may use `len` bytes from there so, through queue `qpn` of domain `pd`.
    fn translate(&self, pd: u32, qpn: u32, va: u64, len: u64, need: Access) -> Result<u64, RegionError> {
        let key = self.key;
        let bound = self.bound.ok_or(RegionError::UnknownKey { key })?;
        if bound.qpn.map_or(self.pd != pd, |owner| owner != qpn) {
            return Err(RegionError::ProtectionDomain { key });
        }
        let inside = va.checked_sub(bound.start).filter(|o| *o <= bound.length && len <= bound.length - *o);
        let offset = inside.ok_or(RegionError::OutOfBounds { key, va, len })?;
        let address = bound.address.wrapping_add(offset);
        // Where addresses count from 0, an aligned one may still name bytes that are not.
        let misplaced = need.contains(Access::REMOTE_ATOMIC) && !address.is_multiple_of(8);
        if bound.access & need.0 != need.0 || misplaced {
            return Err(RegionError::AccessDenied { key, need: need.0 });
        }
        Ok(address)
    }
}

impl Regions {
    /// What a key opens to a peer, region or window.
    pub(super) fn grant(
        &self,
        rkey: u32,
        pd: u32,
        qpn: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<u64, RegionError> {
        if let Some(region) = self.find(rkey) {
            return region.translate(pd, va, len, need);
        }
        let window = self.window(rkey).filter(|window| window.key == rkey);
        window.ok_or(RegionError::UnknownKey { key: rkey })?.translate(pd, qpn, va, len, need)
    }

    /// Whether bytes of one WRITE through the key may become visible in any order.
    pub(super) fn is_relaxed(&self, rkey: u32) -> bool {
        let behind = || self.find(self.window(rkey)?.bound?.region);
        self.find(rkey).or_else(behind).is_some_and(|region| region.relaxed())
    }

    /// Whether a SEND to queue `qpn` may close the key: a type-2 window that the queue has bound. No region may be closed so:
    /// those of `ibv_reg_mr` are made without that right.
    pub(super) fn may_invalidate(&self, rkey: u32, qpn: u32) -> bool {
        let open = |window: &Window| window.key == rkey && window.bound.is_some_and(|b| b.qpn == Some(qpn));
        self.window(rkey).is_some_and(open)
    }

    fn bind(&mut self, key: u32, bound: Bound) {
        let Some(window) = self.window_mut(key) else { return };
        window.bound = Some(bound);
        self.bound_to_queues += u32::from(bound.qpn.is_some());
        if let Some(region) = self.find_mut(bound.region) {
            region.windows += 1;
        }
    }

    /// Closes a window; returns what it opened.
    fn unbind(&mut self, key: u32) -> Option<Bound> {
        let bound = self.window_mut(key)?.bound.take()?;
        self.bound_to_queues -= u32::from(bound.qpn.is_some());
        if let Some(region) = self.find_mut(bound.region) {
            region.windows -= 1;
        }
        Some(bound)
    }
}

/// What a WQE wants of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowWork {
    /// The key, of which the index counts.
    key: u32,
    kind: WindowKind,
    /// Last byte that the key gets.
    tag: u8,
    /// What to open; none: close it.
    opens: Option<(KeyContext, Klm)>,
}

impl WindowWork {
    /// Reads the WQE. `qpn`: the queue that it is on.
    pub(super) fn of(wqe: &SendWqe<&[u8]>, service: ServiceType, qpn: u32) -> Result<WindowWork, Status> {
        let malformed = Status::LocalQpOperation;
        let Umr { control, context, klm } = wqe.umr().map_err(|_| malformed)?;
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
            return Err(malformed);
        }
        let opens = if context.free { None } else { Some((context, klm.ok_or(malformed)?)) };
        Ok(WindowWork { key: u32::from_be_bytes(wqe.control().immediate), kind, tag: context.tag, opens })
    }
}

/// `IBV_ACCESS_*` bits of a key context's rights, for peers.
fn remote_rights(context: &KeyContext) -> u32 {
    [
        (right::REMOTE_WRITE, access::REMOTE_WRITE),
        (right::REMOTE_READ, access::REMOTE_READ),
        (right::ATOMIC, access::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(bit, _)| context.access & bit != 0)
    .fold(0, |rights, (_, flag)| rights | flag)
}

pub trait MwCommands {
    /// Checks as `ib_uverbs_alloc_mw` of Linux: the domain, then the type.
    fn alloc_mw(&mut self, context: ContextId, command: &AllocMw) -> Answer<AllocatedMw>;
    /// Removes it, bound or not.
    fn dealloc_mw(&mut self, context: ContextId, mw: Handle) -> Answer<()>;
}

impl<M: Memory, C: Carrier> MwCommands for Nic<M, C> {
    fn alloc_mw(&mut self, id: ContextId, request: &AllocMw) -> Answer<AllocatedMw> {
        let pd = self.core.find_pd(id, request.pd)?;
        let kind = match request.kind {
            1 => WindowKind::One,
            2 => WindowKind::Two,
            other => {
                return Err(CommandError::invalid(format!("memory windows of type {other} do not exist")));
            }
        };
        let limit = self.core.capabilities.max_mw;
        if self.core.regions.len() >= limit {
            return Err(CommandError::exhausted("memory regions and windows", limit));
        }
        let rkey = self.core.regions.insert_window(Window { key: 0, pd, kind, bound: None });
        self.core.count_pd(pd, 1);
        Ok(AllocatedMw { handle: self.core.context_mut(id)?.windows.insert(rkey), rkey })
    }

    fn dealloc_mw(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let key = self.core.context_mut(id)?.windows.remove(handle);
        let key = key.ok_or_else(|| CommandError::no_such("MW", handle))?;
        self.core.close(key, None);
        self.core.revoke_closed(&mut self.qps);
        if let Some(window) = self.core.regions.remove_window(key) {
            self.core.count_pd(window.pd, -1);
        }
        Ok(())
    }
}

impl<M: Memory> Core<M> {
    /// A queue goes: what it opened is closed.
    pub(super) fn release_windows(&mut self, qpn: u32) {
        if self.regions.bound_to_queues == 0 {
            return;
        }
        let of_queue = |window: &&Window| window.bound.is_some_and(|bound| bound.qpn == Some(qpn));
        let keys: Vec<u32> = self.regions.windows().filter(of_queue).map(|window| window.key).collect();
        for key in keys {
            self.regions.unbind(key);
        }
    }

    // Work requests.

    /// Does what a WQE wants of a window, unless a fence or the queue's depth holds it.
    pub(super) fn work_on_window(&mut self, qp: &mut Qp, request: &mut SendRequest) {
        let Kind::Window(work) = request.kind else { return };
        if !qp.requester.as_ref().is_some_and(|r| r.can_post(Opcode::Send, request.fence)) {
            return;
        }
        request.kind = match self.change_window(qp, &work) {
            Some(()) => Kind::Nop,
            None => {
                // As behind any WQE that failed.
                qp.sq.stopped = true;
                Kind::Failed(Status::WindowBind)
            }
        };
    }

    /// `None`: refused, and nothing is changed.
    fn change_window(&mut self, qp: &mut Qp, work: &WindowWork) -> Option<()> {
        let window = self.regions.window(work.key).copied();
        let window = window.filter(|window| window.pd == qp.pd && window.kind == work.kind)?;
        let bound = match &work.opens {
            Some(_) if window.kind == WindowKind::Two && window.bound.is_some() => return None,
            Some((context, klm)) => Some(self.piece(qp, work.kind, context, klm)?),
            // Closing a type-2 window is for the queue that opened it.
            None if window.kind == WindowKind::Two && window.bound?.qpn != Some(qp.qpn) => return None,
            None => None,
        };
        self.close(window.key, Some(qp.qpn));
        qp.revoke_answers(window.key);
        if let Some(window) = self.regions.window_mut(window.key) {
            window.key = window.key & !0xff | u32::from(work.tag);
        }
        if let Some(bound) = bound {
            self.regions.bind(window.key, bound);
        }
        Some(())
    }

    /// The piece of a region that a bind names, when the region may be opened so.
    fn piece(&self, qp: &Qp, kind: WindowKind, context: &KeyContext, klm: &Klm) -> Option<Bound> {
        let KeyContext { start, len: length, .. } = *context;
        let region = self.regions.find(klm.mkey)?;
        let rights = remote_rights(context);
        let writes = rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let needed = access::MW_BIND | if writes { access::LOCAL_WRITE } else { 0 };
        start.checked_add(length)?;
        if length == 0 || length > klm.byte_count.into() {
            return None;
        }
        let address = region.translate(qp.pd, klm.address, length, Access(needed)).ok()?;
        let qpn = (kind == WindowKind::Two).then_some(qp.qpn);
        Some(Bound { region: region.key, qpn, start, length, address, access: rights })
    }

    /// Closes a window. What was asked for through it and is not answered is refused. `owner` does so itself; another queue than that
    /// has nothing of a window that `owner` bound, and loses the key with [`Core::revoke_closed`] otherwise.
    fn close(&mut self, key: u32, owner: Option<u32>) {
        let Some(key) = self.regions.window(key).map(|window| window.key) else { return };
        let Some(bound) = self.regions.unbind(key) else { return };
        if bound.qpn.is_none() || bound.qpn != owner {
            self.revoked.push(key);
        }
    }

    /// No queue touches what the closed windows opened.
    pub(super) fn revoke_closed(&mut self, qps: &mut Qps) {
        while let Some(key) = self.revoked.pop() {
            qps.revoke(key);
        }
    }

    /// A SEND closed a window, as its responder allowed. Through shared memory READs that came before it are answered all the same,
    /// until the region itself goes. On the wire an answer is read packet by packet as it leaves, and what is left of it finds its
    /// key closed: IBTA lets a SEND pass the READ before it, and a program that minds posts it with a fence.
    pub(super) fn invalidate(&mut self, qp: &mut Qp, key: u32) {
        let Some(bound) = self.regions.unbind(key) else { return };
        self.counters.windows_invalidated += 1;
        for answer in qp.answers.iter_mut().filter(|answer| answer.key == key) {
            answer.key = bound.region;
        }
    }
}
