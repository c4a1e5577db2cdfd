//! `--add`: a user's results beside the recorded ones, without a commit. They are read, and left as they are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use experiment::import::imported;
use experiment::measured::{Entry, Measured};

use super::figures::{Figure, Shown};
use crate::refused::refused;

/// Puts what `results` holds at the end of its figure's entries. Error: refused with what is wrong, and what to do.
pub fn add(figures: &mut [Figure], root: &Path, results: &Path) -> Result<()> {
    let at = results.display();
    if !results.exists() {
        return Err(refused(format!(
            "report: --add {at}: there is no such file or folder; give the --out of `figure`"
        )));
    }
    let (name, entries) = read(&root.join("experiments"), results).map_err(|error| {
        refused(format!(
            "report: --add {at}: {error:#}; it is damaged, or of another version: copy it again, or measure with this version and give \
             the folder that was --out. The results are left as they are, and no page was written"
        ))
    })?;
    let Some(figure) = figures.iter_mut().find(|figure| figure.name() == name) else {
        let there: Vec<&str> = figures.iter().map(Figure::name).collect();
        return Err(refused(format!(
            "report: --add {at}: it is of {name}, and the page has {}",
            there.join(", ")
        )));
    };
    let from = format!("{at} (added, not recorded)");
    // What a file says of itself is no verdict of the harness.
    let unjudged = |entry: Entry| Entry { verdicts: Vec::new(), ..entry };
    let shown = |entry: Entry| Shown::new(&figure.experiment, unjudged(entry), from.clone());
    figure.shown.extend(entries.into_iter().map(shown).collect::<Vec<_>>());
    Ok(())
}

/// The experiment's name, and its entries. A folder of a run has one, a `measured.json` as many as it has.
fn read(experiments: &Path, results: &Path) -> Result<(String, Vec<Entry>)> {
    let folder = match results.is_dir() {
        true => results,
        false => results.parent().unwrap_or(results),
    };
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
    let entries = Measured::read(&file)?.entries;
    ensure!(entries.iter().any(|entry| !entry.rows.is_empty()), "{} has no points", file.display());
    let full = file.canonicalize().unwrap_or_else(|_| file.clone());
    let name = full.parent().and_then(Path::file_name).context("no folder names its figure")?;
    let name = name.to_string_lossy().into_owned();
    let is_known = experiments.join(&name).join("spec.toml").is_file();
    ensure!(is_known, "the folder `{name}` that it lies in names no figure: call it fig4 for figure 4");
    Ok((name, entries))
}
