//! One run of a model for one input on any engine, ONNX Runtime included: shared by `answer` and `reference`.

use anyhow::{Result, ensure};
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

/// A model and its engine. `group(skip)`: clap names a group by its type, and several types are `Choice`.
#[derive(Args)]
#[group(skip)]
pub struct Choice {
    #[command(flatten)]
    model: model::Choice,
    /// What computes the outputs. The reference of the others is cpu: ONNX Runtime.
    #[arg(long, value_enum, default_value = "cpu")]
    engine: Engine,
    #[command(flatten)]
    format: format::Choice,
    #[command(flatten)]
    gpu: subject::Gpu,
}

/// What gives the outputs of one run.
pub type Compute = dyn FnMut(&[&[f32]]) -> Result<Vec<Vec<f32>>>;

impl Choice {
    /// The model, ready to run. Errors: a batch; what the engine needs and does not find.
    pub fn load(&self) -> Result<(Model, Box<Compute>)> {
        self.gpu.check(self.engine)?;
        let formats = self.format.formats(self.engine)?;
        let model = Model::find(&self.model)?;
        ensure!(model.batch == 1, "one input a run; leave --batch out");
        let mut plans = model.plans(&formats)?;
        let compute: Box<Compute> = match self.engine {
            Engine::Cpu => {
                let runtime = Runtime::load(self.model.onnxruntime.as_deref())?;
                let threads = std::thread::available_parallelism().map_or(1, usize::from);
                let mut engine = runtime.model(&model.file, threads)?;
                Box::new(move |input| Ok(engine.run(input)?))
            }
            Engine::Twin => {
                let mut twin = Twin::new(plans.swap_remove(0))?;
                Box::new(move |input| Ok(twin.run(input)?))
            }
            Engine::Own | Engine::Cuda => {
                let on_gpu = OnGpu::load(&self.gpu, self.engine, plans, &mut Start::of_this_process())?;
                let mut instance = Instance::new(&on_gpu.loaded)?;
                Box::new(move |input| Ok(instance.run(input)?))
            }
        };
        Ok((model, compute))
    }
}
