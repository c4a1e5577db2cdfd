//! Memory regions, over memory that they own or borrow for as long as they are registered.

use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::device::Pd;
use super::work_request::{InlineSlice, Remote, Sge};
use crate::result::code::Access;
use crate::result::raw;
use crate::result::{Error, Result, object};

/// Memory that a region may hold: addresses that a device may read and write at any time.
///
/// # Safety
/// `start` and `len` stay the same while the value lives, wherever it is moved to, and nothing reads or
/// writes the bytes through references meanwhile.
pub unsafe trait Memory {
    /// First byte.
    fn start(&mut self) -> NonNull<u8>;
    fn len(&self) -> usize;
    /// Whether there are no bytes, which no region takes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory that the CPU reaches too: what a region over it reads and writes. Other devices' memory is not.
///
/// # Safety
/// The bytes are mapped, writable and initialised while the value lives.
pub unsafe trait Addressable: Memory {}

// SAFETY: the borrow is exclusive, and a slice does not move with the reference.
unsafe impl Memory for &mut [u8] {
    fn start(&mut self) -> NonNull<u8> {
        NonNull::from(&mut **self).cast()
    }
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }
}

// SAFETY: a slice's bytes are.
unsafe impl Addressable for &mut [u8] {}

/// Anonymous zeroed pages, as `mmap(2)` gives them; unmapped when dropped.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value alone.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives no access to the bytes.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `bytes`, rounded up to 4 KiB pages. Error: 0 bytes, or the system has no memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let len = bytes.checked_next_multiple_of(4096).filter(|&len| len > 0);
        let len = len
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} bytes of memory")))?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping stays where it is until the drop, and no other code knows it.
unsafe impl Memory for Pages {
    fn start(&mut self) -> NonNull<u8> {
        self.start
    }
    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: it is zeroed and writable.
unsafe impl Addressable for Pages {}

/// Some bytes of pages that several regions share, each with its own rights and its own peers.
#[derive(Debug, Clone)]
pub struct Part {
    pages: Arc<Pages>,
    range: Range<usize>,
}

impl Part {
    /// Error: bytes that the pages do not have, or none.
    pub fn new(pages: &Arc<Pages>, range: Range<usize>) -> Result<Self> {
        if range.is_empty() || range.end > pages.len {
            let text = format!("bytes {}..{} of {} bytes of pages", range.start, range.end, pages.len);
            return Err(Error::Refused(text));
        }
        Ok(Self { pages: Arc::clone(pages), range })
    }
}

// SAFETY: the mapping stays until the last part is gone, and no code refers to its bytes.
unsafe impl Memory for Part {
    fn start(&mut self) -> NonNull<u8> {
        // SAFETY: `new` checked that the mapping has more bytes than that.
        unsafe { self.pages.start.add(self.range.start) }
    }
    fn len(&self) -> usize {
        self.range.len()
    }
}

// SAFETY: the pages are zeroed and writable.
unsafe impl Addressable for Part {}

/// A registered region and its memory. The device may change the bytes at any time, so they are read and
/// written through atomics only, and no reference to them is given.
///
/// Memory that was lent cannot be used, or go away, before the region is gone:
/// ```compile_fail,E0505
/// # fn lend(pd: &verbs::Pd) -> verbs::Result<()> {
/// let mut buffer = vec![0u8; 4096];
/// let region = verbs::Mr::register(pd, &mut buffer[..], verbs::code::Access::LOCAL_WRITE)?;
/// drop(buffer);
/// drop(region);
/// # Ok(())
/// # }
/// ```
/// ```
/// # fn lend(pd: &verbs::Pd) -> verbs::Result<()> {
/// let mut buffer = vec![0u8; 4096];
/// let region = verbs::Mr::register(pd, &mut buffer[..], verbs::code::Access::LOCAL_WRITE)?;
/// drop(region);
/// drop(buffer);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Mr<M: Memory> {
    mr: NonNull<raw::ibv_mr>,
    memory: ManuallyDrop<M>,
    start: NonNull<u8>,
    len: usize,
    lkey: u32,
    rkey: u32,
    _pd: Pd,
}

// SAFETY: libibverbs' objects may be used from any thread; the memory follows its own rule.
unsafe impl<M: Memory + Send> Send for Mr<M> {}
// SAFETY: bytes are touched through atomics only.
unsafe impl<M: Memory + Send> Sync for Mr<M> {}

impl<M: Memory> Mr<M> {
    /// Registers all bytes of `memory`.
    pub fn register(pd: &Pd, mut memory: M, access: Access) -> Result<Self> {
        let (start, len) = (memory.start(), memory.len());
        // SAFETY: the domain is live; `memory` is kept until the region is gone; `Memory` promises the rest.
        let mr = unsafe { object::reg_mr(pd.raw(), start.as_ptr().cast::<c_void>(), len, access.0) };
        Self::registered(pd, memory, mr, access)
    }

    /// Registers all bytes of `memory`, another device's, by the dma-buf that its driver made of them; they
    /// begin `offset` bytes into it. Requests name them by the addresses that `memory` has.
    ///
    /// # Safety
    /// The dma-buf's bytes from `offset` on are those of `memory`, and no others: a peer, or a request,
    /// writes to them, and nothing here can tell whether a value that others refer to lies there.
    ///
    /// So registering a dma-buf takes a reason why it is that memory's:
    /// ```compile_fail,E0133
    /// # use {std::os::fd::BorrowedFd, verbs::{Mr, Pages, Pd, code::Access}};
    /// fn register(pd: &Pd, memory: Pages, of_others: BorrowedFd<'_>) -> verbs::Result<Mr<Pages>> {
    ///     Mr::register_dma_buf(pd, memory, of_others, 0, Access::ALL)
    /// }
    /// ```
    /// ```
    /// # use {std::os::fd::BorrowedFd, verbs::{Mr, Pages, Pd, code::Access}};
    /// unsafe fn register(pd: &Pd, memory: Pages, its_own: BorrowedFd<'_>) -> verbs::Result<Mr<Pages>> {
    ///     unsafe { Mr::register_dma_buf(pd, memory, its_own, 0, Access::ALL) }
    /// }
    /// ```
    pub unsafe fn register_dma_buf(
        pd: &Pd,
        mut memory: M,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        access: Access,
    ) -> Result<Self> {
        let (iova, len) = (memory.start().addr().get() as u64, memory.len());
        let fd = dma_buf.as_raw_fd();
        // SAFETY: as in `register`; that the dma-buf is of this memory is the caller's.
        let mr = unsafe { object::reg_dmabuf_mr(pd.raw(), offset, len, iova, fd, access.0) };
        Self::registered(pd, memory, mr, access)
    }

    fn registered(pd: &Pd, mut memory: M, mr: Result<NonNull<raw::ibv_mr>>, access: Access) -> Result<Self> {
        let (start, len) = (memory.start(), memory.len());
        let mr = mr.map_err(|e| e.of(&format!("{len} bytes at {start:p} with access {:#x}", access.0)))?;
        // SAFETY: libibverbs keeps the object until it is deregistered.
        let lkey = unsafe { (*mr.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*mr.as_ptr()).rkey };
        Ok(Self { mr, memory: ManuallyDrop::new(memory), start, len, lkey, rkey, _pd: pd.clone() })
    }

    /// Deregisters and gives the memory back.
    pub fn deregister(self) -> Result<M> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the region is live, and `this` is never dropped.
        unsafe { object::dereg_mr(this.mr) }?;
        // SAFETY: `this` is never dropped, so that the domain is taken once.
        drop(unsafe { std::ptr::read(&raw const this._pd) });
        // SAFETY: `this` is never dropped, so that the memory is taken once.
        Ok(unsafe { ManuallyDrop::take(&mut this.memory) })
    }

    pub(super) fn raw(&self) -> NonNull<raw::ibv_mr> {
        self.mr
    }

    /// Address of the first byte, as requests name it.
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an empty region is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// A piece for a request. Error: it leaves the region, or is longer than 32 bits say.
    pub fn sge(&self, range: Range<usize>) -> Result<Sge> {
        self.check(&range)?;
        let length = u32::try_from(range.len());
        let length = length
            .map_err(|_| Error::Refused(format!("{} bytes are too many for one entry", range.len())))?;
        Ok(Sge::new(self.address() + range.start as u64, length, self.lkey))
    }

    /// The place of a byte, as a peer names it. Error: it is not in the region.
    pub fn remote(&self, offset: usize) -> Result<Remote> {
        self.check(&(offset..offset))?;
        Ok(Remote { address: self.address() + offset as u64, rkey: self.rkey })
    }

    fn check(&self, range: &Range<usize>) -> Result<()> {
        if range.start <= range.end && range.end <= self.len {
            return Ok(());
        }
        let text = format!("bytes {}..{} leave the region of {} bytes", range.start, range.end, self.len);
        Err(Error::Refused(text))
    }
}

impl<M: Addressable> Mr<M> {
    /// First byte, for kernels and shims that address it themselves.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A piece that is copied into the request when it is posted.
    pub fn inline(&self, range: Range<usize>) -> Result<InlineSlice<'_>> {
        self.check(&range)?;
        let length = u32::try_from(range.len());
        let length =
            length.map_err(|_| Error::Refused(format!("{} bytes are too many for inline", range.len())))?;
        Ok(InlineSlice::of_region(self.address() + range.start as u64, length))
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        assert!(inside, "{size} bytes at {offset} leave the region of {} bytes", self.len);
        let pointer = self.start.as_ptr().wrapping_add(offset).cast::<T>();
        assert!(pointer.is_aligned(), "{offset} is not aligned for {size} bytes");
        pointer
    }

    /// Word of 64 bits at an offset. Panics outside the region, or when not aligned.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for 32 bits.
        unsafe { AtomicU64::from_ptr(self.at(offset)) }
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as for 32 bits.
        unsafe { AtomicU8::from_ptr(self.at(offset)) }
    }

    /// Copies numbers out. Panics outside the region, or when not aligned to 8 bytes.
    pub fn read_f32(&self, offset: usize, out: &mut [f32]) {
        let (pairs, rest) = out.as_chunks_mut::<2>();
        for (at, pair) in (offset..).step_by(8).zip(&mut *pairs) {
            let bytes = self.word64(at).load(Ordering::Relaxed).to_ne_bytes();
            let [a, b, c, d, e, f, g, h] = bytes;
            *pair = [[a, b, c, d], [e, f, g, h]].map(f32::from_ne_bytes);
        }
        let mut bytes = [0; 4];
        for last in rest {
            self.read(offset + 8 * pairs.len(), &mut bytes);
            *last = f32::from_ne_bytes(bytes);
        }
    }

    /// Copies numbers in. Panics outside the region, or when not aligned to 8 bytes.
    pub fn write_f32(&self, offset: usize, numbers: &[f32]) {
        let (pairs, rest) = numbers.as_chunks::<2>();
        for (at, pair) in (offset..).step_by(8).zip(pairs) {
            let [[a, b, c, d], [e, f, g, h]] = pair.map(f32::to_ne_bytes);
            self.word64(at).store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Ordering::Relaxed);
        }
        for last in rest {
            self.write(offset + 8 * pairs.len(), &last.to_ne_bytes());
        }
    }

    /// Copies bytes out. Panics outside the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        for (piece, at) in pieces(self.address(), offset, out.len()) {
            match piece {
                Piece::Word => out[at..at + 8]
                    .copy_from_slice(&self.word64(offset + at).load(Ordering::Relaxed).to_ne_bytes()),
                Piece::Byte => out[at] = self.byte(offset + at).load(Ordering::Relaxed),
            }
        }
    }

    /// Copies bytes in. Panics outside the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (piece, at) in pieces(self.address(), offset, bytes.len()) {
            match piece {
                Piece::Word => {
                    let mut word = [0; 8];
                    word.copy_from_slice(&bytes[at..at + 8]);
                    self.word64(offset + at).store(u64::from_ne_bytes(word), Ordering::Relaxed);
                }
                Piece::Byte => self.byte(offset + at).store(bytes[at], Ordering::Relaxed),
            }
        }
    }
}

enum Piece {
    Word,
    Byte,
}

/// Cuts a range into aligned words and the bytes around them; gives places from the range's start.
fn pieces(base: u64, offset: usize, len: usize) -> impl Iterator<Item = (Piece, usize)> {
    let misaligned = (base.wrapping_add(offset as u64) % 8) as usize;
    let head = ((8 - misaligned) % 8).min(len);
    let tail = head + (len - head) / 8 * 8;
    let words = (head..tail).step_by(8).map(|at| (Piece::Word, at));
    let before = (0..head).map(|at| (Piece::Byte, at));
    before.chain(words).chain((tail..len).map(|at| (Piece::Byte, at)))
}

impl<M: Memory> Drop for Mr<M> {
    fn drop(&mut self) {
        // SAFETY: the region is live and not used afterwards.
        if unsafe { object::dereg_mr(self.mr) }.is_ok() {
            // SAFETY: dropped once, here, after the device has let go of it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        // A region that the device does not release keeps its memory for ever: a leak beats a stray write.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_byte_once_and_words_are_aligned() {
        for base in 0..8u64 {
            for offset in 0..9 {
                for len in 0..40 {
                    let mut next = 0;
                    for (piece, at) in pieces(base, offset, len) {
                        assert_eq!(at, next);
                        next += match piece {
                            Piece::Word => 8,
                            Piece::Byte => 1,
                        };
                        if matches!(piece, Piece::Word) {
                            assert_eq!((base as usize + offset + at) % 8, 0);
                        }
                    }
                    assert_eq!(next, len);
                }
            }
        }
    }

    #[test]
    fn a_part_is_within_its_pages() {
        let pages = Arc::new(Pages::new(4096).unwrap());
        let mut part = Part::new(&pages, 100..108).unwrap();
        assert_eq!((part.start().addr().get() - pages.start.addr().get(), part.len()), (100, 8));
        for range in [4090..4097, 8..8] {
            assert!(Part::new(&pages, range).is_err());
        }
    }

    #[test]
    fn pages_are_whole_and_zeroed_and_none_are_refused() {
        let mut pages = Pages::new(5000).unwrap();
        assert_eq!((pages.len(), pages.start().addr().get() % 4096), (8192, 0));
        assert_eq!(Pages::new(0).unwrap_err().to_string(), "0 bytes of memory");
        assert!(Pages::new(usize::MAX).is_err());
    }
}
