//! How far a measurement is: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use experiment::Experiment;
use experiment::resume::{Earlier, Options};
use experiment::run::{self, Bench};
use experiment::spec::Grid;
use indicatif::{ProgressBar, ProgressStyle};
use measure::Provenance;

/// Lines that a whole run gives where no bar can be drawn.
const LINES: u64 = 12;

/// Counts points; gone from the terminal when it is dropped.
pub struct Progress {
    bar: ProgressBar,
    plain: bool,
    total: u64,
}

impl Progress {
    /// Of `total` points; `template` as indicatif has it.
    pub fn new(total: u64, template: &str) -> Result<Progress> {
        let bar = ProgressBar::new(total);
        bar.set_style(ProgressStyle::with_template(template).context("the bar's template")?);
        Ok(Progress { bar, plain: !std::io::stderr().is_terminal(), total })
    }

    /// So many are done, and `what` is measured now.
    pub fn show(&self, done: u64, what: &str) {
        self.bar.set_position(done);
        self.bar.set_message(what.to_owned());
        if self.plain && is_told(done, self.total) {
            tell!("{} of {}: {what}", done + 1, self.total);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Measures what is missing of `grid`, and shows how far it is.
pub fn measure(
    experiment: &Experiment,
    how: &Options,
    provenance: &Provenance,
    grid: &Grid,
    bench: &mut dyn Bench,
) -> Result<Earlier> {
    let progress = Progress::new(
        grid.keys().len() as u64,
        "{bar:30} {pos}/{len}  {msg}  {elapsed} of about {duration}",
    )?;
    run::measure(experiment, how, provenance, grid, bench, &mut |done, what| progress.show(done, what))
}

/// Whether the point behind `at` others is one of those that are told of.
fn is_told(at: u64, total: u64) -> bool {
    at.is_multiple_of(total.div_ceil(LINES).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says to the test below that it is the child.
    const CHILD: &str = "XTASK_TEST_CLOSED";

    #[test]
    fn a_reader_that_goes_away_is_no_panic() {
        if std::env::var_os(CHILD).is_some() {
            // The parent closes our stderr first.
            let _ = std::io::read_to_string(std::io::stdin());
            Progress::new(1, "{msg}").unwrap().show(0, "a point");
            return;
        }
        let mut us = std::process::Command::new(std::env::current_exe().unwrap());
        us.args(["--exact", "progress::tests::a_reader_that_goes_away_is_no_panic", "--nocapture"]);
        us.env(CHILD, "1").stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = us.stdout(std::process::Stdio::null()).spawn().unwrap();
        drop(child.stderr.take());
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_run_gives_some_lines_and_not_too_many() {
        for total in [1, 5, 12, 13, 72, 660] {
            let told = (0..total).filter(|at| is_told(*at, total)).count() as u64;
            assert!(told >= total.min(6) && told <= LINES, "{told} of {total}");
        }
    }
}
