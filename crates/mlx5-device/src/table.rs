//! Object tables: small integers to objects, as the kernel's handles are.

use super::command::{Answer, CommandError, Handle};

/// A table whose handles are small integers from 0: an object takes the one freed last, else a new one.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    /// How many others use the object in each place; shorter where none was ever used.
    users: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { slots: Vec::new(), free: Vec::new(), users: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Stores an object and returns its handle.
    pub fn insert(&mut self, object: T) -> u32 {
        let handle = self.next();
        if self.free.pop().is_none() {
            self.slots.push(None);
        }
        self.slots[handle as usize] = Some(object);
        handle
    }

    /// The handle that the next object gets.
    pub fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or_else(|| self.bound())
    }

    /// Takes the object out; the handle is free again.
    pub fn remove(&mut self, handle: u32) -> Option<T> {
        let object = self.slots.get_mut(handle as usize)?.take()?;
        self.free.push(handle);
        if let Some(users) = self.users.get_mut(handle as usize) {
            *users = 0;
        }
        Some(object)
    }

    /// One user of the object here more or less; nothing for no place.
    pub fn count_user(&mut self, place: impl Into<Option<u32>>, change: i32) {
        let Some(place) = place.into().map(|place| place as usize) else { return };
        self.users.resize(self.users.len().max(place + 1), 0);
        self.users[place] = self.users[place].saturating_add_signed(change);
    }

    /// Refuses to destroy an object, in words with its `handle` in its context, that `users` still use.
    pub fn check_unused(&self, place: u32, what: &str, handle: Handle, users: &str) -> Answer<()> {
        let used = self.users.get(place as usize).is_some_and(|users| *users > 0);
        if used { Err(CommandError::busy(what, handle, users)) } else { Ok(()) }
    }

    /// The object of this handle.
    pub fn get(&self, handle: u32) -> Option<&T> {
        self.slots.get(handle as usize)?.as_ref()
    }

    /// The object of this handle.
    pub fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.slots.get_mut(handle as usize)?.as_mut()
    }

    /// Objects with their handles, by handle.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(h, o)| o.as_ref().map(|o| (h as u32, o)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Refuses a further object where there are `limit` of `what`.
    pub fn check_room(&self, what: &str, limit: u32) -> Answer<()> {
        if self.len() >= limit as usize { Err(CommandError::exhausted(what, limit)) } else { Ok(()) }
    }

    /// One past the largest handle ever used: handles are below it.
    pub fn bound(&self) -> u32 {
        self.slots.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_handles_are_reused_and_stale_ones_find_nothing() {
        let mut table = Table::default();
        let (a, b) = (table.insert('a'), table.insert('b'));
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!((table.get(a).copied(), table.remove(a), table.len()), (None, None, 1));
        assert_eq!(table.insert('c'), a);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(a, &'c'), (b, &'b')]);
    }
}
