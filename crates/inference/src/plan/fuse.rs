//! Which operators one kernel computes: a convolution with the sum and activation after it, and the load of
//! the model's input with the convolution that reads it.

use super::fold::uses;
use super::{Format, Precision};
use crate::graph::{Activation, Graph, Op, Shape, ValueId};

/// Operators that one kernel computes.
#[derive(Debug, Clone)]
pub struct Fused {
    /// The names of the operators, the first one first.
    pub names: Vec<String>,
    /// The first operator, which decides the kernel.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<ValueId>,
    /// Added to the first operator's result.
    pub residual: Option<ValueId>,
    /// Applied last.
    pub activation: Option<Activation>,
    /// What is written.
    pub output: ValueId,
}

/// Terms of a sum that a block of `conv_load_half` adds at most: HALF_DEPTH of `kernels/tensor_cores.h`.
pub const TERMS: usize = 32;

/// Whether a kernel computes this operator of a model's input in its slot: a half-precision convolution with
/// sums of few terms. Libraries compute one of so few channels as if there were eight.
pub fn reads_slot(format: Format, op: &Op, from: &Shape) -> bool {
    let Op::Conv { window, groups: 1 } = op else { return false };
    let terms = from.parts()[1] * window.kernel[0] * window.kernel[1];
    format.precision == Precision::Half && window.kernel != [1, 1] && terms <= TERMS
}

/// The inputs of the model that the one operator that reads them takes from their slots.
pub fn in_slots(graph: &Graph, fused: &[Fused], format: Format) -> Vec<ValueId> {
    let uses = uses(graph);
    let reads = |one: &Fused, id| one.inputs[0] == id && reads_slot(format, &one.op, graph.shape(id));
    let all = graph.inputs.iter().copied();
    all.filter(|&id| uses[id.0] == 1 && fused.iter().any(|one| reads(one, id))).collect()
}

/// The graph's nodes in their order, those that are fused at the place of their first.
pub fn fuse(graph: &Graph) -> Vec<Fused> {
    let uses = uses(graph);
    let mut taken = vec![false; graph.nodes.len()];
    let mut fused = Vec::new();
    // Where each value is written; inputs and constants are there before all nodes.
    let mut written = vec![0; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        written[node.output.0] = at + 1;
    }
    for at in 0..graph.nodes.len() {
        if taken[at] {
            continue;
        }
        let node = &graph.nodes[at];
        let mut one = Fused {
            names: node.names.clone(),
            op: node.op.clone(),
            inputs: node.inputs.clone(),
            residual: None,
            activation: None,
            output: node.output,
        };
        while let Some(next) = follower(graph, &one, &uses) {
            let follower = &graph.nodes[next];
            let other = follower.inputs.iter().copied().find(|&input| input != one.output);
            match (&follower.op, other) {
                (&Op::Activation(activation), _) if takes_activation(&one.op) => {
                    one.activation = Some(activation)
                }
                // The other summand must be there when this kernel runs.
                (Op::Add, Some(other))
                    if matches!(one.op, Op::Conv { .. })
                        && one.residual.is_none()
                        && written[other.0] <= at =>
                {
                    one.residual = Some(other);
                }
                _ => break,
            }
            one.names.extend(follower.names.iter().cloned());
            one.output = follower.output;
            taken[next] = true;
        }
        fused.push(one);
    }
    fused
}

/// The only node that reads what was fused so far, unless an activation is its end.
fn follower(graph: &Graph, one: &Fused, uses: &[usize]) -> Option<usize> {
    if uses[one.output.0] != 1 || one.activation.is_some() || graph.outputs.contains(&one.output) {
        return None;
    }
    graph.nodes.iter().position(|node| node.inputs.contains(&one.output))
}

fn takes_activation(op: &Op) -> bool {
    matches!(op, Op::Conv { .. } | Op::Linear | Op::Add | Op::Mul | Op::GlobalAveragePool)
}
