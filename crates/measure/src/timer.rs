//! Timers by definition: what starts and stops each, on which clock; printed with the results that use it.
//!
//! All clocks here are `CLOCK_MONOTONIC` (`std::time::Instant`). A GPU's comes with the GPU, defined alike.

use std::time::{Duration, Instant};

use serde::Serialize;

/// One timer's definition. Results name it by `name`; two numbers compare only under the same definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timer {
    /// As in the result line.
    pub name: &'static str,
    /// What starts it.
    pub starts: &'static str,
    /// What stops it.
    pub stops: &'static str,
}

/// Time for an application to post one request, averaged over a loop that holds nothing but posts.
pub const POST: Timer = Timer {
    name: "post_ns",
    starts: "before the first post of a burst that fits the send queue",
    stops: "after the last post of the burst has rung its doorbell; divided by the posts that were really made",
};

/// Time of a whole transfer as the sender sees it.
pub const TRANSFER: Timer = Timer {
    name: "transfer_ns",
    starts: "before the first post",
    stops: "when the completion of the last post has been polled",
};

/// Round trip from a kernel or program to an answering kernel, by the client's clock (GPU: global timer).
pub const ROUND_TRIP: Timer = Timer {
    name: "round_trip_ns",
    starts: "before the request of a question is written",
    stops: "when the completion of its answer has been polled",
};

/// Time of one message that finds both ends idle, by its sender: a whole round trip, and the time to wake up.
pub const FIRST: Timer = Timer {
    name: "first_ns",
    starts: "before the post of a message, after a pause in which nothing was under way",
    stops: "when its completion has been polled",
};

/// A running timer.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// Its definition.
    pub timer: Timer,
    since: Instant,
}

impl Timer {
    /// Starts it now.
    pub fn start(self) -> Running {
        Running { timer: self, since: Instant::now() }
    }
}

impl Running {
    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Time since the start in ns.
    pub fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_timer_says_what_starts_and_stops_it() {
        for timer in [POST, TRANSFER, ROUND_TRIP, FIRST] {
            assert!(
                timer.name.ends_with("_ns") && timer.starts.len() > 10 && timer.stops.len() > 10,
                "{timer:?}"
            );
        }
    }

    #[test]
    fn a_running_timer_does_not_run_backwards() {
        let running = POST.start();
        let first = running.elapsed_ns();
        assert!(running.elapsed_ns() >= first);
    }
}
