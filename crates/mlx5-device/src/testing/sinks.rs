//! Where the NIC's events and log lines go in tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::command::{ContextId, EventSink};
use crate::{LogSink, Reason};

/// One asynchronous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncRecord {
    pub context: ContextId,
    /// User handle of the object.
    pub element: u64,
    /// `ib_event_type`.
    pub kind: u32,
}

#[derive(Debug, Default)]
struct Records {
    completions: Vec<(u32, u64)>,
    events: Vec<AsyncRecord>,
    lines: Vec<String>,
    reasons: Vec<Reason>,
}

/// Collects events and lines. Cloning gives another handle to the same collection.
#[derive(Debug, Clone, Default)]
pub struct Sinks(Arc<Mutex<Records>>);

impl Sinks {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects the device's log lines.
    pub fn log(&self) -> LogSink {
        let sinks = self.clone();
        Box::new(move |line| sinks.records().lines.push(line.to_owned()))
    }
}

/// Takes what came so far.
macro_rules! takes {
    ($($(#[$doc:meta])* $name:ident: $records:ident, $type:ty;)*) => {
        impl Sinks {
            $($(#[$doc])* pub fn $name(&self) -> Vec<$type> {
                std::mem::take(&mut self.records().$records)
            })*
        }
    };
}

takes! {
    /// Completion events: channel and user handle.
    take_completions: completions, (u32, u64);
    take_events: events, AsyncRecord;
    /// Why something failed.
    take_reasons: reasons, Reason;
    /// Log lines, reasons among them.
    take_lines: lines, String;
}

impl EventSink for Sinks {
    fn explain(&mut self, reason: Reason) {
        let mut records = self.records();
        records.lines.push(reason.to_string());
        records.reasons.push(reason);
    }

    fn completion(&mut self, channel: u32, cq_user_handle: u64) -> bool {
        self.records().completions.push((channel, cq_user_handle));
        true
    }

    fn asynchronous(&mut self, context: ContextId, element: u64, kind: u32) -> bool {
        self.records().events.push(AsyncRecord { context, element, kind });
        true
    }

    fn withdraw_completions(&mut self, channel: u32, cq_user_handle: u64) -> u32 {
        let mut records = self.records();
        let before = records.completions.len();
        records.completions.retain(|event| *event != (channel, cq_user_handle));
        (before - records.completions.len()) as u32
    }

    fn withdraw_asynchronous(&mut self, context: ContextId, element: u64) -> u32 {
        let mut records = self.records();
        let before = records.events.len();
        records.events.retain(|event| event.context != context || event.element != element);
        (before - records.events.len()) as u32
    }
}
