//! `profiler check`: each layer of an engine beside what ONNX Runtime computes for the same file and inputs.

use anyhow::{Context, Result, ensure};
use clap::Args;
use inference::engine::Engine as _;
use inference::engine::gpu::Instance;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::layers::{Layers, Random, distance, tolerance};
use inference::plan::{Plan, Precision, Source, Step};

use crate::engine::Engine;
use crate::format;
use crate::image::{self, Size};
use crate::model::{self, Model, views};
use crate::start::Start;
use crate::subject::{self, OnGpu};

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
    /// What computes the layers: twin, own or cuda. The twin is slow.
    #[arg(long, value_parser = Engine::of_plans(), default_value = "twin")]
    engine: Engine,
    #[command(flatten)]
    format: format::Choice,
    #[command(flatten)]
    gpu: subject::Gpu,
    /// Change the weights of this layer by 5 % of their norm, in the engine alone: shows that the check
    /// notices.
    #[arg(long, value_name = "LAYER")]
    perturb: Option<String>,
    /// Make the model's input from a test image of that size on the engine, by the manifest's pre-processing,
    /// and compare it with the CPU's.
    #[arg(long, value_name = "ROWSxCOLUMNS")]
    image: Option<Size>,
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
    options.gpu.check(options.engine)?;
    let formats = options.format.formats(options.engine)?;
    let mut plans = model.plans(&formats)?;
    if let Some(layer) = &options.perturb {
        plans.iter_mut().try_for_each(|plan| perturb(plan, layer))?;
    }
    let (inputs, is_made_right) = match options.image {
        Some(size) => {
            let (input, is_right) = image::input(&model, (options.engine, &options.gpu), size)?;
            (vec![input], is_right)
        }
        None => (model.inputs(SEED), true),
    };
    let runtime = Runtime::load(options.model.onnxruntime.as_deref())?;
    let layers = Layers::compute(&runtime, &model.file, &model.graph, &views(&inputs))?;
    say!("{}, batch {}: {}", model.manifest.title, model.batch, model.weights);
    let precision = plans[0].format.precision;
    let tolerance = tolerance(precision);
    let (engine, plan, mut rows) = if options.engine.is_on_a_gpu() {
        let on_gpu = OnGpu::load(&options.gpu, options.engine, plans, &mut Start::of_this_process())?;
        let mut instance = Instance::new(&on_gpu.loaded)?;
        instance.bring(&views(&inputs))?;
        let plan = on_gpu.loaded.plan().clone();
        let rows = by_step(&plan, &layers, |at| Ok(instance.step(at)?))?;
        (format!("{}, {}", instance.name(), on_gpu.loaded.libraries()), plan, rows)
    } else {
        let mut twin = Twin::new(plans.swap_remove(0))?;
        twin.bring(&views(&inputs))?;
        let plan = twin.plan().clone();
        let rows = by_step(&plan, &layers, |at| Ok(twin.step(at)?))?;
        (twin.name().to_owned(), plan, rows)
    };
    let steps = plan.steps.len();
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
    Ok(beyond == 0 && is_made_right)
}

/// Every step whose whole result the reference has. `run`: runs one, in their order, and says what it wrote.
fn by_step(plan: &Plan, layers: &Layers, mut run: impl FnMut(usize) -> Result<Vec<f32>>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (at, step) in plan.steps.iter().enumerate() {
        let found = run(at)?;
        if let Some(wanted) = layers.of(step) {
            rows.push(Row::new(plan.format.precision, step, &found, wanted));
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
