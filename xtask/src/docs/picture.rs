//! The picture of figure 4 that README.md shows, drawn from the committed run of a machine with a GPU on a link shaped to the paper's
//! rate, beside the paper's curves.

use std::path::Path;

use anyhow::{Context, Result};
use experiment::measured::{Entry, Measured};
use experiment::point::{Key, Point};
use experiment::table::Row;
use experiment::{Experiment, figures};

pub const PATH: &str = "docs/figure4.svg";

/// Draws it. Error: no entry has a GPU, and a rate that its link was shaped to.
pub fn figure4(root: &Path) -> Result<String> {
    let experiments = root.join("experiments");
    let experiment = Experiment::read(&experiments, "fig4")?;
    let measured = Measured::read(&experiments.join("fig4/measured.json"))?;
    let is_shaped = |entry: &&Entry| {
        let from = &entry.provenance;
        from.nic_options.contains_key("rate_gbps") && !from.gpu_device.is_empty()
    };
    let entry = measured.entries.iter().find(is_shaped);
    let entry = entry.context("no run on a shaped link of a machine with a GPU is recorded")?;
    let plot = experiment.spec.plots.first().context("figure 4 has no plot")?;
    let points: Vec<Point> = entry.rows.iter().flat_map(|row| points(entry, row)).collect();
    figures::plot(&experiment, plot, &points, &[], &[])
}

/// As many points as were measured, whose median, least and most are those of the row: a committed run keeps no more.
fn points(entry: &Entry, row: &Row) -> impl Iterator<Item = Point> {
    let spread = |at: usize| match (row.repetitions, at) {
        (2, at) => at + 1,
        (_, at @ 0..3) => at,
        _ => 0,
    };
    (0..row.repetitions).map(move |at| {
        let key = Key { series: row.series.clone(), x: row.x, at: row.at.clone(), repetition: at as u32 };
        Point {
            settings: row.settings.clone(),
            values: row.values.iter().map(|(name, values)| (name.clone(), values[spread(at)])).collect(),
            ..Point::new("fig4", key, entry.label, entry.provenance.clone())
        }
    })
}
