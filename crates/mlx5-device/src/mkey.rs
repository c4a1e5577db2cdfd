//! Keys: what a 32-bit key stands for, memory region or window, and what it opens to a peer.
//!
//! A key is `index << 8 | generation`, as the driver composes mkeys. All 32 bits are compared when a region
//! is used, so the key of a freed region does not reach the next in its place. Windows have keys of the same
//! space, whose last byte the program chooses at each bind.

use std::collections::VecDeque;

use roce::{Access, Region, RegionError};

use super::command::{Answer, CommandError, Handle};
use super::mr::MemoryRegion;
use super::window::{Bound, UmrRequest, Window, WindowKind};

/// First index of a key. Keys 0 and `MLX5_INVALID_LKEY`, and a few around them, belong to no region.
const FIRST_INDEX: u32 = 0x10;

/// Every key of the NIC: its regions and windows.
#[derive(Debug, Default)]
pub(super) struct Mkeys {
    slots: Vec<Slot>,
    // Oldest first, so that a key value comes back as late as possible.
    free: VecDeque<u32>,
    used: u32,
    /// Type-2 windows that are bound, for queues that go to ask whether any can be theirs.
    bound_to_queues: u32,
    /// Keys of windows that the running queue or a command closed: other queues lose them before they run.
    revoked: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    /// Windows bound to the region here.
    windows: u32,
    mkey: Option<Mkey>,
}

/// What an index stands for.
#[derive(Debug)]
pub(super) enum Mkey {
    Region(MemoryRegion),
    Window(Window),
}

impl Mkeys {
    fn slot(&self, key: u32) -> Option<&Slot> {
        self.slots.get((key >> 8).checked_sub(FIRST_INDEX)? as usize)
    }

    fn slot_mut(&mut self, key: u32) -> Option<&mut Slot> {
        self.slots.get_mut((key >> 8).checked_sub(FIRST_INDEX)? as usize)
    }

    /// The region of exactly this key.
    #[inline]
    pub fn find(&self, key: u32) -> Option<&MemoryRegion> {
        match &self.slot(key)?.mkey {
            Some(Mkey::Region(region)) if region.key == key => Some(region),
            _ => None,
        }
    }

    /// Refuses to change a region in use.
    pub(super) fn check_unused(&self, key: u32, handle: Handle) -> Answer<()> {
        let busy = self.slot(key).is_some_and(|slot| slot.windows > 0);
        if busy { Err(CommandError::busy("MR", handle, "memory windows")) } else { Ok(()) }
    }

    /// The window with this index, whatever the last byte of `key`.
    fn window(&self, key: u32) -> Option<&Window> {
        if let Some(Mkey::Window(window)) = &self.slot(key)?.mkey { Some(window) } else { None }
    }

    fn window_mut(&mut self, key: u32) -> Option<&mut Window> {
        if let Some(Mkey::Window(window)) = &mut self.slot_mut(key)?.mkey { Some(window) } else { None }
    }

    /// [`MemoryRegion::translate`] through the key: what a queue's own requests may use.
    pub fn translate(&self, key: u32, pd: u32, va: u64, len: u64, need: Access) -> Result<u64, RegionError> {
        self.find(key).ok_or(RegionError::UnknownKey { key })?.translate(pd, va, len, need)
    }

    /// Refuses a further key where there are `limit`.
    pub(super) fn check_room(&self, limit: u32) -> Answer<()> {
        if self.used >= limit {
            return Err(CommandError::exhausted("memory regions and windows", limit));
        }
        Ok(())
    }

    /// Gives a free index to what is made with its key.
    pub(super) fn insert(&mut self, make: impl FnOnce(u32) -> Mkey) -> u32 {
        // A key returns after 256 registrations in its place, and places rotate through 64 free ones or more.
        let index = match self.free.pop_front() {
            Some(index) if self.free.len() >= 64 || self.slots.len() >= 1 << 23 => index,
            taken => {
                self.free.extend(taken);
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[index as usize];
        let key = (index + FIRST_INDEX) << 8 | u32::from(slot.generation);
        slot.mkey = Some(make(key));
        self.used += 1;
        key
    }

    /// Puts a region in the place of the one that has its key.
    pub(super) fn replace(&mut self, region: MemoryRegion) {
        if let Some(slot) = self.slot_mut(region.key) {
            slot.mkey = Some(Mkey::Region(region));
        }
    }

    /// Removes a region or window; its place's next key follows its last one. Returns its protection domain.
    pub(super) fn remove(&mut self, key: u32) -> Option<u32> {
        let slot = self.slot_mut(key)?;
        let (last, pd) = match slot.mkey.as_ref()? {
            Mkey::Region(region) if region.key == key => (key, region.pd),
            Mkey::Window(window) => (window.key, window.pd),
            Mkey::Region(_) => return None,
        };
        *slot = Slot { generation: (last as u8).wrapping_add(1), ..Slot::default() };
        self.free.push_back((key >> 8) - FIRST_INDEX);
        self.used -= 1;
        Some(pd)
    }

    // Windows.

    /// What a key opens to a peer, region or window.
    #[inline(always)]
    pub(super) fn grant(
        &self,
        rkey: u32,
        pd: u32,
        qpn: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<Region, RegionError> {
        let (address, rights) = if let Some(region) = self.find(rkey) {
            (region.translate(pd, va, len, need)?, region.access)
        } else {
            let window = self.window(rkey).filter(|window| window.key == rkey);
            window.ok_or(RegionError::UnknownKey { key: rkey })?.translate(pd, qpn, va, len, need)?
        };
        Ok(Region { key: rkey, va, len, address, rights: Access(rights) })
    }

    /// Whether a SEND to queue `qpn` may close the key: a type-2 window that the queue has bound. Regions
    /// never: those of `ibv_reg_mr` are made without that right.
    pub(super) fn may_invalidate(&self, rkey: u32, qpn: u32) -> bool {
        let open = |window: &Window| window.key == rkey && window.bound.is_some_and(|b| b.qpn == Some(qpn));
        self.window(rkey).is_some_and(open)
    }

    fn bind(&mut self, key: u32, bound: Bound) {
        let Some(window) = self.window_mut(key) else { return };
        window.bound = Some(bound);
        self.bound_to_queues += u32::from(bound.qpn.is_some());
        if let Some(slot) = self.slot_mut(bound.region) {
            slot.windows += 1;
        }
    }

    /// Closes a window; returns what it opened.
    pub(super) fn unbind(&mut self, key: u32) -> Option<Bound> {
        let bound = self.window_mut(key)?.bound.take()?;
        self.bound_to_queues -= u32::from(bound.qpn.is_some());
        if let Some(slot) = self.slot_mut(bound.region) {
            slot.windows -= 1;
        }
        Some(bound)
    }

    /// A queue goes: what it opened is closed.
    pub(super) fn release_windows(&mut self, qpn: u32) {
        if self.bound_to_queues == 0 {
            return;
        }
        for index in FIRST_INDEX..FIRST_INDEX + self.slots.len() as u32 {
            let bound = self.window(index << 8).and_then(|window| window.bound);
            if bound.is_some_and(|bound| bound.qpn == Some(qpn)) {
                self.unbind(index << 8);
            }
        }
    }

    /// Performs a UMR of queue `qpn` in domain `pd` on a window. Returns the window's previous key, which
    /// answers nothing any more. Error: why it is refused; nothing is changed.
    pub(super) fn change_window(&mut self, pd: u32, qpn: u32, umr: &UmrRequest) -> Result<u32, String> {
        let (key, kind) = (umr.key, umr.kind);
        let window = self.window(key).copied();
        let window = window.filter(|window| window.pd == pd && window.kind == kind);
        let missing =
            || format!("key {key:#x} is no window of type {} in this protection domain", kind as u8);
        let window = window.ok_or_else(missing)?;
        let owner = window.bound.and_then(|bound| bound.qpn);
        let bound = match &umr.opens {
            Some(_) if kind == WindowKind::Two && window.bound.is_some() => {
                return Err(format!("window {key:#x} of type 2 is bound; invalidate it first"));
            }
            Some(opens) => {
                let unknown = RegionError::UnknownKey { key: opens.1.mkey };
                let region = self.find(opens.1.mkey).ok_or(unknown);
                let piece = region.and_then(|region| umr.piece(opens, region, (pd, qpn)));
                Some(piece.map_err(|error| error.to_string())?)
            }
            // Closing a type-2 window is for the queue that opened it.
            None if kind == WindowKind::Two && owner != Some(qpn) => {
                return Err(format!(
                    "window {key:#x} of type 2 is not bound by this queue; its owner closes it"
                ));
            }
            None => None,
        };
        self.close(window.key, Some(qpn));
        if let Some(window) = self.window_mut(window.key) {
            window.key = window.key & !0xff | u32::from(umr.tag);
        }
        if let Some(bound) = bound {
            self.bind(window.key, bound);
        }
        Ok(window.key)
    }

    /// Closes a window: unanswered requests through it are refused. `owner` does so itself if it bound the
    /// window; otherwise all queues lose the key by [`Mkeys::poll_revoked`].
    pub(super) fn close(&mut self, key: u32, owner: Option<u32>) {
        let Some(key) = self.window(key).map(|window| window.key) else { return };
        let Some(bound) = self.unbind(key) else { return };
        if bound.qpn.is_none() || bound.qpn != owner {
            self.revoked.push(key);
        }
    }

    /// The next key that no queue may use any more.
    pub(super) fn poll_revoked(&mut self) -> Option<u32> {
        self.revoked.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, length: u64, iova: u64, access: u32) -> MemoryRegion {
        MemoryRegion { key: 0, pd: 7, start, length, iova, access }
    }

    fn insert(mkeys: &mut Mkeys, region: MemoryRegion) -> u32 {
        mkeys.insert(|key| Mkey::Region(MemoryRegion { key, ..region }))
    }

    #[test]
    fn access_is_judged_by_domain_bounds_and_rights() {
        let mut mkeys = Mkeys::default();
        let key =
            insert(&mut mkeys, region(0x1000, 0x100, 0x9000, Access::LOCAL_WRITE.0 | Access::REMOTE_READ.0));
        let read = Access::REMOTE_READ;
        for (name, k, pd, va, len, need, wanted) in [
            ("whole", key, 7, 0x9000, 0x100, read, Some(0x1000)),
            ("inner", key, 7, 0x9010, 1, read, Some(0x1010)),
            ("empty at the end", key, 7, 0x9100, 0, read, Some(0x1100)),
            ("one past", key, 7, 0x9100, 1, read, None),
            ("one before", key, 7, 0x8fff, 1, read, None),
            ("by its address instead of iova", key, 7, 0x1000, 1, read, None),
            ("length wraps", key, 7, 0x9010, u64::MAX, read, None),
            ("other domain", key, 8, 0x9000, 1, read, None),
            ("no right", key, 7, 0x9000, 1, Access::REMOTE_WRITE, None),
            ("other generation", key + 1, 7, 0x9000, 1, read, None),
            ("invalid lkey", mlx5_layout::recv_wqe::INVALID_LKEY, 7, 0x9000, 1, read, None),
        ] {
            assert_eq!(mkeys.translate(k, pd, va, len, need).ok(), wanted, "{name}");
        }
    }

    #[test]
    fn freed_key_never_reaches_the_next_region() {
        let mut mkeys = Mkeys::default();
        let mut old = Vec::new();
        for round in 0..300 {
            let key = insert(&mut mkeys, region(round, 1, round, 0));
            assert!(!old.contains(&key), "round {round} reused key {key:#x}");
            assert!(mkeys.remove(key).is_some());
            assert!(mkeys.find(key).is_none() && mkeys.remove(key).is_none());
            old.push(key);
        }
        assert_eq!(mkeys.used, 0);
    }
}
