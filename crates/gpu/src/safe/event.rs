//! Points of a stream that another stream or the CPU waits for; a GPU-clock timer; an end to sleep for.

use std::time::Duration;

use super::context::Context;
use super::stream::Stream;
use super::wait;
use crate::result::Result;
use crate::result::driver::{self, CUevent, EventKind};

/// A point of a stream. It keeps no time unless it is made so.
#[derive(Debug)]
pub struct Event {
    context: Context,
    event: CUevent,
    kind: EventKind,
}

// SAFETY: the driver's calls about an event may come from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A point that counts as reached until it is set.
    pub fn new(context: &Context) -> Result<Event> {
        Event::of(context, EventKind::Untimed)
    }

    /// One that keeps the time at which it was reached, by half a microsecond.
    pub fn timed(context: &Context) -> Result<Event> {
        Event::of(context, EventKind::Timed)
    }

    fn of(context: &Context, kind: EventKind) -> Result<Event> {
        context.enter()?;
        // SAFETY: the context is current.
        let event = unsafe { driver::event_create(kind) }?;
        Ok(Event { context: context.clone(), event, kind })
    }

    /// Nanoseconds from `earlier` to this one, both timed and reached; 0 if it came later. Error: one is not.
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
        // What keeps time stays in a context that stays: see `Context::keep`.
        let stays = self.kind == EventKind::Timed && self.context.is_kept();
        if !stays && self.context.enter().is_ok() {
            // SAFETY: it is this value's own; one that was not reached yet goes when it is.
            let _ = unsafe { driver::event_destroy(self.event) };
        }
    }
}

/// Two points of one context. Resolution: about half a microsecond.
#[derive(Debug)]
pub struct GpuTimer {
    start: Event,
    end: Event,
}

impl GpuTimer {
    /// A timer that has not begun.
    pub fn new(context: &Context) -> Result<GpuTimer> {
        Ok(GpuTimer { start: Event::timed(context)?, end: Event::timed(context)? })
    }

    /// Begins when the stream comes to this point.
    pub fn begin(&mut self, stream: &Stream) -> Result<()> {
        self.start.record(stream)
    }

    /// Ends when the stream comes to this point.
    pub fn finish(&mut self, stream: &Stream) -> Result<()> {
        self.end.record(stream)
    }

    /// The time between, waited for at most `limit`. Errors: `Deadline`; one of the two points was never set.
    pub fn elapsed(&self, limit: Duration) -> Result<Duration> {
        wait::until("the end of a timed stretch", limit, || self.end.is_reached())?;
        self.end.ns_since(&self.start).map(Duration::from_nanos)
    }
}

/// The end of all that a stream was given before, for a thread that sleeps until then.
#[derive(Debug)]
pub struct StreamEnd(Event);

impl Stream {
    /// The end of all that was put into it so far, for a thread that sleeps until then.
    pub fn end(&self) -> Result<StreamEnd> {
        let end = Event::of(self.context(), EventKind::Blocking)?;
        end.record(self)?;
        Ok(StreamEnd(end))
    }
}

impl StreamEnd {
    /// Sleeps until then, without deadline or polling. Error: what went wrong in the stream's work.
    pub fn sleep(&self) -> Result<()> {
        self.0.context.enter()?;
        // SAFETY: the event lives, in the context that is current.
        unsafe { driver::event_synchronize(self.0.event) }
    }
}
