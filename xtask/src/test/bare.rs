//! The step `without rdma-core` (INV-8): tests that could use it must pass, or skip aloud, without it.
//!
//! An empty file under the library's name, found before the system's, cannot be loaded: the cheap form of a
//! machine without it, where `cargo xtask test --bare` runs everything.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::files;

const MISSING: [&str; 2] = ["libibverbs.so.1", "libmlx5.so.1"];

/// Packages that load rdma-core.
pub const PACKAGES: [&str; 4] = ["verbs", "rdma-shim", "generator", "echo"];

/// Makes the folder with the unusable libraries.
pub fn folder(target: &Path) -> Result<PathBuf> {
    let folder = target.join("xtask-test/no-rdma-core");
    MISSING.iter().try_for_each(|name| files::write(&folder.join(name), ""))?;
    Ok(folder)
}

/// Has the loader find no rdma-core.
pub fn hide(command: &mut Command, folder: &Path) {
    // Here a test is meant to skip.
    command.env("LD_LIBRARY_PATH", folder).env_remove("REQUIRE");
}

/// What is wrong with a run that ended well: if nothing missed the library, nothing was tried without it.
pub fn complaint(log: &str, folder: &Path) -> Option<String> {
    let missed = |line: &str| line.contains("SKIP ") && line.contains(&*folder.to_string_lossy());
    (!log.lines().any(missed)).then(|| "no test missed rdma-core, so that it was found (INV-8)".into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_run_that_found_the_library_proves_nothing() {
        let folder = Path::new("/t/no-rdma-core");
        let skip = "test a ... SKIP a: an RDMA device (cannot load libibverbs.so.1: /t/no-rdma-core/libibverbs.so.1: file too short)";
        assert_eq!(complaint(&format!("x\n{skip}\ntest result: ok."), folder), None);
        for log in ["test result: ok. 5 passed", "SKIP a: an RDMA device (no RDMA device here)"] {
            assert!(complaint(log, folder).unwrap().contains("INV-8"), "{log}");
        }
    }

    #[test]
    fn the_seam_hides_a_library_from_a_program() {
        let target = std::env::temp_dir().join(format!("xtask-bare-{}", std::process::id()));
        let folder = folder(&target).unwrap();
        let mut command = Command::new("true");
        hide(&mut command, &folder);
        let seen = command
            .get_envs()
            .any(|(name, value)| name == "LD_LIBRARY_PATH" && value == Some(folder.as_os_str()));
        let sizes = MISSING.map(|name| fs::metadata(folder.join(name)).unwrap().len());
        fs::remove_dir_all(&target).unwrap();
        assert_eq!((seen, sizes), (true, [0, 0]));
    }
}
