//! Keys: what a 32-bit key stands for, memory region or window, and whether an access through it is allowed.
//!
//! A key is `index << 8 | generation`, as the driver composes mkeys; the whole 32 bits are compared on every use, so a key
//! kept after its region was freed does not reach the next one in the same place. Regions are checked as IBTA vol. 1
//! §10.6 says: protection domain, bounds by the region's own address (`iova`), rights. Windows (`window.rs`) have keys of the
//! same space, whose last byte the program chooses at each bind.

use std::collections::VecDeque;

use roce::{Access, RegionError};

use super::command::{CommandError, ContextId, Handle, MrKeys, RegMr, ReregMr, refuse_if};
use super::commands::Answer;
use super::nic::Nic;
use super::window::Window;
use crate::carrier::Carrier;
use crate::errno;
use crate::memory::Memory;

/// `IBV_ACCESS_*` bits (`ib_user_ioctl_verbs.h`).
pub mod access {
    /// The NIC may write for local requests.
    pub const LOCAL_WRITE: u32 = 1;
    /// RDMA WRITE from a peer.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// RDMA READ from a peer.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Atomics from a peer.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Memory windows may be bound.
    pub const MW_BIND: u32 = 1 << 4;
    /// Addresses count from 0; libibverbs passes it through, `iova` already says it.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// On-demand paging: not done here.
    pub const ON_DEMAND: u32 = 1 << 6;
    /// Huge pages underneath: a hint.
    pub const HUGETLB: u32 = 1 << 7;
    /// Bits that a driver may ignore (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: u32 = 0x3ff0_0000;
    /// Optional: bytes of one WRITE may become visible in any order.
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    /// They need capabilities that this NIC does not report: on-demand paging, and the two kinds of flush.
    pub const UNSUPPORTED: u32 = ON_DEMAND | 1 << 8 | 1 << 9;
    /// What this NIC knows.
    pub const KNOWN: u32 =
        LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | MW_BIND | ZERO_BASED | HUGETLB | OPTIONAL;
    /// What a peer may be allowed to do.
    pub const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// The lkey that ends a receive list (`MLX5_INVALID_LKEY`). No region gets it.
pub const INVALID_LKEY: u32 = 0x100;

/// First index of a key. Keys 0 and [`INVALID_LKEY`], and a few around them, belong to no region.
const FIRST_INDEX: u32 = 0x10;

const PAGE: u64 = 4096;

/// `IB_MR_REREG_*`.
pub mod change {
    /// Start, length and the address by which work requests name it.
    pub const TRANSLATION: u32 = 1;
    pub const PD: u32 = 1 << 1;
    pub const ACCESS: u32 = 1 << 2;
}

/// One registration.
#[derive(Debug, Clone, Copy)]
pub struct MemoryRegion {
    /// Its key, local and remote.
    pub key: u32,
    /// The context that registered it.
    pub context: ContextId,
    /// Protection domain, number of the NIC.
    pub pd: u32,
    /// First byte, as address of the application.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// First byte, as work requests name it.
    pub iova: u64,
    /// `IBV_ACCESS_*` bits.
    pub access: u32,
    /// Windows bound to it.
    pub windows: u32,
}

impl MemoryRegion {
    /// The application's address of `va`, when `len` bytes from there may be used so.
    pub fn translate(&self, pd: u32, va: u64, len: u64, need: Access) -> Result<u64, RegionError> {
        if self.pd != pd {
            return Err(RegionError::ProtectionDomain { key: self.key });
        }
        let inside = va.checked_sub(self.iova).filter(|o| *o <= self.length && len <= self.length - *o);
        let Some(offset) = inside else {
            return Err(RegionError::OutOfBounds { key: self.key, va, len });
        };
        if self.access & need.0 != need.0 {
            return Err(RegionError::AccessDenied { key: self.key, need: need.0 });
        }
        Ok(self.start.wrapping_add(offset))
    }

    /// Whether bytes of one WRITE may become visible in any order.
    pub fn relaxed(&self) -> bool {
        self.access & access::RELAXED_ORDERING != 0
    }
}

/// Every key of the NIC: its regions and windows.
#[derive(Debug, Default)]
pub struct Regions {
    slots: Vec<Slot>,
    // Oldest first, so that a key value comes back as late as possible.
    free: VecDeque<u32>,
    used: u32,
    /// Type-2 windows that are bound, for queues that go to ask whether any can be theirs.
    pub(super) bound_to_queues: u32,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u8,
    mkey: Mkey,
}

/// What an index stands for.
#[derive(Debug, Default)]
enum Mkey {
    #[default]
    Nothing,
    Region(MemoryRegion),
    Window(Window),
}

impl Regions {
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
            Mkey::Region(region) if region.key == key => Some(region),
            _ => None,
        }
    }

    pub(super) fn find_mut(&mut self, key: u32) -> Option<&mut MemoryRegion> {
        match &mut self.slot_mut(key)?.mkey {
            Mkey::Region(region) if region.key == key => Some(region),
            _ => None,
        }
    }

    /// The window with this index, whatever the last byte of `key`.
    pub(super) fn window(&self, key: u32) -> Option<&Window> {
        match &self.slot(key)?.mkey {
            Mkey::Window(window) => Some(window),
            _ => None,
        }
    }

    pub(super) fn window_mut(&mut self, key: u32) -> Option<&mut Window> {
        match &mut self.slot_mut(key)?.mkey {
            Mkey::Window(window) => Some(window),
            _ => None,
        }
    }

    pub(super) fn windows(&self) -> impl Iterator<Item = &Window> {
        self.slots.iter().filter_map(|slot| match &slot.mkey {
            Mkey::Window(window) => Some(window),
            _ => None,
        })
    }

    /// [`MemoryRegion::translate`] through the key: what a queue's own requests may use.
    pub fn translate(&self, key: u32, pd: u32, va: u64, len: u64, need: Access) -> Result<u64, RegionError> {
        self.find(key).ok_or(RegionError::UnknownKey { key })?.translate(pd, va, len, need)
    }

    /// Number of keys in use.
    pub fn len(&self) -> u32 {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub(super) fn insert(&mut self, region: MemoryRegion) -> u32 {
        self.place(|key| Mkey::Region(MemoryRegion { key, ..region }))
    }

    pub(super) fn insert_window(&mut self, window: Window) -> u32 {
        self.place(|key| Mkey::Window(Window { key, ..window }))
    }

    /// Gives a free index to what is made with its key.
    fn place(&mut self, make: impl FnOnce(u32) -> Mkey) -> u32 {
        // A key returns after 256 registrations in its place, and places rotate through at least 64 free ones.
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
        slot.mkey = make(key);
        self.used += 1;
        key
    }

    /// Puts a region in the place of the one that has its key.
    pub(super) fn replace(&mut self, region: MemoryRegion) {
        if let Some(place) = self.find_mut(region.key) {
            *place = region;
        }
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<MemoryRegion> {
        let region = *self.find(key)?;
        self.vacate(key);
        Some(region)
    }

    /// Takes a window out; the key that follows in its place is the next after its last one.
    pub(super) fn remove_window(&mut self, key: u32) -> Option<Window> {
        let window = *self.window(key)?;
        self.vacate(window.key);
        Some(window)
    }

    fn vacate(&mut self, key: u32) {
        let Some(slot) = self.slot_mut(key) else { return };
        *slot = Slot { generation: (key as u8).wrapping_add(1), mkey: Mkey::Nothing };
        self.free.push_back((key >> 8) - FIRST_INDEX);
        self.used -= 1;
    }
}

/// Checks `IBV_ACCESS_*` bits of a registration, in the order of the kernel's `ib_check_mr_access`.
pub fn check_access(flags: u32) -> Result<(), CommandError> {
    let refuse = |errno, reason: String| Err(CommandError { errno, reason });
    if flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 && flags & access::LOCAL_WRITE == 0 {
        return refuse(errno::EINVAL, format!("access {flags:#x}: remote write or atomic needs local write"));
    }
    if flags & !(access::KNOWN | access::UNSUPPORTED) != 0 {
        return refuse(errno::EINVAL, format!("access flags {:#x} do not exist", flags & !access::KNOWN));
    }
    if flags & access::UNSUPPORTED != 0 {
        return refuse(
            errno::EOPNOTSUPP,
            format!("access flags {:#x} are not supported", flags & access::UNSUPPORTED),
        );
    }
    Ok(())
}

/// Checks a registration as the kernel and the card do, before any table is touched.
pub(super) fn check<M: Memory>(memory: &M, request: &RegMr) -> Result<(), CommandError> {
    let RegMr { start, length, iova, access: flags, .. } = *request;
    let refuse = |errno, reason: String| Err(CommandError { errno, reason });
    check_access(flags)?;
    if start % PAGE != iova % PAGE {
        return refuse(
            errno::EINVAL,
            format!("start {start:#x} and iova {iova:#x} differ in their page offset"),
        );
    }
    let ends = (start.checked_add(length), iova.checked_add(length));
    let (Some(end), Some(_)) = ends else {
        return refuse(errno::EINVAL, format!("{length:#x} bytes at {start:#x} wrap around"));
    };
    if length == 0 && end % PAGE == 0 {
        // `ib_umem_get` counts pages and refuses none; an unaligned empty region spans one page.
        return refuse(errno::EINVAL, format!("empty region at page boundary {start:#x}"));
    }
    let write = flags & access::LOCAL_WRITE != 0;
    memory.probe(start, length.max(1), write).map_err(|fault| CommandError {
        errno: errno::EFAULT,
        reason: format!("region {start:#x}+{length:#x}: {fault}"),
    })
}

pub trait MrCommands {
    fn reg_mr(&mut self, context: ContextId, command: &RegMr) -> Answer<MrKeys>;
    /// The region covers other memory, allows something else, or belongs to another domain, under the key it had.
    ///
    /// Checks in the order of `ib_uverbs_rereg_mr` (Linux `uverbs_cmd.c`) and `mlx5_ib_rereg_user_mr`. The kernel gives a new key
    /// where the card cannot change a region in place; this one always can. What was posted through the key before is dealt with
    /// as if the region had gone. A region with windows bound to it is in use: IBTA has none re-registered then. Whatever is
    /// refused leaves the region as it was.
    fn rereg_mr(&mut self, context: ContextId, command: &ReregMr) -> Answer<MrKeys>;
    fn dereg_mr(&mut self, context: ContextId, mr: Handle) -> Answer<()>;
}

impl<M: Memory, C: Carrier> MrCommands for Nic<M, C> {
    fn reg_mr(&mut self, id: ContextId, request: &RegMr) -> Answer<MrKeys> {
        let pd = self.core.find_pd(id, request.pd)?;
        let limit = self.core.capabilities.max_mr;
        if self.core.regions.len() >= limit {
            return Err(CommandError::exhausted("memory regions and windows", limit));
        }
        check(&self.core.memory, request)?;
        let RegMr { start, length, iova, access, .. } = *request;
        let region = MemoryRegion { key: 0, context: id, pd, start, length, iova, access, windows: 0 };
        let key = self.core.regions.insert(region);
        self.core.count_pd(pd, 1);
        Ok(MrKeys { handle: self.core.context_mut(id)?.regions.insert(key), lkey: key, rkey: key })
    }

    fn rereg_mr(&mut self, id: ContextId, request: &ReregMr) -> Answer<MrKeys> {
        use change::{ACCESS, PD, TRANSLATION};
        let flags = request.flags;
        refuse_if!(flags == 0, EINVAL, "a re-registration that changes nothing");
        let others = flags & !(TRANSLATION | PD | ACCESS);
        refuse_if!(others != 0, EOPNOTSUPP, "re-registration flags {flags:#x} are not supported");
        let none = || CommandError::no_such("MR", request.mr);
        let key = self.core.context(id)?.regions.get(request.mr).copied().ok_or_else(none)?;
        let old = *self.core.regions.find(key).ok_or_else(none)?;
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
            new.pd = self.core.find_pd(id, request.pd)?;
        }
        let (start, length, iova, access) = (new.start, new.length, new.iova, new.access);
        check(&self.core.memory, &RegMr { start, length, iova, pd: request.pd, access })?;
        self.core.regions.replace(new);
        self.core.count_pd(old.pd, -1);
        self.core.count_pd(new.pd, 1);
        self.qps.revoke(key);
        Ok(MrKeys { handle: request.mr, lkey: key, rkey: key })
    }

    fn dereg_mr(&mut self, id: ContextId, handle: Handle) -> Answer<()> {
        let key = self.core.context(id)?.regions.get(handle).copied();
        let key = key.ok_or_else(|| CommandError::no_such("MR", handle))?;
        if self.core.regions.find(key).is_some_and(|region| region.windows > 0) {
            return Err(CommandError::busy("MR", handle, "memory windows"));
        }
        self.core.context_mut(id)?.regions.remove(handle);
        if let Some(region) = self.core.regions.remove(key) {
            self.core.count_pd(region.pd, -1);
            self.qps.revoke(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, length: u64, iova: u64, access: u32) -> MemoryRegion {
        MemoryRegion { key: 0, context: ContextId(0), pd: 7, start, length, iova, access, windows: 0 }
    }

    #[test]
    fn access_is_judged_by_domain_bounds_and_rights() {
        let mut regions = Regions::default();
        let key = regions.insert(region(0x1000, 0x100, 0x9000, access::LOCAL_WRITE | access::REMOTE_READ));
        let read = Access(access::REMOTE_READ);
        for (name, k, pd, va, len, need, wanted) in [
            ("whole", key, 7, 0x9000, 0x100, read, Some(0x1000)),
            ("inner", key, 7, 0x9010, 1, read, Some(0x1010)),
            ("empty at the end", key, 7, 0x9100, 0, read, Some(0x1100)),
            ("one past", key, 7, 0x9100, 1, read, None),
            ("one before", key, 7, 0x8fff, 1, read, None),
            ("by its address instead of iova", key, 7, 0x1000, 1, read, None),
            ("length wraps", key, 7, 0x9010, u64::MAX, read, None),
            ("other domain", key, 8, 0x9000, 1, read, None),
            ("no right", key, 7, 0x9000, 1, Access(access::REMOTE_WRITE), None),
            ("other generation", key + 1, 7, 0x9000, 1, read, None),
            ("invalid lkey", INVALID_LKEY, 7, 0x9000, 1, read, None),
        ] {
            assert_eq!(regions.translate(k, pd, va, len, need).ok(), wanted, "{name}");
        }
    }

    #[test]
    fn freed_key_never_reaches_the_next_region() {
        let mut regions = Regions::default();
        let mut old = Vec::new();
        for round in 0..300 {
            let key = regions.insert(region(round, 1, round, 0));
            assert!(!old.contains(&key), "round {round} reused key {key:#x}");
            assert!(regions.remove(key).is_some());
            assert!(regions.find(key).is_none() && regions.remove(key).is_none());
            old.push(key);
        }
        assert_eq!(regions.len(), 0);
    }
}
