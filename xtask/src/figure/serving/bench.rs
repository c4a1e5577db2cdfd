//! What figures of a server share: the programs on the software NIC, a server that listens, its clients, and what a point stands on.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment::point::{Key, Point};
use experiment::{Experiment, Spec, resume};
use measure::{Label, Part, Provenance};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::figure::app;
use crate::figure::judged::judged;
use crate::figure::nic::{self, Nic};
use crate::figure::options::{Machine, Options};
use crate::gpu_machine::GpuMachine;
use crate::onnx_runtime::Search;
use crate::process::{Ended, JsonProgram, WAIT, run_logged};
use crate::setup::{self, Purpose};
use crate::{files, wheels, workspace, zoo};

/// Until the server listens: it compiles kernels and loads a model.
pub const BEGIN: Duration = Duration::from_secs(180);
/// Until the server has ended after the signal. Both, and the longest serving, are below nine minutes.
pub const END: Duration = Duration::from_secs(60);
/// Longest wait for a line of the client's, which says one each second.
pub const SILENCE: Duration = Duration::from_secs(60);
/// Longest that a model's reference may take.
pub const REFERENCE: Duration = Duration::from_secs(120);
/// How far an answer may lie from the reference, as a share of its root mean square: engines add in orders of their own.
const TOLERANCE: &str = "1e-3";
/// Packages of the programs.
const PACKAGES: [&str; 8] = ["-p", "inference-server", "-p", "client", "-p", "softnic", "-p", "profiler"];

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
    pub here: GpuMachine,
    pub programs: Programs,
    _locked: Option<resume::Locked>,
}

impl ServerFigure {
    /// Checks what the user can mend, and builds the programs; `None`: a dry run, which is said.
    pub fn begin(
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
        let known = |old: &Provenance| Provenance { nic_options: nic_options.clone(), ..app::known(old) };
        let _locked = Some(app::begin(spec, &how, &known)?);
        let here = GpuMachine::ask()?;
        if machine == Machine::Gpu {
            here.has_gpu(|why| {
                format!("{name}: no GPU here: {why}; --machine twin tries the command, and judges nothing")
            })?;
        }
        setup::prepare(Purpose::Figure, options.no_install)?;
        workspace::build_programs("server, client and the software NIC", &PACKAGES)?;
        let programs = Programs::of(&workspace::programs());
        Ok(Some(ServerFigure { how, machine, here, programs, _locked }))
    }

    /// By the stand-ins in a folder.
    #[cfg(test)]
    pub fn of_tests(folder: &Path, how: resume::Options, machine: Machine) -> ServerFigure {
        let here = match machine {
            Machine::Gpu => crate::gpu_machine::example(),
            Machine::Twin => GpuMachine::default(),
        };
        ServerFigure { how, machine, here, programs: Programs::of(folder), _locked: None }
    }

    /// Makes the folder of results, and the NIC in it.
    pub fn bench<'a>(&'a self, spec: &'a Spec) -> Result<ServerBench<'a>> {
        let out = &self.how.out;
        std::fs::create_dir_all(out.join("logs")).with_context(|| format!("--out {}", out.display()))?;
        Ok(ServerBench {
            figure: self,
            spec,
            provenance: self.provenance(spec)?,
            nic: Nic::software(spec, out)?,
            references: RefCell::default(),
        })
    }

    /// What the points stand on.
    fn provenance(&self, spec: &Spec) -> Result<Provenance> {
        let mut provenance = workspace::provenance()?;
        (provenance.nic, provenance.link) = (Label::Emulated, Label::Emulated);
        provenance.device = "mlx5_0".into();
        provenance.nic_options = nic::options(&spec.nic);
        if self.machine == Machine::Gpu {
            provenance.gpu = Label::Hardware;
            self.here.name_in(&mut provenance);
        } else {
            provenance.gpu = Label::Emulated;
            say!("the host twin stands in the GPU's place: the label says so, and no claim is judged");
        }
        Ok(provenance)
    }
}

/// Where points are measured: each has a server and clients of its own.
pub struct ServerBench<'a> {
    pub figure: &'a ServerFigure,
    pub spec: &'a Spec,
    pub provenance: Provenance,
    nic: Nic,
    /// Models whose references are there.
    references: RefCell<BTreeSet<String>>,
}

impl ServerBench<'_> {
    /// A point without numbers.
    pub fn point(&self, key: &Key, seconds: f64) -> Point {
        let label = self.provenance.label(&[Part::Gpu]);
        Point { seconds, ..Point::new(&self.spec.name, key.clone(), label, self.provenance.clone()) }
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.figure.how.out.join(format!("logs/{name}.log"))
    }

    /// A program on the NIC; options follow.
    fn on_nic(&self, program: &Path) -> Command {
        let mut command = self.nic.command(&self.figure.programs.softnic, program);
        command.envs(self.figure.here.toolkit.iter().map(|toolkit| (wheels::CUDA.variable, toolkit)));
        command
    }

    /// Starts a server of the zoo's models with these options.
    pub fn server(&self, options: &[String], log: &Path) -> Result<JsonProgram> {
        let mut command = self.on_nic(&self.figure.programs.server);
        command.args(options).arg("--store").arg(zoo::folder()).arg("--manifests").arg(zoo::manifests());
        JsonProgram::start(&mut command, log)
    }

    /// Starts a server, and waits until it listens: where.
    pub fn listening(&self, options: &[String], log: &Path) -> Result<(JsonProgram, String)> {
        let mut server = self.server(options, log)?;
        let address = server.address("the server", BEGIN)?;
        Ok((server, address))
    }

    /// The file that a model's answers are compared with, made once. By ONNX Runtime, or, where it is not, by our kernels without a
    /// server: on the GPU, launched by the CPU, or on the twin.
    pub fn reference(&self, model: &str) -> Result<PathBuf> {
        let file = self.figure.how.out.join(format!("reference-{model}.f32"));
        if self.references.borrow().contains(model) {
            return Ok(file);
        }
        // One of an earlier run must not be taken for this one's.
        files::remove(&file)?;
        let runtime = Search::here(None).find();
        let engine = match (&runtime, self.figure.machine) {
            (Ok(_), _) => "cpu",
            (Err(_), Machine::Gpu) => "own",
            (Err(_), Machine::Twin) => "twin",
        };
        let inputs = option(self.spec, "inputs")?.to_string();
        let mut command = Command::new(&self.figure.programs.profiler);
        command.args(["reference", model, "--engine", engine, "--inputs", &inputs, "--out"]).arg(&file);
        command.arg("--store").arg(zoo::folder()).arg("--manifests").arg(zoo::manifests());
        command.envs(self.figure.here.toolkit.iter().map(|toolkit| (wheels::CUDA.variable, toolkit)));
        command.envs(runtime.as_ref().map(|found| (wheels::ONNX_RUNTIME.variable, &found.library)));
        let log = self.log(&format!("reference-{model}"));
        let ended = run_logged(&mut command, &log, REFERENCE)?;
        ensure!(ended == Ended::Well && file.is_file(), "the profiler {ended}; see {}", log.display());
        let why = runtime.err().map_or_else(String::new, |why| format!(": no ONNX Runtime here: {why}"));
        say!("{model}: answers are compared with the profiler's, engine {engine}{why}");
        self.references.borrow_mut().insert(model.to_owned());
        Ok(file)
    }

    /// Starts a client of a model's server at an address with these options.
    pub fn client(&self, model: &str, address: &str, options: &[String], log: &Path) -> Result<JsonProgram> {
        let mut command = self.on_nic(&self.figure.programs.client);
        command.args(["--connect", address]).args(options).arg("--manifests").arg(zoo::manifests());
        command.arg("--reference").arg(self.reference(model)?).args(["--tolerance", TOLERANCE]);
        JsonProgram::start(&mut command, log)
    }
}

pub fn signal(process: u32, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(i32::try_from(process)?), signal).context("sending the server a signal")
}

/// What a server answers that is asked for its counters.
pub fn status(server: &mut JsonProgram) -> Result<Value> {
    signal(server.child.0.id(), Signal::SIGUSR1)?;
    server.json("status", WAIT).context("the server, asked for its counters")
}

/// Has a server end. Error: it does not end well.
pub fn end(server: &mut JsonProgram) -> Result<()> {
    signal(server.child.0.id(), Signal::SIGTERM)?;
    server.ends_well("the server", END)
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

/// Why a client's last line is no measurement: answers that are wrong, not compared, lost, of no request, or refusals.
pub fn missing(run: &Value) -> Option<String> {
    let refused = run["refused"].as_object().map(|all| all.values().filter_map(Value::as_u64).sum());
    if run["reference"] != true {
        return Some("no answer was compared with a reference".into());
    }
    let counts = ["wrong", "lost", "duplicate"].map(|name| (name, run[name].as_u64()));
    counts.into_iter().chain([("refused", refused)]).find_map(|(name, count)| match count {
        Some(0) => None,
        Some(count) => Some(format!("{count} {name} of {} requests", run["sent"])),
        None => Some(format!("the client does not count {name}")),
    })
}

/// The end of a dry run: which of `plots` (name, title, series) are drawn of the series that are kept, and what is judged.
pub fn drawn_and_judged<'a>(
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
    lines.push("answers are compared with a file of `profiler reference`, one a model".into());
    lines.extend(drawn.map(|(name, title, _)| format!("draws: {name}: {title}")));
    lines.extend(judged(experiment, false));
    if machine == Machine::Twin {
        lines
            .push("label: emulated (the host twin): no claim about a GPU or a server's CPU is judged".into());
    }
    lines
}
