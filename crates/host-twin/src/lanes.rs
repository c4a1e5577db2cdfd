//! A launch with weak memory: one thread a lane, and one that lets stores go when their time has come.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::block::{Block, Fault};
use crate::calls::Here;
use crate::host_memory::HostMemory;
use crate::lane_set::LaneSet;
use crate::launch::{Control, Crew, Indices, Run};
use crate::memory::StoreBuffer;
use crate::random::SplitMix;
use crate::report::{At, Waits};
use crate::shared_memory::SharedMemory;
use crate::site::Site;
use crate::{Ran, TwinError};

/// A lane's stack: kernels keep little there, and there are many.
const STACK_BYTES: usize = 512 << 10;

const CLOSED: u32 = 0;
const OPEN: u32 = 1;
const CALLED_OFF: u32 = 2;

/// A launch, as its threads share it.
pub(crate) struct Lanes {
    pub control: Control,
    pub blocks: Vec<Mutex<Block>>,
    shared: Vec<Mutex<SharedMemory>>,
    /// Lanes of each block.
    pub threads: usize,
    pub stores: Mutex<StoreBuffer>,
    /// How many wait there: a load need not look when none does.
    pub waiting: AtomicUsize,
    /// The next store's time, or the end, may be sooner than it was.
    pub stored: Condvar,
    places: Vec<[AtomicU64; 2]>,
    lanes: Vec<OnceLock<Thread>>,
    gate: AtomicU32,
    /// The grid's barrier.
    barrier: [AtomicU32; 2],
    began: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lanes {
    /// All lanes at once, or none.
    pub(crate) fn start(control: Control, seed: u64) -> Result<(Arc<Lanes>, Vec<JoinHandle<()>>), TwinError> {
        let (blocks, threads) =
            (control.shape.blocks.count() as usize, control.shape.threads.count() as usize);
        let (lanes, run, kernel) = (blocks * threads, control.kernel.run(), control.kernel.name());
        control.set_living(lanes);
        let dynamic = control.shape.shared_bytes as usize;
        let shared = || {
            let mut shared = SharedMemory::default();
            shared.begin(dynamic);
            Mutex::new(shared)
        };
        let state = Arc::new(Lanes {
            control,
            blocks: (0..blocks).map(|_| Mutex::new(Block::new(threads))).collect(),
            shared: (0..blocks).map(|_| shared()).collect(),
            threads,
            stores: Mutex::new(StoreBuffer::new(seed)),
            waiting: AtomicUsize::new(0),
            stored: Condvar::new(),
            places: (0..lanes).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect(),
            lanes: (0..lanes).map(|_| OnceLock::new()).collect(),
            gate: AtomicU32::new(CLOSED),
            barrier: [const { AtomicU32::new(0) }; 2],
            began: Instant::now(),
        });
        let (mut started, mut refused) = (Vec::new(), None);
        for lane in 0..lanes {
            let name = format!("twin-{}-{}", lane / threads, lane % threads);
            let mine = Arc::clone(&state);
            let builder = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
            match builder.spawn(move || mine.lane_main(lane, run)) {
                Ok(handle) => {
                    state.lanes[lane].get_or_init(|| handle.thread().clone());
                    started.push(handle);
                }
                Err(source) => {
                    refused = Some((lane, source));
                    state.control.set_living(lane);
                    break;
                }
            }
        }
        if refused.is_none() {
            let mine = Arc::clone(&state);
            let builder = std::thread::Builder::new().name("twin-stores".into());
            match builder.spawn(move || mine.let_stores_go()) {
                Ok(handle) => started.push(handle),
                Err(source) => refused = Some((0, source)),
            }
        }
        state.gate.store(if refused.is_none() { OPEN } else { CALLED_OFF }, Ordering::Release);
        state.lanes.iter().filter_map(OnceLock::get).for_each(Thread::unpark);
        match refused {
            None => Ok((state, started)),
            Some((lane, source)) => {
                started.into_iter().for_each(|thread| drop(thread.join()));
                Err(TwinError::Thread { kernel, lane, source })
            }
        }
    }

    pub(crate) fn block(&self, block: usize) -> MutexGuard<'_, Block> {
        lock(&self.blocks[block])
    }

    /// Monotonic, from the launch on.
    pub(crate) fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Where a lane is, for reports of the launch.
    pub(crate) fn note(&self, lane: usize, site: Site) {
        let (file, rest) = site.to_words();
        self.places[lane][0].store(file, Ordering::Relaxed);
        self.places[lane][1].store(rest, Ordering::Relaxed);
    }

    /// Wakes lanes of a block that were let go.
    pub(crate) fn let_go(&self, block: usize, lanes: &[usize]) {
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

    /// A shared variable of a block. None: the launch has failed for want of room.
    pub(crate) fn variable(
        &self,
        block: usize,
        tag: usize,
        name: &str,
        bytes: usize,
        align: usize,
    ) -> Option<*mut u8> {
        let place = lock(&self.shared[block]).variable(tag, name, bytes, align);
        if place.is_none() {
            self.control.fail(Fault::SharedMemory(name.to_owned(), bytes));
        }
        place
    }

    fn look(&self, index: usize, block: &Block, lane: usize) -> At {
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
            // Lanes that remain in an abandoned launch leave by themselves.
            Err(_) if self.control.is_given_up() => Vec::new(),
            Err(fault) => {
                self.control.fail(fault);
                Vec::new()
            }
        };
        self.meet(index, &let_go);
        let is_last = (0..self.threads).all(|lane| block.has_ended(lane));
        drop(block);
        if let Some(variable) = is_last.then(|| lock(&self.shared[index]).overrun()).flatten() {
            self.control.fail(Fault::Overrun(variable));
        }
        self.let_go(index, &let_go);
        self.control.end(1);
    }

    /// These lanes met at a barrier that orders memory.
    pub(crate) fn meet(&self, block: usize, lanes: &[usize]) {
        if !lanes.is_empty() {
            lock(&self.stores).meet(self.set_of(block, lanes));
        }
    }

    fn lane_main(self: Arc<Lanes>, lane: usize, run: Run) {
        while self.gate.load(Ordering::Acquire) == CLOSED {
            std::thread::park();
        }
        let (block, thread) = (lane / self.threads, lane % self.threads);
        if self.gate.load(Ordering::Acquire) == OPEN {
            let shape = &self.control.shape;
            let indices = Indices {
                thread: shape.threads.place(thread as u64),
                block: shape.blocks.place(block as u64),
                threads: shape.threads,
                blocks: shape.blocks,
                lane: thread as u32,
                dynamic: lock(&self.shared[block]).dynamic(),
                grid: self.barrier.as_ptr(),
                ..Indices::default()
            };
            let seed = lock(&self.stores).seed() ^ (lane as u64) << 40;
            let here = Here::new(Arc::clone(&self), lane, SplitMix(seed));
            let mut pointers = self.control.arguments.pointers();
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
        let mut buffer = lock(&self.stores);
        while !self.control.has_ended() {
            let next = buffer.tick(&mut HostMemory, self.now_ns());
            self.waiting.store(buffer.len(), Ordering::SeqCst);
            let wait = next.map_or(1_000_000, |due| due.saturating_sub(self.now_ns()).clamp(1, 1_000_000));
            let timed = self.stored.wait_timeout(buffer, Duration::from_nanos(wait));
            buffer = timed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

unsafe extern "C" {
    fn db_twin_enter(run: Run, arguments: *mut *mut c_void, here: *const Indices) -> c_int;
}

impl Crew for Lanes {
    fn control(&self) -> &Control {
        &self.control
    }

    fn wake(&self) {
        self.lanes.iter().filter_map(OnceLock::get).for_each(Thread::unpark);
        self.stored.notify_all();
    }

    fn waits_before(&self) -> Option<Waits> {
        Some(self.waits())
    }

    fn waits_after(&self) -> Waits {
        self.waits()
    }

    fn finish(&self) -> Ran {
        let mut buffer = lock(&self.stores);
        buffer.empty(&mut HostMemory);
        let (stored, overtook) = buffer.counts();
        Ran { stored, overtook }
    }
}
