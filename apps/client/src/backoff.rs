//! Polling backoff of a client. It polls without sleeping while answers come soon, and sleeps between polls
//! while they take long: many clients share a host. Pure: time is an argument.

use std::time::Duration;

/// A client polls without sleeping for this long, unless the answer before took longer than `SLOW_NS`.
const SPIN_NS: u64 = 1_000_000;
/// More than `SPIN_NS` and a sleep: an answer that a sleep made late does not count as a slow one.
const SLOW_NS: u64 = 1_500_000;
/// Shortest sleep requested. The kernel makes about 100 µs of it; an answer is seen late by up to that.
const LEAST_NS: u64 = 50_000;
/// Longest sleep. Deadlines and the server are checked between two sleeps.
const MOST_NS: u64 = 5_000_000;
/// The wait so far divided by the sleep that follows, between `LEAST_NS` and `MOST_NS`.
const SHARE: u64 = 32;
/// The end of a sleep lies this long before the next request is due.
const AWAKE_NS: u64 = 500_000;

/// The wait of a client for its next answer.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// When the last answer came or the last request was sent.
    since_ns: u64,
    /// How long the last answer took from that moment on.
    before_ns: u64,
}

impl Backoff {
    pub fn new(now_ns: u64) -> Backoff {
        Backoff { since_ns: now_ns, before_ns: 0 }
    }

    /// A request was sent.
    pub fn sent(&mut self, now_ns: u64) {
        self.since_ns = now_ns;
    }

    /// An answer came.
    pub fn found(&mut self, now_ns: u64) {
        *self = Backoff { since_ns: now_ns, before_ns: now_ns.saturating_sub(self.since_ns) };
    }

    /// How long to sleep before the next poll; `None`: not at all. `idle_ns`: until the next request is due.
    pub fn sleep(&self, now_ns: u64, idle_ns: u64) -> Option<Duration> {
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        let free_ns = idle_ns.checked_sub(AWAKE_NS).filter(|free_ns| *free_ns > 0)?;
        let sleep_ns = (waited_ns / SHARE).clamp(LEAST_NS, MOST_NS).min(free_ns);
        let is_long = waited_ns > SPIN_NS || self.before_ns > SLOW_NS;
        is_long.then(|| Duration::from_nanos(sleep_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_client_sleeps_where_answers_take_long_and_for_a_part_of_its_wait() {
        const NEVER: u64 = u64::MAX;
        // In ns: the previous wait, this one so far, the time until a request is due, and the sleep.
        for (before, waited, idle, sleep) in [
            (0, MS, NEVER, None),
            (0, MS + 1, NEVER, Some(LEAST_NS)),
            (MS, 0, NEVER, None),
            // A sleep may have made it late.
            (MS + MS / 10, 0, NEVER, None),
            (20 * MS, 0, NEVER, Some(LEAST_NS)),
            (20 * MS, 16 * MS, NEVER, Some(MS / 2)),
            (0, 16 * MS, NEVER, Some(MS / 2)),
            (0, 1000 * MS, NEVER, Some(5 * MS)),
            (20 * MS, 16 * MS, MS / 2, None),
            (20 * MS, 16 * MS, MS / 2 + 7, Some(7)),
            (20 * MS, 16 * MS, 0, None),
        ] {
            let mut backoff = Backoff::new(5);
            backoff.found(5 + before);
            backoff.sent(6 + before);
            let said = backoff.sleep(6 + before + waited, idle);
            assert_eq!(said, sleep.map(Duration::from_nanos), "{before} {waited} {idle}");
        }
    }
}
