//! What an earlier run left in `--out`: kept by `--resume`, else moved aside; and which of its points are measured again.
//!
//! Nothing that was measured is deleted. Of a point with two lines in `results.jsonl` the newer one counts, and it is said.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use measure::{Label, Provenance, json_lines};

use super::{Options, PLOTS, nic, quoted, session};
use crate::refused::refused;
use crate::workspace;
use experiment::Point;
use experiment::spec::{Grid, Spec};

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

/// What a user can mend in `--out`, before minutes of building: a file in its place, another figure's results, points that were
/// measured otherwise than this run would, as far as that is known without the programs.
pub fn check(out: &Path, spec: &Spec, options: &Options) -> Result<()> {
    let there = out.ancestors().find(|folder| folder.exists());
    match there.filter(|folder| !folder.is_dir()) {
        Some(file) if file == out => {
            return Err(refused(format!("--out {} is a file; give a folder", out.display())));
        }
        Some(file) => {
            let (out, file) = (out.display(), file.display());
            return Err(refused(format!("--out {out}: {file} is a file; give a folder")));
        }
        None => {}
    }
    if !options.resume {
        return Ok(());
    }
    let file = out.join("results.jsonl");
    let points = json_lines::read::<Point>(&file)?.records;
    let ours = Provenance::of(workspace::revision(), &[]);
    let grid = spec.grid(options.extent());
    for point in &points {
        of_this_figure(point, out, spec.figure)?;
        like(point, &known(&ours, &point.provenance, spec, options), spec, &grid, &file)?;
    }
    Ok(())
}

/// Provenance of this run as far as it is known before the programs are built; the rest as in `old`.
fn known(ours: &Provenance, old: &Provenance, spec: &Spec, options: &Options) -> Provenance {
    let mut known = old.clone();
    known.revision = ours.revision.clone();
    known.machine = ours.machine.clone();
    for name in ["kernel", "rustc"] {
        known.versions.extend(ours.versions.get(name).map(|version| (name.to_owned(), version.clone())));
    }
    match &options.nic {
        None => (known.nic, known.nic_options) = (Label::Emulated, nic::options(&spec.nic)),
        Some(device) => (known.nic, known.device) = (Label::Hardware, device.clone()),
    }
    known
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
    options: &Options,
    provenance: &Provenance,
    spec: &Spec,
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
    for point in &records.records {
        of_this_figure(point, out, spec.figure)?;
        if options.record && point.provenance.revision.dirty {
            return Err(refused(format!("--record: {} was measured on a tree with changes", file.display())));
        }
        like(point, provenance, spec, grid, &file)?;
    }
    if provenance.revision.dirty && !records.records.is_empty() {
        said.push(format!(
            "--resume: the points in {} are of a tree with changes, as this run is: whether with the same ones nobody can tell",
            file.display()
        ));
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

/// The first thing that is not the same of two points.
#[derive(Debug, PartialEq)]
pub struct Difference {
    /// One key: `revision`, ``NIC option `rate_gbps` ``.
    pub what: String,
    /// Its value there.
    pub old: String,
    /// And here.
    pub new: String,
}

impl Difference {
    /// `None`: they are the same.
    fn of(what: impl Into<String>, old: impl ToString, new: impl ToString) -> Option<Difference> {
        let (old, new) = (old.to_string(), new.to_string());
        (old != new).then(|| Difference { what: what.into(), old, new })
    }
}

/// What is not the same of two points' provenance, but for what the GPU was, which is the series' own.
pub fn differs(old: &Provenance, new: &Provenance) -> Option<Difference> {
    let state = |from: &Provenance| if from.revision.dirty { "with changes" } else { "without changes" };
    Difference::of("revision", &old.revision.commit, &new.revision.commit)
        .or_else(|| Difference::of("state of the tree", state(old), state(new)))
        .or_else(|| Difference::of("machine", &old.machine, &new.machine))
        .or_else(|| Difference::of("nic", old.nic, new.nic))
        .or_else(|| Difference::of("device", &old.device, &new.device))
        .or_else(|| Difference::of("GPU", &old.gpu_device, &new.gpu_device))
        .or_else(|| of_keys("NIC option", &old.nic_options, &new.nic_options))
        .or_else(|| of_keys("version of", &old.versions, &new.versions))
}

/// The first key of two tables that has not the same value in both.
fn of_keys<V: ToString>(
    what: &str,
    old: &BTreeMap<String, V>,
    new: &BTreeMap<String, V>,
) -> Option<Difference> {
    let value = |table: &BTreeMap<String, V>, key: &str| table.get(key).map_or("none".into(), V::to_string);
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    keys.into_iter().find_map(|key| Difference::of(format!("{what} {key}"), value(old, key), value(new, key)))
}

/// Refuses a point of an earlier run that is none of this one; everything that provenance says must be the same, and what the
/// sender is told of time, window and burst.
fn like(point: &Point, provenance: &Provenance, spec: &Spec, grid: &Grid, file: &Path) -> Result<()> {
    let key = point.key();
    let (series, payload, list, repetition) = &key;
    let said = |value: Option<u32>| value.map_or("not said".to_owned(), |value| value.to_string());
    let told = session::in_flight_told(spec, series, *payload, *list);
    let in_flight = |what: &str, told: Option<u32>, was: Option<u32>| {
        // What nobody asks for the generator chooses by size and revision.
        Difference::of(format!("{what} of {series} at {payload} B"), said(was), said(Some(told?)))
    };
    let different = differs(&point.provenance, provenance)
        .or_else(|| Difference::of("time a point in seconds", point.seconds, grid.seconds))
        .or_else(|| in_flight("window", told.0, point.window))
        .or_else(|| in_flight("burst", told.1, point.batch));
    let why = match different {
        Some(Difference { what, old, new }) => {
            format!("was measured with another {what}: `{old}` there, `{new}` in this run")
        }
        None if !grid.keys().contains(&key) => format!(
            "has a point that this run does not measure: {series} at {payload} B, repetition {repetition}"
        ),
        None => return Ok(()),
    };
    let file = file.display();
    Err(refused(format!("--resume: {file} {why}; give another --out, or leave --resume out")))
}
