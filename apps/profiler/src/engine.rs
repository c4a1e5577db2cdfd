//! The engines by their names on the command line.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

/// What an option calls a value.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// ONNX Runtime on the processor: a substitute for a GPU.
    Cpu,
    /// Our kernels on the host twin: a substitute whose times say nothing about a GPU.
    Twin,
    /// Our kernels on a GPU.
    Own,
    /// NVIDIA's libraries on a GPU, and our kernels where those are faster.
    Cuda,
}

impl Engine {
    /// Takes the names of engines that run our plans, step by step.
    pub fn of_plans() -> impl TypedValueParser<Value = Engine> {
        let read = |name: String| Engine::from_str(&name, false);
        PossibleValuesParser::new(["twin", "own", "cuda"]).try_map(read)
    }

    pub fn is_on_a_gpu(self) -> bool {
        matches!(self, Engine::Own | Engine::Cuda)
    }
}
