//! The suites' `PATH`: only programs of packages that a bare machine has, or set-up or `README.md` names.
//!
//! Source: `dpkg-query(1)`, `deb-substvars(5)`; names below `/etc/alternatives` as in
//! `update-alternatives(1)`. Without dpkg the machine's own `PATH` stays, and the run says so.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{on_path, said};
use crate::setup::{self, Purpose};

/// What `README.md` asks for before the first command, and what gcc and git recommend.
const ASKED_FOR: [&str; 4] = ["git", "gcc", "libc6-dev", "ca-certificates"];

/// Rust's own programs, and the linker that rustc starts, wherever they lie.
const OF_RUST: [&str; 9] =
    ["cargo", "rustc", "rustdoc", "rustup", "rustfmt", "cargo-fmt", "cargo-clippy", "clippy-driver", "cc"];

/// Where packages put programs.
const FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// Makes the folder of a package set's programs below `target`; none if there is no package database.
pub fn folder(target: &Path, needed: Purpose) -> Result<Option<PathBuf>> {
    let Ok(listing) = ask(&[
        "-W",
        "-f",
        "${db:Status-Status}\t${Package}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n",
    ]) else {
        return Ok(None);
    };
    let roots = [&ASKED_FOR[..], &setup::names(&setup::wanted(needed))].concat();
    let packages = with_dependencies(&installed(&listing), &roots);
    let owned = ask(&[&["-L"], &*packages.iter().map(String::as_str).collect::<Vec<_>>()].concat())?;
    // The folders themselves may be links: `/bin` is `/usr/bin`.
    let owned = owned.lines().filter(|line| line.starts_with('/'));
    let owned: BTreeSet<PathBuf> = owned.filter_map(|path| place(Path::new(path))).collect();
    let rust = OF_RUST.iter().filter_map(|name| Some((OsString::from(name), on_path(&[name], &[])?)));
    let mut programs: BTreeMap<OsString, PathBuf> = rust.collect();
    for folder in FOLDERS.iter().map(Path::new).filter(|folder| folder.is_dir()) {
        programs.extend(of_packages(folder, &owned)?);
    }
    let folder = target.join(format!("xtask-test/programs/{needed:?}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for (name, program) in &programs {
        symlink(program, folder.join(name)).with_context(|| format!("linking {}", program.display()))?;
    }
    Ok(Some(folder))
}

fn ask(arguments: &[&str]) -> Result<String> {
    said(Command::new("dpkg-query").args(arguments))
}

struct Package<'a> {
    name: &'a str,
    /// Every installation has it.
    required: bool,
    /// `libc6 (>= 2.36), default-mta | mail-transport-agent`
    depends: &'a str,
    provides: &'a str,
}

/// Installed packages of the database's listing.
fn installed(listing: &str) -> Vec<Package<'_>> {
    let package = |line| {
        let fields: [&str; 6] = str::split(line, '\t').collect::<Vec<_>>().try_into().ok()?;
        let [status, name, essential, priority, depends, provides] = fields;
        let required = essential == "yes" || priority == "required";
        (status == "installed").then_some(Package { name, required, depends, provides })
    };
    listing.lines().filter_map(package).collect()
}

/// Required packages, `roots` as far as they are installed, and everything that these depend on.
fn with_dependencies(installed: &[Package], roots: &[&str]) -> BTreeSet<String> {
    let mut by_name: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
    for package in installed {
        by_name.entry(package.name).or_default().insert(0, package);
        names(package.provides).for_each(|name| by_name.entry(name).or_default().push(package));
    }
    let required = installed.iter().filter(|package| package.required).map(|package| package.name);
    let mut open: Vec<&str> = required.chain(roots.iter().copied()).collect();
    let mut found = BTreeSet::new();
    while let Some(name) = open.pop() {
        let package = by_name.get(name).and_then(|packages| packages.first());
        let Some(package) = package.filter(|one| found.insert(one.name.to_owned())) else { continue };
        for alternatives in package.depends.split(',') {
            // The first that is installed: a bare machine gets one of them.
            open.extend(alternatives.split('|').flat_map(names).find(|name| by_name.contains_key(name)));
        }
    }
    found
}

/// Package names of a list of dependencies, without versions and architectures.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .filter_map(|one| one.split(['(', ':', '[']).next())
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

/// Programs in `folder` owned or leading to owned ones: `awk` to `/etc/alternatives/awk`, that to `mawk`.
fn of_packages(folder: &Path, owned: &BTreeSet<PathBuf>) -> Result<Vec<(OsString, PathBuf)>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let programs = entries.flatten().filter_map(|entry| {
        let path = entry.path();
        let leads_to = fs::canonicalize(&path).ok()?;
        let ours = owned.contains(&place(&path)?) || owned.contains(&leads_to);
        (ours && leads_to.is_file()).then(|| (entry.file_name(), path))
    });
    Ok(programs.collect())
}

/// A path whose folder has no links in it; its last part may be one.
fn place(path: &Path) -> Option<PathBuf> {
    Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_nothing_asks_for_is_left_out() {
        let listing = "installed\tdash\tyes\trequired\tlibc6 (>= 2.36), \t\n\
            installed\tlibc6\tno\toptional\t, libgcc-s1\t\n\
            installed\tgcc\tno\toptional\t, gcc-12 (>= 12.2), no-such | mawk:any | gawk\tc-compiler, gcc-x86-64-linux-gnu (= 4)\n\
            installed\tgcc-12\tno\toptional\t, \t\n\
            installed\tmawk\tno\toptional\t, \t\n\
            installed\tgawk\tno\toptional\t, \t\n\
            installed\tprocps\tno\timportant\t, libc6\t\n\
            config-files\tgit\tno\toptional\t, \t\n\
            installed\tg++\tno\toptional\t, c-compiler\t\n";
        let installed = installed(listing);
        let of = |roots: &[&str]| with_dependencies(&installed, roots).into_iter().collect::<Vec<_>>();
        assert_eq!(of(&[]), ["dash", "libc6"]);
        assert_eq!(of(&["gcc", "git"]), ["dash", "gcc", "gcc-12", "libc6", "mawk"]);
        assert_eq!(of(&["g++"]), ["dash", "g++", "gcc", "gcc-12", "libc6", "mawk"]);
    }

    #[test]
    fn a_program_is_owned_by_its_own_name_or_by_what_it_leads_to() {
        let root = std::env::temp_dir().join(format!("xtask-path-{}", std::process::id()));
        let bin = root.join("bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["mawk", "pkill", "gcc-12", "ls"] {
            fs::write(bin.join(name), "").unwrap();
        }
        for (link, to) in
            [("awk", "alternatives-awk"), ("alternatives-awk", "mawk"), ("gcc", "pkill"), ("gone", "nothing")]
        {
            symlink(to, bin.join(link)).unwrap();
        }
        let owned =
            ["mawk", "gcc", "gcc-12", "gone"].map(|name| fs::canonicalize(&bin).unwrap().join(name)).into();
        let mut found: Vec<_> =
            of_packages(&bin, &owned).unwrap().into_iter().map(|(name, _)| name).collect();
        found.sort();
        fs::remove_dir_all(root).unwrap();
        assert_eq!(found, ["alternatives-awk", "awk", "gcc", "gcc-12", "mawk"]);
    }

    #[test]
    fn programs_of_this_machine_run_from_the_folder_and_others_are_not_there() {
        let target = std::env::temp_dir().join(format!("xtask-programs-{}", std::process::id()));
        let of = |needed| folder(&target, needed).unwrap().ok_or("no dpkg here");
        let tests = measure::need!(of(Purpose::Test), "a package database");
        let computing = of(Purpose::Computing).unwrap();
        let run_in = |folder: &Path, line: &str| {
            let run = Command::new("sh").args(["-c", line]).env("PATH", folder).output().unwrap();
            (run.status.success(), String::from_utf8_lossy(&run.stdout).into_owned())
        };
        let run = |line: &str| run_in(&tests, line);
        assert_eq!(
            run("ls / > /dev/null && cc --version > /dev/null && cargo --version > /dev/null && echo good").1,
            "good\n"
        );
        let links = fs::read_dir(&tests).unwrap().flatten().filter(|link| !link.path().is_file());
        assert_eq!(links.map(|link| link.file_name()).collect::<Vec<_>>(), [""; 0]);
        assert!(!run("no-such-program").0);
        // It is of no bare machine: a test that looks for it in vain would skip on every run.
        let brings_valgrind = run("valgrind --version > /dev/null").0;
        assert!(!run_in(&computing, "valgrind --version > /dev/null").0);
        fs::remove_dir_all(target).unwrap();
        let valgrind = Path::new("/usr/bin/valgrind");
        measure::need!(valgrind.is_file().then_some(()).ok_or("no /usr/bin/valgrind"), "valgrind");
        assert!(brings_valgrind, "no package of xtask/packages.txt brings valgrind");
    }
}
