//! What figures of a server share: programs on their NIC, a listening server, its clients, a point's basis.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment::point::{Key, Point};
use experiment::resume::{self, Earlier};
use experiment::spec::Grid;
use experiment::{Experiment, Spec, run};
use measure::{Label, Part, Provenance};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::started::{ReadHost, Started};
use crate::figure::app;
use crate::figure::chosen_nic;
use crate::figure::judged::judged;
use crate::figure::nic::{self, Nic, Probe};
use crate::figure::options::{Machine, Options};
use crate::figure::place::HostSetup;
use crate::figure::samples::{self, BetweenNodes, Gpu};
use crate::gpu_machine::GpuMachine;
use crate::packages::LIBRARY;
use crate::process::{Ended, JsonProgram, WAIT, output, run_logged};
use crate::refused::{NO_GPU, refused_with};
use crate::{files, wheels, workspace, zoo};

/// Until the server listens: it compiles kernels and loads a model.
pub const BEGIN: Duration = Duration::from_secs(180);
/// Until the server has ended after the signal. Both, and the longest serving, are below nine minutes.
pub const END: Duration = Duration::from_secs(60);
/// Longest wait for a line of the client's, which says one each second.
pub const SILENCE: Duration = Duration::from_secs(60);
/// Longest that a model's reference may take.
pub const REFERENCE: Duration = Duration::from_secs(120);
/// Largest error of an answer, as a share of the reference's root mean square: engines add in other orders.
const TOLERANCE: &str = "1e-3";
/// Packages of the programs, and of those that tell of the NIC and of the GPU.
const PACKAGES: &str = "-p inference-server -p client -p softnic -p profiler -p generator -p gpu";
/// What the ends are called, and which host is whose.
const ENDS: [&str; 2] = ["server", "client"];
const SERVER: usize = 0;
const CLIENT: usize = 1;
/// Folder of manifests and references on a host.
const DATA: &str = "data";

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
pub fn parts<'a>(series: &'a str, word: &str) -> Result<(&'a str, &'a str)> {
    let parts = series.strip_prefix("gpu-").and_then(|rest| rest.split_once('-'));
    parts.with_context(|| format!("series {series}: not gpu-{word}-MODEL"))
}

pub fn option(spec: &Spec, name: &str) -> Result<i64> {
    let option = spec.options.get(name).and_then(toml::Value::as_integer);
    option.with_context(|| format!("{}: no option {name}", spec.name))
}

/// What a figure of a server is measured with.
pub struct ServerFigure {
    pub how: resume::Options,
    pub machine: Machine,
    /// This machine: what makes the references, and where it serves too, the server's.
    pub here: GpuMachine,
    pub programs: Programs,
    pub(super) options: Options,
    pub(super) _locked: Option<resume::Locked>,
}

/// What a dry run says of an experiment.
pub type DryRun = fn(&Experiment, &Options) -> Result<String>;

impl ServerFigure {
    /// Checks what the user can mend, and builds the programs; `None`: a dry run, which is said.
    pub fn begin(
        experiment: &mut Experiment,
        options: &Options,
        dry_run: DryRun,
    ) -> Result<Option<ServerFigure>> {
        let (how, place) = (options.how(experiment), options.place());
        chosen_nic::prepare(&mut experiment.spec, options)?;
        let (spec, name) = (&experiment.spec, &experiment.spec.name);
        let machine = options.machine();
        if options.dry_run {
            say!("{}", dry_run(experiment, options)?);
            return Ok(None);
        }
        if let Some(device) = &options.nic {
            Nic::card(device)?;
        }
        place.allowed(&how.out)?;
        let _locked = Some(app::begin(spec, &how, &|old| chosen_nic::known(old, spec, options))?);
        let here = GpuMachine::ask()?;
        // Nodes of this machine have its GPU; another host is asked for its own.
        if machine == Machine::Gpu && place.is_here() {
            has_gpu(&here, name, "here")?;
        }
        place.set_up(options.no_install)?;
        let packages: Vec<&str> = PACKAGES.split(' ').collect();
        workspace::build_programs("server, client and the software NIC", &packages)?;
        let programs = Programs::of(&workspace::programs());
        Ok(Some(ServerFigure { how, machine, here, programs, options: options.clone(), _locked }))
    }

    /// Readings of the server's GPU, where it is this machine's.
    pub fn gpu(&self) -> Gpu {
        Gpu::of_run(self.machine == Machine::Gpu && self.options.place().is_here())
    }

    /// Has `measure` measure on the NIC that is asked for, with a reference of each of the `models`.
    pub fn on_nic(
        &self,
        spec: &Spec,
        models: &BTreeSet<&str>,
        measure: &dyn Fn(&ServerBench<'_>) -> Result<()>,
    ) -> Result<()> {
        // Before anything is sampled.
        let (mut references, mut made) = (Vec::new(), Vec::new());
        for model in models {
            let (file, by) = self.reference(spec, model)?;
            references.push(file);
            made.push((format!("reference-{model}"), by));
        }
        let data = [zoo::manifests()].into_iter().chain(references).map(std::path::absolute);
        let data = data.collect::<Result<Vec<PathBuf>, _>>()?;
        let mut files = vec!["softnic", LIBRARY, "generator", "inference-server", "doorbell-client"];
        files.extend((self.machine == Machine::Gpu).then_some("gpu-probe"));
        let variables = [json!({ "doorbell_files": files, "doorbell_data": data }).to_string()];
        let (out, tune) = (&self.how.out, self.options.tune);
        let setup = HostSetup { spec, out, ends: ENDS, variables: &variables, is_shaped: false, tune };
        chosen_nic::on_nic(&self.options, &setup, &|nic| {
            let mut bench = ServerBench::of(self, spec, nic)?;
            bench.provenance.versions.extend(made.iter().cloned());
            measure(&bench)
        })
    }

    /// The file to compare a model's answers with, and its engine and SHA-256 in words. By ONNX Runtime, else
    /// by our kernels without a server: on the GPU, launched by the CPU, or the twin.
    fn reference(&self, spec: &Spec, model: &str) -> Result<(PathBuf, String)> {
        let file = self.how.out.join(format!("reference-{model}.f32"));
        // One of an earlier run must not be taken for this one's.
        files::remove(&file)?;
        let out = &self.how.out;
        std::fs::create_dir_all(out.join("logs")).with_context(|| format!("--out {}", out.display()))?;
        let runtime = ::zoo::onnx_runtime::Search::here(None).find();
        let engine = match (&runtime, self.machine) {
            (Ok(_), _) => "cpu",
            (Err(_), Machine::Gpu) if self.here.gpu().is_some() => "own",
            (Err(_), _) => "twin",
        };
        let inputs = option(spec, "inputs")?.to_string();
        let mut command = Command::new(&self.programs.profiler);
        command.args(["reference", model, "--engine", engine, "--inputs", &inputs, "--out"]).arg(&file);
        command.arg("--store").arg(zoo::folder()).arg("--manifests").arg(zoo::manifests());
        command.envs(self.toolkit());
        command.envs(runtime.as_ref().map(|found| (wheels::ONNX_RUNTIME.variable, &found.library)));
        let log = self.log(&format!("reference-{model}"));
        let ended = run_logged(&mut command, &log, REFERENCE)?;
        ensure!(ended == Ended::Well && file.is_file(), "the profiler {ended}; see {}", log.display());
        let why = runtime.err().map_or_else(String::new, |why| format!(": no ONNX Runtime here: {why}"));
        say!("{model}: answers are compared with the profiler's, engine {engine}{why}");
        let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        Ok((file, format!("engine {engine}, sha256 {}", ::zoo::Digest::of(&bytes))))
    }

    /// This machine's CUDA toolkit, for its programs.
    fn toolkit(&self) -> Option<(&'static str, &PathBuf)> {
        self.here.toolkit.as_ref().map(|toolkit| (wheels::CUDA.variable, toolkit))
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.how.out.join(format!("logs/{name}.log"))
    }
}

/// Refuses a server's host, `where`, without a GPU.
fn has_gpu(machine: &GpuMachine, figure: &str, place: &str) -> Result<()> {
    machine.has_gpu(|why| {
        format!("{figure}: no GPU {place}: {why}; --machine twin tries the command, and judges nothing")
    })
}

/// Where points are measured: each has a server and clients of its own.
pub struct ServerBench<'a> {
    pub figure: &'a ServerFigure,
    pub spec: &'a Spec,
    pub provenance: Provenance,
    nic: Nic,
    /// What reads processes on the hosts of both ends, where those are nodes.
    hosts: Option<[Arc<ReadHost>; 2]>,
    /// Readings of the server's GPU, where that is another host's.
    gpu_there: Option<Gpu>,
}

impl ServerBench<'_> {
    /// On this NIC. Error: it is not there, or its host lacks the GPU.
    pub fn of<'a>(figure: &'a ServerFigure, spec: &'a Spec, nic: Nic) -> Result<ServerBench<'a>> {
        let (mut gpu, mut hosts, mut gpu_there) = (figure.here.clone(), None, None);
        if let Nic::Nodes(nodes) = &nic {
            let start = |end: usize| {
                ReadHost::start(&nodes.hosts[end], &figure.log(&format!("processes-{}", ENDS[end])))
            };
            hosts = Some([start(SERVER)?, start(CLIENT)?]);
            if figure.machine == Machine::Gpu {
                let host = &nodes.hosts[SERVER];
                // Our end of ssh may be gone: it ends there by itself.
                let probe = ["timeout", &WAIT.as_secs().to_string(), &host.file("bin/gpu-probe"), "--json"];
                let said = output(&mut host.command(&probe)?, WAIT);
                gpu = GpuMachine::read(&said.with_context(|| format!("asking {} for its GPU", host.name))?)?;
                let place = format!("on {}", host.name);
                // `figure all` tells it from what fails.
                has_gpu(&gpu, &spec.name, &place).map_err(|why| refused_with(NO_GPU, why.to_string()))?;
                if !nodes.are_here() {
                    gpu_there = Some(Gpu::on(host, gpu.bus().as_deref())?);
                }
            }
        }
        let softnic = figure.programs.softnic.clone();
        let programs = nic::Programs { generator: softnic.with_file_name("generator"), softnic };
        let probe = Probe::ask(&nic, &programs, &figure.how.out.join("logs"))?;
        let mut provenance = probe.provenance(&nic, &spec.nic, workspace::revision())?;
        if let Nic::Card { .. } = nic {
            // Both ends use the one card: packets do not leave it.
            provenance.link = Label::None;
        }
        if figure.machine == Machine::Gpu {
            provenance.gpu = Label::Hardware;
            gpu.name_in(&mut provenance);
        } else {
            provenance.gpu = Label::Emulated;
            say!("the host twin stands in the GPU's place: the label says so, and no claim is judged");
        }
        Ok(ServerBench { figure, spec, provenance, nic, hosts, gpu_there })
    }

    /// Whether both ends run on hosts that are reached by ssh.
    pub fn is_on_nodes(&self) -> bool {
        self.hosts.is_some()
    }

    /// Whether the NIC is a card.
    pub fn is_card(&self) -> bool {
        self.nic.is_card()
    }

    /// Measures what is missing of `grid`, by these points, beside readings of the GPU.
    pub fn measure(
        &self,
        experiment: &Experiment,
        grid: &Grid,
        gpu: Gpu,
        points: &mut dyn run::Bench,
    ) -> Result<Earlier> {
        let how = &self.figure.how;
        let measure = |points: &mut dyn run::Bench| {
            samples::measure_beside(gpu, experiment, how, &self.provenance, grid, points)
        };
        match &self.nic {
            Nic::Nodes(nodes) => {
                let (logs, gpu) = (how.out.join("logs"), self.gpu_there.clone());
                measure(&mut BetweenNodes::start(points, nodes, false, gpu, &logs)?)
            }
            _ => measure(points),
        }
    }

    /// A point without numbers.
    pub fn point(&self, key: &Key, seconds: f64) -> Point {
        let label = self.provenance.label(&[Part::Gpu]);
        Point { seconds, ..Point::new(&self.spec.name, key.clone(), label, self.provenance.clone()) }
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.figure.log(name)
    }

    /// Starts a program on the NIC of an end.
    fn start(&self, end: usize, program: &Path, options: &[String], log: &Path) -> Result<Started> {
        let device = match &self.nic {
            Nic::Software { .. } => None,
            Nic::Card { device } => Some(device.as_str()),
            Nic::Nodes(nodes) => Some(nodes.device(end)),
        };
        let device = device.into_iter().flat_map(|device| ["--nic".to_owned(), device.to_owned()]);
        let options: Vec<String> = options.iter().cloned().chain(device).collect();
        let (Nic::Nodes(nodes), Some(hosts)) = (&self.nic, &self.hosts) else {
            let mut command = self.nic.command(&self.figure.programs.softnic, program);
            return Started::here(command.args(options).envs(self.figure.toolkit()), log);
        };
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        Started::on(&hosts[end], &mut nodes.program(end, &name, &options)?, log)
    }

    /// The option that names a file of an end: its path here, or below the data of its host.
    fn file(&self, option: &str, end: usize, here: &Path) -> [String; 2] {
        let Nic::Nodes(nodes) = &self.nic else { return [option.to_owned(), here.display().to_string()] };
        let name = here.file_name().unwrap_or_default().to_string_lossy();
        [option.to_owned(), nodes.hosts[end].file(&format!("{DATA}/{name}"))]
    }

    /// Starts a server of the zoo's models with these options.
    pub fn server(&self, options: &[String], log: &Path) -> Result<Started> {
        let address = match &self.nic {
            Nic::Nodes(nodes) => {
                let host = &nodes.hosts[SERVER];
                format!("{}:{}", host.address, host.port)
            }
            _ => "127.0.0.1:0".to_owned(),
        };
        // On a host the weights, which follow from the manifest, are made in memory.
        let store = ["--store".to_owned(), zoo::folder().display().to_string()];
        let mut options = [options, &["--listen".to_owned(), address]].concat();
        options.extend(if self.is_on_nodes() { Vec::new() } else { store.to_vec() });
        options.extend(self.file("--manifests", SERVER, &zoo::manifests()));
        self.start(SERVER, &self.figure.programs.server, &options, log)
    }

    /// Starts a server, and waits until it listens: where.
    pub fn listening(&self, options: &[String], log: &Path) -> Result<(Started, String)> {
        let mut server = self.server(options, log)?;
        let address = server.program.address("the server", BEGIN).map_err(|error| match &self.nic {
            Nic::Nodes(nodes) => nodes.hosts[SERVER].with_remedy(error),
            _ => error,
        })?;
        Ok((server, address))
    }

    /// Starts a client of a model's server at an address with these options.
    pub fn client(&self, model: &str, address: &str, options: &[String], log: &Path) -> Result<Started> {
        let reference = self.figure.how.out.join(format!("reference-{model}.f32"));
        let mut all = ["--connect", address].map(str::to_owned).to_vec();
        all.extend_from_slice(options);
        all.extend(self.file("--manifests", CLIENT, &zoo::manifests()));
        all.extend(self.file("--reference", CLIENT, &reference));
        all.extend(["--tolerance", TOLERANCE].map(str::to_owned));
        self.start(CLIENT, &self.figure.programs.client, &all, log)
    }
}

/// What a server answers that is asked for its counters.
pub fn status(server: &mut Started) -> Result<Value> {
    server.process.signal(Signal::SIGUSR1)?;
    server.program.json("status", WAIT).context("the server, asked for its counters")
}

/// Has a server end. Error: it does not end well.
pub fn end(server: &mut Started) -> Result<()> {
    server.process.signal(Signal::SIGTERM)?;
    server.program.ends_well("the server", END)
}

/// Takes series out of a grid, and says why: which.
pub fn leave_out(grid: &mut Grid, is_left_out: &dyn Fn(&str) -> bool, why: &str) -> Vec<String> {
    let left_out: Vec<String> = grid.series.extract_if(.., |series| is_left_out(series)).collect();
    if !left_out.is_empty() {
        say!("left out: {} ({why})", left_out.join(", "));
    }
    left_out
}

/// Waits for the end of a client that has said its last line, `run`. Error: a bad end that no count tells of.
pub fn ended(client: &mut JsonProgram, run: &Value, since: Instant) -> Result<()> {
    let ended = client.child.wait(WAIT)?;
    // What it counts says more than its exit status.
    ensure!(
        ended == Ended::Well || missing(run).is_some(),
        "the client {ended} after {:.1} s; see {}",
        since.elapsed().as_secs_f64(),
        client.log.display()
    );
    Ok(())
}

/// Why a client's last line is no measurement: answers wrong, not compared, lost or duplicate, refusals, no
/// request.
pub fn missing(run: &Value) -> Option<String> {
    let refused = run["refused"].as_object().map(|all| all.values().filter_map(Value::as_u64).sum());
    if run["reference"] != true {
        return Some("no answer was compared with a reference".into());
    }
    if run["sent"] == 0 {
        return Some("no request was due while the client ran".into());
    }
    let counts = ["wrong", "lost", "duplicate"].map(|name| (name, run[name].as_u64()));
    counts.into_iter().chain([("refused", refused)]).find_map(|(name, count)| match count {
        Some(0) => None,
        Some(count) => Some(format!("{count} {name} of {} requests", run["sent"])),
        None => Some(format!("the client does not count {name}")),
    })
}

/// What would be measured, drawn and judged (INV-10). `said`: what stands behind the number of points, and
/// behind the NIC. `commands`: the lines of a series.
pub fn dry_run(
    (experiment, options): (&Experiment, &Options),
    said: [&str; 2],
    (grid, left_out): (&Grid, &[String]),
    commands: &dyn Fn(&String) -> Result<Vec<String>>,
) -> Result<String> {
    let (spec, machine, points) = (&experiment.spec, options.machine(), grid.keys().len());
    let mut lines = vec![
        format!("{}: {}", spec.name, spec.title),
        format!("{points} points{}; each point ends within nine minutes, --resume goes on", said[0]),
        format!("nic: {}{}; machine: {}", options.nic_in_words(), said[1], machine.name()),
        format!("results: {}", options.how(experiment).out.display()),
    ];
    for series in &grid.series {
        lines.extend(commands(series)?);
    }
    if !left_out.is_empty() {
        lines.push(format!("left out: {}", left_out.join(", ")));
    }
    lines.push("answers are compared with a file of `profiler reference`, one a model".into());
    let timelines = spec.timelines.iter().map(|plot| (&plot.name, &plot.title, &plot.series));
    let plots = timelines.chain(spec.stacks.iter().map(|plot| (&plot.name, &plot.title, &plot.series)));
    let drawn = plots.filter(|(_, _, series)| grid.series.iter().any(|one| series.contains(one)));
    lines.extend(drawn.map(|(name, title, _)| format!("draws: {name}: {title}")));
    lines.extend(judged(experiment, false));
    let twin = "label: emulated (the host twin): no claim about a GPU or a server's CPU is judged";
    lines.extend((machine == Machine::Twin).then(|| twin.to_owned()));
    Ok(lines.join("\n"))
}
