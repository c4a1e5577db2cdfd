//! `cargo xtask test`: set-up, tidy, fmt, clippy, all tests, dry runs of figures, counted, in a time budget.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::Args;

use crate::setup::{self, Purpose};
use crate::workspace::{Metadata, root, target_dir};

mod bare;
mod budget;
mod floors;
pub mod gpu;
mod jobs;
mod outcome;
mod path;
mod row;
mod suites;
pub mod symbols;

use budget::{Budget, BudgetStatus, Meter};
use floors::Floors;
use jobs::Extent;
use row::{Row, line, summary};

/// Steps that are named when a run is above its budget.
const DEAREST: usize = 5;

#[derive(Args, Default)]
pub struct Options {
    /// Suites or packages to run; without any, all, and all steps before them. A suite is a package, or one
    /// on a NIC: PACKAGE-LAYER-PATH, as in verbs-ib and verbs-roce-wire (no PATH: shared memory).
    suites: Vec<String>,
    /// The long matrices too (`SOFTNIC_TEST_FULL=1` for suites), and `dist`'s output in another distribution.
    #[arg(long)]
    full: bool,
    /// Install nothing; if a package is missing, print the command and end with exit status 2.
    #[arg(long)]
    no_install: bool,
    /// On a machine without rdma-core: no set-up, tests may skip, floors do not count; binaries must start.
    #[arg(long)]
    bare: bool,
    /// Only the tests named gpu_*, and examples/cuda_post, on a machine with a GPU; from a bundle too.
    #[arg(long, conflicts_with_all = ["full", "no_install", "bare"])]
    pub gpu: bool,
    #[command(flatten)]
    on_gpu: gpu::GpuOptions,
}

impl Options {
    fn extent(&self) -> Extent {
        let Options { full, bare, no_install, .. } = *self;
        Extent { named: !self.suites.is_empty(), full, bare, no_install }
    }
}

/// Runs everything; the last line is `N passed, N failed, N skipped`.
pub fn run(options: &Options) -> Result<()> {
    if options.gpu {
        return gpu::run(&options.suites, &options.on_gpu);
    }
    let meter = Meter::start();
    let root = root();
    let metadata = Metadata::ours(&root)?;
    let packages: Vec<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let mut suites = suites::all(&packages, &target_dir().join("release/softnic"), &jobs::logs());
    suites::keep(&mut suites, &options.suites, "")?;
    let (floors, budget) = (Floors::read(&root)?, Budget::read(&root)?);
    let (needed, wheels) = suites::needs(&suites);
    let extent = options.extent();
    let needed = if extent.full { Purpose::Full } else { needed };
    let own = suites.iter().filter_map(|suite| suites::purpose(&suite.package));
    let purposes: BTreeSet<Purpose> = own.chain([needed]).collect();
    let jobs = jobs::plan(suites, extent);
    // Only the whole run is what the budget is for.
    let is_judged = !(extent.named || extent.bare || extent.full);
    if is_judged {
        begin(&jobs, &budget);
    }
    if !options.bare {
        setup::prepare_with(needed, &wheels, options.no_install)?;
    }
    let mut paths = BTreeMap::new();
    for purpose in purposes {
        paths.extend(path::folder(&target_dir(), purpose)?.map(|folder| (purpose, folder)));
    }
    if paths.is_empty() {
        say!("test: no dpkg here, so that tests may start programs that set-up does not bring");
    }
    let rows = jobs::Run::new(extent, &floors, &metadata, paths).all(&jobs);
    let taken = meter.taken(&rows);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Refused;

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
            .map(|cpu_minutes| Row { cpu_minutes, ..Row::default() })
            .into();
        let minutes: Vec<f64> = dearest(&rows).iter().map(|row| row.cpu_minutes).collect();
        assert_eq!(minutes, [9.0, 7.0, 4.0, 3.0, 2.0]);
    }
}
