//! Times of posts, burst by burst.

use measure::Histogram;
use serde::Serialize;

/// Times of bursts of posts. A sample is tenths of a nanosecond a post: 8.4 ns is not rounded to 8.
pub struct PostTimes {
    histogram: Histogram,
    ns: u64,
    posts: u64,
}

impl PostTimes {
    /// None yet; all memory is taken here.
    pub fn new() -> Self {
        Self { histogram: Histogram::new(), ns: 0, posts: 0 }
    }

    pub fn record(&mut self, ns: u64, posts: u64) {
        self.histogram.record((ns * 10 / posts).max(1));
        self.ns += ns;
        self.posts += posts;
    }

    /// Adds a run that another clock timed: its posts in all, and bursts, each in nanoseconds with its posts.
    pub fn record_run(&mut self, ns: f64, posts: u64, bursts: impl Iterator<Item = (f64, u64)>) {
        for (ns, posts) in bursts.filter(|(_, posts)| *posts > 0) {
            self.histogram.record(((ns * 10.0 / posts as f64) as u64).max(1));
        }
        self.ns += ns as u64;
        self.posts += posts;
    }

    pub fn mean_ns(&self) -> Option<f64> {
        (self.posts > 0).then(|| self.ns as f64 / self.posts as f64)
    }

    /// Percentiles over bursts.
    pub fn spread(&self) -> Option<Spread> {
        let s = self.histogram.summary()?;
        let ns = |tenths: u64| tenths as f64 / 10.0;
        Some(Spread {
            count: s.count,
            min_ns: ns(s.min_ns),
            p10_ns: ns(s.p10_ns),
            p50_ns: ns(s.p50_ns),
            p90_ns: ns(s.p90_ns),
            p99_ns: ns(s.p99_ns),
            p999_ns: ns(s.p999_ns),
            max_ns: ns(s.max_ns),
            mean_ns: s.mean_ns / 10.0,
        })
    }
}

/// Percentiles of the mean time of one post within a burst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Bursts.
    pub count: u64,
    pub min_ns: f64,
    pub p10_ns: f64,
    pub p50_ns: f64,
    pub p90_ns: f64,
    pub p99_ns: f64,
    pub p999_ns: f64,
    pub max_ns: f64,
    pub mean_ns: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_m5_post_times_keep_tenths_and_weigh_the_mean_by_posts() {
        let mut times = PostTimes::new();
        assert!(times.mean_ns().is_none() && times.spread().is_none());
        times.record(84, 10);
        times.record(1000, 1);
        assert!((times.mean_ns().unwrap() - 1084.0 / 11.0).abs() < 1e-9);
        let spread = times.spread().unwrap();
        assert_eq!((spread.count, spread.min_ns), (2, 8.4));
    }
}
