//! A timer on the GPU's own clock: how long what was put into a stream between two points took.

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

impl Drop for GpuTimer {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            for event in [self.start, self.end] {
                // SAFETY: it is this value's own; one that was not reached yet goes when it is.
                let _ = unsafe { driver::event_destroy(event) };
            }
        }
    }
}
