//! A model's slot: made of its manifest alone, so that client and server agree without exchanging sizes.

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

#[cfg(test)]
mod tests {
    use slots::{Client, Server, Status};

    use super::*;
    use crate::{Arrival, SetupRequest, Transport};

    /// S6: slots of 602,112 and 4,000 bytes, as options say, for tensors of another length.
    #[test]
    fn release_s6_a_slot_is_as_long_as_its_models_tensors_and_other_lengths_are_refused() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../modelzoo/models");
        let manifests = Manifest::all(&folder, &[]).unwrap();
        assert!(manifests.len() >= 5);
        let f32s = |bytes: usize| slots::Tensor { kind: TensorKind::F32, count: bytes / 4 };
        let options = Geometry::new(3, &[f32s(602_112)], &[f32s(4000)]).unwrap();
        let mut unlike = 0;
        for manifest in &manifests {
            let ours = geometry(manifest, 3).unwrap();
            let lengths = |message: &slots::geometry::Message| -> Vec<u64> {
                message.entries().iter().map(|entry| entry.length.into()).collect()
            };
            assert_eq!(lengths(&ours.request), [manifest.input.bytes], "{}", manifest.name);
            let outputs: Vec<u64> = manifest.output.iter().map(|output| output.bytes).collect();
            assert_eq!(lengths(&ours.answer), outputs, "{}", manifest.name);
            assert!(ours.server_stride() as u64 >= manifest.input.bytes + outputs.iter().sum::<u64>());
            if ours == options {
                continue;
            }
            unlike += 1;
            // A client with the options' lengths is refused, and so is one that says nothing of them.
            let setup_request = SetupRequest::new(&manifest.name, &options, 1, Arrival::Flag, Transport::Rc);
            assert!(setup_request.check(&ours).is_err(), "{}", manifest.name);
            let mut server = Server::new(ours.clone(), 1);
            let (client, granted) = server.grant(1).unwrap();
            let request = Client::new(options.clone(), &granted).ask(1, 0, 0, 9).unwrap();
            server.arrived(client, request.slot, &request.prefix).unwrap();
            let refused = server.take().unwrap().refused;
            let same_request = ours.request == options.request;
            assert_eq!(refused, (!same_request).then_some(Status::BadTensors), "{}", manifest.name);
        }
        assert!(unlike >= 2, "super-resolution has other lengths");
    }
}
