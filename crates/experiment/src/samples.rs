//! What the machine did while points were measured: gauges such as watts, and by how much counters grew. No claim looks at it.
//!
//! `docs/samples.md` has the names. A command reads them; here is what is kept of a point, and of a whole run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::point::Point;
use crate::statistics::{median, spread};
use crate::table::number;

/// Samples of one point, or of all points of a run. Each name ends with its unit, but for counters that others named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Median, least and most of the readings: `cpu_mhz`, `gpu_watts`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, [f64; 3]>,
    /// By how much a counter grew: `nic.messages_sent`, `cpu_joules`. Of the NIC's and the switch's those that did not grow are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, f64>,
    /// Why something was not read, by its name or by the beginning that its names share: `nic`, `cpu_watts`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
}

impl Samples {
    pub fn is_empty(&self) -> bool {
        *self == Samples::default()
    }

    /// Keeps median, least and most of the readings of a gauge; none of none.
    pub fn gauge(&mut self, name: &str, readings: &[f64]) {
        self.gauges.extend(spread(readings).map(|spread| (name.to_owned(), spread)));
    }

    /// Those of a whole run: of a gauge the median of the points' medians, the least and the most of all; of a counter the sum. Something
    /// is absent if no point has it.
    pub fn of_run(points: &[Point]) -> Samples {
        let all = || points.iter().filter_map(|point| point.samples.as_ref());
        let mut run = Samples::default();
        let mut gauges: BTreeMap<&String, Vec<[f64; 3]>> = BTreeMap::new();
        for samples in all() {
            samples.gauges.iter().for_each(|(name, spread)| gauges.entry(name).or_default().push(*spread));
            for (name, count) in &samples.counts {
                *run.counts.entry(name.clone()).or_default() += count;
            }
        }
        for (name, spreads) in gauges {
            let medians: Vec<f64> = spreads.iter().map(|[median, ..]| *median).collect();
            let least = spreads.iter().map(|[_, least, _]| *least).fold(f64::INFINITY, f64::min);
            let most = spreads.iter().map(|[.., most]| *most).fold(f64::NEG_INFINITY, f64::max);
            run.gauges.extend(median(&medians).map(|median| (name.clone(), [median, least, most])));
        }
        for (name, why) in all().flat_map(|samples| &samples.absent) {
            let mut known = run.gauges.keys().chain(run.counts.keys());
            if !known.any(|known| {
                known == name || known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            }) {
                run.absent.entry(name.clone()).or_insert_with(|| why.clone());
            }
        }
        run
    }

    /// Each gauge, then what is absent: name, and `median (least–most)` or `n/a: why`.
    pub fn gauges_in_words(&self) -> Vec<(String, String)> {
        let gauge = |(name, [median, least, most]): (&String, &[f64; 3])| {
            let [median, least, most] = [median, least, most].map(|value| number(Some(*value)));
            (name.clone(), format!("{median} ({least}–{most})"))
        };
        let absent = |(name, why): (&String, &String)| (name.clone(), format!("n/a: {why}"));
        self.gauges.iter().map(gauge).chain(self.absent.iter().map(absent)).collect()
    }

    /// Each counter, and by how much it grew.
    pub fn counts_in_words(&self) -> Vec<(String, String)> {
        self.counts.iter().map(|(name, count)| (name.clone(), number(Some(*count)))).collect()
    }

    /// Gauges, and the names of what is absent, as one line to print; `None`: nothing was sampled.
    pub fn line(&self) -> Option<String> {
        let words = self.gauges_in_words().into_iter().take(self.gauges.len());
        let mut words: Vec<String> = words.map(|(name, said)| format!("{name} {said}")).collect();
        let absent: Vec<&str> = self.absent.keys().map(String::as_str).collect();
        words.extend(
            (!absent.is_empty()).then(|| format!("not here (summary.json says why): {}", absent.join(", "))),
        );
        (!words.is_empty()).then(|| format!("meanwhile: {}", words.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    fn with(gauge: &[f64], count: f64, absent: &[(&str, &str)]) -> Point {
        let mut samples = Samples::default();
        samples.gauge("cpu_watts", gauge);
        samples.counts.insert("nic.cqes".into(), count);
        samples.absent = absent.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect();
        Point { samples: Some(samples), ..example("cpu-shim", 64) }
    }

    #[test]
    fn a_run_has_the_median_of_medians_the_whole_range_and_the_sum_of_counts() {
        let points = [
            with(&[10.0, 20.0, 60.0], 3.0, &[("gpu_watts", "no nvidia-smi")]),
            with(&[40.0], 4.0, &[("cpu_watts", "went back"), ("nic", "no line")]),
            with(&[], 0.0, &[("cpu_watts", "went back"), ("gpu_watts", "no GPU")]),
            example("cpu-shim", 128),
        ];
        let run = Samples::of_run(&points);
        assert_eq!(run.gauges["cpu_watts"], [30.0, 10.0, 60.0]);
        assert_eq!(run.counts["nic.cqes"], 7.0);
        // What some point has is not absent, by its name or by the beginning of it.
        assert_eq!(run.absent, [("gpu_watts".to_owned(), "no nvidia-smi".to_owned())].into());
        let line = run.line().unwrap();
        assert_eq!(
            line,
            "meanwhile: cpu_watts 30.00 (10.00–60.00); not here (summary.json says why): gpu_watts"
        );
        assert_eq!(Samples::of_run(&points[3..]), Samples::default());
    }
}
