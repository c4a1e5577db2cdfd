//! `cargo xtask bench-models`: our engine beside a peer that runs the same ONNX file, in turns.
//!
//! With --gpu the peer is PyTorch, four ways. Without, it is ONNX Runtime called from Python. A point is a
//! model in a precision with all its repetitions: a run that was cut goes on with the next model.
//! `experiments/bench-models/README.md` says what is measured.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use experiment::point::{Point, needs_gpu};
use experiment::run::{self, Extra};
use experiment::spec::Extent;
use experiment::table::number;
use experiment::{Experiment, resume};
use serde_json::json;

use crate::figure::models::{Profiler, measured_on};
use crate::figure::{self, begin, judged, known};
use crate::gpu_machine::GpuMachine;
use crate::refused::{nearest, refused};
use crate::shell::quoted;
use crate::{progress, setup, stop, workspace, zoo};

mod peer;
mod turns;

use peer::Peer;
use turns::{ON_THE_CPU, POINT, Turns, WAYS, difference_name, period_name};

/// What a spec calls these points.
pub const APP: &str = "bench-models";
/// Longest that the profiler may take: its first run compiles and chooses.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Args, Clone, Default)]
pub struct Options {
    /// On a GPU, beside PyTorch; without, on the processor beside ONNX Runtime from Python.
    #[arg(long)]
    pub gpu: bool,
    /// Two short repetitions, to see whether it works.
    #[arg(long)]
    pub quick: bool,
    /// Continue a run that was interrupted with the models that are missing.
    #[arg(long)]
    pub resume: bool,
    /// Update the committed `measured.json`; refuses a tree with changes.
    #[arg(long)]
    pub record: bool,
    /// Say what would be measured, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Folder of the results [default: results/bench-models, with --gpu results/bench-models-gpu].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Measure only the series whose names, in experiments/bench-models/spec.toml, contain this.
    #[arg(long, value_name = "TEXT", conflicts_with = "record")]
    pub only: Option<String>,
    /// The Python that has the peer's packages [default: python3].
    #[arg(long, value_name = "PROGRAM")]
    pub python: Option<String>,
    /// Install nothing; if a package is missing, print the command and end with exit status 2.
    #[arg(long)]
    pub no_install: bool,
}

impl Options {
    fn how(&self) -> resume::Options {
        let name = if self.gpu { "bench-models-gpu" } else { APP };
        let out = self.out.clone().unwrap_or_else(|| workspace::results(name));
        let extent = if self.quick { Extent::Quick } else { Extent::Normal };
        let switches = [("--gpu", self.gpu), ("--quick", self.quick), ("--record", self.record)];
        let mut words = vec![workspace::us(), APP.to_owned()];
        words.extend(switches.iter().filter(|(_, given)| *given).map(|(name, _)| (*name).to_owned()));
        for (name, value) in [("--only", &self.only), ("--python", &self.python)] {
            words.extend(value.iter().flat_map(|value| [name.to_owned(), quoted(value)]));
        }
        words.push(format!("--resume --out {}", quoted(&out.display().to_string())));
        let again = format!("go on with: {}", words.join(" "));
        resume::Options { extent, resume: self.resume, record: self.record, out, again }
    }

    /// The series of one side, as far as they are asked for; also those of the other side.
    fn series(&self, experiment: &mut Experiment) -> Result<Vec<String>> {
        let all = experiment.spec.grid(Extent::Normal).series;
        let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|name| needs_gpu(name) == self.gpu);
        let only = self.only.clone().unwrap_or_default();
        experiment.spec.keep(|name| ours.iter().any(|one| one == name) && name.contains(&only));
        let (nearest, there) = (nearest(&only, &ours), ours.join(", "));
        let why = format!("--only {only}: no series is called so{nearest}; there are: {there}");
        ensure!(!experiment.spec.grid(Extent::Normal).series.is_empty(), refused(why));
        Ok(others)
    }
}

/// What is measured with, stand-ins in tests.
struct Programs {
    profiler: PathBuf,
    /// Folder of the peers' scripts.
    peers: PathBuf,
    /// Folder of the models' files.
    store: PathBuf,
    /// Longest that a point may take.
    limit: Duration,
}

/// Refuses `figure bench-models`, which has options of its own.
pub fn no_figure(_: Experiment, _: &figure::Options) -> Result<()> {
    Err(refused(format!("{APP}: give the command of that name, not `figure`")))
}

/// Measures and reports.
pub fn run(options: &Options) -> Result<()> {
    let mut experiment = Experiment::read(&workspace::root().join("experiments"), APP)?;
    let (others, how) = (options.series(&mut experiment)?, options.how());
    if options.dry_run {
        let grid = experiment.spec.grid(how.extent);
        say!("{APP}: {}", experiment.spec.title);
        say!("{} repetitions of each, in turns with the peer: {}", grid.repeat, grid.series.join(", "));
        say!("a point takes some minutes; `timeout 540 … --resume` measures in parts");
        say!("results: {}", how.out.display());
        judged(&experiment, false).iter().for_each(|line| say!("{line}"));
        return Ok(());
    }
    let _locked = begin(&experiment.spec, &how, &known)?;
    let machine = if options.gpu { GpuMachine::ask()? } else { GpuMachine::default() };
    if options.gpu {
        machine.has_gpu(|why| format!("{APP} --gpu: no GPU here: {why}"))?;
    } else {
        setup::onnx_runtime(options.no_install)?;
    }
    workspace::build_programs("the profiler", &["-p", "profiler"])?;
    let profiler = workspace::programs().join("profiler");
    let peers = workspace::root().join("experiments/peers");
    let programs = Programs { profiler, peers, store: zoo::folder(), limit: POINT };
    execute(&experiment, (options, &how), others, &machine, &programs)
}

fn execute(
    experiment: &Experiment,
    (options, how): (&Options, &resume::Options),
    left_out: Vec<String>,
    machine: &GpuMachine,
    programs: &Programs,
) -> Result<()> {
    let (logs, mut grid) = (how.out.join("logs"), experiment.spec.grid(how.extent));
    let model = |series: &String| Some(series.split_once('/')?.1.to_owned());
    let file = |model: &str| programs.store.join(format!("{model}.seeded.onnx"));
    if let Some(model) = grid.series.iter().filter_map(model).find(|model| !file(model).is_file()) {
        let (missing, us) = (file(&model), workspace::us());
        return Err(refused(format!("{}: not built; do it with: {us} zoo build", missing.display())));
    }
    let script = programs.peers.join(if options.gpu { "compiled_graph.py" } else { "onnxruntime_cpu.py" });
    let mut peer = Peer::new(options.python.as_deref(), script, &logs);
    let hello = peer.start(peer::STARTED)?;
    let mut provenance = workspace::provenance()?;
    for (name, version) in hello["versions"].as_object().into_iter().flatten() {
        provenance.versions.insert(name.clone(), version.as_str().unwrap_or_default().to_owned());
    }
    if options.gpu {
        measured_on(machine, &mut provenance);
    }
    // A point has all its repetitions.
    let rounds = std::mem::replace(&mut grid.repeat, 1);
    let profiler = Profiler { program: &programs.profiler, machine, logs: &logs, limit: LIMIT };
    let mut bench = Turns {
        experiment,
        profiler,
        peer,
        store: &programs.store,
        rounds,
        limit: programs.limit,
        provenance: &provenance,
    };
    stop::goes_on_with(format!("; finished points are in {}, {}", how.out.display(), how.again));
    let points = progress::measure(experiment, how, &provenance, &grid, &mut bench)?;
    let mut taken = points.points.iter().filter(|point| point.has_numbers());
    let lines = taken.clone().flat_map(|point| lines(point, &experiment.spec.values)).collect();
    let timers = json!(taken.next().map(|point| vec![&point.detail["timer"]]));
    run::report(experiment, how, &points, &Extra { lines, timers, left_out, ..Extra::default() })
}

/// A point's printed lines: the ways, the parts of the start, ways with other outputs, missing numbers.
fn lines(point: &Point, names: &[String]) -> Vec<String> {
    let value = |name: &str| number(point.values.get(name).copied());
    let way = |way: &&str| format!("{way} {}", value(&period_name(way)));
    let all = if needs_gpu(&point.series) { &WAYS[..] } else { &ON_THE_CPU };
    let ways: Vec<String> = all.iter().map(way).collect();
    let ours = format!(
        "{}: µs: ours {}; peer: {}; fastest {}",
        point.series,
        value("ours_us"),
        ways.join(", "),
        point.detail["fastest"]
    );
    let part = |(name, ms): (&String, &f64)| {
        Some(format!("{} {}", name.strip_prefix("start_ms/")?, number(Some(*ms))))
    };
    let start: Vec<String> = point.values.iter().filter_map(part).collect();
    let failed = point.detail["failed"].as_object().into_iter().flatten();
    let failed = failed.map(|(way, why)| format!("  {way}: n/a: {}", why.as_str().unwrap_or_default()));
    let allowed = point.detail["allowed_difference"].as_f64().unwrap_or(f64::INFINITY);
    let other = all.iter().filter_map(|way| {
        let apart = point.values.get(&difference_name(way)).copied().filter(|apart| *apart > allowed)?;
        Some(format!("  {way}: its outputs differ from ours by {apart:.1e}, at most {allowed:.0e}"))
    });
    let absent = names
        .iter()
        .filter(|name| needs_gpu(&point.series) && !point.values.contains_key(*name) && !name.contains("_n"));
    let absent = absent.map(|name| format!("  {name}: n/a: the profiler's line does not say it"));
    [ours, format!("  ms from process start to first answer: {}", start.join(", "))]
        .into_iter()
        .chain(failed)
        .chain(other)
        .chain(absent)
        .collect()
}

#[cfg(test)]
mod tests;
