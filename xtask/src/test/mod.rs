//! `cargo xtask test`: set-up, tidy, fmt, clippy, all tests, dry runs of the figures, in that order, counted aloud.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cuda_wheels;
use crate::packages;
use crate::process::{Ended, run_logged};
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::workspace::{Metadata, root, target_dir};

mod bare;
mod floors;
pub mod gpu;
mod outcome;
mod suites;
mod symbols;

use floors::Floors;
use outcome::Outcome;

/// A suite that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// The whole command on two cores, from nothing.
const BUDGET_MINUTES: f64 = 20.0;
/// Lines of a failed log that are printed.
const TAIL: usize = 120;

/// Options of `test`.
#[derive(Args)]
pub struct Options {
    /// Suites or packages to run; all, and all steps before them, without any. A suite is a package, or one on a NIC:
    /// PACKAGE-LAYER-PATH, as in verbs-ib and verbs-roce-staged (no PATH: payloads are copied straight).
    suites: Vec<String>,
    /// The long matrices too (`SOFTNIC_TEST_FULL=1` for the suites).
    #[arg(long)]
    full: bool,
    /// Install nothing; what is missing ends the run with exit status 2.
    #[arg(long)]
    no_install: bool,
    /// On a machine without rdma-core: no set-up, skips instead of floors, and the binaries must start all the same.
    #[arg(long)]
    bare: bool,
    /// Only the tests named gpu_*, and examples/cuda_post, on a machine with a GPU; from a bundle too.
    #[arg(long, conflicts_with_all = ["full", "no_install", "bare"])]
    gpu: bool,
    /// With --gpu: where logs and the list of passed suites go.
    #[arg(long, value_name = "DIR", requires = "gpu")]
    out: Option<PathBuf>,
    /// With --gpu: leave out suites that passed before, by --out's list, with these very programs on this GPU.
    #[arg(long, requires = "gpu")]
    resume: bool,
    /// With --gpu: seconds after which a test program is ended; a destructive test has a minute at most.
    #[arg(long, value_name = "SECONDS", requires = "gpu", default_value = "300", value_parser = clap::value_parser!(u64).range(1..=86400))]
    deadline: u64,
}

impl Options {
    /// Whether only what needs a GPU is to run.
    pub fn gpu(&self) -> bool {
        self.gpu
    }
}

/// One line of the table at the end.
struct Row {
    name: String,
    minutes: f64,
    outcome: Outcome,
    /// Tests that had to be executed; none for a step.
    floor: Option<usize>,
    complaint: Option<String>,
}

/// Runs everything; the last line is `N passed, N failed, N skipped`.
pub fn run(options: &Options) -> Result<()> {
    if options.gpu {
        return gpu::run(options);
    }
    let root = root();
    if !options.bare {
        setup::prepare(Purpose::Test, options.no_install)?;
    }
    let floors = Floors::read(&root)?;
    let metadata = Metadata::read(&root)?;
    let packages: Vec<&str> = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_none())
        .map(|package| package.name.as_str())
        .collect();
    let mut suites = suites::all(&packages, &target_dir().join("release/softnic"), &logs());
    let is = |suite: &suites::Suite, wanted: &String| suite.name == *wanted || suite.package == *wanted;
    if let Some(unknown) = options.suites.iter().find(|name| !suites.iter().any(|suite| is(suite, name))) {
        let names: Vec<&str> = suites.iter().map(|suite| suite.name.as_str()).collect();
        return Err(refused(format!("no suite `{unknown}`; there are: {}", names.join(", "))));
    }
    let mut rows = Vec::new();
    if options.suites.is_empty() {
        steps(&root, options, &mut rows);
    } else {
        suites.retain(|suite| options.suites.iter().any(|wanted| is(suite, wanted)));
        rows.push(release_build(&root));
    }
    for suite in &suites {
        let mut command = Command::new(&suite.command[0]);
        command.args(&suite.command[1..]).current_dir(&root);
        // A bare machine has no libibverbs that could find the NIC, and no compiler was fetched; there its tests may skip.
        let ours = |name: &str| ["REQUIRE", cuda_wheels::VARIABLE].contains(&name);
        let kept = suite.environment.iter().filter(|(name, _)| !(options.bare && ours(name)));
        command.envs(kept.cloned());
        if options.full {
            command.env("SOFTNIC_TEST_FULL", "1");
        }
        suite.nic.iter().try_for_each(suites::UnderNic::prepare)?;
        let (minutes, log) = logged(&suite.name, command)?;
        let outcome = Outcome::of_log(&log.text);
        let executed = outcome.passed + outcome.failed;
        let complaint = complaint(&log, &outcome)
            .or_else(|| if options.bare { None } else { floors.complaint(&suite.name, executed) })
            .or_else(|| if options.bare { None } else { suite.nic.as_ref()?.complaint() });
        let floor = floors.of(&suite.name);
        rows.push(finish(Row { name: suite.name.clone(), minutes, outcome, floor, complaint }, &log));
    }
    summary(&rows, &format!("of {BUDGET_MINUTES:.0} on two cores from nothing"))
}

/// Everything that is no test program. A step that fails counts as one failed test; a good one counts as nothing.
fn steps(root: &Path, options: &Options, rows: &mut Vec<Row>) {
    let xtask = std::env::current_exe().unwrap_or_else(|_| "xtask".into()).to_string_lossy().into_owned();
    let xtask = xtask.as_str();
    let steps: [(&str, &[&str]); 6] = [
        ("tidy", &[xtask, "tidy"]),
        ("fmt", &["cargo", "fmt", "--all", "--check"]),
        ("clippy", &["cargo", "clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        ("headers", &[xtask, "headers", "--check"]),
        ("figure 4, dry run", &[xtask, "figure", "4", "--dry-run"]),
        ("figure 5, dry run", &[xtask, "figure", "5", "--dry-run"]),
    ];
    // First, since the suites and the symbol checks use what it makes.
    rows.push(release_build(root));
    // The headers' check reads the system's headers, which a bare machine lacks.
    for (name, words) in steps.iter().filter(|(name, _)| !(options.bare && *name == "headers")) {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(root);
        rows.push(step(name, logged(name, command)));
    }
    let since = Instant::now();
    let problems = symbols::check(&target_dir().join("release"), &packages::programs().collect::<Vec<_>>());
    let complaint = match problems {
        Ok(problems) if problems.is_empty() => None,
        Ok(problems) => Some(problems.join("; ")),
        Err(error) => Some(format!("{error:#}")),
    };
    let row = Row {
        name: "symbols".into(),
        minutes: minutes(since),
        outcome: Outcome::default(),
        floor: None,
        complaint,
    };
    rows.push(finish(row, &Log::default()));
    // On a bare machine everything below is without it.
    if !options.bare {
        rows.extend(bare::RUNS.iter().map(|(name, arguments)| without_rdma_core(root, name, arguments)));
    }
}

/// What skips here skips on purpose, and runs in its own suite: it is not counted.
fn without_rdma_core(root: &Path, name: &str, arguments: &[&str]) -> Row {
    let run = bare::folder(&target_dir()).and_then(|folder| {
        let mut command = bare::command(arguments, &folder);
        command.current_dir(root);
        let (minutes, log) = logged(name, command)?;
        Ok((minutes, bare::complaint(&log.text, &folder), log))
    });
    let (minutes, unnoticed, log) =
        run.unwrap_or_else(|error| (0.0, None, Log { text: format!("{error:#}"), ..Log::default() }));
    let complaint = if log.ended == Some(Ended::Well) { unnoticed } else { Some(ended(log.ended)) };
    finish(Row { name: name.to_owned(), minutes, outcome: Outcome::default(), floor: None, complaint }, &log)
}

/// Builds the programs that the tests start.
fn release_build(root: &Path) -> Row {
    say!("building the release programs, some minutes the first time");
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--locked"]).current_dir(root);
    command.args(packages::apps().flat_map(|app| ["-p", app.name]));
    step("release build", logged("release build", command))
}

fn step(name: &str, run: Result<(f64, Log)>) -> Row {
    let (minutes, log) =
        run.unwrap_or_else(|error| (0.0, Log { text: format!("{error:#}"), ..Log::default() }));
    let complaint = (log.ended != Some(Ended::Well)).then(|| ended(log.ended));
    // A step counts no tests, but what it left out is said with the tests that were.
    let outcome = Outcome { skips: Outcome::of_log(&log.text).skips, ..Outcome::default() };
    finish(Row { name: name.to_owned(), minutes, outcome, floor: None, complaint }, &log)
}

/// The log of one program.
#[derive(Default)]
struct Log {
    text: String,
    path: PathBuf,
    ended: Option<Ended>,
}

fn logged(name: &str, mut command: Command) -> Result<(f64, Log)> {
    say!("{name} …");
    let since = Instant::now();
    let path = logs().join(format!("{}.log", name.replace([' ', ','], "-")));
    let ended = run_logged(&mut command, &path, LIMIT)?;
    let text =
        String::from_utf8_lossy(&fs::read(&path).with_context(|| format!("reading {}", path.display()))?)
            .into_owned();
    Ok((minutes(since), Log { text, path, ended: Some(ended) }))
}

/// Where logs, and configurations and counters of NICs, lie.
fn logs() -> PathBuf {
    target_dir().join("xtask-test")
}

fn minutes(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / 60.0
}

/// What is wrong with a suite apart from failed tests.
fn complaint(log: &Log, outcome: &Outcome) -> Option<String> {
    if outcome.ignored > 0 {
        return Some(format!(
            "{} tests are marked #[ignore]; need! is the way to skip (INV-9)",
            outcome.ignored
        ));
    }
    // A program that crashed, hung or did not compile has no result line for it.
    (log.ended != Some(Ended::Well) && outcome.failed == 0).then(|| ended(log.ended))
}

fn ended(ended: Option<Ended>) -> String {
    match ended {
        Some(Ended::Well) => "ended well".into(),
        Some(Ended::Status(code)) => format!("ended with status {code}"),
        Some(Ended::Signal) => "was ended by a signal".into(),
        Some(Ended::TimedOut) => format!("took longer than {} minutes", LIMIT.as_secs() / 60),
        None => "did not start".into(),
    }
}

/// Prints how it went, with the end of the log when it went wrong.
fn finish(mut row: Row, log: &Log) -> Row {
    if row.complaint.is_some() && row.outcome.failed == 0 {
        row.outcome.failed = 1;
    }
    if row.outcome.failed > 0 {
        let lines: Vec<&str> = log.text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| say!("    {line}"));
        if !log.path.as_os_str().is_empty() {
            say!("    (whole log: {})", log.path.display());
        }
    }
    row.outcome.table.iter().for_each(|line| say!("    {line}"));
    say!("{}", line(&row));
    row
}

fn line(row: &Row) -> String {
    let outcome = &row.outcome;
    let result = if outcome.failed > 0 { "FAILED" } else { "ok" };
    let skipped =
        if outcome.skips.is_empty() { String::new() } else { format!(", {} skipped", outcome.skips.len()) };
    let counts = match outcome.passed + outcome.failed + outcome.skips.len() {
        0 => String::new(),
        _ => format!("{} passed, {} failed{skipped}", outcome.passed, outcome.failed),
    };
    let floor = row.floor.map_or_else(String::new, |floor| format!(" (floor {floor})"));
    let complaint = row.complaint.as_ref().map_or_else(String::new, |complaint| format!("  {complaint}"));
    format!("{:22} {result:6} {:5.1} min  {counts}{floor}{complaint}", row.name, row.minutes)
}

/// The table, every SKIP, and the last line.
fn summary(rows: &[Row], budget: &str) -> Result<()> {
    say!();
    rows.iter().for_each(|row| say!("{}", line(row)));
    let total: f64 = rows.iter().map(|row| row.minutes).sum();
    say!("{:22} {:6} {total:5.1} min  {budget}", "all", "");
    say!();
    rows.iter().flat_map(|row| &row.outcome.skips).for_each(|skip| say!("{skip}"));
    say!("{}", last_line(rows));
    match rows.iter().any(|row| row.outcome.failed > 0) {
        true => bail!("not all tests passed"),
        false => Ok(()),
    }
}

fn last_line(rows: &[Row]) -> String {
    let sum = |of: fn(&Outcome) -> usize| rows.iter().map(|row| of(&row.outcome)).sum::<usize>();
    let (passed, failed) = (sum(|outcome| outcome.passed), sum(|outcome| outcome.failed));
    format!("{passed} passed, {failed} failed, {} skipped", sum(|outcome| outcome.skips.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(passed: usize, failed: usize, skips: &[&str]) -> Row {
        let skips = skips.iter().map(|skip| (*skip).to_owned()).collect();
        Row {
            name: "x".into(),
            minutes: 0.0,
            outcome: Outcome { passed, failed, skips, ..Outcome::default() },
            floor: None,
            complaint: None,
        }
    }

    #[test]
    fn the_last_line_adds_up() {
        assert_eq!(last_line(&[row(3, 1, &["SKIP a: b"]), row(4, 0, &[])]), "7 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_program_that_died_without_a_result_is_one_failure() {
        let log = Log { ended: Some(Ended::Signal), ..Log::default() };
        let complaint = complaint(&log, &Outcome { passed: 5, ..Outcome::default() });
        assert!(complaint.is_some());
        let row = finish(Row { complaint, ..row(5, 0, &[]) }, &log);
        assert_eq!(row.outcome.failed, 1);
    }

    #[test]
    fn an_ignored_test_is_a_complaint() {
        let log = Log { ended: Some(Ended::Well), ..Log::default() };
        assert!(
            complaint(&log, &Outcome { ignored: 1, ..Outcome::default() }).unwrap().contains("#[ignore]")
        );
        assert_eq!(complaint(&log, &Outcome::default()), None);
    }
}
