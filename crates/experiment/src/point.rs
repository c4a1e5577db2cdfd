//! One measured point as it stands in `results.jsonl`: what was set, what came out, and where it comes from.

use std::collections::BTreeMap;

use measure::{Label, Provenance};
use serde::{Deserialize, Serialize};

use crate::samples::Samples;
use crate::statistics::spread;

pub use crate::testing::example;

/// One run of the program that an experiment measures.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Name of the experiment, as of its folder.
    pub experiment: String,
    /// Poster, program or number, as the spec names it: `cpu-shim`, `gpu-thread`.
    pub series: String,
    /// Value of the factor along the x axis; 0 where the spec has none.
    pub x: u64,
    /// Values of the other factors of the grid: `list` → 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at: BTreeMap<String, u64>,
    /// Which of the repetitions, from zero.
    pub repetition: u32,
    /// Seconds that were asked for.
    pub seconds: f64,
    /// Seconds that it took, with all that it started; `None`: of a revision that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_s: Option<f64>,
    /// Settings that the program says it ran with: `window`, `batch`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, u64>,
    /// The numbers, by the names that the spec declares; one that was not measured is absent.
    pub values: BTreeMap<String, f64>,
    /// Least and most of a number that the program itself took several times, by the same names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: BTreeMap<String, [f64; 2]>,
    /// What is missing of the point, in a sentence; `None`: it is whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// Cores that programs of others kept busy meanwhile; `None` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// What machine, GPU and NIC did meanwhile; `None`: nothing was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<Samples>,
    /// Whatever else the program said: histograms, counts.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub detail: serde_json::Value,
    /// Weakest label of the parts that the run used.
    pub label: Label,
    pub provenance: Provenance,
    /// Whether it stands for a recorded row: its numbers are not those of one repetition.
    #[serde(skip)]
    pub is_kept: bool,
}

impl Samples {
    /// Samples of a whole run: of a gauge the median of the points' medians, the least and the most; of a
    /// counter the sum. Left out: what no point has.
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
            let of = |at: usize| spread(&spreads.iter().map(|one| one[at]).collect::<Vec<f64>>());
            run.gauges.insert(name.clone(), [0, 1, 2].map(|at| of(at).unwrap_or_default()[at]));
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
}

/// What tells one point of a run from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub series: String,
    pub x: u64,
    pub at: BTreeMap<String, u64>,
    pub repetition: u32,
}

impl Point {
    /// A whole point without a number yet.
    pub fn new(experiment: &str, key: Key, label: Label, provenance: Provenance) -> Point {
        let Key { series, x, at, repetition } = key;
        Point {
            experiment: experiment.to_owned(),
            series,
            x,
            at,
            repetition,
            seconds: 0.0,
            took_s: None,
            settings: BTreeMap::new(),
            values: BTreeMap::new(),
            spread: BTreeMap::new(),
            missing: None,
            others: None,
            samples: None,
            detail: serde_json::Value::Null,
            label,
            provenance,
            is_kept: false,
        }
    }

    /// What `--resume` compares.
    pub fn key(&self) -> Key {
        Key { series: self.series.clone(), x: self.x, at: self.at.clone(), repetition: self.repetition }
    }

    /// Whether anything was measured of it.
    pub fn has_numbers(&self) -> bool {
        !self.values.is_empty()
    }

    /// Whether nothing is missing of it.
    pub fn is_whole(&self) -> bool {
        self.missing.is_none()
    }

    /// Whether claims look at it: all its factors but x are 1, as `list` is for requests posted one by one.
    pub fn is_base(&self) -> bool {
        self.at.values().all(|value| *value == 1)
    }

    /// Which point, and what is missing of it.
    pub fn what_is_missing(&self) -> String {
        format!("{}: {}", self.key(), self.missing.as_deref().unwrap_or("nothing"))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.series)?;
        if self.x > 0 {
            // A payload has lists beside it; any other x is a count.
            write!(f, " at {}{}", self.x, if self.at.contains_key("list") { " B" } else { "" })?;
        }
        self.at.iter().try_for_each(|(name, value)| write!(f, ", {name} {value}"))?;
        write!(f, ", repetition {}", self.repetition)
    }
}

/// What the GPU of a series was by the series' name: a GPU, the host twin in the place of one, or none.
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
    // One without numbers has measured with nothing.
    let measured = points.iter().filter(|point| point.has_numbers());
    Label::weakest(measured.map(|point| point.label))
}

/// Provenance of the points of one run. Points differ only in the GPU, which takes part in some series; its
/// label is the weakest of those.
pub fn provenance_of(points: &[Point]) -> Option<Provenance> {
    let used = points.iter().map(|point| point.provenance.gpu).filter(|gpu| *gpu != Label::None);
    Some(Provenance { gpu: Label::weakest(used), ..points.first()?.provenance.clone() })
}

/// One line: label, parts, GPU, machine, and how busy it was before the run.
pub fn standing(label: Label, from: &Provenance) -> String {
    let gpu = if from.gpu_device.is_empty() { String::new() } else { format!("{}; ", from.gpu_device) };
    let load = from.load.map_or_else(String::new, |load| format!("; load in the minute before: {load:.1}"));
    let machine = from.machines();
    format!(
        "label: {label} (nic: {}, gpu: {}, link: {}); {gpu}{machine}{load}",
        from.nic, from.gpu, from.link
    )
}

/// `0123456789 with changes`: the revision, and whether the tree had changes that it does not name.
pub fn revision(from: &Provenance) -> String {
    let commit = from.revision.commit.get(..10).unwrap_or("unknown");
    let changes = if from.revision.dirty { " with changes" } else { "" };
    format!("revision {commit}{changes}")
}

/// A sentence about a machine with more than half of its cores busy before the run: what ran there may have
/// gone on. Where other programs' cores were measured meanwhile, [`disturbed`] knows better: the load may be
/// our build. Of points that were measured in several runs the busiest counts.
pub fn crowded(points: &[Point]) -> Option<String> {
    let unwatched = points.iter().filter(|point| point.others.is_none());
    let loads = unwatched.filter_map(|point| Some((point.provenance.load?, point.provenance.cores)));
    let (load, cores) = loads.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (load > cores as f64 / 2.0).then(|| {
        format!(
            "load {load:.1} on {cores} cores in the minute before the run: other programs, or a build, ran then; what ran on beside \
             it makes its numbers worse"
        )
    })
}

/// Share of the cores that others may use before verdicts are marked.
const DISTURBED: f64 = 0.1;

/// A sentence about other programs that took more than a tenth of the machine while points were measured.
pub fn disturbed(points: &[Point]) -> Option<String> {
    let others: Vec<f64> = points.iter().filter_map(|point| point.others).collect();
    let cores = points.first()?.provenance.cores as f64;
    let mean = others.iter().sum::<f64>() / others.len().max(1) as f64;
    (mean > DISTURBED * cores).then(|| {
        format!("other programs kept {mean:.1} of {cores:.0} cores busy during the run: verdicts may show them instead")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_says_which_it_is_and_what_it_lacks() {
        let whole = example("cpu-shim", 262_144);
        assert!(whole.is_whole());
        let broken = Point { missing: Some("posted 256, completed 128".into()), ..whole.lists(16) };
        let words = "cpu-shim at 262144 B, list 16, repetition 0: posted 256, completed 128";
        assert!(!broken.is_whole() && broken.what_is_missing() == words, "{}", broken.what_is_missing());
    }

    #[test]
    fn programs_of_others_are_named_above_a_tenth_of_the_machine() {
        let with = |others| Point { others, ..example("cpu-shim", 64) };
        for (points, said) in [
            (vec![with(None)], false),
            (vec![with(Some(0.1)), with(Some(0.2))], false),
            (vec![with(Some(0.1)), with(Some(0.5))], true),
        ] {
            assert_eq!(disturbed(&points).is_some(), said);
        }
    }

    #[test]
    fn a_tree_with_changes_is_named_with_its_revision() {
        let mut from = example("cpu-shim", 64).provenance;
        from.revision.commit = "0123456789abcdef".into();
        assert_eq!(revision(&from), "revision 0123456789");
        from.revision.dirty = true;
        assert_eq!(revision(&from), "revision 0123456789 with changes");
    }

    fn sampled(gauge: &[f64], count: f64, absent: &[(&str, &str)]) -> Point {
        let mut samples = Samples::default();
        samples.gauge("cpu_watts", gauge);
        samples.counts.insert("nic.cqes".into(), count);
        samples.absent = absent.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect();
        Point { samples: Some(samples), ..example("cpu-shim", 64) }
    }

    #[test]
    fn a_run_has_the_median_of_medians_the_whole_range_and_the_sum_of_counts() {
        let points = [
            sampled(&[10.0, 20.0, 60.0], 3.0, &[("gpu_watts", "no nvidia-smi")]),
            sampled(&[40.0], 4.0, &[("cpu_watts", "went back"), ("nic", "no line")]),
            sampled(&[], 0.0, &[("cpu_watts", "went back"), ("gpu_watts", "no GPU")]),
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
