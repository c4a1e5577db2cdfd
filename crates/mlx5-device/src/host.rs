//! The device's interface to its host: memory, the time, and the sinks of events, log lines and counts.

use roce::Now;

use super::command::{ContextId, EventSink};
use super::counters::Counters;
use crate::reason::{About, Reason};

/// Gets each log line, without a newline at its end: stderr for a process, a vector for tests.
pub type LogSink = Box<dyn FnMut(&str) + Send>;

/// Bytes whose copy takes so long that the completion reads the clock anew, which takes 20 ns.
const LONG_BYTES: u32 = 4096;

pub(super) struct HostInterface<M> {
    pub memory: M,
    pub events: Box<dyn EventSink>,
    pub log: LogSink,
    pub counters: Counters,
    pub now: Now,
    /// The time now, within a round.
    pub clock: Box<dyn Fn() -> Now + Send>,
}

impl<M> HostInterface<M> {
    pub(super) fn log_line(&mut self, what: &str) {
        (self.log)(what);
    }

    /// Something failed, for this reason.
    #[cold]
    pub(super) fn explain(&mut self, about: About, kind: &'static str, why: String) {
        self.events.explain(Reason { at: self.now, about, kind, why, peer: None });
    }

    /// A copy of so many bytes may have taken most of this round.
    pub(super) fn copied(&mut self, bytes: u32) {
        if bytes >= LONG_BYTES {
            self.now = self.now.max((self.clock)());
        }
    }
}

/// The context and element that get an object's asynchronous events.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventTarget {
    pub context: ContextId,
    /// Echoed in events.
    pub user_handle: u64,
    /// Events given and not withdrawn.
    given: u32,
}

impl EventTarget {
    pub(super) fn new(context: ContextId, user_handle: u64) -> EventTarget {
        EventTarget { context, user_handle, given: 0 }
    }

    pub(super) fn raise<M>(&mut self, host: &mut HostInterface<M>, kind: u32) {
        if host.events.asynchronous(self.context, self.user_handle, kind) {
            self.given = self.given.wrapping_add(1);
            host.counters.async_events += 1;
        }
    }

    /// Withdraws the unread events of an object that is destroyed. Returns how many the program has read.
    pub(super) fn withdraw<M>(self, host: &mut HostInterface<M>) -> u32 {
        self.given.wrapping_sub(host.events.withdraw_asynchronous(self.context, self.user_handle))
    }
}
