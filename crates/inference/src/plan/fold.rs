//! Constants computed before the model runs, and batch normalisations taken into the weights before them.

use std::sync::Arc;

use super::PlanError;
use crate::evaluate;
use crate::graph::{Graph, Node, Op, Shape, Value, ValueId, Window};

/// More elements than the constants that exporters leave to be computed have.
const MOST_FOLDED: usize = 1 << 22;

/// The graph without nodes that read constants alone, and without batch normalisation.
pub fn fold(graph: &Graph) -> Result<Graph, PlanError> {
    let constant = |problem: String, value: &Value| PlanError::Constant { name: value.name.clone(), problem };
    for value in &graph.values {
        if let Some(elements) =
            value.constant.as_ref().filter(|elements| elements.len() != value.shape.count())
        {
            return Err(constant(
                format!("{} elements for a shape of {}", elements.len(), value.shape),
                value,
            ));
        }
    }
    let mut folded = Graph { nodes: Vec::new(), ..graph.clone() };
    let uses = uses(graph);
    for node in &graph.nodes {
        if node.inputs.iter().all(|&id| folded.constant(id).is_some()) {
            let value = folded.value(node.output);
            if value.shape.count() > MOST_FOLDED {
                let problem = format!(
                    "computed once it has a shape of {}, above {MOST_FOLDED} elements; save its value in the model",
                    value.shape
                );
                return Err(constant(problem, value));
            }
            let elements = evaluate::folded(&folded, node).expect("it reads constants alone");
            folded.values[node.output.0].constant = Some(elements.into());
        } else if let Op::BatchNorm { epsilon } = node.op {
            batch_norm(&mut folded, node, epsilon, &uses);
        } else {
            folded.nodes.push(node.clone());
        }
    }
    Ok(folded)
}

/// How many nodes read each value; a model's output is read once more.
pub fn uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.values.len()];
    let read = graph.nodes.iter().flat_map(|node| &node.inputs);
    for id in read.chain(&graph.outputs) {
        uses[id.0] += 1;
    }
    uses
}

/// The node that writes a value which one node alone reads.
pub fn writer_for_one(graph: &Graph, uses: &[usize], id: ValueId) -> Option<usize> {
    let at = graph.nodes.iter().position(|node| node.output == id)?;
    (uses.get(id.0) == Some(&1)).then_some(at)
}

/// Takes nodes out by their places.
pub fn remove_nodes(graph: &mut Graph, is_gone: impl Fn(usize) -> bool) {
    let mut number = 0..;
    graph.nodes.retain(|_| !number.next().is_some_and(&is_gone));
}

/// A factor and an offset for each channel, in place of scale, offset, mean and variance.
fn factors(graph: &Graph, node: &Node, epsilon: f32) -> (Vec<f32>, Vec<f32>) {
    let constant = |at: usize| graph.constant(node.inputs[at]).expect("the importer takes constants alone");
    let (scale, offset, mean, variance) = (constant(1), constant(2), constant(3), constant(4));
    let factor = |channel: usize| {
        f64::from(scale[channel]) / (f64::from(variance[channel]) + f64::from(epsilon)).sqrt()
    };
    let moved = |channel: usize| f64::from(offset[channel]) - f64::from(mean[channel]) * factor(channel);
    let channels = 0..scale.len();
    (
        channels.clone().map(|channel| factor(channel) as f32).collect(),
        channels.map(|channel| moved(channel) as f32).collect(),
    )
}

fn batch_norm(graph: &mut Graph, node: &Node, epsilon: f32, uses: &[usize]) {
    let (factors, offsets) = factors(graph, node, epsilon);
    let read = node.inputs[0];
    let alone = uses[read.0] == 1;
    let before = graph.nodes.iter().rposition(|before| before.output == read);
    let conv = before.filter(|&at| alone && matches!(graph.nodes[at].op, Op::Conv { .. }));
    let Some(at) = conv else {
        return scale_channels(graph, node, factors, offsets);
    };
    let (weights, bias) = (graph.nodes[at].inputs[1], graph.nodes[at].inputs.get(2).copied());
    let elements = graph.constant(weights).expect("the importer takes constants alone");
    let of_channel = elements.len() / factors.len();
    let scaled = elements.iter().enumerate().map(|(at, weight)| weight * factors[at / of_channel]).collect();
    let bias = bias.and_then(|bias| graph.constant(bias).cloned());
    let moved = offsets
        .iter()
        .enumerate()
        .map(|(channel, offset)| offset + bias.as_ref().map_or(0.0, |bias| bias[channel] * factors[channel]));
    let moved: Arc<[f32]> = moved.collect();
    let shape = graph.shape(weights).clone();
    let weights = constant(graph, weights, shape, scaled);
    let bias = constant(
        graph,
        node.inputs[2],
        Shape::new(vec![factors.len()]).expect("one for each channel"),
        moved,
    );
    let conv = &mut graph.nodes[at];
    conv.inputs = vec![conv.inputs[0], weights, bias];
    conv.output = node.output;
    conv.names.extend(node.names.iter().cloned());
}

/// A normalisation that follows no convolution is one: of each channel with itself.
fn scale_channels(graph: &mut Graph, node: &Node, factors: Vec<f32>, offsets: Vec<f32>) {
    let channels = factors.len();
    let shape = |extents| Shape::new(extents).expect("one for each channel");
    let weights = constant(graph, node.inputs[1], shape(vec![channels, 1, 1, 1]), factors.into());
    let bias = constant(graph, node.inputs[2], shape(vec![channels]), offsets.into());
    let window = Window { kernel: [1, 1], stride: [1, 1], pads: [0; 4], dilation: [1, 1], round_up: false };
    let op = Op::Conv { window, groups: channels };
    let inputs = vec![node.inputs[0], weights, bias];
    graph.nodes.push(Node { names: node.names.clone(), op, inputs, output: node.output });
}

/// A new constant, named as another value.
pub fn constant(graph: &mut Graph, of: ValueId, shape: Shape, elements: Arc<[f32]>) -> ValueId {
    let name = graph.value(of).name.clone();
    graph.values.push(Value { name, shape, constant: Some(elements) });
    ValueId(graph.values.len() - 1)
}
