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
