//! `experiments/*/measured.json`: what was measured where, one entry for each machine, label, GPU and shaped
//! rate; written by `--record` and `import`.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use measure::{Label, Provenance, Revision};
use serde::{Deserialize, Serialize};

use crate::point::{Key, Point};
use crate::refused::refused;
use crate::resume;
use crate::samples::Samples;
use crate::spec::Extent;
use crate::table::Row;
use crate::verdict::Judged;

/// One machine's last recorded run of an experiment.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Processor and cores.
    pub machine: String,
    /// Weakest label of the run.
    pub label: Label,
    pub extent: Extent,
    pub provenance: Provenance,
    pub rows: Vec<Row>,
    pub verdicts: Vec<Judged>,
    /// Values compared within one run, by name.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub ratios: serde_json::Value,
    /// What machine, GPU and NIC did during the run.
    #[serde(default, skip_serializing_if = "Samples::is_empty")]
    pub samples: Samples,
}

/// What `measured.json` holds.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// One for each machine, label, GPU and shaped rate.
    pub entries: Vec<Entry>,
}

impl Measured {
    /// Reads the file; one that is not there has no entries.
    pub fn read(path: &Path) -> Result<Measured> {
        let read = || format!("reading {}", path.display());
        let bytes = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Measured::default()),
            bytes => bytes.with_context(read)?,
        };
        let measured: Measured = serde_json::from_slice(&bytes).with_context(read)?;
        // A point is made of each repetition.
        for Row { repetitions, series, .. } in measured.entries.iter().flat_map(|entry| &entry.rows) {
            ensure!(
                *repetitions <= MOST_REPETITIONS,
                "{}: {repetitions} repetitions of {series}, and {MOST_REPETITIONS} at most are believed",
                read()
            );
        }
        Ok(measured)
    }
}

/// More than any run has.
const MOST_REPETITIONS: usize = 10_000;

impl Entry {
    /// Machine, label, GPU and rate in words: entries with equal ones are one measurement at two times.
    pub fn subject(&self) -> String {
        let from = &self.provenance;
        let gpu = if from.gpu_device.is_empty() { String::new() } else { format!(", {}", from.gpu_device) };
        let rate = from.nic_options.get("rate_gbps");
        let rate = rate.map_or_else(String::new, |rate| format!(", shaped to {rate} Gbit/s"));
        format!("{} ({}{gpu}{rate})", self.machine, self.label)
    }

    /// Seconds that its points took, if all of them are known.
    pub fn took_s(&self) -> Option<f64> {
        self.rows.iter().map(|row| row.took_s).sum()
    }

    /// Whether both are parts of one measurement: same machine, label, GPU, rate and extent. Series not
    /// judged `one_by_one` are compared, so they must share revision and versions too.
    pub(crate) fn is_part_with(&self, other: &Entry, one_by_one: bool) -> bool {
        let is_same = (self.subject(), self.extent) == (other.subject(), other.extent);
        is_same && (one_by_one || resume::differs(&self.provenance, &other.provenance).is_none())
    }

    /// Points whose medians, least and most are those of the rows: of each repetition a recorded run keeps
    /// only the distribution, if it is alone.
    pub fn points(&self, experiment: &str) -> Vec<Point> {
        self.rows.iter().flat_map(|row| self.points_of(row, experiment)).collect()
    }

    /// Those of one row; a single one has all that its program found.
    pub(crate) fn points_of(&self, row: &Row, experiment: &str) -> Vec<Point> {
        let point = |at: usize| {
            // Of the median, the least and the most.
            let place = match (row.repetitions, at) {
                (2, at) => at + 1,
                (_, at @ 0..3) => at,
                _ => 0,
            };
            let key = Key { series: row.series.clone(), x: row.x, at: row.at.clone(), repetition: at as u32 };
            let mut point = Point {
                is_kept: true,
                settings: row.settings.clone(),
                took_s: row.took_s.map(|all| all / row.repetitions as f64),
                missing: (!row.content_ok).then(|| "recorded as not whole".to_owned()),
                ..Point::new(experiment, key, self.label, self.of(row).clone())
            };
            for (name, values) in &row.values {
                point.values.insert(name.clone(), values[place]);
                if row.repetitions == 1 {
                    point.spread.insert(name.clone(), [values[1], values[2]]);
                }
            }
            if let Some(quantiles) = &row.quantiles {
                let runs = row.values.get("runs").map(|[runs, ..]| *runs as u64);
                point.detail = serde_json::json!({ "quantiles_ns": quantiles.ns(), "runs": runs });
            }
            point
        };
        (0..row.repetitions).map(point).collect()
    }

    /// Where one of its rows comes from.
    pub fn of<'a>(&'a self, row: &'a Row) -> &'a Provenance {
        row.provenance.as_ref().unwrap_or(&self.provenance)
    }

    /// Where its rows come from: the entry's own first.
    pub fn sources(&self) -> impl Iterator<Item = &Provenance> {
        std::iter::once(&self.provenance).chain(self.rows.iter().filter_map(|row| row.provenance.as_ref()))
    }
}

/// Refuses a tree with changes: a recorded number must name the source that gave it.
pub fn allowed(revision: &Revision) -> Result<()> {
    let why = "--record: the tree has changes, so no revision names this source; commit first";
    ensure!(!revision.dirty, refused(why));
    Ok(())
}

/// Replaces the entry of the same machine, label, GPU and rate, or appends `entry`. A quick run replaces only
/// a quick one. The file is replaced whole or not at all.
pub fn record(path: &Path, entry: Entry) -> Result<()> {
    let mut measured = Measured::read(path)?;
    match measured.entries.iter_mut().find(|old| old.subject() == entry.subject()) {
        Some(old) if entry.extent == Extent::Quick && old.extent != Extent::Quick => {
            return Err(refused(format!(
                "a quick run does not take the place of the {} one that {} has of {}",
                old.extent.name(),
                path.display(),
                entry.subject()
            )));
        }
        Some(old) => *old = entry,
        None => measured.entries.push(entry),
    }
    let text = serde_json::to_string_pretty(&measured).context("writing measured.json")? + "\n";
    write_whole(path, text.as_bytes())
}

/// As [`measure::write_whole()`], with the file in the error.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    measure::write_whole(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// What is wrong with a committed file, one line each.
pub fn problems(text: &str) -> Vec<String> {
    let measured: Measured = match serde_json::from_str(text) {
        Ok(measured) => measured,
        Err(error) => return vec![format!("is not what --record writes: {error}")],
    };
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in &measured.entries {
        let subject = entry.subject();
        if entry.sources().any(|from| from.revision.dirty || from.revision.commit.len() != 40) {
            problems.push(format!("{subject}: no clean revision names its source"));
        }
        if entry.rows.is_empty() {
            problems.push(format!("{subject}: has no points"));
        } else if !entry.rows.iter().all(|row| row.content_ok) {
            problems.push(format!("{subject}: has points whose messages were not whole"));
        }
        if !seen.insert(subject.clone()) {
            problems.push(format!("{subject} stands there twice"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    fn entry(machine: &str, label: Label, extent: Extent) -> Entry {
        let mut provenance = example("cpu-shim", 64).provenance;
        provenance.revision.commit = "0123456789".repeat(4);
        let rows = crate::table::rows(&[example("cpu-shim", 64)]);
        let machine = machine.into();
        let (verdicts, ratios, samples) = Default::default();
        Entry { machine, label, extent, provenance, rows, verdicts, ratios, samples }
    }

    #[test]
    fn an_entry_keeps_how_long_its_points_took_if_each_says_it() {
        let took = |x, repetition, took_s| Point { repetition, took_s, ..example("cpu-shim", x) };
        let mut points = [took(64, 0, Some(1.5)), took(64, 1, Some(2.5)), took(128, 0, None)];
        let of = |points: &[Point]| {
            let rows = crate::table::rows(points);
            let kept = Entry { rows, ..entry("a", Label::Emulated, Extent::Quick) };
            let read: Entry = serde_json::from_str(&serde_json::to_string(&kept).unwrap()).unwrap();
            // As a part of a later run it stays.
            assert_eq!(crate::table::rows(&read.points("fig4"))[0].took_s, Some(4.0));
            read.took_s()
        };
        assert_eq!(of(&points), None, "of a revision that did not keep it");
        points[2].took_s = Some(0.5);
        assert_eq!(of(&points), Some(4.5));
    }

    #[test]
    fn there_is_one_entry_for_each_machine_and_label() {
        let path = std::env::temp_dir().join(format!("xtask-measured-{}.json", std::process::id()));
        let _ = std::fs::remove_file(&path);
        for (machine, label, extent) in [
            ("a", Label::Emulated, Extent::Quick),
            ("a", Label::Hardware, Extent::Quick),
            ("b", Label::Emulated, Extent::Quick),
            ("a", Label::Emulated, Extent::Full),
        ] {
            record(&path, entry(machine, label, extent)).unwrap();
        }
        let error = record(&path, entry("a", Label::Emulated, Extent::Quick)).unwrap_err();
        assert!(error.to_string().contains("does not take the place of the full one"), "{error}");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(problems(&text), [""; 0]);
        let measured: Measured = serde_json::from_str(&text).unwrap();
        let entries: Vec<(&str, Extent)> =
            measured.entries.iter().map(|entry| (entry.machine.as_str(), entry.extent)).collect();
        assert_eq!(entries, [("a", Extent::Full), ("a", Extent::Quick), ("b", Extent::Quick)]);
    }

    #[test]
    fn another_gpu_and_another_rate_are_other_measurements() {
        let path = std::env::temp_dir().join(format!("xtask-measured-gpu-{}.json", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let plain = || entry("a", Label::Emulated, Extent::Full);
        let mut on_gpu = plain();
        on_gpu.provenance.gpu_device = "NVIDIA H200, sm_90".into();
        let mut shaped = entry("a", Label::Emulated, Extent::Full);
        shaped.provenance.nic_options.insert("rate_gbps".into(), 100.into());
        for entry in [plain(), on_gpu, shaped, plain()] {
            record(&path, entry).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(problems(&text), [""; 0]);
        assert_eq!(serde_json::from_str::<Measured>(&text).unwrap().entries.len(), 3);
    }

    #[test]
    fn what_record_would_not_write_is_named() {
        let good = || entry("a", Label::Emulated, Extent::Quick);
        let mut dirty = good();
        dirty.provenance.revision.dirty = true;
        let mut nameless = good();
        nameless.provenance.revision.commit.clear();
        let mut broken = good();
        broken.rows[0].content_ok = false;
        for (entries, what) in [
            (vec![good(), good()], "twice"),
            (vec![dirty], "no clean revision"),
            (vec![nameless], "no clean revision"),
            (vec![Entry { rows: Vec::new(), ..good() }], "has no points"),
            (vec![broken], "not whole"),
        ] {
            let found = problems(&serde_json::to_string(&Measured { entries }).unwrap());
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
        for text in ["", "{}", "{\"entries\":[{}]}", "{\"entries\":[],\"more\":1}"] {
            assert_eq!(problems(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_tree_with_changes_is_not_recorded() {
        let revision = |dirty| Revision { commit: "abc".into(), dirty };
        assert!(allowed(&revision(false)).is_ok());
        assert!(allowed(&revision(true)).unwrap_err().is::<crate::refused::Refused>());
    }

    #[test]
    fn a_file_that_is_not_ours_is_left_alone() {
        let path = std::env::temp_dir().join(format!("xtask-measured-bad-{}.json", std::process::id()));
        std::fs::write(&path, "nonsense").unwrap();
        assert!(record(&path, entry("a", Label::Emulated, Extent::Quick)).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "nonsense");
        std::fs::remove_file(&path).unwrap();
    }
}
