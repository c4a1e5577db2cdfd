//! Values without an owner that a kernel may still use: they are freed when the device is idle.

use std::any::Any;
use std::ffi::c_void;

use super::pages::Share;
use super::registry;
use crate::result::Result;
use crate::result::driver::{self, CUdeviceptr, CUmodule};
use crate::result::graph::{self, CUgraphExec};

/// One such value.
pub enum Discarded {
    /// Memory of the device.
    Device(CUdeviceptr),
    /// Host memory of the driver's.
    Pinned(*mut c_void),
    /// A loaded image.
    Module(CUmodule),
    /// A graph that can be launched.
    Graph(CUgraphExec),
    /// A share in registered pages.
    Pages(Share),
    /// A library's handle, which this ends: the library waits for the device then.
    Handle(Box<dyn Fn()>),
    /// What a library made, which ends when it is dropped: kernels are its own.
    Library(#[expect(dead_code, reason = "it is kept until it is dropped")] Box<dyn Any>),
}

// SAFETY: the driver frees from any thread what was made in another.
unsafe impl Send for Discarded {}

impl Discarded {
    /// Whether it is memory, and nothing that is launched.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Device(_) | Self::Pinned(_) | Self::Pages(_))
    }

    /// Frees it, in the context that is current.
    ///
    /// # Safety
    /// Nothing that runs uses it, and it was made in this context.
    pub unsafe fn free(&self) -> Result<()> {
        match self {
            // SAFETY: the caller's promise, here and below.
            Self::Device(address) => unsafe { driver::mem_free(*address) },
            // SAFETY: as above.
            Self::Pinned(start) => unsafe { driver::host_free(*start) },
            // SAFETY: as above.
            Self::Module(module) => unsafe { driver::module_unload(*module) },
            // SAFETY: as above.
            Self::Graph(exec) => unsafe { graph::exec_destroy(*exec) },
            Self::Pages(share) => {
                registry::release(share);
                Ok(())
            }
            Self::Handle(end) => {
                end();
                Ok(())
            }
            Self::Library(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn memory_is_told_from_what_is_launched() {
        for (thing, is_memory) in [
            (Discarded::Device(0), true),
            (Discarded::Pinned(null_mut()), true),
            (Discarded::Module(null_mut()), false),
            (Discarded::Graph(null_mut()), false),
            (Discarded::Handle(Box::new(|| ())), false),
            (Discarded::Library(Box::new(())), false),
        ] {
            assert_eq!(thing.is_memory(), is_memory);
        }
    }
}
