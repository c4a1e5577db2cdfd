//! Threads that call CUDA's driver for the NIC: the driver blocks, and the NIC must not.
//!
//! While the program frees memory, loads a kernel or copies in the default stream, and a kernel runs that does not end, the
//! driver holds a lock (measured on an H200: a copy of ours waits until that kernel ends). So the NIC hands jobs to a
//! thread and waits for each with a deadline. The thread has CUDA's context; the program's threads keep theirs.
//!
//! There are four, each started by its first job: one copies; one launches; one makes contexts and registers pages, which takes
//! seconds for tens of gigabytes; one gives pages back, for which it waits until the program's kernels have ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::contexts::GpuContexts;
use super::engine::{CopyEngines, Launcher};
use crate::os::signals::{NIC_THREAD, spawn};
use crate::os::{ForgetInChild, PerProcess, locked, system};

/// How long the thread looks for the next job before it sleeps, and how long a waiter for one spins.
const SPIN: Duration = Duration::from_micros(40);
/// How long it sleeps unless it is woken.
const NAP: Duration = Duration::from_secs(10);

type Job<H> = Box<dyn FnOnce(&mut H) + Send>;

/// A thread's queue of jobs; the thread keeps an `H` for them.
pub struct Worker<H> {
    jobs: Mutex<VecDeque<Job<H>>>,
    /// Counts jobs; the thread sleeps on it.
    bell: AtomicU32,
    asleep: AtomicU32,
    started: Mutex<bool>,
}

static COPIES: PerProcess<Worker<CopyEngines>> = PerProcess::new(&FORGETS);
static LAUNCHES: PerProcess<Worker<Launcher>> = PerProcess::new(&FORGETS);
static CONTEXTS: PerProcess<Worker<GpuContexts>> = PerProcess::new(&FORGETS);
static UNREGISTRATIONS: PerProcess<Worker<()>> = PerProcess::new(&FORGETS);

static FORGETS: ForgetInChild = ForgetInChild::new(forget_all);

/// In a fork child: it has none of its parent's threads.
extern "C" fn forget_all() {
    COPIES.forget();
    LAUNCHES.forget();
    CONTEXTS.forget();
    UNREGISTRATIONS.forget();
}

/// The one that copies. Error of all four: the kernel gave no thread.
pub fn copies() -> std::io::Result<&'static Worker<CopyEngines>> {
    COPIES.get().started()
}

pub fn launches() -> std::io::Result<&'static Worker<Launcher>> {
    LAUNCHES.get().started()
}

/// The one that makes contexts and registers pages.
pub fn contexts() -> std::io::Result<&'static Worker<GpuContexts>> {
    CONTEXTS.get().started()
}

/// The one that gives pages back.
pub fn unregistrations() -> std::io::Result<&'static Worker<()>> {
    UNREGISTRATIONS.get().started()
}

/// The answer of a job, when it comes.
#[derive(Debug)]
pub struct Ticket<R>(Arc<Slot<R>>);

#[derive(Debug)]
struct Slot<R> {
    done: AtomicU32,
    answer: Mutex<Option<R>>,
}

impl<R> Ticket<R> {
    /// Of a job that is never done.
    #[cfg(test)]
    pub fn open() -> Ticket<R> {
        Ticket(Arc::new(Slot { done: AtomicU32::new(0), answer: Mutex::new(None) }))
    }

    /// Whether the job has been done.
    pub fn is_done(&self) -> bool {
        self.0.done.load(Ordering::Acquire) != 0
    }

    /// The answer; `None` while there is none, or when it was taken.
    pub fn take(&self) -> Option<R> {
        if self.is_done() { locked(&self.0.answer).take() } else { None }
    }

    /// Waits for it, at most `limit`.
    pub fn wait(&self, limit: Duration) -> Option<R> {
        let since = Instant::now();
        while !self.is_done() {
            match since.elapsed() {
                waited if waited >= limit => return None,
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < 20 * SPIN => std::thread::yield_now(),
                _ => system::nap(Duration::from_micros(20)),
            }
        }
        self.take()
    }
}

impl<H> Default for Worker<H> {
    fn default() -> Worker<H> {
        Worker {
            jobs: Mutex::new(VecDeque::new()),
            bell: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            started: Mutex::new(false),
        }
    }
}

impl<H: Default + 'static> Worker<H> {
    fn started(&'static self) -> std::io::Result<&'static Worker<H>> {
        let mut started = locked(&self.started);
        if !*started {
            spawn(NIC_THREAD, move || self.serve())?;
            *started = true;
        }
        Ok(self)
    }

    /// Has the thread do something.
    pub fn post<R: Send + 'static>(&self, job: impl FnOnce(&mut H) -> R + Send + 'static) -> Ticket<R> {
        let slot = Arc::new(Slot { done: AtomicU32::new(0), answer: Mutex::new(None) });
        let theirs = slot.clone();
        let job: Job<H> = Box::new(move |state| {
            let answer = job(state);
            *locked(&theirs.answer) = Some(answer);
            theirs.done.store(1, Ordering::Release);
        });
        locked(&self.jobs).push_back(job);
        self.bell.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            system::futex_wake(&self.bell);
        }
        Ticket(slot)
    }

    fn serve(&self) {
        // Without it a question of this thread's spoils a graph that the program records; an older driver has it too.
        let _ = gpu::spare_captures();
        let mut state = H::default();
        let mut since = Instant::now();
        loop {
            let heard = self.bell.load(Ordering::SeqCst);
            let job = locked(&self.jobs).pop_front();
            if let Some(job) = job {
                job(&mut state);
                since = Instant::now();
                continue;
            }
            if since.elapsed() < SPIN {
                for _ in 0..64 {
                    if self.bell.load(Ordering::Relaxed) != heard {
                        break;
                    }
                    std::hint::spin_loop();
                }
                continue;
            }
            self.asleep.store(1, Ordering::SeqCst);
            system::futex_wait(&self.bell, heard, NAP);
            self.asleep.store(0, Ordering::SeqCst);
            since = Instant::now();
        }
    }
}
