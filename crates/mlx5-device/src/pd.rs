//! Protection domains: what regions, windows, queues and address handles belong to. One in use is not destroyed.

use super::command::{Answer, CommandError, Handle};
use super::table::Table;

/// Protection domains, each by its number, with the objects that belong to it.
#[derive(Debug, Default)]
pub(super) struct Pds(Table<u32>);

impl Pds {
    pub(super) fn alloc(&mut self, limit: u32) -> Answer<u32> {
        self.0.check_room("protection domains", limit)?;
        Ok(self.0.insert(0))
    }

    pub(super) fn dealloc(&mut self, pd: u32, handle: Handle) -> Answer<()> {
        if self.0.get(pd).is_some_and(|users| *users > 0) {
            return Err(CommandError::busy("PD", handle, "regions, windows, queues or address handles"));
        }
        self.0.remove(pd);
        Ok(())
    }

    /// One user of the PD more, or less.
    pub(super) fn count(&mut self, pd: impl Into<Option<u32>>, change: i32) {
        if let Some(users) = pd.into().and_then(|pd| self.0.get_mut(pd)) {
            *users = users.saturating_add_signed(change);
        }
    }
}
