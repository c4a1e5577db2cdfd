//! The commands of a device: handles are looked up in the context, users are counted, and the object does the
//! rest. An object in use is not destroyed (`EBUSY`); closing a context destroys everything in it.

use super::ah;
use super::command::*;
use super::context::ObjectKind;
use super::mkey::Mkey;
use super::mr::{self, MemoryRegion};
use super::nic::{Nic, on_carrier};
use super::qp::Qp;
use super::uar::UarKind;
use super::window::{Window, WindowKind};
use crate::carrier::Carrier;
use crate::memory::{Memory, Registers};

pub use super::command::Answer;

/// The commands of a device. The NIC takes them, and in tests of the ABI a recorder.
pub trait Commands {
    fn open_context(&mut self, device: usize) -> Answer<ContextId>;
    /// A program closed it; everything it left goes with it.
    fn close_context(&mut self, context: ContextId);
    /// Whether the port at this place among all ports is down.
    fn port_is_down(&self, place: usize) -> bool;

    /// `registers` is the NIC's own mapping of the page.
    fn alloc_uar(
        &mut self,
        context: ContextId,
        kind: UarKind,
        registers: Box<dyn Registers>,
    ) -> Answer<Created>;
    fn free_uar(&mut self, context: ContextId, uar: Handle) -> Answer<()>;

    fn alloc_pd(&mut self, context: ContextId) -> Answer<Created>;
    fn dealloc_pd(&mut self, context: ContextId, pd: Handle) -> Answer<()>;

    fn reg_mr(&mut self, context: ContextId, command: &RegMr) -> Answer<MrKeys>;
    /// Gives the region other memory, rights or another domain, under the key it had.
    ///
    /// Checks in the order of `ib_uverbs_rereg_mr` (Linux `uverbs_cmd.c`) and `mlx5_ib_rereg_user_mr`. The
    /// kernel gives a new key where the card cannot change a region in place; this one always can. Earlier
    /// posts through the key fail as if the region had gone. A region with windows bound to it is in use:
    /// IBTA allows no re-registration then. A refusal leaves the region as it was.
    ///
    /// `flags` are `IB_MR_REREG_*` bits: what they do not name stays, whatever the command says of it.
    fn rereg_mr(&mut self, context: ContextId, mr: Handle, flags: u32, command: &RegMr) -> Answer<MrKeys>;
    fn dereg_mr(&mut self, context: ContextId, mr: Handle) -> Answer<()>;

    /// Checks as `ib_uverbs_alloc_mw` of Linux: the domain, then the type.
    fn alloc_mw(&mut self, context: ContextId, command: &AllocMw) -> Answer<Created>;
    /// Removes it, bound or not.
    fn dealloc_mw(&mut self, context: ContextId, mw: Handle) -> Answer<()>;

    fn create_cq(&mut self, context: ContextId, command: &CreateCq) -> Answer<Created>;
    /// Moves it to another ring; returns `cqe` as it is now.
    fn resize_cq(&mut self, context: ContextId, cq: Handle, command: &ResizeCq) -> Answer<u32>;
    /// Destroys it; returns how many events of it the program has read.
    fn destroy_cq(&mut self, context: ContextId, cq: Handle) -> Answer<DestroyedCq>;

    fn create_qp(&mut self, context: ContextId, command: &CreateQp) -> Answer<CreatedQp>;
    fn modify_qp(&mut self, context: ContextId, qp: Handle, command: &ModifyQp) -> Answer<()>;
    fn query_qp(&self, context: ContextId, qp: Handle) -> Answer<QueriedQp>;
    /// Destroys it; returns how many asynchronous events of it the program has read.
    fn destroy_qp(&mut self, context: ContextId, qp: Handle) -> Answer<u32>;

    fn create_srq(&mut self, context: ContextId, command: &CreateSrq) -> Answer<CreatedSrq>;
    /// Arms its limit.
    fn modify_srq(&mut self, context: ContextId, srq: Handle, command: &ModifySrq) -> Answer<()>;
    fn query_srq(&self, context: ContextId, srq: Handle) -> Answer<QueriedSrq>;
    /// Destroys it; returns how many asynchronous events of it the program has read.
    fn destroy_srq(&mut self, context: ContextId, srq: Handle) -> Answer<u32>;

    fn create_ah(&mut self, context: ContextId, pd: Handle, address: &AddressVector) -> Answer<CreatedAh>;
    fn destroy_ah(&mut self, context: ContextId, ah: Handle) -> Answer<()>;
}

impl<M: Memory, C: Carrier> Commands for Nic<M, C> {
    fn open_context(&mut self, device: usize) -> Answer<ContextId> {
        refuse_if!(device >= self.core.ports.devices(), ENODEV, "device {device} does not exist");
        Ok(self.contexts.open(device))
    }

    fn close_context(&mut self, id: ContextId) {
        on_carrier!(self, |core, link, qps| {
            if core.acknowledge_all(link, qps, Some(id)) > 0 {
                link.ring_bells();
            }
        });
        // Users go before what they use: no step can find its object busy.
        for kind in ObjectKind::ALL {
            for handle in self.contexts.handles(id, kind) {
                let done = match kind {
                    ObjectKind::Qp => self.destroy_qp(id, handle).map(drop),
                    ObjectKind::Ah => self.destroy_ah(id, handle),
                    ObjectKind::Cq => self.destroy_cq(id, handle).map(drop),
                    ObjectKind::Srq => self.destroy_srq(id, handle).map(drop),
                    ObjectKind::Mw => self.dealloc_mw(id, handle),
                    ObjectKind::Mr => self.dereg_mr(id, handle),
                    ObjectKind::Uar => self.free_uar(id, handle),
                    ObjectKind::Pd => self.dealloc_pd(id, handle),
                };
                debug_assert_eq!(done, Ok(()));
            }
        }
        self.contexts.close(id);
    }

    fn port_is_down(&self, place: usize) -> bool {
        self.impairment.is_down(place)
    }

    fn alloc_uar(&mut self, id: ContextId, kind: UarKind, registers: Box<dyn Registers>) -> Answer<Created> {
        self.contexts.device(id)?;
        let number = self.core.uars.alloc(id, kind, registers);
        Ok(Created { handle: self.contexts.insert(id, ObjectKind::Uar, number)?, number })
    }

    fn free_uar(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        self.core.uars.free(self.contexts.find(id, ObjectKind::Uar, handle)?, handle)?;
        self.contexts.remove(id, ObjectKind::Uar, handle).map(drop)
    }

    fn alloc_pd(&mut self, id: ContextId) -> Answer<Created> {
        self.contexts.device(id)?;
        self.pds.check_room("protection domains", self.core.capabilities.max_pd)?;
        let number = self.pds.insert(());
        Ok(Created { handle: self.contexts.insert(id, ObjectKind::Pd, number)?, number })
    }

    fn dealloc_pd(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let pd = self.contexts.find(id, ObjectKind::Pd, handle)?;
        self.pds.check_unused(pd, "PD", handle, "regions, windows, queues or address handles")?;
        self.pds.remove(pd);
        self.contexts.remove(id, ObjectKind::Pd, handle).map(drop)
    }

    fn reg_mr(&mut self, id: ContextId, request: &RegMr) -> Answer<MrKeys> {
        let pd = self.contexts.find(id, ObjectKind::Pd, request.pd)?;
        self.core.mkeys.check_room(self.core.capabilities.max_mr)?;
        let region = MemoryRegion::register(&self.core.host.memory, pd, request)?;
        let key = self.core.mkeys.insert(|key| Mkey::Region(MemoryRegion { key, ..region }));
        self.pds.count_user(pd, 1);
        Ok(MrKeys { handle: self.contexts.insert(id, ObjectKind::Mr, key)?, lkey: key, rkey: key })
    }

    fn rereg_mr(&mut self, id: ContextId, handle: Handle, flags: u32, request: &RegMr) -> Answer<MrKeys> {
        mr::check_changes(flags)?;
        let key = self.contexts.find(id, ObjectKind::Mr, handle)?;
        let old = *self.core.mkeys.find(key).ok_or_else(|| CommandError::no_such("MR", handle))?;
        self.core.mkeys.check_unused(key, handle)?;
        let pd = match flags & mr::change::PD {
            0 => old.pd,
            _ => self.contexts.find(id, ObjectKind::Pd, request.pd)?,
        };
        self.core.mkeys.replace(old.reregister(&self.core.host.memory, pd, flags, request)?);
        self.pds.count_user(old.pd, -1);
        self.pds.count_user(pd, 1);
        self.qps.revoke(key);
        Ok(MrKeys { handle, lkey: key, rkey: key })
    }

    fn dereg_mr(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let key = self.contexts.find(id, ObjectKind::Mr, handle)?;
        self.core.mkeys.check_unused(key, handle)?;
        self.contexts.remove(id, ObjectKind::Mr, handle)?;
        self.pds.count_user(self.core.mkeys.remove(key), -1);
        self.qps.revoke(key);
        Ok(())
    }

    fn alloc_mw(&mut self, id: ContextId, request: &AllocMw) -> Answer<Created> {
        let pd = self.contexts.find(id, ObjectKind::Pd, request.pd)?;
        let kind = WindowKind::of(request.kind)?;
        self.core.mkeys.check_room(self.core.capabilities.max_mw)?;
        let number = self.core.mkeys.insert(|key| Mkey::Window(Window { key, pd, kind, bound: None }));
        self.pds.count_user(pd, 1);
        Ok(Created { handle: self.contexts.insert(id, ObjectKind::Mw, number)?, number })
    }

    fn dealloc_mw(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let key = self.contexts.remove(id, ObjectKind::Mw, handle)?;
        self.core.mkeys.close(key, None);
        self.qps.revoke_closed(&mut self.core.mkeys);
        self.pds.count_user(self.core.mkeys.remove(key), -1);
        Ok(())
    }

    fn create_cq(&mut self, id: ContextId, request: &CreateCq) -> Answer<Created> {
        self.contexts.device(id)?;
        let limits = &self.core.capabilities;
        let (place, number) = self.core.cqs.create(&self.core.host.memory, id, request, limits)?;
        Ok(Created { handle: self.contexts.insert(id, ObjectKind::Cq, place)?, number })
    }

    fn resize_cq(&mut self, id: ContextId, handle: Handle, request: &ResizeCq) -> Answer<u32> {
        let place = self.contexts.find(id, ObjectKind::Cq, handle)?;
        let max = self.core.capabilities.max_cqe;
        self.core.cqs.resize(&self.core.host.memory, place, handle, request, max)
    }

    fn destroy_cq(&mut self, id: ContextId, handle: Handle) -> Answer<DestroyedCq> {
        let place = self.contexts.find(id, ObjectKind::Cq, handle)?;
        let destroyed = self.core.cqs.destroy(&mut self.core.host, place, handle)?;
        self.contexts.remove(id, ObjectKind::Cq, handle)?;
        Ok(destroyed)
    }

    fn create_srq(&mut self, id: ContextId, request: &CreateSrq) -> Answer<CreatedSrq> {
        let pd = self.contexts.find(id, ObjectKind::Pd, request.pd)?;
        let limits = &self.core.capabilities;
        let (place, created) = self.core.srqs.create(&self.core.host.memory, id, pd, request, limits)?;
        self.pds.count_user(pd, 1);
        Ok(CreatedSrq { handle: self.contexts.insert(id, ObjectKind::Srq, place)?, ..created })
    }

    fn modify_srq(&mut self, id: ContextId, handle: Handle, request: &ModifySrq) -> Answer<()> {
        let place = self.contexts.find(id, ObjectKind::Srq, handle)?;
        self.core.srqs.modify(&mut self.core.host, place, handle, request)
    }

    fn query_srq(&self, id: ContextId, handle: Handle) -> Answer<QueriedSrq> {
        self.core.srqs.query(self.contexts.find(id, ObjectKind::Srq, handle)?, handle)
    }

    fn destroy_srq(&mut self, id: ContextId, handle: Handle) -> Answer<u32> {
        let place = self.contexts.find(id, ObjectKind::Srq, handle)?;
        let (pd, events_read) = self.core.srqs.destroy(&mut self.core.host, place, handle)?;
        self.pds.count_user(pd, -1);
        self.contexts.remove(id, ObjectKind::Srq, handle)?;
        Ok(events_read)
    }

    fn create_qp(&mut self, id: ContextId, request: &CreateQp) -> Answer<CreatedQp> {
        let pd = self.contexts.find(id, ObjectKind::Pd, request.pd)?;
        let (place, created) = self.core.create_qp(&mut self.qps, &self.contexts, id, pd, request)?;
        self.pds.count_user(pd, 1);
        Ok(CreatedQp { handle: self.contexts.insert(id, ObjectKind::Qp, place)?, ..created })
    }

    fn modify_qp(&mut self, id: ContextId, handle: Handle, request: &ModifyQp) -> Answer<()> {
        if request.ends_connection() {
            self.acknowledge_alone(id, handle);
        }
        let place = self.contexts.find(id, ObjectKind::Qp, handle)?;
        self.core.modify_qp(&mut self.qps, place, handle, request)
    }

    fn query_qp(&self, id: ContextId, handle: Handle) -> Answer<QueriedQp> {
        let qp = self.qps.get(self.contexts.find(id, ObjectKind::Qp, handle)?);
        qp.map(Qp::query).ok_or_else(|| CommandError::no_such("QP", handle))
    }

    fn destroy_qp(&mut self, id: ContextId, handle: Handle) -> Answer<u32> {
        self.acknowledge_alone(id, handle);
        let place = self.contexts.remove(id, ObjectKind::Qp, handle)?;
        let Some(qp) = self.core.destroy_qp(&mut self.qps, place) else { return Ok(0) };
        self.impairment.forget_qp(qp.qpn);
        self.pds.count_user(qp.pd, -1);
        Ok(qp.event_target.withdraw(&mut self.core.host))
    }

    fn create_ah(&mut self, id: ContextId, pd: Handle, vector: &AddressVector) -> Answer<CreatedAh> {
        let pd = self.contexts.find(id, ObjectKind::Pd, pd)?;
        self.ahs.check_room("address handles", self.core.capabilities.max_ah)?;
        let ports = &self.core.ports;
        let from =
            ports.place(self.contexts.device(id)?, vector.port).map_err(|e| refusal!(EINVAL, "{e}"))?;
        ah::check(&ports.configs[from], vector)?;
        let to = ah::resolve(&ports.configs, from, vector.dlid, vector.dgid.as_ref());
        let dmac = to.map_or([0; 6], |port| ports.configs[port].mac);
        let place = self.ahs.insert(pd);
        self.pds.count_user(pd, 1);
        Ok(CreatedAh { handle: self.contexts.insert(id, ObjectKind::Ah, place)?, dmac })
    }

    fn destroy_ah(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let place = self.contexts.remove(id, ObjectKind::Ah, handle)?;
        self.pds.count_user(self.ahs.remove(place), -1);
        Ok(())
    }
}

impl<M: Memory, C: Carrier> Nic<M, C> {
    /// What this queue has executed is acknowledged before it goes.
    fn acknowledge_alone(&mut self, id: ContextId, handle: Handle) {
        let place = self.contexts.find(id, ObjectKind::Qp, handle).ok();
        on_carrier!(self, |core, link, qps| {
            let qp = place.and_then(|place| qps.get_mut(place));
            if qp.is_some_and(|qp| core.acknowledge_alone(link, qp) > 0) {
                link.ring_bells();
            }
        });
    }
}
