//! MobileNetV3-Small (Howard et al., arXiv 1905.02244, table 2), as torchvision builds it.

use super::builder::{AFTER_HARD_SWISH, AFTER_LINEAR, AFTER_RELU, Builder, Conv, Value};
use crate::onnx::Model;

/// One inverted residual.
struct Block {
    kernel: usize,
    expanded: usize,
    channels: usize,
    squeeze: bool,
    activation: Activation,
    stride: usize,
}

#[derive(Clone, Copy)]
enum Activation {
    Relu,
    HardSwish,
}
use Activation::{HardSwish, Relu};

impl Activation {
    fn operator(self) -> &'static str {
        match self {
            Relu => "Relu",
            HardSwish => "HardSwish",
        }
    }

    fn gain(self) -> f64 {
        match self {
            Relu => AFTER_RELU,
            HardSwish => AFTER_HARD_SWISH,
        }
    }
}

const fn block(
    kernel: usize,
    expanded: usize,
    channels: usize,
    squeeze: bool,
    activation: Activation,
    stride: usize,
) -> Block {
    Block { kernel, expanded, channels, squeeze, activation, stride }
}

const BLOCKS: [Block; 11] = [
    block(3, 16, 16, true, Relu, 2),
    block(3, 72, 24, false, Relu, 2),
    block(3, 88, 24, false, Relu, 1),
    block(5, 96, 40, true, HardSwish, 2),
    block(5, 240, 40, true, HardSwish, 1),
    block(5, 240, 40, true, HardSwish, 1),
    block(5, 120, 48, true, HardSwish, 1),
    block(5, 144, 48, true, HardSwish, 1),
    block(5, 288, 96, true, HardSwish, 2),
    block(5, 576, 96, true, HardSwish, 1),
    block(5, 576, 96, true, HardSwish, 1),
];
/// Blocks whose input is added to their output.
const RESIDUAL: f64 = 6.0;
/// A gate of squeeze and excitation is near one half.
const GATE: f64 = 0.5;
const EPSILON: f32 = 1e-3;

pub fn build(batch: usize) -> Model {
    let (mut builder, input) = Builder::new("mobilenet-v3-small", [batch, 3, 224, 224]);
    let first = Conv::same(16, 3).stride(2).gain(1.0);
    let mut value = conv_norm(&mut builder, "features.0", &input, first, Some(HardSwish));
    let mut before = AFTER_HARD_SWISH;
    for (place, block) in (1..).zip(&BLOCKS) {
        value = inverted_residual(&mut builder, &format!("features.{place}.block"), &value, block, before);
        before = AFTER_LINEAR;
    }
    let last = Conv::new(6 * value.channels, 1).gain(AFTER_LINEAR);
    value = conv_norm(&mut builder, "features.12", &value, last, Some(HardSwish));
    value = builder.apply("GlobalAveragePool", &value);
    value = builder.apply("Flatten", &value);
    value = builder.dense("classifier.0", &value, 1024, AFTER_HARD_SWISH);
    value = builder.apply("HardSwish", &value);
    builder.dense("classifier.3", &value, 1000, AFTER_HARD_SWISH);
    builder.finish(&[batch, 1000])
}

/// `before`: the gain that fits the input's distribution.
fn inverted_residual(builder: &mut Builder, name: &str, input: &Value, block: &Block, before: f64) -> Value {
    let mut place = 0..;
    let mut next = || format!("{name}.{}", place.next().unwrap_or_default());
    let activation = Some(block.activation);
    let (mut value, mut gain) = (input.clone(), before);
    if block.expanded != input.channels {
        value = conv_norm(builder, &next(), &value, Conv::new(block.expanded, 1).gain(gain), activation);
        gain = block.activation.gain();
    }
    let depthwise = Conv::same(block.expanded, block.kernel).stride(block.stride).groups(block.expanded);
    value = conv_norm(builder, &next(), &value, depthwise.gain(gain), activation);
    gain = block.activation.gain();
    if block.squeeze {
        value = squeeze_excitation(builder, &next(), &value);
        gain /= GATE;
    }
    let residual = block.stride == 1 && block.channels == input.channels;
    if residual {
        gain /= RESIDUAL.sqrt();
    }
    value = conv_norm(builder, &next(), &value, Conv::new(block.channels, 1).gain(gain), None);
    if residual { builder.join(&format!("{name}.add"), "Add", [&value, input]) } else { value }
}

/// Squeeze and excitation (Hu et al., arXiv 1709.01507) with a hard sigmoid.
fn squeeze_excitation(builder: &mut Builder, name: &str, input: &Value) -> Value {
    // A quarter of the channels in steps of 8, and never below nine tenths of that: torchvision's `_make_divisible`.
    let quarter = input.channels / 4;
    let rounded = ((quarter + 4) / 8 * 8).max(8);
    let squeezed = if 10 * rounded < 9 * quarter { rounded + 8 } else { rounded };
    let pooled = builder.apply("GlobalAveragePool", input);
    let first = builder.conv(&format!("{name}.fc1"), &pooled, Conv::new(squeezed, 1));
    let first = builder.apply("Relu", &first);
    let second = builder.conv(&format!("{name}.fc2"), &first, Conv::new(input.channels, 1));
    let gate = builder.hard_sigmoid(&second);
    builder.join(&format!("{name}.mul"), "Mul", [input, &gate])
}

fn conv_norm(
    builder: &mut Builder,
    name: &str,
    input: &Value,
    conv: Conv,
    activation: Option<Activation>,
) -> Value {
    let [first, second] = [format!("{name}.0"), format!("{name}.1")];
    let normalised = builder.conv_norm([&first, &second], input, conv, EPSILON);
    match activation {
        Some(activation) => builder.apply(activation.operator(), &normalised),
        None => normalised,
    }
}
