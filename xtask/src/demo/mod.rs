//! `cargo xtask demo`: a server and a client over the software NIC, each answer compared with a reference.
//!
//! Without ONNX Runtime the host twin computes reference and answers, as the label says. Then the path of
//! requests is checked, not the model's numbers. Times are of an emulated NIC; no verdict uses them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use experiment::resume;
use serde_json::Value;

use crate::figure::serving::Programs;
use crate::process::{Ended, JsonProgram, WAIT, run_logged};
use crate::setup::{self, Purpose};
use crate::{carried, files, stop, wheels, workspace, zoo};

const MODEL: &str = "squeezenet-1.1";
/// Different inputs; the first answer to each is compared with the reference.
const INPUTS: u64 = 16;
/// Answers without `--answers`: by ONNX Runtime, and by the twin.
const ANSWERS: [u64; 2] = [1000, 32];
/// Longest that all of it is to take after the build.
const AIM: Duration = Duration::from_secs(60);
/// Longest that the reference, and a further line of the client, may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Longest that the client may take for as many answers as [`ANSWERS`] says.
const RUN: Duration = Duration::from_secs(600);
const PACKAGES: [&str; 8] = ["-p", "softnic", "-p", "inference-server", "-p", "client", "-p", "profiler"];
/// Counts of the client that have to be 0, in the table's order.
const FAULTS: [&str; 4] = ["wrong", "lost", "late", "duplicate"];

#[derive(Args, Default)]
pub struct Options {
    /// Answers to ask for, 16 or more: each input at least once [default: 1000, by the twin 32].
    #[arg(long, value_name = "N", value_parser = answers)]
    answers: Option<u64>,
    /// What runs the model [default: onnx where ONNX Runtime is or can be fetched, else twin].
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Where logs go [default: results/demo].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the command for missing packages, do not run it; without ONNX Runtime the twin runs the model.
    #[arg(long)]
    no_install: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// ONNX Runtime on the processor.
    Onnx,
    /// Our CUDA kernels, run by the host twin on the processor.
    Twin,
}

impl Engine {
    /// The server's and the profiler's name for it.
    fn names(self) -> [&'static str; 2] {
        match self {
            Engine::Onnx => ["onnx", "cpu"],
            Engine::Twin => ["twin", "twin"],
        }
    }

    fn label(self) -> &'static str {
        match self {
            Engine::Onnx => "GPU none; engine: ONNX Runtime on the processor",
            Engine::Twin => {
                "GPU emulated; engine: our CUDA kernels on the processor (host twin), the reference's too"
            }
        }
    }
}

/// Of `--answers`: the first answer to each input is the one that is compared with the reference.
fn answers(text: &str) -> Result<u64, String> {
    let answers = text.parse().ok().filter(|answers| *answers >= INPUTS);
    answers.ok_or_else(|| format!("{INPUTS} or more are needed, one to each of the {INPUTS} inputs"))
}

pub fn run(options: &Options) -> Result<()> {
    let out = options.out.clone().unwrap_or_else(|| workspace::results("demo"));
    let _locked = resume::lock(&out)?;
    setup::prepare(Purpose::Figure, options.no_install)?;
    let engine = engine(options)?;
    if carried::folder().is_none() {
        say!("building server, client, profiler and the software NIC, some minutes the first time");
        workspace::build(&PACKAGES)?;
    }
    let folder = carried::folder().map_or_else(|| workspace::target_dir().join("debug"), Path::to_owned);
    let answers = options.answers.unwrap_or(ANSWERS[engine as usize]);
    stop::goes_on_with(format!("; logs are in {}", out.join("logs").display()));
    execute(&Programs::of(&folder), &out, engine, answers)
}

/// The engine that was asked for, or the best that this machine can have.
fn engine(options: &Options) -> Result<Engine> {
    if options.engine == Some(Engine::Twin) {
        return Ok(Engine::Twin);
    }
    match (setup::onnx_runtime(options.no_install), options.engine) {
        (Ok(()), _) => Ok(Engine::Onnx),
        (Err(error), Some(_)) => Err(error),
        (Err(error), None) => {
            say!("{}", twin_instead(&format!("{error:#}")));
            Ok(Engine::Twin)
        }
    }
}

/// Why the twin stands in, without the long command that fetches ONNX Runtime.
fn twin_instead(why: &str) -> String {
    let why = why.split("; fetch it with:").next().unwrap_or_default();
    let us = workspace::us();
    format!(
        "demo: {why}: the host twin runs the model; `{us} doctor` has the command that fetches ONNX Runtime"
    )
}

/// Runs both ends and judges what they counted.
fn execute(programs: &Programs, out: &Path, engine: Engine, answers: u64) -> Result<()> {
    let since = Instant::now();
    let logs = out.join("logs");
    let [served_by, reference_by] = engine.names();
    let file = out.join("reference.f32");
    // One of an earlier run must not be taken for this one's.
    files::remove(&file)?;
    let inputs = INPUTS.to_string();
    let mut reference = Command::new(&programs.profiler);
    reference.args(["reference", MODEL, "--engine", reference_by, "--inputs", &inputs, "--out"]).arg(&file);
    let log = logs.join("reference.log");
    let ended = run_logged(with_models(&mut reference), &log, LIMIT)?;
    ensure!(ended == Ended::Well && file.is_file(), "the profiler {ended}; see {}", log.display());

    let on_nic = |program: &Path| {
        let mut command = Command::new(&programs.softnic);
        command.args(["run", "--fabric", &format!("xtask-demo-{}", std::process::id()), "--"]).arg(program);
        command
    };
    let mut command = on_nic(&programs.server);
    command.args(["--listen", "127.0.0.1:0", "--model", MODEL, "--engine", served_by, "--sessions", "1"]);
    command.args(["--json", "-"]);
    let mut server = JsonProgram::start(with_models(&mut command), &logs.join("server.log"))?;
    let address = server.address("the server", LIMIT)?;
    say!("{MODEL}: {INPUTS} inputs, reference by {reference_by}; server at {address}, {answers} requests");
    let mut command = on_nic(&programs.client);
    command.args(["--connect", &address, "--model", MODEL, "--count", &answers.to_string()]);
    command.args(["--inputs", &inputs, "--deadline", "60", "--live", "--json", "-"]);
    command.arg("--manifests").arg(zoo::manifests()).arg("--reference").arg(&file);
    let mut client = JsonProgram::start(&mut command, &logs.join("client.log"))?;
    let limit =
        RUN.saturating_mul(u32::try_from(answers.div_ceil(ANSWERS[engine as usize])).unwrap_or(u32::MAX));
    let run = table(&mut client, limit);
    // A server that is gone says more than its client does.
    if let Some(ended) = server.child.poll()?.filter(|ended| *ended != Ended::Well) {
        bail!("verdict: WRONG: the server {ended}; see {}", server.log.display());
    }
    let run = run.context("the client")?;
    let client_ended = client.child.wait(WAIT)?;
    let served = server.json("served", WAIT).context("the server")?;
    let ends = [("client", client_ended), ("server", server.child.wait(WAIT)?)];

    let mut faults = faults(&run, &served, answers);
    let badly = ends.iter().filter(|(_, ended)| *ended != Ended::Well);
    faults.extend(badly.map(|(end, ended)| format!("the {end} {ended}")));
    summary(&run, engine, since.elapsed()).iter().for_each(|line| say!("{line}"));
    if !faults.is_empty() {
        bail!("verdict: WRONG: {}; logs are in {}", faults.join("; "), logs.display());
    }
    say!("{}", verdict(engine, answers));
    say!(
        "go on: `cargo xtask figure 4 --quick`; apps/inference-server/README.md starts these programs by hand"
    );
    Ok(())
}

/// What is said where nothing is wrong. A twin that is compared with itself judges no model.
fn verdict(engine: Engine, answers: u64) -> String {
    match engine {
        Engine::Twin => format!(
            "verdict: 0 answers are judged: no ONNX Runtime computed a reference; {answers} of {answers} came, and lie within 1e-4 of \
             what the twin itself computed"
        ),
        Engine::Onnx => format!(
            "verdict: right: {answers} of {answers} answers; the first one of each input lies within 1e-4 of the reference, each later \
             one equals it bit for bit"
        ),
    }
}

/// Tells a program where models are, and ONNX Runtime.
fn with_models(command: &mut Command) -> &mut Command {
    command.arg("--store").arg(zoo::folder()).arg("--manifests").arg(zoo::manifests());
    let runtime = Some(wheels::ONNX_RUNTIME.used()).filter(|folder| folder.exists());
    command.envs(runtime.map(|folder| (wheels::ONNX_RUNTIME.variable, folder)))
}

/// Prints a row for each second, and returns the client's last line. Fails at a line after `limit`.
fn table(client: &mut JsonProgram, limit: Duration) -> Result<Value> {
    let since = Instant::now();
    say!("     s   answers  answers/s   p50, ms   p99, ms   wrong    lost    late  duplicate");
    loop {
        let line = client.json_of(&["live", "run"], LIMIT)?;
        if line["kind"] == "run" {
            return Ok(line);
        }
        let (seconds, log) = (limit.as_secs(), client.log.display());
        ensure!(since.elapsed() < limit, "it did not end within {seconds} s; see {log}");
        let number = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
        let [wrong, lost, late, duplicate] = FAULTS.map(number);
        let (seconds, answers, rate) = (number("seconds"), number("answered"), number("rate"));
        let (p50, p99) = (number("p50_ms"), number("p99_ms"));
        say!(
            "{seconds:>6.0} {answers:>9} {rate:>10} {p50:>9.2} {p99:>9.2} {wrong:>7} {lost:>7} {late:>7} {duplicate:>10}"
        );
    }
}

/// What is wrong with what both ends counted.
fn faults(run: &Value, served: &Value, answers: u64) -> Vec<String> {
    let mut faults = Vec::new();
    for name in FAULTS {
        match run[name].as_u64() {
            Some(0) => {}
            Some(count) => faults.push(format!("{count} {name}")),
            None => faults.push(format!("the client does not count {name}")),
        }
    }
    let refused = run["refused"].as_object();
    faults.extend(refused.into_iter().flatten().map(|(status, count)| format!("{count} refused: {status}")));
    faults.extend(["first_wrong", "error"].iter().filter_map(|name| run[*name].as_str().map(str::to_owned)));
    for (name, count) in [
        ("requests sent", &run["sent"]),
        ("answers", &run["answered"]),
        ("answers by the server's count", &served["answered"]),
    ] {
        if *count != answers {
            faults.push(format!("{count} {name}, not {answers}"));
        }
    }
    if run["reference"] != true {
        faults.push("no answer was compared with the reference".into());
    }
    faults
}

fn summary(run: &Value, engine: Engine, taken: Duration) -> Vec<String> {
    let number = |pointer: &str| run.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let [nic, link] = ["nic", "link"].map(|name| run[name].as_str().unwrap_or("unknown"));
    let [p50, p99] = ["/latency/p50_ns", "/latency/p99_ns"].map(|name| number(name) / 1e6);
    let (rate, most) = (number("/answers_per_second"), AIM.as_secs());
    let is_met = if taken > AIM { "aim not met" } else { "aim met" };
    let counts = FAULTS.map(|name| format!("{} {name}", run[name])).join(", ");
    let fetch = || format!("engine: ONNX Runtime instead of the twin by: {}", wheels::ONNX_RUNTIME.by_hand());
    let lines = [
        format!("counts: {} answers, {counts}", run["answered"]),
        format!("time: {:.1} s after the build, at most {most} are the aim: {is_met}", taken.as_secs_f64()),
        format!(
            "times: {rate:.1} answers/s, p50 {p50:.2} ms, p99 {p99:.2} ms; the NIC is emulated and shares these cores: \
             they tell nothing of a card"
        ),
        format!("label: NIC {nic}, link {link}, two processes of this machine; {}", engine.label()),
    ];
    lines.into_iter().chain((engine == Engine::Twin).then(fetch)).collect()
}

#[cfg(test)]
mod tests;
