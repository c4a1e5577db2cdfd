//! MobileNetV3-Small (Howard et al., arXiv 1905.02244, table 2), as torchvision builds it.

use super::builder::{AFTER_HARD_SWISH, AFTER_LINEAR, AFTER_RELU, Builder, Conv, Value};
use crate::onnx::Model;

/// An inverted residual: kernel, channels within, channels behind it, squeeze and excitation, activation,
/// stride.
type Block = (usize, usize, usize, bool, Activation, usize);

/// An operator, and the gain of a layer behind it.
type Activation = (&'static str, f64);
const RELU: Activation = ("Relu", AFTER_RELU);
const HARD_SWISH: Activation = ("HardSwish", AFTER_HARD_SWISH);

const BLOCKS: [Block; 11] = [
    (3, 16, 16, true, RELU, 2),
    (3, 72, 24, false, RELU, 2),
    (3, 88, 24, false, RELU, 1),
    (5, 96, 40, true, HARD_SWISH, 2),
    (5, 240, 40, true, HARD_SWISH, 1),
    (5, 240, 40, true, HARD_SWISH, 1),
    (5, 120, 48, true, HARD_SWISH, 1),
    (5, 144, 48, true, HARD_SWISH, 1),
    (5, 288, 96, true, HARD_SWISH, 2),
    (5, 576, 96, true, HARD_SWISH, 1),
    (5, 576, 96, true, HARD_SWISH, 1),
];
/// Blocks whose input is added to their output.
const RESIDUAL: f64 = 6.0;
/// A gate of squeeze and excitation is near one half.
const GATE: f64 = 0.5;
const EPSILON: f32 = 1e-3;

pub fn build(batch: usize) -> Model {
    let (mut builder, input) = Builder::new("mobilenet-v3-small", [batch, 3, 224, 224]);
    let first = Conv::same(16, 3).stride(2).gain(1.0);
    let mut value = conv_norm(&mut builder, "features.0", &input, first, Some(HARD_SWISH));
    let mut before = AFTER_HARD_SWISH;
    for (place, block) in (1..).zip(&BLOCKS) {
        value = inverted_residual(&mut builder, &format!("features.{place}.block"), &value, block, before);
        before = AFTER_LINEAR;
    }
    let last = Conv::new(6 * value.channels, 1).gain(AFTER_LINEAR);
    value = conv_norm(&mut builder, "features.12", &value, last, Some(HARD_SWISH));
    value = builder.apply("GlobalAveragePool", &value);
    value = builder.apply("Flatten", &value);
    value = builder.dense("classifier.0", &value, 1024, AFTER_HARD_SWISH);
    value = builder.apply("HardSwish", &value);
    builder.dense("classifier.3", &value, 1000, AFTER_HARD_SWISH);
    builder.finish(&[batch, 1000])
}

/// `gain`: the one that fits the input's distribution.
fn inverted_residual(
    builder: &mut Builder,
    name: &str,
    input: &Value,
    block: &Block,
    mut gain: f64,
) -> Value {
    let &(kernel, expanded, channels, squeeze, activation, stride) = block;
    let mut place = 0..;
    let mut next = || format!("{name}.{}", place.next().unwrap_or_default());
    let mut value = input.clone();
    if expanded != input.channels {
        value = conv_norm(builder, &next(), &value, Conv::new(expanded, 1).gain(gain), Some(activation));
        gain = activation.1;
    }
    let depthwise = Conv::same(expanded, kernel).stride(stride).groups(expanded).gain(gain);
    value = conv_norm(builder, &next(), &value, depthwise, Some(activation));
    gain = activation.1;
    if squeeze {
        value = squeeze_excitation(builder, &next(), &value);
        gain /= GATE;
    }
    let residual = stride == 1 && channels == input.channels;
    if residual {
        gain /= RESIDUAL.sqrt();
    }
    value = conv_norm(builder, &next(), &value, Conv::new(channels, 1).gain(gain), None);
    if residual { builder.join(&format!("{name}.add"), "Add", [&value, input]) } else { value }
}

/// Squeeze and excitation (Hu et al., arXiv 1709.01507) with a hard sigmoid.
fn squeeze_excitation(builder: &mut Builder, name: &str, input: &Value) -> Value {
    // A quarter of the channels in steps of 8, and never below nine tenths of that: torchvision's
    // `_make_divisible`.
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
        Some((operator, _)) => builder.apply(operator, &normalised),
        None => normalised,
    }
}
