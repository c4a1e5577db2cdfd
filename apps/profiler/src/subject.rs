//! What is timed: one instance of a model on one engine, and the GPU that has it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use inference::engine::Engine;
use inference::engine::gpu::{Instance, Libraries, Loaded};
use inference::plan::Plan;

use crate::model::views;

/// A GPU, and the toolkit that compiles its kernels.
#[derive(Args)]
pub struct Gpu {
    /// Number of the GPU, as CUDA counts; with --engine own.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u32,
    /// CUDA toolkit that compiles kernels, or a folder of NVIDIA's wheels [default: DOORBELL_CUDA, CUDA_HOME,
    /// CUDA_PATH, /usr/local/cuda].
    #[arg(long, value_name = "FOLDER")]
    cuda: Option<PathBuf>,
}

/// A model on a GPU.
pub struct Own {
    pub loaded: Arc<Loaded>,
    /// Name and architecture.
    pub device: String,
}

impl Own {
    /// Errors: no GPU, no toolkit, each with where it was looked for.
    pub fn load(options: &Gpu, plan: Plan) -> Result<Own> {
        let none = "--engine own; without a GPU, `--engine twin` runs the same kernels on the host";
        let gpu = ::gpu::Gpu::of_ordinal(options.gpu).context(none)?;
        let toolkit = ::gpu::Toolkit::find(options.cuda.as_deref()).context(none)?;
        let device = format!("{}, {}", gpu.name()?, gpu.arch()?);
        Ok(Own { loaded: Loaded::new(gpu, toolkit, plan, &Libraries::none())?, device })
    }
}

/// One instance that is run again and again.
pub trait Subject: Send {
    /// Runs the model, possibly several times: the time of each run, and how many there were.
    fn runs(&mut self) -> Result<(Duration, u64)>;
    /// What the last run wrote.
    fn outputs(&mut self) -> Result<Vec<Vec<f32>>>;
}

/// An engine that is called, and returns when the outputs are there.
pub struct Called {
    engine: Box<dyn Engine + Send>,
    inputs: Vec<Vec<f32>>,
    outputs: Vec<Vec<f32>>,
}

impl Called {
    /// `inputs` are those of every run.
    pub fn new(engine: Box<dyn Engine + Send>, inputs: Vec<Vec<f32>>) -> Called {
        Called { engine, inputs, outputs: Vec::new() }
    }
}

impl Subject for Called {
    fn runs(&mut self) -> Result<(Duration, u64)> {
        let inputs = views(&self.inputs);
        let since = Instant::now();
        self.outputs = self.engine.run(&inputs)?;
        Ok((since.elapsed(), 1))
    }

    fn outputs(&mut self) -> Result<Vec<Vec<f32>>> {
        Ok(std::mem::take(&mut self.outputs))
    }
}

/// A graph that the CPU launches, so many times before it waits.
pub struct Launched {
    pub instance: Instance,
    pub times: usize,
}

impl Subject for Launched {
    fn runs(&mut self) -> Result<(Duration, u64)> {
        let since = Instant::now();
        self.instance.launch(self.times)?;
        self.instance.wait()?;
        Ok((since.elapsed() / self.times as u32, self.times as u64))
    }

    fn outputs(&mut self) -> Result<Vec<Vec<f32>>> {
        Ok(self.instance.outputs()?)
    }
}
