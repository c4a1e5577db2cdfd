//! Token buckets: hold a port to a link rate, or a NIC to a message rate. Pure; the caller brings the time.

use roce::Now;

/// Burst of a bucket: what 100 Gbit/s sends in five microseconds. So a NIC that looks less often than every
/// message still reaches its rate.
pub const BURST_BYTES: u64 = 64 * 1024;

/// Burst of a message rate: what it sends in this time, ns, the sleep of a waiting NIC.
const BURST_NS: f64 = 50_000.0;

/// A token bucket. Messages may overdraw it: a message is sent whole once the bucket is not empty. The debt
/// delays the next, so that the average is exact for every message size.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    /// Bytes or messages per second; none: unlimited.
    per_s: Option<f64>,
    /// The most that it holds.
    burst: f64,
    /// Bytes or messages that may be sent; negative: debt.
    tokens: f64,
    filled: Now,
}

impl TokenBucket {
    /// A full bucket of wire bytes. `rate_gbps`: 10^9 bits a second; none: no limit.
    pub fn new(rate_gbps: Option<f64>, now: Now) -> TokenBucket {
        Self::full(rate_gbps.map(|gbps| gbps * 1e9 / 8.0), BURST_BYTES as f64, now)
    }

    /// A full bucket of messages, each [spent](TokenBucket::spend) as 1; none: no limit.
    pub fn of_messages(per_s: Option<f64>, now: Now) -> TokenBucket {
        Self::full(per_s, per_s.map_or(1.0, |per_s| (per_s * BURST_NS / 1e9).max(1.0)), now)
    }

    fn full(per_s: Option<f64>, burst: f64, now: Now) -> TokenBucket {
        TokenBucket { per_s, burst, tokens: burst, filled: now }
    }

    pub fn is_limited(&self) -> bool {
        self.per_s.is_some()
    }

    /// Whether a message may be sent now.
    pub fn allows(&mut self, now: Now) -> bool {
        self.fill(now);
        self.per_s.is_none() || self.tokens > 0.0
    }

    /// Accounts for a message of so many wire bytes, or for so many messages.
    pub fn spend(&mut self, count: u64) {
        if self.per_s.is_some() {
            self.tokens -= count as f64;
        }
    }

    /// When the next message may be sent; `None` when it may be now.
    pub fn ready_at(&self) -> Option<Now> {
        let per_s = self.per_s?;
        (self.tokens <= 0.0).then(|| self.filled.after((-self.tokens * 1e9 / per_s).ceil() as u64 + 1))
    }

    fn fill(&mut self, now: Now) {
        let Some(per_s) = self.per_s else { return };
        let ns = now.0.saturating_sub(self.filled.0);
        self.filled = self.filled.max(now);
        self.tokens = (self.tokens + ns as f64 * per_s / 1e9).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as fast as allowed for 10 ms of virtual time; returns Gbit/s.
    fn achieved(rate: Option<f64>, message: u64, step_ns: u64) -> f64 {
        let mut bucket = TokenBucket::new(rate, Now(0));
        let (mut now, mut sent) = (Now(0), 0);
        while now.0 < 10_000_000 {
            while bucket.allows(now) && sent < 1 << 30 {
                bucket.spend(message);
                sent += message;
            }
            now = now.after(step_ns);
        }
        sent as f64 * 8.0 / now.0 as f64
    }

    #[test]
    fn the_average_is_the_rate_for_small_and_for_large_messages() {
        for (rate, message) in [(100.0, 118), (100.0, 66_000), (1.0, 118), (25.0, 4_200)] {
            let got = achieved(Some(rate), message, 500);
            let burst = BURST_BYTES as f64 * 8.0 / 1e7;
            assert!((rate..rate + burst + 0.1).contains(&got), "{message} bytes at {rate}: {got} Gbit/s");
        }
    }

    #[test]
    fn messages_are_counted_whatever_their_length() {
        for (per_s, step_ns) in [(1e6, 500), (1e6, 40_000), (1e3, 500), (10.0, 1_000_000)] {
            let mut bucket = TokenBucket::of_messages(Some(per_s), Now(0));
            let (mut now, mut sent) = (Now(0), 0_u64);
            while now.0 < 1_000_000_000 {
                while bucket.allows(now) {
                    bucket.spend(1);
                    sent += 1;
                }
                now = now.after(step_ns);
            }
            let burst = (per_s * 50e-6).max(1.0) + 1.0;
            let most = per_s + burst;
            assert!((per_s..=most).contains(&(sent as f64)), "{per_s} a second, every {step_ns} ns: {sent}");
        }
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut bucket = TokenBucket::new(None, Now(5));
        bucket.spend(u64::MAX);
        assert!(bucket.allows(Now(5)));
        assert_eq!(bucket.ready_at(), None);
    }

    #[test]
    fn a_debt_is_waited_for_to_the_nanosecond() {
        let mut bucket = TokenBucket::new(Some(8.0), Now(0));
        bucket.spend(BURST_BYTES + 1000);
        let ready = bucket.ready_at().unwrap();
        assert_eq!(ready, Now(1001), "1000 bytes at one byte a ns, and one more to be above zero");
        assert!(!bucket.allows(Now(999)));
        assert!(bucket.allows(ready));
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_twice() {
        let mut bucket = TokenBucket::new(Some(8.0), Now(1_000_000));
        bucket.spend(BURST_BYTES + 10);
        assert!(!bucket.allows(Now(0)));
        assert!(!bucket.allows(Now(1_000_005)));
        assert!(bucket.allows(Now(1_000_020)));
    }
}
