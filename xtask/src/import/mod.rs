//! `cargo xtask import RESULTS`: results that a bundle measured on another machine become an entry of an experiment's `measured.json`.
//!
//! Everything is looked at before anything is written, and the file is replaced whole. A figure's entry is computed anew
//! from its points, by this tree's rules; what the folder says of medians and verdicts is not believed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use measure::Provenance;

use crate::refused::refused;
use crate::workspace::root;
use crate::{bench_post_gpu, measured};

/// Options of `import`.
#[derive(Args)]
pub struct Options {
    /// Folder that `figure N`, `bench-post --gpu` or `bench-nic` wrote (their --out).
    #[arg(value_name = "RESULTS")]
    folder: PathBuf,
}

/// Recognises the results by their file, and records them.
pub fn run(options: &Options) -> Result<()> {
    let written = into(&options.folder, &root().join("experiments"), &root())?;
    say!("recorded in {}", written.display());
    Ok(())
}

/// What a folder of results can hold: the file that tells, and what takes it in. `experiments`: of this tree; `tree`: its git.
type Kind = (&'static str, fn(&Path, &Path, &Path) -> Result<PathBuf>);

const KINDS: [Kind; 2] = [("summary.json", a_run), ("bench-post-gpu.json", a_bench_post_gpu)];

fn into(folder: &Path, experiments: &Path, tree: &Path) -> Result<PathBuf> {
    let mut there = KINDS.iter().filter(|(file, _)| folder.join(file).is_file());
    let Some((_, take)) = there.next() else {
        let files: Vec<&str> = KINDS.iter().map(|(file, _)| *file).collect();
        return Err(refused(format!(
            "import: {} holds no results: none of {} (give the folder that was --out there)",
            folder.display(),
            files.join(", ")
        )));
    };
    if let Some((other, _)) = there.next() {
        return Err(refused(format!(
            "import: {} holds results of two commands ({other} too); give each its own --out",
            folder.display()
        )));
    }
    take(folder, experiments, tree).map_err(|error| {
        let is_garbled = error.chain().any(|cause| cause.is::<serde_json::Error>());
        let mend = if is_garbled { "; not as it was written there: carry the folder here again" } else { "" };
        refused(format!("import: {}: {error:#}{mend}", folder.display()))
    })
}

fn a_run(folder: &Path, experiments: &Path, tree: &Path) -> Result<PathBuf> {
    let (name, entry, busy) = experiment::import::imported(&root().join("experiments"), folder)?;
    comes_from(&entry.provenance, tree)?;
    busy.iter().for_each(|line| say!("import: {}: {line}", folder.display()));
    record(&experiments.join(name), entry)
}

fn a_bench_post_gpu(folder: &Path, experiments: &Path, tree: &Path) -> Result<PathBuf> {
    let path = folder.join("bench-post-gpu.json");
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let run: bench_post_gpu::Run = serde_json::from_slice(&text).context("bench-post-gpu.json")?;
    comes_from(&run.provenance, tree)?;
    record(&experiments.join(bench_post_gpu::NAME), run)
}

/// Into `measured.json` of an experiment, unless tidy would refuse it there.
fn record<E: measured::Entry>(experiment: &Path, entry: E) -> Result<PathBuf> {
    if let Some(why) = entry.empty() {
        return Err(refused(why));
    }
    fs::create_dir_all(experiment).with_context(|| format!("making {}", experiment.display()))?;
    let path = experiment.join("measured.json");
    measured::record(&path, entry)?;
    Ok(path)
}

/// Refuses what this tree's history cannot show the source of.
fn comes_from(provenance: &Provenance, tree: &Path) -> Result<()> {
    let revision = &provenance.revision;
    let is_hash = revision.commit.len() == 40 && revision.commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let profile = provenance.versions.get("profile").map_or("unknown", String::as_str);
    let why = match () {
        () if profile != "release" => {
            format!("was measured by programs of profile `{profile}`; make the bundle without --dev")
        }
        () if !is_hash => "names no revision; make the bundle in a checkout with git".to_owned(),
        () if revision.dirty => {
            format!(
                "was measured on {} with changes; commit them, and make the bundle again",
                short(revision)
            )
        }
        () if !git(tree, &["cat-file", "-e", &format!("{}^{{commit}}", revision.commit)]) => {
            format!("is foreign: no revision {} is in this repository (git fetch?)", short(revision))
        }
        () if !git(tree, &["merge-base", "--is-ancestor", &revision.commit, "HEAD"]) => format!(
            "is foreign: revision {} is none of those that the checked-out one comes from",
            short(revision)
        ),
        () => return Ok(()),
    };
    Err(refused(why))
}

fn short(revision: &measure::Revision) -> &str {
    &revision.commit[..12]
}

fn git(tree: &Path, arguments: &[&str]) -> bool {
    let output = Command::new("git").arg("-C").arg(tree).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests;
