//! The tests of a suite on the GPU: each group in a process, each destructive one in its own, with deadlines.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result};

use super::super::jobs::name_programs;
use super::super::outcome::Outcome;
use super::super::row::minutes;
use super::super::suites::Suite;
use super::passed::{Mark, Passed, Process};
use super::programs::Tests;
use crate::carried::TestProgram;
use crate::gpu_machine::GpuMachine;
use crate::process::{Ended, run_logged};
use crate::{packages, wheels, workspace};

/// Longest that a destructive test may take.
const ALONE: Duration = Duration::from_secs(60);
/// How often a program is restarted after a test hung or crashed: if the GPU is lost, all later ones fail.
const RESTARTS: usize = 2;
/// What crate gpu says of an error behind which nothing runs in the same process.
const LOST: &str = "its context is lost until the process ends";

/// What a program says as it starts again, behind the engine's name (`inference::engine::gpu::start_again`).
const AGAIN: &str = "; this program starts again";

/// What became of a suite so far.
pub struct Attempt<'a> {
    suite: &'a Suite,
    machine: &'a GpuMachine,
    logs: &'a Path,
    deadline: Duration,
    passed: &'a mut Passed,
    mark: Mark,
    /// Processes that passed before, and the minutes that they took.
    pub before: (usize, f64),
    /// Counts of all its processes.
    pub outcome: Outcome,
    /// What is wrong beside failed tests.
    pub complaints: Vec<String>,
    /// What was said by processes that did not pass.
    pub failed_logs: String,
}

impl<'a> Attempt<'a> {
    pub fn new(
        suite: &'a Suite,
        machine: &'a GpuMachine,
        logs: &'a Path,
        deadline: Duration,
        passed: &'a mut Passed,
        mark: Mark,
    ) -> Attempt<'a> {
        let (before, outcome, complaints, failed_logs) = Default::default();
        Attempt { suite, machine, logs, deadline, passed, mark, before, outcome, complaints, failed_logs }
    }

    /// Runs every test for a GPU that this program lists.
    pub fn program(&mut self, program: &TestProgram) -> Result<()> {
        let tests = match Tests::of(&program.path) {
            Ok(tests) => tests.of_suite(self.suite),
            Err(error) => {
                self.complaints.push(format!("{error:#}"));
                return Ok(());
            }
        };
        let (mut started, mut cut, mut behind) = (0, 0, 0);
        for group in &tests.together {
            let mut left = &group[..];
            while !left.is_empty() && cut <= RESTARTS {
                let log = self.log(&program.target, started);
                started += 1;
                let at = self.process(program, left, &log, self.deadline)?;
                cut += usize::from(at.is_some());
                left = at.map_or(&[], |at| &left[at + 1..]);
            }
            behind += left.len();
        }
        if behind > 0 {
            self.complaints.push(format!("{behind} tests behind it did not run"));
        }
        for (at, name) in tests.alone.iter().enumerate() {
            let log = self.log(&format!("{}-alone", program.target), at);
            self.process(program, std::slice::from_ref(name), &log, ALONE.min(self.deadline))?;
        }
        Ok(())
    }

    fn log(&self, what: &str, number: usize) -> PathBuf {
        self.logs.join(format!("{}-{what}-{number}.log", self.suite.name))
    }

    /// Runs these tests in one process; which one it came to an end in, if it did not come to the end of all.
    fn process(
        &mut self,
        program: &TestProgram,
        names: &[String],
        log: &Path,
        limit: Duration,
    ) -> Result<Option<usize>> {
        let name = format!("{} {}", self.suite.name, program.target);
        if let Some((outcome, minutes)) = self.passed.before(&name, names, &self.mark) {
            self.before = (self.before.0 + 1, self.before.1 + minutes);
            self.add(outcome);
            return Ok(None);
        }
        let since = Instant::now();
        let mut command = self.command(program, names);
        let ended = run_logged(&mut command, log, limit)?;
        let said = fs::read(log).with_context(|| format!("reading {}", log.display()))?;
        let said = String::from_utf8_lossy(&said);
        let (earlier, last) = starts(&said);
        self.outcome.table.extend(said.lines().filter(|line| line.contains(AGAIN)).map(str::to_owned));
        let failures = Outcome::of_log(earlier).failures;
        if !failures.is_empty() {
            self.complaints.push(format!("{} failed before the program started again", failures.join(", ")));
            self.failed_logs += earlier;
        }
        let Part { outcome, complaint, at } = part(names, last, ended, limit);
        if outcome.failed > 0 || complaint.is_some() {
            self.failed_logs += &said;
        } else if failures.is_empty() {
            let (tests, mark, skips) = (names.to_vec(), self.mark.clone(), outcome.skips.clone());
            let (passed, minutes) = (outcome.passed, minutes(since));
            self.passed.push(&Process { program: name, tests, mark, passed, skips, minutes })?;
        }
        self.add(outcome);
        self.complaints.extend(complaint);
        Ok(at)
    }

    fn add(&mut self, outcome: Outcome) {
        let sum = &mut self.outcome;
        sum.passed += outcome.passed;
        sum.failed += outcome.failed;
        sum.failures.extend(outcome.failures);
        sum.ignored += outcome.ignored;
        sum.skips.extend(outcome.skips);
        sum.table.extend(outcome.table);
    }

    fn command(&self, program: &TestProgram, names: &[String]) -> Command {
        let mut command = self.suite.command(&program.path);
        command.args(names).args(["--exact", "--test-threads=1", "--show-output"]);
        let ours = if self.suite.nic.is_some() { "gpu,toolkit,nic,softnic" } else { "gpu,toolkit" };
        // What the user asks for stays.
        command.env("REQUIRE", env::var("REQUIRE").unwrap_or_else(|_| ours.into()));
        command.envs(self.machine.toolkit.iter().map(|toolkit| (wheels::CUDA.variable, toolkit)));
        // The compiled-in paths are another machine's.
        name_programs(&mut command, packages::programs(), &workspace::programs());
        command
    }
}

/// What a program said before its last restart, and after it: its last start ran all tests.
fn starts(said: &str) -> (&str, &str) {
    let behind = said.rfind(AGAIN).map_or(0, |at| at + AGAIN.len());
    match said[behind..].find("\nrunning ") {
        Some(at) if behind > 0 => said.split_at(behind + at),
        _ => ("", said),
    }
}

/// What one process gave.
struct Part {
    outcome: Outcome,
    complaint: Option<String>,
    /// Place of the test in which it came to an end, if it did not come to the end of all.
    at: Option<usize>,
}

/// Reads what a test program said that was to run `names`, one after the other.
fn part(names: &[String], said: &str, ended: Ended, limit: Duration) -> Part {
    let mut outcome = Outcome::of_log(said);
    let is_whole = said.lines().any(|line| line.starts_with("test result: "));
    if is_whole && ended != Ended::TimedOut {
        let counted = outcome.passed + outcome.failed + outcome.skips.len();
        let complaint = match () {
            () if counted != names.len() => Some(format!("{counted} of {} tests gave a result", names.len())),
            () if ended != Ended::Well && outcome.failed == 0 => Some(how(ended, limit)),
            () if outcome.failed > 0 && said.contains(LOST) => {
                let (failed, of, first) = (outcome.failed, names.len(), &names[0]);
                Some(format!(
                    "{failed} of {of} tests failed in the process from `{first}` on, whose context was lost"
                ))
            }
            () => None,
        };
        return Part { outcome, complaint, at: None };
    }
    let began = |name: &String| said.lines().any(|line| line.starts_with(&format!("test {name} ... ")));
    let at = names.iter().rposition(began);
    let lost = said.lines().filter(|line| *line == "FAILED" || line.ends_with("... FAILED")).count();
    // The one that it came to an end in has failed, those before it have not.
    outcome.failed = lost + 1;
    outcome.passed = at.unwrap_or(0).saturating_sub(lost + outcome.skips.len());
    let place = at.map_or_else(|| "before its first test".to_owned(), |at| format!("in `{}`", names[at]));
    let complaint = Some(format!("{} {place}", how(ended, limit)));
    Part { outcome, complaint, at: at.or((!is_whole).then_some(names.len() - 1)) }
}

fn how(ended: Ended, limit: Duration) -> String {
    match ended {
        Ended::Well => "ended without a result".into(),
        Ended::TimedOut => format!("hung, and was killed after {} s", limit.as_secs()),
        Ended::Status(_) | Ended::Signal(_) => ended.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(7);

    fn names() -> Vec<String> {
        ["a::gpu_x", "a::gpu_y", "a::gpu_z"].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_whole_run_is_what_libtest_counts() {
        let said = "\nrunning 3 tests\ntest a::gpu_x ... ok\ntest a::gpu_y ... SKIP gpu_y: two GPUs (one)\nok\ntest a::gpu_z ... ok\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.05s\n";
        let whole = part(&names(), said, Ended::Well, LIMIT);
        assert_eq!((whole.outcome.passed, whole.outcome.failed, whole.outcome.skips.len()), (2, 0, 1));
        assert!(whole.complaint.is_none() && whole.at.is_none());
        let lost = said.replace("3 passed; 0 failed", "2 passed; 1 failed") + "CUDA_ERROR_X (719): " + LOST;
        let lost = part(&names(), &lost, Ended::Status(101), LIMIT);
        let words = "1 of 3 tests failed in the process from `a::gpu_x` on, whose context was lost";
        assert_eq!((lost.complaint.as_deref(), lost.outcome.failed), (Some(words), 1));
        assert!(
            include_str!("../../../../crates/inference/src/engine/gpu/restart.rs").contains(AGAIN),
            "the words are inference's"
        );
        assert!(
            include_str!("../../../../crates/gpu/src/result/mod.rs").contains(LOST),
            "it says so in other words"
        );
        let fewer = part(&names()[..2], said, Ended::Well, LIMIT);
        assert_eq!(fewer.complaint.as_deref(), Some("3 of 2 tests gave a result"));
        let after = part(&names(), said, Ended::Signal(11), LIMIT);
        assert!(after.complaint.unwrap().contains("by SIGSEGV") && after.at.is_none());
    }

    #[test]
    fn a_run_that_was_cut_names_the_test_and_goes_on_behind_it() {
        let begun = "running 3 tests\ntest a::gpu_x ... ok\ntest a::gpu_y ... ";
        for (said, ended, counts, at, words) in [
            (begun, Ended::TimedOut, (1, 1), Some(1), "killed after 7 s in `a::gpu_y`"),
            (begun, Ended::Signal(6), (1, 1), Some(1), "by SIGABRT in `a::gpu_y`"),
            (
                "test a::gpu_x ... FAILED\ntest a::gpu_y ... FAILED\ntest a::gpu_z ... ",
                Ended::Signal(9),
                (0, 3),
                Some(2),
                "gpu_z",
            ),
            (
                "error while loading libx\n",
                Ended::Status(127),
                (0, 1),
                Some(2),
                "status 127 before its first test",
            ),
        ] {
            let cut = part(&names(), said, ended, LIMIT);
            assert_eq!((cut.outcome.passed, cut.outcome.failed), counts, "{said}");
            assert_eq!(cut.at, at, "{said}");
            assert!(cut.complaint.as_ref().unwrap().contains(words), "{:?}", cut.complaint);
        }
    }
}
