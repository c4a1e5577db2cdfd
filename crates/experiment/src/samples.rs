//! What the machine did during measurement: gauges such as watts, and counters' growth. No claim looks at it.
//!
//! `docs/samples.md` has the names. A command reads them; this is what a point and a whole run keep.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::{number, spread};

/// Samples of one point, or of a run's points. Each name ends with its unit, unless others named it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Median, least and most of the readings: `cpu_mhz`, `gpu_watts`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gauges: BTreeMap<String, [f64; 3]>,
    /// Growth of a counter: `nic.messages_sent`, `cpu_joules`. NIC and switch counters are left out if 0.
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

    /// As [`Samples::gauge`]; `why`: what is absent without a reading.
    pub fn gauge_or(&mut self, name: &str, readings: &[f64], why: &str) {
        self.gauge(name, readings);
        self.absent.extend(readings.is_empty().then(|| (name.to_owned(), why.to_owned())));
    }

    /// No sample of this name, and why.
    pub fn without(name: &str, why: impl Into<String>) -> Samples {
        Samples { absent: [(name.to_owned(), why.into())].into(), ..Samples::default() }
    }

    /// The same with `END.` before each name.
    #[must_use]
    pub fn of(self, end: &str) -> Samples {
        fn named<T>(end: &str, all: BTreeMap<String, T>) -> BTreeMap<String, T> {
            all.into_iter().map(|(name, value)| (format!("{end}.{name}"), value)).collect()
        }
        Samples {
            gauges: named(end, self.gauges),
            counts: named(end, self.counts),
            absent: named(end, self.absent),
        }
    }

    /// Takes what was read elsewhere of the same point.
    pub fn extend(&mut self, other: Samples) {
        self.gauges.extend(other.gauges);
        self.counts.extend(other.counts);
        self.absent.extend(other.absent);
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
