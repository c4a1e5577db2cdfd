//! A thread that calls CUDA's driver for the NIC: the driver blocks, and the NIC must not.
//!
//! While the program frees memory, loads a kernel or copies in the default stream, and a kernel runs that
//! does not end, the driver holds a lock (measured, H200: a NIC copy waits for that kernel). So the NIC hands
//! jobs to a thread and waits for each with a deadline. It has CUDA's context; program threads keep theirs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::os::locked;
use crate::os::signals::{NIC_THREAD, spawn};

/// How long the thread looks for the next job before it sleeps, and how long a waiter for one spins.
const SPIN: Duration = Duration::from_micros(40);

type Job<H> = Box<dyn FnOnce(&mut H) + Send>;

/// A thread's queue of jobs; the thread keeps an `H` for them, and ends with this.
pub struct Worker<H>(Sender<Job<H>>);

/// State of a job: posted, begun, done; or cancelled, and then done. A job that must not run after its
/// poster's deadline begins explicitly, before each driver call. So a copy that timed out behind a blocked
/// call does not write into memory that is reused by then.
#[derive(Debug, Default)]
pub struct JobState(AtomicU32);

impl JobState {
    const POSTED: u32 = 0;
    const BEGUN: u32 = 1;
    const CANCELLED: u32 = 2;
    const DONE: u32 = 3;

    /// The job is about to call the driver; false: it was cancelled.
    pub fn begin(&self) -> bool {
        let begun = self.0.compare_exchange(Self::POSTED, Self::BEGUN, Ordering::AcqRel, Ordering::Acquire);
        begun != Err(Self::CANCELLED)
    }

    fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::DONE
    }

    /// The state before.
    fn cancel(&self) -> u32 {
        let cancel = |state| (state != Self::DONE).then_some(Self::CANCELLED);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, cancel).unwrap_or(Self::DONE)
    }
}

/// The answer of a job, when it comes.
#[derive(Debug)]
pub struct Ticket<R>(Arc<Slot<R>>);

#[derive(Debug)]
struct Slot<R> {
    state: JobState,
    answer: Mutex<Option<R>>,
}

impl<R> Ticket<R> {
    /// Of a job that was posted just now.
    pub fn open() -> Ticket<R> {
        Ticket(Arc::new(Slot { state: JobState::default(), answer: Mutex::new(None) }))
    }

    pub fn is_done(&self) -> bool {
        self.0.state.is_done()
    }

    /// The answer; `None` while there is none, or when it was taken.
    pub fn take(&self) -> Option<R> {
        if self.is_done() { locked(&self.0.answer).take() } else { None }
    }

    pub fn wait(&self, limit: Duration) -> Option<R> {
        let since = Instant::now();
        while !self.is_done() {
            match since.elapsed() {
                waited if waited >= limit => return None,
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < 20 * SPIN => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
        self.take()
    }

    /// Cancels the job. True: it has not begun, nor will.
    pub fn cancel(&self) -> bool {
        self.0.state.cancel() == JobState::POSTED
    }
}

impl<H: Default + 'static> Worker<H> {
    /// Starts the thread. Error: the kernel gave none.
    pub fn start() -> std::io::Result<Worker<H>> {
        let (jobs, queue) = channel();
        spawn(NIC_THREAD, move || serve(&queue))?;
        Ok(Worker(jobs))
    }

    /// Has the thread do something.
    pub fn post<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut H, &JobState) -> R + Send + 'static,
    ) -> Ticket<R> {
        let ticket = Ticket::open();
        let slot = ticket.0.clone();
        let job: Job<H> = Box::new(move |kept| {
            let answer = job(kept, &slot.state);
            *locked(&slot.answer) = Some(answer);
            slot.state.0.store(JobState::DONE, Ordering::Release);
        });
        if let Err(SendError(job)) = self.0.send(job) {
            // Without a thread its poster's deadline passes. What it holds stays: a copy may still use it.
            std::mem::forget(job);
        }
        ticket
    }
}

fn serve<H: Default>(jobs: &Receiver<Job<H>>) {
    // Without this call, queries here spoil a graph that the program records. Older drivers have it too.
    let _ = gpu::spare_captures();
    let mut kept = H::default();
    loop {
        let since = Instant::now();
        let job = loop {
            match jobs.try_recv() {
                Ok(job) => break job,
                Err(TryRecvError::Empty) if since.elapsed() < SPIN => std::hint::spin_loop(),
                Err(_) => match jobs.recv() {
                    Ok(job) => break job,
                    Err(_) => return,
                },
            }
        };
        job(&mut kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_was_cancelled_does_not_begin_and_one_that_has_begun_stops_at_its_next_call() {
        for (begins_first, was_free) in [(false, true), (true, false)] {
            let ticket: Ticket<()> = Ticket::open();
            let state = &ticket.0.state;
            assert!(!begins_first || state.begin() && state.begin());
            assert_eq!(ticket.cancel(), was_free);
            assert!(!state.begin() && !ticket.is_done());
            state.0.store(JobState::DONE, Ordering::Release);
            assert!(!ticket.cancel() && ticket.is_done(), "a job that is done stays done");
        }
    }
}
