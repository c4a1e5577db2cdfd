//! When runs of a graph begin and end, by the GPU's global timer: one clock for all streams, so that stamps
//! of concurrent graphs can be compared.
//!
//! The graph's first kernel is `kernels/stamp.cu`. That kernel, or the one that launches the graph again,
//! notes the end of a run, so that no kernel stands between. A ring on the GPU keeps the last runs; how many
//! were overwritten is told.

use std::ops::Range;

use super::compile::Unit;
use super::memory::{DeviceMemory, Staging};
use super::module::{Arguments, Function, Module};
use super::stream::Stream;
use crate::result::driver::Shape;
use crate::result::{Error, Result};

/// The unit to compile into the module.
pub fn stamp_unit() -> Unit {
    with_stamp("stamp.cu", include_str!("../../kernels/stamp.cu"))
}

/// A unit that includes `stamp.h`.
pub(super) fn with_stamp(name: &str, text: &str) -> Unit {
    Unit::new(name, text).header("stamp.h", include_str!("../../kernels/stamp.h"))
}

const KERNEL: &str = "doorbell_stamp";
const ONE_THREAD: Shape = Shape::line(1, 1);
/// Bytes of the ring before the first run, and of a run.
const HEAD: usize = 16;
const RUN: usize = 16;
/// More runs than any measurement keeps: 1 GiB.
const MOST: usize = 1 << 26;

/// When one run began and ended, in ns of the GPU's global timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub start_ns: u64,
    pub end_ns: u64,
}

/// Stamps of one graph's runs.
#[derive(Debug)]
pub struct Stamps {
    kernel: Function,
    ring: DeviceMemory,
    kept: usize,
}

impl Stamps {
    /// A ring for as many runs at least. `module` has [`stamp_unit`]. Errors: too many; out of memory.
    pub fn new(module: &Module, runs: usize, way: Staging<'_>) -> Result<Stamps> {
        let kernel = module.function(KERNEL)?;
        let kept = runs.checked_next_power_of_two().filter(|kept| *kept <= MOST);
        let kept = kept.ok_or_else(|| Error::Refused(format!("stamps of {runs} runs: {MOST} at most")))?;
        let ring = DeviceMemory::new(kernel.context(), HEAD + RUN * kept)?;
        let stamps = Stamps { kernel, ring, kept };
        stamps.clear(way)?;
        Ok(stamps)
    }

    /// Forgets all runs; nothing that stamps may run.
    pub fn clear(&self, way: Staging<'_>) -> Result<()> {
        let head = [0, self.kept as u64 - 1];
        self.ring.write(0, &head.map(u64::to_le_bytes).concat(), way)
    }

    /// Where the ring begins, for a kernel that notes the end of a run.
    pub(super) fn address(&self) -> u64 {
        self.ring.address()
    }

    /// Puts the first kernel of a run into a stream, or into what it records.
    ///
    /// # Safety
    /// This value outlives what the stream runs, and the graphs that are recorded from it. One run ends
    /// before the next one begins.
    pub unsafe fn begin(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.put(stream, 0) }
    }

    /// Puts the last kernel of a run there.
    ///
    /// # Safety
    /// As [`Self::begin`].
    pub unsafe fn end(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.put(stream, 1) }
    }

    /// # Safety
    /// As [`Self::begin`].
    unsafe fn put(&self, stream: &Stream, is_end: u32) -> Result<()> {
        let arguments = Arguments::new().u64(self.ring.address()).u32(is_end);
        // SAFETY: the ring is as long as its head says, and lives by the caller's promise.
        unsafe { stream.launch(&self.kernel, ONE_THREAD, &arguments) }
    }

    /// Runs that have ended; nothing that stamps may run.
    pub fn runs(&self, way: Staging<'_>) -> Result<u64> {
        let mut head = [0; 8];
        self.ring.read(0, &mut head, way)?;
        Ok(u64::from_le_bytes(head))
    }

    /// The stamps of these runs, by their numbers from 0, as far as they have ended and are kept, and how
    /// many were overwritten. Nothing that stamps may run.
    pub fn read(&self, wanted: Range<u64>, way: Staging<'_>) -> Result<(Vec<Stamp>, u64)> {
        let ended = self.runs(way)?;
        let wanted = wanted.start.min(ended)..wanted.end.min(ended);
        let first = ended.saturating_sub(self.kept as u64).clamp(wanted.start, wanted.end.max(wanted.start));
        let lost = first - wanted.start;
        let (mut stamps, mut run) = (Vec::new(), first);
        while run < wanted.end {
            let at = (run % self.kept as u64) as usize;
            let count = (self.kept - at).min((wanted.end - run) as usize);
            let mut raw = vec![0; count * RUN];
            self.ring.read(HEAD + at * RUN, &mut raw, way)?;
            let (words, _) = raw.as_chunks::<8>();
            let stamp = |pair: &[[u8; 8]]| Stamp {
                start_ns: u64::from_le_bytes(pair[0]),
                end_ns: u64::from_le_bytes(pair[1]),
            };
            stamps.extend(words.chunks_exact(2).map(stamp));
            run += count as u64;
        }
        Ok((stamps, lost))
    }
}
