//! Engines: what runs a model.

pub mod gpu;
pub mod onnx_runtime;
pub mod preprocess;
pub mod resident;
pub mod twin;

use crate::launch::LaunchError;
use crate::plan::{Place, Plan, Step};

host_twin::include_kernels!("kernels");

/// Whether kernels for the host twin were compiled.
pub fn has_twin() -> Result<(), host_twin::TwinError> {
    KERNELS.find("load").map(|_| ())
}

/// Runs one model.
pub trait Engine {
    /// Its name, for tables.
    fn name(&self) -> &'static str;

    /// The model's outputs for these inputs, each with all its images one behind the other.
    fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>, EngineError>;

    /// The outputs, in the memory of earlier ones where the engine can: new memory costs a page fault a page.
    fn run_into(&mut self, inputs: &[&[f32]], outputs: &mut Vec<Vec<f32>>) -> Result<(), EngineError> {
        *outputs = self.run(inputs)?;
        Ok(())
    }
}

/// What helps where a GPU's memory is full.
const NO_ROOM: &str = "; run fewer instances or a smaller batch, or end what else uses that GPU";

/// Why a model did not run.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum EngineError {
    /// The plan does not keep to its memory.
    #[error(transparent)]
    Plan(#[from] crate::plan::PlanError),
    /// The plan cannot be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// An input that is not the model's.
    #[error("input {number} has {given} elements, the model takes {wanted}")]
    Input { number: usize, given: usize, wanted: usize },
    /// Fewer or more inputs than the model has.
    #[error("{given} inputs, the model takes {wanted}")]
    Inputs { given: usize, wanted: usize },
    /// A resident kernel has only our operators.
    #[error(
        "step {step} is computed by {by}, and a resident kernel has only our own: load {model} without libraries"
    )]
    NotOwn { model: String, step: String, by: String },
    /// Tensors of slots that are not the model's.
    #[error("slots have {given:?} bytes of {what}, the model {wanted:?}")]
    Slots { what: &'static str, given: Vec<usize>, wanted: Vec<usize> },
    /// The model works in slots.
    #[error("the model's inputs and outputs lie in slots, not in memory of its own")]
    InSlots,
    /// A block of a resident kernel did not come to the barrier.
    #[error("{model}: blocks of the resident kernel waited longer than {limit:?} for one another")]
    Late { model: String, limit: std::time::Duration },
    /// A kernel did not run to its end.
    #[error("step {step}: {source}")]
    Twin { step: String, source: host_twin::TwinError },
    /// A GPU or its driver refused something.
    #[error("{}{}", .0, what_helps(.0))]
    Gpu(::gpu::Error),
    /// A library's kernel failed on the GPU or does not end; this process can run no kernel any more.
    /// `is_noted`: a file says so, and a second one leaves it out.
    #[error("step {step}: {by}, which was tried for it: {why}")]
    Tried { step: String, by: String, why: Box<::gpu::Error>, is_noted: bool },
    /// A GPU has no room for a part of a model.
    #[error("{model}: {what}: {reason}{}", NO_ROOM)]
    Memory { model: String, what: &'static str, reason: String },
    /// A manifest's pre-processing contradicts itself.
    #[error("pre-processing: {reason}")]
    Preprocess { reason: String },
    /// The graph that launches itself has not ended.
    #[error("the graph runs: its inputs and outputs are used when it has ended")]
    Running,
    /// Kernels were not compiled.
    #[error("compiling the models' kernels: {reason}")]
    Compile { reason: String },
    /// cuDNN is needed and was not found.
    #[error(
        "{reason}; `pip install nvidia-cudnn-cu13` has it: set {} to its folder, or leave our own kernels to compute all steps",
        ::gpu::cudnn::VARIABLE
    )]
    NoCudnn { reason: String },
    /// ONNX Runtime was not found.
    #[error(
        "ONNX Runtime was not found ({looked}); `cargo xtask setup` or `pip install onnxruntime` brings it, `cargo xtask doctor` has \
         the tested version"
    )]
    NoRuntime { looked: String },
    /// ONNX Runtime refused something.
    #[error("ONNX Runtime ({at}): {reason}")]
    Runtime { at: String, reason: String },
}

/// What helps against a refusal of the GPU, as the end of a sentence; else nothing.
fn what_helps(error: &::gpu::Error) -> &'static str {
    if error.code() == Some(::gpu::code::OUT_OF_MEMORY) { NO_ROOM } else { "" }
}

impl From<::gpu::Error> for EngineError {
    fn from(error: ::gpu::Error) -> EngineError {
        EngineError::Gpu(error)
    }
}

/// Whether inputs have as many elements as the model takes.
fn check_inputs(inputs: &[&[f32]], wanted: &[usize]) -> Result<(), EngineError> {
    if inputs.len() != wanted.len() {
        return Err(EngineError::Inputs { given: inputs.len(), wanted: wanted.len() });
    }
    for (number, (input, &wanted)) in inputs.iter().zip(wanted).enumerate() {
        if input.len() != wanted {
            return Err(EngineError::Input { number, given: input.len(), wanted });
        }
    }
    Ok(())
}

/// What a step wrote, channel by channel, the images one behind the other. `element`: the number at a byte of
/// the arena.
fn gathered(plan: &Plan, step: &Step, place: Place, element: impl Fn(usize) -> f32) -> Vec<f32> {
    let [batch, channels, rows, columns] = step.to.parts();
    let (bytes, pixels) = (plan.format.precision.bytes(), rows * columns);
    let begin = plan.arena.offsets[place.piece];
    let at = |image, channel, pixel| {
        place.offset + image * place.image + channel * place.channel + pixel * place.pixel
    };
    let channels = (0..batch).flat_map(|image| (0..channels).map(move |channel| (image, channel)));
    let places =
        channels.flat_map(|(image, channel)| (0..pixels).map(move |pixel| at(image, channel, pixel)));
    places.map(|at| element(begin + at * bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_full_is_said_with_what_helps_whatever_asked_for_memory() {
        let error = |code| {
            let [what, name, text] = ["", " of 8 bytes", "full"].map(str::to_owned);
            ::gpu::Error::Call { call: "cuMemAlloc", what, code, name, text }
        };
        let full = EngineError::from(error(::gpu::code::OUT_OF_MEMORY)).to_string();
        assert!(
            full.ends_with("full; run fewer instances or a smaller batch, or end what else uses that GPU"),
            "{full}"
        );
        assert!(!EngineError::from(error(::gpu::code::NOT_READY)).to_string().contains("smaller"));
    }
}
