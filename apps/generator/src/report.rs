//! What a run says at the end: one JSON object, and the same for people.

use anyhow::Result;
use cli::{emit, speaks_to_people};
use measure::Label;
use serde::Serialize;
use verbs::connect::Path;

use crate::control::Received;
use crate::plan::{Op, Plan};
use crate::post_times::Spread;
use crate::sender::Outcome;
use crate::wire;

/// Writes a line of JSON; where people read standard output, its text too.
pub fn tell<T: Serialize>(
    json: Option<&std::path::Path>,
    line: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<()> {
    emit(json, line)?;
    if speaks_to_people(json) {
        say!("{}", text(line));
    }
    Ok(())
}

/// The sender's line. Fields are described in README.md.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// `run`, or `warm-up` of one that failed.
    pub kind: &'static str,
    #[serde(flatten)]
    pub names: PosterNames,
    #[serde(flatten)]
    pub plan: Plan,
    #[serde(flatten)]
    pub setup: RunSetup,
    pub device: String,
    pub port: u8,
    pub gid_index: Option<u32>,
    pub mtu: u32,
    pub link_layer: String,
    pub posted: u64,
    pub completed: u64,
    /// What the receiver counted, and what went wrong first at either end.
    #[serde(flatten)]
    pub counts: Received,
    pub received_by: &'static str,
    pub content_ok: bool,
    pub seconds: f64,
    pub msgs_per_s: f64,
    pub payload_gbps: f64,
    pub wire_gbps: f64,
    pub post_ns: f64,
    pub post: Option<Spread>,
    pub first: Option<Spread>,
    pub interrupted: bool,
    pub pid: u32,
}

/// Idle queue pairs and warm-up of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RunSetup {
    /// Queue pairs that nothing is posted to.
    pub idle_qps: u32,
    /// Length of the warm-up, in seconds; 0: none.
    pub warm_up_seconds: f64,
}

/// How the poster is named in a report.
#[derive(Debug, Clone, Serialize)]
pub struct PosterNames {
    pub poster: String,
    pub order: Option<String>,
    pub doorbell: Option<String>,
    /// What ran the kernel that posted.
    pub machine: Option<String>,
    /// What that was of a GPU: one, the host twin in the place of one, or none.
    pub gpu: Label,
    /// Posters on each queue pair.
    pub producers: u32,
    /// Where messages lie.
    pub payload_memory: String,
}

impl Run {
    pub fn new(
        kind: &'static str,
        plan: &Plan,
        names: PosterNames,
        setup: RunSetup,
        device: &str,
        path: &Path,
        outcome: &Outcome,
    ) -> Run {
        let received = &outcome.received;
        let mtu = path.mtu.bytes();
        // As floats: the counts are the peer's, and a product of whole numbers could overflow.
        let wire_bytes = received.received as f64
            * wire::bytes_per_message(plan.op, plan.payload_bytes, mtu.into()) as f64;
        Run {
            kind,
            names,
            plan: plan.clone(),
            setup,
            device: device.into(),
            port: path.port,
            gid_index: path.gid.map(|entry| entry.index),
            mtu,
            link_layer: path.link_layer.to_string(),
            posted: outcome.posted,
            completed: outcome.completed,
            counts: Received { error: outcome.error.clone(), ..received.clone() },
            received_by: if plan.op == Op::Write { "sequence-words" } else { "completions" },
            content_ok: content_ok(outcome.completed, received),
            seconds: outcome.times.seconds,
            msgs_per_s: if outcome.times.seconds > 0.0 {
                received.received as f64 / outcome.times.seconds
            } else {
                0.0
            },
            payload_gbps: wire::gbps(received.received_bytes as f64, outcome.times.seconds),
            wire_gbps: wire::gbps(wire_bytes, outcome.times.seconds),
            post_ns: outcome.times.posts.mean_ns().unwrap_or(0.0),
            post: outcome.times.posts.spread(),
            first: outcome.times.firsts.spread(),
            interrupted: outcome.interrupted,
            pid: std::process::id(),
        }
    }

    /// Whether everything asked for was sent, received and found whole.
    pub fn is_success(&self) -> bool {
        self.content_ok && self.counts.error.is_none() && !self.interrupted && self.posted == self.completed
    }

    pub fn text(&self) -> String {
        let post = self.post.map_or(String::from("-"), |spread| format!("{:.1} ns", spread.p50_ns));
        let counts = &self.counts;
        let rates = rates(counts.received, [self.msgs_per_s, self.payload_gbps, self.wire_gbps]);
        let mut text = format!(
            "posted {}  completed {}  {}\n{:.3} s  {rates}  p50 {post} a post ({})",
            self.posted,
            self.completed,
            counts.text(),
            self.seconds,
            self.names.poster,
        );
        if let Some(first) = self.first {
            text.push_str(&format!(
                "\nafter a pause: p50 {:.1} us, p99 {:.1} us of {} messages",
                first.p50_ns / 1e3,
                first.p99_ns / 1e3,
                first.count
            ));
        }
        if self.interrupted {
            text.push_str("\nstopped by a signal: these are the counts so far");
        }
        text
    }
}

/// The rule for `content_ok`.
fn content_ok(completed: u64, received: &Received) -> bool {
    received.checked > 0
        && received.verified == received.checked
        && received.torn == 0
        && received.lost == 0
        && received.received == completed
}

/// Messages a second, and Gbit/s of payload and wire; without a count of the receiver none was measured.
fn rates(received: u64, [msgs_per_s, payload_gbps, wire_gbps]: [f64; 3]) -> String {
    let msgs_per_s = msgs_per_s / 1e6;
    match received {
        0 => "rates n/a: nothing was counted".to_owned(),
        _ => format!(
            "{msgs_per_s:.3} M messages/s  payload {payload_gbps:.2} Gbit/s  wire {wire_gbps:.2} Gbit/s"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_fine_only_if_something_was_checked_and_nothing_is_missing() {
        let good = Received { received: 9, checked: 4, verified: 4, ..Received::default() };
        assert!(content_ok(9, &good));
        for bad in [
            Received { checked: 0, verified: 0, ..good.clone() },
            Received { verified: 3, ..good.clone() },
            Received { torn: 1, ..good.clone() },
            Received { lost: 1, ..good.clone() },
            Received { received: 8, ..good.clone() },
        ] {
            assert!(!content_ok(9, &bad), "{bad:?}");
        }
    }

    #[test]
    fn a_rate_that_was_not_measured_is_no_zero() {
        assert_eq!(rates(9, [1e6, 2.0, 3.0]), "1.000 M messages/s  payload 2.00 Gbit/s  wire 3.00 Gbit/s");
        assert!(rates(0, [0.0; 3]).contains("n/a") && !rates(0, [0.0; 3]).contains("0.0"));
    }
}
