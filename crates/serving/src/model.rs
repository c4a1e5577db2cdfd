//! A model's slot: made of its manifest alone, so that client and server agree without telling each other sizes.

use slots::{Geometry, Tensor, TensorKind};
use zoo::{ElementType, Manifest};

/// Why a manifest gives no slot.
#[derive(Debug, thiserror::Error)]
#[error("{model}: {source}")]
pub struct ModelError {
    model: String,
    source: slots::geometry::GeometryError,
}

/// The slot of a model of this manifest: one request is the manifest's input.
///
/// # Errors
/// Tensors that no header can say.
pub fn geometry(manifest: &Manifest, model_id: u32) -> Result<Geometry, ModelError> {
    let tensor = |tensor: &zoo::Tensor| Tensor {
        kind: match tensor.r#type {
            ElementType::F32 => TensorKind::F32,
        },
        count: tensor.shape.iter().product(),
    };
    let outputs: Vec<Tensor> = manifest.output.iter().map(tensor).collect();
    let geometry = Geometry::new(model_id, &[tensor(&manifest.input)], &outputs);
    geometry.map_err(|source| ModelError { model: manifest.name.clone(), source })
}
