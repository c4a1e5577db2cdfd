//! Why a file is no model for this engine, and how messages name a node.

use zoo::onnx;

/// Operator sets whose rules are known.
pub(super) const OPSETS: std::ops::RangeInclusive<i64> = 9..=22;

/// Why a file is no model for this engine.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum ImportError {
    /// The file is no protocol buffer, is cut off, or holds no graph.
    #[error("not an ONNX model, or only a part of one: {reason}; export or fetch it again")]
    NotOnnx { reason: String },
    /// Rules of another version.
    #[error(
        "operator set {domain:?} version {version} is not known, ai.onnx {} to {} is; export the model with opset 17",
        OPSETS.start(), OPSETS.end()
    )]
    Opset { domain: String, version: i64 },
    /// An operator that this engine lacks.
    #[error("node {node}: there is no operator {op}; there are: {known}")]
    Operator { node: String, op: String, known: String },
    /// An attribute that is wrong, or has no meaning here.
    #[error("node {node}: attribute {attribute}: {problem}; docs/inference.md says what is possible")]
    Attribute { node: String, attribute: String, problem: String },
    /// An input that is missing, or must be a constant.
    #[error("node {node}: input {input}: {problem}; docs/inference.md says what is possible")]
    Input { node: String, input: String, problem: String },
    /// Shapes that do not fit one another.
    #[error("node {node}: {problem}; simplify the model (onnxsim), or export it with fixed shapes")]
    Shape { node: String, problem: String },
    /// An extent that is no number.
    #[error(
        "{value}: axis {axis} is dynamic ({parameter}), only the batch may be; export the model with fixed shapes"
    )]
    Dynamic { value: String, axis: usize, parameter: String },
    /// A tensor or value whose type, size or elements are wrong.
    #[error("tensor {tensor}: {problem}")]
    Tensor { tensor: String, problem: String },
}

impl ImportError {
    /// With the node that reads the tensor.
    pub(super) fn read_by(self, nodes: &[onnx::Node]) -> ImportError {
        let ImportError::Tensor { tensor, problem } = self else { return self };
        let reader = nodes.iter().find(|node| node.input.contains(&tensor));
        let tensor =
            reader.map_or_else(|| tensor.clone(), |node| format!("{tensor} of node {}", label(node)));
        ImportError::Tensor { tensor, problem }
    }
}

/// A node's name in messages: what exporters call it, or what it writes, and its operator.
pub(super) fn label(node: &onnx::Node) -> String {
    let name = if node.name.is_empty() {
        node.output.first().map_or("without a name", String::as_str)
    } else {
        &node.name
    };
    format!("{name} ({})", node.op_type)
}
