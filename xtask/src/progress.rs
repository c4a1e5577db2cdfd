//! How far a measurement is: a bar on a terminal, a line now and then elsewhere.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

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
    /// When the first point of this run began, and how many were there already.
    begun: Cell<Option<(Instant, u64)>>,
}

impl Progress {
    /// Of `total` points; `template` as indicatif has it.
    pub fn new(total: u64, template: &str) -> Result<Progress> {
        let bar = ProgressBar::new(total);
        bar.set_style(ProgressStyle::with_template(template).context("the bar's template")?);
        Ok(Progress { bar, plain: !std::io::stderr().is_terminal(), total, begun: Cell::new(None) })
    }

    /// So many are done, and `what` is measured now.
    pub fn show(&self, done: u64, what: &str) {
        self.bar.set_position(done);
        self.bar.set_message(what.to_owned());
        let (since, before) = self.begun.get().unwrap_or_else(|| (Instant::now(), done));
        self.begun.set(Some((since, before)));
        if self.plain && is_told(done, self.total) {
            let left = left(since.elapsed(), done - before, self.total - done);
            let left = left.map_or_else(String::new, |left| format!("; {} left", about(left)));
            tell!("{} of {}: {what}{left}", done + 1, self.total);
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

/// Time for `more` points at the mean time of the `done` ones of this run; none before the first.
fn left(since: Duration, done: u64, more: u64) -> Option<Duration> {
    (done > 0).then(|| since.mul_f64(more as f64 / done as f64))
}

/// A remaining time: `about 40 s`, `about 3 min`.
pub fn about(time: Duration) -> String {
    match time.as_secs_f64().ceil() {
        seconds if seconds < 100.0 => format!("about {seconds:.0} s"),
        seconds => format!("about {:.0} min", seconds / 60.0),
    }
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
        let mut us = crate::process::one_test("progress::tests::a_reader_that_goes_away_is_no_panic");
        us.env(CHILD, "1").stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = us.stdout(std::process::Stdio::null()).spawn().unwrap();
        drop(child.stderr.take());
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn the_time_left_is_that_of_the_points_of_this_run() {
        let s = Duration::from_secs;
        for (since, done, more, said) in [
            (s(10), 0, 72, None),
            (s(10), 5, 20, Some("about 40 s")),
            (s(100), 10, 18, Some("about 3 min")),
            (s(7), 7, 1, Some("about 1 s")),
        ] {
            assert_eq!(left(since, done, more).map(about).as_deref(), said, "{done} done");
        }
    }

    #[test]
    fn a_run_gives_some_lines_and_not_too_many() {
        for total in [1, 5, 12, 13, 72, 660] {
            let told = (0..total).filter(|at| is_told(*at, total)).count() as u64;
            assert!(told >= total.min(6) && told <= LINES, "{told} of {total}");
        }
    }
}
