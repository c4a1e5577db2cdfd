//! Memory on the GPU, and host memory that the GPU sees.
//!
//! Kernels write both at any time, so no reference to plain bytes is given: the CPU's side of host memory is
//! atomics, device memory is copied. Freed at rest only, see [`super::Context`].

use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::context::{Context, range};
use super::discarded::Discarded;
use super::stream::Stream;
use crate::result::driver::{self, CUdeviceptr};
use crate::result::{Error, Result};

/// Memory that is exported is a multiple of this, so that no other allocation lies on its pages.
const EXPORT_UNIT: usize = 2 << 20;
/// Pages of the host, in which dma-bufs are counted.
const PAGE: u64 = 4096;

/// How bytes get to a GPU and back: the stream, pinned memory in between (making some may wait for a running
/// kernel), and how long a piece may take.
#[derive(Debug, Clone, Copy)]
pub struct Staging<'a> {
    /// Stream that the copies are put into.
    pub stream: &'a Stream,
    /// Used by one copy at a time.
    pub between: &'a PinnedMemory,
    /// The longest that a piece of `between`'s size may take.
    pub limit: Duration,
}

/// Memory of a GPU.
pub struct DeviceMemory {
    context: Context,
    address: CUdeviceptr,
    len: usize,
}

// SAFETY: the value is an address and a length; the driver's calls may come from any thread.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({} bytes at {:#x})", self.len, self.address)
    }
}

impl DeviceMemory {
    /// `len` bytes of unknown content, aligned to 256 at least. Errors: none, or out of memory.
    pub fn new(context: &Context, len: usize) -> Result<DeviceMemory> {
        if len == 0 {
            return Err(Error::Refused("0 bytes of device memory".into()));
        }
        context.enter()?;
        // SAFETY: the context is current.
        let address = unsafe { driver::mem_alloc(len) }?;
        Ok(DeviceMemory { context: context.clone(), address, len })
    }

    /// Memory for a NIC: a multiple of 2 MiB, on pages of its own, that may be exported.
    pub fn for_export(context: &Context, len: usize) -> Result<DeviceMemory> {
        let whole = len.checked_next_multiple_of(EXPORT_UNIT);
        let memory =
            DeviceMemory::new(context, whole.ok_or_else(|| Error::Refused(format!("{len} bytes")))?)?;
        // SAFETY: the memory lives, and its context is current. Without this call a synchronous copy may
        // return in flight, its end unseen by other devices (GPUDirect RDMA, «Synchronization behavior»).
        unsafe { driver::set_sync_memops(memory.address) }?;
        Ok(memory)
    }

    /// Where it lies; kernels, and the CPU where addresses are unified, call it by this number.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// Fills all of it, in `stream`.
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<()> {
        stream.same_context(&self.context, "the memory")?;
        self.context.enter()?;
        // SAFETY: memory and stream live, and the length is the memory's.
        unsafe { driver::fill(self.address, byte, self.len, stream.handle()) }
    }

    /// Copies `bytes` to `offset`, in `stream`, by way of `between`, in pieces of its size, and waits for the
    /// end. Errors: out of bounds; `Deadline`, after which the copy engine may still read `between`.
    pub fn write(&self, offset: usize, bytes: &[u8], way: Staging<'_>) -> Result<()> {
        range("this memory", offset, bytes.len(), self.len)?;
        for (index, piece) in bytes.chunks(way.between.len()).enumerate() {
            way.between.write(0, piece)?;
            let ours = self.address + (offset + index * way.between.len()) as u64;
            self.copy(ours, way.between.device_address(), piece.len(), &way)?;
        }
        Ok(())
    }

    /// Copies from `offset` to `bytes`, as [`Self::write`] does the other way.
    pub fn read(&self, offset: usize, bytes: &mut [u8], way: Staging<'_>) -> Result<()> {
        range("this memory", offset, bytes.len(), self.len)?;
        for (index, piece) in bytes.chunks_mut(way.between.len()).enumerate() {
            let ours = self.address + (offset + index * way.between.len()) as u64;
            self.copy(way.between.device_address(), ours, piece.len(), &way)?;
            way.between.read(0, piece)?;
        }
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: usize, way: &Staging<'_>) -> Result<()> {
        way.stream.same_context(&self.context, "the memory")?;
        // It is freed when its own GPU is at rest.
        way.stream.same_context(&way.between.context, "the pinned memory on the way")?;
        self.context.enter()?;
        // SAFETY: ranges of this memory and of `between`, with checked lengths; both live until the device is
        // at rest, whatever becomes of the wait.
        unsafe { driver::copy(to, from, bytes, way.stream.handle()) }?;
        way.stream.wait("a copy", way.limit)
    }

    /// A dma-buf of all of it. Errors: it does not begin and end on whole pages (see [`Self::for_export`]);
    /// the driver cannot (`Abilities::dma_buf`).
    pub fn dma_buf(&self) -> Result<OwnedFd> {
        if !self.address.is_multiple_of(PAGE) || !(self.len as u64).is_multiple_of(PAGE) {
            return Err(Error::Refused(format!(
                "{self:?} does not begin and end on pages of {PAGE} bytes: what is exported is made by `for_export`"
            )));
        }
        self.context.enter()?;
        // SAFETY: the memory lives, and its context is current.
        unsafe { driver::dma_buf(self.address, self.len) }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.context.discard(Discarded::Device(self.address));
    }
}

/// Host memory that stays where it is and that every GPU sees; zeroed at first.
pub struct PinnedMemory {
    context: Context,
    start: NonNull<u64>,
    device_address: CUdeviceptr,
    len: usize,
}

// SAFETY: the bytes are reached through atomics only.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedMemory({} bytes at {:p})", self.len, self.start)
    }
}

impl PinnedMemory {
    /// `len` bytes on pages of their own. Errors: none, or out of memory.
    pub fn new(context: &Context, len: usize) -> Result<PinnedMemory> {
        // Whole words, so that the last bytes can be reached as such.
        let Some(whole) = len.checked_next_multiple_of(8).filter(|whole| *whole > 0) else {
            return Err(Error::Refused(format!("{len} bytes of pinned memory")));
        };
        context.enter()?;
        // SAFETY: the context is current.
        let start = unsafe { driver::host_alloc(whole) }?;
        // SAFETY: allocated just now, by the same driver.
        let device_address = unsafe { driver::host_device_address(start) };
        let (Some(start), Ok(device_address)) = (NonNull::new(start.cast::<u64>()), device_address.clone())
        else {
            // SAFETY: allocated just now, and no other code knows it.
            let _ = unsafe { driver::host_free(start) };
            return Err(device_address
                .err()
                .unwrap_or_else(|| Error::Refused("the driver gave null as memory".into())));
        };
        // SAFETY: `whole` bytes begin there, and no other code knows them.
        unsafe { start.as_ptr().cast::<u8>().write_bytes(0, whole) };
        Ok(PinnedMemory { context: context.clone(), start, device_address, len })
    }

    /// Where the GPU sees it.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Where the CPU sees it.
    pub fn address(&self) -> NonNull<u8> {
        self.start.cast()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the memory lives as long as this value, page-aligned, and is reached through atomics only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }

    /// Its whole words of 32 bits.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 4) }
    }

    /// Its whole words of 64 bits.
    pub fn long_words(&self) -> &[AtomicU64] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }

    /// Copies `bytes` to `offset`, in no order of bytes, in whole words where it can. Error: out of bounds.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        range("this memory", offset, bytes.len(), self.len)?;
        store_bytes(self.long_words(), self.bytes(), offset, bytes);
        Ok(())
    }

    /// Copies from `offset` to `bytes`, as [`Self::write`] does the other way.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        range("this memory", offset, bytes.len(), self.len)?;
        load_bytes(self.long_words(), self.bytes(), offset, bytes);
        Ok(())
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.context.discard(Discarded::Pinned(self.start.as_ptr().cast()));
    }
}

/// Copies to `offset` of memory that others reach too, given as whole words and as bytes: by words if it can.
pub fn store_bytes(places: &[AtomicU64], bytes: &[AtomicU8], offset: usize, from: &[u8]) {
    let (words, rest) = if offset.is_multiple_of(8) { from.as_chunks() } else { (&[][..], from) };
    let places = places.iter().skip(offset / 8);
    places.zip(words).for_each(|(place, &word)| place.store(u64::from_ne_bytes(word), Ordering::Relaxed));
    let places = &bytes[offset + words.len() * 8..];
    places.iter().zip(rest).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
}

/// Copies from `offset`, as [`store_bytes`] does the other way.
pub fn load_bytes(places: &[AtomicU64], bytes: &[AtomicU8], offset: usize, to: &mut [u8]) {
    let (words, rest) = if offset.is_multiple_of(8) { to.as_chunks_mut() } else { (&mut [][..], to) };
    let copied = words.len() * 8;
    let words = words.iter_mut().zip(places.iter().skip(offset / 8));
    words.for_each(|(word, place)| *word = place.load(Ordering::Relaxed).to_ne_bytes());
    let places = &bytes[offset + copied..];
    rest.iter_mut().zip(places).for_each(|(byte, place)| *byte = place.load(Ordering::Relaxed));
}

/// A word by which the CPU tells what runs on the GPU to end: pinned, read by the GPU over the bus.
#[derive(Debug)]
pub struct CancelWord(PinnedMemory);

impl CancelWord {
    pub fn new(context: &Context) -> Result<CancelWord> {
        // A cache line of its own: no other stores make the GPU's reads wait.
        PinnedMemory::new(context, 128).map(CancelWord)
    }

    /// The address that a kernel is given: a `volatile unsigned`, 0 until it is to end.
    pub fn device_address(&self) -> u64 {
        self.0.device_address()
    }

    /// Tells it to end. A kernel that sees this also sees all that this thread stored before.
    pub fn cancel(&self) {
        self.0.words()[0].store(1, Ordering::Release);
    }

    /// For the next run, when nothing runs that it is for.
    pub fn clear(&self) {
        self.0.words()[0].store(0, Ordering::Release);
    }
}
