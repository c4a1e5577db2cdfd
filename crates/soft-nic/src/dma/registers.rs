//! UAR pages: the page that an application maps to ring doorbells, and the NIC's own view of it.

use std::io;
use std::sync::Arc;

use mlx5_device::memory::Registers;

use super::device_pages::DevicePages;
use super::shared::SharedMemory;
use super::system::PAGE;

/// One UAR page. The application maps it from the device's descriptor at [`UarPage::offset`]; the NIC has a mapping of its own, so that an application (or
/// libmlx5 at close) that unmaps early cannot make the NIC touch foreign memory. Not inherited over fork, as the
/// kernel's UAR mappings are not (VM_DONTCOPY).
#[derive(Debug)]
pub struct UarPage {
    pages: Arc<DevicePages>,
    offset: u64,
    memory: SharedMemory,
}

impl UarPage {
    /// Makes a zeroed page.
    ///
    /// Errors: the kernel's (descriptor limit, memory limit).
    pub fn new(pages: &Arc<DevicePages>) -> io::Result<UarPage> {
        let offset = pages.take()?;
        let memory = pages.map(offset)?;
        Ok(UarPage { pages: pages.clone(), offset, memory })
    }

    /// Where in the device's file it lies.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Drop for UarPage {
    fn drop(&mut self) {
        self.pages.release(self.offset);
    }
}

impl Registers for UarPage {
    fn take(&self, offset: usize) -> Option<[u8; 8]> {
        if offset >= PAGE || !offset.is_multiple_of(8) {
            return None;
        }
        let word = self.memory.word(offset);
        // Look before the locked swap: an idle register then costs a shared cache line, not an exclusive one.
        if word.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            return None;
        }
        match word.swap(0, std::sync::atomic::Ordering::AcqRel) {
            0 => None,
            value => Some(value.to_ne_bytes()),
        }
    }

    fn any(&self, offsets: &[usize]) -> bool {
        offsets.iter().any(|offset| self.memory.word(*offset).load(std::sync::atomic::Ordering::Relaxed) != 0)
    }
}
