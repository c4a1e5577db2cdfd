//! `xtask/floors.toml`: how many tests each suite must execute (INV-9); a floor goes down only with a reason.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Its place in the tree.
pub const FILE: &str = "xtask/floors.toml";

/// All floors by suite.
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
    /// How many of them only Debian executes: they unpack another Debian release from the machine's own mirror.
    #[serde(default)]
    debian_only: usize,
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

    /// The floor of a suite on this machine.
    pub fn of(&self, suite: &str) -> Option<usize> {
        let off_debian = |floor: &Floor| floor.tests.saturating_sub(floor.debian_only);
        self.suite.get(suite).map(|floor| if self.debian { floor.tests } else { off_debian(floor) })
    }

    /// What is wrong with a suite that executed this many tests.
    pub fn complaint(&self, suite: &str, executed: usize) -> Option<String> {
        match self.of(suite) {
            None => Some(format!("suite `{suite}` has no floor in {FILE}")),
            Some(floor) if executed < floor => {
                Some(format!("suite `{suite}` executed {executed} tests, its floor is {floor}"))
            }
            Some(_) => None,
        }
    }

    /// Floors that are lower than in any of `earlier`, without a reason.
    fn lowered(&self, earlier: &[Floors]) -> Vec<String> {
        let mut problems = Vec::new();
        for (suite, floor) in &self.suite {
            let highest =
                earlier.iter().filter_map(|floors| floors.suite.get(suite)).map(|floor| floor.tests).max();
            let reasoned = floor.reason.as_ref().is_some_and(|reason| !reason.trim().is_empty());
            if let Some(highest) = highest.filter(|highest| *highest > floor.tests && !reasoned) {
                problems.push(format!(
                    "the floor of `{suite}` went from {highest} to {} without a `reason`",
                    floor.tests
                ));
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
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let commits = git(&["log", "--format=%H", "--", FILE]).unwrap_or_default();
    // One that no longer parses is older than the format.
    commits
        .lines()
        .filter_map(|commit| toml::from_str(&git(&["show", &format!("{commit}:{FILE}")])?).ok())
        .collect()
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
        let before = [floors("[suite.roce]\ntests = 10\n"), floors("[suite.roce]\ntests = 8\n")];
        for (now, problems) in [
            ("[suite.roce]\ntests = 10\n", 0),
            ("[suite.roce]\ntests = 12\n", 0),
            ("[suite.roce]\ntests = 9\n", 1),
            ("[suite.roce]\ntests = 9\nreason = \" \"\n", 1),
            ("[suite.roce]\ntests = 9\nreason = \"two became one table\"\n", 0),
        ] {
            assert_eq!(floors(now).lowered(&before).len(), problems, "{now}");
        }
    }
}
