//! Why a graph cannot be planned.

/// Why a graph cannot be planned.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum PlanError {
    /// Values that lie one behind the other in memory only if the batch is 1.
    #[error("{name}: {problem}; export the model so that the batch stays the first axis")]
    Layout { name: String, problem: String },
    /// A step that would not keep to the plan's memory.
    #[error("step {name}: {problem}; plan the model again")]
    Step { name: String, problem: String },
    /// A constant that is not as long as its shape says, or that folding would make too long.
    #[error("constant {name}: {problem}")]
    Constant { name: String, problem: String },
    /// An operator that would write what is constant, or nothing.
    #[error("the model's output {name} does not depend on its input")]
    ConstantOutput { name: String },
}
