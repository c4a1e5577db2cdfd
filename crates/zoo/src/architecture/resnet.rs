//! ResNet50 (He et al., arXiv 1512.03385) in its version 1.5, which has the stride in the 3×3 convolution, as
//! torchvision builds it.

use super::builder::{AFTER_LINEAR, AFTER_RELU, Builder, Conv, Value};
use crate::onnx::Model;

/// Blocks of each stage, and the channels within them; they have four times as many outside.
const STAGES: [(usize, usize); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];
const BLOCKS: f64 = 16.0;
const EPSILON: f32 = 1e-5;

pub fn build(batch: usize) -> Model {
    let (mut builder, input) = Builder::new("resnet50-v1.5", [batch, 3, 224, 224]);
    let first = Conv::same(64, 7).stride(2).gain(1.0);
    let mut value = builder.conv_norm(["conv1", "bn1"], &input, first, EPSILON);
    value = builder.apply("Relu", &value);
    value = builder.max_pool("maxpool", &value, 1, false);
    for (stage, (blocks, width)) in (1..).zip(STAGES) {
        for block in 0..blocks {
            let stride = if stage > 1 && block == 0 { 2 } else { 1 };
            value = bottleneck(&mut builder, &format!("layer{stage}.{block}"), &value, width, stride);
        }
    }
    value = builder.apply("GlobalAveragePool", &value);
    value = builder.apply("Flatten", &value);
    builder.dense("fc", &value, 1000, AFTER_LINEAR);
    builder.finish(&[batch, 1000])
}

fn bottleneck(builder: &mut Builder, name: &str, input: &Value, width: usize, stride: usize) -> Value {
    let mut value = layer(builder, name, 1, input, Conv::new(width, 1));
    value = builder.apply("Relu", &value);
    value = layer(builder, name, 2, &value, Conv::same(width, 3).stride(stride));
    value = builder.apply("Relu", &value);
    let last = Conv::new(4 * width, 1).gain(AFTER_RELU / BLOCKS.sqrt());
    value = layer(builder, name, 3, &value, last);
    let shortcut = if input.channels == 4 * width {
        input.clone()
    } else {
        let [conv, norm] = [0, 1].map(|place| format!("{name}.downsample.{place}"));
        let projection = Conv::new(4 * width, 1).stride(stride);
        builder.conv_norm([&conv, &norm], input, projection, EPSILON)
    };
    let sum = builder.join(&format!("{name}.add"), "Add", [&value, &shortcut]);
    builder.apply("Relu", &sum)
}

fn layer(builder: &mut Builder, block: &str, layer: usize, input: &Value, conv: Conv) -> Value {
    let [conv_name, norm] = ["conv", "bn"].map(|kind| format!("{block}.{kind}{layer}"));
    builder.conv_norm([&conv_name, &norm], input, conv, EPSILON)
}
