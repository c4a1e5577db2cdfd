//! Figure 7: what a server uses of the CPU while a GPU serves, by how its thread waits.
//!
//! A series is `gpu-LINE-MODEL`. A point is a server and a client of their own: the line is the server's `--sleep`. `cpu.rs` reads what the
//! server's threads use; phases are initialisation, serving and end (`experiments/fig7/README.md`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::spec::{Extent, Grid};
use experiment::{Experiment, Spec, resume, table};
use measure::{Label, Part, Provenance};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::app::App;
use super::judged::judged;
use super::models::Profiler;
use super::nic::{self, Nic};
use super::options::{Machine, Options};
use super::samples::{self, Gpu};
use crate::gpu_machine::GpuMachine;
use crate::process::{Ended, JsonProgram, WAIT};
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::{carried, measured, wheels, workspace, zoo};

pub mod clients;
mod cpu;
pub mod threads;
pub mod time;

use cpu::{DRIVER, ProcessSampler, ProcessSnapshot, ProcessUse, timeline};

/// What the spec calls the points of this figure.
pub const APP: &str = "serving-cpu";
/// As `figure` runs it.
pub const MEASURES: App = App {
    name: APP,
    takes: "--smoke --quick --full --resume --record --dry-run --out --counters-hook --no-install --machine",
    own_nic: Some("both ends run on this host's software NIC"),
    run,
};
/// Time between two looks at the server's threads.
const APART: Duration = Duration::from_millis(500);
/// Until the server listens: it compiles kernels and loads a model.
const BEGIN: Duration = Duration::from_secs(180);
/// Until the server has ended after the signal. Both, and the longest serving, are below nine minutes.
const END: Duration = Duration::from_secs(60);
/// Packages of the programs.
const PACKAGES: [&str; 8] = ["-p", "inference-server", "-p", "client", "-p", "softnic", "-p", "profiler"];
/// The series, in a line's place, that tells what polling takes from another program's kernels.
const STEALS: &str = "steals";
/// The one line that the twin has: it knows no driver's synchronisation.
const EVENT: &str = "event";
/// Longest wait for a line of the client's, which says one each second.
const SILENCE: Duration = Duration::from_secs(60);

/// The programs of a point, or of the demo; stand-ins in tests.
#[derive(Debug)]
pub struct Programs {
    pub softnic: PathBuf,
    pub server: PathBuf,
    pub client: PathBuf,
    pub profiler: PathBuf,
}

impl Programs {
    pub fn of(folder: &Path) -> Programs {
        let [softnic, server, client, profiler] =
            ["softnic", "inference-server", "doorbell-client", "profiler"].map(|name| folder.join(name));
        Programs { softnic, server, client, profiler }
    }
}

/// The word and the model of a series; `word`: what the word is.
fn parts<'a>(series: &'a str, word: &str) -> Result<(&'a str, &'a str)> {
    let parts = series.strip_prefix("gpu-").and_then(|rest| rest.split_once('-'));
    parts.with_context(|| format!("series {series}: not gpu-{word}-MODEL"))
}

/// A series taken apart.
struct Line<'a> {
    sleep: &'a str,
    model: &'a str,
}

impl<'a> Line<'a> {
    fn of(series: &'a str) -> Result<Line<'a>> {
        let (sleep, model) = parts(series, "LINE")?;
        Ok(Line { sleep, model })
    }
}

/// Measures and reports.
pub fn run(experiment: Experiment, options: &Options) -> Result<()> {
    let Some(begun) = begin(&experiment, options, dry_run)? else { return Ok(()) };
    let gpu = Gpu::of_run(begun.machine == Machine::Gpu);
    execute(&experiment, &begun.how, begun.machine, &begun.here, &Programs::of(&workspace::programs()), gpu)
}

/// What a figure of a server is measured with.
struct ServerFigure {
    how: resume::Options,
    machine: Machine,
    here: GpuMachine,
    _locked: resume::Locked,
}

/// Checks what the user can mend, and builds the programs; `None`: a dry run, which is said.
fn begin(
    experiment: &Experiment,
    options: &Options,
    dry_run: fn(&Experiment, &resume::Options, Machine) -> Result<String>,
) -> Result<Option<ServerFigure>> {
    let (spec, name) = (&experiment.spec, &experiment.spec.name);
    let how = options.how(experiment);
    let machine = options.machine.unwrap_or_default();
    if options.dry_run {
        say!("{}", dry_run(experiment, &how, machine)?);
        return Ok(None);
    }
    let nic_options = nic::options(&spec.nic);
    let known = |old: &Provenance| {
        let ours = Provenance::of(workspace::revision(), &[]);
        Provenance {
            revision: ours.revision,
            machine: ours.machine,
            nic_options: nic_options.clone(),
            ..old.clone()
        }
    };
    resume::check(spec, &how, &known, &|_| BTreeMap::new())?;
    if options.record {
        measured::allowed(&workspace::revision())?;
    }
    let _locked = resume::lock(&how.out)?;
    let here = GpuMachine::ask()?;
    if machine == Machine::Gpu && here.gpu().is_none() {
        return Err(refused(format!(
            "{name}: no GPU here: {}; --machine twin tries the command, and judges nothing",
            here.why_none()
        )));
    }
    setup::prepare(Purpose::Figure, options.no_install)?;
    if carried::folder().is_none() {
        say!("building server, client and the software NIC (release), some minutes the first time");
        workspace::build_release(&PACKAGES)?;
    }
    Ok(Some(ServerFigure { how, machine, here, _locked }))
}

/// What the points of such a figure stand on.
fn provenance(spec: &Spec, machine: Machine, here: &GpuMachine) -> Result<Provenance> {
    let mut provenance = Provenance::of(workspace::revision(), &[]);
    provenance.versions.insert("profile".into(), workspace::profile()?);
    (provenance.nic, provenance.link) = (Label::Emulated, Label::Emulated);
    provenance.device = "mlx5_0".into();
    provenance.nic_options = nic::options(&spec.nic);
    provenance.gpu = if machine == Machine::Gpu { Label::Hardware } else { Label::Emulated };
    if machine == Machine::Gpu {
        here.name_in(&mut provenance);
    } else {
        say!("the host twin stands in the GPU's place: the label says so, and no claim is judged");
    }
    Ok(provenance)
}

/// The grid of an extent: `--quick` has one model, and the twin one line.
fn grid(spec: &Spec, extent: Extent, machine: Machine) -> (Grid, Vec<String>) {
    let mut grid = spec.grid(extent);
    let first =
        grid.series.first().and_then(|series| Line::of(series).ok()).map(|line| line.model.to_owned());
    let is_kept = |series: &String| {
        let Ok(line) = Line::of(series) else { return true };
        let has_model = extent != Extent::Quick || first.as_deref() == Some(line.model);
        has_model && (machine == Machine::Gpu || line.sleep == EVENT)
    };
    let (kept, left_out) = grid.series.iter().cloned().partition(is_kept);
    grid.series = kept;
    (grid, left_out)
}

fn option(spec: &Spec, name: &str) -> Result<i64> {
    spec.options
        .get(name)
        .and_then(toml::Value::as_integer)
        .with_context(|| format!("{}: no option {name}", spec.name))
}

/// What a server is told.
fn server_options(spec: &Spec, line: &Line<'_>, machine: Machine) -> Result<Vec<String>> {
    let [slots, warmup] = [option(spec, "slots")?.to_string(), option(spec, "warmup")?.to_string()];
    let words =
        ["--mode", "gpu-graph", "--machine", machine.name(), "--sleep", line.sleep, "--model", line.model];
    let rest =
        ["--warmup", &warmup, "--slots", &slots, "--listen", "127.0.0.1:0", "--status", "-", "--json", "-"];
    Ok(words.into_iter().chain(rest).map(str::to_owned).collect())
}

/// What a client is told, but for the server's address. It serves a second more than is counted.
fn client_options(spec: &Spec, line: &Line<'_>, seconds: f64) -> Result<Vec<String>> {
    let [window, inputs] = [option(spec, "window")?.to_string(), option(spec, "inputs")?.to_string()];
    let seconds = (seconds + 1.0).to_string();
    let words = ["--model", line.model, "--slots", &window, "--inputs", &inputs, "--seconds", &seconds];
    Ok(words.into_iter().chain(["--deadline", "60", "--live", "--json", "-"]).map(str::to_owned).collect())
}

fn execute(
    experiment: &Experiment,
    how: &resume::Options,
    machine: Machine,
    here: &GpuMachine,
    programs: &Programs,
    gpu: Gpu,
) -> Result<()> {
    let spec = &experiment.spec;
    std::fs::create_dir_all(how.out.join("logs")).with_context(|| format!("--out {}", how.out.display()))?;
    let provenance = provenance(spec, machine, here)?;
    let (grid, left_out) = grid(spec, how.extent, machine);
    let nic = Nic::software(spec, &how.out)?;
    let own = gpu.clone();
    let mut bench =
        Served { spec, how, machine, here, programs, nic: &nic, provenance: &provenance, gpu: own };
    let earlier = samples::measure_beside(gpu, experiment, how, &provenance, &grid, &mut bench)?;
    let timers = json!([{ "name": "serving", "start": "the client's first line, after a second", "stop": "its last line" }]);
    let lines =
        threads::table(&table::rows(&earlier.points)).iter().skip(1).map(|line| line.join("  ")).collect();
    run::report(experiment, how, &earlier, &Extra { left_out, timers, lines, ..Extra::default() })
}

/// Points of a server and a client each.
struct Served<'a> {
    spec: &'a Spec,
    how: &'a resume::Options,
    machine: Machine,
    here: &'a GpuMachine,
    programs: &'a Programs,
    nic: &'a Nic,
    provenance: &'a Provenance,
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
    /// From a signal until the sleeping server's answer was read.
    woken: Option<Duration>,
    /// The client's last line.
    run: Value,
}

impl run::Bench for Served<'_> {
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let line = Line::of(&key.series)?;
        let name = format!("{}-{}", key.series, key.repetition);
        let label = self.provenance.label(&[Part::Gpu]);
        let mut point = Point::new(&self.spec.name, key.clone(), label, self.provenance.clone());
        point.seconds = seconds;
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
    let Phases { init, serving, end, cores, watts, woken, run } = phases;
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

/// Why a client's last line is no measurement: answers that are wrong, lost, of no request, or refusals.
fn missing(run: &Value) -> Option<String> {
    let refused = run["refused"].as_object().map(|all| all.values().filter_map(Value::as_u64).sum());
    let counts = ["wrong", "lost", "duplicate"].map(|name| (name, run[name].as_u64()));
    counts.into_iter().chain([("refused", refused)]).find_map(|(name, count)| match count {
        Some(0) => None,
        Some(count) => Some(format!("{count} {name} of {} requests", run["sent"])),
        None => Some(format!("the client does not count {name}")),
    })
}

impl Served<'_> {
    fn on_nic(&self, program: &Path) -> Command {
        on_nic(self.nic, self.programs, self.here, program)
    }

    /// Starts a server, and waits until it listens: with where.
    fn server(&self, line: &Line<'_>, log: &Path) -> Result<(JsonProgram, ProcessSampler, String)> {
        let mut command = self.on_nic(&self.programs.server);
        command.args(server_options(self.spec, line, self.machine)?);
        let mut server = started(&mut command, log)?;
        // The launcher becomes the server: one process, whose number stays.
        let watch = ProcessSampler::start(server.child.0.id(), APART)?;
        let address = address(&mut server)?;
        Ok((server, watch, address))
    }

    /// Runs a second of a model, by another program: alone before and after, and beside a server without requests.
    fn steals(&self, line: &Line<'_>, name: &str, seconds: f64) -> Result<[f64; 2]> {
        let logs = self.how.out.join("logs");
        let profiler =
            Profiler { program: &self.programs.profiler, machine: self.here, logs: &logs, limit: BEGIN };
        let seconds = seconds.to_string();
        let rate = |when: &str| {
            let words = ["run", line.model, "--engine", "own", "--launch", "host", "--seconds", &seconds];
            let said = profiler.line(&format!("{name}-{when}"), &words.map(str::to_owned))?;
            said["runs_per_s"].as_f64().context("the profiler's line has no number runs_per_s")
        };
        let before = rate("before")?;
        let log = logs.join(format!("{name}-server.log"));
        let (mut server, ..) = self.server(&Line { sleep: EVENT, model: line.model }, &log)?;
        let beside = rate("beside")?;
        ended(&mut server, &log)?;
        Ok([(before + rate("after")?) / 2.0, beside])
    }

    /// Serves for so long, and looks at the server's threads meanwhile.
    fn serve(&self, line: &Line<'_>, name: &str, seconds: f64) -> Result<Phases> {
        let log = |end: &str| self.how.out.join(format!("logs/{name}-{end}.log"));
        let (mut server, watch, address) = self.server(line, &log("server"))?;
        let mut command = self.on_nic(&self.programs.client);
        command.args(["--connect", &address]).args(client_options(self.spec, line, seconds)?);
        command.arg("--manifests").arg(zoo::manifests());
        let mut client = JsonProgram::start(&mut command, &log("client"))?;
        let first = client.json("live", BEGIN).context("the client")?;
        let (begun, since) = (watch.border()?, Instant::now());
        let limit = Instant::now() + Duration::from_secs_f64(seconds) + SILENCE;
        let run = loop {
            let said = client.json_of(&["live", "run"], SILENCE).context("the client")?;
            if said["kind"] == "run" {
                break said;
            }
            ensure!(
                Instant::now() < limit,
                "the client still runs after {seconds} s; see {}",
                log("client").display()
            );
        };
        let served =
            watch.border().with_context(|| format!("the server is gone; see {}", log("server").display()))?;
        let watts = self.gpu.watts_since(since);
        let client_ended = client.child.wait(WAIT)?;
        // What it counts says more than its exit status.
        ensure!(
            client_ended == Ended::Well || missing(&run).is_some(),
            "the client {client_ended} (after {}); see {}",
            first["seconds"],
            log("client").display()
        );
        let process = server.child.0.id();
        let asked = Instant::now();
        // The others sleep in the driver, which no signal leaves.
        let woken = (line.sleep == EVENT).then(|| {
            signal(process, Signal::SIGUSR1)?;
            server.json("status", WAIT).context("the server, asked for its counters").map(|_| asked.elapsed())
        });
        let woken = woken.transpose()?;
        signal(process, Signal::SIGTERM)?;
        let last = last_look(process, END, served.1.clone());
        let end = last.since(&served.1, watch.seconds() - served.0);
        let ended = server.child.wait(END)?;
        ensure!(ended == Ended::Well, "the server {ended}; see {}", log("server").display());
        let taken = watch.end();
        let zero = ProcessSnapshot::default();
        Ok(Phases {
            init: begun.1.since(&zero, begun.0),
            serving: served.1.since(&begun.1, served.0 - begun.0),
            end,
            cores: timeline(&taken),
            watts,
            woken,
            run,
        })
    }
}

/// A program on the NIC; options follow.
fn on_nic(nic: &Nic, programs: &Programs, here: &GpuMachine, program: &Path) -> Command {
    let Nic::Software { config, fabric } = nic else { return Command::new(program) };
    let mut command = Command::new(&programs.softnic);
    command.args(["run", "--config"]).arg(config).args(["--fabric", fabric, "--"]).arg(program);
    command.envs(here.toolkit.iter().map(|toolkit| (wheels::CUDA.variable, toolkit)));
    command
}

/// Starts a server of the zoo's models; `command` has its other options.
fn started(command: &mut Command, log: &Path) -> Result<JsonProgram> {
    command.arg("--store").arg(zoo::folder()).arg("--manifests").arg(zoo::manifests());
    JsonProgram::start(command, log)
}

/// Waits until a server listens: where.
fn address(server: &mut JsonProgram) -> Result<String> {
    let listening = server.json("listening", BEGIN).context("starting the server")?;
    Ok(listening["address"].as_str().context("the server does not say where it listens")?.to_owned())
}

/// Starts a server, and waits until it listens: where.
fn listening(command: &mut Command, log: &Path) -> Result<(JsonProgram, String)> {
    let mut server = started(command, log)?;
    let address = address(&mut server)?;
    Ok((server, address))
}

fn signal(process: u32, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(i32::try_from(process)?), signal).context("sending the server a signal")
}

/// Has a server end. Error: it does not end well.
fn ended(server: &mut JsonProgram, log: &Path) -> Result<()> {
    signal(server.child.0.id(), Signal::SIGTERM)?;
    let ended = server.child.wait(END)?;
    ensure!(ended == Ended::Well, "the server {ended}; see {}", log.display());
    Ok(())
}

/// The last look at a process that ends, behind `last`: its sum is there until its parent waits for it, its threads are not.
fn last_look(process: u32, limit: Duration, mut last: ProcessSnapshot) -> ProcessSnapshot {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let since = Instant::now();
    while since.elapsed() < limit {
        if let Ok(look) = ProcessSnapshot::at(&folder) {
            last.update(look);
        }
        let state = std::fs::read_to_string(folder.join("stat")).unwrap_or_default();
        if state.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z')) {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    last
}

/// What would be measured, drawn and judged (INV-10).
fn dry_run(experiment: &Experiment, how: &resume::Options, machine: Machine) -> Result<String> {
    let spec = &experiment.spec;
    let (grid, left_out) = grid(spec, how.extent, machine);
    let of = |series: &String| grid.seconds_of(series);
    let all: f64 = grid.series.iter().map(of).sum::<f64>() * f64::from(grid.repeat);
    let mut lines = vec![
        format!("{}: {}", spec.name, spec.title),
        format!(
            "{} points: {} series × {} repetitions, {:.0} s of serving in all; each point ends within nine minutes, --resume goes on",
            grid.keys().len(),
            grid.series.len(),
            grid.repeat,
            all
        ),
        format!(
            "nic: the software NIC, two processes; its threads are counted apart; machine: {}",
            machine.name()
        ),
        format!("results: {}", how.out.display()),
    ];
    for series in &grid.series {
        let line = Line::of(series)?;
        if line.sleep == STEALS {
            let seconds = of(series);
            lines.push(format!("{series}: profiler run, {seconds} s alone, {seconds} s beside an idle server, {seconds} s alone"));
            continue;
        }
        lines.push(format!(
            "{series}, {} s: inference-server {}",
            of(series),
            server_options(spec, &line, machine)?.join(" ")
        ));
        lines.push(format!(
            "  doorbell-client --connect … {}",
            client_options(spec, &line, of(series))?.join(" ")
        ));
    }
    let plots = spec.timelines.iter().map(|plot| (&plot.name, &plot.title, &plot.series));
    lines.extend(drawn_and_judged(experiment, plots, (&grid.series, &left_out), machine));
    Ok(lines.join("\n"))
}

/// The end of a dry run: which of `plots` (name, title, series) are drawn of the series that are kept, and what is judged.
fn drawn_and_judged<'a>(
    experiment: &Experiment,
    plots: impl Iterator<Item = (&'a String, &'a String, &'a Vec<String>)>,
    (kept, left_out): (&[String], &[String]),
    machine: Machine,
) -> Vec<String> {
    let mut lines = Vec::new();
    if !left_out.is_empty() {
        lines.push(format!("left out: {}", left_out.join(", ")));
    }
    let drawn = plots.filter(|(_, _, series)| kept.iter().any(|one| series.contains(one)));
    lines.extend(drawn.map(|(name, title, _)| format!("draws: {name}: {title}")));
    lines.extend(judged(experiment, false));
    if machine == Machine::Twin {
        lines
            .push("label: emulated (the host twin): no claim about a GPU or a server's CPU is judged".into());
    }
    lines
}

#[cfg(test)]
mod tests;
