//! Points of a stream that another stream, or the CPU, waits for.

use super::context::Context;
use super::stream::Stream;
use crate::result::Result;
use crate::result::driver::{self, CUevent};

/// A point of a stream. It keeps no time unless it is made so.
#[derive(Debug)]
pub struct Event {
    context: Context,
    event: CUevent,
}

// SAFETY: the driver's calls about an event may come from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A point that counts as reached until it is set.
    pub fn new(context: &Context) -> Result<Event> {
        context.enter()?;
        // SAFETY: the context is current.
        let event = unsafe { driver::event_create_untimed() }?;
        Ok(Event { context: context.clone(), event })
    }

    /// One that keeps the time at which it was reached, by half a microsecond.
    pub fn timed(context: &Context) -> Result<Event> {
        context.enter()?;
        // SAFETY: the context is current.
        let event = unsafe { driver::event_create() }?;
        Ok(Event { context: context.clone(), event })
    }

    /// Nanoseconds from another point to this one, both timed and reached; 0 if the other one came later. Error: one is not.
    pub fn ns_since(&self, earlier: &Event) -> Result<u64> {
        self.context.enter()?;
        // SAFETY: both events live.
        let ms = unsafe { driver::event_elapsed_ms(earlier.event, self.event) }?;
        Ok((f64::from(ms.max(0.0)) * 1e6).round() as u64)
    }

    /// Sets it behind all that the stream was given.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.same_context(&self.context, "the event")?;
        self.context.enter()?;
        // SAFETY: both live, in the context that is current.
        unsafe { driver::event_record(self.event, stream.handle()) }
    }

    /// Has all that `stream` is given from now on wait until the point is reached.
    pub fn hold(&self, stream: &Stream) -> Result<()> {
        stream.same_context(&self.context, "the event")?;
        self.context.enter()?;
        // SAFETY: as in `record`.
        unsafe { driver::stream_wait_event(stream.handle(), self.event) }
    }

    /// Whether the point is reached. Error: what went wrong before it.
    pub fn is_reached(&self) -> Result<bool> {
        self.context.enter()?;
        // SAFETY: the event lives, in the context that is current.
        unsafe { driver::event_query(self.event) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it is this value's own; one that was not reached yet goes when it is.
            let _ = unsafe { driver::event_destroy(self.event) };
        }
    }
}
