//! `profiler layers`: how long each step of a model takes, and what computes it, beside its work and the
//! bytes that it touches.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use inference::engine::gpu::{Chosen, Instance};
use inference::engine::twin::Twin;
use inference::graph::Shape;
use inference::plan::{Plan, Source, Step, Task};
use prost::Message;

use crate::engine::Engine;
use crate::engine::name;
use crate::format::{self, Layout};
use crate::model::{self, Model, views};
use crate::start::Start;
use crate::subject::{self, OnGpu};

/// Launches of the graph whose period is told.
const LAUNCHES: usize = 100;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: model::Choice,
    /// What runs the steps: twin, own or cuda.
    #[arg(long, value_parser = Engine::of_plans(), default_value = "twin")]
    engine: Engine,
    #[command(flatten)]
    format: format::Choice,
    /// Runs of the whole model; a step's time is the least of them.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    #[command(flatten)]
    gpu: subject::Gpu,
}

/// Times of a plan's steps.
struct Times {
    plan: Plan,
    /// What the times are.
    what: String,
    of_steps: Vec<Duration>,
    /// What computes each step.
    by: Vec<String>,
    /// That of the whole graph, on a GPU.
    period: Option<Duration>,
}

/// Prints the table.
pub fn run(options: &Options) -> Result<bool> {
    options.gpu.check(options.engine)?;
    let formats = options.format.formats(options.engine)?;
    let model = Model::find(&options.model)?;
    let plans = model.plans(&formats)?;
    let times = match options.engine {
        Engine::Own | Engine::Cuda => on_a_gpu(options, &model, plans)?,
        Engine::Twin | Engine::Cpu => on_the_twin(options, &model, plans)?,
    };
    let macs = macs(&model);
    let whole: Duration = times.of_steps.iter().sum();
    say!("{}, batch {}: {}", model.manifest.title, model.batch, model.weights);
    let layout = name(Layout::of(times.plan.format));
    say!("{} {} {layout}; {}", name(options.engine), name(options.format.precision), times.what);
    say!(
        "{:>9} {:>6} {:>11} {:>9}  {:22} {:>16}  {:24} layer",
        "time, µs",
        "share",
        "MACs, 10^6",
        "bytes",
        "operator",
        "shape",
        "computed by"
    );
    for ((step, time), by) in times.plan.steps.iter().zip(&times.of_steps).zip(&times.by) {
        say!(
            "{:9.1} {:5.1}% {:11.3} {:9}  {:22} {:>16}  {by:24} {}",
            micros(*time),
            100.0 * time.as_secs_f64() / whole.as_secs_f64().max(1e-12),
            macs_of(step, &macs) as f64 / 1e6,
            bytes_of(&times.plan, step),
            step.task.to_string(),
            step.to.to_string(),
            step.names.join(" ")
        );
    }
    let all: u64 = times.plan.steps.iter().map(|step| macs_of(step, &macs)).sum();
    let beside = times.period.map_or_else(String::new, |period| {
        format!(
            "the graph's period, launched by the host {LAUNCHES} times in a row: {:.1} µs; ",
            micros(period)
        )
    });
    say!(
        "{:9.1} {:>6} {:11.3}  {beside}{} steps",
        micros(whole),
        "100%",
        all as f64 / 1e6,
        times.plan.steps.len()
    );
    Ok(true)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn on_the_twin(options: &Options, model: &Model, mut plans: Vec<Plan>) -> Result<Times> {
    let mut twin = Twin::new(plans.swap_remove(0))?;
    twin.bring(&views(&model.inputs(1)))?;
    let mut of_steps = vec![Duration::MAX; twin.plan().steps.len()];
    for _ in 0..options.repeat {
        for (at, least) in of_steps.iter_mut().enumerate() {
            let since = Instant::now();
            twin.launch(at)?;
            *least = since.elapsed().min(*least);
        }
    }
    let what = format!(
        "host twin, a substitute for a GPU; CLOCK_MONOTONIC around each launch, the least of {}",
        options.repeat
    );
    let by = vec!["twin".to_owned(); of_steps.len()];
    Ok(Times { plan: twin.plan().clone(), what, of_steps, by, period: None })
}

fn on_a_gpu(options: &Options, model: &Model, plans: Vec<Plan>) -> Result<Times> {
    let on_gpu = OnGpu::load(&options.gpu, options.engine, plans, &mut Start::of_this_process())?;
    let loaded = &on_gpu.loaded;
    let mut instance = Instance::new(loaded)?;
    instance.bring(&views(&model.inputs(1)))?;
    // Steps read what those before them wrote: once all of them.
    instance.launch(1)?;
    instance.wait()?;
    let of_steps = instance.step_times(options.repeat.into())?;
    let mut period = Duration::MAX;
    for _ in 0..options.repeat {
        period = period.min(instance.period(LAUNCHES)?);
    }
    let what = format!(
        "{}; libraries: {}; the GPU's events around many runs of a step in one graph, the least of {}",
        on_gpu.device,
        loaded.libraries(),
        options.repeat
    );
    let by = loaded.chosen().iter().map(|Chosen { by, .. }| by.to_string()).collect();
    Ok(Times { plan: loaded.plan().clone(), what, of_steps, by, period: Some(period) })
}

/// Multiply-accumulates of one run by the node's name; none where the file has an operator that is not
/// counted.
fn macs(model: &Model) -> BTreeMap<String, u64> {
    let decoded = zoo::onnx::Model::decode(&*model.file).ok();
    let counted = decoded.and_then(|file| zoo::count::count(&file).ok());
    counted.into_iter().flat_map(|count| count.nodes).map(|node| (node.name, node.macs)).collect()
}

/// Those of the nodes that a step computes.
fn macs_of(step: &Step, macs: &BTreeMap<String, u64>) -> u64 {
    step.names.iter().filter_map(|name| macs.get(name)).sum()
}

/// Bytes of all that a step reads and writes, each once; biases are counted as weights are.
fn bytes_of(plan: &Plan, step: &Step) -> usize {
    let of_arena = |shape: &Shape| shape.count() * plan.format.precision.bytes();
    // Inputs and outputs of the model are of single precision.
    let of_slot = |shape: &Shape| shape.count() * size_of::<f32>();
    let is_loaded =
        matches!((&step.task, step.reads.first()), (Task::Load { .. }, _) | (_, Some(Source::Input(_))));
    let first = if is_loaded { of_slot(&step.from) } else { of_arena(&step.from) };
    let (residual, written) = match &step.task {
        Task::Store { .. } => (0, of_slot(&step.to)),
        Task::Compute { residual: Some(_), .. } => (of_arena(&step.to), of_arena(&step.to)),
        Task::Load { .. } | Task::Compute { .. } | Task::Copy => (0, of_arena(&step.to)),
    };
    let second = match (step.reads.get(1), &step.second) {
        (Some(Source::Arena(_)), Some(shape)) => of_arena(shape),
        _ => 0,
    };
    let constants = step.reads.iter().map(|source| match source {
        Source::Constant(number) => plan.constants[*number].len() * plan.format.precision.bytes(),
        Source::Arena(_) | Source::Input(_) => 0,
    });
    first + residual + written + second + constants.sum::<usize>()
}
