//! HDR histogram of nanoseconds: records every sample, reports percentiles and count, never a lone mean.

use serde::{Deserialize, Serialize};

/// Nanosecond samples, three significant digits up to one hour; longer ones count as one hour.
#[derive(Clone, Debug)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

/// What a result line keeps of a histogram; all times in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the percentiles name themselves")]
pub struct Summary {
    pub count: u64,
    pub min_ns: u64,
    pub p10_ns: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
    pub mean_ns: f64,
}

impl Summary {
    /// Of these samples, to the nanosecond; `None` of none. A [`Histogram`] rounds up by up to a thousandth.
    pub fn exact(mut samples: Vec<u64>) -> Option<Summary> {
        samples.sort_unstable();
        let (&min_ns, &max_ns) = (samples.first()?, samples.last()?);
        let count = samples.len();
        let at = |thousandths: usize| samples[(count * thousandths).div_ceil(1000).max(1) - 1];
        Some(Summary {
            count: count as u64,
            min_ns,
            p10_ns: at(100),
            p50_ns: at(500),
            p90_ns: at(900),
            p99_ns: at(990),
            p999_ns: at(999),
            max_ns,
            mean_ns: samples.iter().map(|&ns| ns as f64).sum::<f64>() / count as f64,
        })
    }
}

const ONE_HOUR_NS: u64 = 3_600_000_000_000;

impl Histogram {
    /// An empty histogram; all its memory is taken here, so that `record` never allocates.
    pub fn new() -> Histogram {
        Histogram(hdrhistogram::Histogram::new_with_bounds(1, ONE_HOUR_NS, 3).expect("1 ns to 1 h, 3 digits"))
    }

    /// Adds one sample.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds `count` samples of the same length.
    pub fn record_n(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns, count);
    }

    /// Adds all samples of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        self.0.add(&other.0).expect("same bounds");
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value that `percentile` percent of the samples do not exceed.
    pub fn percentile_ns(&self, percentile: f64) -> u64 {
        self.0.value_at_percentile(percentile)
    }

    /// The numbers for a result line; `None` when nothing was recorded.
    pub fn summary(&self) -> Option<Summary> {
        (self.count() > 0).then(|| Summary {
            count: self.count(),
            min_ns: self.0.min(),
            p10_ns: self.percentile_ns(10.0),
            p50_ns: self.percentile_ns(50.0),
            p90_ns: self.percentile_ns(90.0),
            p99_ns: self.percentile_ns(99.0),
            p999_ns: self.percentile_ns(99.9),
            max_ns: self.0.max(),
            mean_ns: self.0.mean(),
        })
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_three_digits() {
        let mut histogram = Histogram::new();
        (1..=1000).for_each(|us| histogram.record(us * 1000));
        let summary = histogram.summary().unwrap();
        assert_eq!(summary.count, 1000);
        for (got, want) in [(summary.p50_ns, 500_000), (summary.p99_ns, 990_000), (summary.max_ns, 1_000_000)]
        {
            assert!(got.abs_diff(want) * 1000 <= want, "{got} against {want}");
        }
    }

    #[test]
    fn an_exact_summary_rounds_nothing() {
        let samples: Vec<u64> = (1..=1001).rev().map(|nth| 1_227_000 + nth).collect();
        let summary = Summary::exact(samples).unwrap();
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (1001, 1_227_001, 1_228_001));
        assert_eq!((summary.p10_ns, summary.p50_ns, summary.p999_ns), (1_227_101, 1_227_501, 1_228_000));
        assert_eq!((summary.p90_ns, summary.p99_ns, summary.mean_ns), (1_227_901, 1_227_991, 1_227_501.0));
        let one = Summary::exact(vec![7]).unwrap();
        assert_eq!((one.p10_ns, one.p50_ns, one.p999_ns), (7, 7, 7));
    }

    #[test]
    fn nothing_recorded_has_no_summary() {
        assert_eq!((Histogram::new().summary(), Summary::exact(Vec::new())), (None, None));
    }

    #[test]
    fn a_sample_beyond_the_range_is_kept_as_the_longest() {
        let mut histogram = Histogram::new();
        histogram.record(u64::MAX);
        assert_eq!(histogram.count(), 1);
        assert!(histogram.percentile_ns(100.0) >= ONE_HOUR_NS);
    }

    #[test]
    fn a_merged_histogram_has_the_samples_of_both() {
        let mut first = Histogram::new();
        first.record_n(120, 5);
        first.record(4_000_000);
        let mut second = Histogram::new();
        second.record(120);
        second.merge(&first);
        assert_eq!(first.summary().unwrap().p50_ns, second.summary().unwrap().p50_ns);
        assert_eq!(second.count(), 7);
    }
}
