//! perftest's programs of this machine, and the libraries that they need beside rdma-core.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::refused::refused;

/// What `bench-nic` runs.
const PROGRAMS: [&str; 5] = ["ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_write_lat"];

/// Libraries that every machine has, or must have of its own: the C library's, and rdma-core under test.
const NOT_CARRIED: &str =
    "linux-vdso. ld-linux libc. libm. libresolv. libpthread. libibverbs. libmlx5. libnl-";

/// Paths of the programs in `path`.
pub fn find(path: std::ffi::OsString) -> Result<Vec<PathBuf>> {
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let find = |name: &&str| {
        let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        found.ok_or_else(|| {
            refused(format!("--perftest: no {name} here; install perftest, or leave --perftest out"))
        })
    };
    PROGRAMS.iter().map(find).collect()
}

/// Copies the programs, and into `lib` what they need; how many libraries that is.
pub fn copy_all(tools: &[PathBuf], folder: &Path) -> Result<usize> {
    let mut libraries = BTreeSet::new();
    for tool in tools {
        copy_into(tool, folder)?;
        let listed = process::output(Command::new("ldd").arg(tool), process::WAIT)?;
        libraries.extend(carried(&listed).into_iter().map(PathBuf::from));
    }
    libraries.iter().try_for_each(|library| copy_into(library, &folder.join("lib")))?;
    Ok(libraries.len())
}

fn copy_into(file: &Path, folder: &Path) -> Result<()> {
    crate::files::copy(file, &folder.join(file.file_name().context("a file without a name")?))
}

/// Paths in what `ldd` says, but those that are not carried.
fn carried(listed: &str) -> Vec<&str> {
    let libraries = listed.lines().filter_map(|line| line.trim().split_once(" => "));
    let wanted = libraries.filter(|(name, _)| !NOT_CARRIED.split(' ').any(|start| name.starts_with(start)));
    let paths = wanted.filter_map(|(_, rest)| rest.split_whitespace().next());
    paths.filter(|path| path.starts_with('/')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Refused;

    #[test]
    fn a_missing_tool_is_refused_by_name() {
        let error = find("/proc".into()).unwrap_err();
        assert!(error.is::<Refused>() && error.to_string().contains("ib_write_bw"), "{error}");
    }

    #[test]
    fn what_perftest_needs_is_carried_but_not_what_is_measured() {
        let listed = "\tlinux-vdso.so.1 (0x1)\n\tlibm.so.6 => /lib/libm.so.6 (0x2)\n\tlibmlx5.so.1 => /lib/libmlx5.so.1 (0x3)\n\
            \tlibpci.so.3 => /lib/libpci.so.3 (0x4)\n\tlibgone.so.1 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x5)\n";
        assert_eq!(carried(listed), ["/lib/libpci.so.3"]);
    }
}
