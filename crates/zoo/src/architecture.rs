//! What the models compute: one function a model, which writes an ONNX graph with seeded weights.
//!
//! Batch normalisation is not folded, so that importers have it to fold. Left out: training, and names of
//! classes.

mod builder;
mod mobilenet;
mod resnet;
mod squeezenet;
mod super_resolution;

use serde::Deserialize;

use crate::onnx::Model;

/// A model's architecture, as a manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "builder", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Architecture {
    /// SqueezeNet 1.1: 3×224×224 to 1000 classes.
    #[serde(rename = "squeezenet-1.1")]
    SqueezeNet,
    /// ResNet50 version 1.5: 3×224×224 to 1000 classes.
    #[serde(rename = "resnet50-v1.5")]
    ResNet50,
    /// Four convolutions and a pixel shuffle, on luminance.
    SuperResolution {
        /// Pixels of the output for one of the input, by edge.
        factor: usize,
        /// Rows of the input.
        height: usize,
        /// Columns of the input.
        width: usize,
    },
    /// MobileNetV3-Small: 3×224×224 to 1000 classes.
    #[serde(rename = "mobilenet-v3-small")]
    MobileNetV3Small,
}

impl Architecture {
    /// The model for a batch of so many inputs. Its input is named `input` and its output `output`; both are
    /// `f32`. The weights are the same for every batch.
    pub fn build(self, batch: usize) -> Model {
        match self {
            Architecture::SqueezeNet => squeezenet::build(batch),
            Architecture::ResNet50 => resnet::build(batch),
            Architecture::SuperResolution { factor, height, width } => {
                super_resolution::build(batch, factor, [height, width])
            }
            Architecture::MobileNetV3Small => mobilenet::build(batch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::{count, shape_of};

    fn super_resolution(factor: usize, height: usize, width: usize) -> Architecture {
        Architecture::SuperResolution { factor, height, width }
    }

    /// Parameters of the network of PyTorch's tutorial, by arithmetic: weights and a bias for each channel.
    fn super_resolution_parameters(factor: u64) -> u64 {
        let last = factor * factor;
        (64 * 25 + 64) + (64 * 64 * 9 + 64) + (32 * 64 * 9 + 32) + (last * 32 * 9 + last)
    }

    #[test]
    fn counts_are_the_published_ones() {
        // torchvision's documentation of each model's weights says `num_params` and, in 10^9 with three
        // digits, `_ops`.
        let pixels = [640 * 480, 224 * 224, 640 * 480];
        let super_resolution_macs = |pixels: u64, factor: u64| {
            pixels * (25 * 64 + 9 * 64 * 64 + 9 * 64 * 32 + 9 * 32 * factor * factor)
        };
        for (architecture, parameters, macs, within) in [
            (Architecture::SqueezeNet, 1_235_496, 349_000_000, 0.01),
            (Architecture::ResNet50, 25_557_032, 4_089_000_000, 0.001),
            (Architecture::MobileNetV3Small, 2_542_856, 57_000_000, 0.01),
            (
                super_resolution(1, 640, 480),
                super_resolution_parameters(1),
                super_resolution_macs(pixels[0], 1),
                0.0,
            ),
            (
                super_resolution(3, 224, 224),
                super_resolution_parameters(3),
                super_resolution_macs(pixels[1], 3),
                0.0,
            ),
            (
                super_resolution(4, 640, 480),
                super_resolution_parameters(4),
                super_resolution_macs(pixels[2], 4),
                0.0,
            ),
        ] {
            let model = architecture.build(1);
            let counted = count(&model).unwrap();
            assert_eq!(counted.parameters, parameters, "{architecture:?}");
            let deviation = (counted.macs() as f64 / macs as f64 - 1.0).abs();
            assert!(deviation <= within, "{architecture:?}: {} MACs", counted.macs());
            let output = &model.graph.as_ref().unwrap().output[0];
            assert_eq!(counted.nodes.last().unwrap().shape, shape_of(output).unwrap(), "{architecture:?}");
        }
    }

    #[test]
    fn a_batch_changes_shapes_and_work_but_no_weight() {
        let [one, eight] = [1, 8].map(|batch| Architecture::MobileNetV3Small.build(batch));
        assert_eq!(8 * count(&one).unwrap().macs(), count(&eight).unwrap().macs());
        let [one, eight] = [one, eight].map(|model| model.graph.unwrap());
        assert_eq!(shape_of(&eight.input[0]).unwrap(), [8, 3, 224, 224]);
        assert!(one.initializer == eight.initializer);
    }

    #[test]
    fn every_value_is_written_once_before_it_is_read() {
        for architecture in [
            Architecture::SqueezeNet,
            Architecture::MobileNetV3Small,
            super_resolution(1, 8, 8),
            super_resolution(3, 8, 8),
        ] {
            let graph = architecture.build(1).graph.unwrap();
            let mut known = std::collections::BTreeSet::from(["input".to_owned()]);
            for tensor in &graph.initializer {
                assert!(known.insert(tensor.name.clone()), "{architecture:?}: {}", tensor.name);
            }
            for node in &graph.node {
                assert!(
                    node.input.iter().all(|input| known.contains(input)),
                    "{architecture:?}: {}",
                    node.name
                );
                assert!(known.insert(node.output[0].clone()), "{architecture:?}: {}", node.name);
            }
            assert!(known.contains("output"), "{architecture:?}");
        }
    }
}
