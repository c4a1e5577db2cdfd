//! Protection domains: what regions, windows, queues and address handles belong to. One in use is not destroyed.

use super::command::{AllocatedPd, CommandError, ContextId, Handle};
use super::commands::Answer;
use super::core::Core;
use super::nic::Nic;
use crate::carrier::Carrier;
use crate::memory::Memory;

/// A protection domain. Its number is its place in the NIC's table.
#[derive(Debug)]
pub(super) struct Pd {
    pub users: u32,
}

pub trait PdCommands {
    fn alloc_pd(&mut self, context: ContextId) -> Answer<AllocatedPd>;
    fn dealloc_pd(&mut self, context: ContextId, pd: Handle) -> Answer<()>;
}

impl<M: Memory, C: Carrier> PdCommands for Nic<M, C> {
    fn alloc_pd(&mut self, id: ContextId) -> Answer<AllocatedPd> {
        self.core.context(id)?;
        let limit = self.core.capabilities.max_pd;
        if self.core.pds.len() >= limit as usize {
            return Err(CommandError::exhausted("protection domains", limit));
        }
        let pdn = self.core.pds.insert(Pd { users: 0 });
        Ok(AllocatedPd { handle: self.core.context_mut(id)?.pds.insert(pdn), pdn })
    }

    fn dealloc_pd(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let pd = self.core.find_pd(id, handle)?;
        if self.core.pds.get(pd).is_some_and(|pd| pd.users > 0) {
            return Err(CommandError::busy("PD", handle, "regions, windows, queues or address handles"));
        }
        self.core.pds.remove(pd);
        self.core.context_mut(id)?.pds.remove(handle);
        Ok(())
    }
}

impl<M: Memory> Core<M> {
    pub(super) fn find_pd(&self, id: ContextId, handle: Handle) -> Result<u32, CommandError> {
        self.context(id)?.pds.get(handle).copied().ok_or_else(|| CommandError::no_such("PD", handle))
    }

    /// One user of the PD more, or less.
    pub(super) fn count_pd(&mut self, pd: u32, change: i32) {
        if let Some(pd) = self.pds.get_mut(pd) {
            pd.users = pd.users.saturating_add_signed(change);
        }
    }
}
