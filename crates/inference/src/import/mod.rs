//! ONNX files into [`Graph`]s: constants read, optional inputs and attributes decided, shapes known.
//!
//! Follows the operator sets 9 to 22 of ONNX. A file that this importer does not understand is refused with
//! the node and what would help: nothing is skipped in silence. Left out: dynamic shapes but for the batch,
//! control flow, types other than `f32`.

mod attributes;
mod operators;
mod tensor;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use prost::Message;
use zoo::onnx;

use crate::graph::{Graph, Node, Op, Shape, Value, ValueId};
use crate::shape;

/// More nodes than any model here has; planning compares nodes with one another.
const MOST_NODES: usize = 20_000;

/// Operator sets whose rules are known.
const OPSETS: std::ops::RangeInclusive<i64> = 9..=22;

/// Why a file is no model for this engine.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum ImportError {
    /// The file is no protocol buffer, is cut off, or holds no graph.
    #[error("not an ONNX model, or only a part of one: {reason}; export or fetch it again")]
    NotOnnx { reason: String },
    /// Rules of another version.
    #[error(
        "operator set {domain:?} version {version} is not known, ai.onnx {} to {} is; export the model with opset 17",
        OPSETS.start(), OPSETS.end()
    )]
    Opset { domain: String, version: i64 },
    /// An operator that this engine lacks.
    #[error("node {node}: there is no operator {op}; there are: {}", operators::NAMES.join(", "))]
    Operator { node: String, op: String },
    /// An attribute that is wrong, or has no meaning here.
    #[error("node {node}: attribute {attribute}: {problem}; docs/inference.md says what is possible")]
    Attribute { node: String, attribute: String, problem: String },
    /// An input that is missing, or must be a constant.
    #[error("node {node}: input {input}: {problem}; docs/inference.md says what is possible")]
    Input { node: String, input: String, problem: String },
    /// Shapes that do not fit one another.
    #[error("node {node}: {problem}; simplify the model (onnxsim), or export it with fixed shapes")]
    Shape { node: String, problem: String },
    /// An extent that is no number.
    #[error(
        "{value}: axis {axis} is dynamic ({parameter}), only the batch may be; export the model with fixed shapes"
    )]
    Dynamic { value: String, axis: usize, parameter: String },
    /// A tensor or value whose type, size or elements are wrong.
    #[error("tensor {tensor}: {problem}")]
    Tensor { tensor: String, problem: String },
}

/// A name's meaning.
#[derive(Debug, Clone)]
enum Known {
    /// A tensor of `f32`.
    Tensor(ValueId),
    /// Whole numbers: a shape, or axes.
    Ints(Vec<i64>),
}

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
        importer.initializer(tensor)?;
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

/// A graph in the making.
struct Importer {
    graph: Graph,
    known: HashMap<String, Known>,
    /// The batch that is wanted, and that of the file.
    batch: usize,
    file_batch: Option<usize>,
}

impl Importer {
    fn new(name: &str, batch: usize) -> Importer {
        let graph = Graph {
            name: name.to_owned(),
            values: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        Importer { graph, known: HashMap::new(), batch, file_batch: None }
    }

    fn value(&mut self, name: &str, shape: Shape, constant: Option<Vec<f32>>) -> ValueId {
        let constant = constant.map(Into::into);
        self.graph.values.push(Value { name: name.to_owned(), shape, constant });
        ValueId(self.graph.values.len() - 1)
    }

    fn name(&mut self, name: &str, known: Known) -> Result<(), ImportError> {
        if self.known.insert(name.to_owned(), known).is_some() {
            let problem = "two nodes or constants write it".to_owned();
            return Err(ImportError::Tensor { tensor: name.to_owned(), problem });
        }
        Ok(())
    }

    fn initializer(&mut self, tensor: &onnx::Tensor) -> Result<(), ImportError> {
        let known = self.constant(&tensor.name, tensor)?;
        self.name(&tensor.name, known)
    }

    /// A constant's meaning, by its type.
    fn constant(&mut self, name: &str, tensor: &onnx::Tensor) -> Result<Known, ImportError> {
        match tensor::read(name, tensor)? {
            tensor::Elements::Ints(ints) => Ok(Known::Ints(ints)),
            tensor::Elements::Floats(shape, elements) => {
                Ok(Known::Tensor(self.value(name, shape, Some(elements))))
            }
        }
    }

    fn input(&mut self, info: &onnx::ValueInfo) -> Result<(), ImportError> {
        let known = self.known.get(&info.name);
        let constant = |known: &Known| match known {
            Known::Tensor(id) => self.graph.constant(*id).is_some(),
            Known::Ints(_) => true,
        };
        if known.is_some_and(constant) {
            return Ok(()); // An initializer, which older files list here as well.
        }
        let extents = tensor::extents(info)?;
        let extent = |(axis, extent)| match (axis, extent) {
            (0, _) => Ok(self.batch),
            (_, onnx::Extent::Value(extent)) => usize::try_from(extent).map_err(|_| ImportError::Tensor {
                tensor: info.name.clone(),
                problem: format!("axis {axis} is {extent}"),
            }),
            (axis, onnx::Extent::Parameter(parameter)) => {
                Err(ImportError::Dynamic { value: info.name.clone(), axis, parameter })
            }
        };
        if let Some(&onnx::Extent::Value(of_file)) = extents.first() {
            self.file_batch = self.file_batch.or(usize::try_from(of_file).ok());
        }
        let extents = extents.into_iter().enumerate().map(extent).collect::<Result<Vec<_>, _>>()?;
        let shape = Shape::new(extents.clone()).ok_or_else(|| ImportError::Tensor {
            tensor: info.name.clone(),
            problem: format!("extents of {extents:?} are empty, or hold more than 2^31 elements"),
        })?;
        let id = self.value(&info.name, shape, None);
        self.graph.inputs.push(id);
        self.name(&info.name, Known::Tensor(id))
    }

    /// Adds a node. `reshaped`: the shape that a [`Op::Reshape`] gives.
    fn node(
        &mut self,
        node: &onnx::Node,
        op: Op,
        inputs: Vec<ValueId>,
        reshaped: Option<Shape>,
    ) -> Result<ValueId, ImportError> {
        let shapes: Vec<&Shape> = inputs.iter().map(|&id| self.graph.shape(id)).collect();
        let shape = shape::output(&op, &shapes, reshaped)
            .map_err(|problem| ImportError::Shape { node: label(node), problem })?;
        let output = node.output.first().map_or("", String::as_str);
        let output = self.value(output, shape, None);
        let name =
            if node.name.is_empty() { self.graph.value(output).name.clone() } else { node.name.clone() };
        self.graph.nodes.push(Node { names: vec![name], op, inputs, output });
        Ok(output)
    }

    /// Gives a node's first output a meaning. Further outputs, as a Dropout's mask, have none: reading one is
    /// an error.
    fn alias(&mut self, node: &onnx::Node, known: Known) -> Result<(), ImportError> {
        let output = node.output.first().filter(|name| !name.is_empty());
        let output = output.ok_or_else(|| ImportError::Shape {
            node: label(node),
            problem: "it writes nothing".to_owned(),
        })?;
        self.name(output, known)
    }

    fn finish(mut self, outputs: &[onnx::ValueInfo]) -> Result<Graph, ImportError> {
        for output in outputs {
            let Some(&Known::Tensor(id)) = self.known.get(&output.name) else {
                let problem = "the model's output, but no node writes it".to_owned();
                return Err(ImportError::Tensor { tensor: output.name.clone(), problem });
            };
            self.graph.outputs.push(id);
        }
        if self.graph.inputs.is_empty() || self.graph.outputs.is_empty() {
            let reason = format!("{} inputs, {} outputs", self.graph.inputs.len(), self.graph.outputs.len());
            return Err(ImportError::NotOnnx { reason });
        }
        Ok(self.graph)
    }
}

/// A node's name in messages: what exporters call it, or what it writes, and its operator.
fn label(node: &onnx::Node) -> String {
    let name = if node.name.is_empty() {
        node.output.first().map_or("without a name", String::as_str)
    } else {
        &node.name
    };
    format!("{name} ({})", node.op_type)
}
