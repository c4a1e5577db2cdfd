//! Models on a GPU: each step is our kernel or a library's plan, and all of them are recorded into
//! one graph that the host or the GPU itself may launch.
//!
//! [`Loaded`] holds what instances of a model share and only read: code, plans and weights. An [`Instance`]
//! has an arena, a workspace, inputs, outputs and a slot number of its own, so that several run side by side.
//! Which of the two computes a step is chosen by timing ([`Libraries`], [`Chosen`]).

mod choose;
mod convolution;
mod fastest;
mod images;
mod instance;
mod kept;
mod libraries;
mod library_plan;
mod ready;
mod resident;
mod restart;
mod stamped;
mod timed;
mod trial;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::cache::Cache;
use gpu::{Context, Form, Function, Gpu, ImageBuilder, Module, Toolkit, Unit, again_unit, relaunch_unit};

use super::EngineError;
use crate::launch::{self, Launch};
use crate::plan::Plan;
use choose::Decided;
use ready::Ready;
use weights::Weights;

pub use fastest::{Fastest, fastest};
pub use images::Images;
pub use instance::{Instance, SelfLaunchingInstance};
pub use libraries::{By, Chosen, Libraries, Library, Tried};
pub use resident::{Resident, ResidentAlone};
pub use restart::start_again;

/// The longest that a copy or a run of a model may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes that are copied to the GPU and back at a time.
const BETWEEN: usize = 4 << 20;

/// The units of all kernels.
pub fn units() -> [Unit; 2] {
    [
        Unit::new("operators.cu", include_str!("../../../kernels/operators.cu"))
            .header("operators.h", include_str!("../../../kernels/operators.h")),
        Unit::new("preprocess.cu", include_str!("../../../kernels/preprocess.cu")),
    ]
}

/// Our kernels on a GPU.
#[derive(Debug)]
struct Code {
    context: Context,
    module: Module,
    builder: ImageBuilder,
    functions: BTreeMap<&'static str, Function>,
}

impl Code {
    /// Kernels are compiled by the toolkit, or come from the cache.
    fn new(gpu: Gpu, toolkit: Toolkit) -> Result<Code, EngineError> {
        let context = Context::new(gpu)?;
        let builder = ImageBuilder::new(toolkit, Cache::usual());
        let units: Vec<Unit> = units().into_iter().chain([relaunch_unit()]).collect();
        let module = module(&context, &builder, &units)?;
        Ok(Code { context, module, builder, functions: BTreeMap::new() })
    }

    /// The kernel at the end of a WHILE node's body.
    fn again(&self) -> Result<Module, EngineError> {
        module(&self.context, &self.builder, &[again_unit()])
    }

    /// Makes these kernels ready to be launched.
    fn prepare(&mut self, launches: impl Iterator<Item = &'static str>) -> Result<(), EngineError> {
        for kernel in launches {
            if !self.functions.contains_key(kernel) {
                self.functions.insert(kernel, self.module.function(kernel)?);
            }
        }
        Ok(())
    }

    fn function(&self, kernel: &str) -> gpu::Result<&Function> {
        let missing = || gpu::Error::Refused(format!("kernel {kernel} was not prepared"));
        self.functions.get(kernel).ok_or_else(missing)
    }
}

fn module(context: &Context, builder: &ImageBuilder, units: &[Unit]) -> Result<Module, EngineError> {
    let image = builder.image(units, context.gpu().arch()?, Form::Cubin);
    Ok(Module::load(context, &image.map_err(|error| EngineError::Compile { reason: error.to_string() })?)?)
}

/// How long the parts of loading a model took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Took {
    /// Compiling kernels, or reading them from the cache, and loading them.
    pub code: Duration,
    /// Finding libraries, and choosing what computes each step.
    pub choices: Duration,
    /// Copying weights to the GPU.
    pub weights: Duration,
}

impl std::ops::Add for Took {
    type Output = Took;

    fn add(self, other: Took) -> Took {
        Took {
            code: self.code + other.code,
            choices: self.choices + other.choices,
            weights: self.weights + other.weights,
        }
    }
}

/// A model's code and weights on a GPU.
#[derive(Debug)]
pub struct Loaded {
    code: Code,
    plan: Plan,
    /// The steps of the plan.
    ready: Vec<Ready>,
    weights: Weights,
    /// How each step runs.
    chosen: Vec<Chosen>,
    libraries: String,
    took: Took,
}

impl Loaded {
    /// Puts a model on a GPU. Steps that a library may compute are timed, unless the choice of an earlier
    /// time was kept. Errors: the plan's, the compiler's, the GPU's; a library that is needed was not found.
    pub fn new(
        gpu: Gpu,
        toolkit: Toolkit,
        plan: Plan,
        libraries: &Libraries,
    ) -> Result<Arc<Loaded>, EngineError> {
        plan.check()?;
        let since = Instant::now();
        let mut code = Code::new(gpu, toolkit)?;
        let own: Vec<Launch> = launch::launches(&plan)?;
        code.prepare(own.iter().map(|launch| launch.kernel))?;
        let of_code = since.elapsed();
        let (present, found) = libraries.find(&code.context)?;
        let decided = if present.is_none() {
            Decided::own(&own)
        } else {
            choose::decide(&mut code, &plan, &own, &present, libraries)?
        };
        let of_choices = since.elapsed() - of_code;
        let Decided { ready, chosen } = decided;
        let constants = ready.iter().zip(&plan.steps).flat_map(|(ready, step)| ready.constants(&plan, step));
        let weights = Weights::new(&code.context, &plan, constants)?;
        let of_weights = since.elapsed() - of_code - of_choices;
        let took = Took { code: of_code, choices: of_choices, weights: of_weights };
        Ok(Arc::new(Loaded { code, plan, ready, weights, chosen, libraries: found, took }))
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How each step of the plan runs.
    pub fn chosen(&self) -> &[Chosen] {
        &self.chosen
    }

    /// The libraries that compute steps, with their versions, and why one is missing.
    pub fn libraries(&self) -> &str {
        &self.libraries
    }

    /// How long the parts of loading it took.
    pub fn took(&self) -> Took {
        self.took
    }

    /// Bytes that an instance has beside its arena, for libraries.
    pub fn workspace(&self) -> usize {
        self.chosen.iter().map(|chosen| chosen.workspace).max().unwrap_or(0)
    }
}

fn bytes(elements: &[f32]) -> &[u8] {
    // SAFETY: the slice has that many initialised bytes, for as long as it is borrowed; bytes have no
    // alignment.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
