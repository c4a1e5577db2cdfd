//! `cargo xtask import RESULTS`: results of a bundle on another machine go into `measured.json` as an entry.
//!
//! Everything is looked at before anything is written, and the file is replaced whole. The entry is computed
//! from its points by this tree's rules; medians and verdicts of the folder are not believed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use measure::Provenance;

use crate::measured;
use crate::process::said;
use crate::refused::refused;
use crate::workspace::root;

#[derive(Args)]
pub struct Options {
    /// Folder that `figure N`, `bench-post --gpu`, `bench-gpu`, `bench-nic` or `bench-models` wrote (--out).
    #[arg(value_name = "RESULTS")]
    folder: PathBuf,
    /// Record whole series although others were not measured. Rows of others that were recorded of the same
    /// machine and extent stay, each with its revision and versions; verdicts are taken over all. Where a
    /// claim compares series, rows of another revision or of other versions go.
    #[arg(long)]
    part: bool,
}

/// Recognises the results by their file, and records them.
pub fn run(options: &Options) -> Result<()> {
    let written = into(options, &root().join("experiments"), &root())?;
    say!("recorded in {}", written.display());
    Ok(())
}

fn into(options: &Options, experiments: &Path, tree: &Path) -> Result<PathBuf> {
    let folder = &options.folder;
    if !folder.join("summary.json").is_file() {
        return Err(refused(format!(
            "import: {} holds no results: no summary.json (give the folder that was --out there)",
            folder.display()
        )));
    }
    recorded(options, experiments, tree).map_err(|error| {
        let is_garbled = error.chain().any(|cause| cause.is::<serde_json::Error>());
        let mend = if is_garbled { "; not as it was written there: carry the folder here again" } else { "" };
        refused(format!("import: {}: {error:#}{mend}", folder.display()))
    })
}

fn recorded(options: &Options, experiments: &Path, tree: &Path) -> Result<PathBuf> {
    let folder = &options.folder;
    let file = |name: &str| experiments.join(name).join("measured.json");
    let part = options.part.then_some(&file as _);
    let (name, entry, busy) = experiment::import::imported(&root().join("experiments"), folder, part)?;
    comes_from(&entry.provenance, tree)?;
    busy.iter().for_each(|line| say!("import: {}: {line}", folder.display()));
    let path = file(&name);
    let experiment = experiments.join(name);
    fs::create_dir_all(&experiment).with_context(|| format!("making {}", experiment.display()))?;
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
            let short = short(revision);
            format!("was measured on {short} with changes; commit them, and make the bundle again")
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
    said(Command::new("git").arg("-C").arg(tree).args(arguments)).is_ok()
}

#[cfg(test)]
mod tests;
