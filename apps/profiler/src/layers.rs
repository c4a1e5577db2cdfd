//! `profiler layers`: how long each step of a model takes on the host twin, beside its work and the bytes
//! that it touches.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use inference::engine::twin::Twin;
use inference::graph::Shape;
use inference::plan::{Plan, Source, Step, Task};
use prost::Message;

use crate::model::{self, Model, views};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: model::Choice,
    /// What runs the steps.
    #[arg(long, value_enum, default_value_t = Engine::Twin)]
    engine: Engine,
    /// Runs of the whole model; a step's time is the least of them.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Our kernels on the host twin: shares of the work, not a GPU's times.
    Twin,
}

/// Prints the table.
pub fn run(options: &Options) -> Result<bool> {
    let Engine::Twin = options.engine;
    let model = Model::find(&options.model)?;
    let mut twin = Twin::new(model.plan()?)?;
    twin.bring(&views(&model.inputs(1)))?;
    let mut times = vec![Duration::MAX; twin.plan().steps.len()];
    for _ in 0..options.repeat {
        for (at, least) in times.iter_mut().enumerate() {
            let since = Instant::now();
            twin.launch(at)?;
            *least = since.elapsed().min(*least);
        }
    }
    let macs = macs(&model);
    let plan = twin.plan();
    let whole: Duration = times.iter().sum();
    say!("{}, batch {}: {}", model.manifest.title, model.batch, model.weights);
    say!(
        "host twin, a substitute for a GPU; CLOCK_MONOTONIC around each launch, the least of {}",
        options.repeat
    );
    say!(
        "{:>9} {:>6} {:>11} {:>9}  {:22} {:>16}  layer",
        "time, µs",
        "share",
        "MACs, 10^6",
        "bytes",
        "operator",
        "shape"
    );
    for (step, time) in plan.steps.iter().zip(&times) {
        say!(
            "{:9.1} {:5.1}% {:11.3} {:9}  {:22} {:>16}  {}",
            time.as_secs_f64() * 1e6,
            100.0 * time.as_secs_f64() / whole.as_secs_f64().max(1e-12),
            macs_of(step, &macs) as f64 / 1e6,
            bytes_of(plan, step),
            step.task.to_string(),
            step.to.to_string(),
            step.names.join(" ")
        );
    }
    let all: u64 = plan.steps.iter().map(|step| macs_of(step, &macs)).sum();
    say!(
        "{:9.1} {:>6} {:11.3}  {} steps",
        whole.as_secs_f64() * 1e6,
        "100%",
        all as f64 / 1e6,
        plan.steps.len()
    );
    Ok(true)
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
    let (read, written) = match &step.task {
        Task::Load { .. } => (of_slot(&step.from), of_arena(&step.to)),
        Task::Store { .. } => (of_arena(&step.from), of_slot(&step.to)),
        Task::Compute { residual: Some(_), .. } => {
            (of_arena(&step.from) + of_arena(&step.to), of_arena(&step.to))
        }
        Task::Compute { .. } | Task::Copy => (of_arena(&step.from), of_arena(&step.to)),
    };
    let second = match (step.reads.get(1), &step.second) {
        (Some(Source::Arena(_)), Some(shape)) => of_arena(shape),
        _ => 0,
    };
    let constants = step.reads.iter().map(|source| match source {
        Source::Constant(number) => plan.constants[*number].len() * plan.format.precision.bytes(),
        Source::Arena(_) => 0,
    });
    read + written + second + constants.sum::<usize>()
}
