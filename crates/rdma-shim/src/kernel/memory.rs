//! Memory of a machine: the host's, which CPU, kernels and NIC reach, and the GPU's own.
//!
//! Kernels and devices write it at any time, so that the CPU's side is atomics, or copies. Host memory is
//! ordinary pages that the GPU was shown: a software NIC in another process reaches them as any others,
//! unlike memory that CUDA maps.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpu::{DeviceMemory, Kind, PinnedMemory, Registered, Staging, Stream};
use verbs::Pages;

use super::error::KernelError;

/// The longest that a copy of a megabyte between CPU and GPU may take.
const COPY: Duration = Duration::from_secs(10);
/// Bytes of a copy.
const PIECE: usize = 1 << 20;

/// A struct that is laid out as in C.
///
/// # Safety
/// It has no padding, and any bytes are a value of it.
pub unsafe trait Plain: Sized {
    /// Its bytes, as in C.
    fn bytes(&self) -> &[u8] {
        // SAFETY: there is no padding, so that each byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: likewise.
unsafe impl Plain for u64 {}
// SAFETY: nothing lies between the elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Structs that are laid out as in C and are [`Plain`], which is looked at where they are declared.
#[macro_export]
macro_rules! c_structs {
    ($(
        $(#[$about:meta])*
        $seen:vis struct $name:ident { $($(#[$field_about:meta])* $of:vis $field:ident: $kind:ty,)* }
    )*) => {$(
        $(#[$about])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        $seen struct $name { $($(#[$field_about])* $of $field: $kind,)* }

        const _: () = {
            const fn bytes<T: $crate::kernel::Plain>() -> usize {
                size_of::<T>()
            }
            assert!(size_of::<$name>() == 0 $(+ bytes::<$kind>())*, "it has padding: give that a name");
        };
        // SAFETY: its fields are `Plain`, and nothing lies between them or behind the last.
        unsafe impl $crate::kernel::Plain for $name {}
    )*};
}
pub(super) use c_structs;

/// Host memory that the machine's kernels reach; zeroed at first. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct HostMemory(Arc<Host>);

#[derive(Debug)]
struct Host {
    pages: ManuallyDrop<Arc<Pages>>,
    start: NonNull<u8>,
    len: usize,
    /// Where kernels see it.
    kernel_address: u64,
    shown: Option<(gpu::Context, ManuallyDrop<Registered>)>,
}

// SAFETY: the bytes are reached through atomics only.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

impl HostMemory {
    /// Whole pages, at least `bytes`, shown to the GPU if there is one.
    pub(super) fn new(context: Option<&gpu::Context>, bytes: usize) -> Result<HostMemory, KernelError> {
        let pages = Pages::new(bytes).map_err(|source| KernelError::Memory { bytes, source })?;
        HostMemory::of_pages(context, &Arc::new(pages))
    }

    /// Pages that others use too.
    pub(super) fn of_pages(
        context: Option<&gpu::Context>,
        pages: &Arc<Pages>,
    ) -> Result<HostMemory, KernelError> {
        let mut all = verbs::Part::new(pages, 0..verbs::Memory::len(&**pages))?;
        let (start, len) = (verbs::Memory::start(&mut all), verbs::Memory::len(&all));
        let mut host = Host {
            pages: ManuallyDrop::new(Arc::clone(pages)),
            start,
            len,
            kernel_address: start.as_ptr().expose_provenance() as u64,
            shown: None,
        };
        if let Some(context) = context {
            // SAFETY: `Host` keeps the pages mapped; its drop unmaps them only if the device is at rest.
            let registered = unsafe { Registered::new(context, start, len, Kind::Memory) }?;
            host.kernel_address = registered.device_address();
            host.shown = Some((context.clone(), ManuallyDrop::new(registered)));
        }
        Ok(HostMemory(Arc::new(host)))
    }

    /// Where CPU and NIC see the first byte.
    pub fn address(&self) -> u64 {
        self.0.start.addr().get() as u64
    }

    /// Where kernels do.
    pub fn kernel_address(&self) -> u64 {
        self.0.kernel_address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Never: there is no empty one.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the pages live as long as this value, and are reached through atomics only.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len) }
    }

    /// Its 32-bit words. Rust leaves undefined what racing atomics of different sizes over the same bytes
    /// see: a word has one size for all users at a time, as in its struct. [`HostMemory::write`] and
    /// [`HostMemory::read`] are for what no kernel uses then, or a NIC's bytes, which are no atomics.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: as above; pages are aligned.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len / 4) }
    }

    /// Its words of 64 bits; see [`HostMemory::words`].
    pub fn long_words(&self) -> &[AtomicU64] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.len / 8) }
    }

    /// Copies `bytes` to `offset`, in no order of bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), KernelError> {
        range(offset, bytes.len(), self.len())?;
        gpu::store_bytes(self.long_words(), self.bytes(), offset, bytes);
        Ok(())
    }

    /// Copies from `offset` to `bytes`, in no order of bytes.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), KernelError> {
        range(offset, bytes.len(), self.len())?;
        gpu::load_bytes(self.long_words(), self.bytes(), offset, bytes);
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some((context, mut registered)) = self.shown.take() {
            // SAFETY: taken once, here.
            unsafe { ManuallyDrop::drop(&mut registered) };
            // What still runs may see the pages, and the registration stays as long.
            if !context.at_rest(Duration::ZERO) {
                return;
            }
        }
        // SAFETY: taken once, here, and no kernel sees them.
        unsafe { ManuallyDrop::drop(&mut self.pages) };
    }
}

/// How bytes get to the GPU's memory and back; one copy at a time.
#[derive(Debug)]
pub(super) struct Copies {
    stream: Stream,
    between: PinnedMemory,
    one: Mutex<()>,
}

impl Copies {
    pub(super) fn new(context: &gpu::Context) -> Result<Copies, KernelError> {
        let stream = Stream::new(context, gpu::Priority::Least)?;
        Ok(Copies { stream, between: PinnedMemory::new(context, PIECE)?, one: Mutex::default() })
    }

    fn with<R>(&self, copy: impl FnOnce(Staging<'_>) -> gpu::Result<R>) -> Result<R, KernelError> {
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(copy(Staging { stream: &self.stream, between: &self.between, limit: COPY })?)
    }
}

/// Memory of a GPU; of unknown content at first. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct GpuMemory(Arc<Device>);

#[derive(Debug)]
struct Device {
    memory: DeviceMemory,
    copies: Arc<Copies>,
}

/// Memory of either kind, whole pages of its own.
#[derive(Debug, Clone)]
pub enum Memory {
    /// The host's; where there is no GPU, in place of the GPU's too.
    Host(HostMemory),
    /// The GPU's.
    Gpu(GpuMemory),
}

impl Memory {
    pub(super) fn of_device(memory: DeviceMemory, copies: &Arc<Copies>) -> Memory {
        Memory::Gpu(GpuMemory(Arc::new(Device { memory, copies: Arc::clone(copies) })))
    }

    /// Where the NIC sees the first byte.
    pub fn address(&self) -> u64 {
        match self {
            Memory::Host(host) => host.address(),
            Memory::Gpu(device) => device.0.memory.address(),
        }
    }

    /// Where kernels do.
    pub fn kernel_address(&self) -> u64 {
        match self {
            Memory::Host(host) => host.kernel_address(),
            Memory::Gpu(device) => device.0.memory.address(),
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Memory::Host(host) => host.len(),
            Memory::Gpu(device) => device.0.memory.len(),
        }
    }

    /// Never: there is no empty one.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies `bytes` to `offset`, in no order of bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), KernelError> {
        match self {
            Memory::Host(host) => host.write(offset, bytes),
            Memory::Gpu(device) => {
                range(offset, bytes.len(), self.len())?;
                device.0.copies.with(|way| device.0.memory.write(offset, bytes, way))
            }
        }
    }

    /// Copies from `offset` to `bytes`, in no order of bytes.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), KernelError> {
        match self {
            Memory::Host(host) => host.read(offset, bytes),
            Memory::Gpu(device) => {
                range(offset, bytes.len(), self.len())?;
                device.0.copies.with(|way| device.0.memory.read(offset, bytes, way))
            }
        }
    }

    /// Fills all of it.
    pub fn fill(&self, byte: u8) -> Result<(), KernelError> {
        match self {
            Memory::Host(host) => {
                let word = u64::from_ne_bytes([byte; 8]);
                host.long_words().iter().for_each(|place| place.store(word, Ordering::Relaxed));
                Ok(())
            }
            Memory::Gpu(device) => device.0.copies.with(|way| {
                device.0.memory.fill(byte, way.stream)?;
                way.stream.wait("filling memory", way.limit)
            }),
        }
    }

    /// A dma-buf of all of it. Error: it is not a GPU's.
    pub(super) fn dma_buf(&self) -> Result<std::os::fd::OwnedFd, KernelError> {
        match self {
            Memory::Gpu(device) => Ok(device.0.memory.dma_buf()?),
            Memory::Host(_) => Err(KernelError::Refused("host memory has no dma-buf".into())),
        }
    }

    /// Stores a struct.
    pub fn put<T: Plain>(&self, offset: usize, value: &T) -> Result<(), KernelError> {
        self.write(offset, value.bytes())
    }

    /// Loads a struct.
    pub fn get<T: Plain>(&self, offset: usize) -> Result<T, KernelError> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: zeroed, as long as a `T`, and borrowed alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
        self.read(offset, bytes)?;
        // SAFETY: any bytes are a value, as `Plain` promises.
        Ok(unsafe { value.assume_init() })
    }
}

impl From<HostMemory> for Memory {
    fn from(memory: HostMemory) -> Memory {
        Memory::Host(memory)
    }
}

// SAFETY: the memory stays in place until the last clone is gone; its bytes are referenced only as atomics.
unsafe impl verbs::Memory for Memory {
    fn start(&mut self) -> NonNull<u8> {
        match self {
            Memory::Host(host) => host.0.start,
            Memory::Gpu(device) => {
                let address = device.0.memory.address() as usize;
                NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling())
            }
        }
    }
    fn len(&self) -> usize {
        Memory::len(self)
    }
}

/// An error unless `offset..offset + len` lies in `whole` bytes.
fn range(offset: usize, len: usize, whole: usize) -> Result<(), KernelError> {
    match offset.checked_add(len).filter(|end| *end <= whole) {
        Some(_) => Ok(()),
        None => Err(KernelError::Range { offset, len, whole }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_structs_go_in_and_come_out_wherever_they_lie() {
        let memory = Memory::from(HostMemory::new(None, 100).unwrap());
        assert_eq!(memory.len(), 4096);
        for (offset, len) in [(0, 8), (8, 24), (3, 9), (4095, 1), (16, 5)] {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            let mut out = vec![0; len];
            memory.fill(0xee).unwrap();
            memory.write(offset, &bytes).unwrap();
            memory.read(offset, &mut out).unwrap();
            assert_eq!(out, bytes, "{len} at {offset}");
            let mut all = vec![0; memory.len()];
            memory.read(0, &mut all).unwrap();
            assert_eq!(all.iter().filter(|&&byte| byte == 0xee).count(), 4096 - len);
        }
        let end = super::super::end::db_kernel_end { wr_id: 9, qpn: 3, is_send: 1, ..Default::default() };
        memory.put(40, &end).unwrap();
        assert_eq!(memory.get::<super::super::end::db_kernel_end>(40).unwrap(), end);
        for (offset, len) in [(4090, 7), (usize::MAX, 2), (4097, 0)] {
            let error = memory.write(offset, &vec![0; len]).unwrap_err().to_string();
            assert!(error.contains("leave the 4096 bytes"), "{error}");
            assert!(memory.read(offset, &mut vec![0; len]).is_err());
        }
    }
}
