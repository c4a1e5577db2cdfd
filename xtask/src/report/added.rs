//! A user's results beside the recorded ones, without a commit: those that `figure` left in this checkout,
//! and those that `--add` names. They are only read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use experiment::Experiment;
use experiment::import::{ByHostTwin, imported};
use experiment::measured::{Entry, Measured};
use experiment::point::Point;
use experiment::verdict::Judged;
use measure::json_lines;

use super::figures::{Figure, Shown, by_medians};
use crate::shell::quoted;
use crate::workspace;

/// What a folder of results holds one of, finished or not.
const OF_RESULTS: [&str; 3] = ["summary.json", "results.jsonl", "measured.json"];

/// How verdicts on a `measured.json` come, which has not each repetition.
const BY_MEDIANS: &str = "judged by the kept medians";

/// The results that `add` names: of a folder that is none itself, as `figure all` leaves it, those in it.
pub fn folders(add: &[PathBuf]) -> Vec<PathBuf> {
    let is_result = |folder: &Path| OF_RESULTS.iter().any(|name| folder.join(name).is_file());
    let each = |results: &PathBuf| {
        let inner = workspace::names_in(results).into_iter().map(|name| results.join(name));
        let inner: Vec<PathBuf> = inner.filter(|folder| is_result(folder)).collect();
        if inner.is_empty() || is_result(results) { vec![results.clone()] } else { inner }
    };
    add.iter().flat_map(each).collect()
}

/// Where `figure` puts results without `--out`, as far as they are there and `add` does not name them.
pub fn here(root: &Path, add: &[PathBuf]) -> Vec<PathBuf> {
    let named: Vec<PathBuf> = folders(add).iter().filter_map(|folder| folder.canonicalize().ok()).collect();
    let is_there = |results: &PathBuf| {
        results.canonicalize().is_ok_and(|whole| !named.contains(&whole))
            && results.join(OF_RESULTS[1]).is_file()
    };
    let names = workspace::names_in(&root.join("experiments")).into_iter();
    let figures = names.filter(|name| name.starts_with("fig"));
    figures.map(|name| root.join("results").join(name)).filter(is_there).collect()
}

/// Puts what `results` holds at the end of its figure's entries. A run by the host twin, or one that is
/// recorded already, is named and left out.
/// Error: one line, with what is wrong and what to do.
pub fn add(figures: &mut [Figure], root: &Path, results: &Path) -> Result<(), String> {
    let at = results.strip_prefix(root).unwrap_or(results).display();
    let wrong = |what: String| format!("report: {at}: {what}; the page is without it");
    if !results.exists() {
        return Err(wrong("there is no such file or folder; give the --out of `figure`".to_owned()));
    }
    if let Some(go_on) = unfinished(results) {
        return Err(wrong(format!("unfinished: go on with `{go_on}`, and the other options that it had")));
    }
    let (name, entries) = match read(&root.join("experiments"), results) {
        Ok(read) => read,
        Err(error) if error.is::<ByHostTwin>() => {
            say!("report: {at}: a run by the host twin has no place on the page");
            return Ok(());
        }
        Err(error) => {
            return Err(wrong(format!(
                "{error:#}; it is damaged, or of another version: copy it again, or measure with this version and give the folder that \
                 was --out. The results are left as they are"
            )));
        }
    };
    let Some(figure) = figures.iter_mut().find(|figure| figure.name() == name) else {
        let there: Vec<&str> = figures.iter().map(Figure::name).collect();
        return Err(wrong(format!("it is of {name}, and the page has {}", there.join(", "))));
    };
    for entry in entries {
        let is_shown = || figure.shown.iter().any(|shown| is_of(&shown.entry, &entry));
        if results.join(OF_RESULTS[0]).is_file() && is_shown() {
            say!("report: {at}: this run is recorded already");
            continue;
        }
        let shown = Shown::added(&figure.experiment, entry, format!("{at} (added, not recorded)"));
        if shown.is_smoke() {
            say!("report: {at}: smoke: not judged");
        }
        figure.shown.push(shown);
    }
    Ok(())
}

/// Whether both are of one run.
fn is_of(recorded: &Entry, entry: &Entry) -> bool {
    let numbers = |entry: &Entry| serde_json::to_value((&entry.provenance, &entry.rows)).ok();
    numbers(recorded) == numbers(entry)
}

/// The command that goes on with a run that was interrupted.
fn unfinished(folder: &Path) -> Option<String> {
    let has = |name: &str| folder.join(name).is_file();
    if !has("results.jsonl") || has("summary.json") || has("measured.json") {
        return None;
    }
    let points = json_lines::read::<Point>(&folder.join("results.jsonl")).ok()?.records;
    let name = &points.first()?.experiment;
    let figure = name.strip_prefix("fig").unwrap_or(name);
    let out = quoted(&folder.display().to_string());
    Some(format!("{} figure {figure} --resume --out {out}", workspace::us()))
}

/// The experiment's name, and its entries with this program's verdicts. A run's folder has one entry, a
/// `measured.json` as many as it has.
fn read(experiments: &Path, results: &Path) -> Result<(String, Vec<Entry>)> {
    let folder = if results.is_dir() { results } else { results.parent().unwrap_or(results) };
    let is_run = results.is_dir() || results.file_name().is_some_and(|name| name != "measured.json");
    if is_run && folder.join("summary.json").is_file() {
        // Series that were not measured are left out of what is wanted; no other entry gives its rows.
        let none = |_: &str| PathBuf::new();
        let (name, entry, busy) = imported(experiments, folder, Some(&none))?;
        busy.iter().for_each(|line| say!("report: {}: {line}", folder.display()));
        return Ok((name, vec![entry]));
    }
    let file = if results.is_dir() { results.join("measured.json") } else { results.to_owned() };
    ensure!(file.is_file(), "it holds neither summary.json nor measured.json");
    let mut entries = Measured::read(&file)?.entries;
    ensure!(entries.iter().any(|entry| !entry.rows.is_empty()), "{} has no points", file.display());
    let full = file.canonicalize().unwrap_or_else(|_| file.clone());
    let name = full.parent().and_then(Path::file_name).context("no folder names its figure")?;
    let name = name.to_string_lossy().into_owned();
    let is_known = experiments.join(&name).join("spec.toml").is_file();
    ensure!(is_known, "the folder `{name}` that it lies in names no figure: call it fig4 for figure 4");
    let experiment = Experiment::read(experiments, &name)?;
    for entry in &mut entries {
        // A file's own verdicts do not count, but for the load, which the medians do not show.
        let was_disturbed = entry.verdicts.iter().any(|one| one.disturbed);
        let judged = experiment.judge(&entry.points(&name)).into_iter();
        let judged = judged.map(|one| Judged { disturbed: was_disturbed, ..by_medians(one, BY_MEDIANS) });
        entry.verdicts = judged.collect();
    }
    Ok((name, entries))
}
