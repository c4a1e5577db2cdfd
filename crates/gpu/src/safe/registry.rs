//! The process's one registry of pages, with the driver at its other side.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pages::{Pages, Registrar, Share};
use crate::result::Result;
use crate::result::driver;

/// The driver as the registry's other side; the context is current when it is asked.
pub(super) struct Driver;

impl Registrar for Driver {
    fn register(&mut self, start: usize, len: usize, io: bool) -> Result<()> {
        // SAFETY: the caller of the registration has promised that these pages stay mapped.
        unsafe { driver::host_register(std::ptr::with_exposed_provenance_mut(start), len, io) }
    }

    fn unregister(&mut self, start: usize) -> Result<()> {
        // SAFETY: the registry unregisters what it registered, after the last user.
        unsafe { driver::host_unregister(std::ptr::with_exposed_provenance_mut(start)) }
    }
}

/// One for the process: a registration is seen by every context.
static PAGES: Mutex<Option<Pages<Driver>>> = Mutex::new(None);

pub(super) fn pages() -> MutexGuard<'static, Option<Pages<Driver>>> {
    PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a share back to the registry; the context is current.
pub(super) fn release(share: &Share) {
    if let Some(pages) = pages().as_mut() {
        pages.release(share);
    }
}

/// How many extents of host memory are registered by this process.
pub fn registered_extents() -> usize {
    pages().as_ref().map_or(0, Pages::len)
}
