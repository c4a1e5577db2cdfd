//! A GPU's primary context, and which of its streams still work: what they use is not freed under them.
//!
//! Freeing waits for the device, as long as its longest kernel runs, perhaps for ever. So what is dropped
//! while a stream works is set aside; the next call here that finds all streams at rest frees it. The process
//! shares one context of a GPU: all streams of this crate are asked. Other libraries wait for theirs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::device::Gpu;
use super::discarded::Discarded;
use crate::result::driver::{self, CUcontext, CUevent, CUstream, EventKind};
use crate::result::{Error, Result, code};

/// How long the last share in a context, and pages that are not ours, wait for the device.
const REST: Duration = Duration::from_secs(2);
/// How often a thread looks that waits for what may run for hours.
const LOOK: Duration = Duration::from_millis(1);
/// The driver may wait, lock held, for work this short; and how often in a row all work must be so short.
const SHORT: Duration = Duration::from_millis(20);
const SHORT_ONES: u32 = 8;
/// The way of an event to a device that does nothing, and back.
const AT_ONCE: Duration = Duration::from_micros(50);

/// A share in a GPU's primary context, or in one beside it; clones are shares in the same.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    gpu: Gpu,
    context: CUcontext,
    is_primary: bool,
    /// It lives as long as the process.
    stays: AtomicBool,
    streams: Mutex<Vec<Entry>>,
    discarded: Mutex<Vec<Discarded>>,
    /// Held through a scan and the freeing after it: a thread that sees an empty list may unmap pages that
    /// were in it. Taken before the other two.
    sweeping: Mutex<()>,
    /// Things that the driver did not free.
    lost: AtomicUsize,
}

/// A stream of this context.
struct Entry {
    stream: CUstream,
    /// Dropped by its owner, and destroyed when it is idle.
    abandoned: bool,
    /// While a stream records, asking it for its state would spoil the record.
    records: bool,
}

// SAFETY: a context may be made current in any number of threads; the lists have their locks.
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
        let mut contexts = locked(&CONTEXTS);
        if let Some(inner) = contexts.get(&gpu.ordinal()).and_then(Weak::upgrade) {
            return Ok(Context(inner));
        }
        let inner = Arc::new(Inner::new(gpu, driver::primary_retain(gpu.device)?, true));
        contexts.insert(gpu.ordinal(), Arc::downgrade(&inner));
        Ok(Context(inner))
    }

    /// Makes another context on `gpu`, current in this thread. Its copies go on while a blocking call keeps
    /// threads from the primary one (`cudaMemcpy` of pageable memory behind a kernel). It takes GPU memory.
    pub fn beside(gpu: Gpu) -> Result<Context> {
        // SAFETY: a device of the driver's.
        let context = unsafe { driver::context_create(gpu.device) }?;
        Ok(Context(Arc::new(Inner::new(gpu, context, false))))
    }

    pub fn gpu(&self) -> Gpu {
        self.0.gpu
    }

    /// Keeps it until the process ends, whatever is dropped. A library keeps what it loaded into a context
    /// after its handles end, and takes a new context at the old address for the old. Launched things stay
    /// loaded too: graphs, modules, library plans and handles, timers. Destroyed beside a library's kernels,
    /// they lost a later graph the context: docs/notes/lost-contexts.md. Memory is freed as elsewhere.
    pub fn keep(&self) {
        self.0.stays.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::keep`] was called.
    pub(super) fn is_kept(&self) -> bool {
        self.0.stays.load(Ordering::Relaxed)
    }

    /// Waits for all that was launched in it, as `cudaDeviceSynchronize` does, without a deadline: asleep or
    /// spinning, as [`Gpu::wait_asleep`] says. Error: what went wrong there.
    pub fn synchronize(&self) -> Result<()> {
        self.enter()?;
        // SAFETY: the context is current, and nothing of it is changed.
        unsafe { driver::synchronize() }
    }

    /// The driver's handle, as a number to compare.
    pub(super) fn number(&self) -> usize {
        self.0.context as usize
    }

    /// How many dropped things are not freed. They wait for the device to come to rest, or the driver did not
    /// free them, as when the context is lost.
    pub fn kept(&self) -> usize {
        locked(&self.0.discarded).len() + self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits at most `limit` until all streams of this context are at rest, then frees what was set aside.
    /// Says whether they are; a lost context is at rest for good.
    pub fn at_rest(&self, limit: Duration) -> bool {
        self.0.at_rest(limit)
    }

    /// Whether the GPU reaches host memory at an address of the CPU's: it is pinned.
    pub fn is_pinned(&self, address: u64) -> Result<bool> {
        self.enter()?;
        // SAFETY: the address is looked up, and nothing is read there.
        let seen = unsafe { driver::host_device_address(std::ptr::without_provenance_mut(address as usize)) };
        match seen {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(code::INVALID_VALUE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the GPU is idle or has run only short kernels for a while, so that a driver call that
    /// synchronises the context returns quickly. This may take for ever: it is for a thread with nothing else
    /// to do, and no other thread's call waits for it. Errors: a lost context, which needs no wait.
    pub(super) fn wait_for_a_pause(&self) -> Result<()> {
        let mut short = if self.all_that_runs_takes()?.is_zero() { SHORT_ONES } else { 0 };
        while short < SHORT_ONES {
            std::thread::sleep(LOOK);
            short = if self.all_that_runs_takes()? > SHORT { 0 } else { short + 1 };
        }
        Ok(())
    }

    /// Whether nothing runs now. An event does not cover launches after its record, so one that had to be
    /// waited for says nothing of now: a new one is asked at once, a few times.
    pub(super) fn has_a_pause(&self) -> bool {
        for _ in 0..SHORT_ONES {
            let took = self.with_event(|event| {
                let since = Instant::now();
                // SAFETY: the event lives, and its context is current.
                while !unsafe { driver::event_query(event) }? {
                    if since.elapsed() >= SHORT {
                        return Ok(SHORT);
                    }
                    std::thread::yield_now();
                }
                Ok(since.elapsed())
            });
            match took {
                Ok(Some(took)) if took < AT_ONCE => return true,
                Ok(Some(took)) if took < SHORT => {}
                Ok(Some(_)) => return false,
                // An older driver: it was waited for just now.
                Ok(None) => return true,
                Err(error) => return error.ends_all(),
            }
        }
        false
    }

    /// Waits until all has ended that runs now; says how long that took, 0 when nothing ran.
    fn all_that_runs_takes(&self) -> Result<Duration> {
        let since = Instant::now();
        let waited = self.with_event(|event| {
            let mut took = Duration::ZERO;
            // SAFETY: the event lives, and its context is current.
            while !unsafe { driver::event_query(event) }? {
                std::thread::sleep(LOOK);
                took = since.elapsed();
            }
            Ok(took)
        })?;
        if let Some(took) = waited {
            return Ok(took);
        }
        // An older driver: its own wait takes a processor for as long as it lasts.
        // SAFETY: the context is current.
        unsafe { driver::synchronize() }?;
        Ok(Duration::ZERO)
    }

    /// Runs `wait` with an event recorded behind all that runs now. `None`: the driver has no such events.
    fn with_event<T>(&self, wait: impl FnOnce(CUevent) -> Result<T>) -> Result<Option<T>> {
        self.enter()?;
        // SAFETY: the context is current.
        let event = unsafe { driver::event_create(EventKind::Untimed) }?;
        let recorded = loop {
            // SAFETY: the event is of this context, which is current.
            match unsafe { driver::event_record_behind_all(event, self.0.context) } {
                // A stream records what it is given; that ends without the device.
                Err(error) if error.code() == Some(code::STREAM_CAPTURE_UNSUPPORTED) => {
                    std::thread::sleep(LOOK);
                }
                other => break other,
            }
        };
        let done = match recorded {
            Ok(()) => wait(event).map(Some),
            Err(error) if error.is_context_lost() => Err(error),
            Err(_) => Ok(None),
        };
        // SAFETY: it was made here, and has no other owner.
        let _ = unsafe { driver::event_destroy(event) };
        done
    }

    /// Makes it current in this thread: each call of the driver is about the current one.
    pub(super) fn enter(&self) -> Result<()> {
        self.0.enter()
    }

    /// The driver's own name of it, for calls that do not take the current one.
    pub(super) fn handle(&self) -> CUcontext {
        self.0.context
    }

    /// Frees something, now or when the device is at rest.
    pub(super) fn discard(&self, discarded: Discarded) {
        locked(&self.0.discarded).push(discarded);
        self.0.sweep();
    }

    /// As [`Self::discard`], for pages that their owner is about to unmap: waits a while for the device.
    pub(super) fn discard_waiting(&self, discarded: Discarded) {
        locked(&self.0.discarded).push(discarded);
        self.at_rest(REST);
    }

    pub(super) fn add_stream(&self, stream: CUstream) {
        locked(&self.0.streams).push(Entry { stream, abandoned: false, records: false });
    }

    pub(super) fn abandon_stream(&self, stream: CUstream) {
        self.0.mark(stream, |entry| entry.abandoned = true);
        self.0.sweep();
    }

    pub(super) fn stream_records(&self, stream: CUstream, records: bool) {
        self.0.mark(stream, |entry| entry.records = records);
    }
}

/// The lists are consistent after a panic too.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn new(gpu: Gpu, context: CUcontext, is_primary: bool) -> Inner {
        let (streams, discarded, sweeping) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (stays, lost) = (AtomicBool::new(false), AtomicUsize::new(0));
        Inner { gpu, context, is_primary, stays, streams, discarded, sweeping, lost }
    }

    fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as this value, which has a share in it.
        unsafe { driver::set_current(self.context) }
    }

    fn mark(&self, stream: CUstream, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = locked(&self.streams).iter_mut().find(|entry| entry.stream == stream) {
            change(entry);
        }
    }

    fn at_rest(&self, limit: Duration) -> bool {
        let since = Instant::now();
        while !self.sweep() {
            if since.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Looks at each stream once; if all are idle, destroys those without an owner, frees what was set aside.
    fn sweep(&self) -> bool {
        if self.enter().is_err() {
            return true;
        }
        let _alone = locked(&self.sweeping);
        // Taken before the look: what is put aside later may be used by what is launched later.
        let discarded = std::mem::take(&mut *locked(&self.discarded));
        if self.is_busy() {
            locked(&self.discarded).splice(0..0, discarded);
            return false;
        }
        let stays = self.stays.load(Ordering::Relaxed);
        for thing in discarded {
            if stays && !thing.is_memory() {
                std::mem::forget(thing);
                continue;
            }
            // SAFETY: it belonged to this list alone, and nothing that ran when it came there runs any more.
            if unsafe { thing.free() }.is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    fn is_busy(&self) -> bool {
        let mut busy = false;
        locked(&self.streams).retain(|entry| {
            if entry.records {
                return true;
            }
            // SAFETY: the list holds streams of this context that were not destroyed.
            let rests = unsafe { driver::stream_query(entry.stream) };
            // Any other error says nothing of what runs.
            let rests = rests.unwrap_or_else(|error| error.is_context_lost() || error.is_driver_gone());
            busy |= !rests;
            if !(rests && entry.abandoned) {
                return true;
            }
            // SAFETY: this list is its only owner, and forgets it here.
            let _ = unsafe { driver::stream_destroy(entry.stream) };
            false
        });
        busy
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Giving back the last share waits for the device: where it does not come to rest, the context stays.
        if self.at_rest(REST) && !self.stays.load(Ordering::Relaxed) {
            let _ = match self.is_primary {
                // SAFETY: a `Context` took the share; all that was made in it held this value, and is gone.
                true => unsafe { driver::primary_release(self.gpu.device) },
                // SAFETY: a `Context` made this one; all that was made in it held this value, and is gone.
                false => unsafe { driver::context_destroy(self.context) },
            };
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
