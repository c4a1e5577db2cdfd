//! A GPU's primary context, and which of its streams still work: what they use is not freed under them.
//!
//! Freeing memory waits for the device, for as long as its longest kernel runs, which may be for ever. So whatever frees
//! asks here first, for a bounded time; when the device does not come to rest, the thing is kept until the process ends,
//! and counted. One context of a GPU serves the whole process, so that this is asked of all streams of ours.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::device::Gpu;
use crate::result::driver::{self, CUcontext, CUstream};
use crate::result::{Error, Result};

/// How long something that is to be freed waits for the device.
const REST: Duration = Duration::from_secs(2);

/// A share in a GPU's primary context; clones are shares in the same.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    gpu: Gpu,
    context: CUcontext,
    streams: Mutex<Vec<Entry>>,
    kept: AtomicUsize,
    /// Whether the device did not come to rest when it was last waited for: then nobody waits again until it does.
    stuck: AtomicBool,
}

/// A stream of this context.
struct Entry {
    stream: CUstream,
    /// Nobody has it any more, and it goes when it is at rest.
    abandoned: bool,
    /// While a stream records, asking it for its state would spoil the record.
    records: bool,
}

// SAFETY: a context may be made current in any number of threads; the list of streams has its lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.0.gpu)
    }
}

/// Those that live, by the GPU's ordinal.
static CONTEXTS: Mutex<BTreeMap<u32, Weak<Inner>>> = Mutex::new(BTreeMap::new());

impl Context {
    /// Takes a share in `gpu`'s primary context; the first of a process takes some 100 ms.
    pub fn new(gpu: Gpu) -> Result<Context> {
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = contexts.get(&gpu.ordinal()).and_then(Weak::upgrade) {
            return Ok(Context(inner));
        }
        let context = driver::primary_retain(gpu.device)?;
        let inner = Arc::new(Inner {
            gpu,
            context,
            streams: Mutex::default(),
            kept: AtomicUsize::new(0),
            stuck: AtomicBool::new(false),
        });
        contexts.insert(gpu.ordinal(), Arc::downgrade(&inner));
        Ok(Context(inner))
    }

    /// Its GPU.
    pub fn gpu(&self) -> Gpu {
        self.0.gpu
    }

    /// How many things were kept for good, since the device did not come to rest when they were to be freed.
    pub fn kept(&self) -> usize {
        self.0.kept.load(Ordering::Relaxed)
    }

    /// Makes it current in this thread: each call of the driver is about the current one.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as this value, which has a share in it.
        unsafe { driver::set_current(self.0.context) }
    }

    /// Runs `free` when the device is at rest; else keeps what it would free, and counts it.
    pub(super) fn free_at_rest(&self, free: impl FnOnce() -> Result<()>) {
        // A program that gives up has many things to free: the first waits for the rest.
        let stuck = self.0.stuck.load(Ordering::Relaxed);
        let rests = self.at_rest(if stuck { Duration::ZERO } else { REST });
        self.0.stuck.store(!rests, Ordering::Relaxed);
        if !rests || self.enter().is_err() || free().is_err() {
            self.0.kept.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether all streams of this context come to rest within `limit`. A lost context is at rest for good.
    pub fn at_rest(&self, limit: Duration) -> bool {
        let since = Instant::now();
        loop {
            if self.sweep() {
                return true;
            }
            if since.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Looks at each stream once, and destroys abandoned ones that are at rest.
    fn sweep(&self) -> bool {
        if self.enter().is_err() {
            return true;
        }
        let mut busy = false;
        self.streams().retain(|entry| {
            if entry.records {
                return true;
            }
            // SAFETY: the list holds streams of this context that were not destroyed.
            let rests = unsafe { driver::stream_query(entry.stream) }.unwrap_or(true);
            busy |= !rests;
            if !(rests && entry.abandoned) {
                return true;
            }
            // SAFETY: nobody has it but this list, which forgets it here.
            let _ = unsafe { driver::stream_destroy(entry.stream) };
            false
        });
        !busy
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Entry>> {
        // The list is whole whatever a panicking thread did.
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_stream(&self, stream: CUstream) {
        self.streams().push(Entry { stream, abandoned: false, records: false });
    }

    pub(super) fn abandon_stream(&self, stream: CUstream) {
        if let Some(entry) = self.streams().iter_mut().find(|entry| entry.stream == stream) {
            entry.abandoned = true;
        }
        self.sweep();
    }

    pub(super) fn stream_records(&self, stream: CUstream, records: bool) {
        if let Some(entry) = self.streams().iter_mut().find(|entry| entry.stream == stream) {
            entry.records = records;
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Giving back the last share waits for the device. Streams that still work keep the context.
        let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
        if streams.is_empty() {
            // SAFETY: the share was taken in `new`, and all that was made in it is gone: each such thing held this value.
            let _ = unsafe { driver::primary_release(self.gpu.device) };
        }
    }
}

/// `offset..offset + len` if it lies in `whole` bytes.
pub(super) fn range(what: &str, offset: usize, len: usize, whole: usize) -> Result<()> {
    match offset.checked_add(len).filter(|end| *end <= whole) {
        Some(_) => Ok(()),
        None => Err(Error::Refused(format!("{len} bytes at {offset} leave the {whole} bytes of {what}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_lie_inside() {
        for (offset, len, good) in
            [(0, 64, true), (60, 4, true), (64, 0, true), (60, 5, false), (usize::MAX, 2, false)]
        {
            assert_eq!(range("the ring", offset, len, 64).is_ok(), good, "{offset} + {len}");
        }
        let text = range("the ring", 60, 5, 64).unwrap_err().to_string();
        assert_eq!(text, "5 bytes at 60 leave the 64 bytes of the ring");
    }
}
