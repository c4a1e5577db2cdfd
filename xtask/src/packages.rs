//! Packages that more than one command names: their programs, and whether they may have tests for a GPU.
//!
//! A new app is a line: `test` builds it and checks its symbols, `bundle` carries it, `gpu_*` run on a GPU.

pub struct Package {
    pub name: &'static str,
    /// What cargo puts side by side: programs, and the library that one of them puts in front of others.
    pub programs: &'static [&'static str],
    /// Whether it may have tests named `gpu_*`.
    pub gpu_tests: bool,
}

pub const PACKAGES: &[Package] = &[
    Package { name: "xtask", programs: &["xtask"], gpu_tests: false },
    Package { name: "gpu", programs: &["gpu-probe"], gpu_tests: true },
    Package { name: "rdma-shim", programs: &[], gpu_tests: true },
    Package { name: "inference", programs: &[], gpu_tests: true },
    Package { name: "pipeline", programs: &["pipeline-graph"], gpu_tests: true },
    Package { name: "soft-nic", programs: &[], gpu_tests: true },
    Package { name: "verbs", programs: &[], gpu_tests: true },
    Package { name: "softnic", programs: &["softnic", LIBRARY], gpu_tests: true },
    Package { name: "generator", programs: &["generator"], gpu_tests: true },
    Package { name: "echo", programs: &["doorbell-echo"], gpu_tests: true },
    Package { name: "inference-server", programs: &["inference-server"], gpu_tests: true },
    Package { name: "client", programs: &["doorbell-client"], gpu_tests: false },
    Package { name: "profiler", programs: &["profiler"], gpu_tests: true },
];

/// What `softnic` puts in front of the C library: no program, and looked at apart.
pub const LIBRARY: &str = "libsoftnic_preload.so";

/// Packages with programs, but for this one.
pub fn apps() -> impl Iterator<Item = &'static Package> {
    PACKAGES.iter().filter(|package| package.name != "xtask" && !package.programs.is_empty())
}

/// Apps whose programs tests start as users get them. The profiler's release build takes as long as its
/// tests, which start the one built with them.
pub fn released_apps() -> impl Iterator<Item = &'static Package> {
    apps().filter(|package| package.name != "profiler")
}

/// Their programs.
pub fn released() -> impl Iterator<Item = &'static str> {
    released_apps().flat_map(|package| package.programs).copied().filter(|name| *name != LIBRARY)
}

/// Programs that users and tests start.
pub fn programs() -> impl Iterator<Item = &'static str> {
    apps().flat_map(|package| package.programs).copied().filter(|name| *name != LIBRARY)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::workspace::{Metadata, root};

    #[test]
    fn every_app_of_the_tree_stands_there() {
        let metadata = Metadata::read(&root()).unwrap();
        let ours: Vec<&str> = metadata
            .packages
            .iter()
            .filter(|package| package.source.is_none())
            .map(|package| package.name.as_str())
            .collect();
        let unknown: Vec<&str> =
            PACKAGES.iter().map(|package| package.name).filter(|name| !ours.contains(name)).collect();
        assert_eq!(unknown, [""; 0], "no package is called so");
        for folder in std::fs::read_dir(root().join("apps")).unwrap().flatten() {
            let name = folder.file_name().into_string().unwrap();
            assert!(apps().any(|app| app.name == name), "apps/{name} is in no list of xtask/src/packages.rs");
        }
    }

    #[test]
    fn the_library_is_no_program() {
        let all: Vec<&str> = programs().collect();
        assert!(all.contains(&"softnic") && !all.contains(&LIBRARY), "{all:?}");
    }

    #[test]
    fn no_program_hides_one_of_the_system_from_a_path_that_begins_with_ours() {
        for name in programs() {
            let of_the_system =
                ["/bin", "/usr/bin", "/sbin", "/usr/sbin"].map(|folder| Path::new(folder).join(name));
            let hidden = of_the_system.iter().find(|path| path.exists());
            assert!(hidden.is_none(), "our {name} hides {hidden:?}");
        }
    }
}
