//! Results from another machine: the entry that `--record` would have written there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use measure::{Label, json_lines};
use serde::Deserialize;

use crate::measured::{Entry, Measured};
use crate::point::{self, Key, Point};
use crate::spec::Extent;
use crate::table::Row;
use crate::{Experiment, Samples, resume, table};

/// What is believed of `summary.json`: what the points do not say themselves.
#[derive(Deserialize)]
struct Summary {
    experiment: String,
    extent: Extent,
    #[serde(default)]
    ratios: serde_json::Value,
    /// Repetitions, where the run was asked for another number than the grid's.
    repeat: Option<u32>,
    /// Series that the machine could not measure.
    #[serde(default)]
    left_out: Vec<String>,
}

/// The error of a run by the host twin: it tries a command, and its numbers say nothing of a GPU.
#[derive(Debug, thiserror::Error)]
#[error("it is a run by the host twin, whose numbers are neither judged nor recorded")]
pub struct ByHostTwin;

/// Reads the folder that a run's `--out` was. Returns the experiment's name, the entry computed from its
/// points, and a warning about a busy machine. With `part`, the path of the file with other parts, series
/// without a point are not wanted. Recorded rows of other series of the same machine and extent stay, with
/// their revision; where a claim compares series, only rows of the same revision and versions stay.
/// Errors: a damaged or cut file, an unknown experiment, points not whole, not of one run, or not all that it
/// measures; [`ByHostTwin`]; a part of an experiment that compares series by more than their rows.
pub fn imported(
    experiments: &Path,
    folder: &Path,
    part: Option<&dyn Fn(&str) -> PathBuf>,
) -> Result<(String, Entry, Option<String>)> {
    let text = fs::read(folder.join("summary.json")).context("reading summary.json")?;
    let summary: Summary = serde_json::from_slice(&text).context("summary.json")?;
    let name = &summary.experiment;
    let experiment = Experiment::read(experiments, name)?;
    let records = json_lines::read::<Point>(&folder.join("results.jsonl"))?;
    let torn = records.torn_bytes;
    ensure!(torn == 0, "results.jsonl: its last line is cut after {torn} bytes");
    let (points, _) = resume::newest(records.records);
    let first = points.first().context("results.jsonl holds no points")?;
    for point in &points {
        let of = &point.experiment;
        ensure!(of == name, "results.jsonl: a point is of {of}, summary.json of {name}");
        let different = resume::differs(&first.provenance, &point.provenance);
        if let Some(resume::Difference { what, old, new }) = different {
            bail!("results.jsonl: its points are of two runs: {what} is `{old}` in one, `{new}` in another");
        }
        ensure!(point.is_whole(), "not whole: {}", point.what_is_missing());
    }
    let is_of_twin =
        |point: &Point| point::needs_gpu(&point.series) && point.provenance.gpu == Label::Emulated;
    ensure!(!points.iter().any(is_of_twin), ByHostTwin);
    let measured: BTreeSet<Key> = points.iter().map(Point::key).collect();
    let mut grid = experiment.spec.grid(summary.extent);
    grid.repeat = summary.repeat.unwrap_or(grid.repeat);
    grid.series.retain(|series| !summary.left_out.contains(series));
    if part.is_some() {
        grid.series.retain(|series| points.iter().any(|point| point.series == *series));
    }
    if grid.series.is_empty() {
        grid.series = points.iter().map(|point| point.series.clone()).collect();
    } else if first.provenance.gpu_device.is_empty() {
        grid.without_gpu();
    }
    let wanted: BTreeSet<Key> = grid.keys().into_iter().collect();
    if measured != wanted {
        bail!(
            "a {} run of {name} has {} points, here {} of them are missing and {} are others",
            summary.extent.name(),
            wanted.len(),
            wanted.difference(&measured).count(),
            measured.difference(&wanted).count()
        );
    }
    let busy = point::disturbed(&points).or_else(|| point::crowded(&points));
    let provenance = point::provenance_of(&points).context("no points")?;
    let mut entry = Entry {
        machine: provenance.machine.clone(),
        label: point::label_of(&points),
        extent: summary.extent,
        provenance,
        rows: Vec::new(),
        verdicts: Vec::new(),
        ratios: summary.ratios,
        // Of what was measured now: a former part's stay with its own record.
        samples: Samples::of_run(&points),
    };
    let one_by_one = experiment.judges_series_one_by_one();
    let others = part.map(|file| Measured::read(&file(name))).transpose()?.unwrap_or_default().entries;
    let former = others.into_iter().find(|old| old.is_part_with(&entry, one_by_one));
    let mut all = points;
    if let Some(former) = &former {
        let is_of_rows = entry.ratios.is_null();
        ensure!(is_of_rows, "{name} compares its series by more than their rows: measure it whole");
        let others = former.rows.iter().filter(|row| !all.iter().any(|point| point.series == row.series));
        let others = others.map(|row| again(row, former, name)).collect::<Result<Vec<Point>>>()?;
        all.extend(others);
    }
    entry.label = point::label_of(&all);
    entry.rows = table::recorded(&experiment.spec, &all);
    for row in &mut entry.rows {
        let own = all.iter().find(|point| point.series == row.series).map(|point| &point.provenance);
        row.provenance = own.filter(|own| resume::differs(own, &entry.provenance).is_some()).cloned();
    }
    entry.verdicts = experiment.judge(&all);
    let was_disturbed = former.is_some_and(|former| former.verdicts.iter().any(|one| one.disturbed));
    entry.verdicts.iter_mut().for_each(|one| one.disturbed |= was_disturbed);
    Ok((summary.experiment, entry, busy))
}

/// The point that a recorded row was made of.
fn again(row: &Row, entry: &Entry, experiment: &str) -> Result<Point> {
    ensure!(
        row.repetitions == 1,
        "the recorded row of {} is of {} points, which it does not have one by one: measure all parts in one folder",
        row.series,
        row.repetitions
    );
    entry.points_of(row, experiment).pop().context("the recorded row has no point")
}
