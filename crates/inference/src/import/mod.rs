//! ONNX files into [`Graph`]s: constants read, optional inputs and attributes decided, shapes known.
//!
//! Follows the operator sets 9 to 22 of ONNX. A file that this importer does not understand is refused with
//! the node and what would help: nothing is skipped in silence. Left out: dynamic shapes but for the batch,
//! control flow, types other than `f32`.

mod attributes;
mod error;
mod importer;
mod operators;
mod tensor;
#[cfg(test)]
mod tests;

use prost::Message;
use zoo::onnx;

pub use error::ImportError;
use error::OPSETS;
use importer::Importer;

use crate::graph::Graph;

/// More nodes than any model here has; planning compares nodes with one another.
const MOST_NODES: usize = 20_000;

/// The graph of a file. `batch`: how many images at a time, in place of the first axis of each input.
pub fn import(file: &[u8], batch: usize) -> Result<Graph, ImportError> {
    let model =
        onnx::Model::decode(file).map_err(|error| ImportError::NotOnnx { reason: error.to_string() })?;
    check_opsets(&model)?;
    let graph = model.graph.as_ref();
    let graph = graph.ok_or_else(|| ImportError::NotOnnx { reason: "it holds no graph".to_owned() })?;
    if graph.node.len() > MOST_NODES {
        let reason = format!("it has {} nodes, more than {MOST_NODES}", graph.node.len());
        return Err(ImportError::NotOnnx { reason });
    }
    let mut importer = Importer::new(&graph.name, batch);
    for tensor in &graph.initializer {
        importer.initializer(tensor).map_err(|error| error.read_by(&graph.node))?;
    }
    for input in &graph.input {
        importer.input(input)?;
    }
    for node in &graph.node {
        operators::import(&mut importer, node)?;
    }
    importer.finish(&graph.output)
}

fn check_opsets(model: &onnx::Model) -> Result<(), ImportError> {
    let own = |set: &&onnx::OperatorSet| set.domain.is_empty() || set.domain == "ai.onnx";
    match model.opset_import.iter().find(own) {
        Some(set) if OPSETS.contains(&set.version) => Ok(()),
        Some(set) => Err(ImportError::Opset { domain: set.domain.clone(), version: set.version }),
        None if model.graph.is_none() => {
            Err(ImportError::NotOnnx { reason: "it holds neither operator set nor graph".to_owned() })
        }
        None => Err(ImportError::Opset { domain: String::new(), version: 0 }),
    }
}
