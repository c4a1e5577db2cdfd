//! `cargo xtask bundle DIR`: stripped programs, tests and texts for a machine without cargo, git and network.
//!
//! The revision is compiled into this command's own copy, since there is no git to ask there. Writes what
//! `crate::carried` reads. Test programs are of the dev profile: more checks, and minutes less of linking.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use measure::Revision;

use crate::bench_nic;
use crate::carried::{MANIFEST, Manifest, TestProgram};
use crate::files::{self, copy, strip};
use crate::packages::PACKAGES;
use crate::process::done;
use crate::refused::refused;
use crate::test::gpu::programs;
use crate::workspace::{self, revision_text, root, target_dir};

mod perftest;

/// What is carried of the tree, at the same paths: files, and folders with all below them.
const TEXTS: [&str; 7] = [
    "LICENSE",
    "apps/softnic/tests/programs/two_ranks.py",
    "crates/gpu/kernels",
    "crates/rdma-shim/include",
    "examples/cuda_post",
    "experiments",
    "modelzoo",
];
/// Not part of [`TEXTS`]: what was measured elsewhere says nothing there,
const LEFT_OUT: &str = "measured.json";
/// but for the posts that the modelled line of figure 4 is made of.
const KEPT: &str = "experiments/bench-post-gpu";

/// What is made anew each time; the rest of a folder is left alone.
const FOLDERS: [&str; 7] = ["apps", "tests", "lib", "crates", "examples", "experiments", "modelzoo"];

/// The folder is copied to rented machines.
const MOST_BYTES: u64 = 100 << 20;
/// How many files an error about it names.
const NAMED: usize = 5;

#[derive(Args)]
pub struct Options {
    /// Folder to make; what lies there under the same names is replaced.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Copy this machine's perftest programs too, and into DIR/lib what they need beside rdma-core.
    #[arg(long)]
    perftest: bool,
    /// Programs of the dev profile: built sooner, to see whether something works; results are not recorded.
    #[arg(long)]
    dev: bool,
    /// Tests of these packages only; of all that may have tests for a GPU without.
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
}

/// Builds, strips, copies, and says how to use it.
pub fn run(options: &Options) -> Result<()> {
    let folder = &options.folder;
    let packages = programs::packages(&options.package)?;
    clear(folder)?;
    let tools =
        if options.perftest { perftest::find(std::env::var_os("PATH").unwrap_or_default())? } else { vec![] };
    let revision = Revision::of(&root());
    let profile = if options.dev { "dev" } else { "release" };
    build(options.dev, &revision)?;
    let built = target_dir().join(if options.dev { "debug" } else { "release" });
    for name in PACKAGES.iter().flat_map(|package| package.programs) {
        strip(&built.join(name), &folder.join(name))?;
    }
    if !options.dev {
        bench_nic::build_examples()?;
        for name in bench_nic::EXAMPLES {
            strip(&built.join("examples").join(name), &folder.join(name))?;
        }
    }
    say!("building the tests of {}", packages.join(", "));
    let tests = programs::with_gpu_tests(programs::build(&packages)?)?;
    let tests = tests.iter().map(|test| carry(test, folder)).collect::<Result<Vec<_>>>()?;
    texts(&root(), folder)?;
    let libraries = perftest::copy_all(&tools, folder)?;
    let bytes = size(folder)?;
    if Revision::of(&root()) != revision {
        return Err(refused(
            "the tree changed while the bundle was built, so that no revision names it; make it again",
        ));
    }
    write_manifest(folder, &Manifest { profile: profile.into(), tests })?;
    let changes = if revision.dirty { ", with changes" } else { "" };
    let commit = if revision.commit.is_empty() { "unknown" } else { &revision.commit };
    say!("{}: {profile}, revision {commit}{changes}, {:.1} MiB", folder.display(), mib(bytes));
    say!(
        "there: DIR/xtask doctor, test --gpu, bench-post --gpu, zoo build, figure 1, figure 2, figure 3, figure bench-wait, bench-models --gpu; with \
         libibverbs1 and ibverbs-providers: figures 4 to 7, figure bench-clients, bench-nic, compat --gpu"
    );
    if libraries > 0 {
        say!(
            "before it LD_LIBRARY_PATH=DIR/lib, where the loader does not find what perftest needs (ldd DIR/ib_write_bw)"
        );
    }
    Ok(())
}

/// Makes the folder, and removes what an earlier bundle may have left; without its manifest it is none.
fn clear(folder: &Path) -> Result<()> {
    let not = |error: std::io::Error| refused(format!("{}: {error}", folder.display()));
    if folder.join("Cargo.toml").exists() {
        return Err(refused(format!("{} is a source tree; give a folder of its own", folder.display())));
    }
    if folder.exists() && !folder.is_dir() {
        let at = folder.display();
        return Err(refused(format!("{at} is a file; give a folder, new or of an earlier bundle")));
    }
    fs::create_dir_all(folder).map_err(not)?;
    // What lies in these folders is ours only where a bundle was.
    if folder.join(MANIFEST).exists() {
        for name in FOLDERS.iter().filter(|name| folder.join(name).is_dir()) {
            fs::remove_dir_all(folder.join(name)).map_err(not)?;
        }
        fs::remove_file(folder.join(MANIFEST)).map_err(not)?;
    }
    Ok(())
}

fn build(dev: bool, revision: &Revision) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--quiet", "--locked"]);
    let with_programs = PACKAGES.iter().filter(|package| !package.programs.is_empty());
    cargo.args(with_programs.flat_map(|package| ["-p", package.name]));
    if !dev {
        // A dev bundle does without: nothing of it is recorded, and this command would be built twice.
        cargo.arg("--release").env("DOORBELL_REVISION", revision_text(revision));
    }
    say!("building the programs, some minutes the first time");
    done(&mut cargo)
}

/// Puts one test program below `tests`.
fn carry(test: &TestProgram, folder: &Path) -> Result<TestProgram> {
    let tests = Path::new("tests");
    fs::create_dir_all(folder.join(tests)).with_context(|| format!("making {}/tests", folder.display()))?;
    let path = tests.join(format!("{}-{}", test.package, test.target));
    strip(&test.path, &folder.join(&path))?;
    Ok(TestProgram { path, ..test.clone() })
}

/// Copies [`TEXTS`] of the tree at `root`. Error also: one is not there.
fn texts(root: &Path, folder: &Path) -> Result<()> {
    for text in TEXTS.map(Path::new) {
        if !root.join(text).is_dir() {
            copy(&root.join(text), &folder.join(text))?;
            continue;
        }
        let all = files::below(&root.join(text), &[])?.into_iter().map(|file| text.join(file));
        for file in all.filter(|file| file.starts_with(KEPT) || !file.ends_with(LEFT_OUT)) {
            copy(&root.join(&file), &folder.join(&file))?;
        }
    }
    Ok(())
}

/// Bytes of everything in the folder. Error: more than [`MOST_BYTES`], with what is large.
fn size(folder: &Path) -> Result<u64> {
    let sized =
        |file: PathBuf| Ok((fs::symlink_metadata(folder.join(&file))?.len(), file.display().to_string()));
    let mut files = files::below(folder, &[])?.into_iter().map(sized).collect::<Result<Vec<_>>>()?;
    let bytes: u64 = files.iter().map(|(bytes, _)| bytes).sum();
    if bytes <= MOST_BYTES {
        return Ok(bytes);
    }
    files.sort_unstable_by(|left, right| right.cmp(left));
    let largest = files.iter().take(NAMED).map(|(bytes, name)| format!("{name} {:.1} MiB", mib(*bytes)));
    let largest = largest.collect::<Vec<_>>().join(", ");
    let (at, bytes, most) = (folder.display(), mib(bytes), mib(MOST_BYTES));
    Err(refused(format!(
        "{at}: {bytes:.1} MiB, at most {most:.0} are carried; the largest: {largest}; remove what is not ours from it, \
         or leave out tests (--package NAME) or --perftest"
    )))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Last, so that a folder without it was not finished.
fn write_manifest(folder: &Path, manifest: &Manifest) -> Result<()> {
    let path = folder.join(MANIFEST);
    let text = serde_json::to_string_pretty(manifest).context("writing the manifest")? + "\n";
    files::write(&path, &text)
}

#[cfg(test)]
mod tests;
