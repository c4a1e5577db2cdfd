//! SqueezeNet 1.1 (Iandola et al., arXiv 1602.07360; version 1.1 of the authors' repository), as torchvision
//! builds it.

use super::builder::{AFTER_RELU, Builder, Conv, Value};
use crate::onnx::Model;

/// Fire modules by their place in torchvision's `features`: channels of the squeeze and of each expand layer.
/// 0 is a pool.
const FEATURES: [(usize, usize); 10] =
    [(16, 64), (16, 64), (0, 0), (32, 128), (32, 128), (0, 0), (48, 192), (48, 192), (64, 256), (64, 256)];

/// What the channels of a Fire module have in common lets its variance grow; measured over the whole network.
const FIRE: f64 = AFTER_RELU * 0.9;

pub fn build(batch: usize) -> Model {
    let (mut builder, input) = Builder::new("squeezenet-1.1", [batch, 3, 224, 224]);
    let mut value = builder.conv("features.0", &input, Conv::new(64, 3).stride(2).gain(1.0));
    value = builder.apply("Relu", &value);
    value = builder.max_pool("features.2", &value, 0, true);
    for (place, (squeeze, expand)) in (3..).zip(FEATURES) {
        let name = format!("features.{place}");
        value = match squeeze {
            0 => builder.max_pool(&name, &value, 0, true),
            _ => fire(&mut builder, &name, &value, squeeze, expand),
        };
    }
    value = builder.conv("classifier.1", &value, Conv::new(1000, 1).gain(FIRE));
    value = builder.apply("Relu", &value);
    value = builder.apply("GlobalAveragePool", &value);
    builder.apply("Flatten", &value);
    builder.finish(&[batch, 1000])
}

fn fire(builder: &mut Builder, name: &str, input: &Value, squeeze: usize, expand: usize) -> Value {
    let squeezed = builder.conv(&format!("{name}.squeeze"), input, Conv::new(squeeze, 1).gain(FIRE));
    let squeezed = builder.apply("Relu", &squeezed);
    let [one, three] = [1, 3].map(|kernel| {
        let name = format!("{name}.expand{kernel}x{kernel}");
        let expanded = builder.conv(&name, &squeezed, Conv::same(expand, kernel).gain(FIRE));
        builder.apply("Relu", &expanded)
    });
    builder.concat(name, [&one, &three])
}
