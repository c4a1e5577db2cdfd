//! Memory regions: what one covers, and whether an access through it is allowed.
//!
//! Regions are checked as in IBTA vol. 1 §10.6: protection domain, bounds by the region's `iova`, rights.

use roce::{Access, RegionError};

use super::command::{Answer, CommandError, RegMr, refuse_if};
use crate::memory::Memory;

/// `IBV_ACCESS_*` bits (`ib_user_ioctl_verbs.h`) that go together.
mod access {
    use roce::Access;

    /// Bits that a driver may ignore (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: u32 = 0x3ff0_0000;
    /// They need capabilities that this NIC does not report: on-demand paging, and the two kinds of flush.
    pub const UNSUPPORTED: u32 = Access::ON_DEMAND.0 | 1 << 8 | 1 << 9;
    /// Supported bits. Huge pages are a hint; where addresses count from 0, `iova` already says so.
    pub const KNOWN: u32 = Access::LOCAL_WRITE.0
        | super::REMOTE.0
        | Access::MW_BIND.0
        | Access::ZERO_BASED.0
        | Access::HUGETLB.0
        | OPTIONAL;
}

/// What a peer may be allowed to do.
pub(super) const REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

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
}

impl MemoryRegion {
    /// A region of domain `pd`, without a key yet, checked as kernel and card do before any table is touched.
    pub(super) fn register<M: Memory>(memory: &M, pd: u32, request: &RegMr) -> Answer<MemoryRegion> {
        let RegMr { start, length, iova, access, .. } = *request;
        check_access(access)?;
        let apart = start % PAGE != iova % PAGE;
        refuse_if!(apart, EINVAL, "start {start:#x} and iova {iova:#x} differ in their page offset");
        let end = start.checked_add(length).filter(|_| iova.checked_add(length).is_some());
        refuse_if!(end.is_none(), EINVAL, "{length:#x} bytes at {start:#x} wrap around");
        // `ib_umem_get` counts pages and refuses none; an unaligned empty region spans one page.
        let empty = length == 0 && start % PAGE == 0;
        refuse_if!(empty, EINVAL, "empty region at page boundary {start:#x}");
        memory
            .probe(start, length.max(1), access & Access::LOCAL_WRITE.0 != 0)
            .map_err(CommandError::fault(format_args!("region {start:#x}+{length:#x}")))?;
        Ok(MemoryRegion { key: 0, pd, start, length, iova, access })
    }

    /// The region after a re-registration of what `flags` name, in protection domain `pd`, with the same key.
    pub(super) fn reregister<M: Memory>(
        &self,
        memory: &M,
        pd: u32,
        flags: u32,
        request: &RegMr,
    ) -> Answer<MemoryRegion> {
        let mut new = *request;
        if flags & change::TRANSLATION == 0 {
            (new.start, new.length, new.iova) = (self.start, self.length, self.iova);
        }
        if flags & change::ACCESS == 0 {
            new.access = self.access;
        }
        Ok(MemoryRegion { key: self.key, ..Self::register(memory, pd, &new)? })
    }

    /// The application's address of `va`, when `len` bytes from there may be used so.
    #[inline(always)]
    pub fn translate(&self, pd: u32, va: u64, len: u64, need: Access) -> Result<u64, RegionError> {
        if self.pd != pd {
            return Err(RegionError::ProtectionDomain { key: self.key });
        }
        let inside = va.checked_sub(self.iova).filter(|o| *o <= self.length && len <= self.length - *o);
        let Some(offset) = inside else {
            return Err(self.out_of_bounds(va, len));
        };
        if self.access & need.0 != need.0 {
            return Err(RegionError::AccessDenied { key: self.key, need: need.0 });
        }
        Ok(self.start.wrapping_add(offset))
    }

    #[cold]
    pub(super) fn out_of_bounds(&self, va: u64, len: u64) -> RegionError {
        RegionError::OutOfBounds { key: self.key, va, len, start: self.iova, length: self.length }
    }
}

/// Checks `IBV_ACCESS_*` bits of a registration, in the order of the kernel's `ib_check_mr_access`.
pub fn check_access(flags: u32) -> Answer<()> {
    let writes = flags & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
    let unwritable = writes && flags & Access::LOCAL_WRITE.0 == 0;
    refuse_if!(unwritable, EINVAL, "access {flags:#x}: remote write or atomic needs local write");
    let unknown = flags & !(access::KNOWN | access::UNSUPPORTED) != 0;
    refuse_if!(unknown, EINVAL, "access flags {:#x} do not exist", flags & !access::KNOWN);
    let unsupported = flags & access::UNSUPPORTED;
    refuse_if!(unsupported != 0, EOPNOTSUPP, "access flags {unsupported:#x} are not supported");
    Ok(())
}

/// Checks what a re-registration is to change.
pub(super) fn check_changes(flags: u32) -> Answer<()> {
    refuse_if!(flags == 0, EINVAL, "a re-registration that changes nothing");
    let others = flags & !(change::TRANSLATION | change::PD | change::ACCESS);
    refuse_if!(others != 0, EOPNOTSUPP, "re-registration flags {flags:#x} are not supported");
    Ok(())
}
