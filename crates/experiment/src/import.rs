//! Results from another machine: the entry that `--record` would have written there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use measure::json_lines;
use serde::Deserialize;

use crate::measured::Entry;
use crate::point::{self, Key, Point};
use crate::spec::Extent;
use crate::{Experiment, resume, table};

/// What is believed of `summary.json`: what the points do not say themselves.
#[derive(Deserialize)]
struct Summary {
    experiment: String,
    extent: String,
    #[serde(default)]
    ratios: serde_json::Value,
    /// Repetitions, where the run was asked for another number than the grid's.
    repeat: Option<u32>,
    /// Series that the machine could not measure.
    #[serde(default)]
    left_out: Vec<String>,
}

/// Reads the folder that a run's `--out` was; the experiment's name, the entry computed from its points, and what is to be said
/// of a machine that was busy. With `part`, series without a point are left out of what is wanted.
/// Errors: a file that is damaged or cut, an experiment that is not known, points that are not whole, not of one run, or not all
/// that it measures.
pub fn imported(experiments: &Path, folder: &Path, part: bool) -> Result<(String, Entry, Option<String>)> {
    let text = fs::read(folder.join("summary.json")).context("reading summary.json")?;
    let summary: Summary = serde_json::from_slice(&text).context("summary.json")?;
    let name = &summary.experiment;
    let experiment = Experiment::read(experiments, name)?;
    let extent = Extent::named(&summary.extent)
        .with_context(|| format!("summary.json: no extent is called `{}`", summary.extent))?;
    let records = json_lines::read::<Point>(&folder.join("results.jsonl"))?;
    ensure!(
        records.torn_bytes == 0,
        "results.jsonl: its last line is cut after {} bytes",
        records.torn_bytes
    );
    let (points, _) = resume::newest(records.records);
    let first = points.first().context("results.jsonl holds no points")?;
    for point in &points {
        ensure!(
            point.experiment == *name,
            "results.jsonl: a point is of {}, summary.json of {name}",
            point.experiment
        );
        if let Some(resume::Difference { what, old, new }) =
            resume::differs(&first.provenance, &point.provenance)
        {
            bail!("results.jsonl: its points are of two runs: {what} is `{old}` in one, `{new}` in another");
        }
        ensure!(point.is_whole(), "not whole: {}", point.what_is_missing());
    }
    let measured: BTreeSet<Key> = points.iter().map(Point::key).collect();
    let mut grid = experiment.spec.grid(extent);
    grid.repeat = summary.repeat.unwrap_or(grid.repeat);
    grid.series.retain(|series| !summary.left_out.contains(series));
    if part {
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
            summary.extent,
            wanted.len(),
            wanted.difference(&measured).count(),
            measured.difference(&wanted).count()
        );
    }
    let provenance = point::provenance_of(&points).context("no points")?;
    let busy = point::disturbed(&points).or_else(|| point::crowded(&points));
    let entry = Entry {
        machine: provenance.machine.clone(),
        label: point::label_of(&points),
        extent: summary.extent,
        provenance,
        rows: table::rows(&points),
        verdicts: experiment.judge(&points),
        ratios: summary.ratios,
    };
    Ok((summary.experiment, entry, busy))
}
