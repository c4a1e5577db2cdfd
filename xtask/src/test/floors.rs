//! `xtask/floors.toml`: how many tests each suite must execute, without a GPU and with one (INV-9); a floor
//! goes down only with a reason.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process::said;

pub const FILE: &str = "xtask/floors.toml";

/// What a bundle goes by, which has no tree.
const COMPILED_IN: &str = include_str!("../../floors.toml");

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floors {
    #[serde(default)]
    suite: BTreeMap<String, Floor>,
    /// Whether this machine runs Debian itself, not a descendant.
    #[serde(skip)]
    debian: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Floor {
    /// Tests that must have been executed, skipped ones not counted.
    tests: usize,
    /// How many only Debian executes: they unpack another release by the machine's mirror, or run Chromium.
    #[serde(default)]
    debian_only: usize,
    /// `gpu_*` tests that `test --gpu` must execute on a machine with a GPU; none: the suite is left out.
    gpu: Option<usize>,
    /// Why this is lower than it once was; needed exactly then.
    reason: Option<String>,
}

impl Floors {
    /// Reads the file and everything it once said.
    pub fn read(root: &Path) -> Result<Floors> {
        let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("reading {FILE}"))?;
        let mut floors: Floors = toml::from_str(&text).context(FILE)?;
        floors.debian = is_debian(&std::fs::read_to_string("/etc/os-release").unwrap_or_default());
        match floors.lowered(&history(root)).as_slice() {
            [] => Ok(floors),
            problems => anyhow::bail!("{FILE}: {}", problems.join("; ")),
        }
    }

    /// Those of the revision that this program was built from.
    pub fn compiled_in() -> Result<Floors> {
        toml::from_str(COMPILED_IN).context(FILE)
    }

    /// The floor of a suite on this machine.
    pub fn of(&self, suite: &str) -> Option<usize> {
        let off_debian = |floor: &Floor| floor.tests.saturating_sub(floor.debian_only);
        self.suite.get(suite).map(|floor| if self.debian { floor.tests } else { off_debian(floor) })
    }

    /// What is wrong with a suite that executed this many tests.
    pub fn complaint(&self, suite: &str, executed: usize) -> Option<String> {
        let Some(floor) = self.of(suite) else {
            return Some(format!("suite `{suite}` has no floor in {FILE}"));
        };
        (executed < floor).then(|| format!("suite `{suite}` executed {executed} tests, its floor is {floor}"))
    }

    /// How many tests that need a GPU a suite must execute where there is one.
    pub fn gpu(&self, suite: &str) -> Option<usize> {
        self.suite.get(suite)?.gpu
    }

    /// What is wrong with a suite that executed this many tests that need a GPU.
    pub fn gpu_complaint(&self, suite: &str, executed: usize) -> Option<String> {
        let Some(floor) = self.gpu(suite) else {
            return Some(format!("suite `{suite}` has tests named gpu_*, but no `gpu` floor in {FILE}"));
        };
        (executed < floor)
            .then(|| format!("suite `{suite}` executed {executed} tests on the GPU, its floor is {floor}"))
    }

    /// Floors that are lower than in any of `earlier`, without a reason.
    fn lowered(&self, earlier: &[Floors]) -> Vec<String> {
        let of = |floor: &Floor, gpu: bool| if gpu { floor.gpu.unwrap_or(0) } else { floor.tests };
        let mut problems = Vec::new();
        for (suite, floor) in &self.suite {
            let reasoned = floor.reason.as_ref().is_some_and(|reason| !reason.trim().is_empty());
            for (kind, gpu) in [("", false), ("GPU ", true)] {
                let now = of(floor, gpu);
                let once = earlier.iter().filter_map(|floors| floors.suite.get(suite));
                if let Some(highest) =
                    once.map(|floor| of(floor, gpu)).max().filter(|highest| *highest > now && !reasoned)
                {
                    problems.push(format!(
                        "the {kind}floor of `{suite}` went from {highest} to {now} without a `reason`"
                    ));
                }
            }
        }
        problems
    }
}

/// Whether `os-release(5)` names Debian as the system; one that is only `ID_LIKE=debian` has no mirror of it.
fn is_debian(os_release: &str) -> bool {
    os_release.lines().filter_map(|line| line.strip_prefix("ID=")).any(|id| id.trim_matches('"') == "debian")
}

/// What the file said in each commit that changed it; empty without git or history.
fn history(root: &Path) -> Vec<Floors> {
    let git = |arguments: &[&str]| said(Command::new("git").args(arguments).current_dir(root)).ok();
    let commits = git(&["log", "--format=%H", "--", FILE]).unwrap_or_default();
    let of = |commit: &str| toml::from_str(&git(&["show", &format!("{commit}:{FILE}")])?).ok();
    // One that no longer parses is older than the format.
    commits.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floors(text: &str) -> Floors {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn below_its_floor_a_suite_fails() {
        let floors = floors("[suite.roce]\ntests = 10\n");
        assert_eq!(floors.complaint("roce", 10), None);
        assert!(floors.complaint("roce", 9).unwrap().contains("executed 9 tests, its floor is 10"));
        assert!(floors.complaint("new", 5).unwrap().contains("no floor"));
    }

    #[test]
    fn a_gpu_has_a_floor_of_its_own() {
        let floors = floors("[suite.gpu]\ntests = 10\ngpu = 3\n[suite.verbs]\ntests = 5\n");
        assert_eq!((floors.gpu("gpu"), floors.gpu("verbs"), floors.gpu("new")), (Some(3), None, None));
        assert_eq!(floors.gpu_complaint("gpu", 3), None);
        assert!(
            floors.gpu_complaint("gpu", 2).unwrap().contains("executed 2 tests on the GPU, its floor is 3")
        );
        assert!(floors.gpu_complaint("verbs", 7).unwrap().contains("no `gpu` floor"));
    }

    #[test]
    fn what_only_debian_executes_is_missed_there_and_nowhere_else() {
        let text = "[suite.softnic]\ntests = 10\ndebian_only = 4\n";
        for (system, executed, good) in [
            ("ID=debian\n", 10, true),
            ("ID=debian\n", 9, false),
            ("ID=\"debian\"\n", 9, false),
            ("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n", 6, true),
            ("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n", 5, false),
            ("", 6, true),
        ] {
            let floors = Floors { debian: is_debian(system), ..floors(text) };
            assert_eq!(floors.complaint("softnic", executed).is_none(), good, "{executed} on {system}");
        }
    }

    #[test]
    fn a_floor_goes_down_only_with_a_reason() {
        let before = [floors("[suite.roce]\ntests = 10\n"), floors("[suite.roce]\ntests = 8\ngpu = 2\n")];
        for (now, problems) in [
            ("[suite.roce]\ntests = 10\ngpu = 2\n", 0),
            ("[suite.roce]\ntests = 12\ngpu = 3\n", 0),
            ("[suite.roce]\ntests = 9\ngpu = 2\n", 1),
            ("[suite.roce]\ntests = 10\n", 1),
            ("[suite.roce]\ntests = 9\ngpu = 1\n", 2),
            ("[suite.roce]\ntests = 9\ngpu = 2\nreason = \" \"\n", 1),
            ("[suite.roce]\ntests = 9\nreason = \"two became one table\"\n", 0),
        ] {
            assert_eq!(floors(now).lowered(&before).len(), problems, "{now}");
        }
    }
}
