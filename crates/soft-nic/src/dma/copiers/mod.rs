//! Copy helpers: threads of the process that take slices of one large copy beside the thread that shares it.
//!
//! One core copies what its caches do not hold at 80 to 105 Gbit/s, two nearly twice that. [`Copiers::share`]
//! numbers a copy's slices by increasing address; a free thread claims the next. One word is the state:
//!
//! ```text
//! bits  0..20 next slice to claim    20..40 slices    40..48 helpers that copy now    48..56 helpers at most
//! ```
//! A claim is one compare-and-swap that takes the next number and counts a helper as active, so the word also
//! says when no thread touches the memory any more (INV-16). Therefore:
//! - The sharing thread never waits for a helper asleep, or without a core before its claim: it has no slice.
//! - It waits for slices in flight, as long as one slice takes at most: a helper that has claimed does only
//!   this copy, which waits for what any copy would wait for, a page or a core.
//! - A slice that fails ends the claims. Earlier ones were claimed, so the first failure by address is known.
//!
//! One copy at a time is shared; a second one in the process goes without helpers. Helpers start with the
//! first shared copy, look for the next one for [`SPIN`], and then sleep.

#[cfg(test)]
pub(crate) mod tests;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::config::MAX_COPY_THREADS;
use crate::os::signals::{NIC_THREAD, spawn};
use crate::os::{PerProcess, log, system};

pub const MOST_SLICES: u32 = (1 << 20) - 1;

/// Shortest payload shared with helpers. One thread copies 32 KiB as fast, if a cache of its core holds it.
pub const SHARED_FROM: u64 = 64 << 10;

/// Lengths of a slice: less is not worth the claim, more lets the last one wait for longer.
const SHORTEST: u64 = 16 << 10;
const LONGEST: u64 = 64 << 10;

const PAGE: u64 = system::PAGE as u64;

/// How long a helper looks for the next slice before it sleeps. On a full 100 Gbit/s link, the next 1 MiB
/// message comes 35 µs after the last copy; waking takes as long as copying 100 KiB.
const SPIN: Duration = Duration::from_micros(100);

/// How long a helper sleeps unless it is woken.
const NAP: Duration = Duration::from_secs(10);

/// Looks at the word before the sharing thread yields its core: some 20 µs, longer than a slice takes.
const LOOKS: u32 = 2_000;

/// Offers before it sleeps between two looks.
const OFFERS: u32 = 200;

/// A cache line of its own for what all threads poll.
#[derive(Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// The helpers of this process, and the copy that is shared now.
#[derive(Default)]
struct Helpers {
    /// A [`State`].
    word: Line,
    /// A helper's slice failed, in that copy.
    failed: AtomicBool,
    /// Its [`Job`]; valid for a thread that has claimed a slice, until it says that it is done.
    job: AtomicPtr<Job<'static>>,
    /// Set while a thread shares a copy.
    permit_taken: AtomicBool,
    started: AtomicU32,
    /// The kernel gave no thread: not asked again.
    refused: AtomicBool,
    /// Counts what sleepers are to look at; they sleep on it.
    bell: AtomicU32,
    /// Helpers that sleep, or are about to.
    asleep: AtomicU32,
    /// Slices that helpers have copied.
    helped: AtomicU64,
}

static HELPERS: PerProcess<Helpers> = PerProcess::empty();

/// What is shared: a copy of the slice with a number; false when it failed.
struct Job<'a> {
    copy: &'a (dyn Fn(u32) -> bool + Sync),
}

/// A helper in the word's count of those that copy now.
const HELPER: u64 = 1 << 40;

/// A value of the word, from the low bits on: next slice (20 bits), slices of the copy (20), helpers that
/// copy now (8), and the most that may (8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    fn next(self) -> u32 {
        self.0 as u32 & MOST_SLICES
    }

    fn slices(self) -> u32 {
        (self.0 >> 20) as u32 & MOST_SLICES
    }

    fn under_way(self) -> u8 {
        (self.0 / HELPER) as u8
    }

    /// The next slice is taken.
    fn claimed(self) -> Option<State> {
        (self.next() < self.slices()).then_some(State(self.0 + 1))
    }

    /// A helper takes it.
    fn joined(self) -> Option<State> {
        let joined = State(self.claimed()?.0 + HELPER);
        (joined.under_way() <= self.most_helpers()).then_some(joined)
    }

    fn most_helpers(self) -> u8 {
        (self.0 >> 48) as u8
    }

    /// A helper is done with its slice, and with the copy.
    fn left(self) -> State {
        State(self.0 - HELPER)
    }

    /// Nothing more is to be claimed.
    fn closed(self) -> State {
        State(self.0 - u64::from(self.next()) + u64::from(self.slices()))
    }
}

/// How many helpers a copy may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copiers {
    helpers: u8,
}

impl Copiers {
    /// At most so many, and [`MAX_COPY_THREADS`].
    pub fn new(helpers: u8) -> Copiers {
        Copiers { helpers: helpers.min(MAX_COPY_THREADS) }
    }

    /// How many helpers; 0: nothing is shared.
    pub fn helpers(&self) -> u8 {
        self.helpers
    }

    /// Calls `copy` with every number below `slices` (at most [`MOST_SLICES`]), here and on the helpers, each
    /// once and handed out in increasing order. After `copy` returned false, no further one begins. Nothing
    /// runs any more when this returns or unwinds. Returns whether every slice was copied.
    pub fn share(&self, slices: u32, copy: &(dyn Fn(u32) -> bool + Sync)) -> bool {
        let job = Job { copy };
        let is_shared = self.helpers > 0 && slices > 1 && slices <= MOST_SLICES;
        // Made behind the job, and so dropped before it.
        let Some(permit) = is_shared.then(SharePermit::take).flatten() else { return (0..slices).all(copy) };
        permit.0.start(self.helpers);
        permit.open(&job, slices, self.helpers);
        let mut whole = true;
        while whole && let Some(before) = permit.0.change(State::claimed) {
            whole = copy(before.next());
        }
        permit.close();
        whole && !permit.0.failed.load(Ordering::Relaxed)
    }
}

/// How a copy is cut into slices: at pages of the destination, of its first segment where it has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    len: u64,
    slice: u64,
    /// Bytes of the destination's first page that lie before it.
    before: u64,
}

impl Cut {
    /// Of `len` bytes to `to`, for this many helpers.
    pub fn new(copiers: Copiers, to: u64, len: u64) -> Cut {
        // Two slices a thread: the one that comes late takes fewer.
        let fair = len / (2 * (u64::from(copiers.helpers) + 1));
        let slice = fair.clamp(SHORTEST, LONGEST) & !(PAGE - 1);
        let slice = slice.max((len / u64::from(MOST_SLICES / 2)).next_multiple_of(PAGE));
        Cut { len, slice, before: to % PAGE }
    }

    pub fn count(&self) -> u32 {
        // Below MOST_SLICES, as the length of a slice was chosen.
        (self.len + self.before).div_ceil(self.slice) as u32
    }

    /// First byte of a slice, and the one after its last.
    pub fn range(&self, slice: u32) -> std::ops::Range<u64> {
        let at = |slice: u64| (slice * self.slice).saturating_sub(self.before).min(self.len);
        at(slice.into())..at(u64::from(slice) + 1)
    }
}

/// Permit to share a copy with the helpers, one in a process. Closed and released on drop, so that no helper
/// stays behind when the caller unwinds.
struct SharePermit<'a>(&'static Helpers, PhantomData<&'a Job<'a>>);

impl<'a> SharePermit<'a> {
    fn take() -> Option<SharePermit<'a>> {
        let helpers = HELPERS.get();
        (!helpers.permit_taken.swap(true, Ordering::Acquire)).then_some(SharePermit(helpers, PhantomData))
    }

    /// Offers the slices of `job`, which outlives the permit: [`SharePermit::close`] ends all use of it.
    fn open(&self, job: &'a Job<'a>, slices: u32, most_helpers: u8) {
        self.0.failed.store(false, Ordering::Relaxed);
        self.0.job.store((&raw const *job).cast_mut().cast(), Ordering::Relaxed);
        let word = u64::from(slices) << 20 | u64::from(most_helpers) << 48;
        // Sequentially consistent, as a helper's step before sleep: it sees the word, or is seen asleep.
        self.0.word.0.store(word, Ordering::SeqCst);
        self.0.wake_one();
    }

    /// Ends the claims and waits for the slices under way. No helper uses the job after that.
    fn close(&self) {
        self.0.change(|state| Some(state.closed()));
        let mut looks = 0u32;
        while self.0.state(Ordering::Acquire).under_way() > 0 {
            looks = looks.saturating_add(1);
            match looks {
                ..=LOOKS => std::hint::spin_loop(),
                _ if looks <= LOOKS + OFFERS => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }
}

impl Drop for SharePermit<'_> {
    fn drop(&mut self) {
        self.close();
        self.0.permit_taken.store(false, Ordering::Release);
    }
}

impl Helpers {
    fn state(&self, order: Ordering) -> State {
        State(self.word.0.load(order))
    }

    /// Moves the word on; the state before, or `None` when `to` does not want to.
    fn change(&self, to: impl Fn(State) -> Option<State>) -> Option<State> {
        let to = |word| to(State(word)).map(|state| state.0);
        self.word.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, to).ok().map(State)
    }

    fn wake_one(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            self.bell.fetch_add(1, Ordering::SeqCst);
            system::futex_wake(&self.bell);
        }
    }

    /// Starts helpers that are not there yet. Only with the permit.
    fn start(&'static self, helpers: u8) {
        while self.started.load(Ordering::Relaxed) < helpers.into() && !self.refused.load(Ordering::Relaxed) {
            match spawn(NIC_THREAD, || self.help()) {
                Ok(_) => _ = self.started.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    self.refused.store(true, Ordering::Relaxed);
                    log(&format!("no thread to help with large copies: {error}; the NIC goes on without"));
                }
            }
        }
    }

    fn help(&self) {
        system::tune_thread();
        let mut since = Instant::now();
        loop {
            if self.work() {
                since = Instant::now();
                continue;
            }
            if since.elapsed() < SPIN {
                for _ in 0..64 {
                    if self.state(Ordering::Relaxed).joined().is_some() {
                        break;
                    }
                    std::hint::spin_loop();
                }
                continue;
            }
            let heard = self.bell.load(Ordering::SeqCst);
            self.asleep.fetch_add(1, Ordering::SeqCst);
            if self.state(Ordering::SeqCst).joined().is_none() {
                system::futex_wait(&self.bell, heard, NAP);
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            if self.state(Ordering::Relaxed).joined().is_some() {
                // One wakes the next, so that the sharing thread pays for one.
                self.wake_one();
            }
            since = Instant::now();
        }
    }

    /// Copies slices until there is none; whether there was one.
    fn work(&self) -> bool {
        let Some(mut before) = self.change(State::joined) else { return false };
        loop {
            let job = self.job.load(Ordering::Relaxed);
            // SAFETY: this thread has claimed a slice and not said that it is done, so the thread that shares
            // the job waits, and the job lives; the claim acquired what was stored before the word.
            let job = unsafe { &*job };
            let whole = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (job.copy)(before.next())));
            if !whole.unwrap_or(false) {
                self.failed.store(true, Ordering::Relaxed);
                self.change(|state| Some(state.closed().left()));
                return true;
            }
            self.helped.fetch_add(1, Ordering::Relaxed);
            // The next one, or the end, in one step: in between no other thread would know of this one.
            match self.change(|state| Some(state.claimed().unwrap_or(state.left()))) {
                Some(state) if state.claimed().is_some() => before = state,
                _ => return true,
            }
        }
    }
}

/// Counters with their names, for the `--stats` line.
pub fn counters() -> [(&'static str, u64); 2] {
    let helpers = HELPERS.get();
    [
        ("copy_helpers", helpers.started.load(Ordering::Relaxed).into()),
        ("copy_slices_helped", helpers.helped.load(Ordering::Relaxed)),
    ]
}
