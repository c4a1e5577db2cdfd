//! The rows of a run's table, a step or a suite each; what is said at the end of each and of all.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::outcome::Outcome;
use crate::process::Ended;

/// Lines of a failed log that are printed.
const TAIL: usize = 120;
/// Of them, lines that the end of the run repeats.
const END: usize = 15;

/// One line of the table at the end.
#[derive(Default)]
pub struct Row {
    pub name: String,
    /// That of a suite; empty for a step.
    pub package: String,
    pub minutes: f64,
    /// CPU time of what was started.
    pub cpu_minutes: f64,
    pub outcome: Outcome,
    /// Tests that had to be executed; none for a step.
    pub floor: Option<usize>,
    pub complaint: Option<String>,
    /// The end of the log, if it failed.
    pub end: Vec<String>,
}

#[derive(Default)]
pub struct Log {
    pub text: String,
    pub path: PathBuf,
    pub ended: Option<Ended>,
    pub used: Duration,
}

impl Log {
    pub fn ending(&self) -> String {
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

pub fn minutes(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() / 60.0
}

/// What is wrong with a suite apart from failed tests.
pub fn complaint(log: &Log, outcome: &Outcome) -> Option<String> {
    if outcome.ignored > 0 {
        let ignored = outcome.ignored;
        return Some(format!("{ignored} tests are marked #[ignore]; need! is the way to skip (INV-9)"));
    }
    // A program that crashed, hung or did not compile has no result line for it.
    (log.ended != Some(Ended::Well) && outcome.failed == 0).then(|| log.ending())
}

/// Prints how it went, with the end of the log when it went wrong, at once: other steps print as well.
pub fn finish(mut row: Row, log: &Log) -> Row {
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

pub fn line(row: &Row) -> String {
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

/// What failed, for a reader of the end alone: each failed step, its failed tests and its last words.
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
pub fn summary(rows: &[Row], budget: &str) -> Result<()> {
    say!();
    rows.iter().for_each(|row| say!("{}", line(row)));
    say!();
    say!("{budget}");
    rows.iter().flat_map(|row| &row.outcome.skips).for_each(|skip| say!("{skip}"));
    failures(rows).iter().for_each(|line| say!("{line}"));
    say!("{}", last_line(rows));
    ensure!(rows.iter().all(|row| row.outcome.failed == 0), "not all tests passed");
    Ok(())
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
        let outcome = Outcome { passed, failed, skips, ..Outcome::default() };
        Row { name: "x".into(), outcome, ..Row::default() }
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
