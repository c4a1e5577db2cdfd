//! Shapes, parameters and multiply-accumulates (MACs) of a model, node by node.
//!
//! Shapes follow `Operators.md` of the ONNX project, opset 17. Counted as published tables count: a MAC is
//! one multiplication with its addition; convolutions and dense layers have them, other operators have none.
//! Means and variances of a batch normalisation are no parameters, since no gradient reaches them. Left out:
//! operators that no model of the zoo needs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};

use crate::onnx::{Dimension, Extent, Graph, Model, Node, ValueInfo};

/// What a node computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCount {
    /// The node's name, or its first output's where it has none.
    pub name: String,
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
        self.nodes.iter().fold(0, |sum, node| sum.saturating_add(node.macs))
    }
}

/// A value's extents, if all are fixed. A first extent that has a name instead of a number is the batch, and
/// taken as 1.
pub fn shape_of(value: &ValueInfo) -> Result<Vec<usize>> {
    let dynamic = || anyhow!("{}: the shape is not fixed; export the model with fixed shapes", value.name);
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
pub fn count(model: &Model) -> Result<Count> {
    let graph = model.graph.as_ref().context("the file has no graph")?;
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
    trained.fold(0, |sum, (_, shape)| sum.saturating_add(product(shape)))
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

fn count_node(node: &Node, known: &BTreeMap<String, Vec<usize>>) -> Result<NodeCount> {
    let name = if node.name.is_empty() {
        node.output.first().cloned().unwrap_or_default()
    } else {
        node.name.clone()
    };
    let shape = |value: &String| {
        let why = "is neither an input, a weight nor the output of an earlier node";
        known.get(value).cloned().with_context(|| format!("node {name}: {value} {why}"))
    };
    let inputs = node.input.iter().filter(|input| !input.is_empty());
    let (shape, macs) = counted(node, &name, &inputs.map(shape).collect::<Result<Vec<_>>>()?)?;
    Ok(NodeCount { name, shape, macs })
}

/// Shape of the output and MACs of a node that has this name.
fn counted(node: &Node, name: &str, inputs: &[Vec<usize>]) -> Result<(Vec<usize>, u64)> {
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
            let features = usize::try_from(product(input.get(1..)?)).ok()?;
            (int(node, "axis", 1) == 1).then(|| (vec![input[0], features], 0))
        }),
        "Concat" => concat(node, inputs),
        "DepthToSpace" => first.and_then(|input| depth_to_space(node, input)),
        "BatchNormalization" | "Relu" | "HardSwish" | "HardSigmoid" => first.map(|input| (input.clone(), 0)),
        "Add" | "Mul" => broadcast(inputs).map(|shape| (shape, 0)),
        operator => bail!("node {name}: the operator {operator} is not counted"),
    };
    let operator = &node.op_type;
    counted.with_context(|| format!("node {name} ({operator}): inputs of shapes {inputs:?} do not fit"))
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

fn depth_to_space(node: &Node, input: &[usize]) -> Option<(Vec<usize>, u64)> {
    let &[batch, channels, height, width] = input else { return None };
    let block = usize::try_from(int(node, "blocksize", 0)).ok()?;
    let square = block.checked_mul(block).filter(|&square| square > 0 && channels.is_multiple_of(square))?;
    Some((vec![batch, channels / square, height.checked_mul(block)?, width.checked_mul(block)?], 0))
}

fn concat(node: &Node, inputs: &[Vec<usize>]) -> Option<(Vec<usize>, u64)> {
    let axis = usize::try_from(int(node, "axis", -1)).ok()?;
    let mut shape = inputs.first()?.clone();
    for input in &inputs[1..] {
        let fits = |(place, extent): (usize, &usize)| place == axis || shape.get(place) == Some(extent);
        if input.len() != shape.len() || !input.iter().enumerate().all(fits) {
            return None;
        }
        let extent = shape.get_mut(axis)?;
        *extent = extent.checked_add(*input.get(axis)?)?;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Architecture;
    use crate::onnx::{Attribute, Tensor};

    /// One node with these attributes over inputs of these shapes.
    fn shape(operator: &str, attributes: &[(&str, &[i64])], inputs: &[&[usize]]) -> Result<Vec<usize>> {
        let names: Vec<String> = (0..inputs.len()).map(|place| place.to_string()).collect();
        let attribute = |&(name, values): &(&str, &[i64])| match values {
            [value] => Attribute::int(name, *value),
            values => Attribute::ints(name, values),
        };
        let node = Node {
            input: names.clone(),
            output: vec!["y".into()],
            op_type: operator.into(),
            attribute: attributes.iter().map(attribute).collect(),
            ..Node::default()
        };
        let input = names.iter().zip(inputs).map(|(name, shape)| ValueInfo::float(name, shape)).collect();
        let graph = Graph { node: vec![node], input, ..Graph::default() };
        let counted = count(&Model { graph: Some(graph), ..Model::default() })?;
        Ok(counted.nodes[0].shape.clone())
    }

    #[test]
    fn shapes_are_those_of_the_operators_definition() {
        let kernel: (&str, &[i64]) = ("kernel_shape", &[3, 3]);
        for (operator, attributes, inputs, expected) in [
            (
                "Conv",
                &[("pads", &[1i64; 4][..])][..],
                &[&[1, 3, 8, 9][..], &[4, 3, 3, 3]][..],
                Some(vec![1, 4, 8, 9]),
            ),
            ("Conv", &[("strides", &[2, 1])], &[&[1, 3, 8, 9], &[4, 3, 3, 3]], Some(vec![1, 4, 3, 7])),
            ("Conv", &[("dilations", &[2, 2])], &[&[1, 3, 8, 9], &[4, 3, 3, 3]], Some(vec![1, 4, 4, 5])),
            ("Conv", &[("group", &[3])], &[&[1, 3, 8, 9], &[6, 1, 1, 1]], Some(vec![1, 6, 8, 9])),
            ("Conv", &[], &[&[1, 4, 8, 9], &[4, 3, 3, 3]], None),
            ("Conv", &[], &[&[1, 3, 2, 9], &[4, 3, 3, 3]], None),
            ("Conv", &[("strides", &[0, 0])], &[&[1, 3, 8, 9], &[4, 3, 3, 3]], None),
            // 112 rows, windows of 3 by 2: the last one begins in row 110 and leaves the input only with
            // ceil_mode.
            ("MaxPool", &[kernel, ("strides", &[2, 2])], &[&[1, 2, 112, 113]], Some(vec![1, 2, 55, 56])),
            (
                "MaxPool",
                &[kernel, ("strides", &[2, 2]), ("ceil_mode", &[1])],
                &[&[1, 2, 112, 113]],
                Some(vec![1, 2, 56, 56]),
            ),
            // A window that would begin behind the input is none.
            (
                "MaxPool",
                &[("kernel_shape", &[1, 1]), ("strides", &[2, 2]), ("ceil_mode", &[1])],
                &[&[1, 2, 4, 5]],
                Some(vec![1, 2, 2, 3]),
            ),
            ("MaxPool", &[], &[&[1, 2, 4, 5]], None),
            ("Concat", &[("axis", &[1])], &[&[1, 2, 4], &[1, 3, 4]], Some(vec![1, 5, 4])),
            ("Concat", &[("axis", &[1])], &[&[1, 2, 4], &[1, 3, 5]], None),
            ("DepthToSpace", &[("blocksize", &[2])], &[&[1, 8, 3, 5]], Some(vec![1, 2, 6, 10])),
            ("DepthToSpace", &[("blocksize", &[i64::MAX])], &[&[1, 8, 3, 5]], None),
            ("Gemm", &[("transB", &[1])], &[&[1, 8], &[5, 8]], Some(vec![1, 5])),
            ("Gemm", &[], &[&[1, 8], &[5, 8]], None),
            ("Mul", &[], &[&[1, 8, 3, 5], &[1, 8, 1, 1]], Some(vec![1, 8, 3, 5])),
            ("Add", &[], &[&[1, 8, 3, 5], &[1, 8, 3, 4]], None),
            ("Flatten", &[], &[&[1, 8, 3, 5]], Some(vec![1, 120])),
            ("GlobalAveragePool", &[], &[&[1, 8, 3, 5]], Some(vec![1, 8, 1, 1])),
        ] {
            let found = shape(operator, attributes, inputs);
            assert_eq!(
                found.as_ref().ok(),
                expected.as_ref(),
                "{operator} {attributes:?} {inputs:?}: {found:?}"
            );
        }
        let error = shape("Softmax", &[], &[&[1, 8]]).unwrap_err().to_string();
        assert!(error.contains("Softmax"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_number_in_a_file_makes_counting_panic(
            changes in proptest::collection::vec((any::<usize>(), any::<usize>(), prop_oneof![
                any::<i64>(), -3i64..70, Just(i64::MAX), Just(i64::MIN), Just(1 << 31), Just(1 << 62),
            ]), 1..6),
        ) {
            let architecture = Architecture::SuperResolution { factor: 2, height: 4, width: 4 };
            let mut graph = architecture.build(1).graph.unwrap();
            graph.initializer = graph.initializer.into_iter().map(|tensor| Tensor { raw_data: vec![], ..tensor }).collect();
            for (place, which, value) in changes {
                let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
                let ints = attributes.flat_map(|attribute| attribute.ints.iter_mut().chain([&mut attribute.i]));
                let dims = graph.initializer.iter_mut().flat_map(|tensor| &mut tensor.dims);
                let mut numbers: Vec<&mut i64> = if which.is_multiple_of(2) { ints.collect() } else { dims.collect() };
                let place = place % numbers.len();
                *numbers[place] = value;
            }
            // Either a count or an error.
            let _ = count(&Model { graph: Some(graph), ..Model::default() });
        }
    }
}
