//! The super-resolution network of PyTorch's tutorial on ONNX export, after Shi et al. (arXiv 1609.05158). It
//! works on luminance.

use super::builder::{AFTER_LINEAR, AFTER_RELU, Builder, Conv};
use crate::onnx::Model;

/// Factor 1 leaves the size and needs no pixel shuffle.
pub fn build(batch: usize, factor: usize, [height, width]: [usize; 2]) -> Model {
    let name = format!("super-resolution-x{factor}");
    let (mut builder, mut value) = Builder::new(&name, [batch, 1, height, width]);
    for (layer, channels, kernel, gain) in
        [(1, 64, 5, AFTER_LINEAR), (2, 64, 3, AFTER_RELU), (3, 32, 3, AFTER_RELU)]
    {
        let convolved =
            builder.conv(&format!("conv{layer}"), &value, Conv::same(channels, kernel).gain(gain));
        value = builder.apply("Relu", &convolved);
    }
    value = builder.conv("conv4", &value, Conv::same(factor * factor, 3).gain(AFTER_RELU));
    if factor > 1 {
        builder.pixel_shuffle("pixel_shuffle", &value, factor);
    }
    builder.finish(&[batch, 1, height * factor, width * factor])
}
