//! `cargo xtask test`: set-up, tidy, fmt, clippy, all tests and dry runs of the figures, counted, against a budget of time.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::process::Ended;
use crate::setup::{self, Purpose};
use crate::workspace::{Metadata, root, target_dir};

mod bare;
mod budget;
mod floors;
pub mod gpu;
mod jobs;
mod outcome;
mod path;
mod suites;
pub mod symbols;

use budget::{Budget, BudgetStatus, Meter};
use floors::Floors;
use outcome::Outcome;

/// Lines of a failed log that are printed.
const TAIL: usize = 120;
/// Of them, lines that the end of the run repeats.
const END: usize = 15;
/// Steps that are named when a run is above its budget.
const DEAREST: usize = 5;

#[derive(Args, Default)]
pub struct Options {
    /// Suites or packages to run; all, and all steps before them, without any. A suite is a package, or one on a NIC:
    /// PACKAGE-LAYER-PATH, as in verbs-ib and verbs-roce-wire (no PATH: shared memory).
    suites: Vec<String>,
    /// The long matrices too (`SOFTNIC_TEST_FULL=1` for the suites), and what `dist` makes, in a root of another distribution.
    #[arg(long)]
    full: bool,
    /// Install nothing; if a package is missing, print the command and end with exit status 2.
    #[arg(long)]
    no_install: bool,
    /// On a machine without rdma-core: no set-up, tests may skip and floors do not count; the binaries have to start.
    #[arg(long)]
    bare: bool,
    /// Only the tests named gpu_*, and examples/cuda_post, on a machine with a GPU; from a bundle too.
    #[arg(long, conflicts_with_all = ["full", "no_install", "bare"])]
    pub gpu: bool,
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
    /// Whether the tarball is made and tried too. Minutes: the programs are built once more, for old systems.
    fn is_with_dist(&self) -> bool {
        self.suites.is_empty() && self.full && !self.bare
    }
}

/// One line of the table at the end.
#[derive(Default)]
struct Row {
    name: String,
    minutes: f64,
    /// CPU time of what was started.
    cpu_minutes: f64,
    outcome: Outcome,
    /// Tests that had to be executed; none for a step.
    floor: Option<usize>,
    complaint: Option<String>,
    /// The end of the log, if it failed.
    end: Vec<String>,
}

/// Runs everything; the last line is `N passed, N failed, N skipped`.
pub fn run(options: &Options) -> Result<()> {
    if options.gpu {
        return gpu::run(options);
    }
    let meter = Meter::start();
    let root = root();
    let metadata = Metadata::ours(&root)?;
    let packages: Vec<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let mut suites = suites::all(&packages, &target_dir().join("release/softnic"), &jobs::logs());
    suites::keep(&mut suites, &options.suites, "")?;
    let (floors, budget) = (Floors::read(&root)?, Budget::read(&root)?);
    let needs = suites::needs(&suites);
    let jobs = jobs::plan(suites, options);
    // Only the whole run is what the budget is for.
    let is_judged = options.suites.is_empty() && !options.bare && !options.full;
    if is_judged {
        begin(&jobs, &budget);
    }
    if let Some(wheels) = needs.filter(|_| !options.bare) {
        let purpose = if options.full { Purpose::Full } else { Purpose::Test };
        setup::prepare_with(purpose, &wheels, options.no_install)?;
    }
    let path = path::folder(&target_dir())?;
    if path.is_none() {
        say!("test: no dpkg here, so that tests may start programs that set-up does not bring");
    }
    let rows = jobs::Run::new(options, &floors, &metadata, path).all(&jobs);
    let taken = meter.taken();
    let within = !is_judged || budget.judge(&taken) != BudgetStatus::Failed;
    if is_judged && budget.judge(&taken) != BudgetStatus::Kept {
        say!();
        say!("the {DEAREST} dearest steps:");
        dearest(&rows).iter().for_each(|row| say!("{}", line(row)));
    }
    let line = if is_judged { budget.line(&taken) } else { taken.words() };
    summary(&rows, &line)?;
    if within { Ok(()) } else { bail!("{line}") }
}

/// Says how long it will take.
fn begin(jobs: &[jobs::Job], budget: &Budget) {
    say!("test: {} steps; from nothing {}", jobs.len(), budget.words());
}

/// Rows that used most of the processors.
fn dearest(rows: &[Row]) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by(|left, right| right.cpu_minutes.total_cmp(&left.cpu_minutes));
    rows.truncate(DEAREST);
    rows
}

/// Builds the programs that tests start.
fn release_build() -> Result<Row> {
    let floors = Floors::default();
    let (options, metadata) = (Options::default(), Metadata { packages: Vec::new() });
    let run = jobs::Run::new(&options, &floors, &metadata, None);
    let rows = run.all(&[jobs::Job::release_build()]);
    rows.into_iter().next().context("one job gives one row")
}

/// The log of one program.
#[derive(Default)]
struct Log {
    text: String,
    path: PathBuf,
    ended: Option<Ended>,
    used: Duration,
}

impl Log {
    fn ending(&self) -> String {
        self.ended.map_or_else(|| "did not start".into(), |ended| ended.to_string())
    }

    /// The last lines of those to keep, without cargo's messages for programs (JSON).
    fn last(&self, count: usize, keep: fn(&str) -> bool) -> Vec<String> {
        let lines: Vec<&str> =
            self.text.lines().filter(|line| !line.starts_with('{') && keep(line)).collect();
        lines[lines.len().saturating_sub(count)..].iter().map(|line| format!("    {line}")).collect()
    }
}

/// Whether a line is a frame of a backtrace, or the place of one.
fn is_of_backtrace(line: &str) -> bool {
    let frame = line.trim_start().trim_start_matches(|letter: char| letter.is_ascii_digit());
    line.starts_with("  ") && ["at ", ": "].iter().any(|begin| frame.starts_with(begin))
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
    (log.ended != Some(Ended::Well) && outcome.failed == 0).then(|| log.ending())
}

/// Prints how it went, with the end of the log when it went wrong, at once: other steps print as well.
fn finish(mut row: Row, log: &Log) -> Row {
    if row.complaint.is_some() && row.outcome.failed == 0 {
        row.outcome.failed = 1;
    }
    let mut said: Vec<String> = Vec::new();
    if row.outcome.failed > 0 {
        said.extend(log.last(TAIL, |_| true));
        row.end = log.last(END, |line| !is_of_backtrace(line));
        if !log.path.as_os_str().is_empty() {
            said.push(format!("    (whole log: {})", log.path.display()));
        }
    }
    said.extend(row.outcome.table.iter().map(|line| format!("    {line}")));
    said.push(line(&row));
    say!("{}", said.join("\n"));
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
    let (minutes, cpu) = (row.minutes, row.cpu_minutes);
    format!("{:28} {result:6} {minutes:5.1} min {cpu:5.1} CPU min  {counts}{floor}{complaint}", row.name)
}

/// What failed, for a reader of the run's end alone: each failed step, the names of its failed tests and its last words.
fn failures(rows: &[Row]) -> Vec<String> {
    let mut said = Vec::new();
    for row in rows.iter().filter(|row| row.outcome.failed > 0) {
        said.extend([String::new(), line(row)]);
        said.extend(row.end.iter().cloned());
        said.extend(row.outcome.failures.iter().map(|name| format!("    failed: {name}")));
    }
    said
}

/// The table, every SKIP, every failure, and the last line.
fn summary(rows: &[Row], budget: &str) -> Result<()> {
    say!();
    rows.iter().for_each(|row| say!("{}", line(row)));
    say!();
    say!("{budget}");
    rows.iter().flat_map(|row| &row.outcome.skips).for_each(|skip| say!("{skip}"));
    failures(rows).iter().for_each(|line| say!("{line}"));
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
    use crate::refused::Refused;

    fn row(passed: usize, failed: usize, skips: &[&str]) -> Row {
        let skips = skips.iter().map(|skip| (*skip).to_owned()).collect();
        let outcome = Outcome { passed, failed, skips, ..Outcome::default() };
        Row { name: "x".into(), outcome, ..Row::default() }
    }

    /// Says to the test below that it is the run.
    const RUN: &str = "XTASK_TEST_NO_SUITE";

    #[test]
    fn an_unknown_suite_is_refused_with_all_names_before_anything_is_set_up() {
        if std::env::var_os(RUN).is_some() {
            let suites = vec!["roec".into()];
            let error = run(&Options { suites, no_install: true, ..Options::default() }).unwrap_err();
            assert!(error.is::<Refused>(), "{error:#}");
            say!("{error:#}");
            return;
        }
        // By this one no package is installed: set-up would say so.
        let folder = std::env::temp_dir().join(format!("xtask-no-suite-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        crate::process::script(&folder.join("dpkg-query"), "#!/bin/sh\n");
        let path = std::env::var("PATH").unwrap_or_default();
        let name = "test::tests::an_unknown_suite_is_refused_with_all_names_before_anything_is_set_up";
        let mut us = crate::process::one_test(name);
        let said = us.env(RUN, "1").env("PATH", format!("{}:{path}", folder.display())).output().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && !text.contains("packages"), "{text}");
        let names =
            text.split("no suite `roec`; the nearest is `roce`; there are: ").nth(1).unwrap_or_default();
        assert!(["roce", "verbs-roce-wire"].iter().all(|suite| names.contains(suite)), "{text}");
    }

    #[test]
    fn the_dearest_steps_are_those_with_most_cpu_time() {
        let rows: Vec<Row> = [3.0, 9.0, 1.0, 4.0, 0.5, 7.0, 2.0]
            .map(|cpu_minutes| Row { cpu_minutes, ..row(1, 0, &[]) })
            .into();
        let minutes: Vec<f64> = dearest(&rows).iter().map(|row| row.cpu_minutes).collect();
        assert_eq!(minutes, [9.0, 7.0, 4.0, 3.0, 2.0]);
    }

    #[test]
    fn the_last_line_adds_up() {
        assert_eq!(last_line(&[row(3, 1, &["SKIP a: b"]), row(4, 0, &[])]), "7 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_program_that_died_without_a_result_is_one_failure() {
        let log = Log { ended: Some(Ended::Signal(11)), ..Log::default() };
        let complaint = complaint(&log, &Outcome { passed: 5, ..Outcome::default() });
        assert_eq!(complaint.as_deref(), Some("was ended by SIGSEGV"));
        let row = finish(Row { complaint, ..row(5, 0, &[]) }, &log);
        assert_eq!(row.outcome.failed, 1);
    }

    #[test]
    fn the_end_repeats_what_failed_and_its_last_words() {
        let words: Vec<String> = (0..200).map(|number| format!("word {number}")).collect();
        let frames = "   4: xtask::run\n             at ./src/main.rs:5:9\n".repeat(30);
        let text = format!("{}\n{frames}{{\"json\":2}}\n", words.join("\n"));
        let log = Log { text, ended: Some(Ended::Status(101)), ..Log::default() };
        let mut failed = row(5, 1, &[]);
        failed.outcome.failures = vec!["it::late".into()];
        let said = failures(&[row(3, 0, &[]), finish(failed, &log), row(4, 0, &[])]);
        assert_eq!((said.len(), said[2].trim(), said[16].trim()), (18, "word 185", "word 199"));
        assert!(said[1].contains("5 passed, 1 failed") && said[17].ends_with("failed: it::late"), "{said:?}");
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
