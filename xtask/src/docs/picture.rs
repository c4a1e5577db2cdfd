//! The picture of figure 4 in README.md: the committed run of a machine with a GPU, on a link shaped to the
//! paper's rate, beside the paper's curves.

use std::path::Path;

use anyhow::{Context, Result};
use experiment::measured::{Entry, Measured};
use experiment::{Experiment, RunPoints, figures};

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
    let run = RunPoints { experiment: &experiment, points: &entry.points("fig4"), unmeasured: &[] };
    figures::plot(run, plot, &[])
}
