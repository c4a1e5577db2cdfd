//! `profiler check`: each layer of an engine beside what ONNX Runtime computes for the same file and inputs.

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use inference::engine::Engine;
use inference::engine::gpu::Instance;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::layers::{Layers, Random, distance, tolerance};
use inference::plan::{Plan, Precision, Source, Step, Task};

use crate::model::{self, Model, views};
use crate::subject::{self, Own};

/// Layers that the table shows, the worst first.
const SHOWN: usize = 10;
/// Seed of the inputs.
const SEED: u64 = 3;
/// Share of their norm by which `--perturb` changes weights.
const PERTURBED: f64 = 0.05;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: model::Choice,
    /// What computes the layers.
    #[arg(long, value_enum, default_value_t = Compared::Twin)]
    engine: Compared,
    #[command(flatten)]
    own: subject::Gpu,
    /// Change the weights of this layer by 5 % of their norm, in the engine alone: shows that the check
    /// notices.
    #[arg(long, value_name = "LAYER")]
    perturb: Option<String>,
}

/// Engines that are compared with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compared {
    /// Our kernels on the host twin, each layer by itself: slow.
    Twin,
    /// Our kernels on a GPU: the outputs.
    Own,
}

/// A layer, or an output, with its distance from the reference.
struct Row {
    distance: f64,
    what: String,
    task: String,
    shape: String,
}

impl Row {
    fn new(precision: Precision, step: &Step, found: &[f32], wanted: &[f32]) -> Row {
        let (what, task) = (step.names.join(" "), step.task.to_string());
        Row { distance: distance(precision, found, wanted), what, task, shape: step.to.to_string() }
    }
}

/// Whether all layers are within the tolerance.
pub fn run(options: &Options) -> Result<bool> {
    let model = Model::find(&options.model)?;
    let inputs = model.inputs(SEED);
    let mut plan = model.plan()?;
    if let Some(layer) = &options.perturb {
        perturb(&mut plan, layer)?;
    }
    let runtime = Runtime::load(options.model.onnxruntime.as_deref())?;
    let layers = Layers::compute(&runtime, &model.file, &model.graph, &views(&inputs))?;
    say!("{}, batch {}: {}", model.manifest.title, model.batch, model.weights);
    let (precision, tolerance) = (model.format.precision, tolerance(model.format.precision));
    let (engine, mut rows, steps) = match options.engine {
        Compared::Twin => {
            let mut twin = Twin::new(plan)?;
            let rows = by_step(&mut twin, precision, &layers, &inputs)?;
            (twin.name(), rows, twin.plan().steps.len())
        }
        Compared::Own => {
            let own = Own::load(&options.own, plan)?;
            let mut instance = Instance::new(&own.loaded)?;
            let found = instance.run(&views(&inputs))?;
            let stores =
                own.loaded.plan().steps.iter().filter(|step| matches!(step.task, Task::Store { .. }));
            let compare =
                |(step, found): (&Step, &Vec<f32>)| Some(Row::new(precision, step, found, layers.of(step)?));
            let rows: Vec<Row> = stores.zip(&found).filter_map(compare).collect();
            (instance.name(), rows, found.len())
        }
    };
    ensure!(!rows.is_empty(), "{}: nothing of it can be compared", model.manifest.name);
    rows.sort_by(|one, two| two.distance.total_cmp(&one.distance));
    say!("{engine} beside ONNX Runtime ({})", runtime.library().display());
    say!("{:>9}  {:22} {:>16}  layer", "distance", "operator", "shape");
    for row in rows.iter().take(SHOWN) {
        say!("{:9.1e}  {:22} {:>16}  {}", row.distance, row.task, row.shape, row.what);
    }
    let beyond = rows.iter().filter(|row| row.distance > tolerance).count();
    let said = if beyond == 0 { "all within".to_owned() } else { format!("{beyond} beyond") };
    say!(
        "{} of {steps} compared: {said} {tolerance:.0e} of the reference's root mean square ({precision:?} precision)",
        rows.len()
    );
    Ok(beyond == 0)
}

/// Every step of the twin whose whole result the reference has.
fn by_step(twin: &mut Twin, precision: Precision, layers: &Layers, inputs: &[Vec<f32>]) -> Result<Vec<Row>> {
    twin.bring(&views(inputs))?;
    let mut rows = Vec::new();
    for at in 0..twin.plan().steps.len() {
        let found = twin.step(at)?;
        let step = &twin.plan().steps[at];
        if let Some(wanted) = layers.of(step) {
            rows.push(Row::new(precision, step, &found, wanted));
        }
    }
    Ok(rows)
}

/// Changes the weights of one layer of the plan.
fn perturb(plan: &mut Plan, layer: &str) -> Result<()> {
    let weights = plan.steps.iter().filter_map(|step| match step.reads.get(1) {
        Some(&Source::Constant(number)) => Some((step, number)),
        _ => None,
    });
    let named = weights.clone().find(|(step, _)| step.names.iter().any(|name| name == layer));
    let Some((_, number)) = named else {
        let names: Vec<&str> = weights.filter_map(|(step, _)| Some(step.names.first()?.as_str())).collect();
        return Err(anyhow::anyhow!(
            "no layer with weights is called {layer}; there are: {}",
            names.join(", ")
        ))
        .context("--perturb");
    };
    plan.constants[number] = Random(SEED).perturb(&plan.constants[number], PERTURBED);
    Ok(())
}
