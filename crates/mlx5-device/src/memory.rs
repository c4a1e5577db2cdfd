//! Memory and registers as the device sees them: a program's addresses, in pieces, and its doorbell pages.
//!
//! The device holds no program memory. [`Memory`] and [`Registers`] reach it, and say which addresses fail.

/// An address that could not be accessed: unmapped, or mapped without the right needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("address {addr:#x} of the application cannot be accessed")]
pub struct Fault {
    /// First address that failed, or the start of the access when the exact one is unknown.
    pub addr: u64,
}

/// A piece of one process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Segment {
    /// Virtual address in that process.
    pub addr: u64,
    pub len: u64,
}

/// Bytes of all segments together; more than 64 bits hold count as the most that they hold.
pub fn total(segments: &[Segment]) -> u64 {
    segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.len))
}

/// How the bytes of one copy become visible to a thread that watches the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Order {
    /// One thread stores the bytes in increasing addresses, the last naturally aligned word by a release
    /// store: pollers rely on it. Copy helpers have stored all but the last 1 KiB before, in any order.
    #[default]
    Increasing,
    /// In any order, as IBV_ACCESS_RELAXED_ORDERING allows.
    Relaxed,
}

/// A walk over segments by bytes; empty segments are stepped over.
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    rest: &'a [Segment],
    /// Bytes of the first segment already walked.
    walked: u64,
}

impl<'a> Segments<'a> {
    /// Starts at the first byte.
    pub fn new(segments: &'a [Segment]) -> Segments<'a> {
        Segments { rest: segments, walked: 0 }
    }

    /// The piece at the present place, at most `max` bytes; `None` at the end, or for `max` 0.
    pub fn peek(&mut self, max: u64) -> Option<Segment> {
        while let [first, rest @ ..] = self.rest {
            if self.walked < first.len {
                let piece = Segment {
                    addr: first.addr.wrapping_add(self.walked),
                    len: (first.len - self.walked).min(max),
                };
                return (piece.len > 0).then_some(piece);
            }
            self.walked -= first.len;
            self.rest = rest;
        }
        None
    }

    /// Moves on by `len` bytes, past the end at most.
    pub fn advance(&mut self, len: u64) {
        self.walked = self.walked.saturating_add(len);
    }
}

/// Memory of the process that the NIC runs in, as a device sees it.
///
/// Multi-byte values are native-endian as stored; the caller swaps. `Host` is the real one; tests use a
/// memory that changes on every read (INV-6).
pub trait Memory: Send {
    /// Reads `out.len()` bytes from `addr`; every byte is loaded exactly once.
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Fault>;
    /// One aligned 32-bit acquire load.
    fn load32(&self, addr: u64) -> Result<u32, Fault>;
    /// One aligned 32-bit release store.
    fn store32(&self, addr: u64, value: u32) -> Result<(), Fault>;
    /// Writes `bytes` at `addr` in increasing address order; the last naturally aligned word (8, 4, 2 or 1
    /// byte) by a release store unless `relaxed`.
    fn write(&self, addr: u64, bytes: &[u8], relaxed: bool) -> Result<(), Fault>;
    /// Sequentially consistent 32-bit compare-and-swap; returns the old value.
    fn compare_swap32(&self, addr: u64, compare: u32, swap: u32) -> Result<u32, Fault>;
    /// Sequentially consistent 64-bit compare-and-swap; returns the old value.
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, Fault>;
    /// Sequentially consistent 64-bit fetch-and-add (wrapping); returns the old value.
    fn fetch_add64(&self, addr: u64, add: u64) -> Result<u64, Fault>;
    /// Prefetches the line at `addr`, which will be read soon. A hint: any address will do, nothing is read.
    fn prefetch(&self, _addr: u64) {}
    /// Whether a copy since the last call was so slow, as a GPU's may be, that acknowledgements are due now.
    fn has_lagged(&self) -> bool {
        false
    }
    /// Whether the whole range is mapped and (if `write`) writable now; asked when a region is registered.
    fn probe(&self, addr: u64, len: u64, write: bool) -> Result<(), Fault>;
}

/// A UAR page as the NIC sees it: its own mapping of the page that the application rings.
///
/// Words are little-endian loads of the big-endian register image; `take` swaps the word with zero so that
/// two equal doorbells in a row count twice.
pub trait Registers: Send + Sync {
    /// Loads the 64-bit word at `offset` (multiple of 8, below 4096) and, when it is not zero, swaps it with
    /// zero. Returns the bytes as the application stored them, or `None` when the word was zero.
    fn take(&self, offset: usize) -> Option<[u8; 8]>;

    /// Whether a word at these offsets is not zero: one look at a page where mostly nothing was rung.
    fn any(&self, offsets: &[usize]) -> bool;
}
