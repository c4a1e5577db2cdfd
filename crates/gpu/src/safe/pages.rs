//! Which pages of the host are registered with the GPU, and for how many: one registry for the process.
//!
//! CUDA refuses a page that is registered already, and unregisters only whole registrations. Doorbell records
//! of several queues share pages, and rings begin inside one. So a range is widened to whole pages,
//! registered ones are shared, and each run between becomes one extent, which goes with its last user. A page
//! that another part of the process registered is used, and its registration left alone.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::result::{Error, Result, code};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Where other code has registered a part of so much, pages are registered one by one. Of more none are,
/// since each takes a driver call that others wait for.
const ONE_BY_ONE: usize = 1024 * PAGE;

/// What a range of host memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory: rings, doorbell records, buffers.
    Memory,
    /// A page of a card's registers or, emulated, of memory: tried as the first, then as the second.
    Doorbell,
}

/// How an extent came to be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    Memory,
    DeviceRegisters,
    /// As memory, after the driver had refused it as registers; with its words.
    MemoryAfter(String),
    /// By other code, which keeps it.
    Others,
}

/// What registers: the driver, or a test.
pub trait Registrar {
    fn register(&mut self, start: usize, len: usize, io: bool) -> Result<()>;
    /// Takes back what `register` was given.
    fn unregister(&mut self, start: usize) -> Result<()>;
}

struct Extent {
    len: usize,
    users: usize,
    how: How,
}

/// The registry; addresses are the CPU's.
pub struct Pages<R> {
    registrar: R,
    /// By their first byte; they do not overlap.
    extents: BTreeMap<usize, Extent>,
}

/// A user's share: the extents that it uses, in order, without a gap.
#[derive(Debug, PartialEq, Eq)]
pub struct Share {
    /// First bytes of the extents.
    pub extents: Vec<usize>,
    /// How each was registered.
    pub how: Vec<How>,
}

impl<R: Registrar> Pages<R> {
    /// Nothing is registered.
    pub fn new(registrar: R) -> Pages<R> {
        Pages { registrar, extents: BTreeMap::new() }
    }

    /// Registers the pages of `start..start + len` that are not registered, and counts the caller as a user.
    /// Errors: a range that wraps or is empty, and the driver's; then nothing has changed.
    pub fn acquire(&mut self, start: usize, len: usize, kind: Kind) -> Result<Share> {
        let refused = || Error::Refused(format!("{len} bytes at {start:#x} are no range of memory"));
        let end = start.checked_add(len).filter(|_| len > 0 && start >= PAGE).ok_or_else(refused)?;
        let (mut at, end) = (start / PAGE * PAGE, end.checked_next_multiple_of(PAGE).ok_or_else(refused)?);
        let mut share = Share { extents: Vec::new(), how: Vec::new() };
        while at < end {
            let known =
                self.extents.range(..=at).next_back().filter(|(first, extent)| at < **first + extent.len);
            let added = match known {
                Some((first, _)) => Ok(vec![*first]),
                None => {
                    let next = self.extents.range(at..end).next().map_or(end, |(first, _)| *first);
                    self.add(at, next - at, kind)
                }
            };
            match added {
                Ok(extents) => {
                    for first in extents {
                        if let Some(extent) = self.extents.get_mut(&first) {
                            extent.users += 1;
                            at = first + extent.len;
                            share.extents.push(first);
                            share.how.push(extent.how.clone());
                        }
                    }
                }
                Err(error) => {
                    self.release(&share);
                    return Err(error);
                }
            }
        }
        Ok(share)
    }

    /// Gives a share back; extents without users are taken back from the driver.
    pub fn release(&mut self, share: &Share) {
        for first in &share.extents {
            let Some(extent) = self.extents.get_mut(first) else { continue };
            extent.users -= 1;
            if extent.users > 0 {
                continue;
            }
            // One that the driver does not give back stays known, without users, and is found again.
            let foreign = extent.how == How::Others;
            if foreign || self.registrar.unregister(*first).is_ok() {
                self.extents.remove(first);
            }
        }
    }

    /// How many extents are known.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Registers a run of unknown pages: as one, or page by page where other code has registered some of them
    /// and the run is short.
    fn add(&mut self, start: usize, len: usize, kind: Kind) -> Result<Vec<usize>> {
        match self.register(start, len, kind) {
            Err(error) if is_taken(&error) && len <= ONE_BY_ONE => {
                let mut added = Vec::new();
                for page in (start..start + len).step_by(PAGE) {
                    let how = match self.register(page, PAGE, kind) {
                        Err(error) if is_taken(&error) => Ok(How::Others),
                        other => other,
                    };
                    match how {
                        Ok(how) => {
                            self.extents.insert(page, Extent { len: PAGE, users: 0, how });
                            added.push(page);
                        }
                        Err(error) => {
                            self.forget(&added);
                            return Err(error);
                        }
                    }
                }
                Ok(added)
            }
            Err(error) => Err(error),
            Ok(how) => {
                self.extents.insert(start, Extent { len, users: 0, how });
                Ok(vec![start])
            }
        }
    }

    fn forget(&mut self, added: &[usize]) {
        for first in added {
            let ours = self.extents.remove(first).is_some_and(|extent| extent.how != How::Others);
            if ours {
                let _ = self.registrar.unregister(*first);
            }
        }
    }

    fn register(&mut self, start: usize, len: usize, kind: Kind) -> Result<How> {
        if kind == Kind::Memory {
            return self.registrar.register(start, len, false).map(|()| How::Memory);
        }
        let refusal = match self.registrar.register(start, len, true) {
            Ok(()) => return Ok(How::DeviceRegisters),
            Err(error) if is_taken(&error) || error.code().is_none() || error.is_context_lost() => {
                return Err(error);
            }
            Err(error) => error,
        };
        match self.registrar.register(start, len, false) {
            Ok(()) => Ok(How::MemoryAfter(refusal.to_string())),
            Err(error) if is_taken(&error) => Err(error),
            Err(error) => Err(Error::Refused(doorbell_refused(&refusal, &error))),
        }
    }
}

fn is_taken(error: &Error) -> bool {
    error.code() == Some(code::HOST_MEMORY_ALREADY_REGISTERED)
}

/// Both refusals, and what can be done about them.
fn doorbell_refused(as_registers: &Error, as_memory: &Error) -> String {
    format!(
        "the GPU may not write to this doorbell page: as a card's registers: {as_registers}; as memory: {as_memory}; for a card's \
         page load nvidia.ko with NVreg_RegistryDwords=\"PeerMappingOverride=1;\" (options nvidia … in /etc/modprobe.d), or \
         let the CPU ring"
    )
}

#[cfg(test)]
mod tests;
