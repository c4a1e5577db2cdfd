//! A model's code, plans and weights on a GPU: what its instances share and only read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{Gpu, Toolkit};

use super::choose::{self, Decided};
use super::code::Code;
use super::libraries::{Chosen, Libraries};
use super::ready::Ready;
use super::weights::Weights;
use crate::engine::EngineError;
use crate::launch::{self, Launch};
use crate::plan::Plan;

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
    pub(super) code: Code,
    pub(super) plan: Plan,
    /// The steps of the plan.
    pub(super) ready: Vec<Ready>,
    pub(super) weights: Weights,
    /// How each step runs.
    pub(super) chosen: Vec<Chosen>,
    pub(super) libraries: String,
    pub(super) took: Took,
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
