//! `cargo xtask bench-nic`: how fast the software NIC is, against what two processes can do without one.
//!
//! Every repetition takes each number once, so that a ratio's two numbers share the machine's mood; the median over the
//! repetitions of each ratio is what counts. `experiments/bench-nic/README.md` says what is measured, and how to run it
//! where there is neither cargo nor a tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use experiment::point;
use measure::{Hosts, Label, Revision};

use crate::figure::{self, Nic, Probe, Programs};
use crate::progress::Progress;
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::workspace::{self, root};
use crate::{carried, measured, process};

mod cores;
mod idle;
mod measures;
mod pair;
mod table;

use cores::Cores;
use measures::{MEASURES, Measure};
use pair::Stand;
use table::{Number, judge, table};

pub use table::Run;

/// Longest that one program may take; what was meant to take longer adds its own time.
const LIMIT: Duration = Duration::from_secs(60);
/// A number that failed so often is not tried again: its repetitions would fail one deadline after the other.
const FAILURES: usize = 2;

/// Options of `bench-nic`.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Two short repetitions, short waits: to see that it works.
    #[arg(long)]
    quick: bool,
    /// Repetitions (5; with --quick 2).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Where the JSON and the logs go.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only the numbers whose names contain this.
    #[arg(long, value_name = "TEXT", conflicts_with = "record")]
    only: Option<String>,
    /// Programs from this folder (`cargo xtask bundle` makes one): nothing is built, installed, or asked of git.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["record", "no_install"])]
    bin: Option<PathBuf>,
    /// Leave it to the system which core runs what, and say so in the results.
    #[arg(long)]
    no_pin: bool,
    /// Update the committed `measured.json`; refuses a tree with changes.
    #[arg(long)]
    record: bool,
    /// Measure nothing: put a `bench-nic.json` of another machine into the committed `measured.json`.
    #[arg(long, value_name = "FILE", exclusive = true)]
    record_from: Option<PathBuf>,
    /// Install nothing; what is missing ends the run with exit status 2.
    #[arg(long)]
    no_install: bool,
}

impl Options {
    /// Whether the committed `measured.json` is to be changed.
    pub fn records(&self) -> bool {
        self.record || self.record_from.is_some()
    }
}

/// The NIC as in the figures but for the link layer, which perftest finds by itself; the pump off or on.
fn nic_toml(pump: bool) -> toml::Table {
    let mut nic = toml::toml! {
        link_layer = "ib"
        path = "shm"
        strict = true
        doorbell_order = "strict"
        mtu = 4096
    };
    nic.insert("pump".into(), pump.into());
    nic
}

fn measured_json() -> PathBuf {
    root().join("experiments/bench-nic/measured.json")
}

/// Takes all numbers, prints the table, writes `bench-nic.json`. A missed aim is no failure, it is a result; a number
/// that could not be taken is one.
pub fn run(options: &Options) -> Result<()> {
    if let Some(file) = &options.record_from {
        return record_from(file, &measured_json());
    }
    if options.record && options.quick {
        return Err(refused("--record keeps whole runs; leave out --quick".to_owned()));
    }
    let chosen = chosen(options)?;
    // In a bundle the programs lie beside us.
    let bin = options.bin.clone().or_else(|| carried::folder().map(Path::to_owned));
    let options = &Options { bin, ..options.clone() };
    let (programs, revision) = match &options.bin {
        Some(folder) => (Programs::in_folder(folder)?, workspace::compiled_in_revision()),
        None => {
            let revision = Revision::of(&root());
            if options.record {
                measured::allowed(&revision)?;
            }
            setup::prepare(Purpose::Bench, options.no_install)?;
            figure::build()?;
            build_idle_queues()?;
            (Programs::release(), revision)
        }
    };
    let run = execute(options, &chosen, &programs, revision, LIMIT)?;
    if options.record {
        let path = measured_json();
        measured::record(&path, run)?;
        say!("recorded in {}", path.display());
    }
    Ok(())
}

/// What makes queue pairs that nobody uses: an example of soft-nic's, on its testing driver.
pub fn build_idle_queues() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = std::process::Command::new(cargo)
        .args(["build", "--quiet", "--release", "--locked", "-p", "soft-nic", "--example", "idle_queues"])
        .current_dir(root())
        .status()
        .context("starting cargo build")?;
    if !status.success() {
        bail!("cargo build --release -p soft-nic --example idle_queues failed");
    }
    Ok(())
}

fn chosen(options: &Options) -> Result<Vec<&'static Measure>> {
    let wanted =
        |measure: &&Measure| options.only.as_ref().is_none_or(|only| measure.name.contains(only.as_str()));
    let chosen: Vec<&Measure> = MEASURES.iter().filter(wanted).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = MEASURES.iter().map(|measure| measure.name).collect();
        return Err(refused(format!("--only: no number is called so; there are: {}", names.join("; "))));
    }
    Ok(chosen)
}

/// Measures and reports; `programs` are stand-ins in tests.
fn execute(
    options: &Options,
    chosen: &[&Measure],
    programs: &Programs,
    revision: Revision,
    limit: Duration,
) -> Result<Run> {
    let here = || if options.bin.is_some() { PathBuf::new() } else { root() };
    let out = options.out.clone().unwrap_or_else(|| here().join("results/bench-nic"));
    let logs = out.join("logs");
    let quick = options.quick;
    fs::create_dir_all(&logs).map_err(|error| refused(format!("--out {}: {error}", out.display())))?;
    let (plain, pumped) = (out.join("nic.toml"), out.join("nic-pump.toml"));
    for (path, pump) in [(&plain, false), (&pumped, true)] {
        let text = toml::to_string(&nic_toml(pump)).context("writing nic.toml")?;
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let fabric = format!("xtask-{}", std::process::id());
    let nic = Nic::Software { config: plain.clone(), fabric };
    let mut provenance = Probe::ask(&nic, programs, &logs)?.provenance(&nic, &nic_toml(false), revision);
    provenance.versions.insert("profile".into(), workspace::profile()?);
    let tools = options.bin.as_deref();
    provenance.versions.insert("perftest".into(), perftest_version(tools, limit));
    let cores = if options.no_pin { None } else { Cores::choose() };
    let (chosen, hosts) = with_hosts(chosen, limit)?;
    let chosen = &chosen[..];
    let stand = Stand {
        programs,
        tools,
        hosts,
        plain,
        pumped,
        logs: &logs,
        cores: cores.clone(),
        seconds: if quick { 0.3 } else { 1.0 },
        idle: Duration::from_secs(if quick { 2 } else { 10 }),
        pauses: if quick { 5 } else { 100 },
        rounds: if quick { 300 } else { 3000 },
        limit,
    };
    let numbers = take_all(&stand, chosen, options.repeat.unwrap_or(if quick { 2 } else { 5 }))?;
    let run = Run {
        machine: provenance.machine.clone(),
        label: Label::Emulated,
        extent: if quick { "quick" } else { "full" }.to_owned(),
        pinned: cores.map(|cores| [cores.of(0), cores.of(1)]),
        aims: judge(&numbers, provenance.cores),
        provenance,
        numbers,
    };
    let path = out.join("bench-nic.json");
    let json = serde_json::to_string_pretty(&run).context("writing bench-nic.json")? + "\n";
    fs::write(&path, json).with_context(|| format!("writing {}", path.display()))?;
    say!("{}\n\n{}", table(&run.numbers, &run.aims), footer(&run));
    say!("results in {}", path.display());
    let broken: Vec<&str> =
        run.numbers.iter().filter(|number| !number.whole()).map(|number| number.name.as_str()).collect();
    if !broken.is_empty() {
        bail!(
            "{} of {} numbers could not be taken ({}); the table says why, logs are in {}",
            broken.len(),
            run.numbers.len(),
            broken.join("; "),
            logs.display()
        );
    }
    Ok(run)
}

/// The numbers that can be taken here, and the two hosts that some of them need; says what is left out, and why.
fn with_hosts<'a>(chosen: &[&'a Measure], limit: Duration) -> Result<(Vec<&'a Measure>, Option<Hosts>)> {
    /// Room for packets with an MTU of 4096 and every header, as Ethernet's jumbo frames have.
    const MTU: u32 = 4500;
    if !chosen.iter().any(|measure| measure.needs_hosts()) {
        return Ok((chosen.to_vec(), None));
    }
    let has_iperf = || {
        let said = process::output(std::process::Command::new("iperf3").arg("--version"), limit);
        said.map(drop).map_err(|_| "iperf3 is missing".to_owned())
    };
    match has_iperf().and_then(|()| Hosts::new(MTU)) {
        Ok(hosts) => Ok((chosen.to_vec(), Some(hosts))),
        Err(why) => {
            let left: Vec<&Measure> =
                chosen.iter().copied().filter(|measure| !measure.needs_hosts()).collect();
            let count = chosen.len() - left.len();
            say!(
                "{count} numbers of the wire are left out: {why} (they need iperf3 and two network namespaces)"
            );
            if left.is_empty() {
                bail!("nothing is left to measure");
            }
            Ok((left, None))
        }
    }
}

/// What the numbers stand on.
fn footer(run: &Run) -> String {
    let from = &run.provenance;
    let pinned = match &run.pinned {
        Some([server, client]) => {
            let which = if server.contains(',') { "" } else { "with the pump: " };
            format!("{which}server on cores {server}, client on cores {client}")
        }
        None => "not pinned".to_owned(),
    };
    format!("{}; {pinned}; {}", point::standing(run.label, from), point::revision(from))
}

fn take_all(stand: &Stand<'_>, chosen: &[&Measure], repeat: u32) -> Result<Vec<Number>> {
    let mut numbers: Vec<Number> = chosen.iter().map(|measure| Number::of(measure)).collect();
    let total = u64::from(repeat) * chosen.len() as u64;
    let mut progress = Progress::new(total, "{bar:30} {pos}/{len}  {msg}  {elapsed}")?;
    let mut at = 0;
    for repetition in 0..repeat {
        for (measure, number) in chosen.iter().zip(&mut numbers) {
            progress.reach(at);
            progress.say(measure.name);
            at += 1;
            // One program that fails must not hide what the others say.
            if (repetition == 0 || !measure.once) && number.errors.len() < FAILURES {
                number.add(stand.take(measure));
            }
        }
    }
    progress.end();
    Ok(numbers)
}

/// `6.06` of `Version: 6.06`.
fn perftest_version(tools: Option<&Path>, limit: Duration) -> String {
    let ours = tools.map(|folder| folder.join("ib_write_bw")).filter(|path| path.is_file());
    let program = ours.unwrap_or_else(|| "ib_write_bw".into());
    let output =
        process::output(std::process::Command::new(program).arg("--version"), process::WAIT.min(limit));
    let version = output.ok().and_then(|said| Some(said.lines().next()?.rsplit_once(' ')?.1.to_owned()));
    version.unwrap_or_else(|| "missing".into())
}

fn record_from(file: &Path, path: &Path) -> Result<()> {
    let run =
        imported(file).map_err(|error| refused(format!("--record-from {}: {error:#}", file.display())))?;
    measured::record(path, run)?;
    say!("recorded in {}", path.display());
    Ok(())
}

/// A `bench-nic.json` of another machine, judged by the aims of today. Errors: it is none, not a full run, not clean, or
/// does not follow from its own values.
pub fn imported(file: &Path) -> Result<Run> {
    let text = fs::read_to_string(file).map_err(|error| refused(error.to_string()))?;
    let mut run: Run =
        serde_json::from_str(&text).map_err(|error| refused(format!("is no bench-nic.json: {error}")))?;
    if run.extent != "full" {
        return Err(refused(format!("is a {} run; measure again, without --quick", run.extent)));
    }
    let problems = measured::problems::<Run>(&format!("{{\"entries\":[{text}]}}"));
    if !problems.is_empty() {
        return Err(refused(problems.join("; ")));
    }
    if let Err(aim) = run.judge_again() {
        return Err(refused(format!("what it says of `{aim}` is not what its numbers give")));
    }
    Ok(run)
}

#[cfg(test)]
mod tests;
