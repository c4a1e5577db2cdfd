//! `profiler run`: a model again and again, alone or several instances side by side, timed and compared with
//! a run alone.
//!
//! Every instance has inputs of its own. What one computes beside others must be, bit for bit, what it
//! computed alone. Left out: energy.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use inference::engine::gpu::{Instance, SelfLaunchingInstance};
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use measure::{Histogram, JsonLines, Label, Part, Provenance, Summary, Timer};
use serde::Serialize;

use crate::model::{self, Model, views};
use crate::subject::{self, Called, Launched, Own, Subject};

/// What CUDA needs to run as many streams side by side, set before a context is made.
const CONNECTIONS: (&str, &str) = ("CUDA_DEVICE_MAX_CONNECTIONS", "32");
/// Runs that `--launch graph` puts into a stream before it waits.
const ENQUEUED: usize = 100;
/// Outputs of a GPU's instance are compared after so many waits, and after the last one: to copy them takes
/// time.
const COMPARED_EVERY: u64 = 64;
/// Longest wait for the end of a graph that was cancelled.
const END: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: model::Choice,
    /// What runs the model.
    #[arg(long, value_enum)]
    engine: Engine,
    /// How a GPU is told to run: with --engine own [default: self].
    #[arg(long, value_enum)]
    launch: Option<Launch>,
    /// Instances side by side, each with inputs of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    instances: u16,
    /// Length of the measurement; at least one run of each instance is measured.
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// Least number of runs, of all instances together; the measurement goes on until they are done.
    #[arg(long, value_name = "N", default_value_t = 0)]
    runs: u64,
    /// Time before it in which all instances run and nothing is recorded.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds)]
    warmup: f64,
    /// Threads of one instance: with --engine cpu [default: the cores, shared by the instances].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Append the result to FILE as one line of JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    own: subject::Gpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Engine {
    /// ONNX Runtime on the processor: a substitute for a GPU.
    Cpu,
    /// Our kernels on the host twin: a substitute whose times say nothing about a GPU.
    Twin,
    /// Our kernels on a GPU.
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Launch {
    /// The CPU launches the model's graph and waits for its end, each time.
    Host,
    /// The CPU launches the graph 100 times before it waits.
    Graph,
    /// The graph launches itself; the CPU looks on.
    #[value(name = "self")]
    #[serde(rename = "self")]
    ByItself,
}

/// Seconds, a day at most.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("{text} is not within 0 to 86400"))
    }
}

/// What was measured of one instance.
#[derive(Default)]
struct Measured {
    histogram: Histogram,
    elapsed: Duration,
    compared: u64,
    wrong: u64,
}

/// One line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    kind: &'static str,
    model: &'a str,
    weights: &'a str,
    engine: Engine,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<Launch>,
    batch: usize,
    format: model::Values,
    instances: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<usize>,
    seconds: f64,
    warmup_seconds: f64,
    /// What `run` and the quantiles measure.
    timer: Timer,
    clock: &'static str,
    runs: u64,
    /// Runs of all instances in a second.
    runs_per_s: f64,
    /// Bytes of one run.
    input_bytes: u64,
    output_bytes: u64,
    run: Summary,
    /// 1,001 of them: the 0th, 0.1th, … 100th percentile.
    quantiles_ns: Vec<u64>,
    outputs_compared: u64,
    outputs_wrong: u64,
    energy: &'static str,
    label: Label,
    #[serde(skip_serializing_if = "Option::is_none")]
    substitute: Option<&'static str>,
    provenance: Provenance,
}

/// Whether every instance computed what it computes alone.
pub fn run(options: &Options) -> Result<bool> {
    let on_a_gpu = options.engine == Engine::Own;
    ensure!(on_a_gpu || options.launch.is_none(), "--launch is for --engine own: other engines are called");
    ensure!(
        options.engine == Engine::Cpu || options.threads.is_none(),
        "--threads is for --engine cpu: the twin uses all cores, a GPU none"
    );
    let given = options.model.format != model::Values::Nchw;
    ensure!(
        options.engine != Engine::Cpu || !given,
        "--format is for our kernels: ONNX Runtime has its own way"
    );
    if on_a_gpu && std::env::var_os(CONNECTIONS.0).is_none() {
        let us = std::env::current_exe().context("finding this program")?;
        let mut again = Command::new(us);
        again.args(std::env::args_os().skip(1)).env(CONNECTIONS.0, CONNECTIONS.1);
        return Err(again.exec()).context("starting again");
    }
    let model = Model::find(&options.model)?;
    let launch = on_a_gpu.then(|| options.launch.unwrap_or(Launch::ByItself));
    let mut provenance = Provenance::collect(&model.root, &[]);
    let cores = provenance.cores;
    let threads = options.threads.map_or((cores / usize::from(options.instances)).max(1), usize::from);
    let threads = (options.engine == Engine::Cpu).then_some(threads);
    let measured = match options.engine {
        Engine::Cpu => {
            let runtime = Runtime::load(options.model.onnxruntime.as_deref())?;
            let version = measure::provenance::library_version("libonnxruntime.so");
            provenance.versions.insert("onnxruntime".into(), version.unwrap_or_else(|| "unknown".into()));
            let called = |seed| {
                let engine = Box::new(runtime.model(&model.file, threads.unwrap_or(1))?);
                Ok(Box::new(Called::new(engine, model.inputs(seed))) as Box<dyn Subject>)
            };
            side_by_side(subjects(options, called)?, options, 1)?
        }
        Engine::Twin => {
            provenance.gpu = Label::Emulated;
            let plan = model.plan()?;
            let called = |seed| {
                let engine = Box::new(Twin::new(plan.clone())?);
                Ok(Box::new(Called::new(engine, model.inputs(seed))) as Box<dyn Subject>)
            };
            side_by_side(subjects(options, called)?, options, 1)?
        }
        Engine::Own => {
            let own = Own::load(&options.own, model.plan()?)?;
            (provenance.gpu, provenance.gpu_device) = (Label::Hardware, own.device.clone());
            provenance.versions.insert("cuda".into(), ::gpu::driver_version()?);
            let instance = |seed| -> Result<Instance> {
                let instance = Instance::new(&own.loaded)?;
                instance.bring(&views(&model.inputs(seed)))?;
                Ok(instance)
            };
            match launch {
                Some(Launch::ByItself) => by_themselves(subjects(options, instance)?, options)?,
                _ => {
                    let times = if launch == Some(Launch::Graph) { ENQUEUED } else { 1 };
                    let launched = |seed| {
                        Ok(Box::new(Launched { instance: instance(seed)?, times }) as Box<dyn Subject>)
                    };
                    side_by_side(subjects(options, launched)?, options, COMPARED_EVERY)?
                }
            }
        }
    };
    report(options, &model, launch, threads, provenance, &measured)
}

/// As many as there are instances, by the seed of each one's inputs.
fn subjects<T>(options: &Options, make: impl Fn(u64) -> Result<T>) -> Result<Vec<T>> {
    (1..=u64::from(options.instances)).map(make).collect()
}

/// Each instance on a thread of its own, all at once. `every`: after how many waits outputs are compared.
fn side_by_side(mut subjects: Vec<Box<dyn Subject>>, options: &Options, every: u64) -> Result<Vec<Measured>> {
    let mut alone = Vec::new();
    for subject in &mut subjects {
        subject.runs()?;
        alone.push(subject.outputs()?);
    }
    let (warmup, seconds) =
        (Duration::from_secs_f64(options.warmup), Duration::from_secs_f64(options.seconds));
    let runs = options.runs.div_ceil(subjects.len() as u64);
    let together = Barrier::new(subjects.len());
    std::thread::scope(|scope| {
        let start = |(mut subject, wanted): (Box<dyn Subject>, Vec<Vec<f32>>)| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                let since = Instant::now();
                while since.elapsed() < warmup {
                    subject.runs()?;
                }
                again_and_again(subject.as_mut(), &wanted, (seconds, runs), every)
            })
        };
        let threads: Vec<_> = subjects.into_iter().zip(alone).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Measured>>| {
            thread.join().map_err(|_| anyhow::anyhow!("an instance's thread panicked"))?
        };
        threads.into_iter().map(join).collect()
    })
}

/// Runs for so long, and so often, and once at least.
fn again_and_again(
    subject: &mut dyn Subject,
    wanted: &[Vec<f32>],
    (seconds, runs): (Duration, u64),
    every: u64,
) -> Result<Measured> {
    let mut measured = Measured::default();
    let since = Instant::now();
    for wait in 1.. {
        let (time, times) = subject.runs()?;
        measured.histogram.record_n(time.as_nanos() as u64, times);
        let is_last = since.elapsed() >= seconds && measured.histogram.count() >= runs;
        if is_last {
            measured.elapsed = since.elapsed();
        }
        if is_last || wait % every == 0 {
            measured.compared += 1;
            measured.wrong += u64::from(!same(&subject.outputs()?, wanted));
        }
        if is_last {
            break;
        }
    }
    Ok(measured)
}

/// The same bits.
fn same(found: &[Vec<f32>], wanted: &[Vec<f32>]) -> bool {
    let bits = |tensors: &[Vec<f32>]| -> Vec<Vec<u32>> {
        tensors.iter().map(|tensor| tensor.iter().map(|element| element.to_bits()).collect()).collect()
    };
    bits(found) == bits(wanted)
}

/// Graphs that launch themselves, all at once; this thread looks at their counters of turns.
fn by_themselves(instances: Vec<Instance>, options: &Options) -> Result<Vec<Measured>> {
    let mut all: Vec<(SelfLaunchingInstance, Vec<Vec<f32>>)> = Vec::new();
    for instance in instances {
        instance.launch(1)?;
        instance.wait()?;
        let alone = instance.outputs()?;
        all.push((instance.self_launching(0)?, alone));
    }
    for (graph, _) in &mut all {
        graph.start()?;
    }
    watch(&all, Duration::from_secs_f64(options.warmup), 0)?;
    let runs = options.runs.div_ceil(all.len() as u64);
    let mut measured = watch(&all, Duration::from_secs_f64(options.seconds), runs.max(1))?;
    all.iter().for_each(|(graph, _)| graph.graph().cancel());
    for ((graph, alone), measured) in all.iter().zip(&mut measured) {
        graph.graph().wait(END)?;
        measured.compared += 1;
        measured.wrong += u64::from(!same(&graph.outputs()?, alone));
    }
    Ok(measured)
}

/// Looks at all counters of turns, again and again, for so long and until each instance has had so many
/// turns. The first change that is seen of each begins its measurement.
fn watch(
    all: &[(SelfLaunchingInstance, Vec<Vec<f32>>)],
    seconds: Duration,
    runs: u64,
) -> Result<Vec<Measured>> {
    let mut measured: Vec<Measured> = all.iter().map(|_| Measured::default()).collect();
    let since = Instant::now();
    // Of each: its turns, when the last one was seen to end, and whether that was seen as it happened.
    let mut seen: Vec<(u32, Instant, bool)> =
        all.iter().map(|(graph, _)| (graph.graph().turns(), since, false)).collect();
    while since.elapsed() < seconds || measured.iter().any(|one| one.histogram.count() < runs) {
        for (((graph, _), seen), measured) in all.iter().zip(&mut seen).zip(&mut measured) {
            let (turns, now) = (graph.graph().turns(), Instant::now());
            let (more, time) = (turns.wrapping_sub(seen.0), now - seen.1);
            if more == 0 {
                ensure!(time < END, "an instance has had no turn for {} s", END.as_secs());
                continue;
            }
            if seen.2 {
                measured.histogram.record_n(time.as_nanos() as u64 / u64::from(more), more.into());
                measured.elapsed += time;
            }
            *seen = (turns, now, true);
        }
    }
    for (graph, _) in all {
        ensure!(graph.graph().ended()?.is_none(), "a graph ended by itself: {:?}", graph.graph().ended()?);
    }
    Ok(measured)
}

/// What a run's time is, by the way in which it is started.
fn timer(launch: Option<Launch>) -> Timer {
    let (starts, stops) = match launch {
        None => ("before a model's inputs are handed to its engine", "when its outputs are there"),
        Some(Launch::Host) => ("before the CPU launches the graph", "when its stream is idle"),
        Some(Launch::Graph) => {
            ("before the CPU launches the graph 100 times", "when its stream is idle; divided by 100")
        }
        Some(Launch::ByItself) => {
            ("when the CPU, which polls the counters of turns, sees one end", "when it sees the next one end")
        }
    };
    Timer { name: "run_ns", starts, stops }
}

/// Prints what was measured, and whether all outputs were right.
fn report(
    options: &Options,
    model: &Model,
    launch: Option<Launch>,
    threads: Option<usize>,
    provenance: Provenance,
    measured: &[Measured],
) -> Result<bool> {
    let mut histogram = Histogram::new();
    measured.iter().for_each(|one| histogram.merge(&one.histogram));
    let rate = |one: &Measured| one.histogram.count() as f64 / one.elapsed.as_secs_f64().max(1e-9);
    let [input_bytes, output_bytes] = model.bytes();
    let outputs_wrong = measured.iter().map(|one| one.wrong).sum();
    let line = Line {
        kind: "profiler-run",
        model: &model.manifest.name,
        weights: &model.weights,
        engine: options.engine,
        launch,
        batch: model.batch,
        format: options.model.format,
        instances: options.instances,
        threads,
        seconds: options.seconds,
        warmup_seconds: options.warmup,
        timer: timer(launch),
        clock: "CLOCK_MONOTONIC of the CPU",
        runs: histogram.count(),
        runs_per_s: measured.iter().map(rate).sum(),
        input_bytes,
        output_bytes,
        run: histogram.summary().context("nothing was measured")?,
        quantiles_ns: (0..=1000).map(|at| histogram.percentile_ns(f64::from(at) / 10.0)).collect(),
        outputs_compared: measured.iter().map(|one| one.compared).sum(),
        outputs_wrong,
        energy: "n/a: not measured",
        label: provenance.label(&[Part::Gpu]),
        substitute: match options.engine {
            Engine::Cpu => Some("the processor, in the place of a GPU"),
            Engine::Twin => Some("the host twin, in the place of a GPU"),
            Engine::Own => None,
        },
        provenance,
    };
    if options.json.as_deref() != Some(Path::new("-")) {
        say_line(&line, model);
    }
    match options.json.as_deref() {
        Some(path) if path == Path::new("-") => say!("{}", serde_json::to_string(&line)?),
        Some(path) => JsonLines::append_to(path)
            .and_then(|mut lines| lines.push(&line))
            .with_context(|| format!("--json {}", path.display()))?,
        None => {}
    }
    Ok(outputs_wrong == 0)
}

/// The result for people.
fn say_line(line: &Line<'_>, model: &Model) {
    let ms = |ns: u64| ns as f64 / 1e6;
    say!("{}, batch {}: {}", model.manifest.title, line.batch, line.weights);
    let with = line.threads.map_or_else(String::new, |threads| format!(", {threads} threads each"));
    say!("{} side by side{with}: {} runs, {:.1} a second", line.instances, line.runs, line.runs_per_s);
    let Summary { min_ns, p50_ns, p90_ns, p99_ns, max_ns, .. } = line.run;
    let [least, p50, p90, p99, most] = [min_ns, p50_ns, p90_ns, p99_ns, max_ns].map(ms);
    say!("one run, ms: least {least:.3}, p50 {p50:.3}, p90 {p90:.3}, p99 {p99:.3}, most {most:.3}");
    say!("  from: {}; to: {}; {}", line.timer.starts, line.timer.stops, line.clock);
    say!(
        "outputs: {} compared with those of a run alone, bit for bit, {} wrong",
        line.outputs_compared,
        line.outputs_wrong
    );
    let substitute = line.substitute.map_or_else(String::new, |what| format!("; a substitute: {what}"));
    say!("label: {} (gpu: {}){substitute}; energy: {}", line.label, line.provenance.gpu, line.energy);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives another output each time that it is `wrong`.
    struct Fake {
        runs: u32,
        wrong: fn(u32) -> bool,
    }

    impl Subject for Fake {
        fn runs(&mut self) -> Result<(Duration, u64)> {
            self.runs += 1;
            Ok((Duration::from_micros(10), 2))
        }

        fn outputs(&mut self) -> Result<Vec<Vec<f32>>> {
            Ok(vec![vec![if (self.wrong)(self.runs) { -0.0 } else { 0.0 }]])
        }
    }

    #[test]
    fn an_output_that_differs_in_one_bit_is_wrong() {
        for (wrong, every, expected) in [
            ((|_| false) as fn(u32) -> bool, 1, false),
            (|run| run == 2, 1, true),
            // Between two comparisons, and in the last run, which is always compared.
            (|run| run == 2, 1_000_000, false),
            (|run| run > 1, 1_000_000, true),
        ] {
            let mut fake = Fake { runs: 0, wrong };
            fake.runs().unwrap();
            let wanted = fake.outputs().unwrap();
            let measured =
                again_and_again(&mut fake, &wanted, (Duration::from_millis(1), 20), every).unwrap();
            assert_eq!(measured.wrong > 0, expected, "every {every}");
            assert!(measured.histogram.count() >= 20);
            assert_eq!(measured.histogram.count(), 2 * u64::from(fake.runs - 1));
        }
    }

    #[test]
    fn a_duration_that_is_none_is_refused() {
        for (text, taken) in [("0", true), ("1.5", true), ("-1", false), ("NaN", false), ("1e300", false)] {
            assert_eq!(seconds(text).is_ok(), taken, "{text}");
        }
    }
}
