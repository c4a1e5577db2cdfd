//! Host memory of others that the GPU sees: rings, doorbell records and doorbell pages that libmlx5 mapped.

use std::fmt;
use std::ptr::NonNull;
use std::time::Duration;

use super::context::Context;
use super::discarded::Discarded;
use super::pages::{How, Kind, Pages, Share};
use super::registry::{Driver, pages};
use crate::result::driver;
use crate::result::{Error, Result};

/// How long after the driver could not say what runs it is asked again.
const AGAIN: Duration = Duration::from_millis(20);

/// A range of host memory that the GPU sees, until this is dropped.
pub struct Registered {
    context: Context,
    device_address: u64,
    len: usize,
    share: Option<Share>,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({} bytes at {:#x})", self.len, self.device_address)
    }
}

impl Registered {
    /// Lets the GPU see `start..start + len`, with the pages around it, which may be registered already.
    /// Errors: the driver's, for a doorbell page with both of its refusals and what can be done.
    ///
    /// # Safety
    /// The range stays mapped, at this place, until the value is dropped and the device is at rest.
    pub unsafe fn new(context: &Context, start: NonNull<u8>, len: usize, kind: Kind) -> Result<Registered> {
        context.enter()?;
        let address = start.as_ptr().expose_provenance();
        let share = pages().get_or_insert_with(|| Pages::new(Driver)).acquire(address, len, kind)?;
        let mut registered =
            Registered { context: context.clone(), device_address: 0, len, share: Some(share) };
        registered.device_address = registered.seen_at(address)?;
        Ok(registered)
    }

    /// Where the GPU sees `address`: every extent must be moved by one distance, or the range has a gap.
    fn seen_at(&self, address: usize) -> Result<u64> {
        let mut moved = None;
        for extent in self.share.iter().flat_map(|share| &share.extents) {
            // SAFETY: the extent is registered, and stays so while this value lives.
            let seen =
                unsafe { driver::host_device_address(std::ptr::with_exposed_provenance_mut(*extent)) }?;
            let distance = seen.wrapping_sub(*extent as u64);
            if *moved.get_or_insert(distance) != distance {
                return Err(Error::Refused(format!(
                    "the GPU sees {} bytes at {address:#x} in pieces that do not join: register them as one, first",
                    self.len
                )));
            }
        }
        Ok((address as u64).wrapping_add(moved.unwrap_or(0)))
    }

    /// Unregisters the pages when their GPU is idle, however long that takes. The driver waits for all that
    /// runs, holding a lock that the process's copies wait for; dropping may come to that. It also waits for
    /// what is launched in the microseconds between the check (50 at most) and the call, and spoils a graph
    /// recorded then. Errors: the driver's, when the context is lost and nothing is registered any more.
    pub fn end(mut self) -> Result<()> {
        let Some(share) = self.share.take() else { return Ok(()) };
        loop {
            let waited = self.context.wait_for_a_pause();
            // Without an answer something may run: a graph is recorded, or memory for the question is short.
            if waited.as_ref().is_err_and(|error| !error.ends_all()) {
                std::thread::sleep(AGAIN);
                continue;
            }
            let mut pages = pages();
            // Registrations until now also kept the program from its next launch.
            if waited.is_err() || self.context.has_a_pause() {
                pages.as_mut().into_iter().for_each(|pages| pages.release(&share));
                return waited;
            }
        }
    }

    /// Where the GPU sees the first byte.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// How its pages were registered, in their order.
    pub fn how(&self) -> &[How] {
        self.share.as_ref().map_or(&[], |share| &share.how)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(share) = self.share.take() {
            self.context.discard_waiting(Discarded::Pages(share));
        }
    }
}
