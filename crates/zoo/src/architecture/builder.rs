//! Writes a graph layer by layer, with seeded weights.
//!
//! Operators are those of ONNX opset 17 (`Operators.md` of the ONNX project). Tensors have the names that
//! torchvision gives them, and a node has the name of its layer.

use crate::onnx::{Attribute, Graph, Model, Node, OperatorSet, Tensor, ValueInfo};
use crate::seed;

/// What keeps the variance after a ReLU, which halves the second moment of a centred input (He et al., ICCV
/// 2015).
pub const AFTER_RELU: f64 = std::f64::consts::SQRT_2;
/// What keeps the variance after a hard-swish; measured.
pub const AFTER_HARD_SWISH: f64 = 1.7;
/// What keeps the variance after a layer without activation.
pub const AFTER_LINEAR: f64 = 1.0;

/// A value between layers.
#[derive(Clone, Debug)]
pub struct Value {
    name: String,
    /// Extent of axis 1.
    pub channels: usize,
}

/// A convolution with a square kernel; stride 1, no padding, one group and a bias unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    channels: usize,
    kernel: usize,
    stride: usize,
    pad: usize,
    groups: usize,
    bias: bool,
    /// The weights' standard deviation is this by the root of the fan-in.
    gain: f64,
}

impl Conv {
    /// To so many channels.
    pub fn new(channels: usize, kernel: usize) -> Conv {
        Conv { channels, kernel, stride: 1, pad: 0, groups: 1, bias: true, gain: AFTER_RELU }
    }

    /// Padded so that stride 1 keeps the size.
    pub fn same(channels: usize, kernel: usize) -> Conv {
        Conv { pad: kernel / 2, ..Conv::new(channels, kernel) }
    }

    pub fn stride(self, stride: usize) -> Conv {
        Conv { stride, ..self }
    }

    pub fn groups(self, groups: usize) -> Conv {
        Conv { groups, ..self }
    }

    pub fn gain(self, gain: f64) -> Conv {
        Conv { gain, ..self }
    }

    fn without_bias(self) -> Conv {
        Conv { bias: false, ..self }
    }
}

/// A graph in the making.
pub struct Builder {
    graph: Graph,
}

impl Builder {
    /// A graph with one input, `f32`, NCHW.
    pub fn new(name: &str, shape: [usize; 4]) -> (Builder, Value) {
        let input = vec![ValueInfo::float("input", &shape)];
        let graph = Graph { name: name.to_owned(), input, ..Graph::default() };
        (Builder { graph }, Value { name: "input".to_owned(), channels: shape[1] })
    }

    /// The model, whose output is the value that the last node wrote.
    pub fn finish(mut self, shape: &[usize]) -> Model {
        if let Some(last) = self.graph.node.last_mut() {
            last.output = vec!["output".to_owned()];
        }
        self.graph.output = vec![ValueInfo::float("output", shape)];
        Model {
            ir_version: 8,
            producer_name: "doorbell".to_owned(),
            graph: Some(self.graph),
            opset_import: vec![OperatorSet { domain: String::new(), version: 17 }],
        }
    }

    fn node(
        &mut self,
        name: &str,
        operator: &str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
        channels: usize,
    ) -> Value {
        self.graph.node.push(Node {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![name.to_owned()],
            name: name.to_owned(),
            op_type: operator.to_owned(),
            attribute: attributes,
            domain: String::new(),
        });
        Value { name: name.to_owned(), channels }
    }

    /// Adds weights and returns their name.
    fn weights(&mut self, name: String, shape: &[usize], values: &[f32]) -> String {
        self.graph.initializer.push(Tensor::float(&name, shape, values));
        name
    }

    /// About normal weights and, if wanted, a small bias: the parameters of a convolution or a dense layer.
    fn parameters(&mut self, name: &str, shape: &[usize], gain: f64, bias: bool) -> Vec<String> {
        let fan_in: usize = shape[1..].iter().product();
        let weight = format!("{name}.weight");
        let deviation = gain / (fan_in as f64).sqrt();
        let values = seed::normal(&weight, fan_in * shape[0], deviation);
        let mut names = vec![self.weights(weight, shape, &values)];
        if bias {
            let bias = format!("{name}.bias");
            let values = seed::uniform(&bias, shape[0], -0.1, 0.1);
            names.push(self.weights(bias, &shape[..1], &values));
        }
        names
    }

    pub fn conv(&mut self, name: &str, input: &Value, conv: Conv) -> Value {
        let shape = [conv.channels, input.channels / conv.groups, conv.kernel, conv.kernel];
        let names = self.parameters(name, &shape, conv.gain, conv.bias);
        let inputs: Vec<&str> =
            [input.name.as_str()].into_iter().chain(names.iter().map(String::as_str)).collect();
        let attributes = vec![
            Attribute::ints("dilations", &[1, 1]),
            Attribute::int("group", conv.groups as i64),
            Attribute::ints("kernel_shape", &[conv.kernel as i64; 2]),
            Attribute::ints("pads", &[conv.pad as i64; 4]),
            Attribute::ints("strides", &[conv.stride as i64; 2]),
        ];
        self.node(name, "Conv", &inputs, attributes, conv.channels)
    }

    /// A convolution without bias, and the batch normalisation that follows it. Means, variances, scales and
    /// shifts differ from those that do nothing, so that a fold that ignores one of them is seen.
    pub fn conv_norm(
        &mut self,
        [conv_name, norm]: [&str; 2],
        input: &Value,
        conv: Conv,
        epsilon: f32,
    ) -> Value {
        let convolved = self.conv(conv_name, input, conv.without_bias());
        let mut inputs = vec![convolved.name.clone()];
        for (parameter, low, high) in [
            ("weight", 0.8, 1.2),
            ("bias", -0.1, 0.1),
            ("running_mean", -0.1, 0.1),
            ("running_var", 0.8, 1.2),
        ] {
            let name = format!("{norm}.{parameter}");
            let values = seed::uniform(&name, convolved.channels, low, high);
            inputs.push(self.weights(name, &[convolved.channels], &values));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let epsilon = vec![Attribute::float("epsilon", epsilon)];
        self.node(norm, "BatchNormalization", &inputs, epsilon, convolved.channels)
    }

    /// A dense layer, `input · weightᵀ + bias`.
    pub fn dense(&mut self, name: &str, input: &Value, features: usize, gain: f64) -> Value {
        let names = self.parameters(name, &[features, input.channels], gain, true);
        self.node(
            name,
            "Gemm",
            &[&input.name, &names[0], &names[1]],
            vec![Attribute::int("transB", 1)],
            features,
        )
    }

    /// An operator with one input and no attribute: `Relu`, `HardSwish`, `GlobalAveragePool`, `Flatten`.
    pub fn apply(&mut self, operator: &str, input: &Value) -> Value {
        let name = format!("{}.{}", input.name, operator.to_lowercase());
        self.node(&name, operator, &[&input.name], Vec::new(), input.channels)
    }

    /// ReLU6(x + 3) / 6.
    pub fn hard_sigmoid(&mut self, input: &Value) -> Value {
        let name = format!("{}.hardsigmoid", input.name);
        let attributes = vec![Attribute::float("alpha", 1.0 / 6.0), Attribute::float("beta", 0.5)];
        self.node(&name, "HardSigmoid", &[&input.name], attributes, input.channels)
    }

    /// 3×3, stride 2. `ceil`: a window that leaves the input at its end counts.
    pub fn max_pool(&mut self, name: &str, input: &Value, pad: i64, ceil: bool) -> Value {
        let attributes = vec![
            Attribute::int("ceil_mode", ceil.into()),
            Attribute::ints("kernel_shape", &[3, 3]),
            Attribute::ints("pads", &[pad; 4]),
            Attribute::ints("strides", &[2, 2]),
        ];
        self.node(name, "MaxPool", &[&input.name], attributes, input.channels)
    }

    /// An operator of two inputs: `Add`, `Mul`. The second may be 1×1 in height and width.
    pub fn join(&mut self, name: &str, operator: &str, [left, right]: [&Value; 2]) -> Value {
        self.node(name, operator, &[&left.name, &right.name], Vec::new(), left.channels)
    }

    /// Channels of the one behind those of the other.
    pub fn concat(&mut self, name: &str, [left, right]: [&Value; 2]) -> Value {
        let channels = left.channels + right.channels;
        self.node(name, "Concat", &[&left.name, &right.name], vec![Attribute::int("axis", 1)], channels)
    }

    /// Pixel shuffle as PyTorch has it: `factor`² channels become a square of pixels.
    pub fn pixel_shuffle(&mut self, name: &str, input: &Value, factor: usize) -> Value {
        let attributes = vec![Attribute::int("blocksize", factor as i64), Attribute::string("mode", "CRD")];
        self.node(name, "DepthToSpace", &[&input.name], attributes, input.channels / (factor * factor))
    }
}
