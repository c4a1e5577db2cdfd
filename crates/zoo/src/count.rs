//! Shapes, parameters and multiply-accumulates (MACs) of a model, node by node.
//!
//! Shapes follow `Operators.md` of the ONNX project, opset 17. Counted as published tables count: a MAC is one multiplication with
//! its addition; convolutions and dense layers have them, other operators have none. Means and variances of a batch normalisation
//! are no parameters, since no gradient reaches them. Left out: operators that no model of the zoo needs.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::onnx::{Dimension, Extent, Graph, Model, Node, ValueInfo};

/// Why a model was not counted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CountError {
    #[error("the file has no graph")]
    NoGraph,
    #[error("{value}: the shape is not fixed")]
    Dynamic { value: String },
    #[error("node {node}: {value} is neither an input, a weight nor the output of an earlier node")]
    Unknown { node: String, value: String },
    #[error("node {node}: the operator {operator} is not counted")]
    Operator { node: String, operator: String },
    #[error("node {node} ({operator}): inputs of shapes {shapes:?} do not fit")]
    Shapes { node: String, operator: String, shapes: Vec<Vec<usize>> },
}

/// What a node computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCount {
    /// The node's name, or its first output's where it has none.
    pub name: String,
    /// Its operator.
    pub operator: String,
    /// Shape of its first output.
    pub shape: Vec<usize>,
    /// Multiply-accumulates of one run.
    pub macs: u64,
}

/// What a model computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Elements of all weights.
    pub parameters: u64,
    /// The nodes in the graph's order.
    pub nodes: Vec<NodeCount>,
}

impl Count {
    /// Multiply-accumulates of one run.
    pub fn macs(&self) -> u64 {
        self.nodes.iter().map(|node| node.macs).sum()
    }
}

/// A value's extents, if all are fixed. A first extent that has a name instead of a number is the batch, and taken as 1.
pub fn shape_of(value: &ValueInfo) -> Result<Vec<usize>, CountError> {
    let dynamic = || CountError::Dynamic { value: value.name.clone() };
    let tensor = value.r#type.as_ref().and_then(|r#type| r#type.tensor_type.as_ref());
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref()).ok_or_else(dynamic)?;
    let extent = |(axis, extent): (usize, &Dimension)| match &extent.extent {
        Some(Extent::Value(extent)) => usize::try_from(*extent).map_err(|_| dynamic()),
        Some(Extent::Parameter(_)) if axis == 0 => Ok(1),
        _ => Err(dynamic()),
    };
    shape.dim.iter().enumerate().map(extent).collect()
}

/// Counts a model's parameters and the work of each node.
pub fn count(model: &Model) -> Result<Count, CountError> {
    let graph = model.graph.as_ref().ok_or(CountError::NoGraph)?;
    let mut shapes = weights(graph);
    let parameters = parameters(graph);
    for input in &graph.input {
        if !shapes.contains_key(&input.name) {
            shapes.insert(input.name.clone(), shape_of(input)?);
        }
    }
    let mut nodes = Vec::with_capacity(graph.node.len());
    for node in &graph.node {
        let counted = count_node(node, &shapes)?;
        if let Some(output) = node.output.first() {
            shapes.insert(output.clone(), counted.shape.clone());
        }
        nodes.push(counted);
    }
    Ok(Count { parameters, nodes })
}

/// Elements of all weights.
pub fn parameters(graph: &Graph) -> u64 {
    let norms = graph.node.iter().filter(|node| node.op_type == "BatchNormalization");
    let statistics: BTreeSet<&String> = norms.flat_map(|node| node.input.iter().skip(3)).collect();
    let weights = weights(graph);
    let trained = weights.iter().filter(|(name, _)| !statistics.contains(name));
    trained.map(|(_, shape)| product(shape)).sum()
}

/// Shapes of the weights by their names.
fn weights(graph: &Graph) -> BTreeMap<String, Vec<usize>> {
    let shape =
        |dims: &[i64]| dims.iter().map(|&extent| usize::try_from(extent).unwrap_or_default()).collect();
    graph.initializer.iter().map(|tensor| (tensor.name.clone(), shape(&tensor.dims))).collect()
}

fn product(shape: &[usize]) -> u64 {
    shape.iter().fold(1, |product, &extent| product.saturating_mul(extent as u64))
}

fn count_node(node: &Node, known: &BTreeMap<String, Vec<usize>>) -> Result<NodeCount, CountError> {
    let name = if node.name.is_empty() {
        node.output.first().cloned().unwrap_or_default()
    } else {
        node.name.clone()
    };
    let operator = node.op_type.clone();
    let unknown = |value: &String| CountError::Unknown { node: name.clone(), value: value.clone() };
    let inputs = node.input.iter().filter(|input| !input.is_empty());
    let shapes: Vec<Vec<usize>> = inputs
        .map(|input| known.get(input).cloned().ok_or_else(|| unknown(input)))
        .collect::<Result<_, _>>()?;
    match output_shape(node, &shapes) {
        Ok(Some((shape, macs))) => Ok(NodeCount { name, operator, shape, macs }),
        Ok(None) => Err(CountError::Shapes { node: name, operator, shapes }),
        Err(NotCounted) => Err(CountError::Operator { node: name, operator }),
    }
}

/// The operator is none of the zoo's.
struct NotCounted;

/// Shape of the output and MACs; none where the inputs do not fit.
fn output_shape(node: &Node, inputs: &[Vec<usize>]) -> Result<Option<(Vec<usize>, u64)>, NotCounted> {
    let first = inputs.first();
    let counted = match node.op_type.as_str() {
        "Conv" => conv(node, inputs),
        "Gemm" => gemm(node, inputs),
        "MaxPool" => first.and_then(|input| Some((windows(node, input, &ints(node, "kernel_shape")?)?, 0))),
        "GlobalAveragePool" => first.and_then(|input| match input[..] {
            [batch, channels, _, _] => Some((vec![batch, channels, 1, 1], 0)),
            _ => None,
        }),
        "Flatten" => first.and_then(|input| {
            let features = input.get(1..)?.iter().product();
            (int(node, "axis", 1) == 1).then(|| (vec![input[0], features], 0))
        }),
        "Concat" => concat(node, inputs),
        "DepthToSpace" => first.and_then(|input| {
            let block = usize::try_from(int(node, "blocksize", 0)).ok().filter(|&block| block > 0)?;
            match input[..] {
                [batch, channels, height, width] if channels.is_multiple_of(block * block) => {
                    Some((vec![batch, channels / (block * block), height * block, width * block], 0))
                }
                _ => None,
            }
        }),
        "BatchNormalization" | "Relu" | "HardSwish" | "HardSigmoid" => first.map(|input| (input.clone(), 0)),
        "Add" | "Mul" => broadcast(inputs).map(|shape| (shape, 0)),
        _ => return Err(NotCounted),
    };
    Ok(counted)
}

fn attribute<'a>(node: &'a Node, name: &str) -> Option<&'a crate::onnx::Attribute> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

fn int(node: &Node, name: &str, default: i64) -> i64 {
    attribute(node, name).map_or(default, |attribute| attribute.i)
}

fn ints(node: &Node, name: &str) -> Option<Vec<usize>> {
    attribute(node, name)?.ints.iter().map(|&value| usize::try_from(value).ok()).collect()
}

/// Places of a window over height and width, as ONNX defines them for explicit padding.
fn windows(node: &Node, input: &[usize], kernel: &[usize]) -> Option<Vec<usize>> {
    let values = |name: &str, default: usize, count| match attribute(node, name) {
        Some(_) => ints(node, name).filter(|values| values.len() == count),
        None => Some(vec![default; count]),
    };
    let (strides, dilations) = (values("strides", 1, 2)?, values("dilations", 1, 2)?);
    let pads = values("pads", 0, 4)?;
    let ceil = int(node, "ceil_mode", 0) == 1;
    let extent = |axis: usize| {
        let reach = dilations[axis].checked_mul(kernel.get(axis)?.checked_sub(1)?)?.checked_add(1)?;
        let padded = input[2 + axis].checked_add(pads[axis])?.checked_add(pads[2 + axis])?;
        let free = padded.checked_sub(reach)?;
        let steps = if ceil { free.checked_add(strides[axis].checked_sub(1)?)? } else { free };
        let places = steps.checked_div(strides[axis])? + 1;
        // A last window that would begin in the padding behind the input is left out.
        let begins_behind = ceil && (places - 1) * strides[axis] >= input[2 + axis] + pads[axis];
        Some(places - usize::from(begins_behind))
    };
    match input {
        [batch, channels, _, _] => Some(vec![*batch, *channels, extent(0)?, extent(1)?]),
        _ => None,
    }
}

fn conv(node: &Node, inputs: &[Vec<usize>]) -> Option<(Vec<usize>, u64)> {
    let [input, weight, ..] = inputs else { return None };
    let group = usize::try_from(int(node, "group", 1)).ok()?;
    let &[channels, per_group, _, _] = &weight[..] else { return None };
    if *input.get(1)? != per_group.checked_mul(group)? {
        return None;
    }
    let mut shape = windows(node, input, &weight[2..])?;
    shape[1] = channels;
    let macs = product(&shape).saturating_mul(product(&weight[1..]));
    Some((shape, macs))
}

fn gemm(node: &Node, inputs: &[Vec<usize>]) -> Option<(Vec<usize>, u64)> {
    let [left, right, ..] = inputs else { return None };
    let (&[rows, inner], &[first, second]) = (&left[..], &right[..]) else { return None };
    let (depth, columns) = if int(node, "transB", 0) == 1 { (second, first) } else { (first, second) };
    let fits = int(node, "transA", 0) == 0 && inner == depth;
    fits.then(|| (vec![rows, columns], product(&[rows, columns, depth])))
}

fn concat(node: &Node, inputs: &[Vec<usize>]) -> Option<(Vec<usize>, u64)> {
    let axis = usize::try_from(int(node, "axis", -1)).ok()?;
    let mut shape = inputs.first()?.clone();
    for input in &inputs[1..] {
        let fits = |(place, extent): (usize, &usize)| place == axis || shape.get(place) == Some(extent);
        if input.len() != shape.len() || !input.iter().enumerate().all(fits) {
            return None;
        }
        *shape.get_mut(axis)? += input.get(axis)?;
    }
    Some((shape, 0))
}

/// Shapes of the same rank in which an extent of 1 repeats.
fn broadcast(inputs: &[Vec<usize>]) -> Option<Vec<usize>> {
    let [left, right] = inputs else { return None };
    if left.len() != right.len() {
        return None;
    }
    let extent = |(&left, &right): (&usize, &usize)| match (left, right) {
        (1, extent) | (extent, 1) => Some(extent),
        (left, right) => (left == right).then_some(left),
    };
    left.iter().zip(right).map(extent).collect()
}
