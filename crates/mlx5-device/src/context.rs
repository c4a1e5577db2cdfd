//! Contexts and their objects: the commands that make, find and destroy PDs, regions, UAR pages, CQs and address handles.
//!
//! Each open of a device has handle tables of its own; the objects live in tables of the NIC, because a key or a QPN must
//! be unique in the process. An object in use is not destroyed (`EBUSY`); closing a context destroys everything in it.

use super::ah::{self, Ah};
use super::command::{
    AddressVector, AllocatedPd, AllocatedUar, CommandError, ContextId, CreateCq, CreatedAh, CreatedCq,
    DestroyedCq, Handle, MrKeys, RegMr,
};
use super::core::Core;
use super::cq::Cq;
use super::doorbell::{Uar, UarKind};
use super::mr::{self, MemoryRegion};
use super::table::Table;
use crate::errno;
use crate::memory::{Memory, Registers};

/// One open of a device: its handles, each with the object's place in the NIC's tables.
#[derive(Debug, Default)]
pub(super) struct Context {
    pub device: usize,
    pub pds: Table<u32>,
    pub regions: Table<u32>,
    pub windows: Table<u32>,
    pub uars: Table<u32>,
    pub cqs: Table<u32>,
    pub srqs: Table<u32>,
    pub qps: Table<u32>,
    pub ahs: Table<u32>,
}

/// A protection domain. Its number is its place in the NIC's table.
#[derive(Debug)]
pub(super) struct Pd {
    pub users: u32,
}

impl<M: Memory> Core<M> {
    pub(super) fn open_context(&mut self, device: usize) -> Result<ContextId, CommandError> {
        if device >= self.ports.len() / usize::from(self.ports_each) {
            return Err(CommandError {
                errno: errno::ENODEV,
                reason: format!("device {device} does not exist"),
            });
        }
        Ok(ContextId(self.contexts.insert(Context { device, ..Context::default() })))
    }

    pub(super) fn close_context(&mut self, id: ContextId) {
        let Some(context) = self.contexts.get(id.0) else { return };
        let handles = |table: &Table<u32>| table.iter().map(|(handle, _)| handle).collect::<Vec<_>>();
        let qps = handles(&context.qps);
        let (ahs, cqs, regions) = (handles(&context.ahs), handles(&context.cqs), handles(&context.regions));
        let windows = handles(&context.windows);
        let srqs = handles(&context.srqs);
        let (uars, pds) = (handles(&context.uars), handles(&context.pds));
        // Users before what they use: no step can find its object busy.
        let done = qps.into_iter().try_for_each(|h| self.destroy_qp(id, h).map(drop));
        let done = done.and_then(|()| ahs.into_iter().try_for_each(|h| self.destroy_ah(id, h)));
        let done = done.and_then(|()| cqs.into_iter().try_for_each(|h| self.destroy_cq(id, h).map(drop)));
        let done = done.and_then(|()| srqs.into_iter().try_for_each(|h| self.destroy_srq(id, h).map(drop)));
        let done = done.and_then(|()| windows.into_iter().try_for_each(|h| self.dealloc_mw(id, h)));
        let done = done.and_then(|()| regions.into_iter().try_for_each(|h| self.dereg_mr(id, h)));
        let done = done.and_then(|()| uars.into_iter().try_for_each(|h| self.free_uar(id, h)));
        let done = done.and_then(|()| pds.into_iter().try_for_each(|h| self.dealloc_pd(id, h)));
        debug_assert_eq!(done, Ok(()));
        self.contexts.remove(id.0);
    }

    pub(super) fn context(&self, id: ContextId) -> Result<&Context, CommandError> {
        self.contexts.get(id.0).ok_or_else(|| CommandError::no_such("context", id.0))
    }

    pub(super) fn context_mut(&mut self, id: ContextId) -> Result<&mut Context, CommandError> {
        self.contexts.get_mut(id.0).ok_or_else(|| CommandError::no_such("context", id.0))
    }

    // Protection domains.

    pub(super) fn alloc_pd(&mut self, id: ContextId) -> Result<AllocatedPd, CommandError> {
        self.context(id)?;
        let limit = self.capabilities.max_pd;
        if self.pds.len() >= limit as usize {
            return Err(CommandError::exhausted("protection domains", limit));
        }
        let pdn = self.pds.insert(Pd { users: 0 });
        Ok(AllocatedPd { handle: self.context_mut(id)?.pds.insert(pdn), pdn })
    }

    pub(super) fn dealloc_pd(&mut self, id: ContextId, handle: Handle) -> Result<(), CommandError> {
        let pd = self.find_pd(id, handle)?;
        if self.pds.get(pd).is_some_and(|pd| pd.users > 0) {
            return Err(CommandError::busy("PD", handle, "regions, windows, queues or address handles"));
        }
        self.pds.remove(pd);
        self.context_mut(id)?.pds.remove(handle);
        Ok(())
    }

    pub(super) fn find_pd(&self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        self.context(id)?.pds.get(handle).copied().ok_or_else(|| CommandError::no_such("PD", handle))
    }

    /// One user of the PD more, or less.
    pub(super) fn count_pd(&mut self, pd: u32, change: i32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users = pd.users.saturating_add_signed(change);
        }
    }

    // Memory regions.

    pub(super) fn reg_mr(&mut self, id: ContextId, request: &RegMr) -> Result<MrKeys, CommandError> {
        let pd = self.find_pd(id, request.pd)?;
        let limit = self.capabilities.max_mr;
        if self.regions.len() >= limit {
            return Err(CommandError::exhausted("memory regions and windows", limit));
        }
        mr::check(&self.memory, request)?;
        let RegMr { start, length, iova, access, .. } = *request;
        let region = MemoryRegion { key: 0, context: id, pd, start, length, iova, access, windows: 0 };
        let key = self.regions.insert(region);
        self.count_pd(pd, 1);
        Ok(MrKeys { handle: self.context_mut(id)?.regions.insert(key), lkey: key, rkey: key })
    }

    pub(super) fn dereg_mr(&mut self, id: ContextId, handle: Handle) -> Result<(), CommandError> {
        let key = self.context(id)?.regions.get(handle).copied();
        let key = key.ok_or_else(|| CommandError::no_such("MR", handle))?;
        if self.regions.find(key).is_some_and(|region| region.windows > 0) {
            return Err(CommandError::busy("MR", handle, "memory windows"));
        }
        self.context_mut(id)?.regions.remove(handle);
        if let Some(region) = self.regions.remove(key) {
            self.count_pd(region.pd, -1);
            self.revoke(key);
        }
        Ok(())
    }

    // UAR pages.

    pub(super) fn alloc_uar(
        &mut self,
        id: ContextId,
        kind: UarKind,
        registers: Box<dyn Registers>,
    ) -> Result<AllocatedUar, CommandError> {
        self.context(id)?;
        let page_id = self.uars.insert(Uar::new(id, kind, registers));
        Ok(AllocatedUar { handle: self.context_mut(id)?.uars.insert(page_id), page_id })
    }

    pub(super) fn free_uar(&mut self, id: ContextId, handle: Handle) -> Result<(), CommandError> {
        let page = self.context(id)?.uars.get(handle).copied();
        let page = page.ok_or_else(|| CommandError::no_such("UAR", handle))?;
        if self.uars.get(page).is_some_and(|uar| !uar.queues.is_empty()) {
            return Err(CommandError::busy("UAR", handle, "queues"));
        }
        self.uars.remove(page);
        self.context_mut(id)?.uars.remove(handle);
        Ok(())
    }

    // Completion queues.

    pub(super) fn create_cq(&mut self, id: ContextId, request: &CreateCq) -> Result<CreatedCq, CommandError> {
        self.context(id)?;
        let limit = self.capabilities.max_cq;
        if self.cqs.len() >= limit as usize {
            return Err(CommandError::exhausted("completion queues", limit));
        }
        let cq = Cq::create(&self.memory, id, request, self.capabilities.max_cqe)?;
        let place = self.cqs.insert(cq);
        let cqn = FIRST_CQN + place;
        if let Some(cq) = self.cqs.get_mut(place) {
            cq.cqn = cqn;
        }
        if request.channel.is_some() {
            self.schedule.watch_cq(place);
        }
        Ok(CreatedCq { handle: self.context_mut(id)?.cqs.insert(place), cqn, cqe: request.cqe })
    }

    pub(super) fn destroy_cq(&mut self, id: ContextId, handle: Handle) -> Result<DestroyedCq, CommandError> {
        let place = self.find_cq(id, handle)?;
        if self.cqs.get(place).is_some_and(|cq| cq.users > 0) {
            return Err(CommandError::busy("CQ", handle, "queue pairs"));
        }
        self.context_mut(id)?.cqs.remove(handle);
        self.schedule.forget_cq(place);
        let Some(cq) = self.cqs.remove(place) else { return Ok(DestroyedCq::default()) };
        // The library waits until the program has acknowledged what is reported here, so what nobody can read any more
        // is withdrawn and not counted.
        let withdrawn =
            cq.channel.map_or(0, |channel| self.events.withdraw_completions(channel, cq.user_handle));
        let withdrawn_async = self.events.withdraw_asynchronous(id, cq.user_handle);
        Ok(DestroyedCq {
            completion_events: cq.completion_events.wrapping_sub(withdrawn),
            async_events: cq.async_events.wrapping_sub(withdrawn_async),
        })
    }

    pub(super) fn find_cq(&self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        self.context(id)?.cqs.get(handle).copied().ok_or_else(|| CommandError::no_such("CQ", handle))
    }

    // Address handles.

    pub(super) fn create_ah(
        &mut self,
        id: ContextId,
        pd: Handle,
        vector: &AddressVector,
    ) -> Result<CreatedAh, CommandError> {
        let pd = self.find_pd(id, pd)?;
        let limit = self.capabilities.max_ah;
        if self.ahs.len() >= limit as usize {
            return Err(CommandError::exhausted("address handles", limit));
        }
        let device = self.context(id)?.device;
        let from = self.place_of_port(device, vector.port).map_err(CommandError::invalid)?;
        ah::check(&self.ports[from], vector)?;
        let to = ah::resolve(&self.ports, from, vector.dlid, vector.dgid.as_ref());
        let dmac = to.map_or([0; 6], |port| self.ports[port].mac);
        let place = self.ahs.insert(Ah { context: id, pd });
        self.count_pd(pd, 1);
        Ok(CreatedAh { handle: self.context_mut(id)?.ahs.insert(place), dmac })
    }

    pub(super) fn destroy_ah(&mut self, id: ContextId, handle: Handle) -> Result<(), CommandError> {
        let place =
            self.context_mut(id)?.ahs.remove(handle).ok_or_else(|| CommandError::no_such("AH", handle))?;
        if let Some(ah) = self.ahs.remove(place) {
            debug_assert_eq!(ah.context, id);
            self.count_pd(ah.pd, -1);
        }
        Ok(())
    }
}

/// CQ numbers start here, as on a card whose firmware keeps the first ones.
const FIRST_CQN: u32 = 0x400;
