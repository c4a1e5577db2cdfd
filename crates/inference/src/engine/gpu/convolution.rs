//! Steps as cuDNN's convolutions and cuBLASLt's products: shapes, strides, what is fused, and the weights'
//! order.

use gpu::cublaslt::Product;
use gpu::cudnn::{Arithmetic, Convolution, Pointers, TensorShape};

use super::weights::{Form, Weights};
use crate::graph::{Activation, Op, Shape};
use crate::launch::{Rest, window_of};
use crate::plan::{Layout, Place, Plan, Precision, Source, Step, Task};

/// What of a step a library's kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fused {
    /// All of it.
    All,
    /// All but the activation.
    Sums,
    /// The products alone.
    Products,
}

impl Fused {
    /// What a kernel of ours computes behind it.
    pub fn rest(self, step: &Step) -> Option<Rest> {
        match self {
            Fused::All => None,
            Fused::Sums => Some(Rest::Activation),
            Fused::Products => is_more_than_products(step).then_some(Rest::Sums),
        }
    }
}

fn is_more_than_products(step: &Step) -> bool {
    let behind = match &step.task {
        Task::Compute { residual, activation, .. } => residual.is_some() || activation.is_some(),
        _ => false,
    };
    behind || step.reads.len() > 2
}

/// The ways in which a library may compute a step; none if it cannot.
pub fn ways(plan: &Plan, step: &Step) -> Vec<(Fused, Convolution)> {
    let Task::Compute { activation, .. } = &step.task else { return Vec::new() };
    let first = if activation.is_none_or(|of| bounds(of).is_some()) { Fused::All } else { Fused::Sums };
    let all = if is_more_than_products(step) { vec![first, Fused::Products] } else { vec![Fused::All] };
    all.into_iter().filter_map(|fused| Some((fused, convolution(plan, step, fused)?))).collect()
}

/// The bounds that are an activation.
fn bounds(activation: Activation) -> Option<[f64; 2]> {
    match activation {
        Activation::Relu => Some([0.0, f64::from(f32::MAX)]),
        Activation::Clip { low, high } => Some([f64::from(low), f64::from(high)]),
        _ => None,
    }
}

/// The convolution that a step is, or a part of it. `None`: it is none, or reads a constant where a library
/// reads a tensor.
pub fn convolution(plan: &Plan, step: &Step, fused: Fused) -> Option<Convolution> {
    let Task::Compute { residual, activation, .. } = &step.task else { return None };
    let (window, groups) = window_of(step)?;
    let &[Source::Arena(read), Source::Constant(_), ..] = &step.reads[..] else { return None };
    let arithmetic = match plan.format.precision {
        Precision::Single => Arithmetic::Single,
        Precision::Tf32 => Arithmetic::Tf32,
        Precision::Half => Arithmetic::Half,
    };
    let [_, channels, ..] = step.from.parts();
    // The weights of those behind the step's own are zeros.
    let outputs = plan.channels_written(step);
    let to = Shape::new({
        let [batch, _, rows, columns] = step.to.parts();
        vec![batch, outputs, rows, columns]
    })?;
    let residual = match residual {
        Some(Source::Arena(place)) => Some(tensor(plan, *place, &to)),
        Some(Source::Constant(_) | Source::Input(_)) => return None,
        None => None,
    };
    let sums = fused != Fused::Products;
    let activation = activation.filter(|_| fused == Fused::All);
    Some(Convolution {
        arithmetic,
        from: tensor(plan, read, &step.from),
        weights: weights(
            plan.format.layout,
            [outputs, channels / groups, window.kernel[0], window.kernel[1]],
        ),
        to: tensor(plan, step.write?, &to),
        residual: residual.filter(|_| sums),
        bias: sums && step.reads.len() > 2,
        bounds: match activation {
            Some(activation) => Some(bounds(activation)?),
            None => None,
        },
        stride: window.stride.map(|stride| stride as i64),
        dilation: window.dilation.map(|dilation| dilation as i64),
        pads: window.pads.map(|pad| pad as i64),
    })
}

/// The product of matrices that a convolution is: one whose window is a pixel, with at most a bias and a Relu
/// behind it. A pixel is a row.
pub fn product(of: &Convolution) -> Option<Product> {
    let Convolution { from, weights, to, residual, bounds, .. } = of;
    let relu = match bounds {
        None => false,
        Some(_) if *bounds == self::bounds(Activation::Relu) => true,
        Some(_) => return None,
    };
    let ([_, inputs, from_pixels @ ..], [_, outputs, to_pixels @ ..]) = (from.extents, to.extents);
    // In pads a window would see no pixel.
    let is_one = weights.extents == [outputs, inputs, 1, 1] && from_pixels == to_pixels && of.pads == [0; 4];
    let ((rows, read), (_, written)) = (rows(from)?, rows(to)?);
    (is_one && residual.is_none()).then(|| Product {
        arithmetic: of.arithmetic,
        rows: rows as u64,
        inputs: inputs as u64,
        outputs: outputs as u64,
        strides: [read, written],
        alignments: [from, to].map(|tensor| tensor.alignment as u32),
        bias: of.bias,
        relu,
    })
}

/// A convolution as a product of rows that each have what one output sees: a window's rows, columns,
/// channels. `None`: channels not last, groups, or an output or next step unfit for a [`product`].
pub fn im2col(of: &Convolution) -> Option<Product> {
    let Convolution { from, weights, to, .. } = of;
    let [outputs, channels, rows, columns] = weights.extents;
    let inputs = rows * columns * channels;
    if from.extents[1] != channels
        || from.strides[1] != 1
        || weights.strides != [inputs, 1, columns * channels, channels]
    {
        return None;
    }
    // As the product of images of one pixel each.
    let pixels = [to.extents[0], inputs, to.extents[2], to.extents[3]];
    let [by_image, by_row] = [to.extents[2] * to.extents[3] * inputs, to.extents[3] * inputs];
    let seen = TensorShape { extents: pixels, strides: [by_image, 1, by_row, inputs], alignment: 16 };
    let weights = TensorShape { extents: [outputs, inputs, 1, 1], ..*weights };
    product(&Convolution { from: seen, weights, pads: [0; 4], ..of.clone() })
}

/// A tensor's pixels, and elements from one to the next. `None`: they do not lie evenly, or a pixel's
/// channels do not lie one after another.
fn rows(of: &TensorShape) -> Option<(i64, i64)> {
    let ([images, channels, rows, columns], [image, channel, row, pixel]) = (of.extents, of.strides);
    let (mut count, mut by) = (1, channels);
    for (extent, stride) in [(columns, pixel), (rows, row), (images, image)] {
        match (extent, count) {
            (1, _) => {}
            (_, 1) => by = stride,
            _ if stride != count * by => return None,
            _ => {}
        }
        count *= extent;
    }
    (channel == 1 || channels == 1).then_some((count, by))
}

/// A value as the library sees it.
fn tensor(plan: &Plan, place: Place, shape: &Shape) -> TensorShape {
    let [.., columns] = shape.parts();
    let strides = [place.image, place.channel, place.pixel * columns, place.pixel];
    // The arena begins at a multiple of more.
    let alignment = 1 << plan.byte(&place).trailing_zeros().min(4);
    TensorShape {
        extents: shape.parts().map(|extent| extent as i64),
        strides: strides.map(|by| by as i64),
        alignment,
    }
}

/// Weights: by outputs, rows, columns and inputs where channels are last.
fn weights(layout: Layout, extents: [usize; 4]) -> TensorShape {
    let [_, inputs, rows, columns] = extents;
    let strides = match layout {
        Layout::ChannelsFirst => [inputs * rows * columns, rows * columns, columns, 1],
        Layout::ChannelsLast => [inputs * rows * columns, 1, columns * inputs, inputs],
    };
    TensorShape {
        extents: extents.map(|extent| extent as i64),
        strides: strides.map(|by| by as i64),
        alignment: 16,
    }
}

/// The number of a step's weights, their form, and that of its bias, if there is one.
pub fn constants(plan: &Plan, step: &Step) -> Vec<(usize, Form)> {
    let [_, channels, ..] = step.from.parts();
    let (ours, all) = (step.to.parts()[1], plan.channels_written(step));
    let weights = match (&step.task, plan.format.layout) {
        (Task::Compute { op: Op::Conv { window, groups }, .. }, Layout::ChannelsLast)
            if window.kernel != [1, 1] || all > ours =>
        {
            Form::ChannelsLast([all, channels / groups, window.kernel[0], window.kernel[1]])
        }
        _ => Form::Plan,
    };
    let bias = if all > ours { Form::ChannelsLast([all, 1, 1, 1]) } else { Form::Plan };
    let of = |at: usize, form| match step.reads.get(at) {
        Some(&Source::Constant(number)) => Some((number, form)),
        _ => None,
    };
    [of(1, weights), of(2, bias)].into_iter().flatten().collect()
}

/// Addresses for a step whose arena and workspace lie there.
pub fn pointers(plan: &Plan, step: &Step, weights: &Weights, arena: u64, workspace: u64) -> Option<Pointers> {
    let at = |place: &Place| arena + plan.byte(place) as u64;
    let constants = constants(plan, step);
    let residual = match &step.task {
        Task::Compute { residual: Some(Source::Arena(place)), .. } => at(place),
        _ => 0,
    };
    let Some(Source::Arena(read)) = step.reads.first() else { return None };
    Some(Pointers {
        from: at(read),
        weights: weights.address(*constants.first()?)?,
        residual,
        bias: constants.get(1).and_then(|&of| weights.address(of)).unwrap_or(0),
        to: at(step.write.as_ref()?),
        workspace,
    })
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use zoo::Architecture;

    use super::*;
    use crate::import::import;
    use crate::plan::Format;

    fn plan(architecture: Architecture, precision: Precision, layout: Layout) -> Plan {
        let graph = import(&architecture.build(2).encode_to_vec(), 2).expect("the zoo's models are imported");
        Plan::in_format(&graph, Format { precision, layout }).expect("they are planned")
    }

    fn named<'a>(plan: &'a Plan, name: &str) -> &'a Step {
        plan.steps.iter().find(|step| step.names[0] == name).expect("the model has it")
    }

    #[test]
    fn a_part_of_a_concat_is_written_between_the_others_channels() {
        let channels_first = plan(Architecture::SqueezeNet, Precision::Tf32, Layout::ChannelsFirst);
        let (_, part) = &ways(&channels_first, named(&channels_first, "features.3.expand3x3"))[0];
        assert_eq!((part.to.extents, part.to.strides), ([2, 64, 55, 55], [128 * 3025, 3025, 55, 1]));
        assert_eq!((part.to.alignment, part.weights.extents), (16, [64, 16, 3, 3]));

        let plan = plan(Architecture::SqueezeNet, Precision::Half, Layout::ChannelsLast);
        let step = named(&plan, "features.3.expand1x1");
        assert_eq!(step.names[1], "features.3.expand3x3", "with channels last all parts are one convolution");
        let all = ways(&plan, step);
        assert_eq!(all.iter().map(|way| way.0).collect::<Vec<_>>(), [Fused::All, Fused::Products]);
        let (_, whole) = &all[0];
        assert_eq!(whole.arithmetic, Arithmetic::Half);
        assert_eq!((whole.from.extents, whole.from.strides), ([2, 16, 55, 55], [16 * 3025, 1, 880, 16]));
        assert_eq!((whole.to.extents, whole.to.strides), ([2, 128, 55, 55], [128 * 3025, 1, 7040, 128]));
        assert_eq!((whole.weights.extents, whole.weights.strides), ([128, 16, 3, 3], [144, 1, 48, 16]));
        assert_eq!((whole.to.alignment, whole.bias, whole.pads), (16, true, [1, 1, 1, 1]));
        assert_eq!(whole.bounds, Some([0.0, f64::from(f32::MAX)]));
        let (_, products) = &all[1];
        assert_eq!((products.bias, products.bounds, &products.residual), (false, None, &None));
        assert_eq!(constants(&plan, step)[0].1, Form::ChannelsLast([128, 16, 3, 3]));
    }

    #[test]
    fn a_pixels_room_is_filled_unless_others_write_there() {
        let architecture = Architecture::SuperResolution { factor: 3, height: 8, width: 6 };
        for (precision, channels) in [(Precision::Half, 16), (Precision::Tf32, 12), (Precision::Single, 9)] {
            let mut plan = plan(architecture, precision, Layout::ChannelsLast);
            let last = plan.steps.iter().position(|step| step.names[0] == "conv4").expect("the model has it");
            let (_, whole) = &ways(&plan, &plan.steps[last])[0];
            assert_eq!(
                (whole.to.extents, whole.to.strides[3]),
                ([2, channels, 8, 6], channels),
                "{precision:?}"
            );
            assert_eq!(whole.weights.extents, [channels, 32, 3, 3]);
            if channels > 9 {
                let forms: Vec<Form> =
                    constants(&plan, &plan.steps[last]).into_iter().map(|of| of.1).collect();
                let all = channels as usize;
                assert_eq!(forms, [Form::ChannelsLast([all, 32, 3, 3]), Form::ChannelsLast([all, 1, 1, 1])]);
            }
            let piece = plan.steps[last].write.expect("it writes").piece;
            let mut short = plan.clone();
            short.pieces[piece] -= 1;
            assert!(
                plan.check().is_ok() && short.check().is_err(),
                "{precision:?}: a library would write behind its piece"
            );
            plan.steps[last - 1].write.as_mut().expect("it writes").piece = piece;
            let (_, part) = &ways(&plan, &plan.steps[last])[0];
            assert_eq!((part.to.extents[1], part.weights.extents[0]), (9, 9), "{precision:?}");
        }
    }

    #[test]
    fn what_a_library_does_not_fuse_is_left_to_our_kernels() {
        let plan = plan(Architecture::MobileNetV3Small, Precision::Single, Layout::ChannelsFirst);
        let kinds =
            |name: &str| ways(&plan, named(&plan, name)).into_iter().map(|way| way.0).collect::<Vec<_>>();
        assert_eq!(kinds("features.4.block.0.0"), [Fused::Sums, Fused::Products], "a HardSwish");
        assert_eq!(kinds("features.1.block.1.fc1"), [Fused::All, Fused::Products], "a Relu");
        assert_eq!(kinds("features.1.block.1.fc2"), [], "it excites");
        let step = named(&plan, "features.3.block.2.0");
        let (_, with_sum) = &ways(&plan, step)[0];
        assert_eq!(with_sum.residual.map(|residual| residual.extents), Some([2, 24, 28, 28]));
        let grouped = named(&plan, "features.2.block.1.0");
        assert_eq!(ways(&plan, grouped)[0].1.weights.extents, [72, 1, 3, 3]);
        assert_eq!(constants(&plan, grouped)[0].1, Form::Plan);
    }

    #[test]
    fn a_product_of_matrices_is_a_convolution_of_one_pixel() {
        let plan = plan(Architecture::ResNet50, Precision::Tf32, Layout::ChannelsLast);
        let (fused, product) = ways(&plan, named(&plan, "fc")).remove(0);
        assert_eq!((fused, product.arithmetic), (Fused::All, Arithmetic::Tf32));
        assert_eq!((product.from.extents, product.weights.extents), ([2, 2048, 1, 1], [1000, 2048, 1, 1]));
        assert_eq!((product.to.extents, product.bias), ([2, 1000, 1, 1], true));
    }

    /// Whether a product's rows lie where the convolution's pixels do.
    fn lies_alike(of: &Convolution, product: &Product) -> bool {
        let [images, _, rows, columns] = of.from.extents;
        let tensors = [(&of.from, product.inputs), (&of.to, product.outputs)];
        tensors.into_iter().zip(product.strides).all(|((tensor, channels), by)| {
            let pixels = (0..images).flat_map(|image| (0..rows * columns).map(move |pixel| (image, pixel)));
            let places = pixels.map(|(image, pixel)| {
                let [by_image, _, by_row, by_pixel] = tensor.strides;
                image * by_image + pixel / columns * by_row + pixel % columns * by_pixel
            });
            let is_last = (channels as i64 - 1) * tensor.strides[1] == channels as i64 - 1;
            is_last
                && by >= channels as i64
                && places.enumerate().all(|(row, place)| place == row as i64 * by)
        })
    }

    #[test]
    fn a_window_of_a_pixel_is_a_product_of_cublaslt_where_channels_are_last() {
        // Steps of 1x1 convolutions with stride 1 and several pixels. ResNet50: two in each of 16 blocks and
        // one beside the first. SqueezeNet: squeezes and the last. MobileNetV3: all that expand or project.
        for (architecture, count) in [
            (Architecture::ResNet50, 33),
            (Architecture::SqueezeNet, 9),
            (Architecture::MobileNetV3Small, 22),
        ] {
            for (precision, layout, wanted) in [
                (Precision::Single, Layout::ChannelsFirst, 0),
                (Precision::Single, Layout::ChannelsLast, count),
                (Precision::Half, Layout::ChannelsLast, count),
            ] {
                let plan = plan(architecture, precision, layout);
                let all = plan.steps.iter().filter_map(|step| convolution(&plan, step, Fused::Products));
                let products = all.filter_map(|of| product(&of).map(|product| (of, product)));
                let many: Vec<_> = products.filter(|(of, _)| of.from.extents[2] > 1).collect();
                assert_eq!(many.len(), wanted, "{architecture:?} {precision:?} {layout:?}");
                for (of, product) in many {
                    let [images, _, rows, columns] = of.from.extents;
                    assert_eq!(product.rows, (images * rows * columns) as u64);
                    assert!(lies_alike(&of, &product), "{of:?} {product:?}");
                }
            }
        }
        let plan = plan(Architecture::ResNet50, Precision::Single, Layout::ChannelsLast);
        let of = |name| ways(&plan, named(&plan, name)).remove(0).1;
        assert_eq!(product(&of("layer2.0.downsample.0")), None, "every second pixel");
        assert_eq!(product(&of("layer1.0.conv2")), None, "a window of 3x3");
        let one = of("layer1.0.conv1");
        let found = product(&one).expect("a 1x1 convolution");
        assert_eq!((found.rows, found.inputs, found.outputs), (2 * 56 * 56, 64, 64));
        assert_eq!((found.strides, found.bias, found.relu), ([64, 64], true, true));
        for (at, what) in [(0, "images"), (2, "rows")] {
            let mut apart = one.clone();
            apart.from.strides[at] += 64;
            assert_eq!(product(&apart), None, "room between {what}");
        }
    }

    #[test]
    fn a_window_is_a_product_of_rows_that_have_what_each_output_sees() {
        let plan = plan(Architecture::ResNet50, Precision::Single, Layout::ChannelsLast);
        let of = |name| ways(&plan, named(&plan, name)).remove(0).1;
        let window = of("layer2.0.conv2");
        let found = im2col(&window).expect("a window of 3x3 with a stride");
        assert_eq!((found.rows, found.inputs, found.outputs), (2 * 28 * 28, 9 * 128, 128));
        assert_eq!((found.strides, found.bias, found.relu), ([9 * 128, 128], true, true));
        assert_eq!(found.alignments, [16, window.to.alignment as u32]);
        let sparse = im2col(&ways(&plan, named(&plan, "layer2.0.downsample.0"))[1].1);
        assert_eq!(sparse.map(|found| (found.rows, found.inputs)), Some((2 * 28 * 28, 256)));
        let with_sum = Convolution { residual: Some(window.to), ..window.clone() };
        assert_eq!(im2col(&with_sum), None, "a sum with another tensor");
        let first = self::plan(Architecture::ResNet50, Precision::Single, Layout::ChannelsFirst);
        assert_eq!(im2col(&ways(&first, named(&first, "layer2.0.conv2"))[0].1), None, "channels first");
        let grouped = self::plan(Architecture::MobileNetV3Small, Precision::Single, Layout::ChannelsLast);
        assert_eq!(im2col(&ways(&grouped, named(&grouped, "features.2.block.1.0"))[1].1), None, "groups");
    }

    #[test]
    fn what_is_of_one_pixel_is_a_product_of_cublaslt() {
        for precision in [Precision::Single, Precision::Tf32, Precision::Half] {
            let layout =
                if precision == Precision::Half { Layout::ChannelsLast } else { Layout::ChannelsFirst };
            let resnet = plan(Architecture::ResNet50, precision, layout);
            let (_, linear) = ways(&resnet, named(&resnet, "fc")).remove(0);
            let found = product(&linear).expect("a Gemm");
            assert_eq!((found.rows, found.inputs, found.outputs), (2, 2048, 1000), "{precision:?}");
            assert_eq!((found.strides, found.bias, found.relu), ([2048, 1000], true, false));
            assert_eq!(found.arithmetic, linear.arithmetic);
        }
        let plan = plan(Architecture::MobileNetV3Small, Precision::Half, Layout::ChannelsLast);
        let of = |name| ways(&plan, named(&plan, name)).remove(0).1;
        let pooled = of("features.1.block.1.fc1");
        let found = product(&pooled).expect("a 1x1 convolution of one pixel");
        assert_eq!((found.rows, found.inputs, found.outputs, found.relu), (2, 16, 8, true));
        let clipped = Convolution { bounds: Some([0.0, 6.0]), ..pooled.clone() };
        assert_eq!(product(&clipped), None, "a bound that no epilogue has");
        let apart = |by| TensorShape { strides: [32, by, 32, 32], ..pooled.from };
        assert_eq!(product(&Convolution { from: apart(2), ..pooled.clone() }), None, "inputs lie apart");
        let wide = product(&Convolution { from: apart(1), ..pooled.clone() }).expect("rows may lie apart");
        assert_eq!(wide.strides[0], 32);
        let padded = Convolution { pads: [1; 4], stride: [3, 3], ..pooled.clone() };
        assert_eq!(product(&padded), None, "a window beside the pixel");
        let with_sum = Convolution { residual: Some(pooled.to), ..pooled };
        assert_eq!(product(&with_sum), None, "a sum with another tensor");
    }
}
