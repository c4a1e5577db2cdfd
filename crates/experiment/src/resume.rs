//! What an earlier run left in `--out`: kept by `--resume`, else moved aside; which points are repeated.
//!
//! No measurement is deleted. Of a point with two lines in `results.jsonl` the newer counts; both are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use measure::Provenance;
use measure::json_lines::{self, JsonLinesError};
use measure::provenance::Host;

use crate::Experiment;
use crate::point::{Key, Point};
use crate::refused::refused;
use crate::spec::{Grid, Spec};

/// How a run is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    pub extent: crate::spec::Extent,
    /// Keep the whole points of an earlier run.
    pub resume: bool,
    pub record: bool,
    pub out: PathBuf,
    /// What to do once this run was cut: `go on with: COMMAND`, or `start again with: COMMAND`.
    pub again: String,
}

/// Points of an earlier run that count, and what is to be said of it.
#[derive(Debug, Default)]
pub struct Earlier {
    /// The newest line of each point that need not be measured again.
    pub points: Vec<Point>,
    /// Lines of `results.jsonl` that count no more, since their points were not whole.
    pub replaced: Vec<Point>,
    /// Lines to print.
    pub said: Vec<String>,
}

/// Settings that the program of a point is told.
pub type Asked<'a> = &'a dyn Fn(&Key) -> BTreeMap<String, u64>;

/// A folder of results that this process alone writes, until this is dropped or the process ends in any way.
#[derive(Debug)]
pub struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough: another thread's child has a copy until its `exec` (`flock(2)`).
        let _ = self.0.unlock();
    }
}

/// Makes `out` and locks it. Error: refused while another run writes there.
pub fn lock(out: &Path) -> Result<Locked> {
    let wrong = |error: std::io::Error| refused(format!("--out {}: {error}", out.display()));
    fs::create_dir_all(out.join("logs")).map_err(wrong)?;
    let path = out.join("logs/lock");
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => Ok(Locked(file)),
        Err(fs::TryLockError::WouldBlock) => {
            let out = out.display();
            Err(refused(format!(
                "--out {out}: another run writes there; wait for its end, or give another --out"
            )))
        }
        Err(fs::TryLockError::Error(error)) => Err(wrong(error)),
    }
}

/// Points of a results file. Error: refused with what can be done about a damaged line.
fn points(file: &Path) -> Result<json_lines::Records<Point>> {
    json_lines::read::<Point>(file).map_err(|error| {
        let mend = match error {
            JsonLinesError::Line { .. } => "remove that line to measure its point again",
            JsonLinesError::Io { .. } => "mend that",
        };
        let error = format!("{:#}", anyhow::Error::from(error));
        refused(format!(
            "--resume: {error}; {mend}, or leave --resume out: the file is then kept under another name"
        ))
    })
}

/// Checks `--out` before minutes of building: a file in its place, another experiment's results, points
/// measured otherwise than this run would, as far as known without the programs. `known`: this run's
/// provenance, with the earlier run's values where it is unknown.
pub fn check(
    spec: &Spec,
    options: &Options,
    known: &dyn Fn(&Provenance) -> Provenance,
    asked: Asked<'_>,
) -> Result<()> {
    let out = &options.out;
    let there = out.ancestors().find(|folder| folder.exists());
    if let Some(file) = there.filter(|folder| !folder.is_dir()) {
        let file = if file == out { String::new() } else { format!(": {}", file.display()) };
        return Err(refused(format!("--out {}{file} is a file; give a folder", out.display())));
    }
    if !options.resume {
        return Ok(());
    }
    let file = out.join("results.jsonl");
    let grid = spec.grid(options.extent);
    for point in &points(&file)?.records {
        of_this_experiment(point, out, &spec.name)?;
        like(point, &known(&point.provenance), &grid, &file, asked)?;
    }
    Ok(())
}

fn of_this_experiment(point: &Point, out: &Path, name: &str) -> Result<()> {
    let (out, other) = (out.display(), &point.experiment);
    ensure!(
        other == name,
        refused(format!("--resume: {out} holds points of {other}, not of {name}; give another --out"))
    );
    Ok(())
}

/// Points of a cut run, if they are to be kept; otherwise all that it left is moved aside, never overwritten.
pub fn earlier(
    experiment: &Experiment,
    options: &Options,
    provenance: &Provenance,
    grid: &Grid,
    asked: Asked<'_>,
) -> Result<Earlier> {
    let (spec, out) = (&experiment.spec, &options.out);
    if !options.resume {
        return Ok(Earlier { said: move_aside(out, spec)?.into_iter().collect(), ..Earlier::default() });
    }
    let file = out.join("results.jsonl");
    let mut said = Vec::new();
    let records = points(&file)?;
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
        of_this_experiment(point, out, &spec.name)?;
        let is_named = !options.record || !point.provenance.revision.dirty;
        ensure!(
            is_named,
            refused(format!("--record: {} was measured on a tree with changes", file.display()))
        );
        like(point, provenance, grid, &file, asked)?;
    }
    if provenance.revision.dirty && !records.records.is_empty() {
        said.push(format!(
            "--resume: the points in {} are of a tree with changes, as this run is; whether both have the same ones is not known",
            file.display()
        ));
    }
    let (newest, mut replaced) = newest(records.records);
    let (points, again): (Vec<Point>, Vec<Point>) = newest.into_iter().partition(Point::is_whole);
    if !again.is_empty() {
        said.push(format!(
            "{} of {} points were not whole and are measured again; their old lines stay in {}, the newer line of a \
             point counts",
            again.len(),
            points.len() + again.len(),
            file.display()
        ));
    }
    replaced.extend(again);
    Ok(Earlier { replaced, points, said })
}

/// The last line of each point, in the order of the first ones; and the lines that they took the places of.
pub fn newest(points: Vec<Point>) -> (Vec<Point>, Vec<Point>) {
    let mut places = BTreeMap::new();
    let (mut kept, mut older): (Vec<Point>, Vec<Point>) = (Vec::new(), Vec::new());
    for point in points {
        match places.get(&point.key()) {
            Some(at) => older.push(std::mem::replace(&mut kept[*at], point)),
            None => {
                places.insert(point.key(), kept.len());
                kept.push(point);
            }
        }
    }
    (kept, older)
}

/// Renames points, plots and summary of an earlier run, all with one number. Returns a line to print.
fn move_aside(out: &Path, spec: &Spec) -> Result<Option<String>> {
    let plots = spec.pictures().flat_map(|name| [(name, "svg"), (name, "png")]);
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
    pub old: String,
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
        .or_else(|| of_keys("", &ends(old), &ends(new)))
}

/// The hosts of both ends, all of each but its load.
fn ends(from: &Provenance) -> BTreeMap<String, String> {
    let said = |host: &Host| {
        let versions = host.versions.iter().map(|(name, version)| format!(", {name} {version}"));
        format!("{}: {}{}", host.name, host.machine, versions.collect::<String>())
    };
    ["sender's host", "receiver's host"]
        .map(str::to_owned)
        .into_iter()
        .zip(from.hosts.iter().map(said))
        .collect()
}

/// The first key of two tables that has not the same value in both.
fn of_keys<V: ToString>(
    what: &str,
    old: &BTreeMap<String, V>,
    new: &BTreeMap<String, V>,
) -> Option<Difference> {
    let value = |table: &BTreeMap<String, V>, key: &str| table.get(key).map_or("none".into(), V::to_string);
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let of = |key: &str| format!("{what} {key}").trim_start().to_owned();
    keys.into_iter().find_map(|key| Difference::of(of(key), value(old, key), value(new, key)))
}

/// Refuses a point of an earlier run that does not fit. All of its provenance must be the same, and what the
/// program is told of time and settings.
fn like(point: &Point, provenance: &Provenance, grid: &Grid, file: &Path, asked: Asked<'_>) -> Result<()> {
    let key = point.key();
    let told = |(name, told): (String, u64)| {
        let was = point.settings.get(&name).map_or("not said".to_owned(), u64::to_string);
        Difference::of(format!("{name} of {} at {} B", key.series, key.x), was, told)
    };
    let different = differs(&point.provenance, provenance)
        .or_else(|| Difference::of("time a point in seconds", point.seconds, grid.seconds_of(&key.series)))
        .or_else(|| asked(&key).into_iter().find_map(told));
    let why = match different {
        Some(Difference { what, old, new }) => {
            format!("was measured with another {what}: `{old}` there, `{new}` in this run")
        }
        None if !grid.keys().contains(&key) => format!("has a point that this run does not measure: {key}"),
        None => return Ok(()),
    };
    let file = file.display();
    Err(refused(format!("--resume: {file} {why}; give another --out, or leave --resume out")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    #[test]
    fn a_file_that_cannot_be_read_is_told_from_a_damaged_line() {
        // A folder in its place, as a file without the right to read it.
        let error = points(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(error.contains("mend that") && !error.contains("remove that line"), "{error}");
    }

    #[test]
    fn a_folder_is_free_at_once_whoever_still_has_a_copy_of_the_lock() {
        let out = std::env::temp_dir().join(format!("experiment-lock-{}", std::process::id()));
        let locked = lock(&out).unwrap();
        assert!(lock(&out).unwrap_err().to_string().contains("another run writes there"));
        let copy = locked.0.try_clone().unwrap();
        drop(locked);
        lock(&out).expect("a free folder");
        drop(copy);
        fs::remove_dir_all(out).unwrap();
    }

    #[test]
    fn the_newer_line_of_a_point_counts_and_the_older_one_is_kept() {
        let first = Point { missing: Some("lost".into()), ..example("a", 64).with("rate", 1.0) };
        let lines = vec![first, example("b", 64), example("a", 64).with("rate", 2.0)];
        let (counts, older) = newest(lines);
        let rates = |points: &[Point]| -> Vec<(String, Option<f64>)> {
            points.iter().map(|point| (point.series.clone(), point.values.get("rate").copied())).collect()
        };
        assert_eq!(rates(&counts), [("a".into(), Some(2.0)), ("b".into(), None)]);
        assert_eq!(rates(&older), [("a".into(), Some(1.0))]);
    }
}
