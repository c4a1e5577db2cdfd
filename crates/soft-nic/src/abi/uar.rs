//! UAR pages: UAR.ALLOC, UAR.DESTROY, and what `mmap` of a device file gives.
//!
//! Only the dynamic model: the server picks the offset that the library maps, and the page lies there in the
//! file of pages. Of the fixed offsets of `enum mlx5_ib_mmap_cmd` only the two clock pages remain. The others
//! are refused as a kernel refuses an unknown command.

use mlx5_device::UarKind;
use mlx5_device::command::refuse_if;
use mlx5_device::{Answer, Commands};

use super::attributes::{Kind, kernel, must, out, specs};
use super::clock::{MMAP_CLOCK_INFO, MMAP_CORE_CLOCK, offset_of};
use super::server::{Call, OpenFile};
use crate::os::UarPage;
use crate::os::system::PAGE;

specs! {
    ALLOC {
        must HANDLE = 0x1000, Kind::NewHandle;
        must TYPE = 0x1001, Kind::In { min: 0, max: 8 };
        must MMAP_OFFSET = 0x1002, out(8);
        must MMAP_LENGTH = 0x1003, out(4);
        must PAGE_ID = 0x1004, out(4);
    }
}

/// UAR.ALLOC: type 0 is a BlueFlame page, 1 a page for doorbells only.
pub(super) fn alloc<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let (context, command) = (call.context()?, call.command);
    let kind = command.number(TYPE).unwrap_or(0);
    refuse_if!(kind > 1, EOPNOTSUPP, "UAR.ALLOC: type {kind}");
    let page = UarPage::new(&call.server.pages).map_err(|error| kernel(&error))?;
    let offset = page.offset();
    let kind = if kind == 0 { UarKind::BlueFlame } else { UarKind::NonCached };
    let made = call.nic()?.alloc_uar(context, kind, Box::new(page))?;
    let write = || {
        command.write(MMAP_OFFSET, &offset.to_ne_bytes())?;
        command.write(MMAP_LENGTH, &(PAGE as u32).to_ne_bytes())?;
        command.write(PAGE_ID, &made.number.to_ne_bytes())?;
        command.give(HANDLE, u64::from(made.handle))
    };
    call.server.or_undo(write, |nic| nic.free_uar(context, made.handle))?;
    call.file.uars.insert(made.handle, offset);
    Ok(())
}

pub(super) fn destroy<D: Commands>(call: &mut Call<'_, D>) -> Answer<()> {
    let handle = call.command.expect_handle(HANDLE)?;
    call.nic()?.free_uar(call.context()?, handle)?;
    call.file.uars.remove(&handle);
    Ok(())
}

/// What lies in the file of pages at an offset that a program maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    Uar,
    /// A clock page; never writable.
    Clock,
}

/// What an `mmap` of a device file at this offset maps.
pub fn mapping(file: &OpenFile, offset: u64, length: usize) -> Answer<Mapping> {
    file.context()?;
    let is_page = length == PAGE && offset.is_multiple_of(PAGE as u64);
    refuse_if!(!is_page, EINVAL, "mmap of {length} bytes at {offset:#x}: one page only");
    if offset == offset_of(MMAP_CORE_CLOCK) || offset == offset_of(MMAP_CLOCK_INFO) {
        return Ok(Mapping::Clock);
    }
    let found = file.uars.values().any(|uar| *uar == offset);
    refuse_if!(!found, EINVAL, "mmap at {offset:#x}: there is no page of this open file");
    Ok(Mapping::Uar)
}
