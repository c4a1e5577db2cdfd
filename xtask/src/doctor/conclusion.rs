//! The end of `cargo xtask doctor`: tests and figures that this machine runs, and what the others lack.

use std::path::Path;

use measure::provenance::library_version;

use super::hardware;
use crate::setup::{self, Purpose, System};
use crate::{carried, wheels, workspace};

/// Libraries that every run loads.
pub const LIBRARIES: [&str; 2] = ["libibverbs.so", "libmlx5.so"];

/// What decides which tests and figures run.
#[derive(Clone, Debug, Default)]
pub struct Conclusion {
    /// Programs without their source, and so without set-up and most tests.
    is_bundle: bool,
    /// Whether packages can be looked up.
    has_dpkg: bool,
    /// What every figure needs and is not here: packages, or libraries where no package is looked up.
    figures_lack: Vec<&'static str>,
    /// What the tests need beside that.
    tests_lack: Vec<&'static str>,
    /// Whether a kernel was loaded on a GPU.
    has_gpu: bool,
    has_card: bool,
}

impl Conclusion {
    /// Of this machine. `cuda`: what `gpu-probe` said.
    pub fn of(system: &System, cuda: &[(String, String)]) -> Conclusion {
        let is_bundle = carried::folder().is_some();
        let figures_lack = match system.has_packages && !is_bundle {
            true => setup::names(&setup::missing(Purpose::Figure, system)),
            false => LIBRARIES.into_iter().filter(|name| library_version(name).is_none()).collect(),
        };
        let mut tests_lack = setup::names(&setup::missing(Purpose::Test, system));
        tests_lack.retain(|name| !figures_lack.contains(name));
        tests_lack.extend(wheels::ALL.iter().filter(|wheels| !wheels.are_there()).map(|wheels| wheels.what));
        let is_loaded = |(name, value): &(String, String)| {
            name.starts_with("GPU ") && name.ends_with(" kernels") && value.starts_with("compiled")
        };
        Conclusion {
            is_bundle,
            has_dpkg: system.has_packages,
            figures_lack,
            tests_lack,
            has_gpu: cuda.iter().any(is_loaded),
            has_card: !hardware::Found::below(Path::new("/")).cards.is_empty(),
        }
    }

    pub fn runs(&self) -> String {
        let us = workspace::us();
        let tests = match (self.is_bundle, self.has_dpkg && self.tests_lack.is_empty(), self.has_gpu) {
            _ if !self.figures_lack.is_empty() => return "no test and no figure".into(),
            (true, _, true) => format!("tests of a GPU (`{us} test --gpu`), "),
            (true, _, false) | (false, false, _) => String::new(),
            (false, true, true) => format!("all tests (`{us} test`, with --gpu those of a GPU), "),
            (false, true, false) => format!("all tests but those of a GPU (`{us} test`), "),
        };
        let figures =
            if self.has_gpu { "figures 1 to 7" } else { "figures 1 to 5 without the series of a GPU" };
        format!("{tests}{figures}")
    }

    /// What is missing, for what, and the command that brings it.
    pub fn missing(&self) -> String {
        let us = workspace::us();
        let mut parts = Vec::new();
        if !self.figures_lack.is_empty() {
            let by = match self.is_bundle || !self.has_dpkg {
                true => "install rdma-core".to_owned(),
                false => format!("`{us} setup figure`"),
            };
            parts.push(format!("for figures: {} ({by})", some(&self.figures_lack)));
        }
        if !self.is_bundle && !self.has_dpkg {
            parts.push(format!(
                "for tests: packages, which cannot be looked up without dpkg (`{us} test --bare` runs what needs none)"
            ));
        } else if !self.is_bundle && !self.tests_lack.is_empty() {
            parts.push(format!("for tests: {} (`{us} setup`)", some(&self.tests_lack)));
        }
        if !self.has_gpu {
            parts.push(
                "for figures 6 and 7, and for tests and series of a GPU: a GPU that loads kernels (--machine twin tries these \
                 figures' commands)"
                    .to_owned(),
            );
        }
        if !self.has_card {
            parts.push(format!("for claims about hardware: a ConnectX (`{us} doctor --hardware`)"));
        }
        if parts.is_empty() { "nothing".into() } else { parts.join("; ") }
    }
}

/// The first names, and how many more there are.
fn some(names: &[&str]) -> String {
    match names {
        [first, second, _, _, ..] => format!("{first}, {second} and {} more", names.len() - 2),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_what_runs_here_and_what_brings_the_rest() {
        let bare = Conclusion { has_dpkg: true, ..Conclusion::default() };
        let full = Conclusion { has_gpu: true, has_card: true, ..bare.clone() };
        let lacks =
            Conclusion { tests_lack: vec!["qperf", "valgrind", "tshark", "groff-base"], ..full.clone() };
        let bundle = Conclusion { is_bundle: true, ..full.clone() };
        for (conclusion, runs, missing) in [
            (
                full.clone(),
                "all tests (`cargo xtask test`, with --gpu those of a GPU), figures 1 to 7",
                "nothing",
            ),
            (
                bare,
                "all tests but those of a GPU (`cargo xtask test`), figures 1 to 5 without the series of a GPU",
                "for figures 6 and 7, and for tests and series of a GPU: a GPU that loads kernels (--machine twin tries these figures' \
                 commands); for claims about hardware: a ConnectX (`cargo xtask doctor --hardware`)",
            ),
            (lacks.clone(), "figures 1 to 7", "for tests: qperf, valgrind and 2 more (`cargo xtask setup`)"),
            (
                Conclusion { figures_lack: vec!["g++"], ..lacks },
                "no test and no figure",
                "for figures: g++ (`cargo xtask setup figure`); for tests: qperf, valgrind and 2 more (`cargo xtask setup`)",
            ),
            (
                Conclusion { has_dpkg: false, ..full },
                "figures 1 to 7",
                "for tests: packages, which cannot be looked up without dpkg (`cargo xtask test --bare` runs what needs none)",
            ),
            (bundle.clone(), "tests of a GPU (`cargo xtask test --gpu`), figures 1 to 7", "nothing"),
            (
                Conclusion { figures_lack: vec!["libmlx5.so"], ..bundle },
                "no test and no figure",
                "for figures: libmlx5.so (install rdma-core)",
            ),
        ] {
            assert_eq!((conclusion.runs().as_str(), conclusion.missing().as_str()), (runs, missing));
        }
    }

    #[test]
    fn a_gpu_counts_when_it_loaded_a_kernel() {
        let system = System { name: "Debian".into(), has_packages: false };
        let said = |kernels: &str| {
            let facts = [("GPU 0", "NVIDIA H200, sm_90"), ("GPU 0 kernels", kernels)];
            Conclusion::of(&system, &facts.map(|(name, value)| (name.to_owned(), value.to_owned()))).has_gpu
        };
        assert!(said("compiled, linked and loaded in 300 ms"));
        assert!(!said("NVRTC: no such architecture"));
    }
}
