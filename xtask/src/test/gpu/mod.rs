//! `test --gpu`: all `gpu_*` tests on a GPU machine, from a bundle (no cargo, git, network) or a checkout.
//!
//! Test programs run under the software NIC where their suites do, one test at a time. One that hangs is
//! ended at its deadline, and the tests behind it run in a new process. A passed process is written down, so
//! that a cut run resumes. Each suite has its own floor for a GPU (`gpu` in `xtask/floors.toml`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use super::floors::Floors;
use super::jobs::release_build;
use super::row::{Log, Row, finish, minutes, summary};
use super::suites::{self, Suite};
use crate::carried::{self, Manifest, TestProgram};
use crate::gpu_machine::GpuMachine;
use crate::process::Ended;
use crate::refused::refused;
use crate::{stop, workspace};

mod attempt;
mod cuda_post;
mod passed;
pub mod programs;

use attempt::Attempt;
use passed::Passed;

#[derive(Args, Default)]
pub struct GpuOptions {
    /// With --gpu: where logs and the list of what passed go.
    #[arg(long, value_name = "DIR", requires = "gpu")]
    out: Option<PathBuf>,
    /// With --gpu: leave out processes that passed before, by --out's list, with these programs and GPU.
    #[arg(long, requires = "gpu")]
    resume: bool,
    /// With --gpu: seconds after which a test program is ended; a destructive test has a minute at most.
    #[arg(long, value_name = "SECONDS", requires = "gpu", default_value = "540", value_parser = clap::value_parser!(u64).range(1..=86400))]
    deadline: u64,
}

struct Run<'a> {
    machine: &'a GpuMachine,
    gpu: String,
    floors: &'a Floors,
    programs: &'a [TestProgram],
    /// Where logs and the list of what passed go.
    out: &'a Path,
    resume: bool,
    deadline: Duration,
}

/// Runs all of it; the last line is `N passed, N failed, N skipped`.
pub fn run(wanted: &[String], options: &GpuOptions) -> Result<()> {
    let machine = GpuMachine::ask()?;
    machine.has_gpu(|why| {
        format!("test --gpu: no GPU here: {why}; what needs none: `cargo xtask test` in a checkout")
    })?;
    let gpu = machine.gpu().unwrap_or_default();
    let mut rows = Vec::new();
    let (programs, floors) = match carried::folder() {
        Some(bundle) => (carried_in(bundle)?, Floors::compiled_in()?),
        None => {
            let packages = programs::packages(&[])?;
            rows.push(release_build()?);
            say!("building the tests of {}", packages.join(", "));
            let floors = Floors::read(&workspace::root())?;
            (programs::with_gpu_tests(programs::build(&packages)?)?, floors)
        }
    };
    let out = options.out.clone().unwrap_or_else(|| workspace::results("test-gpu"));
    let out = std::path::absolute(&out).unwrap_or(out);
    fs::create_dir_all(out.join("logs"))
        .map_err(|error| refused(format!("--out {}: {error}", out.display())))?;
    say!(
        "{gpu}; driver {}, NVRTC {}; results in {}",
        machine.driver.as_deref().unwrap_or("unknown"),
        machine.nvrtc.as_deref().unwrap_or("missing"),
        out.display()
    );
    let us = workspace::us();
    stop::goes_on_with(format!("; go on with: {us} test --gpu --resume --out {}", out.display()));
    let run = Run {
        machine: &machine,
        gpu,
        floors: &floors,
        programs: &programs,
        out: &out,
        resume: options.resume,
        deadline: Duration::from_secs(options.deadline),
    };
    rows.extend(run.suites(wanted)?);
    if wanted.is_empty() {
        rows.push(run.example());
    }
    summary(&rows, "on the GPU")
}

/// Test programs of a bundle, by their own paths.
fn carried_in(bundle: &Path) -> Result<Vec<TestProgram>> {
    let manifest = Manifest::read(bundle)?;
    let here = |test: TestProgram| TestProgram { path: bundle.join(&test.path), ..test };
    Ok(manifest.tests.into_iter().map(here).collect())
}

impl Run<'_> {
    /// Those that were asked for by name or package; all without a name.
    fn suites(&self, wanted: &[String]) -> Result<Vec<Row>> {
        let softnic = workspace::programs().join("softnic");
        let all = suites::all(&programs::packages(&[])?, &softnic, &self.out.join("logs"));
        let mut suites = self.on_gpu(all);
        suites::keep(&mut suites, wanted, " with tests for a GPU")?;
        let mut passed = Passed::open(&self.out.join("passed.jsonl"), self.resume)?;
        suites.iter().map(|suite| self.suite(suite, &mut passed)).collect()
    }

    /// Suites with a floor for the GPU, and one of each package that has such tests but no floor, to name it.
    fn on_gpu(&self, suites: Vec<Suite>) -> Vec<Suite> {
        let has_floor = |suite: &&Suite| self.floors.gpu(&suite.name).is_some();
        let first_without = |suite: &Suite| {
            let of_package = || suites.iter().filter(|other| other.package == suite.package);
            self.programs.iter().any(|program| program.package == suite.package)
                && !of_package().any(|other| has_floor(&other))
                && of_package().next() == Some(suite)
        };
        suites.iter().filter(|suite| has_floor(suite) || first_without(suite)).cloned().collect()
    }

    fn suite(&self, suite: &Suite, passed: &mut Passed) -> Result<Row> {
        let programs: Vec<&TestProgram> =
            self.programs.iter().filter(|program| program.package == suite.package).collect();
        let floor = self.floors.gpu(&suite.name);
        let mark = passed::mark(&programs, suite.nic.is_some(), &self.gpu)?;
        say!("{} …", suite.name);
        let since = Instant::now();
        let _own_address = suite.nic.as_ref().map(suites::UnderNic::prepare).transpose()?;
        let logs = self.out.join("logs");
        let mut attempt = Attempt::new(suite, self.machine, &logs, self.deadline, passed, mark);
        programs.iter().try_for_each(|program| attempt.program(program))?;
        let Attempt { outcome, mut complaints, failed_logs, before: (processes, earlier), .. } = attempt;
        if processes > 0 {
            say!("{}: {processes} processes passed before and are not repeated", suite.name);
        }
        let executed = outcome.passed + outcome.failed;
        complaints.extend(self.floors.gpu_complaint(&suite.name, executed));
        let complaint = (!complaints.is_empty()).then(|| complaints.join("; "));
        let (name, minutes) = (suite.name.clone(), minutes(since) + earlier);
        let log = Log { text: failed_logs, path: logs, ended: Some(Ended::Well), ..Log::default() };
        Ok(finish(Row { name, minutes, outcome, floor, complaint, ..Row::default() }, &log))
    }

    /// The example that needs no Rust, built by `nvcc` where it is.
    fn example(&self) -> Row {
        let (since, mut text) = (Instant::now(), String::new());
        say!("{} …", cuda_post::NAME);
        let tried = cuda_post::run(&workspace::root(), self.out, self.machine, &mut text);
        let complaint = tried.as_ref().err().map(|error| format!("{error:#}"));
        let outcome = tried.unwrap_or_default();
        let log = Log { text, ended: Some(Ended::Well), ..Log::default() };
        let name = cuda_post::NAME.to_owned();
        finish(Row { name, minutes: minutes(since), outcome, complaint, ..Row::default() }, &log)
    }
}

#[cfg(test)]
mod tests;
