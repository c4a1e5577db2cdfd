//! Streams: what is put into one runs in that order, beside all others; every wait has a deadline.

use std::time::Duration;

use super::context::Context;
use super::module::{Arguments, Function};
use super::wait;
use crate::result::driver::{self, CUstream, Shape};
use crate::result::{Error, Result};

/// Which stream's blocks are placed first when several want to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// After all others.
    #[default]
    Least,
    /// Before all others, as for a kernel that others wait for.
    Greatest,
}

/// A stream that does not wait for the default one. Dropped, it ends when its work has ended.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    handle: CUstream,
}

// SAFETY: the driver's calls about a stream may come from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver has a lock of its own.
unsafe impl Sync for Stream {}

/// From now on no call of this thread spoils another's graph capture (`cuThreadExchangeStreamCaptureMode`),
/// except [`super::Registered::end`]. For threads that a program does not know of.
pub fn spare_captures() -> Result<()> {
    // SAFETY: this is about the calling thread alone.
    unsafe { driver::spare_captures() }
}

impl Stream {
    /// A stream in `context`.
    pub fn new(context: &Context, priority: Priority) -> Result<Stream> {
        context.enter()?;
        // SAFETY: the context is current.
        let (least, greatest) = unsafe { driver::priority_range() }?;
        let priority = if priority == Priority::Greatest { greatest } else { least };
        // SAFETY: as above.
        let handle = unsafe { driver::stream_create(priority) }?;
        context.add_stream(handle);
        Ok(Stream { context: context.clone(), handle })
    }

    /// The context that it was made in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn handle(&self) -> CUstream {
        self.handle
    }

    /// Whether all its work has ended. Error: what went wrong in it; see [`Error::is_context_lost`].
    pub fn is_idle(&self) -> Result<bool> {
        self.context.enter()?;
        // SAFETY: the stream lives, and its context is current.
        unsafe { driver::stream_query(self.handle) }
    }

    /// Waits until then, at most `limit`. Errors: as [`Self::is_idle`], and `Deadline`, which names `what`.
    pub fn wait(&self, what: &str, limit: Duration) -> Result<()> {
        wait::until(what, limit, || self.is_idle())
    }

    /// Launches a kernel. Errors: wrong arguments, a shape that the GPU does not take; [`Self::is_idle`]
    /// tells what happens in the kernel.
    ///
    /// # Safety
    /// The kernel runs as its source says: it must keep to memory that stays until the stream is idle. Number
    /// and sizes of the arguments are the kernel's: a driver before CUDA 12.4 does not tell them, and they
    /// are not compared.
    pub unsafe fn launch(&self, function: &Function, shape: Shape, arguments: &Arguments) -> Result<()> {
        // SAFETY: the caller's, as here.
        unsafe { self.launch_as(function, shape, arguments, false) }
    }

    /// As [`Self::launch`], of a kernel whose blocks wait for one another (`GRID_HEADER`). Error also: more
    /// blocks than the GPU runs side by side ([`Function::max_blocks`]).
    ///
    /// # Safety
    /// As [`Self::launch`].
    pub unsafe fn launch_cooperative(
        &self,
        function: &Function,
        shape: Shape,
        arguments: &Arguments,
    ) -> Result<()> {
        // SAFETY: the caller's, as here.
        unsafe { self.launch_as(function, shape, arguments, true) }
    }

    unsafe fn launch_as(
        &self,
        function: &Function,
        shape: Shape,
        arguments: &Arguments,
        cooperative: bool,
    ) -> Result<()> {
        function.accepts(arguments)?;
        self.context.enter()?;
        let mut pointers = arguments.pointers();
        // SAFETY: function and stream live, and the arguments have the number and sizes that the function
        // takes; what it does with them is the caller's.
        let launched =
            unsafe { driver::launch(function.handle(), shape, self.handle, &mut pointers, cooperative) };
        launched.map_err(|error| error.of(format_args!("kernel `{}` with {shape:?}", function.name())))
    }

    /// Copies between two places that the GPU sees, by its copy engine; the end is told by [`Self::is_idle`].
    ///
    /// # Safety
    /// Both ranges stay until the stream is idle, and no reference to them expects otherwise.
    pub unsafe fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream lives, and its context is current; the ranges are the caller's.
        unsafe { driver::copy(to, from, bytes, self.handle) }
    }

    /// As [`Self::copy`], from memory of a GPU to the host's. Error also: `from` is not a GPU's (any more).
    ///
    /// # Safety
    /// As [`Self::copy`]; the GPU sees the host's range.
    pub unsafe fn copy_to_host(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream lives, and its context is current; the ranges are the caller's.
        unsafe {
            driver::copy_to_host(std::ptr::with_exposed_provenance_mut(to as usize), from, bytes, self.handle)
        }
    }

    /// As [`Self::copy`], from the host's memory to a GPU's. Error also: `to` is not a GPU's (any more).
    ///
    /// # Safety
    /// As [`Self::copy`]; the GPU sees the host's range.
    pub unsafe fn copy_from_host(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream lives, and its context is current; the ranges are the caller's.
        unsafe {
            driver::copy_from_host(to, std::ptr::with_exposed_provenance(from as usize), bytes, self.handle)
        }
    }

    /// As [`Self::copy_from_host`], two rows of `width` bytes, `pitch` bytes apart on either side. Always by
    /// a copy engine. A single piece below 64 KiB waits until no other process's kernel has the GPU (H200).
    ///
    /// # Safety
    /// As [`Self::copy`].
    pub unsafe fn copy_rows_from_host(&self, to: u64, from: u64, width: usize, pitch: usize) -> Result<()> {
        self.context.enter()?;
        let from = std::ptr::with_exposed_provenance(from as usize);
        // SAFETY: the stream lives, and its context is current; the ranges are the caller's.
        unsafe { driver::copy_rows_from_host(to, from, width, pitch, self.handle) }
    }

    /// As [`Self::copy`], between memory of GPUs. Error also: one of them is none (any more).
    ///
    /// # Safety
    /// As [`Self::copy`].
    pub unsafe fn copy_on_device(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream lives, and its context is current; the ranges are the caller's.
        unsafe { driver::copy_on_device(to, from, bytes, self.handle) }
    }

    /// Marks the stream as one that must not be asked for its state.
    pub(super) fn records(&self, records: bool) {
        self.context.stream_records(self.handle, records);
    }

    pub(super) fn same_context(&self, context: &Context, what: &str) -> Result<()> {
        match self.context.gpu() == context.gpu() {
            true => Ok(()),
            false => Err(Error::Refused(format!(
                "{what} is of {}, the stream of {}",
                context.gpu(),
                self.context.gpu()
            ))),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.abandon_stream(self.handle);
    }
}
