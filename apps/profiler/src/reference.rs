//! `profiler reference`: a file with what an engine computes for test inputs, for clients of a server.
//!
//! The file has little-endian values of single precision: the outputs of the first input, one behind the
//! other, then those of the second, and so on. The inputs are `Manifest::test_input`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use inference::engine::Engine as _;
use inference::engine::gpu::Instance;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;

use crate::engine::Engine;
use crate::format;
use crate::model::{self, Model};
use crate::start::Start;
use crate::subject::{self, OnGpu};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: model::Choice,
    /// What computes the outputs. The reference of the others is cpu: ONNX Runtime.
    #[arg(long, value_enum, default_value = "cpu")]
    engine: Engine,
    #[command(flatten)]
    format: format::Choice,
    #[command(flatten)]
    gpu: subject::Gpu,
    /// Number of test inputs.
    #[arg(long, value_name = "K", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    inputs: u16,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// What gives the outputs of one run.
type Compute = dyn FnMut(&[&[f32]]) -> Result<Vec<Vec<f32>>>;

/// Writes the file.
pub fn run(options: &Options) -> Result<bool> {
    options.gpu.check(options.engine)?;
    let formats = options.format.formats(options.engine)?;
    let model = Model::find(&options.model)?;
    anyhow::ensure!(model.batch == 1, "a reference has one input a run; leave --batch out");
    let mut plans = model.plans(&formats)?;
    let mut compute: Box<Compute> = match options.engine {
        Engine::Cpu => {
            let runtime = Runtime::load(options.model.onnxruntime.as_deref())?;
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let mut engine = runtime.model(&model.file, threads)?;
            Box::new(move |input| Ok(engine.run(input)?))
        }
        Engine::Twin => {
            let mut twin = Twin::new(plans.swap_remove(0))?;
            Box::new(move |input| Ok(twin.run(input)?))
        }
        Engine::Own | Engine::Cuda => {
            let on_gpu = OnGpu::load(&options.gpu, options.engine, plans, &mut Start::of_this_process())?;
            let mut instance = Instance::new(&on_gpu.loaded)?;
            Box::new(move |input| Ok(instance.run(input)?))
        }
    };
    let mut bytes = Vec::new();
    for number in 0..usize::from(options.inputs) {
        let input = model.manifest.test_input(number)?;
        let outputs = compute(&[&input]).with_context(|| format!("test input {number}"))?;
        bytes.extend(outputs.iter().flatten().flat_map(|value| value.to_le_bytes()));
    }
    std::fs::write(&options.out, &bytes).with_context(|| format!("--out {}", options.out.display()))?;
    let inputs = options.inputs;
    say!(
        "{}: outputs of {inputs} test inputs, {} bytes: {}",
        model.manifest.title,
        bytes.len(),
        model.weights
    );
    Ok(true)
}
