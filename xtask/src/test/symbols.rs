//! What our binaries export and ask for: only the interposer exports libc names (INV-4), none needs rdma-core
//! or CUDA to start (INV-8).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages::LIBRARY;
use crate::process::said;

/// Libraries that are found at run time, never by the loader.
const FOUND_AT_RUN_TIME: [&str; 7] =
    ["libibverbs", "libmlx5", "librdmacm", "libcuda", "libcudart", "libnvrtc", "libnvJitLink"];

/// Names that the interposer must export, or it interposes nothing.
const INTERPOSED: [&str; 5] = ["open", "ioctl", "mmap", "close", "write"];

/// Checks the programs in `folder` and the interposing library there; says what is wrong, one line each.
pub fn check(folder: &Path, programs: &[&str]) -> Result<Vec<String>> {
    let libc = dynamic_symbols(&libc()?)?;
    let mut problems = Vec::new();
    for binary in programs.iter().copied().chain([LIBRARY]) {
        let exported = dynamic_symbols(&folder.join(binary))?;
        problems.extend(match binary {
            LIBRARY => [not_interposed(&exported), foreign_exports(LIBRARY, &exported, &libc)].concat(),
            program => exports_of_libc(program, &exported, &libc),
        });
        problems.extend(needed_early(binary, &tool("readelf", &["-dW"], &folder.join(binary))?));
    }
    Ok(problems)
}

fn not_interposed(exported: &BTreeSet<String>) -> Vec<String> {
    let absent = INTERPOSED.iter().filter(|name| !exported.contains(**name));
    absent.map(|name| format!("{LIBRARY} does not export `{name}`, so it interposes nothing there")).collect()
}

fn exports_of_libc(binary: &str, exported: &BTreeSet<String>, libc: &BTreeSet<String>) -> Vec<String> {
    let both = exported.intersection(libc).filter(|name| !name.starts_with('_'));
    both.map(|name| format!("{binary} exports the libc name `{name}` (INV-4)")).collect()
}

/// What the interposer exports beside libc names: the pump's hook, and nothing else that is not its own.
fn foreign_exports(binary: &str, exported: &BTreeSet<String>, libc: &BTreeSet<String>) -> Vec<String> {
    let ours =
        |name: &str| name.starts_with("softnic_") || name.starts_with('_') || name == "rust_eh_personality";
    let foreign = exported.difference(libc).filter(|name| !ours(name) && *name != "ibv_open_device");
    foreign.map(|name| format!("{binary} exports `{name}`, which is no libc name (INV-4)")).collect()
}

fn needed_early(binary: &str, dynamic: &str) -> Vec<String> {
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let names = needed.filter_map(|line| line.split_once('[')?.1.split(']').next());
    let early = names.filter(|name| {
        let library = name.split(".so").next().unwrap_or_default();
        name.contains(".so") && FOUND_AT_RUN_TIME.contains(&library)
    });
    early.map(|name| format!("{binary} asks the loader for {name} (INV-8)")).collect()
}

fn dynamic_symbols(binary: &Path) -> Result<BTreeSet<String>> {
    let listing = tool("nm", &["-D", "--defined-only"], binary)?;
    let names = listing.lines().filter_map(|line| line.split_whitespace().last());
    // `open@@GLIBC_2.2.5`: the version is of no interest.
    Ok(names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect())
}

/// The versions of symbols that a program asks for, as readelf prints them.
pub fn wanted(binary: &Path) -> Result<String> {
    tool("readelf", &["-VW"], binary)
}

fn tool(program: &str, arguments: &[&str], binary: &Path) -> Result<String> {
    said(Command::new(program).args(arguments).arg(binary))
}

/// The libc that this very process uses.
fn libc() -> Result<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("reading /proc/self/maps")?;
    let path =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    path.map(PathBuf::from).context("no libc in /proc/self/maps")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_program_that_exports_a_libc_name_is_named() {
        let libc = set(&["open", "ioctl", "_IO_stdin_used"]);
        assert!(exports_of_libc("generator", &set(&["main", "_IO_stdin_used"]), &libc).is_empty());
        assert_eq!(exports_of_libc("generator", &set(&["ioctl"]), &libc).len(), 1);
        assert!(foreign_exports("lib", &set(&["open", "ibv_open_device", "softnic_x"]), &libc).is_empty());
        assert_eq!(foreign_exports("lib", &set(&["ibv_post_send"]), &libc).len(), 1);
    }

    #[test]
    fn a_binary_that_needs_a_library_early_is_named() {
        let dynamic = " 0x01 (NEEDED)  Shared library: [libibverbs.so.1]\n 0x01 (NEEDED)  Shared library: [libc.so.6]\n";
        let found = needed_early("generator", dynamic);
        assert!(found.len() == 1 && found[0].contains("libibverbs.so.1"), "{found:?}");
        assert!(needed_early("generator", " 0x01 (NEEDED)  Shared library: [libcudaless.so]\n").is_empty());
    }

    #[test]
    fn this_libc_exports_open() {
        let libc = libc().unwrap();
        assert!(
            tool("nm", &["-D", "--defined-only"], &libc).is_ok()
                && dynamic_symbols(&libc).unwrap().contains("open")
        );
    }
}
