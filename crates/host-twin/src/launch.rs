//! A launch: one thread a lane, one that lets stores go when their time has come, and a deadline.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::block::{Block, Fault};
use crate::calls::Here;
use crate::host_memory::HostMemory;
use crate::kernels::{Arguments, Kernel, Run};
use crate::lane_set::{LaneSet, MAX_LANES};
use crate::memory::StoreBuffer;
use crate::random::SplitMix;
use crate::report::Waits;
use crate::site::Site;
use crate::slots::Slots;
use crate::{Launch, Ran, TwinError, Visibility};

/// How long lanes have to leave a kernel that was given up: each does at its next call of the twin.
const LEAVING: Duration = Duration::from_secs(2);

/// How long the other lanes of a launch in which some can never go on have to come to rest, so that the report tells where.
const SETTLING: Duration = Duration::from_millis(100);

/// A lane's stack: kernels keep little there, and there are many.
const STACK_BYTES: usize = 512 << 10;

const CLOSED: u32 = 0;
const OPEN: u32 = 1;
const CALLED_OFF: u32 = 2;

/// A launch, as its threads share it.
pub(crate) struct State {
    pub kernel: Kernel,
    pub arguments: Arguments,
    pub blocks: Vec<Mutex<Block>>,
    /// Lanes of each block.
    pub threads: usize,
    /// Nothing where stores go to memory at once.
    pub stores: Option<Mutex<StoreBuffer>>,
    /// How many wait there: a load need not look when none does.
    pub waiting: AtomicUsize,
    /// The next store's time, or the end, may be sooner than it was.
    pub stored: Condvar,
    given_up: AtomicBool,
    places: Vec<[AtomicU64; 2]>,
    lanes: Vec<OnceLock<Thread>>,
    gate: AtomicU32,
    progress: Mutex<Progress>,
    changed: Condvar,
    began: Instant,
}

struct Progress {
    living: usize,
    /// The first.
    fault: Option<Fault>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn block(&self, block: usize) -> MutexGuard<'_, Block> {
        lock(&self.blocks[block])
    }

    /// Whether lanes are to leave.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Monotonic, from the launch on.
    pub(crate) fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Where a lane is, for whoever asks.
    pub(crate) fn note(&self, lane: usize, site: Site) {
        let (file, rest) = site.to_words();
        self.places[lane][0].store(file, Ordering::Relaxed);
        self.places[lane][1].store(rest, Ordering::Relaxed);
    }

    /// Wakes lanes of a block that were let go.
    pub(crate) fn wake(&self, block: usize, lanes: &[usize]) {
        for lane in lanes {
            if let Some(thread) = self.lanes[block * self.threads + lane].get() {
                thread.unpark();
            }
        }
    }

    /// Lanes of a block, numbered through the launch.
    pub(crate) fn set_of(&self, block: usize, lanes: &[usize]) -> LaneSet {
        lanes.iter().map(|lane| block * self.threads + lane).collect()
    }

    /// Lanes can never go on: whoever waits for the launch gives it up.
    pub(crate) fn fail(&self, fault: Fault) {
        lock(&self.progress).fault.get_or_insert(fault);
        self.changed.notify_all();
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
        self.lanes.iter().filter_map(OnceLock::get).for_each(Thread::unpark);
        self.changed.notify_all();
    }

    fn look(&self, index: usize, block: &Block, lane: usize) -> (usize, usize, Site, Option<u32>, bool) {
        match block.waits_at(lane) {
            Some((site, mask)) => (index, lane, site, mask, true),
            None => {
                let [file, rest] = &self.places[index * self.threads + lane];
                let words = (file.load(Ordering::Relaxed), rest.load(Ordering::Relaxed));
                (index, lane, Site::from_words(words), None, false)
            }
        }
    }

    /// Every lane that has not ended.
    fn waits(&self) -> Waits {
        let mut lanes = Vec::new();
        for index in 0..self.blocks.len() {
            let block = self.block(index);
            let living = (0..self.threads).filter(|&lane| !block.has_ended(lane));
            lanes.extend(living.map(|lane| self.look(index, &block, lane)));
        }
        Waits::of(lanes.into_iter())
    }

    /// A lane's thread is through.
    fn end(&self, index: usize, lane: usize) {
        let mut block = self.block(index);
        let let_go = match block.end(lane) {
            Ok(let_go) => let_go,
            // Those who are left behind in a launch that was given up leave by themselves.
            Err(_) if self.is_given_up() => Vec::new(),
            Err(fault) => {
                self.fail(fault);
                Vec::new()
            }
        };
        self.meet(index, &let_go);
        drop(block);
        self.wake(index, &let_go);
        lock(&self.progress).living -= 1;
        self.changed.notify_all();
    }

    /// These lanes met at a barrier that orders memory.
    pub(crate) fn meet(&self, block: usize, lanes: &[usize]) {
        if let Some(stores) = self.stores.as_ref().filter(|_| !lanes.is_empty()) {
            lock(stores).meet(self.set_of(block, lanes));
        }
    }

    fn lane_main(self: Arc<State>, lane: usize, run: Run) {
        while self.gate.load(Ordering::Acquire) == CLOSED {
            std::thread::park();
        }
        let (block, thread) = (lane / self.threads, lane % self.threads);
        if self.gate.load(Ordering::Acquire) == OPEN {
            let dim = |x: usize| Dim { x: x as u32, y: 0, z: 0 };
            let size = |x: usize| Dim { y: 1, z: 1, ..dim(x) };
            let indices = Indices {
                thread: dim(thread),
                block: dim(block),
                threads: size(self.threads),
                blocks: size(self.blocks.len()),
            };
            let seed = match &self.stores {
                Some(stores) => lock(stores).seed() ^ (lane as u64) << 40,
                None => 0,
            };
            let here = Here::new(Arc::clone(&self), lane, SplitMix(seed));
            let mut pointers = self.arguments.pointers();
            here.enter(|| {
                // SAFETY: `start`'s caller vouches for what the kernel does with its arguments, whose number and sizes were
                // compared with its parameters.
                unsafe { db_twin_enter(run, pointers.as_mut_ptr(), &raw const indices) }
            });
        }
        self.end(block, thread);
    }

    /// Lets stores go when their time has come, until the launch is through.
    fn let_stores_go(&self) {
        let Some(stores) = &self.stores else { return };
        let mut buffer = lock(stores);
        while lock(&self.progress).living > 0 {
            let next = buffer.tick(&mut HostMemory, self.now_ns());
            self.waiting.store(buffer.len(), Ordering::SeqCst);
            let wait = next.map_or(1_000_000, |due| due.saturating_sub(self.now_ns()).clamp(1, 1_000_000));
            let timed = self.stored.wait_timeout(buffer, Duration::from_nanos(wait));
            buffer = timed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// `struct db_twin_here` of `twin.h`.
#[repr(C)]
struct Indices {
    thread: Dim,
    block: Dim,
    threads: Dim,
    blocks: Dim,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dim {
    x: u32,
    y: u32,
    z: u32,
}

unsafe extern "C" {
    fn db_twin_enter(run: Run, arguments: *mut *mut c_void, here: *const Indices) -> c_int;
}

/// A launch that runs. Dropping it gives it up.
pub struct Running {
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
    slots: Option<Slots>,
    deadline: Duration,
    until: Instant,
}

/// Starts a kernel.
///
/// # Safety
/// The arguments are what the kernel's source asks for, and whatever they lead to lives, and is not used against the
/// kernel's expectations, until [`Running::wait`] has returned; for ever, if that returned [`TwinError::Lost`].
pub unsafe fn start(kernel: Kernel, launch: &Launch, arguments: Arguments) -> Result<Running, TwinError> {
    let until = Instant::now() + launch.deadline;
    let (blocks, threads) = (launch.blocks as usize, launch.threads as usize);
    arguments.check(kernel)?;
    let runs = kernel.runs();
    let refuse = |limit: String| {
        Err(TwinError::Shape { kernel: kernel.name(), blocks: launch.blocks, threads: launch.threads, limit })
    };
    if blocks == 0 || threads == 0 || blocks.saturating_mul(threads) > MAX_LANES {
        return refuse(format!("the twin runs 1 to {MAX_LANES} lanes"));
    }
    if runs.len() > 1 && blocks > runs.len() {
        return refuse(format!("a kernel with __shared__ variables has at most {} blocks here", runs.len()));
    }
    let slots = if runs.len() == 1 {
        None
    } else {
        match Slots::take(kernel.key(), runs.len(), blocks, until) {
            Some(slots) => Some(slots),
            None => {
                let (kernel, deadline) = (kernel.name(), launch.deadline);
                return Err(TwinError::Busy { kernel, blocks: launch.blocks, deadline });
            }
        }
    };
    let lanes = blocks * threads;
    let state = Arc::new(State {
        kernel,
        arguments,
        blocks: (0..blocks).map(|_| Mutex::new(Block::new(threads))).collect(),
        threads,
        stores: match launch.visibility {
            Visibility::Weak { seed } => Some(Mutex::new(StoreBuffer::new(seed))),
            Visibility::InOrder => None,
        },
        waiting: AtomicUsize::new(0),
        stored: Condvar::new(),
        given_up: AtomicBool::new(false),
        places: (0..lanes).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
        lanes: (0..lanes).map(|_| OnceLock::new()).collect(),
        gate: AtomicU32::new(CLOSED),
        progress: Mutex::new(Progress { living: lanes, fault: None }),
        changed: Condvar::new(),
        began: Instant::now(),
    });
    let mut running = Running { state, threads: Vec::new(), slots, deadline: launch.deadline, until };
    running.start_threads(runs)?;
    Ok(running)
}

impl Running {
    /// All lanes at once, or none.
    fn start_threads(&mut self, runs: &[Run]) -> Result<(), TwinError> {
        let state = &self.state;
        let mut refused = None;
        for lane in 0..state.lanes.len() {
            let (block, thread) = (lane / state.threads, lane % state.threads);
            let run = runs[self.slots.as_ref().map_or(0, |slots| slots.instances[block])];
            let (name, mine) = (format!("twin-{block}-{thread}"), Arc::clone(state));
            let builder = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
            match builder.spawn(move || mine.lane_main(lane, run)) {
                Ok(handle) => {
                    state.lanes[lane].get_or_init(|| handle.thread().clone());
                    self.threads.push(handle);
                }
                Err(source) => {
                    refused = Some((lane, source));
                    lock(&state.progress).living = lane;
                    break;
                }
            }
        }
        if refused.is_none() && state.stores.is_some() {
            let mine = Arc::clone(state);
            let builder = std::thread::Builder::new().name("twin-stores".into());
            match builder.spawn(move || mine.let_stores_go()) {
                Ok(handle) => self.threads.push(handle),
                Err(source) => refused = Some((0, source)),
            }
        }
        state.gate.store(if refused.is_none() { OPEN } else { CALLED_OFF }, Ordering::Release);
        state.lanes.iter().filter_map(OnceLock::get).for_each(Thread::unpark);
        match refused {
            None => Ok(()),
            Some((lane, source)) => Err(TwinError::Thread { kernel: state.kernel.name(), lane, source }),
        }
    }

    /// Whether all lanes have ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.state.progress).living == 0
    }

    /// Whether [`Running::wait`] would return at once: all lanes have ended, or some can never go on.
    pub fn is_over(&self) -> bool {
        let progress = lock(&self.state.progress);
        progress.living == 0 || progress.fault.is_some()
    }

    /// As if the deadline were now.
    pub fn give_up(mut self) -> Result<Ran, TwinError> {
        self.until = Instant::now();
        self.finish()
    }

    /// Waits for the end, or the deadline.
    pub fn wait(mut self) -> Result<Ran, TwinError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<Ran, TwinError> {
        let kernel = self.state.kernel.name();
        let mut progress = lock(&self.state.progress);
        while progress.living > 0 && progress.fault.is_none() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.state.changed.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let fault = progress.fault.take();
        let mut waits = None;
        if progress.living > 0 || fault.is_some() {
            drop(progress);
            if fault.is_some() {
                std::thread::sleep(SETTLING);
            }
            waits = Some(self.state.waits());
            self.state.give_up();
            progress = lock(&self.state.progress);
        }
        let leave_by = Instant::now() + LEAVING;
        while progress.living > 0 {
            let left = leave_by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let lanes = progress.living;
                drop(progress);
                // Its threads are not waited for, and its blocks are never free again.
                self.threads.clear();
                std::mem::forget(self.slots.take());
                return Err(TwinError::Lost { kernel, lanes, waits: self.state.waits() });
            }
            let waited = self.state.changed.wait_timeout(progress, left);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(progress);
        self.state.stored.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let ran = match &self.state.stores {
            None => Ran { stored: 0, overtook: 0 },
            Some(stores) => {
                let mut buffer = lock(stores);
                buffer.empty(&mut HostMemory);
                let (stored, overtook) = buffer.counts();
                Ran { stored, overtook }
            }
        };
        let Some(waits) = waits else { return Ok(ran) };
        Err(match fault {
            Some(Fault::Mask(_)) => TwinError::Mask { kernel, waits },
            Some(Fault::Deadlock(_)) => TwinError::Deadlock { kernel, waits },
            None => TwinError::Deadline { kernel, deadline: self.deadline, waits },
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.until = Instant::now();
            // Nobody is left who would hear of it.
            let _ = self.finish();
        }
    }
}
