//! Contexts: one for each open of a device, with handles for its objects.
//!
//! Each open of a device has handle tables of its own; the objects live in tables of the NIC, because a key or a QPN must
//! be unique in the process. An object in use is not destroyed (`EBUSY`); closing a context destroys everything in it.

use super::ah::AhCommands;
use super::command::{CommandError, ContextId};
use super::commands::Answer;
use super::core::Core;
use super::cq::CqCommands;
use super::mr::MrCommands;
use super::nic::Nic;
use super::pd::PdCommands;
use super::qp::QpCommands;
use super::srq::SrqCommands;
use super::table::Table;
use super::uar::UarCommands;
use super::window::MwCommands;
use crate::carrier::Carrier;
use crate::errno;
use crate::memory::Memory;

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

pub trait ContextCommands {
    fn open_context(&mut self, device: usize) -> Answer<ContextId>;
    /// A program closed it; everything it left goes with it.
    fn close_context(&mut self, context: ContextId);
    /// Whether the port at this place among all ports is down.
    fn port_is_down(&self, place: usize) -> bool;
}

impl<M: Memory, C: Carrier> ContextCommands for Nic<M, C> {
    fn open_context(&mut self, device: usize) -> Answer<ContextId> {
        if device >= self.core.ports.len() / usize::from(self.core.ports_each) {
            return Err(CommandError {
                errno: errno::ENODEV,
                reason: format!("device {device} does not exist"),
            });
        }
        Ok(ContextId(self.core.contexts.insert(Context { device, ..Context::default() })))
    }

    fn close_context(&mut self, id: ContextId) {
        if self.core.acknowledge_all(&mut self.link, &mut self.qps, Some(id)) > 0 {
            self.link.ring_bells();
        }
        let Some(context) = self.core.contexts.get(id.0) else { return };
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
        self.core.contexts.remove(id.0);
    }

    fn port_is_down(&self, place: usize) -> bool {
        self.core.is_down(place)
    }
}

impl<M: Memory> Core<M> {
    pub(super) fn context(&self, id: ContextId) -> Result<&Context, CommandError> {
        self.contexts.get(id.0).ok_or_else(|| CommandError::no_such("context", id.0))
    }

    pub(super) fn context_mut(&mut self, id: ContextId) -> Result<&mut Context, CommandError> {
        self.contexts.get_mut(id.0).ok_or_else(|| CommandError::no_such("context", id.0))
    }
}
