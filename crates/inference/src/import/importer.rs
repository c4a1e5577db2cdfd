//! A graph in the making.

use std::collections::HashMap;

use zoo::onnx;

use super::error::{ImportError, label};
use super::tensor;
use crate::graph::{Graph, Node, Op, Shape, Value, ValueId};
use crate::shape;

/// A name's meaning.
#[derive(Debug, Clone)]
pub(super) enum Known {
    /// A tensor of `f32`.
    Tensor(ValueId),
    /// Whole numbers: a shape, or axes.
    Ints(Vec<i64>),
    /// Images whose pixels were shuffled, with an axis for rows and columns of a block each: six axes.
    Shuffled(ValueId),
}

/// A graph in the making.
pub(super) struct Importer {
    pub(super) graph: Graph,
    pub(super) known: HashMap<String, Known>,
    /// The batch that is wanted, and that of the file.
    pub(super) batch: usize,
    pub(super) file_batch: Option<usize>,
}

impl Importer {
    pub(super) fn new(name: &str, batch: usize) -> Importer {
        let graph = Graph {
            name: name.to_owned(),
            values: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        Importer { graph, known: HashMap::new(), batch, file_batch: None }
    }

    pub(super) fn value(&mut self, name: &str, shape: Shape, constant: Option<Vec<f32>>) -> ValueId {
        let constant = constant.map(Into::into);
        self.graph.values.push(Value { name: name.to_owned(), shape, constant });
        ValueId(self.graph.values.len() - 1)
    }

    pub(super) fn name(&mut self, name: &str, known: Known) -> Result<(), ImportError> {
        if self.known.insert(name.to_owned(), known).is_some() {
            let problem = "two nodes or constants write it".to_owned();
            return Err(ImportError::Tensor { tensor: name.to_owned(), problem });
        }
        Ok(())
    }

    pub(super) fn initializer(&mut self, tensor: &onnx::Tensor) -> Result<(), ImportError> {
        let known = self.constant(&tensor.name, tensor)?;
        self.name(&tensor.name, known)
    }

    /// A constant's meaning, by its type.
    pub(super) fn constant(&mut self, name: &str, tensor: &onnx::Tensor) -> Result<Known, ImportError> {
        match tensor::read(name, tensor)? {
            tensor::Elements::Ints(ints) => Ok(Known::Ints(ints)),
            tensor::Elements::Floats(shape, elements) => {
                Ok(Known::Tensor(self.value(name, shape, Some(elements))))
            }
        }
    }

    pub(super) fn input(&mut self, info: &onnx::ValueInfo) -> Result<(), ImportError> {
        let known = self.known.get(&info.name);
        let constant = |known: &Known| match known {
            Known::Tensor(id) => self.graph.constant(*id).is_some(),
            Known::Ints(_) => true,
            Known::Shuffled(_) => false,
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
    pub(super) fn node(
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
    pub(super) fn alias(&mut self, node: &onnx::Node, known: Known) -> Result<(), ImportError> {
        let output = node.output.first().filter(|name| !name.is_empty());
        let output = output.ok_or_else(|| ImportError::Shape {
            node: label(node),
            problem: "it writes nothing".to_owned(),
        })?;
        self.name(output, known)
    }

    pub(super) fn finish(mut self, outputs: &[onnx::ValueInfo]) -> Result<Graph, ImportError> {
        for output in outputs {
            let problem = match self.known.get(&output.name) {
                Some(&Known::Tensor(id)) => {
                    self.graph.outputs.push(id);
                    continue;
                }
                Some(Known::Shuffled(_)) => {
                    "the model's output, and transposed blocks, which only a Reshape reads"
                }
                _ => "the model's output, but no node writes it",
            };
            return Err(ImportError::Tensor { tensor: output.name.clone(), problem: problem.to_owned() });
        }
        if self.graph.inputs.is_empty() || self.graph.outputs.is_empty() {
            let reason = format!("{} inputs, {} outputs", self.graph.inputs.len(), self.graph.outputs.len());
            return Err(ImportError::NotOnnx { reason });
        }
        Ok(self.graph)
    }
}
