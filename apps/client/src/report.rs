//! What a run says: each second, and at its end as one JSON object and for people.

use std::collections::BTreeMap;

use cli::name;
use measure::{Histogram, Label, Summary};
use serde::Serialize;
use serving::{Arrival, Transport};
use slots::Status;

use crate::options::Options;

/// Requests by what came of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub sent: u64,
    /// In time, whatever the answer was.
    pub answered: u64,
    /// Answers that are not what they have to be, damaged ones included.
    pub wrong: u64,
    /// Requests without an answer in time, those included that found no slot in time.
    pub lost: u64,
    /// Answers that came after their deadline; their requests are lost.
    pub late: u64,
    pub duplicate: u64,
    /// Answers that say why there is no result.
    pub refused: BTreeMap<String, u64>,
}

impl Counts {
    /// Counts an answer that refuses.
    pub fn refuse(&mut self, status: Status) {
        let named = Status::ALL.iter().find(|(one, _)| *one == status);
        let name = named.map_or("unknown", |(_, name)| name);
        *self.refused.entry(name.to_lowercase()).or_default() += 1;
    }

    /// Whether something came that must not come, or was lost.
    pub fn has_faults(&self) -> bool {
        self.wrong + self.lost + self.duplicate + self.refused.values().sum::<u64>() > 0
    }

    pub fn is_clean(&self) -> bool {
        !self.has_faults() && self.answered > 0
    }

    fn text(&self) -> String {
        let Counts { wrong, lost, late, duplicate, .. } = self;
        let refused = self.refused.iter().map(|(status, count)| format!(", {count} refused: {status}"));
        let refused: String = refused.collect();
        format!("{wrong} wrong, {lost} lost, {late} late, {duplicate} duplicate{refused}")
    }
}

/// What a run gave.
#[derive(Debug)]
pub struct Outcome {
    pub counts: Counts,
    /// From when a request is due until its answer was taken.
    pub latency: Histogram,
    /// What the server says that the model took.
    pub service: Histogram,
    /// From the first request to the last answer.
    pub seconds: f64,
    pub first_wrong: Option<String>,
    pub interrupted: bool,
    pub error: Option<String>,
}

impl Outcome {
    pub fn is_success(&self) -> bool {
        self.counts.is_clean() && self.error.is_none()
    }

    /// How far the run is. `rate`: answers in the last second.
    pub fn live(&self, seconds: f64, rate: u64) -> Live<'_> {
        let ms = |percent| self.latency.percentile_ns(percent) as f64 / 1e6;
        let (p50_ms, p99_ms) = (ms(50.0), ms(99.0));
        Live { kind: "live", seconds, rate, p50_ms, p99_ms, counts: &self.counts }
    }
}

/// The line of each second. Fields are described in README.md.
#[derive(Debug, Serialize)]
pub struct Live<'a> {
    kind: &'static str,
    seconds: f64,
    rate: u64,
    p50_ms: f64,
    p99_ms: f64,
    #[serde(flatten)]
    counts: &'a Counts,
}

impl Live<'_> {
    pub fn text(&self) -> String {
        let Live { seconds, rate, p50_ms, p99_ms, counts, .. } = self;
        let counts = counts.text();
        format!("{seconds:4.0} s  {rate:7}/s  p50 {p50_ms:.2} ms  p99 {p99_ms:.2} ms  {counts}")
    }
}

/// The line. Fields are described in README.md.
#[derive(Debug, Serialize)]
pub struct Run<'a> {
    kind: &'static str,
    model: &'a str,
    arrival: Arrival,
    transport: Transport,
    slots: u16,
    window: Option<u16>,
    rate: Option<f64>,
    arrivals: Option<String>,
    inputs: u16,
    reference: bool,
    label: Label,
    nic: Label,
    link: Label,
    device: &'a str,
    mtu: u32,
    #[serde(flatten)]
    counts: &'a Counts,
    first_wrong: &'a Option<String>,
    warm_up: u64,
    latency: Option<Summary>,
    service: Option<Summary>,
    seconds: f64,
    answers_per_second: f64,
    interrupted: bool,
    error: &'a Option<String>,
}

impl<'a> Run<'a> {
    pub fn new(options: &'a Options, device: &'a str, mtu: u32, outcome: &'a Outcome) -> Run<'a> {
        let nic = cli::nic_label();
        let window = options.rate.is_none().then(|| options.window.unwrap_or(options.slots));
        Run {
            kind: "run",
            model: &options.model,
            arrival: options.arrival,
            transport: options.transport,
            slots: options.slots,
            window,
            rate: options.rate,
            arrivals: options.rate.map(|_| name(options.arrivals)),
            inputs: options.inputs,
            reference: options.reference.is_some(),
            label: nic,
            nic,
            link: nic,
            device,
            mtu,
            counts: &outcome.counts,
            first_wrong: &outcome.first_wrong,
            warm_up: options.warm_up,
            latency: outcome.latency.summary(),
            service: outcome.service.summary(),
            seconds: outcome.seconds,
            answers_per_second: outcome.counts.answered as f64 / outcome.seconds.max(1e-9),
            interrupted: outcome.interrupted,
            error: &outcome.error,
        }
    }

    pub fn text(&self) -> String {
        let Counts { sent, answered, .. } = self.counts;
        let mut text = format!(
            "{}: {answered} of {sent} requests answered in {:.2} s, {:.1} a second: {}",
            self.model,
            self.seconds,
            self.answers_per_second,
            self.counts.text()
        );
        for (what, times) in [("latency", &self.latency), ("service", &self.service)] {
            let Some(times) = times else { continue };
            let us = [times.p50_ns, times.p90_ns, times.p99_ns, times.p999_ns, times.max_ns];
            let [p50, p90, p99, p999, max] = us.map(|ns| ns as f64 / 1e3);
            text.push_str(&format!(
                "\n{what}: p50 {p50:.1} us, p90 {p90:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.1} of {}",
                times.count
            ));
        }
        text.push_str(&format!(" (nic {}, link {})", self.nic, self.link));
        if let Some(wrong) = self.first_wrong {
            text.push_str(&format!("\nfirst wrong answer: {wrong}"));
        }
        if self.interrupted {
            text.push_str("\nstopped by a signal: these are the counts so far");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_clean_only_if_everything_was_answered_right_and_once() {
        let clean = Counts { sent: 3, answered: 3, ..Counts::default() };
        assert!(clean.is_clean());
        for spoil in [
            |counts: &mut Counts| counts.wrong = 1,
            |counts: &mut Counts| counts.lost = 1,
            |counts: &mut Counts| counts.duplicate = 1,
            |counts: &mut Counts| counts.answered = 0,
            |counts: &mut Counts| counts.refuse(Status::ModelFailed),
        ] {
            let mut counts = clean.clone();
            spoil(&mut counts);
            assert!(!counts.is_clean(), "{counts:?}");
        }
        let mut counts = clean;
        [Status::Stopping, Status::Stopping].into_iter().for_each(|status| counts.refuse(status));
        assert_eq!(counts.text(), "0 wrong, 0 lost, 0 late, 0 duplicate, 2 refused: stopping");
    }
}
