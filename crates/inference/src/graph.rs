//! A model as a graph of operators whose shapes are known.
//!
//! Nodes stand in an order in which each follows those that it reads from. Operators are those of ONNX, with
//! what their versions and optional inputs leave open decided: `docs/inference.md` has the table. All values
//! are tensors of `f32`.

use std::fmt;
use std::sync::Arc;

/// More elements than a tensor of any model here has; sums of products of offsets fit in 64 bits.
const MAX_ELEMENTS: usize = 1 << 31;

/// The extents of a tensor's axes, the last axis fastest.
#[derive(Clone, PartialEq, Eq)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// A shape of at most 2^31 elements with no empty axis; `None` for any other.
    pub fn new(extents: Vec<usize>) -> Option<Shape> {
        let count = extents.iter().try_fold(1_usize, |count, &extent| count.checked_mul(extent))?;
        (count > 0 && count <= MAX_ELEMENTS && extents.len() <= 8).then_some(Shape(extents))
    }

    /// The axes' extents.
    pub fn extents(&self) -> &[usize] {
        &self.0
    }

    /// How many elements there are.
    pub fn count(&self) -> usize {
        self.0.iter().product()
    }

    /// The extents of a tensor of images: batch, channels, rows, columns.
    pub fn image(&self) -> Option<[usize; 4]> {
        self.0.as_slice().try_into().ok()
    }

    /// Batch, channels, rows and columns; of what is no image, the axes behind the batch are channels.
    pub fn parts(&self) -> [usize; 4] {
        match *self.0 {
            [batch, channels, rows, columns] => [batch, channels, rows, columns],
            [batch, ref others @ ..] => [batch, others.iter().product(), 1, 1],
            [] => [1; 4],
        }
    }

    /// Rows and columns of a matrix whose rows are the first axis.
    pub fn matrix(&self) -> Option<[usize; 2]> {
        self.0.as_slice().try_into().ok()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.pad(&if extents.is_empty() { "scalar".to_owned() } else { extents.join("x") })
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The place of a value in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// A tensor: an input, a constant, or what a node writes.
#[derive(Debug, Clone)]
pub struct Value {
    /// Its name in the file.
    pub name: String,
    /// Its extents.
    pub shape: Shape,
    /// Its elements, if they are known before the model runs.
    pub constant: Option<Arc<[f32]>>,
}

/// A window that moves over rows and columns: of a convolution or a pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Rows and columns of the window.
    pub kernel: [usize; 2],
    /// Steps along rows and columns.
    pub stride: [usize; 2],
    /// Elements added above, left, below and right of the image.
    pub pads: [usize; 4],
    /// Distance between neighbouring elements of the window.
    pub dilation: [usize; 2],
    /// Whether a last window counts that begins in the image or its first pads and ends behind the last ones.
    pub round_up: bool,
}

impl Window {
    /// Extent along `axis` (0: rows, 1: columns) of the output; `None`: the window exceeds the padded image.
    pub fn output(&self, axis: usize, extent: usize) -> Option<usize> {
        let reach = self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)?.checked_add(1)?;
        let padded = extent.checked_add(self.pads[axis])?.checked_add(self.pads[axis + 2])?;
        // Kernels count in 32 bits.
        if padded.max(reach) > i32::MAX as usize {
            return None;
        }
        let room = padded.checked_sub(reach)?;
        let steps = room / self.stride[axis];
        let begins = (steps + 1).checked_mul(self.stride[axis])?;
        let one_more = self.round_up && room % self.stride[axis] != 0 && begins < extent + self.pads[axis];
        Some(steps + 1 + usize::from(one_more))
    }
}

/// A function of each element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// The larger of the element and 0.
    Relu,
    /// The element within these bounds.
    Clip {
        /// The least result.
        low: f32,
        /// The greatest result.
        high: f32,
    },
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// `alpha` * x + `beta`, between 0 and 1.
    HardSigmoid {
        /// The factor.
        alpha: f32,
        /// The offset.
        beta: f32,
    },
    /// x times `HardSigmoid` of x with 1/6 and 1/2.
    HardSwish,
}

/// What an operator computes. The inputs' order is that of ONNX.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Inputs: image, weights (outputs, inputs / groups, rows, columns), and the bias if there is one.
    Conv {
        /// How the window moves.
        window: Window,
        /// Channels are divided into so many groups, which do not see one another.
        groups: usize,
    },
    /// Inputs: rows, weights, and the bias if there is one. Rows times the weights' transpose: weights are
    /// (outputs, inputs).
    Linear,
    /// Inputs: image, scale, offset, mean, variance, one each for a channel.
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// A function of each element.
    Activation(Activation),
    /// The sum of two tensors of one shape.
    Add,
    /// The product of a tensor and another of its shape, or of images and a number for each channel.
    Mul,
    /// The greatest of a window; pads count for nothing.
    MaxPool {
        /// How the window moves.
        window: Window,
    },
    /// The mean of a window.
    AveragePool {
        /// How the window moves.
        window: Window,
        /// Whether pads count as zeros.
        count_pads: bool,
    },
    /// The mean of each channel.
    GlobalAveragePool,
    /// Images times a function of a product of matrices, a number for each channel. Inputs: images, weights
    /// (channels, inputs, 1, 1), bias, and images of one pixel, which the weights multiply. No operator of a
    /// file: a plan makes it of three.
    Excite {
        /// The function.
        activation: Activation,
    },
    /// Tensors one behind the other along this axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Channels become blocks of rows and columns: channel c * block^2 + row * block + column of the input is
    /// `(row, column)` of a block of channel c (ONNX's mode CRD).
    DepthToSpace {
        /// Rows and columns of a block.
        block: usize,
    },
    /// The same elements in another shape.
    Reshape,
}

impl Op {
    /// The operator's name in a table.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Conv { .. } => "Conv",
            Op::Linear => "Linear",
            Op::BatchNorm { .. } => "BatchNorm",
            Op::Activation(Activation::Relu) => "Relu",
            Op::Activation(Activation::Clip { .. }) => "Clip",
            Op::Activation(Activation::Sigmoid) => "Sigmoid",
            Op::Activation(Activation::HardSigmoid { .. }) => "HardSigmoid",
            Op::Activation(Activation::HardSwish) => "HardSwish",
            Op::Add => "Add",
            Op::Mul => "Mul",
            Op::MaxPool { .. } => "MaxPool",
            Op::AveragePool { .. } => "AveragePool",
            Op::GlobalAveragePool => "GlobalAveragePool",
            Op::Excite { .. } => "Excite",
            Op::Concat { .. } => "Concat",
            Op::DepthToSpace { .. } => "DepthToSpace",
            Op::Reshape => "Reshape",
        }
    }
}

/// An operator with what it reads and writes.
#[derive(Debug, Clone)]
pub struct Node {
    /// The node's name in the file, or the name of what it writes, and those of nodes that went into it.
    pub names: Vec<String>,
    /// What it computes.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<ValueId>,
    /// What it writes.
    pub output: ValueId,
}

/// A model.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The model's name in the file.
    pub name: String,
    /// All tensors.
    pub values: Vec<Value>,
    /// The operators, in an order in which they can run.
    pub nodes: Vec<Node>,
    /// What the caller gives.
    pub inputs: Vec<ValueId>,
    /// What the caller gets.
    pub outputs: Vec<ValueId>,
}

impl Graph {
    /// A tensor.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// A tensor's extents.
    pub fn shape(&self, id: ValueId) -> &Shape {
        &self.values[id.0].shape
    }

    /// A constant's elements.
    pub fn constant(&self, id: ValueId) -> Option<&Arc<[f32]>> {
        self.values[id.0].constant.as_ref()
    }
}
