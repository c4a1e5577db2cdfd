//! `cargo xtask bundle DIR`: release programs in one folder, stripped, for a machine without cargo, git and network.
//!
//! The revision is compiled into this command's own copy, since nobody can be asked for it there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use measure::Revision;

use crate::process;
use crate::refused::refused;
use crate::workspace::{revision_text, root, target_dir};

/// What a bundle holds of ours.
const OURS: [&str; 5] = ["xtask", "generator", "softnic", "libsoftnic_preload.so", "gpu-probe"];
/// What `bench-nic` runs of others, where this machine has it.
const PERFTEST: [&str; 5] = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_write_lat"];

/// Libraries of those that every machine has, or that must be its own: the C library's, and rdma-core under test.
const NOT_CARRIED: [&str; 9] = [
    "linux-vdso.",
    "ld-linux",
    "libc.",
    "libm.",
    "libresolv.",
    "libpthread.",
    "libibverbs.",
    "libmlx5.",
    "libnl-",
];

/// Options of `bundle`.
#[derive(Args)]
pub struct Options {
    /// Folder to make; what lies there under the same names is replaced.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Copy this machine's perftest programs too, and into DIR/lib what they need beside rdma-core.
    #[arg(long)]
    perftest: bool,
}

/// Builds, strips, copies, and says how to use it.
pub fn run(options: &Options) -> Result<()> {
    let folder = &options.folder;
    fs::create_dir_all(folder).map_err(|error| refused(format!("{}: {error}", folder.display())))?;
    let tools =
        if options.perftest { perftest(std::env::var_os("PATH").unwrap_or_default())? } else { vec![] };
    let revision = Revision::of(&root());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "-p",
            "xtask",
            "-p",
            "generator",
            "-p",
            "softnic",
            "-p",
            "gpu",
        ])
        .env("DOORBELL_REVISION", revision_text(&revision))
        .current_dir(root())
        .status()
        .context("starting cargo build")?;
    if !status.success() {
        bail!("cargo build --release failed");
    }
    for name in OURS {
        strip(&target_dir().join("release").join(name), &folder.join(name))?;
    }
    crate::bench_nic::build_idle_queues()?;
    strip(&target_dir().join("release/examples/idle_queues"), &folder.join("idle_queues"))?;
    let mut libraries = BTreeSet::new();
    for tool in &tools {
        copy(tool, folder)?;
        let listed = process::output(Command::new("ldd").arg(tool), process::WAIT)?;
        libraries.extend(carried(&listed).into_iter().map(PathBuf::from));
    }
    if !libraries.is_empty() {
        let lib = folder.join("lib");
        fs::create_dir_all(&lib).with_context(|| format!("making {}", lib.display()))?;
        libraries.iter().try_for_each(|library| copy(library, &lib))?;
    }
    let changes = if revision.dirty { ", with changes" } else { "" };
    let commit = if revision.commit.is_empty() { "unknown" } else { &revision.commit };
    say!("{}: revision {commit}{changes}", folder.display());
    say!("there, with libibverbs1 and ibverbs-providers: DIR/xtask bench-nic --bin DIR --out OUT");
    if !libraries.is_empty() {
        say!(
            "before it LD_LIBRARY_PATH=DIR/lib, where the loader does not find what perftest needs (ldd DIR/ib_write_bw)"
        );
    }
    Ok(())
}

fn copy(file: &Path, folder: &Path) -> Result<()> {
    let to = folder.join(file.file_name().context("a file without a name")?);
    let _ = fs::remove_file(&to);
    fs::copy(file, &to).with_context(|| format!("copying {} to {}", file.display(), to.display()))?;
    Ok(())
}

/// Paths in what `ldd` says, but those that are not carried.
fn carried(listed: &str) -> Vec<&str> {
    let libraries = listed.lines().filter_map(|line| line.trim().split_once(" => "));
    let wanted = libraries.filter(|(name, _)| !NOT_CARRIED.iter().any(|start| name.starts_with(start)));
    let paths = wanted.filter_map(|(_, rest)| rest.split_whitespace().next());
    paths.filter(|path| path.starts_with('/')).collect()
}

/// Paths of the perftest programs of this machine.
fn perftest(path: std::ffi::OsString) -> Result<Vec<PathBuf>> {
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let find = |name: &&str| {
        let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        found.ok_or_else(|| {
            refused(format!("--perftest: no {name} here; install perftest, or leave --perftest out"))
        })
    };
    PERFTEST.iter().map(find).collect()
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    // Not over a program that may be running: a new file under the old name.
    let _ = fs::remove_file(to);
    let status =
        Command::new("strip").arg("-o").arg(to).arg(from).status().context("starting strip (binutils)")?;
    match status.success() {
        true => Ok(()),
        false => bail!("strip {} failed", from.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Refused;

    #[test]
    fn a_missing_tool_is_refused_by_name() {
        let error = perftest("/proc".into()).unwrap_err();
        assert!(error.is::<Refused>() && error.to_string().contains("ib_write_bw"), "{error}");
    }

    #[test]
    fn what_perftest_needs_is_carried_but_not_what_is_measured() {
        let listed = "\tlinux-vdso.so.1 (0x1)\n\tlibm.so.6 => /lib/libm.so.6 (0x2)\n\tlibmlx5.so.1 => /lib/libmlx5.so.1 (0x3)\n\
            \tlibpci.so.3 => /lib/libpci.so.3 (0x4)\n\tlibgone.so.1 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x5)\n";
        assert_eq!(carried(listed), ["/lib/libpci.so.3"]);
    }

    #[test]
    fn a_stripped_program_is_smaller_and_still_one() {
        let here = std::env::current_exe().unwrap();
        let to = std::env::temp_dir().join(format!("xtask-strip-{}", std::process::id()));
        strip(&here, &to).unwrap();
        let (was, is) = (fs::metadata(&here).unwrap(), fs::metadata(&to).unwrap());
        fs::remove_file(&to).unwrap();
        assert!(is.len() < was.len() && is.permissions() == was.permissions());
    }
}
