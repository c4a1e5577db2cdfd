//! What is timed: one instance of a model on one engine, and the GPU that has it.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use gpu::Toolkit;
use inference::engine::gpu::{Instance, Libraries, Loaded, fastest, start_again};
use inference::engine::{self, EngineError};
use inference::plan::{Format, Plan};

use crate::engine::{Engine, name};
use crate::model::views;
use crate::start::Start;

/// A GPU, the toolkit that compiles its kernels, and libraries.
#[derive(Args)]
pub struct Gpu {
    /// Number of the GPU, as CUDA counts; with --engine own or cuda [default: 0].
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,
    /// CUDA toolkit that compiles kernels, or a folder of NVIDIA's wheels [default: DOORBELL_CUDA, CUDA_HOME,
    /// CUDA_PATH, /usr/local/cuda].
    #[arg(long, value_name = "FOLDER")]
    cuda: Option<PathBuf>,
    /// cuDNN's library, or its folder, with --engine cuda [default: DOORBELL_CUDNN, or the system's].
    #[arg(long, value_name = "PATH")]
    cudnn: Option<PathBuf>,
}

impl Gpu {
    /// Whether an option names something of a GPU.
    pub fn is_named(&self) -> bool {
        self.gpu.is_some() || self.cuda.is_some() || self.cudnn.is_some()
    }

    /// Refuses what an engine has no use for.
    pub fn check(&self, engine: Engine) -> Result<()> {
        let given = [
            ("--gpu", self.gpu.is_some(), engine.is_on_a_gpu()),
            ("--cuda", self.cuda.is_some(), engine.is_on_a_gpu()),
            ("--cudnn", self.cudnn.is_some(), engine == Engine::Cuda),
        ];
        match given.into_iter().find(|(_, is_given, is_used)| *is_given && !is_used) {
            Some((option, ..)) => {
                let engines = if option == "--cudnn" { "cuda" } else { "own and cuda" };
                anyhow::bail!("{option} is for --engine {engines}: {} does not use it", name(engine))
            }
            None => Ok(()),
        }
    }

    /// A GPU with all that `--engine cuda` needs, in words; no context is made. Error: what is missing.
    pub fn has_libraries(&self) -> Result<String> {
        let gpu = gpu::Gpu::of_ordinal(self.gpu.unwrap_or(0))?;
        Toolkit::find(self.cuda.as_deref())?;
        Ok(format!("{}, cuDNN {}", gpu.name()?, gpu::cudnn::version(self.cudnn.as_deref())?))
    }

    /// The GPU, and the toolkit that compiles its kernels. Errors: each with where it was looked for.
    pub fn device(&self, engine: Engine) -> Result<(gpu::Gpu, Toolkit)> {
        let none = || {
            format!("--engine {}; without a GPU, `--engine twin` runs our kernels on the host", name(engine))
        };
        let gpu = gpu::Gpu::of_ordinal(self.gpu.unwrap_or(0)).with_context(none)?;
        Ok((gpu, Toolkit::find(self.cuda.as_deref()).with_context(none)?))
    }
}

/// A model on a GPU.
pub struct OnGpu {
    pub gpu: gpu::Gpu,
    pub loaded: Arc<Loaded>,
    /// Name and architecture.
    pub device: String,
    /// Each format that was timed, with its graph's period, when there was a choice.
    pub periods: Vec<(Format, Duration)>,
}

impl OnGpu {
    /// Errors: no GPU, no toolkit, no cuDNN for an engine that needs it, each with where it was looked for.
    pub fn load(options: &Gpu, engine: Engine, plans: Vec<Plan>, start: &mut Start) -> Result<OnGpu> {
        let (gpu, toolkit) = options.device(engine)?;
        let device = format!("{}, {}", gpu.name()?, gpu.arch()?);
        // Kept until the model has a share in it, so that it is made here and once.
        let context = gpu::Context::new(gpu).map_err(EngineError::from)?;
        start.part("context");
        let libraries = match engine {
            Engine::Cuda => Libraries::needed(options.cudnn.as_deref()),
            _ => Libraries::none(),
        };
        let fastest = fastest(gpu, &toolkit, plans, &libraries);
        let fastest = fastest.map_err(|error| without(engine, start_again(error)))?;
        drop(context);
        start.part_with("choices", &[("compile", fastest.took.code), ("weights", fastest.took.weights)]);
        Ok(OnGpu { gpu, loaded: fastest.loaded, device, periods: fastest.periods })
    }
}

/// An error with the engine's option, and with a remedy where a library's kernel has failed.
fn without(engine: Engine, error: EngineError) -> anyhow::Error {
    let remedy = match &error {
        EngineError::Tried { .. } => "; `--engine own` leaves the libraries out",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("--engine {}{remedy}", name(engine)))
}

/// One instance that is run again and again.
pub trait Subject: Send {
    /// Runs the model, possibly several times: the time of each run, and how many there were.
    fn runs(&mut self) -> Result<(Duration, u64)>;
    /// What the last run wrote.
    fn outputs(&self) -> Result<Cow<'_, [Vec<f32>]>>;
}

/// An engine that is called, and returns when the outputs are there.
pub struct CalledEngine {
    engine: Box<dyn engine::Engine + Send>,
    inputs: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
}

impl CalledEngine {
    /// `inputs` are those of every run.
    pub fn new(engine: Box<dyn engine::Engine + Send>, inputs: Vec<Vec<f32>>) -> CalledEngine {
        CalledEngine { engine, inputs, outputs: Vec::new() }
    }
}

impl Subject for CalledEngine {
    fn runs(&mut self) -> Result<(Duration, u64)> {
        let inputs = views(&self.inputs);
        let since = Instant::now();
        self.engine.run_into(&inputs, &mut self.outputs)?;
        Ok((since.elapsed(), 1))
    }

    fn outputs(&self) -> Result<Cow<'_, [Vec<f32>]>> {
        Ok(Cow::Borrowed(&self.outputs))
    }
}

/// A graph that the CPU launches, so many times before it waits.
pub struct Launched {
    pub instance: Instance,
    pub times: usize,
}

impl Subject for Launched {
    fn runs(&mut self) -> Result<(Duration, u64)> {
        Ok((self.instance.period(self.times)?, self.times as u64))
    }

    fn outputs(&self) -> Result<Cow<'_, [Vec<f32>]>> {
        Ok(Cow::Owned(self.instance.outputs()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_s_kernel_that_fails_comes_with_the_engine_that_has_no_libraries() {
        let source = || gpu::Error::Refused("an illegal address".into());
        let tried = EngineError::Tried {
            step: "conv1".into(),
            by: "cuDNN 7".into(),
            why: Box::new(source()),
            is_noted: true,
        };
        let said = [tried, source().into()].map(|error| format!("{:#}", without(Engine::Cuda, error)));
        assert_eq!(
            said,
            [
                "--engine cuda; `--engine own` leaves the libraries out: step conv1: cuDNN 7, which was tried for it: an illegal address",
                "--engine cuda: an illegal address"
            ]
        );
    }
}
