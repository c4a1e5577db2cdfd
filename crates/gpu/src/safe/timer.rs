//! Events of a stream: a timer on the GPU's own clock, and the end that a thread sleeps for.

use std::time::Duration;

use super::context::Context;
use super::stream::Stream;
use super::wait;
use crate::result::Result;
use crate::result::driver::{self, CUevent};

/// Two events of one context. Resolution: about half a microsecond.
#[derive(Debug)]
pub struct GpuTimer {
    context: Context,
    start: CUevent,
    end: CUevent,
}

// SAFETY: the driver's calls about an event may come from any thread.
unsafe impl Send for GpuTimer {}

impl GpuTimer {
    /// A timer that has not begun.
    pub fn new(context: &Context) -> Result<GpuTimer> {
        context.enter()?;
        // SAFETY: the context is current.
        let start = unsafe { driver::event_create() }?;
        // SAFETY: as above.
        match unsafe { driver::event_create() } {
            Ok(end) => Ok(GpuTimer { context: context.clone(), start, end }),
            Err(error) => {
                // SAFETY: it was made just now, and has no other owner.
                let _ = unsafe { driver::event_destroy(start) };
                Err(error)
            }
        }
    }

    /// Begins when the stream comes to this point.
    pub fn begin(&mut self, stream: &Stream) -> Result<()> {
        self.record(self.start, stream)
    }

    /// Ends when the stream comes to this point.
    pub fn finish(&mut self, stream: &Stream) -> Result<()> {
        self.record(self.end, stream)
    }

    fn record(&self, event: CUevent, stream: &Stream) -> Result<()> {
        stream.same_context(&self.context, "the timer")?;
        self.context.enter()?;
        // SAFETY: both live, in the context that is current.
        unsafe { driver::event_record(event, stream.handle()) }
    }

    /// The time between, waited for at most `limit`. Errors: `Deadline`; one of the two points was never set.
    pub fn elapsed(&self, limit: Duration) -> Result<Duration> {
        self.context.enter()?;
        // SAFETY: the event lives, in the context that is current.
        wait::until("the end of a timed stretch", limit, || unsafe { driver::event_query(self.end) })?;
        // SAFETY: as above, for both.
        let elapsed_ms = unsafe { driver::event_elapsed_ms(self.start, self.end) }?;
        Ok(Duration::from_secs_f64(f64::from(elapsed_ms.max(0.0)) / 1e3))
    }
}

/// The end of all that a stream was given before, for a thread that sleeps until then.
#[derive(Debug)]
pub struct StreamEnd {
    context: Context,
    event: CUevent,
}

// SAFETY: the driver's calls about an event may come from any thread.
unsafe impl Send for StreamEnd {}

impl Stream {
    /// The end of all that was put into it so far, for a thread that sleeps until then.
    pub fn end(&self) -> Result<StreamEnd> {
        StreamEnd::new(self)
    }
}

impl StreamEnd {
    pub(super) fn new(stream: &Stream) -> Result<StreamEnd> {
        let context = stream.context().clone();
        context.enter()?;
        // SAFETY: the context is current.
        let event = unsafe { driver::event_create_blocking() }?;
        let end = StreamEnd { context, event };
        // SAFETY: both live, in the context that is current.
        unsafe { driver::event_record(end.event, stream.handle()) }?;
        Ok(end)
    }

    /// Sleeps until then, without a deadline and without polling. Error: what went wrong in what the stream was given.
    pub fn sleep(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the event lives, in the context that is current.
        unsafe { driver::event_synchronize(self.event) }
    }
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is this value's own; one that was not reached yet goes when it is.
            let _ = unsafe { driver::event_destroy(self.event) };
        }
    }
}

impl Drop for GpuTimer {
    fn drop(&mut self) {
        if !self.context.is_kept() && self.context.enter().is_ok() {
            for event in [self.start, self.end] {
                // SAFETY: it is this value's own; one that was not reached yet goes when it is.
                let _ = unsafe { driver::event_destroy(event) };
            }
        }
    }
}
