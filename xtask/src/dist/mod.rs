//! `cargo xtask dist`: a tarball for x86-64 Linux with glibc 2.31 or newer, a Debian package of `softnic`.
//!
//! The programs are linked against the symbols of glibc 2.31 by Zig's linker, which brings them for each
//! version; what they ask for is checked afterwards. Beside them: man pages and completions, the shim's
//! headers with a pkg-config file, the crate for Rust tests, licence texts, a list of parts (SPDX 2.3), and
//! SHA-256 sums. Left out: rdma-core, which each program finds on its host, and CUDA.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use measure::Revision;
use zoo::Digest;

use crate::files::{self, strip};
use crate::man;
use crate::packages::{self, LIBRARY};
use crate::process::done;
use crate::setup::{self, Purpose};
use crate::test::symbols;
use crate::wheels;
use crate::workspace::{self, Metadata, revision_text, root, target_dir};

mod container;
mod deb;
mod parts;
mod target;
mod trial;

use target::{GLIBC, pkg_config};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Packages whose programs are in the tarball.
const PACKAGES: [&str; 5] = ["softnic", "generator", "echo", "inference-server", "client"];
const HEADERS: [&str; 2] = ["crates/rdma-shim/include", "crates/slots/include"];

#[derive(Args)]
pub struct Options {
    /// Folder for the tarball, and for what is in it.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Unpack it in this root, run `ibv_devinfo` and `ib_write_bw`, install and remove the Debian package.
    /// ROOT: a distribution with ibverbs-utils and perftest (if missing, debootstrap's Debian 11). As root.
    #[arg(long, value_name = "ROOT")]
    try_in: Option<PathBuf>,
    /// Fetch nothing; if the linker is missing, print the command that fetches it, and exit with status 2.
    #[arg(long)]
    no_install: bool,
}

pub fn run(options: &Options) -> Result<()> {
    if let Some(root) = &options.try_in {
        if !root.exists() {
            if Command::new("debootstrap").arg("--version").output().is_err() {
                setup::install(&["debootstrap"], options.no_install)?;
            }
            trial::make(root)?;
        }
        trial::check(root)?;
    }
    setup::prepare(Purpose::Figure, options.no_install)?;
    setup::fetched(&wheels::LINKER, options.no_install)?;
    let revision = workspace::revision();
    let built = build(&revision)?;
    check(&built)?;
    let out = options.out.clone().unwrap_or_else(|| target_dir().join("dist"));
    let version = version(&revision);
    let name = name(&version);
    let folder = out.join(&name);
    files::remove(&folder)?;
    fill(&folder, &built, &version).with_context(|| format!("filling {}", folder.display()))?;
    let tarball = pack(&out, &name)?;
    let wheel = wheel(&out, &folder, &version)?;
    let package = deb::pack(&out, &folder, &version)?;
    match &package {
        None => say!("no Debian package: this system has no dpkg-deb"),
        Some(package) => {
            say!("{}: `apt install` brings softnic, its manual and the headers", package.display());
            match deb::lint(package)? {
                None => say!("  not looked at by lintian, which is not installed"),
                Some(found) => found.lines().for_each(|line| say!("  lintian: {line}")),
            }
        }
    }
    let mib = fs::metadata(&tarball).context("the tarball")?.len() as f64 / f64::from(1 << 20);
    say!("{}: `pip install` brings the command softnic, and pytest a fixture of the name", wheel.display());
    say!("{}: {mib:.1} MiB, glibc {}.{} or newer", tarball.display(), GLIBC.0, GLIBC.1);
    let Some(root) = &options.try_in else { return Ok(()) };
    trial::run(root, &tarball, &name, package.as_deref())?;
    match (package, container::can()) {
        (Some(package), Ok(())) => container::trial(root, &package, &out)?,
        (Some(_), Err(why)) => say!("SKIP containers: {why}"),
        (None, _) => {}
    }
    Ok(())
}

/// What cargo leaves of [`PACKAGES`]: the programs, and [`LIBRARY`].
fn files() -> impl Iterator<Item = &'static str> {
    let ours = packages::PACKAGES.iter().filter(|package| PACKAGES.contains(&package.name));
    ours.flat_map(|package| package.programs).copied()
}

fn programs() -> impl Iterator<Item = &'static str> {
    files().filter(|name| *name != LIBRARY)
}

/// The workspace's version, and the revision where it is known.
fn version(revision: &Revision) -> String {
    let changes = if revision.dirty { ".changed" } else { "" };
    match revision.commit.get(..12) {
        Some(commit) => format!("{}+{commit}{changes}", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Of the tarball's folder, and of its file before `.tar.gz`.
fn name(version: &str) -> String {
    format!("doorbell-{version}-x86_64-linux")
}

/// Builds the programs: the folder that they lie in.
fn build(revision: &Revision) -> Result<PathBuf> {
    let (linker, folder) = (wheels::LINKER.used(), target_dir().join("dist-build"));
    let mut cargo = Command::new(linker.join("bin/cargo-zigbuild"));
    cargo.args(["zigbuild", "--release", "--locked", "--quiet"]).current_dir(root());
    cargo.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    cargo.arg("--target").arg(format!("{TARGET}.{}.{}", GLIBC.0, GLIBC.1)).arg("--target-dir").arg(&folder);
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", linker.join("ziglang/zig"));
    cargo.env("DOORBELL_REVISION", revision_text(revision));
    say!("building the programs for glibc {}.{}, some minutes the first time", GLIBC.0, GLIBC.1);
    done(&mut cargo)?;
    Ok(folder.join(TARGET).join("release"))
}

/// Whether they start on the oldest system, and without rdma-core and CUDA.
fn check(built: &Path) -> Result<()> {
    let programs: Vec<&str> = programs().collect();
    let mut problems = symbols::check(built, &programs)?;
    for name in files() {
        problems.extend(newer(name, &symbols::wanted(&built.join(name))?, GLIBC));
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// glibc versions newer than `most` that a program asks for, one a line. `wanted`: what `readelf -V` prints.
fn newer(name: &str, wanted: &str, most: (u32, u32)) -> Vec<String> {
    let version = |word: &str| {
        let mut parts = word.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??)).filter(|version| *version > most)
    };
    let versions: BTreeSet<(u32, u32)> = wanted.split_whitespace().filter_map(version).collect();
    let of =
        |(major, minor)| format!("{name} asks for glibc {major}.{minor}, newer than {}.{}", most.0, most.1);
    versions.into_iter().map(of).collect()
}

/// Puts all that the tarball holds below the folder.
fn fill(folder: &Path, built: &Path, version: &str) -> Result<()> {
    let tree = root();
    fs::create_dir_all(folder.join("licences"))?;
    for name in files() {
        strip(&built.join(name), &folder.join(name))?;
    }
    man::write(folder, &programs().collect::<Vec<_>>(), &folder.join("share"))?;
    headers(folder, version)?;
    rust_tests(&folder.join("rust"))?;
    fs::write(folder.join("README"), readme(version))?;
    fs::copy(tree.join("LICENSE"), folder.join("LICENSE"))?;
    let parts = parts::of(&Metadata::read(&tree)?, &PACKAGES)?;
    parts::licences(&parts, &folder.join("licences"))?;
    fs::write(folder.join("parts.spdx.json"), parts::spdx(&parts, version)?)?;
    let sums = sums(folder)?;
    Ok(fs::write(folder.join("SHA256SUMS"), sums)?)
}

/// The headers, and where pkg-config finds them.
fn headers(folder: &Path, version: &str) -> Result<()> {
    for from in HEADERS.map(|headers| root().join(headers)) {
        for name in workspace::names_in(&from) {
            files::copy(&from.join(&name), &folder.join("include").join(&name))?;
        }
    }
    files::write(&folder.join("lib/pkgconfig/doorbell.pc"), &pkg_config(version))
}

/// The crate whose attribute runs a Rust test on the NIC, with manifests that need no workspace.
fn rust_tests(folder: &Path) -> Result<()> {
    let of_tests = "[dependencies]\nsoftnic-test-attribute = { path = \"attribute\" }\n";
    let of_attribute = "[lib]\nproc-macro = true\n";
    for (name, place, rest) in
        [("softnic-test", "", of_tests), ("softnic-test-attribute", "attribute", of_attribute)]
    {
        let [from, to] =
            [root().join("crates"), folder.to_owned()].map(|at| at.join("softnic-test").join(place));
        files::copy(&from.join("src/lib.rs"), &to.join("src/lib.rs"))?;
        let (version, rust) = (env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_RUST_VERSION"));
        let package = format!(
            "[package]\nname = \"{name}\"\nversion = \"{version}\"\nedition = \"2024\"\nrust-version = \"{rust}\"\n\
             license = \"Apache-2.0\"\n\n{rest}"
        );
        fs::write(to.join("Cargo.toml"), package)?;
    }
    Ok(())
}

fn readme(version: &str) -> String {
    format!(
        "Doorbell {version}: a software ConnectX for RDMA programs, and programs that post to a ConnectX directly.\n\
         \n\
         The host needs libibverbs and its mlx5 provider (Debian: libibverbs1, ibverbs-providers). Nothing is installed, and no root is needed:\n\
         \n\
         \x20   ./softnic run --model cx7 -- ibv_devinfo\n\
         \x20   ./softnic run -- ib_write_bw & sleep 1; ./softnic run -- ib_write_bw 127.0.0.1\n\
         \n\
         Each program says what it does with --help; share/ has man pages (man -M share/man softnic) and completions for shells; rust/softnic-test is a crate whose attribute runs a Rust test on the NIC. SHA256SUMS lists all files, parts.spdx.json what they are made of, licences/ the terms.\n"
    )
}

/// `sha256sum`'s lines of all files below a folder, in order of their paths.
fn sums(folder: &Path) -> Result<String> {
    let mut lines = String::new();
    for file in files::below(folder, &[])? {
        let path = folder.join(&file);
        let sum = fs::File::open(&path).and_then(Digest::of_reader);
        let sum = sum.with_context(|| path.display().to_string())?;
        lines.push_str(&format!("{sum}  {}\n", file.display()));
    }
    Ok(lines)
}

/// Packs a folder so that the same files give the same bytes.
fn pack(out: &Path, name: &str) -> Result<PathBuf> {
    let tarball = out.join(format!("{name}.tar.gz"));
    let unfinished = out.join(format!("{name}.tar.gz.part"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-czf"]);
    tar.arg(&unfinished).arg("-C").arg(out).arg(name);
    done(&mut tar)?;
    fs::rename(&unfinished, &tarball).context("naming the tarball")?;
    Ok(tarball)
}

/// Packs the NIC and the plug-in of pytest for Python.
fn wheel(out: &Path, folder: &Path, version: &str) -> Result<PathBuf> {
    let wheel = out.join(format!("softnic-{version}-py3-none-manylinux_2_31_x86_64.whl"));
    let mut python = Command::new("python3");
    python.arg("-c").arg(include_str!("wheel.py")).arg(folder);
    python.arg(root().join("packaging/python")).arg(version);
    let unfinished = wheel.with_extension("part");
    python.arg(&unfinished);
    done(&mut python).with_context(|| format!("packing {}", wheel.display()))?;
    fs::rename(&unfinished, &wheel).context("naming the wheel")?;
    Ok(wheel)
}

#[cfg(test)]
mod tests;
