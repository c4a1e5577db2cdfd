//! Figure 7: what a server uses of the CPU while a GPU serves, by how its thread waits.
//!
//! A series is `gpu-LINE-MODEL`, or `gpu-LINE+MODE-MODEL` for a mode other than gpu-graph. A point has its
//! own server, with the line as `--sleep`, and client. Phases: init, serving, end
//! (`experiments/fig7/README.md`).

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::spec::{Extent, Grid};
use experiment::{Experiment, Spec, table};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::models::Profiler;
use super::options::{Machine, Options};
use super::samples::Gpu;
use crate::shell;

mod bench;
pub mod clients;
mod started;
pub mod threads;
pub mod time;

use super::cpu::{DRIVER, ProcessSampler, ProcessSnapshot, ProcessUse, timeline};
pub use bench::Programs;
use bench::{BEGIN, END, SILENCE, ServerBench, ServerFigure, missing, option, parts};
use started::Started;

/// What the spec calls the points of this figure.
pub const APP: &str = "serving-cpu";
/// Time between two looks at the server's threads.
const APART: Duration = Duration::from_millis(500);
/// The series, in a line's place, that tells what polling takes from another program's kernels.
const STEALS: &str = "steals";
/// The one line that the twin has: it knows no driver's synchronisation.
const EVENT: &str = "event";
/// What drives the GPU where a series does not say.
const GRAPH: &str = "graph";

/// A series taken apart.
struct Line<'a> {
    sleep: &'a str,
    /// What drives the GPU, without `gpu-`.
    mode: &'a str,
    model: &'a str,
}

impl<'a> Line<'a> {
    fn of(series: &'a str) -> Result<Line<'a>> {
        let (line, model) = parts(series, "LINE")?;
        let (sleep, mode) = line.split_once('+').unwrap_or((line, GRAPH));
        Ok(Line { sleep, mode, model })
    }
}

/// Measures and reports.
pub fn run(mut experiment: Experiment, options: &Options) -> Result<()> {
    let Some(figure) = ServerFigure::begin(&mut experiment, options, dry_run)? else { return Ok(()) };
    execute(&experiment, &figure, figure.gpu())
}

/// The grid of an extent: `--quick` has one model, and the twin one line.
fn grid(spec: &Spec, extent: Extent, machine: Machine) -> (Grid, Vec<String>) {
    let mut grid = spec.grid(extent);
    let first =
        grid.series.first().and_then(|series| Line::of(series).ok()).map(|line| line.model.to_owned());
    let is_kept = |series: &String| {
        let Ok(line) = Line::of(series) else { return true };
        let has_model = extent != Extent::Quick || first.as_deref() == Some(line.model) && line.mode == GRAPH;
        has_model && (machine == Machine::Gpu || line.sleep == EVENT)
    };
    let left_out = grid.series.extract_if(.., |series| !is_kept(series)).collect();
    (grid, left_out)
}

/// What a server is told.
fn server_options(spec: &Spec, line: &Line<'_>, machine: Machine) -> Result<Vec<String>> {
    let (slots, warmup) = (option(spec, "slots")?, option(spec, "warmup")?);
    let (machine, Line { sleep, mode, model }) = (machine.name(), line);
    Ok(shell::words(&format!(
        "--mode gpu-{mode} --machine {machine} --sleep {sleep} --model {model} --warmup {warmup} --slots {slots} \
         --status - --json -"
    )))
}

/// What a client is told, but for the server's address. It serves a second more than is counted.
fn client_options(spec: &Spec, line: &Line<'_>, seconds: f64) -> Result<Vec<String>> {
    let (window, inputs, model) = (option(spec, "window")?, option(spec, "inputs")?, line.model);
    let seconds = seconds + 1.0;
    Ok(shell::words(&format!(
        "--model {model} --slots {window} --inputs {inputs} --seconds {seconds} --deadline 60 --live --json -"
    )))
}

fn execute(experiment: &Experiment, figure: &ServerFigure, gpu: Gpu) -> Result<()> {
    let (spec, how) = (&experiment.spec, &figure.how);
    let (grid, left_out) = grid(spec, how.extent, figure.machine);
    let lines = grid.series.iter().map(|series| Line::of(series)).collect::<Result<Vec<_>>>()?;
    let models = lines.iter().filter(|line| line.sleep != STEALS).map(|line| line.model).collect();
    figure.on_nic(spec, &models, &|bench| execute_on(bench, experiment, (&grid, &left_out), gpu.clone()))
}

/// Takes what is not measured between hosts out of a grid: which series.
fn left_out_of_nodes(grid: &mut Grid) -> Vec<String> {
    let is_steals = |series: &str| Line::of(series).is_ok_and(|line| line.sleep == STEALS);
    say!("left out: woken_ms, stopped_ms (a signal by ssh takes longer than what they time)");
    bench::leave_out(grid, &is_steals, "the profiler runs on this machine, and not beside the server")
}

/// Measures and reports what is kept of the grid.
fn execute_on(
    bench: &ServerBench<'_>,
    experiment: &Experiment,
    (grid, left_out): (&Grid, &[String]),
    gpu: Gpu,
) -> Result<()> {
    let (mut grid, mut left_out) = (grid.clone(), left_out.to_vec());
    if bench.is_on_nodes() {
        left_out.extend(left_out_of_nodes(&mut grid));
    }
    let mut points = Served { bench, gpu: gpu.clone() };
    let earlier = bench.measure(experiment, &grid, gpu, &mut points)?;
    let timers = json!([{ "name": "serving", "start": "the client's first line, after a second", "stop": "its last line" }]);
    let threads = threads::table(&table::rows(&earlier.points));
    let lines = threads[1..].iter().map(|line| line.join("  ")).collect();
    let extra = Extra { left_out, timers, lines, ..Extra::default() };
    run::report(experiment, &bench.figure.how, &earlier, &extra)
}

/// Points of a server and a client each.
struct Served<'a> {
    bench: &'a ServerBench<'a>,
    gpu: Gpu,
}

/// What the phases of a server used.
struct Phases {
    init: ProcessUse,
    serving: ProcessUse,
    end: ProcessUse,
    /// Seconds, cores, and the NIC's cores.
    cores: Vec<[f64; 3]>,
    watts: Option<f64>,
    /// From a signal until the sleeping server's answer; `None` by ssh, and if the server sleeps otherwise.
    woken: Option<Duration>,
    /// From SIGTERM until the server's last line; `None`: a signal by ssh takes longer than that.
    stopped: Option<Duration>,
    /// The client's last line.
    run: Value,
}

impl run::Bench for Served<'_> {
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let line = Line::of(&key.series)?;
        let name = format!("{}-{}", key.series, key.repetition);
        let mut point = self.bench.point(key, seconds);
        if line.sleep == STEALS {
            let [alone, beside] = self.steals(&line, &name, seconds)?;
            let share = 1.0 - beside / alone.max(1e-9);
            let values = [("alone_per_s", alone), ("beside_per_s", beside), ("stolen", share)];
            point.values.extend(values.map(|(name, value)| (name.to_owned(), value)));
        } else {
            fill(&mut point, &self.serve(&line, &name, seconds)?);
        }
        Ok(point)
    }
}

/// Puts the numbers of a run into its point.
fn fill(point: &mut Point, phases: &Phases) {
    let Phases { init, serving, end, cores, watts, woken, stopped, run } = phases;
    let number = |pointer: &str| run.pointer(pointer).and_then(Value::as_f64);
    let values = [
        ("serving_cores", Some(serving.own_cores())),
        ("nic_cores", Some(serving.nic_cores())),
        ("init_cores", Some(init.own_cores())),
        ("end_cores", Some(end.own_cores())),
        ("switches_per_s", Some(serving.switches_per_s(""))),
        ("own_switches_per_s", Some(serving.switches_per_s(DRIVER))),
        ("answers_per_s", number("/answers_per_second")),
        ("p50_us", number("/latency/p50_ns").map(|ns| ns / 1e3)),
        ("p99_us", number("/latency/p99_ns").map(|ns| ns / 1e3)),
        ("gpu_watts", *watts),
        ("woken_ms", woken.map(|time| time.as_secs_f64() * 1e3)),
        ("stopped_ms", stopped.map(|time| time.as_secs_f64() * 1e3)),
        ("serving_s", Some(serving.seconds)),
        ("init_s", Some(init.seconds)),
        ("end_s", Some(end.seconds)),
    ];
    point.values.extend(values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    threads::fill(point, serving);
    point.missing = missing(run);
    let seconds = |used: &ProcessUse| json!({ "own": used.own, "nic": used.nic, "threads": used.by_name, "ended": used.ended });
    point.detail = json!({
        "cores": cores,
        "cpu_seconds": { "init": seconds(init), "serving": seconds(serving), "end": seconds(end) },
        "switches": serving.switches,
        "answered": run["answered"],
        "latency": run["latency"],
    });
}

impl Served<'_> {
    /// Starts a server, and waits until it listens: with where.
    fn server(&self, line: &Line<'_>, log: &Path) -> Result<(Started, ProcessSampler, String)> {
        let options = server_options(self.bench.spec, line, self.bench.figure.machine)?;
        let mut server = self.bench.server(&options, log)?;
        let watch = ProcessSampler::start(server.process.look(), APART)?;
        let address = server.program.address("the server", BEGIN)?;
        Ok((server, watch, address))
    }

    /// Another program's runs of a model a second: alone before and after, and beside an idle server.
    fn steals(&self, line: &Line<'_>, name: &str, seconds: f64) -> Result<[f64; 2]> {
        let figure = self.bench.figure;
        let logs = figure.how.out.join("logs");
        let (program, machine) = (&figure.programs.profiler, &figure.here);
        let profiler = Profiler { program, machine, logs: &logs, limit: BEGIN };
        let seconds = seconds.to_string();
        let rate = |when: &str| {
            let words = ["run", line.model, "--engine", "own", "--launch", "host", "--seconds", &seconds];
            let said = profiler.line(&format!("{name}-{when}"), &words.map(str::to_owned))?;
            said["runs_per_s"].as_f64().context("the profiler's line has no number runs_per_s")
        };
        let before = rate("before")?;
        let log = self.bench.log(&format!("{name}-server"));
        let (mut server, ..) = self.server(&Line { sleep: EVENT, ..*line }, &log)?;
        let beside = rate("beside")?;
        bench::end(&mut server)?;
        Ok([(before + rate("after")?) / 2.0, beside])
    }

    /// Serves for so long, and looks at the server's threads meanwhile.
    fn serve(&self, line: &Line<'_>, name: &str, seconds: f64) -> Result<Phases> {
        let log = |end: &str| self.bench.log(&format!("{name}-{end}"));
        let (mut server, watch, address) = self.server(line, &log("server"))?;
        let options = client_options(self.bench.spec, line, seconds)?;
        let mut client = self.bench.client(line.model, &address, &options, &log("client"))?.program;
        client.json("live", BEGIN).context("the client")?;
        let (begun, since) = (watch.border()?, Instant::now());
        let limit = Instant::now() + Duration::from_secs_f64(seconds) + SILENCE;
        let run = loop {
            let said = client.json_of(&["live", "run"], SILENCE).context("the client")?;
            if said["kind"] == "run" {
                break said;
            }
            let log = client.log.display();
            ensure!(Instant::now() < limit, "the client still runs after {seconds} s; see {log}");
        };
        let gone = || format!("the server is gone; see {}", server.program.log.display());
        let served = watch.border().with_context(gone)?;
        let watts = self.gpu.watts_since(since);
        bench::ended(&mut client, &run, since)?;
        let by_ssh = self.bench.is_on_nodes();
        let asked = Instant::now();
        // The others sleep in the driver, which no signal leaves.
        let woken = (line.sleep == EVENT).then(|| bench::status(&mut server).map(|_| asked.elapsed()));
        let woken = woken.transpose()?.filter(|_| !by_ssh);
        server.process.signal(Signal::SIGTERM)?;
        let asked = Instant::now();
        let (stopped, last) = thread::scope(|scope| {
            let last = scope.spawn(|| last_look(&watch, END, served.1.clone()));
            let stopped = server.program.json_of(&["served"], END).map(|_| asked.elapsed());
            (stopped, last.join().unwrap_or_else(|_| served.1.clone()))
        });
        let end = last.since(&served.1, watch.seconds() - served.0);
        server.program.ends_well("the server", END)?;
        let stopped = Some(stopped.context("the server")?).filter(|_| !by_ssh);
        let taken = watch.end();
        let zero = ProcessSnapshot::default();
        Ok(Phases {
            init: begun.1.since(&zero, begun.0),
            serving: served.1.since(&begun.1, served.0 - begun.0),
            end,
            cores: timeline(&taken),
            watts,
            woken,
            stopped,
            run,
        })
    }
}

/// The last look at an ending process, after `last`: until its parent waits it has its sum, but no threads.
fn last_look(watch: &ProcessSampler, limit: Duration, mut last: ProcessSnapshot) -> ProcessSnapshot {
    let since = Instant::now();
    while since.elapsed() < limit {
        let Ok((_, look)) = watch.border() else { break };
        last.update(look);
        if last.has_ended() {
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    last
}

/// What would be measured, drawn and judged (INV-10).
fn dry_run(experiment: &Experiment, options: &Options) -> Result<String> {
    let (spec, machine) = (&experiment.spec, options.machine());
    let (mut grid, mut left_out) = grid(spec, options.extent(), machine);
    if options.on_nodes().is_some() {
        left_out.extend(left_out_of_nodes(&mut grid));
    }
    let all: f64 = grid.keys().iter().map(|key| grid.seconds_of(&key.series)).sum();
    let (count, repeat) = (grid.series.len(), grid.repeat);
    let points = format!(": {count} series × {repeat} repetitions at most, {all:.0} s of serving in all");
    let commands = |series: &String| {
        let (line, s) = (Line::of(series)?, grid.seconds_of(series));
        if line.sleep == STEALS {
            let times = format!("{s} s alone, {s} s beside an idle server, {s} s alone");
            return Ok(vec![format!("{series}: profiler run, {times}")]);
        }
        let [server, client] = [server_options(spec, &line, machine)?, client_options(spec, &line, s)?]
            .map(|words| words.join(" "));
        Ok(vec![
            format!("{series}, {s} s: inference-server --listen … {server}"),
            format!("  doorbell-client --connect … {client}"),
        ])
    };
    let nic = "; a software NIC's threads are counted apart";
    bench::dry_run((experiment, options), [&points, nic], (&grid, &left_out), &commands)
}

#[cfg(test)]
mod tests;
