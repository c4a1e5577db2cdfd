//! `REREG_MR`: a region that covers other memory, allows something else, or belongs to another domain, under the key it had.
//!
//! Checks in the order of `ib_uverbs_rereg_mr` (Linux `uverbs_cmd.c`) and `mlx5_ib_rereg_user_mr`. The kernel gives a new key
//! where the card cannot change a region in place; this one always can. What was posted through the key before is dealt with as if the
//! region had gone. A region with windows bound to it is in use: IBTA has none re-registered then. Whatever is refused leaves the region as it was.

use super::command::{CommandError, ContextId, MrKeys, RegMr, ReregMr, refuse_if};
use super::core::Core;
use super::mr;
use crate::memory::Memory;

/// `IB_MR_REREG_*`.
pub mod change {
    /// Start, length and the address by which work requests name it.
    pub const TRANSLATION: u32 = 1;
    pub const PD: u32 = 1 << 1;
    pub const ACCESS: u32 = 1 << 2;
}

impl<M: Memory> Core<M> {
    pub(super) fn rereg_mr(&mut self, id: ContextId, request: &ReregMr) -> Result<MrKeys, CommandError> {
        use change::{ACCESS, PD, TRANSLATION};
        let flags = request.flags;
        refuse_if!(flags == 0, EINVAL, "a re-registration that changes nothing");
        let others = flags & !(TRANSLATION | PD | ACCESS);
        refuse_if!(others != 0, EOPNOTSUPP, "re-registration flags {flags:#x} are not supported");
        let none = || CommandError::no_such("MR", request.mr);
        let key = self.context(id)?.regions.get(request.mr).copied().ok_or_else(none)?;
        let old = *self.regions.find(key).ok_or_else(none)?;
        if old.windows > 0 {
            return Err(CommandError::busy("MR", request.mr, "memory windows"));
        }
        let mut new = old;
        if flags & TRANSLATION != 0 {
            (new.start, new.length, new.iova) = (request.start, request.length, request.iova);
        }
        if flags & ACCESS != 0 {
            new.access = request.access;
        }
        if flags & PD != 0 {
            new.pd = self.find_pd(id, request.pd)?;
        }
        let (start, length, iova, access) = (new.start, new.length, new.iova, new.access);
        mr::check(&self.memory, &RegMr { start, length, iova, pd: request.pd, access })?;
        self.regions.replace(new);
        self.count_pd(old.pd, -1);
        self.count_pd(new.pd, 1);
        self.revoke(key);
        Ok(MrKeys { handle: request.mr, lkey: key, rkey: key })
    }
}
