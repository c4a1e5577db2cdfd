//! One measured point as it stands in `results.jsonl`: what was set, what came out, and where it comes from.

use measure::{Label, Provenance};
use serde::{Deserialize, Serialize};

/// One run of sender and receiver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Number of the figure that it was measured for; lines of earlier revisions do not say.
    #[serde(default)]
    pub figure: Option<u32>,
    /// Who posted, and how: `cpu-ibverbs`, `cpu-shim`, `gpu-a100`.
    pub series: String,
    /// Bytes of one message, headers left out.
    pub payload_bytes: u64,
    /// Requests handed over in one call, with one doorbell; as many as a burst has where the spec's window makes that fewer.
    pub list: u32,
    /// Which of the repetitions, from zero.
    pub repetition: u32,
    /// Seconds of posting that were asked for.
    pub seconds: f64,
    /// Messages outstanding at most, as the generator says; lines of earlier revisions do not say.
    #[serde(default)]
    pub window: Option<u32>,
    /// Messages posted and timed together, as the generator says; lines of earlier revisions do not say.
    #[serde(default)]
    pub batch: Option<u32>,
    /// Payload that arrived, in Gbit/s over the transfer's time.
    pub payload_gbps: f64,
    /// The same with all headers that a switch port counts.
    pub wire_gbps: f64,
    /// Messages that arrived, per second.
    pub msgs_per_s: f64,
    /// Time to post one request: median over the bursts of each burst's mean.
    pub post_ns: f64,
    /// The same as the mean over all bursts: it holds whatever else the core did meanwhile.
    pub post_mean_ns: f64,
    /// All bursts.
    pub post: Option<Bursts>,
    /// Requests posted.
    pub posted: u64,
    /// Requests whose completion was seen.
    pub completed: u64,
    /// Messages that the receiver saw.
    pub received: u64,
    /// Bytes that the receiver saw.
    pub received_bytes: u64,
    /// Messages whose content the receiver checked and found right.
    pub verified: u64,
    /// Messages with old and new bytes mixed.
    pub torn: u64,
    /// Messages that never arrived.
    pub lost: u64,
    /// Nothing torn, nothing lost, everything that was checked was right, by the generator's rule. See [`Point::is_whole`].
    pub content_ok: bool,
    /// Threads that post; `None` where the run was too short to see one of them at work.
    pub posting_threads: Option<u32>,
    /// Rate that the port says it has; `None` where it means nothing (shared memory).
    pub link_gbps: Option<f64>,
    /// Weakest label of the parts that the run used.
    pub label: Label,
    /// Where it comes from.
    pub provenance: Provenance,
}

/// Distribution of the bursts' means, in ns; below a nanosecond's resolution, hence no integers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the percentiles name themselves")]
pub struct Bursts {
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

/// The numbers that [`Point::field`] knows.
pub const FIELDS: [&str; 6] =
    ["payload_gbps", "wire_gbps", "msgs_per_s", "post_ns", "post_mean_ns", "posting_threads"];

/// What tells one point of a run from another.
pub type Key = (String, u64, u32, u32);

impl Point {
    /// What `--resume` compares.
    pub fn key(&self) -> Key {
        (self.series.clone(), self.payload_bytes, self.list, self.repetition)
    }

    /// Whether every message that was posted completed, arrived, and was right where it was checked.
    pub fn is_whole(&self) -> bool {
        self.content_ok && self.posted == self.completed
    }

    /// Which point, what was counted, and what is missing of it.
    pub fn what_is_missing(&self) -> String {
        let counts = [
            (self.posted.saturating_sub(self.completed), "without completion"),
            (self.lost, "lost"),
            (self.torn, "torn"),
        ];
        let mut missing: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if missing.is_empty() {
            missing.push(if self.verified == 0 { "none checked".into() } else { "the counts differ".into() });
        }
        format!(
            "{} at {} B, list {}, repetition {}: posted {}, completed {}, received {} ({})",
            self.series,
            self.payload_bytes,
            self.list,
            self.repetition,
            self.posted,
            self.completed,
            self.received,
            missing.join(", ")
        )
    }

    /// A field by the name that `paper.toml` gives it.
    pub fn field(&self, name: &str) -> Option<f64> {
        Some(match name {
            "payload_gbps" => self.payload_gbps,
            "wire_gbps" => self.wire_gbps,
            "msgs_per_s" => self.msgs_per_s,
            "post_ns" => self.post_ns,
            "post_mean_ns" => self.post_mean_ns,
            "posting_threads" => f64::from(self.posting_threads?),
            _ => return None,
        })
    }
}

/// What the GPU of a series was by its poster's name: a GPU, the host twin in the place of one, or none.
pub fn poster(series: &str) -> Label {
    match series {
        "host-twin" => Label::Emulated,
        gpu if gpu.starts_with("gpu-") => Label::Hardware,
        _ => Label::None,
    }
}

/// Whether a series cannot be measured without a GPU.
pub fn needs_gpu(series: &str) -> bool {
    poster(series) == Label::Hardware
}

/// Weakest label of all points.
pub fn label_of(points: &[Point]) -> Label {
    Label::weakest(points.iter().map(|point| point.label))
}

/// Where points of one run come from: theirs is the same but for the GPU, which takes part in some series only. What is said
/// of it is the weakest of those.
pub fn provenance_of(points: &[Point]) -> Option<Provenance> {
    let used = points.iter().map(|point| point.provenance.gpu).filter(|gpu| *gpu != Label::None);
    Some(Provenance { gpu: Label::weakest(used), ..points.first()?.provenance.clone() })
}

/// The GPU's name, if one took part.
pub fn gpu_named(provenance: &Provenance) -> String {
    if provenance.gpu_device.is_empty() { String::new() } else { format!("{}; ", provenance.gpu_device) }
}

/// How busy the machine was; a build just before counts, work of others beside does too.
pub fn load(provenance: &Provenance) -> String {
    provenance.load.map_or_else(String::new, |load| format!("; load in the minute before: {load:.1}"))
}

/// A sentence about a machine that was at work before the run, above half of its cores: what ran there may have gone on beside
/// the run. Of points that were measured in several goes the busiest one counts.
pub fn crowded(points: &[Point]) -> Option<String> {
    let loads = points.iter().filter_map(|point| Some((point.provenance.load?, point.provenance.cores)));
    let (load, cores) = loads.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (load > cores as f64 / 2.0).then(|| {
        format!(
            "load {load:.1} on {cores} cores in the minute before the run: other programs, or a build, ran then; what ran on beside \
             it makes its numbers worse"
        )
    })
}

/// A point for tests; they change what they are about.
#[cfg(any(test, feature = "testing"))]
pub fn example(series: &str, payload_bytes: u64) -> Point {
    let gpu = if series.starts_with("gpu-") { Label::Hardware } else { Label::None };
    Point {
        figure: None,
        series: series.into(),
        payload_bytes,
        list: 1,
        repetition: 0,
        seconds: 1.0,
        window: Some(64),
        batch: Some(32),
        payload_gbps: 1.0,
        wire_gbps: 1.0,
        msgs_per_s: 1.0,
        post_ns: 100.0,
        post_mean_ns: 110.0,
        post: None,
        posted: 10,
        completed: 10,
        received: 10,
        received_bytes: 10 * payload_bytes,
        verified: 10,
        torn: 0,
        lost: 0,
        content_ok: true,
        posting_threads: Some(1),
        link_gbps: Some(100.0),
        label: Label::Hardware,
        provenance: Provenance {
            nic: Label::Hardware,
            gpu,
            link: Label::Hardware,
            device: "mlx5_0".into(),
            gpu_device: String::new(),
            nic_options: Default::default(),
            machine: "a machine, 2 cores".into(),
            cores: 2,
            load: None,
            versions: Default::default(),
            revision: measure::Revision { commit: "abc".into(), dirty: false },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_says_what_it_lacks() {
        let whole = example("cpu-shim", 262_144);
        assert!(whole.is_whole());
        for (point, words) in [
            (
                // The drain ended too early: everything had arrived.
                Point { posted: 256, completed: 128, received: 256, content_ok: false, ..whole.clone() },
                "cpu-shim at 262144 B, list 1, repetition 0: posted 256, completed 128, received 256 (128 without completion)",
            ),
            // The generator's rule compares what completed with what arrived.
            (Point { completed: 9, received: 9, ..whole.clone() }, "received 9 (1 without completion)"),
            (Point { lost: 2, torn: 1, content_ok: false, ..whole.clone() }, "(2 lost, 1 torn)"),
            (Point { verified: 0, content_ok: false, ..whole.clone() }, "(none checked)"),
            (Point { received: 11, content_ok: false, ..whole.clone() }, "(the counts differ)"),
        ] {
            assert!(
                !point.is_whole() && point.what_is_missing().ends_with(words),
                "{}",
                point.what_is_missing()
            );
        }
    }
}
