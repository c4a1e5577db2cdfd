//! A figure's results from another machine: the entry that `--record` would have written there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use measure::json_lines;
use serde::Deserialize;

use super::{Experiment, earlier};
use experiment::point::{self, Key, Point};
use experiment::record::Entry;
use experiment::spec::Extent;
use experiment::table;

/// What is believed of `summary.json`: what the points do not say themselves.
#[derive(Deserialize)]
struct Summary {
    figure: u32,
    extent: String,
    #[serde(default)]
    ratios: serde_json::Value,
}

/// Reads the folder that `figure N --out` wrote; the figure's number, the entry computed from its points, and what is to be said
/// of a machine that was busy.
/// Errors: a file that is damaged or cut, a figure that is not known, points that are not whole, not of one run, or not all
/// that the figure measures.
pub fn imported(folder: &Path) -> Result<(u32, Entry, Option<String>)> {
    let text = fs::read(folder.join("summary.json")).context("reading summary.json")?;
    let summary: Summary = serde_json::from_slice(&text).context("summary.json")?;
    let experiment = Experiment::read(summary.figure)?;
    let extent = Extent::named(&summary.extent)
        .with_context(|| format!("summary.json: no extent is called `{}`", summary.extent))?;
    let records = json_lines::read::<Point>(&folder.join("results.jsonl"))?;
    ensure!(
        records.torn_bytes == 0,
        "results.jsonl: its last line is cut after {} bytes",
        records.torn_bytes
    );
    let points = earlier::newest(records.records);
    let first = points.first().context("results.jsonl holds no points")?;
    for point in &points {
        ensure!(
            point.figure == Some(summary.figure),
            "results.jsonl: a point is of another figure than summary.json, {}",
            summary.figure
        );
        if let Some(earlier::Difference { what, old, new }) =
            earlier::differs(&first.provenance, &point.provenance)
        {
            bail!("results.jsonl: its points are of two runs: {what} is `{old}` in one, `{new}` in another");
        }
        ensure!(point.is_whole(), "not whole: {}", point.what_is_missing());
    }
    let measured: BTreeSet<Key> = points.iter().map(Point::key).collect();
    let mut grid = experiment.spec.grid(extent);
    if first.provenance.gpu_device.is_empty() {
        grid.without_gpu();
    }
    let wanted: BTreeSet<Key> = grid.keys().into_iter().collect();
    if measured != wanted {
        bail!(
            "a {} run of figure {} has {} points, here {} of them are missing and {} are others",
            summary.extent,
            summary.figure,
            wanted.len(),
            wanted.difference(&measured).count(),
            measured.difference(&wanted).count()
        );
    }
    let provenance = point::provenance_of(&points).context("no points")?;
    Ok((
        summary.figure,
        Entry {
            machine: provenance.machine.clone(),
            label: point::label_of(&points),
            extent: summary.extent,
            provenance,
            rows: table::rows(&points),
            verdicts: experiment.judge(&points),
            ratios: summary.ratios,
        },
        point::crowded(&points),
    ))
}
