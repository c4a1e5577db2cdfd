//! Constants and the types of inputs.

use zoo::onnx::{self, DataType};

use super::ImportError;
use crate::graph::Shape;

/// What helps against elements that no exporter writes.
const DAMAGED: &str = "the weights are damaged: export or fetch the model again";

/// A constant's elements.
pub(super) enum Elements {
    /// Of a tensor of `f32`.
    Floats(Shape, Vec<f32>),
    /// Of a tensor of `i64` with at most one axis.
    Ints(Vec<i64>),
}

/// A constant. `name`: for messages.
pub(super) fn read(name: &str, tensor: &onnx::Tensor) -> Result<Elements, ImportError> {
    let wrong = |problem: String| ImportError::Tensor { tensor: name.to_owned(), problem };
    if tensor.data_location != 0 {
        return Err(wrong(
            "its elements lie in another file; save the model with its weights inside".to_owned(),
        ));
    }
    match DataType::try_from(tensor.data_type) {
        Ok(DataType::Float) => {
            let extents = tensor.dims.iter().map(|&extent| usize::try_from(extent));
            let extents = extents.collect::<Result<Vec<_>, _>>();
            let extents = extents.map_err(|_| wrong(format!("extents of {:?}", tensor.dims)))?;
            let shape = Shape::new(extents).ok_or_else(|| {
                wrong(format!("extents of {:?} are empty, or hold more than 2^31 elements", tensor.dims))
            })?;
            let elements = elements(tensor, &tensor.float_data, f32::from_le_bytes).map_err(wrong)?;
            if elements.len() != shape.count() {
                return Err(wrong(format!("{} elements for a shape of {shape}; {DAMAGED}", elements.len())));
            }
            if let Some(at) = elements.iter().position(|element| !element.is_finite()) {
                return Err(wrong(format!("element {at} is {}; {DAMAGED}", elements[at])));
            }
            Ok(Elements::Floats(shape, elements))
        }
        Ok(DataType::Int64) if tensor.dims.len() <= 1 => {
            let ints = elements(tensor, &tensor.int64_data, i64::from_le_bytes).map_err(wrong)?;
            let count = tensor.dims.first().copied().unwrap_or(1);
            if usize::try_from(count) != Ok(ints.len()) {
                return Err(wrong(format!("{} elements for {count}", ints.len())));
            }
            Ok(Elements::Ints(ints))
        }
        found => {
            let found = found.map_or_else(|number| number.0.to_string(), |found| format!("{found:?}"));
            Err(wrong(format!(
                "{} axes of type {found}; weights are FLOAT here: export the model in float32",
                tensor.dims.len()
            )))
        }
    }
}

/// The elements, from whichever field holds them.
fn elements<T: Copy, const BYTES: usize>(
    tensor: &onnx::Tensor,
    typed: &[T],
    from: fn([u8; BYTES]) -> T,
) -> Result<Vec<T>, String> {
    if tensor.raw_data.is_empty() {
        return Ok(typed.to_vec());
    }
    let (whole, rest) = tensor.raw_data.as_chunks::<BYTES>();
    if !rest.is_empty() || !typed.is_empty() {
        return Err(format!("{} bytes are no elements of {BYTES} bytes each", tensor.raw_data.len()));
    }
    Ok(whole.iter().map(|&bytes| from(bytes)).collect())
}

/// The extents that a file gives for a graph's input.
pub(super) fn extents(info: &onnx::ValueInfo) -> Result<Vec<onnx::Extent>, ImportError> {
    let wrong =
        |problem: &str| ImportError::Tensor { tensor: info.name.clone(), problem: problem.to_owned() };
    let tensor = info.r#type.as_ref().and_then(|of| of.tensor_type.as_ref());
    let tensor = tensor.ok_or_else(|| wrong("the model's input is no tensor"))?;
    if DataType::try_from(tensor.elem_type) != Ok(DataType::Float) {
        return Err(wrong("the model's input is not of type FLOAT; export the model in float32"));
    }
    let shape = tensor
        .shape
        .as_ref()
        .ok_or_else(|| wrong("the model's input has no shape; export it with fixed shapes"))?;
    let unknown = || onnx::Extent::Parameter("unknown".to_owned());
    Ok(shape.dim.iter().map(|dim| dim.extent.clone().unwrap_or_else(unknown)).collect())
}
