//! A kernel that runs, and everything that it touches.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::error::KernelError;
use super::memory::HostMemory;

/// How long a kernel has to end once it was told to: each of ours looks at its word many times in that.
const LEAVING: Duration = Duration::from_secs(5);

/// Where it was launched.
pub(super) enum Launched {
    Gpu(Arc<gpu::Stream>),
    Twin(host_twin::Running),
}

/// A launched kernel. Dropped, it is told to end and waited for; if it does not end, `T` is kept for ever.
pub struct Running<T> {
    name: &'static str,
    launched: Option<Launched>,
    cancel: HostMemory,
    /// Nothing when it has ended.
    held: Option<T>,
}

impl<T> std::fmt::Debug for Running<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Running({})", self.name)
    }
}

impl<T> Running<T> {
    pub(super) fn new(name: &'static str, launched: Launched, cancel: HostMemory, held: T) -> Running<T> {
        Running { name, launched: Some(launched), cancel, held: Some(held) }
    }

    /// What it uses, while it runs: words that it writes, queues whose states may be looked at.
    pub fn held(&self) -> Option<&T> {
        self.held.as_ref()
    }

    /// Whether it has ended. Error: what went wrong in it, as an illegal address, or lanes that never go on.
    pub fn is_over(&self) -> Result<bool, KernelError> {
        match &self.launched {
            Some(Launched::Gpu(stream)) => Ok(stream.is_idle()?),
            Some(Launched::Twin(running)) => Ok(running.is_over()),
            None => Ok(true),
        }
    }

    /// Tells it to end: it looks at this word while it waits.
    pub fn cancel(&self) {
        self.cancel.words()[0].store(1, Ordering::Release);
    }

    /// Sleeps until its end, without a deadline and on a GPU without polling. Errors as [`Running::is_over`].
    pub fn sleep(&self) -> Result<(), KernelError> {
        match &self.launched {
            Some(Launched::Gpu(stream)) => Ok(stream.end()?.sleep()?),
            _ => self.wait(Duration::MAX).map(drop),
        }
    }

    /// Waits for its end, at most `limit`; says whether it came. Errors as [`Running::is_over`].
    pub fn wait(&self, limit: Duration) -> Result<bool, KernelError> {
        gpu::poll_until(limit, || self.is_over())
    }

    /// Waits at most `limit` for its end, then tells it to end; returns what it used. Errors: what went wrong
    /// in it; `NeverEnds`, and then what it uses is kept for ever.
    pub fn end(mut self, limit: Duration) -> Result<T, KernelError> {
        self.finish(limit).and_then(|held| held.ok_or(KernelError::Refused("it has ended before".into())))
    }

    /// Gives what it used, once.
    fn finish(&mut self, limit: Duration) -> Result<Option<T>, KernelError> {
        let mut over = self.wait(limit);
        if matches!(over, Ok(false)) {
            self.cancel();
            over = self.wait(LEAVING);
        }
        let ended = match (self.launched.take(), over) {
            (Some(Launched::Twin(running)), Ok(true)) => running.wait().map(drop).map_err(KernelError::from),
            // It ends here: its lanes leave at their next call of the twin.
            (Some(Launched::Twin(running)), _) => running.give_up().map(drop).map_err(KernelError::from),
            (_, Ok(true)) => Ok(()),
            (_, Ok(false)) => Err(KernelError::NeverEnds { kernel: self.name, waited: LEAVING }),
            (_, Err(error)) => Err(error),
        };
        let held = self.held.take();
        if let Err(KernelError::NeverEnds { .. } | KernelError::Twin(host_twin::TwinError::Lost { .. })) =
            &ended
        {
            std::mem::forget((held, self.cancel.clone()));
            return ended.map(|()| None);
        }
        ended.map(|()| held)
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if self.launched.is_some() {
            // No caller is left to be told the error.
            let _ = self.finish(Duration::ZERO);
        }
    }
}
