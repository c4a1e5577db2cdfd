//! The workspace as the commands see it: its root, text files, and packages by `cargo metadata`.
//!
//! In a bundle ([`crate::carried`]) the root is the bundle's folder, with carried files at the tree's paths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use measure::{Provenance, Revision};
use serde::Deserialize;

use crate::carried::{self, Manifest};
use crate::files;
use crate::process::{done, said};
use crate::shell;

/// The folder of the workspace's `Cargo.toml`, or of the bundle.
pub fn root() -> PathBuf {
    if let Some(bundle) = carried::folder() {
        return bundle.to_owned();
    }
    // Set by `cargo run`; the compiled-in one serves a binary started by hand.
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().map(Path::to_owned).unwrap_or_default()
}

/// Folder of the experiments, one below it each.
pub fn experiments() -> PathBuf {
    root().join("experiments")
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cargo that started us, at the root.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Builds something in the release profile. Cargo says what, how far it is, and when it waits for another.
pub fn build_release(what: &[&str]) -> Result<()> {
    build(&[&["--release"], what].concat())
}

/// Builds programs for a measurement, `what` in words; a bundle carries them.
pub fn build_programs(what: &str, packages: &[&str]) -> Result<()> {
    if carried::folder().is_some() {
        return Ok(());
    }
    say!("building {what} (release), some minutes the first time");
    build_release(packages)
}

/// Builds something in the development profile: from nothing in a fraction of the release profile's time.
pub fn build(what: &[&str]) -> Result<()> {
    let mut cargo = cargo();
    cargo.arg("build").args(what).arg("--locked");
    done(&mut cargo)
}

/// Names of what lies in a folder, sorted; none where it cannot be read.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect::<BTreeSet<String>>().into_iter().collect()
}

/// Where our release programs lie.
pub fn programs() -> PathBuf {
    carried::folder().map_or_else(|| target_dir().join("release"), Path::to_owned)
}

/// Profile of those programs: a bundle says it of itself.
pub fn profile() -> Result<String> {
    carried::folder().map_or_else(|| Ok("release".into()), |bundle| Ok(Manifest::read(bundle)?.profile))
}

/// Where results go without --out: a bundle may lie where nothing can be written.
pub fn results(name: &str) -> PathBuf {
    let results = Path::new("results").join(name);
    if carried::folder().is_some() { results } else { root().join(results) }
}

/// The command that shows results of a figure on the page: those that have no `--out` it finds by itself.
pub fn shown_by(out: Option<&Path>) -> String {
    let add =
        out.map_or_else(String::new, |out| format!(" --add {}", shell::quoted(&out.display().to_string())));
    format!("beside the recorded ones: {} report{add}", us())
}

/// How a user calls these commands here.
pub fn us() -> String {
    carried::folder()
        .map_or_else(|| "cargo xtask".to_owned(), |bundle| bundle.join("xtask").display().to_string())
}

/// The source that our programs come from: what is checked out, or what a bundle was made of.
pub fn revision() -> Revision {
    if carried::folder().is_some() { compiled_in_revision() } else { Revision::of(&root()) }
}

/// Provenance of what these programs measure here; their own profile counts, and not that of this command.
pub fn provenance() -> Result<Provenance> {
    let mut provenance = Provenance::of(revision(), &[]);
    provenance.versions.insert("profile".into(), profile()?);
    Ok(provenance)
}

/// A revision in words: its first digits, or why it is unknown.
pub fn in_words(revision: &Revision) -> String {
    let changes = if revision.dirty { ", with changes" } else { "" };
    match (revision.commit.get(..12), carried::folder()) {
        (Some(commit), _) => format!("{commit}{changes}"),
        (None, Some(_)) => "unknown: the programs were built without `cargo xtask bundle`".to_owned(),
        (None, None) => why_unknown(&root()),
    }
}

fn why_unknown(root: &Path) -> String {
    format!("unknown: {}", Revision::why_unknown(root).unwrap_or_else(|| "git names no commit".to_owned()))
}

/// The source that this very program was built from, for use without tree and git: what `cargo xtask bundle`
/// put into the environment of its build. Built in any other way it knows nothing, and says so.
pub fn compiled_in_revision() -> Revision {
    parse_revision(option_env!("DOORBELL_REVISION").unwrap_or_default())
}

/// `HASH clean` or `HASH dirty`.
fn parse_revision(text: &str) -> Revision {
    let (commit, state) = text.split_once(' ').unwrap_or_default();
    Revision { commit: commit.to_owned(), dirty: commit.is_empty() || state != "clean" }
}

/// As [`compiled_in_revision`] will read it.
pub fn revision_text(revision: &Revision) -> String {
    format!("{} {}", revision.commit, if revision.dirty { "dirty" } else { "clean" })
}

/// The tree's files by their path from the root; what git ignores is not in it.
#[derive(Debug, Default)]
pub struct Tree {
    texts: BTreeMap<String, String>,
    /// Path and bytes of those larger than [`LARGE`], which are too large to be in git.
    pub large: Vec<(String, u64)>,
    /// Of those that are no text: pictures, captures.
    binary: BTreeSet<String>,
}

/// A file of more bytes than this belongs somewhere else than in git.
pub const LARGE: u64 = 1 << 20;

impl Tree {
    /// Reads the tree at `root`: files that git tracks, and new ones that it does not ignore.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut git = Command::new("git");
        let paths: Vec<String> =
            match said(git.args(["ls-files", "-co", "--exclude-standard", "-z"]).current_dir(root)) {
                Ok(names) => names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
                // A source archive has no repository.
                Err(_) => walk(root)?,
            };
        let mut tree = Tree::default();
        for path in paths {
            let at = root.join(&path);
            // A listed file that is gone was deleted and not committed yet; one that is no UTF-8 is no text.
            match std::fs::metadata(&at).map(|about| about.len()) {
                Ok(bytes) if bytes > LARGE => tree.large.push((path, bytes)),
                Ok(_) => match std::fs::read(&at).map(String::from_utf8) {
                    Ok(Ok(text)) => _ = tree.texts.insert(path, text),
                    Ok(Err(_)) => _ = tree.binary.insert(path),
                    Err(_) => {}
                },
                Err(_) => {}
            }
        }
        Ok(tree)
    }

    pub fn get(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// All text files as (path, text), in order of their paths.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Whether `path` is a file of the tree, or a folder of one.
    pub fn holds(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let mut all = self.texts.keys().chain(&self.binary);
        all.any(|file| file == path || file.starts_with(&folder))
    }
}

fn walk(root: &Path) -> Result<Vec<String>> {
    let files = files::below(root, &["target", "results", ".git"])?.into_iter();
    let files = files.filter(|file| !root.join(file).is_symlink());
    Ok(files.map(|file| file.to_string_lossy().into_owned()).collect())
}

/// What `cargo metadata` says, as far as the checks look at it.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// Ours and, unless `--no-deps` was given, those of all dependencies.
    pub packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// SPDX expression, where it has one.
    pub license: Option<String>,
    /// Where it comes from; none for ours.
    pub source: Option<String>,
    pub dependencies: Vec<Dependency>,
    /// Its `Cargo.toml`.
    #[serde(default)]
    pub manifest_path: PathBuf,
}

#[derive(Debug, Deserialize)]
pub struct Dependency {
    pub name: String,
    /// None for a normal one, else `dev` or `build`.
    pub kind: Option<String>,
    /// Set when it is one of ours.
    pub path: Option<String>,
}

impl Metadata {
    /// Asks cargo about the workspace at `root`, dependencies included.
    pub fn read(root: &Path) -> Result<Metadata> {
        Metadata::ask(root, &[])
    }

    /// The same for our own packages alone, for which nothing is fetched.
    pub fn ours(root: &Path) -> Result<Metadata> {
        Metadata::ask(root, &["--no-deps"])
    }

    fn ask(root: &Path, arguments: &[&str]) -> Result<Metadata> {
        let mut cargo = cargo();
        cargo.args(["metadata", "--format-version", "1", "--locked"]).args(arguments).current_dir(root);
        serde_json::from_str(&said(&mut cargo)?).context("reading cargo metadata")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tree {
        /// A tree of the given files, for tests of the checks.
        pub fn of(files: &[(&str, &str)]) -> Tree {
            let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
            Tree { texts: texts.collect(), ..Tree::default() }
        }
    }

    #[test]
    fn the_tree_holds_this_file_and_not_the_build_output() {
        let tree = Tree::read(&root()).unwrap();
        assert!(tree.get("xtask/src/workspace.rs").is_some());
        assert!(tree.holds("xtask/src"));
        assert!(!tree.holds("target"));
        assert!(!tree.holds("xtask/sr"));
    }

    #[test]
    fn a_compiled_in_revision_is_what_was_put_in_and_never_clean_by_default() {
        for dirty in [false, true] {
            let revision = Revision { commit: "abc".into(), dirty };
            assert_eq!(parse_revision(&revision_text(&revision)), revision);
        }
        for text in ["", "abc", " clean", "abc neat"] {
            assert!(parse_revision(text).dirty, "{text}");
        }
    }

    #[test]
    fn an_unknown_revision_comes_with_git_s_reason() {
        let (said, reason) = (why_unknown(Path::new("/proc")), Revision::why_unknown(Path::new("/proc")));
        assert_eq!(said, format!("unknown: {}", reason.unwrap()));
    }

    #[test]
    fn a_tree_without_git_is_walked() {
        let folder = std::env::temp_dir().join(format!("xtask-walk-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("target")).unwrap();
        std::fs::create_dir_all(folder.join("src")).unwrap();
        std::fs::write(folder.join("src/lib.rs"), "//! x").unwrap();
        std::fs::write(folder.join("target/junk.rs"), "").unwrap();
        assert_eq!(walk(&folder).unwrap(), ["src/lib.rs"]);
    }
}
