//! Engines that the library has for a convolution, with their settings, before any is made ready to run.

use std::sync::Arc;

use super::{Arithmetic, Convolution, ConvolutionPlan, Cudnn, operations};
use crate::result::cudnn::{Descriptor, kind, name, of};
use crate::result::{Error, Result};

/// More configurations than cuDNN has for one graph and mode.
const MOST_CONFIGURATIONS: usize = 64;
/// More settings than an engine has.
const MOST_KNOBS: usize = 64;
/// `CUDNN_HEUR_MODE_A`, `CUDNN_HEUR_MODE_B` and `CUDNN_HEUR_MODE_FALLBACK`.
const MODES: [i32; 3] = [3, 1, 2];

/// `cudnnBackendNumericalNote_t`.
mod note {
    pub const TENSOR_CORE: i32 = 0;
    pub const DOWN_CONVERT_INPUTS: i32 = 1;
    pub const REDUCED_PRECISION_REDUCTION: i32 = 2;
    pub const NONDETERMINISTIC: i32 = 4;
    pub const WINOGRAD_6X6: i32 = 7;
    pub const WINOGRAD_13X13: i32 = 8;
}

/// An engine with its settings.
pub struct Candidate {
    // Dropped in this order: a configuration names its graph.
    configuration: Descriptor,
    graph: Arc<Descriptor>,
    name: String,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Candidate({})", self.name)
    }
}

impl Candidate {
    /// The engine's number, and its settings by their numbers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes it ready to run, which may compile kernels. Error: the engine does not compute this on this GPU.
    pub fn plan(self, cudnn: &Cudnn) -> Result<ConvolutionPlan> {
        cudnn.0.context.enter()?;
        let plan = cudnn.0.library.descriptor(kind::EXECUTION_PLAN)?;
        let plan = plan.pointers(name::PLAN_HANDLE, of::HANDLE, &[cudnn.0.number()])?;
        let plan = plan.keeping(name::PLAN_CONFIG, self.configuration)?.finalize()?;
        ConvolutionPlan::of(cudnn, plan, Some(self.graph))
    }
}

impl Cudnn {
    /// The engines for a convolution that compute the same bits each time, those that the library recommends
    /// first. None if it has none for it.
    pub fn candidates(&self, wanted: &Convolution) -> Result<Vec<Candidate>> {
        self.0.context.enter()?;
        let graph = Arc::new(self.graph(wanted)?);
        let mut candidates: Vec<Candidate> = Vec::new();
        let (mut found, mut refused) = (Vec::new(), None);
        for mode in MODES {
            match self.configurations(&graph, mode) {
                Ok(configurations) => found.push(configurations),
                Err(error) => refused = Some(error),
            }
        }
        // A mode may have none; a library that lacks a part has none in any.
        if let (true, Some(error)) = (found.is_empty(), refused) {
            return Err(error);
        }
        for configuration in found.into_iter().flatten() {
            let Ok((name, notes)) = self.about(&configuration) else { continue };
            let known = candidates.iter().any(|other| other.name == name);
            if !known && accepts(wanted.arithmetic, &notes) {
                candidates.push(Candidate { configuration, graph: graph.clone(), name });
            }
        }
        Ok(candidates)
    }

    fn configurations(&self, graph: &Descriptor, mode: i32) -> Result<Vec<Descriptor>> {
        let library = &self.0.library;
        let heuristics = library.descriptor(kind::ENGINE_HEURISTICS)?;
        let heuristics = heuristics.others(name::HEURISTICS_GRAPH, &[graph])?;
        let heuristics = heuristics.choice(name::HEURISTICS_MODE, of::HEURISTICS_MODE, mode)?.finalize()?;
        let empty = (0..MOST_CONFIGURATIONS).map(|_| library.descriptor(kind::ENGINE_CONFIG));
        heuristics.read_others(name::HEURISTICS_RESULTS, empty.collect::<Result<Vec<_>>>()?)
    }

    /// A configuration's name, and what the library says of its engine's numbers.
    fn about(&self, configuration: &Descriptor) -> Result<(String, Vec<i32>)> {
        let library = &self.0.library;
        let engine =
            configuration.read_others(name::CONFIG_ENGINE, vec![library.descriptor(kind::ENGINE)?])?.pop();
        let engine =
            engine.ok_or_else(|| Error::Refused("cuDNN: a configuration without an engine".into()))?;
        let notes = engine.read_choices(name::ENGINE_NUMERICAL_NOTE, of::NUMERICAL_NOTE, 16)?;
        let number = engine.read_ints(name::ENGINE_INDEX, 1)?.first().copied().unwrap_or(-1);
        let mut text = format!("engine {number}");
        let empty = (0..MOST_KNOBS).map(|_| library.descriptor(kind::KNOB_CHOICE));
        let knobs = configuration.read_others(name::CONFIG_KNOB_CHOICES, empty.collect::<Result<Vec<_>>>()?);
        for knob in knobs.unwrap_or_default() {
            let (kind, value) =
                (knob.read_choices(name::KNOB_TYPE, of::KNOB_TYPE, 1), knob.read_ints(name::KNOB_VALUE, 1));
            if let (Some(kind), Some(value)) = (kind?.first(), value?.first()) {
                text.push_str(&format!(" {kind}={value}"));
            }
        }
        Ok((text, notes))
    }

    /// The operation graph.
    fn graph(&self, wanted: &Convolution) -> Result<Descriptor> {
        let (operations, kept) = operations::of(&self.0.library, wanted)?;
        let graph = self.0.library.descriptor(kind::OPERATION_GRAPH)?;
        let graph = graph.pointers(name::GRAPH_HANDLE, of::HANDLE, &[self.0.number()])?;
        let named: Vec<&Descriptor> = operations.iter().collect();
        let graph = graph.others(name::GRAPH_OPERATIONS, &named)?;
        graph.keep(operations).keep(kept).finalize()
    }
}

/// Whether an engine of these notes computes what is wanted, and the same bits each time.
pub(super) fn accepts(arithmetic: Arithmetic, notes: &[i32]) -> bool {
    let never =
        [note::NONDETERMINISTIC, note::REDUCED_PRECISION_REDUCTION, note::WINOGRAD_6X6, note::WINOGRAD_13X13];
    let rounds = [note::TENSOR_CORE, note::DOWN_CONVERT_INPUTS];
    let has = |of: &[i32]| of.iter().any(|note| notes.contains(note));
    let refused = has(&never) || (arithmetic == Arithmetic::Single && has(&rounds));
    !refused
}
