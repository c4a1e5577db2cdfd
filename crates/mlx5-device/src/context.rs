//! Contexts: one for each open of a device, with handles for its objects.
//!
//! Each open of a device has its own handle tables. The objects are in the NIC's tables, because a key or a
//! QPN must be unique in the process.

use super::command::{Answer, CommandError, ContextId, Handle};
use super::table::Table;

/// Kinds of object that a context has handles for.
#[derive(Debug, Clone, Copy)]
pub(super) enum ObjectKind {
    Qp,
    Ah,
    Cq,
    Srq,
    Mw,
    Mr,
    Uar,
    Pd,
}

use ObjectKind::*;

impl ObjectKind {
    /// Users before what they use.
    pub(super) const ALL: [ObjectKind; 8] = [Qp, Ah, Cq, Srq, Mw, Mr, Uar, Pd];

    pub(super) fn name(self) -> &'static str {
        ["QP", "AH", "CQ", "SRQ", "MW", "MR", "UAR", "PD"][self as usize]
    }
}

/// One open of a device: its handles by kind, each with the object's place in the NIC's table, or its key.
#[derive(Debug, Default)]
struct Context {
    device: usize,
    handles: [Table<u32>; ObjectKind::ALL.len()],
}

/// Every open of a device.
#[derive(Debug, Default)]
pub(super) struct Contexts(Table<Context>);

impl Contexts {
    pub(super) fn open(&mut self, device: usize) -> ContextId {
        ContextId(self.0.insert(Context { device, ..Context::default() }))
    }

    pub(super) fn close(&mut self, id: ContextId) {
        self.0.remove(id.0);
    }

    fn get(&self, id: ContextId) -> Answer<&Context> {
        self.0.get(id.0).ok_or_else(|| CommandError::no_such("context", id.0))
    }

    pub(super) fn device(&self, id: ContextId) -> Answer<usize> {
        Ok(self.get(id)?.device)
    }

    pub(super) fn of_device(&self, device: usize) -> impl Iterator<Item = ContextId> {
        self.0.iter().filter(move |(_, context)| context.device == device).map(|(id, _)| ContextId(id))
    }

    pub(super) fn handles(&self, id: ContextId, kind: ObjectKind) -> Vec<Handle> {
        let table = self.get(id).map(|context| &context.handles[kind as usize]);
        table.into_iter().flat_map(Table::iter).map(|(handle, _)| handle).collect()
    }

    pub(super) fn find(&self, id: ContextId, kind: ObjectKind, handle: Handle) -> Answer<u32> {
        let place = self.get(id)?.handles[kind as usize].get(handle);
        place.copied().ok_or_else(|| CommandError::no_such(kind.name(), handle))
    }

    pub(super) fn insert(&mut self, id: ContextId, kind: ObjectKind, place: u32) -> Answer<Handle> {
        let context = self.0.get_mut(id.0).ok_or_else(|| CommandError::no_such("context", id.0))?;
        Ok(context.handles[kind as usize].insert(place))
    }

    /// Takes a handle out; returns what it stood for.
    pub(super) fn remove(&mut self, id: ContextId, kind: ObjectKind, handle: Handle) -> Answer<u32> {
        let place = self.find(id, kind, handle)?;
        if let Some(context) = self.0.get_mut(id.0) {
            context.handles[kind as usize].remove(handle);
        }
        Ok(place)
    }
}
