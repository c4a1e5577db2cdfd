//! The thread domain that brings a register of one's own.

use std::ptr::NonNull;

use super::device::Pd;
use crate::result::raw;
use crate::result::{Result, object};

/// A thread domain and the protection domain that brings it to a queue pair.
#[derive(Debug)]
pub(super) struct ParentDomain {
    pub(super) pd: NonNull<raw::ibv_pd>,
    td: NonNull<raw::ibv_td>,
    _of: Pd,
}

impl ParentDomain {
    pub(super) fn new(pd: &Pd) -> Result<Self> {
        let context = pd.context().raw();
        // SAFETY: the context is live.
        let td = unsafe { object::alloc_td(context) }.map_err(|e| e.of(pd.context().name()))?;
        // SAFETY: all three are live and of this context.
        match unsafe { object::alloc_parent_domain(context, pd.raw(), td) } {
            Ok(parent) => Ok(Self { pd: parent, td, _of: pd.clone() }),
            Err(error) => {
                // SAFETY: no parent domain was made.
                let _ = unsafe { object::dealloc_td(td) };
                Err(error)
            }
        }
    }
}

impl Drop for ParentDomain {
    fn drop(&mut self) {
        // SAFETY: the queue pair that keeps this destroyed itself before.
        let _ = unsafe { object::dealloc_pd(self.pd) };
        // SAFETY: the parent domain is gone.
        let _ = unsafe { object::dealloc_td(self.td) };
    }
}
