//! `cargo xtask bench-nic`: how fast the software NIC is, against what two processes can do without one; and
//! `bench-gpu`, what a GPU sends and answers over it. Both are experiments; series are one program's numbers.
//!
//! Every repetition takes each number once, so that a ratio's two numbers share the machine's state. Numbers
//! and aims are in `experiments/bench-nic/spec.toml`, reasons and use without cargo or tree in its README.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use experiment::point::{Key, Point, needs_gpu, poster};
use experiment::run::{self, Extra};
use experiment::spec::Extent;
use experiment::{Experiment, resume};
use measure::{Hosts, Label, Provenance, Revision};

use crate::figure::{self, Nic, Probe, Programs};
use crate::gpu_machine::GpuMachine;
use crate::progress;
use crate::refused::{nearest, refused};
use crate::setup::{self, Purpose};
use crate::shell::quoted;
use crate::workspace::{self, root};
use crate::{carried, measured, process};

mod cores;
mod idle;
pub mod pair;
mod source;

use cores::Cores;
use pair::BenchSetup;
use source::Source;

/// What a spec calls points that are each a number of one program.
pub const APP: &str = "bench-nic";
/// Examples of soft-nic that give numbers: the cost of unused queue pairs, and of a WRITE in the device.
pub const EXAMPLES: [&str; 2] = ["idle_queues", "device"];
/// Longest that one program may take; what was meant to take longer adds its own time.
const LIMIT: Duration = Duration::from_secs(60);
/// A number that failed so often is not tried again: its repetitions would fail one deadline after the other.
const FAILURES: usize = 2;

#[derive(Args, Clone, Default)]
pub struct Options {
    /// Two short repetitions with short waits, to see whether it works.
    #[arg(long)]
    quick: bool,
    /// Repetitions [default: 5, with --quick 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// Folder of the results and the logs [default: results/COMMAND].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Measure only the numbers whose names, in experiments/COMMAND/spec.toml, contain this.
    #[arg(long, value_name = "TEXT", conflicts_with = "record")]
    only: Option<String>,
    /// Programs from this folder (`cargo xtask bundle` makes one): nothing is built, installed, asked of git.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["record", "no_install"])]
    bin: Option<PathBuf>,
    /// Pin no process to a core, and say so in the results.
    #[arg(long)]
    no_pin: bool,
    /// Continue a run that was interrupted: measure the missing points, and repeat those that failed.
    #[arg(long)]
    resume: bool,
    /// Update the committed `measured.json`; refuses a tree with changes.
    #[arg(long)]
    pub record: bool,
    /// Install nothing; if a package is missing, print the command and end with exit status 2.
    #[arg(long)]
    no_install: bool,
}

impl Options {
    /// The same as `figure NAME` was given.
    pub fn of(options: &figure::Options) -> Options {
        let figure::Options { quick, resume, record, no_install, ref out, .. } = *options;
        Options { quick, resume, record, no_install, out: out.clone(), ..Options::default() }
    }

    /// The command that goes on where a run was cut.
    fn again(&self, name: &str, out: &Path) -> String {
        let mut words = vec![workspace::us(), name.to_owned()];
        let switches = [
            ("--quick", self.quick),
            ("--no-pin", self.no_pin),
            ("--record", self.record),
            ("--no-install", self.no_install),
        ];
        words.extend(switches.iter().filter(|(_, given)| *given).map(|(name, _)| (*name).to_owned()));
        words.extend(self.repeat.map(|count| format!("--repeat {count}")));
        words.extend(self.only.as_ref().map(|only| format!("--only {}", quoted(only))));
        let bin = self.bin.as_ref().filter(|_| carried::folder().is_none());
        words.extend(bin.map(|bin| format!("--bin {}", quoted(&bin.display().to_string()))));
        words.push(format!("--resume --out {}", quoted(&out.display().to_string())));
        format!("go on with: {}", words.join(" "))
    }
}

/// Takes all numbers. A missed aim is no failure, it is a result; a number that could not be taken is one.
pub fn run(name: &str, options: &Options) -> Result<()> {
    if options.record && options.quick {
        return Err(refused("--record keeps whole runs; leave out --quick".to_owned()));
    }
    let experiment = chosen(name, options)?;
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
            Programs::build()?;
            match name {
                "bench-nic" => build_examples()?,
                _ => workspace::build_release(&["-p", "echo"])?,
            }
            (Programs::release(), revision)
        }
    };
    execute(options, experiment, &programs, revision, LIMIT)
}

/// Builds [`EXAMPLES`].
pub fn build_examples() -> Result<()> {
    let named = EXAMPLES.iter().flat_map(|name| ["--example", name]);
    workspace::build_release(&["-p", "soft-nic"].into_iter().chain(named).collect::<Vec<_>>())
}

/// The experiment with the numbers that are asked for.
fn chosen(name: &str, options: &Options) -> Result<Experiment> {
    let mut experiment = Experiment::read(&root().join("experiments"), name)?;
    let all = experiment.spec.grid(Extent::Normal).series;
    let only = options.only.clone().unwrap_or_default();
    experiment.spec.keep(|series| series.contains(&only));
    if experiment.spec.grid(Extent::Normal).series.is_empty() {
        let (nearest, there) = (nearest(&only, &all), all.join("; "));
        return Err(refused(format!("--only {only}: no number is called so{nearest}; there are: {there}")));
    }
    Ok(experiment)
}

/// Measures and reports; `programs` are stand-ins in tests.
fn execute(
    options: &Options,
    mut experiment: Experiment,
    programs: &Programs,
    revision: Revision,
    limit: Duration,
) -> Result<()> {
    let machine = experiment.spec.grid(Extent::Normal).series.iter().any(|series| needs_gpu(series));
    let machine = machine.then(GpuMachine::ask).transpose()?;
    if let Some(machine) = &machine {
        machine.has_gpu(|why| format!("{}: no GPU here: {why}", experiment.spec.name))?;
    }
    let here = || if options.bin.is_some() { PathBuf::new() } else { root() };
    let out = options.out.clone().unwrap_or_else(|| here().join("results").join(&experiment.spec.name));
    let _locked = resume::lock(&out)?;
    let logs = out.join("logs");
    let quick = options.quick;
    let plain = Nic::configured(&experiment.spec.nic, &out)?;
    let Nic::Software { config, .. } = &plain else { bail!("the software NIC is one") };
    let pumped = out.join("nic-pump.toml");
    let text = toml::to_string(&with_pump(&experiment.spec.nic)).context("writing nic-pump.toml")?;
    fs::write(&pumped, text).with_context(|| format!("writing {}", pumped.display()))?;
    let nic = &experiment.spec.nic;
    let mut provenance = Probe::ask(&plain, programs, &logs)?.provenance(&plain, nic, revision)?;
    let tools = options.bin.as_deref();
    provenance.versions.insert("perftest".into(), perftest_version(tools, limit));
    machine.iter().for_each(|machine| machine.name_in(&mut provenance));
    let cores = if options.no_pin { None } else { Cores::choose() };
    let pinned = cores
        .as_ref()
        .map_or("not pinned".to_owned(), |cores| format!("{} and {}", cores.of(0), cores.of(1)));
    provenance.nic_options.insert("cores".into(), pinned.into());
    let (hosts, left_out) = with_hosts(&mut experiment, limit)?;
    let extent = if quick { Extent::Quick } else { Extent::Full };
    let mut grid = experiment.spec.grid(extent);
    grid.repeat = options.repeat.unwrap_or(grid.repeat);
    let stand = BenchSetup {
        programs,
        tools,
        hosts,
        plain: config.clone(),
        pumped,
        logs: &logs,
        cores,
        seconds: grid.seconds,
        idle: Duration::from_secs(if quick { 2 } else { 10 }),
        pauses: if quick { 5 } else { 100 },
        rounds: if quick { 300 } else { 3000 },
        limit,
    };
    let how = resume::Options {
        extent,
        resume: options.resume,
        record: options.record,
        out: out.clone(),
        again: options.again(&experiment.spec.name, &out),
    };
    let mut bench =
        Numbers { experiment: &experiment, stand, provenance: &provenance, failed: BTreeMap::new() };
    let measured = progress::measure(&experiment, &how, &provenance, &grid, &mut bench)?;
    let extra = Extra { left_out, ..Extra::default() };
    let reported = run::report(&experiment, &how, &measured, &extra);
    // One program that fails must not hide what the others say: all of them, with why.
    let mut broken: Vec<&Point> = measured.points.iter().filter(|point| !point.is_whole()).collect();
    broken.dedup_by(|one, other| one.series == other.series && one.missing == other.missing);
    broken.iter().for_each(|point| say!("not taken: {}", point.what_is_missing()));
    reported
}

/// The NIC's configuration with the pump on.
fn with_pump(nic: &toml::Table) -> toml::Table {
    let mut nic = nic.clone();
    nic.insert("pump".into(), true.into());
    nic
}

/// Takes one number a point. One that cannot be taken is a point without it, which says why.
struct Numbers<'a> {
    experiment: &'a Experiment,
    stand: BenchSetup<'a>,
    provenance: &'a Provenance,
    failed: BTreeMap<String, usize>,
}

impl run::Bench for Numbers<'_> {
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let failed = self.failed.entry(key.series.clone()).or_default();
        let taken = match *failed < FAILURES {
            true => self.stand.take(&key.series, &Source::of(&self.experiment.spec, &key.series)?),
            false => Err(anyhow::anyhow!("failed {FAILURES} times, and was not tried again")),
        };
        *failed += usize::from(taken.is_err());
        let provenance = Provenance { gpu: poster(&key.series), ..self.provenance.clone() };
        Ok(Point {
            seconds,
            missing: taken.as_ref().err().map(|error| format!("{error:#}")),
            values: taken.into_iter().map(|value| ("value".to_owned(), value)).collect(),
            ..Point::new(&self.experiment.spec.name, key.clone(), Label::Emulated, provenance)
        })
    }
}

/// The two hosts that some numbers need; where there can be none, these are left out, with the reason.
fn with_hosts(experiment: &mut Experiment, limit: Duration) -> Result<(Option<Hosts>, Vec<String>)> {
    /// Room for packets with an MTU of 4096 and every header, as Ethernet's jumbo frames have.
    const MTU: u32 = 4500;
    let series = experiment.spec.grid(Extent::Normal).series;
    let sources: Vec<Source> =
        series.iter().map(|series| Source::of(&experiment.spec, series)).collect::<Result<_>>()?;
    let count = sources.iter().filter(|source| source.needs_hosts()).count();
    if count == 0 {
        return Ok((None, Vec::new()));
    }
    let has_iperf = || {
        let said = process::output(std::process::Command::new("iperf3").arg("--version"), limit);
        said.map(drop).map_err(|_| "iperf3 is missing".to_owned())
    };
    match has_iperf().and_then(|()| Hosts::new(MTU)) {
        Ok(hosts) => Ok((Some(hosts), Vec::new())),
        Err(why) => {
            say!(
                "{count} numbers of the wire are left out: {why} (they need iperf3 and two network namespaces)"
            );
            if count == series.len() {
                bail!("nothing is left to measure");
            }
            let wire = series.into_iter().zip(&sources).filter(|(_, source)| source.needs_hosts());
            let wire: Vec<String> = wire.map(|(name, _)| name).collect();
            experiment.spec.keep(|series| !wire.iter().any(|name| name == series));
            Ok((None, wire))
        }
    }
}

/// `6.06` of `Version: 6.06`.
fn perftest_version(tools: Option<&Path>, limit: Duration) -> String {
    let ours = tools.map(|folder| folder.join("ib_write_bw")).filter(|path| path.is_file());
    let mut asked = std::process::Command::new("sh");
    // It says its version, and ends with status 1.
    asked.args(["-c", "\"$0\" --version || true"]).arg(ours.unwrap_or_else(|| "ib_write_bw".into()));
    let output = process::output(&mut asked, process::WAIT.min(limit));
    let version = output.ok().and_then(|said| Some(said.lines().next()?.rsplit_once(' ')?.1.to_owned()));
    version.unwrap_or_else(|| "missing".into())
}

#[cfg(test)]
mod tests;
