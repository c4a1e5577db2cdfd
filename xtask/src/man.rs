//! `cargo xtask man DIR`: man pages and completions of programs and commands, in folders as in `/usr/share`.
//!
//! Each program makes its own of its command line (`--write-manual`, by the crate `manual`). `dist` puts
//! those of its programs into the tarball.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::refused::{nearest, refused};
use crate::{carried, packages, workspace};

/// Packages whose programs are for trying something out, and have no manual.
const WITHOUT: [&str; 2] = ["gpu", "pipeline"];
/// The program of these commands.
const OURS: &str = "xtask";

/// The programs that users start, and their packages.
pub fn programs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let apps = packages::apps().filter(|package| !WITHOUT.contains(&package.name));
    let of = |package: &'static packages::Package| package.programs.iter().map(|name| (*name, package.name));
    apps.flat_map(of).filter(|(name, _)| *name != packages::LIBRARY)
}

#[derive(Args)]
pub struct Options {
    /// The folder: with ~/.local/share, man, bash and fish find them.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Programs whose manual is written [default: all of them, and xtask].
    #[arg(value_name = "PROGRAM")]
    programs: Vec<String>,
}

/// Builds the programs that are asked for and has each write its manual. `commands`: those of this program.
pub fn run(options: &Options, commands: clap::Command) -> Result<()> {
    let known = || programs().map(|(name, _)| name).chain([OURS]);
    if let Some(unknown) = options.programs.iter().find(|name| known().all(|known| known != **name)) {
        let all: Vec<&str> = known().collect();
        let nearest = nearest(unknown, &all);
        return Err(refused(format!("no program `{unknown}`{nearest}; there are: {}", all.join(", "))));
    }
    let is_wanted = |name: &str| options.programs.is_empty() || options.programs.iter().any(|it| it == name);
    let (names, packages): (Vec<&str>, Vec<&str>) = programs().filter(|(name, _)| is_wanted(name)).unzip();
    let folder = std::path::absolute(&options.folder).context("the folder")?;
    if !names.is_empty() {
        write(&built(&packages)?, &names, &folder)?;
    }
    if is_wanted(OURS) {
        manual::write(ours(commands), &folder)?;
    }
    let (at, pages) = (folder.display(), folder.join("man"));
    say!("{at}: man pages and completions; MANPATH={}: man softnic", pages.display());
    Ok(())
}

/// Where the programs lie, in a checkout built now. The dev profile serves: both have the same options.
fn built(packages: &[&str]) -> Result<PathBuf> {
    if let Some(bundle) = carried::folder() {
        return Ok(bundle.to_owned());
    }
    let what = packages.iter().flat_map(|package| ["-p", package]);
    workspace::build(&what.chain(["--bins"]).collect::<Vec<_>>())?;
    Ok(workspace::target_dir().join("debug"))
}

/// Has each of the programs in a folder write its manual below `share`.
pub fn write(programs: &Path, names: &[&str], share: &Path) -> Result<()> {
    for name in names {
        let mut program = Command::new(programs.join(name));
        let said = program.arg(manual::OPTION).arg(share).output();
        let said = said.with_context(|| format!("starting {}", programs.join(name).display()))?;
        let why = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "{name} {} failed: {}", manual::OPTION, why.trim());
        let page = share.join(manual::PAGES).join(format!("{name}.1"));
        ensure!(page.is_file(), "{name} {} wrote no {}", manual::OPTION, page.display());
    }
    Ok(())
}

/// These commands, whose pages are read by `man cargo-xtask`. In completions they are those of `xtask`.
fn ours(commands: clap::Command) -> clap::Command {
    commands.name(OURS).display_name("cargo-xtask").bin_name("cargo xtask")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::CommandFactory;
    use measure::need;

    use super::*;
    use crate::{Arguments, process};

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-man-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_program_that_writes_no_page_is_named() {
        let folder = scratch("programs");
        let script = |name: &str, text: &str| process::script(&folder.join(name), text);
        script("good", "#!/bin/sh\nmkdir -p $2/man/man1 && : > $2/man/man1/good.1\n");
        script("silent", "#!/bin/sh\n");
        script("old", "#!/bin/sh\necho \"old: unexpected argument $1\" >&2; exit 2\n");
        let write = |name: &str| write(&folder, &[name], &folder.join("share"));
        write("good").unwrap();
        for (name, why) in [
            ("silent", "silent --write-manual wrote no /"),
            ("old", "old --write-manual failed: old: unexpected argument --write-manual"),
            ("gone", "starting /"),
        ] {
            let error = format!("{:#}", write(name).unwrap_err());
            assert!(error.starts_with(why), "{error}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn these_commands_have_a_page_each_that_groff_renders_without_a_warning() {
        let groff = Command::new("groff").arg("--version").output().map(drop);
        need!(groff.map_err(|error| error.to_string()), groff, "groff");
        let share = scratch("ours");
        manual::write(ours(Arguments::command()), &share).unwrap();
        let pages = share.join(manual::PAGES);
        let names = workspace::names_in(&pages);
        for wanted in ["cargo-xtask.1", "cargo-xtask-figure.1", "cargo-xtask-testbed-up.1"] {
            assert!(names.iter().any(|name| name == wanted), "{names:?}");
        }
        for name in names {
            let said =
                Command::new("groff").args(["-man", "-ww", "-z", "-Kutf8"]).arg(pages.join(&name)).output();
            let said = said.unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stderr), "", "{name}");
        }
        let page = fs::read_to_string(pages.join("cargo-xtask-figure.1")).unwrap();
        assert!(page.contains("cargo xtask figure"), "{page}");
        assert!(share.join("bash-completion/completions/xtask.bash").is_file());
        fs::remove_dir_all(share).unwrap();
    }
}
