//! What an earlier run left in `--out`: kept by `--resume`, else moved aside; and which of its points are measured again.
//!
//! Nothing that was measured is deleted. Of a point with two lines in `results.jsonl` the newer one counts, and it is said.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use measure::{Provenance, json_lines};

use super::point::{Key, Point};
use super::spec::Grid;
use super::{Options, PLOTS, quoted};
use crate::refused::refused;
use crate::workspace;

/// Points of an earlier run that count, and what is to be said of it.
#[derive(Debug, Default)]
pub struct Earlier {
    /// The newest line of each point that need not be measured again.
    pub points: Vec<Point>,
    /// Lines of `results.jsonl` that count no more, since their points were not whole.
    pub replaced: usize,
    /// Lines to print.
    pub said: Vec<String>,
}

/// What a user can mend in `--out`, before minutes of building: a file in its place, another figure's results.
pub fn check(out: &Path, figure: u32, options: &Options) -> Result<()> {
    if out.exists() && !out.is_dir() {
        return Err(refused(format!("--out {} is a file; give a folder", out.display())));
    }
    if options.resume {
        for point in json_lines::read::<Point>(&out.join("results.jsonl"))?.records {
            of_this_figure(&point, out, figure)?;
        }
    }
    Ok(())
}

fn of_this_figure(point: &Point, out: &Path, figure: u32) -> Result<()> {
    match point.figure.filter(|its| *its != figure) {
        None => Ok(()),
        Some(its) => Err(refused(format!(
            "--resume: {} holds points of figure {its}, not of figure {figure}; give another --out, or go on with \
             {} figure {its} --resume --out {}",
            out.display(),
            workspace::us(),
            quoted(&out.display().to_string())
        ))),
    }
}

/// Points of a cut run, when they are to be kept; otherwise all that it left is moved aside, never overwritten.
pub fn earlier(
    out: &Path,
    figure: u32,
    options: &Options,
    provenance: &Provenance,
    grid: &Grid,
) -> Result<Earlier> {
    if !options.resume {
        return Ok(Earlier { said: move_aside(out)?.into_iter().collect(), ..Earlier::default() });
    }
    let file = out.join("results.jsonl");
    let mut said = Vec::new();
    let records = json_lines::read::<Point>(&file)?;
    if records.torn_bytes > 0 {
        said.push(format!(
            "the last line was cut after {} bytes; its point is measured again",
            records.torn_bytes
        ));
    }
    if records.records.is_empty() {
        let what = if file.exists() { "holds no points" } else { "does not exist" };
        said.push(format!("--resume: {} {what}: this is a fresh run", file.display()));
    }
    let keys: BTreeSet<Key> = grid.keys().into_iter().collect();
    for point in &records.records {
        of_this_figure(point, out, figure)?;
        if let Some(reason) = unlike(point, provenance, grid, &keys) {
            return Err(refused(format!("--resume: {} {reason}", file.display())));
        }
        if options.record && point.provenance.revision.dirty {
            return Err(refused(format!("--record: {} was measured on a tree with changes", file.display())));
        }
    }
    let lines = records.records.len();
    let (points, again): (Vec<Point>, Vec<Point>) =
        newest(records.records).into_iter().partition(Point::is_whole);
    if !again.is_empty() {
        said.push(format!(
            "{} of {} points were not whole and are measured again; their old lines stay in {}, the newer line of a \
             point counts",
            again.len(),
            points.len() + again.len(),
            file.display()
        ));
    }
    Ok(Earlier { replaced: lines - points.len(), points, said })
}

/// The last line of each point, in the order of the first ones.
pub fn newest(points: Vec<Point>) -> Vec<Point> {
    let mut places = BTreeMap::new();
    let mut kept: Vec<Point> = Vec::new();
    for point in points {
        match places.get(&point.key()) {
            Some(at) => kept[*at] = point,
            None => {
                places.insert(point.key(), kept.len());
                kept.push(point);
            }
        }
    }
    kept
}

/// Renames points, plots and summary of an earlier run, all with the same number; what was moved, as a line to print.
fn move_aside(out: &Path) -> Result<Option<String>> {
    let plots = PLOTS.iter().flat_map(|plot| [(*plot, "svg"), (*plot, "png")]);
    let left: Vec<(&str, &str)> = [("results", "jsonl"), ("summary", "json")]
        .into_iter()
        .chain(plots)
        .filter(|(stem, kind)| out.join(format!("{stem}.{kind}")).exists())
        .collect();
    if left.is_empty() {
        return Ok(None);
    }
    let aside = |n: u32| left.iter().map(move |(stem, kind)| format!("{stem}-{n}.{kind}"));
    let number = (1..).find(|n| aside(*n).all(|name| !out.join(name).exists()));
    let names: Vec<String> = aside(number.context("no free name for the old results")?).collect();
    for ((stem, kind), name) in left.iter().zip(&names) {
        let old = out.join(format!("{stem}.{kind}"));
        fs::rename(&old, out.join(name)).with_context(|| format!("moving {} aside", old.display()))?;
    }
    Ok(Some(format!(
        "an earlier run's results are kept in {} as {} (--resume would have gone on with them)",
        out.display(),
        names.join(", ")
    )))
}

/// What is not the same of two points' provenance, but for what the GPU was, which is the series' own.
pub fn differs(old: &Provenance, new: &Provenance) -> Option<String> {
    let said = [
        ("revision", old.revision.commit.clone(), new.revision.commit.clone()),
        ("machine", old.machine.clone(), new.machine.clone()),
        ("device", old.device.clone(), new.device.clone()),
        ("GPU", old.gpu_device.clone(), new.gpu_device.clone()),
        ("nic", old.nic.to_string(), new.nic.to_string()),
        ("NIC options", format!("{:?}", old.nic_options), format!("{:?}", new.nic_options)),
        ("versions", format!("{:?}", old.versions), format!("{:?}", new.versions)),
    ];
    let differs = said.into_iter().find(|(_, old, new)| old != new);
    differs.map(|(what, old, new)| format!("was measured with {what} `{old}`, this is `{new}`"))
}

/// Why a point of an earlier run is none of this one; everything that provenance says must be the same.
fn unlike(point: &Point, provenance: &Provenance, grid: &Grid, keys: &BTreeSet<Key>) -> Option<String> {
    let key = point.key();
    differs(&point.provenance, provenance)
        .or_else(|| {
            (point.seconds != grid.seconds).then(|| {
                format!("was measured with seconds a point `{}`, this is `{}`", point.seconds, grid.seconds)
            })
        })
        .or_else(|| {
            (!keys.contains(&key)).then(|| {
                format!(
                    "has a point that this run does not measure: {} at {} B, repetition {}",
                    key.0, key.1, key.3
                )
            })
        })
}
