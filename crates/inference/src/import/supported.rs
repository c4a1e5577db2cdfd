//! What of ONNX is known.

/// Operator sets whose rules are known.
pub(super) const OPSETS: std::ops::RangeInclusive<i64> = 9..=22;

/// Operators, for messages.
pub(super) const NAMES: [&str; 24] = [
    "Add",
    "AveragePool",
    "BatchNormalization",
    "Clip",
    "Concat",
    "Constant",
    "Conv",
    "DepthToSpace",
    "Dropout",
    "Flatten",
    "Gemm",
    "GlobalAveragePool",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "MatMul",
    "MaxPool",
    "Mul",
    "ReduceMean",
    "Relu",
    "Reshape",
    "Sigmoid",
    "Squeeze",
    "Unsqueeze",
];
