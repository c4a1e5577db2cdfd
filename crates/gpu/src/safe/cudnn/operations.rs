//! The operation graph of a convolution: the operations and the tensors between them.

use super::{Arithmetic, Convolution, TensorShape, id};
use crate::result::Result;
use crate::result::cudnn::{Descriptor, Library, kind, name, of};

/// The operations: the convolution, and a sum, a sum and a bound behind it; and the tensors between them.
pub(super) fn of(library: &Library, wanted: &Convolution) -> Result<(Vec<Descriptor>, Vec<Descriptor>)> {
    let Convolution { arithmetic, from, weights, to, residual, .. } = *wanted;
    let following =
        usize::from(residual.is_some()) + usize::from(wanted.bias) + usize::from(wanted.bounds.is_some());
    let mut left = following;
    let mut between = id::BETWEEN;
    // What an operation writes: the result, or something in between, which lies nowhere.
    let mut written = || {
        let last = left == 0;
        left = left.saturating_sub(1);
        between += 1;
        if last {
            tensor(library, arithmetic, to, id::TO, false)
        } else {
            tensor(library, Arithmetic::Single, to, between, true)
        }
    };
    let window = library.descriptor(kind::CONVOLUTION)?;
    let window = window.choice(name::CONVOLUTION_COMP_TYPE, of::DATA_TYPE, FLOAT)?;
    // `CUDNN_CROSS_CORRELATION`.
    let window = window.choice(name::CONVOLUTION_MODE, of::CONVOLUTION_MODE, 1)?;
    let window = window.ints(name::CONVOLUTION_SPATIAL_DIMS, &[2])?;
    let window = window.ints(name::CONVOLUTION_STRIDES, &wanted.stride)?;
    let window = window.ints(name::CONVOLUTION_DILATIONS, &wanted.dilation)?;
    let window = window.ints(name::CONVOLUTION_PRE_PADDINGS, &wanted.pads[..2])?;
    let window = window.ints(name::CONVOLUTION_POST_PADDINGS, &wanted.pads[2..])?.finalize()?;
    let mut last = written()?;
    let forward = library.descriptor(kind::OPERATION_CONVOLUTION_FORWARD)?;
    let forward = forward.float(name::FORWARD_ALPHA, 1.0)?.float(name::FORWARD_BETA, 0.0)?;
    let forward = forward.keeping(name::FORWARD_CONVOLUTION, window)?;
    let forward = forward.keeping(name::FORWARD_X, tensor(library, arithmetic, from, id::FROM, false)?)?;
    let forward =
        forward.keeping(name::FORWARD_W, tensor(library, arithmetic, weights, id::WEIGHTS, false)?)?;
    let mut operations = vec![forward.others(name::FORWARD_Y, &[&last])?.finalize()?];
    let mut kept = Vec::new();
    let outputs = to.extents[1];
    let of_bias =
        TensorShape { extents: [1, outputs, 1, 1], strides: [outputs, 1, outputs, outputs], alignment: 16 };
    let summands = [residual.map(|shape| (shape, id::RESIDUAL)), wanted.bias.then_some((of_bias, id::BIAS))];
    for (shape, id) in summands.into_iter().flatten() {
        let next = written()?;
        let mode = library.descriptor(kind::POINTWISE)?;
        let mode = mode.choice(name::POINTWISE_MODE, of::POINTWISE_MODE, ADD)?;
        let mode = mode.choice(name::POINTWISE_MATH_PREC, of::DATA_TYPE, FLOAT)?.finalize()?;
        let sum = library.descriptor(kind::OPERATION_POINTWISE)?.keeping(name::OPERATION_POINTWISE, mode)?;
        let sum = sum.others(name::OPERATION_X, &[&last])?.others(name::OPERATION_Y, &[&next])?;
        let sum = sum.keeping(name::OPERATION_B, tensor(library, arithmetic, shape, id, false)?)?;
        operations.push(sum.finalize()?);
        kept.push(std::mem::replace(&mut last, next));
    }
    if let Some([low, high]) = wanted.bounds {
        let next = written()?;
        let mode = library.descriptor(kind::POINTWISE)?;
        let mode = mode.choice(name::POINTWISE_MODE, of::POINTWISE_MODE, RELU)?;
        let mode = mode.choice(name::POINTWISE_MATH_PREC, of::DATA_TYPE, FLOAT)?;
        let mode = mode.double(name::POINTWISE_RELU_LOWER_CLIP, low)?;
        let mode = mode.double(name::POINTWISE_RELU_UPPER_CLIP, high)?.finalize()?;
        let bound =
            library.descriptor(kind::OPERATION_POINTWISE)?.keeping(name::OPERATION_POINTWISE, mode)?;
        let bound = bound.others(name::OPERATION_X, &[&last])?.others(name::OPERATION_Y, &[&next])?;
        operations.push(bound.finalize()?);
        kept.push(std::mem::replace(&mut last, next));
    }
    kept.push(last);
    Ok((operations, kept))
}

/// `CUDNN_DATA_FLOAT` and `CUDNN_DATA_HALF`.
const FLOAT: i32 = 0;
const HALF: i32 = 2;
/// `CUDNN_POINTWISE_ADD` and `CUDNN_POINTWISE_RELU_FWD`.
const ADD: i32 = 0;
const RELU: i32 = 100;
fn tensor(
    library: &Library,
    arithmetic: Arithmetic,
    shape: TensorShape,
    id: i64,
    between: bool,
) -> Result<Descriptor> {
    let element = if arithmetic == Arithmetic::Half { HALF } else { FLOAT };
    let tensor = library.descriptor(kind::TENSOR)?.choice(name::TENSOR_TYPE, of::DATA_TYPE, element)?;
    let tensor =
        tensor.ints(name::TENSOR_DIMENSIONS, &shape.extents)?.ints(name::TENSOR_STRIDES, &shape.strides)?;
    let tensor =
        tensor.ints(name::TENSOR_UNIQUE_ID, &[id])?.ints(name::TENSOR_ALIGNMENT, &[shape.alignment])?;
    tensor.flag(name::TENSOR_IS_VIRTUAL, between)?.finalize()
}
