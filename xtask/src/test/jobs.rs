//! What a run consists of, in which order, and what runs beside what.
//!
//! Three lanes: one builds for users and lints, one builds test programs and runs most suites, one runs
//! suites that wait more than they compute. Cargo's lock on each target folder keeps its builds apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::floors::Floors;
use super::gpu::programs;
use super::outcome::Outcome;
use super::row::{Log, Row, complaint, finish};
use super::suites::{self, Suite, UnderNic};
use super::{bare, symbols};
use crate::carried::TestProgram;
use crate::packages;
use crate::process::{Ended, command, run_timed};
use crate::setup::Purpose;
use crate::wheels;
use crate::workspace::{Metadata, root, target_dir};

/// A step that takes longer hangs: the build takes 5 minutes on two quiet cores, ten times that on busy ones.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// Steps that others wait for.
const RELEASE_BUILD: &str = "release build";
const TEST_PROGRAMS: &str = "test programs";
const DIST: &str = "dist";
/// Packages whose suites wait for time-outs of protocols and for peers: they run beside the others.
const WAIT: [&str; 3] = ["softnic", "echo", "generator"];

#[derive(Clone, Copy, Default)]
pub struct Extent {
    /// Named suites alone, without the steps before them.
    pub named: bool,
    pub full: bool,
    pub bare: bool,
    pub no_install: bool,
}

impl Extent {
    /// Whether the tarball is made and tried too. Minutes: the programs are built once more, for old systems.
    fn is_with_dist(self) -> bool {
        !self.named && self.full && !self.bare
    }
}

/// One step or suite.
pub struct Job {
    name: String,
    lane: usize,
    after: &'static [&'static str],
    work: Work,
}

enum Work {
    /// A program, judged by how it ends.
    Step(Vec<String>),
    /// Builds all test programs by cargo with these arguments; keeps what it made and the compiler's words.
    Build(Vec<String>),
    /// What clippy found while they were built.
    Lints,
    /// A program that prints libtest's results.
    Tests(Vec<String>),
    Suite(Suite),
    Symbols,
    WithoutRdmaCore(&'static str),
}

impl Job {
    fn new(name: &str, lane: usize, after: &'static [&'static str], work: Work) -> Job {
        Job { name: name.to_owned(), lane, after, work }
    }

    /// Builds the programs that the tests start.
    fn release_build() -> Job {
        let mut words = ["cargo", "build", "--release", "--locked"].map(str::to_owned).to_vec();
        words.extend(packages::released_apps().flat_map(|app| ["-p".to_owned(), app.name.to_owned()]));
        Job::new(RELEASE_BUILD, 0, &[], Work::Step(words))
    }
}

/// Everything, or named suites alone; in the order of the table at the end.
pub fn plan(suites: Vec<Suite>, extent: Extent) -> Vec<Job> {
    let xtask = std::env::current_exe().unwrap_or_else(|_| "xtask".into()).to_string_lossy().into_owned();
    let built = target_dir().join("debug").display().to_string();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let ours = |line: &str| [vec![xtask.clone()], words(line)].concat();
    let message = "--message-format=json-render-diagnostics";
    let (whole, is_with_dist) = (!extent.named, extent.is_with_dist());
    let starts_programs = |suite: &Suite| {
        suite.nic.is_some() || ["softnic", "softnic-test", "gpu", "xtask"].contains(&suite.package.as_str())
    };
    let mut jobs = Vec::new();
    if whole || suites.iter().any(starts_programs) {
        jobs.push(Job::release_build());
    }
    if whole {
        let all = words(&format!("cargo build --workspace --all-targets --locked {message}"));
        jobs.extend([
            Job::new("fmt", 1, &[], Work::Step(words("cargo fmt --all --check"))),
            Job::new("tidy", 1, &[], Work::Step(ours("tidy"))),
            Job::new(TEST_PROGRAMS, 1, &[], Work::Build(all)),
            Job::new("dry runs", 0, &[], Work::Step(ours("figure all --dry-run"))),
            Job::new("symbols", 0, &[RELEASE_BUILD], Work::Symbols),
        ]);
        jobs.push(Job::new("clippy", 0, &[TEST_PROGRAMS], Work::Lints));
        let doc_tests = words("cargo test --doc --workspace --locked");
        jobs.push(Job::new("doc-tests", 0, &[TEST_PROGRAMS], Work::Tests(doc_tests)));
        if extent.full {
            // Where mdBook is missing it is built first, which takes minutes.
            jobs.push(Job::new("book", 0, &[], Work::Step(ours("docs"))));
        }
        if is_with_dist {
            let packs = if extent.no_install { "dist --no-install" } else { "dist" };
            jobs.push(Job::new(DIST, 0, &[RELEASE_BUILD], Work::Step(ours(packs))));
        }
        if !extent.bare {
            // The headers' check reads the system's headers, which a bare machine lacks.
            let headers = [ours("headers --check --built"), vec![built]].concat();
            jobs.push(Job::new("headers", 1, &[TEST_PROGRAMS], Work::Step(headers)));
        }
    } else {
        let packages: BTreeSet<&str> =
            suites.iter().flat_map(|suite| suites::builds(&suite.package)).collect();
        let mut words = words(&format!("cargo test --no-run --locked {message}"));
        words.extend(packages.iter().flat_map(|package| ["-p".to_owned(), (*package).to_owned()]));
        jobs.push(Job::new(TEST_PROGRAMS, 1, &[], Work::Build(words)));
    }
    // Suites that need no program of the release build come first.
    let (on_nic, plain): (Vec<Suite>, Vec<Suite>) = suites.into_iter().partition(|suite| suite.nic.is_some());
    for suite in plain.into_iter().chain(on_nic) {
        let lane = if WAIT.contains(&suite.package.as_str()) { 2 } else { 1 };
        let after: &[&str] = match starts_programs(&suite) {
            true if is_with_dist && suite.package == "xtask" => &[TEST_PROGRAMS, RELEASE_BUILD, DIST],
            true => &[TEST_PROGRAMS, RELEASE_BUILD],
            false => &[TEST_PROGRAMS],
        };
        jobs.push(Job::new(&suite.name.clone(), lane, after, Work::Suite(suite)));
    }
    // On a bare machine everything runs without it.
    if whole && !extent.bare {
        jobs.extend(bare::PACKAGES.map(|package| {
            let name = format!("without rdma-core, {package}");
            Job::new(&name, 1, &[TEST_PROGRAMS, RELEASE_BUILD], Work::WithoutRdmaCore(package))
        }));
    }
    jobs
}

/// Builds the programs that tests start, and nothing else.
pub fn release_build() -> Result<Row> {
    let (floors, metadata) = (Floors::default(), Metadata { packages: Vec::new() });
    let rows = Run::new(Extent::default(), &floors, &metadata, BTreeMap::new()).all(&[Job::release_build()]);
    rows.into_iter().next().context("one job gives one row")
}

/// What the jobs of one run share.
pub struct Run<'a> {
    extent: Extent,
    floors: &'a Floors,
    metadata: &'a Metadata,
    /// The only folder of `PATH`, by set of packages; none without a package database.
    paths: BTreeMap<Purpose, PathBuf>,
    /// What tests leave there goes with a run that passes.
    temporary: Option<PathBuf>,
    programs: OnceLock<Vec<TestProgram>>,
    /// The log of their build.
    built: OnceLock<String>,
    done: Mutex<BTreeSet<String>>,
    more: Condvar,
}

impl<'a> Run<'a> {
    pub fn new(
        extent: Extent,
        floors: &'a Floors,
        metadata: &'a Metadata,
        paths: BTreeMap<Purpose, PathBuf>,
    ) -> Run<'a> {
        let (programs, built, done, more) = Default::default();
        let temporary = temporary_folder();
        Run { extent, floors, metadata, paths, temporary, programs, built, done, more }
    }

    /// Runs all jobs, each lane's in their order; rows as the jobs.
    pub fn all(&self, jobs: &[Job]) -> Vec<Row> {
        let rows: Vec<OnceLock<Row>> = jobs.iter().map(|_| OnceLock::new()).collect();
        let lanes: BTreeSet<usize> = jobs.iter().map(|job| job.lane).collect();
        let begun = Mutex::new(0);
        std::thread::scope(|scope| {
            for lane in lanes {
                let (rows, begun) = (&rows, &begun);
                scope.spawn(move || {
                    for (job, row) in jobs.iter().zip(rows).filter(|(job, _)| job.lane == lane) {
                        self.wait_for(job.after);
                        {
                            // Held while it is said, so that the numbers stand in their order.
                            let mut begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
                            *begun += 1;
                            say!("step {begun} of {}: {} …", jobs.len(), job.name);
                        }
                        // Whatever becomes of it, the other lanes go on.
                        let _done = DoneOnDrop(self, &job.name);
                        let _ = row.set(self.one(job));
                    }
                });
            }
        });
        let rows: Vec<Row> = rows.into_iter().filter_map(OnceLock::into_inner).collect();
        if rows.iter().all(|row| row.complaint.is_none()) {
            self.temporary.iter().for_each(|folder| _ = fs::remove_dir_all(folder));
        }
        rows
    }

    fn wait_for(&self, names: &[&str]) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        while !names.iter().all(|name| done.contains(*name)) {
            done = self.more.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn one(&self, job: &Job) -> Row {
        let since = Instant::now();
        let (mut row, log) = self.tried(job).unwrap_or_else(|error| {
            let complaint = Some(format!("{error:#}"));
            (Row { complaint, ..Row::default() }, Log::default())
        });
        row.name.clone_from(&job.name);
        if let Work::Suite(suite) = &job.work {
            row.package.clone_from(&suite.package);
        }
        row.minutes = since.elapsed().as_secs_f64() / 60.0;
        row.cpu_minutes = log.used.as_secs_f64() / 60.0;
        finish(row, &log)
    }

    fn tried(&self, job: &Job) -> Result<(Row, Log)> {
        match &job.work {
            Work::Step(words) => {
                let log = self.logged(&job.name, command(words), None)?;
                Ok((self::step(&log), log))
            }
            Work::Build(words) => {
                let log = self.logged(&job.name, self.linting(words), None)?;
                let _ = self.built.set(log.text.clone());
                if log.ended == Some(Ended::Well) {
                    let package = |manifest: &Path| {
                        let mut ours = self.metadata.packages.iter();
                        Some(ours.find(|package| package.manifest_path == manifest)?.name.clone())
                    };
                    let _ = self.programs.set(programs::said_by_cargo(&log.text, package)?);
                }
                Ok((self::step(&log), log))
            }
            Work::Lints => {
                let warnings = warnings(self.built.get().context("nothing was built")?);
                let count = warnings.lines().filter(|line| line.starts_with("warning")).count();
                let complaint =
                    (count > 0).then(|| format!("{count} warnings, in the log of `{TEST_PROGRAMS}`"));
                Ok((Row { complaint, ..Row::default() }, Log { text: warnings, ..Log::default() }))
            }
            Work::Tests(words) => {
                let log = self.logged(&job.name, self.linting(words), None)?;
                Ok((self.judged(&job.name, &log, None), log))
            }
            Work::Suite(suite) => {
                let _own_address = suite.nic.as_ref().map(UnderNic::prepare).transpose()?;
                // Bare machines have no libibverbs to find the NIC, and no compiler: tests may skip.
                let kept: &[_] = if self.extent.bare { &[] } else { &suite.environment };
                let log = self.test_programs(&suite.package, &job.name, |program| {
                    let mut command = suite.command(program);
                    command.args(suite.words()).envs(kept.iter().cloned());
                    command
                })?;
                Ok((self.judged(&job.name, &log, suite.nic.as_ref()), log))
            }
            Work::WithoutRdmaCore(package) => {
                let folder = bare::folder(&target_dir())?;
                let log = self.test_programs(package, &job.name, |program| {
                    let mut command = Command::new(program);
                    bare::hide(&mut command, &folder);
                    command
                })?;
                // What skips here skips on purpose, and runs in its own suite: it is not counted.
                let well = log.ended == Some(Ended::Well);
                let complaint = if well { bare::complaint(&log.text, &folder) } else { Some(log.ending()) };
                Ok((Row { complaint, ..Row::default() }, log))
            }
            Work::Symbols => {
                let programs = packages::released().collect::<Vec<_>>();
                let problems = symbols::check(&target_dir().join("release"), &programs)?;
                let complaint = (!problems.is_empty()).then(|| problems.join("; "));
                Ok((Row { complaint, ..Row::default() }, Log::default()))
            }
        }
    }

    /// A cargo whose compiler is clippy's, which lints while it compiles: a pass of its own would type-check
    /// all crates again. Named suites use the compiler of the user's other builds.
    fn linting(&self, words: &[String]) -> Command {
        let mut command = command(words);
        if !self.extent.named {
            command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
        }
        command
    }

    /// Counts of a suite's log, against its floor and its NIC's counters.
    fn judged(&self, name: &str, log: &Log, nic: Option<&UnderNic>) -> Row {
        let outcome = Outcome::of_log(&log.text);
        let executed = outcome.passed + outcome.failed;
        let is_bare = self.extent.bare;
        let complaint = complaint(log, &outcome)
            .or_else(|| if is_bare { None } else { self.floors.complaint(name, executed) })
            .or_else(|| if is_bare { None } else { nic?.complaint() });
        Row { outcome, complaint, floor: self.floors.of(name), ..Row::default() }
    }

    /// Runs every test program of a package as cargo does, and joins their logs.
    fn test_programs(&self, package: &str, name: &str, start: impl Fn(&Path) -> Command) -> Result<Log> {
        let programs = self.programs.get().context("its test programs were not built")?;
        let mut ours = self.metadata.packages.iter();
        let ours = ours.find(|ours| ours.name == package).and_then(|ours| ours.manifest_path.parent());
        let folder = ours.context("a package without a folder")?;
        let release = target_dir().join("release");
        let mut whole = Log { ended: Some(Ended::Well), ..Log::default() };
        for program in programs.iter().filter(|program| program.package == package) {
            let mut command = start(&program.path);
            command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
            // Programs under test are those that users get.
            name_programs(&mut command, packages::released(), &release);
            let shim =
                programs.iter().find(|program| program.package == "rdma-shim" && program.target == "test-it");
            command.envs(shim.map(|shim| ("SOFTNIC_TEST_SHIM", &shim.path)));
            if self.extent.full {
                command.env("SOFTNIC_TEST_FULL", "1");
                let lint = (!self.extent.bare).then_some(&wheels::ANSIBLE_LINT);
                command.envs(lint.map(|lint| (lint.variable, lint.used())));
            }
            if self.extent.is_with_dist() {
                command.env("SOFTNIC_TEST_DIST", "1");
            }
            let log = self.logged(&format!("{name} {}", program.target), command, Some(package))?;
            whole.used += log.used;
            // The end of a failed suite's log is that of its failed program.
            if log.ended == Some(Ended::Well) {
                whole.text.insert_str(0, &log.text);
            } else {
                whole.text.push_str(&log.text);
            }
            if whole.ended == Some(Ended::Well) {
                (whole.ended, whole.path) = (log.ended, log.path);
            }
        }
        Ok(whole)
    }

    /// `package`: the one under test; its tests find the programs of their own set alone.
    fn logged(&self, name: &str, mut command: Command, package: Option<&str>) -> Result<Log> {
        if command.get_current_dir().is_none() {
            command.current_dir(root());
        }
        let own = package.and_then(suites::purpose).and_then(|purpose| self.paths.get(&purpose));
        let path = own.or_else(|| self.paths.values().next_back());
        command.envs(path.map(|path| ("PATH", path)));
        command.envs(self.temporary.as_ref().map(|folder| ("TMPDIR", folder)));
        let path = logs().join(format!("{}.log", name.replace([' ', ','], "-")));
        let (ended, used) = run_timed(&mut command, &path, LIMIT)?;
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Log { text: String::from_utf8_lossy(&text).into_owned(), path, ended: Some(ended), used })
    }
}

/// Tells a test program where the programs under test lie: as cargo names a package's own, and the launcher.
pub fn name_programs<'a>(command: &mut Command, names: impl Iterator<Item = &'a str>, folder: &Path) {
    command.envs(names.map(|name| (format!("CARGO_BIN_EXE_{name}"), folder.join(name))));
    command.env("SOFTNIC_TEST_LAUNCHER", folder.join("softnic"));
}

/// Makes `TMPDIR` of the programs under test, below the machine's own, where names are short enough for
/// sockets. None: it could not be made, and the machine's own serves.
fn temporary_folder() -> Option<PathBuf> {
    let folder = std::env::temp_dir().join(format!("xtask-{}", std::process::id()));
    let made = fs::create_dir(&folder);
    // Programs of other users take part in some tests.
    made.and_then(|()| fs::set_permissions(&folder, Permissions::from_mode(0o1777))).ok()?;
    Some(folder)
}

/// Says at its end that a job is done.
struct DoneOnDrop<'a>(&'a Run<'a>, &'a str);

impl Drop for DoneOnDrop<'_> {
    fn drop(&mut self) {
        self.0.done.lock().unwrap_or_else(PoisonError::into_inner).insert(self.1.to_owned());
        self.0.more.notify_all();
    }
}

/// A step counts no tests, but what it left out is said with the tests that were.
fn step(log: &Log) -> Row {
    let outcome = Outcome { skips: Outcome::of_log(&log.text).skips, ..Outcome::default() };
    let complaint = (log.ended != Some(Ended::Well)).then(|| log.ending());
    Row { outcome, complaint, ..Row::default() }
}

/// Warnings of compiler and clippy in a build's log, each with its lines. Left out: Cargo's own sums, and
/// what build scripts say of the machine (`warning: PACKAGE@VERSION: …`).
fn warnings(log: &str) -> String {
    let mut is_within = false;
    let lines = log.lines().filter(|line| {
        let is_cargo_s = |text: &str| {
            let word = text.split(' ').next().unwrap_or_default();
            (text.starts_with('`') && text.contains(") generated "))
                || (word.contains('@') && word.ends_with(':'))
        };
        let is_warning = ["warning: ", "warning["].iter().any(|begin| line.starts_with(begin));
        let begins = is_warning && !line.strip_prefix("warning: ").is_some_and(is_cargo_s);
        // An empty line or Cargo's next one ends it; lines of the source begin with their number.
        is_within = begins || (is_within && !is_warning && !line.is_empty());
        is_within
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Where logs, and configurations and counters of NICs, lie.
pub fn logs() -> PathBuf {
    target_dir().join("xtask-test")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::one_test;
    use crate::test::begin;

    /// Says to the test below that it is the run.
    const RUN: &str = "XTASK_TEST_STEPS";

    #[test]
    fn a_run_says_how_long_it_takes_and_which_step_of_how_many_begins() {
        if std::env::var_os(RUN).is_some() {
            let step = |name: &str| Job::new(name, 0, &[], Work::Step(vec!["true".into()]));
            let jobs = ["a first test step", "a second test step"].map(step);
            begin(
                &jobs,
                &toml::from_str(
                    "cpu_minutes = 20\nmodels_cpu_minutes = 4\nserving_cpu_minutes = 3\nwall_minutes = 9\n",
                )
                .unwrap(),
            );
            let floors = Floors::default();
            let metadata = Metadata { packages: Vec::new() };
            Run::new(Extent::default(), &floors, &metadata, BTreeMap::new()).all(&jobs);
            return;
        }
        let name = "test::jobs::tests::a_run_says_how_long_it_takes_and_which_step_of_how_many_begins";
        let said = one_test(name).env(RUN, "1").output().unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        for words in [
            "test: 2 steps; from nothing 20 CPU minutes and 9 minutes on two quiet cores\n",
            "step 1 of 2: a first test step …\n",
            "step 2 of 2: a second test step …\n",
        ] {
            assert!(said.status.success() && text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_named_suite_is_built_with_the_programs_that_its_tests_start() {
        let suites = crate::test::suites::all(&["xtask"], Path::new("softnic"), Path::new("logs"));
        let jobs = plan(suites, Extent { named: true, ..Extent::default() });
        let built = jobs.iter().find(|job| job.name == TEST_PROGRAMS).unwrap();
        let Work::Build(words) = &built.work else { panic!("no build") };
        assert!(words.join(" ").ends_with("-p profiler -p xtask"), "{words:?}");
    }

    #[test]
    fn the_row_of_a_suite_has_its_package() {
        let suites = crate::test::suites::all(&["echo"], Path::new("softnic"), Path::new("logs"));
        let (floors, metadata) = (Floors::default(), Metadata { packages: Vec::new() });
        let run = Run::new(Extent::default(), &floors, &metadata, BTreeMap::new());
        for suite in suites {
            // No program was built: the suite fails.
            let row = run.one(&Job::new(&suite.name.clone(), 0, &[], Work::Suite(suite)));
            assert_eq!((row.name.split('-').next(), &*row.package), (Some("echo"), "echo"));
        }
    }

    #[test]
    fn a_suite_has_the_path_of_its_own_set_of_packages() {
        let paths =
            [(Purpose::Computing, "/computing"), (Purpose::Figure, "/figure"), (Purpose::Full, "/full")];
        let paths = paths.map(|(purpose, folder)| (purpose, PathBuf::from(folder))).into();
        let (floors, metadata) = (Floors::default(), Metadata { packages: Vec::new() });
        let run = Run::new(Extent::default(), &floors, &metadata, paths);
        for (package, path) in [
            (Some("roce"), "/computing"),
            (Some("verbs"), "/figure"),
            (Some("xtask"), "/full"),
            (None, "/full"),
        ] {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "echo $PATH"]);
            let log = run.logged("the path of a test", shell, package).unwrap();
            assert_eq!(log.text.trim_end(), path, "{package:?}");
        }
    }

    #[test]
    fn the_long_run_makes_what_dist_makes_before_the_suite_that_tries_it() {
        let after = |extent: Extent| -> Option<&'static [&'static str]> {
            let suites = crate::test::suites::all(&["xtask"], Path::new("softnic"), Path::new("logs"));
            let jobs = plan(suites, extent);
            let made = jobs.iter().position(|job| job.name == DIST)?;
            let suite = jobs.iter().position(|job| job.name == "xtask")?;
            (made < suite).then(|| jobs[suite].after)
        };
        let full = Extent { full: true, ..Extent::default() };
        assert_eq!(after(full), Some(&[TEST_PROGRAMS, RELEASE_BUILD, DIST][..]));
        for short in [Extent::default(), Extent { named: true, ..full }, Extent { bare: true, ..full }] {
            assert_eq!(after(short), None);
        }
    }

    #[test]
    fn warnings_of_a_build_are_taken_from_its_log_with_their_lines() {
        let log = "warning: a@0.1.0: struct b is larger here\n   Compiling a v0.1.0\nwarning: useless use of `vec!`\n  --> a.rs:1:2\n   |\n27 | vec![1];\n\nwarning: `a` (lib) generated 1 warning\n\
                   {\"reason\":\"build-finished\"}\nwarning[E0001]: b\n";
        assert_eq!(
            warnings(log),
            "warning: useless use of `vec!`\n  --> a.rs:1:2\n   |\n27 | vec![1];\nwarning[E0001]: b\n"
        );
        assert_eq!(warnings("   Compiling a v0.1.0\n"), "");
    }
}
