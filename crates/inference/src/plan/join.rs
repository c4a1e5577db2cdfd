//! Convolutions whose results a Concat joins, and which read the same value, become one convolution.
//!
//! With channels last the channels of a part lie apart: a library's kernel that writes part of a pixel first
//! writes a copy elsewhere (SqueezeNet's fire modules). One convolution
//! writes whole pixels. A smaller kernel is the larger one with zeros around it, which adds at most as many
//! products as there were.

use super::fold::{constant, remove_nodes, uses, writer_for_one};
use crate::graph::{Activation, Graph, Node, Op, Shape, Value, ValueId, Window};

/// One part of a Concat: a convolution, and the activation behind it.
struct Part {
    conv: usize,
    activation: Option<(usize, Activation)>,
    window: Window,
    outputs: usize,
}

/// Joins them where it can.
pub fn join(graph: &mut Graph) {
    let uses = uses(graph);
    // A change takes nodes away, so that some are looked at twice; none is left out.
    for at in (0..graph.nodes.len()).rev() {
        if let Some((parts, window)) = parts(graph, at, &uses) {
            replace(graph, at, &parts, window);
        }
    }
}

/// The parts of the Concat `at`, and the window that covers theirs.
fn parts(graph: &Graph, at: usize, uses: &[usize]) -> Option<(Vec<Part>, Window)> {
    let concat = graph.nodes.get(at)?;
    if concat.op != (Op::Concat { axis: 1 }) || concat.inputs.len() < 2 {
        return None;
    }
    let parts: Vec<Part> = concat.inputs.iter().map(|&id| part(graph, id, uses)).collect::<Option<_>>()?;
    let first = &parts[0];
    let largest = parts.iter().map(|part| part.window).max_by_key(|window| products(window, 1))?;
    let alike = |part: &Part| {
        graph.nodes[part.conv].inputs[0] == graph.nodes[first.conv].inputs[0]
            && part.activation.map(|(_, of)| of) == first.activation.map(|(_, of)| of)
            && fits(&part.window, &largest)
    };
    let now: usize = parts.iter().map(|part| products(&part.window, part.outputs)).sum();
    let outputs = parts.iter().map(|part| part.outputs).sum();
    let then = products(&largest, outputs);
    // Nodes may share their weights: what is joined is as long as if they did not.
    let mut weights: Vec<ValueId> = parts.iter().map(|part| graph.nodes[part.conv].inputs[1]).collect();
    weights.sort();
    weights.dedup();
    let there: usize = weights.iter().map(|&id| graph.shape(id).count()).sum();
    let inputs = graph.shape(weights[0]).extents()[1];
    let joined = Shape::new(vec![outputs, inputs, largest.kernel[0], largest.kernel[1]])?;
    let small = then <= 2 * now && joined.count() <= 2 * there;
    (parts.iter().all(alike) && small).then_some((parts, largest))
}

/// What writes a value: a convolution of one group, possibly with an activation; `None` if others read what
/// lies between.
fn part(graph: &Graph, id: ValueId, uses: &[usize]) -> Option<Part> {
    let last = writer_for_one(graph, uses, id)?;
    let (conv, activation) = match graph.nodes[last].op {
        Op::Activation(activation) => {
            (writer_for_one(graph, uses, graph.nodes[last].inputs[0])?, Some((last, activation)))
        }
        _ => (last, None),
    };
    let Op::Conv { window, groups: 1 } = graph.nodes[conv].op else { return None };
    let known = graph.nodes[conv].inputs[1..].iter().all(|&id| graph.constant(id).is_some());
    let outputs = graph.shape(graph.nodes[conv].inputs[1]).extents()[0];
    (known && window.dilation == [1, 1] && !window.round_up).then_some(Part {
        conv,
        activation,
        window,
        outputs,
    })
}

fn products(window: &Window, outputs: usize) -> usize {
    window.kernel[0] * window.kernel[1] * outputs
}

/// Whether a window is the middle of another one: how many rows and columns lie before it and behind it, at
/// each end as many as there are more pads.
fn fits(window: &Window, largest: &Window) -> bool {
    let more = |end: usize| largest.pads[end].checked_sub(window.pads[end]);
    let along = |axis: usize| {
        let around = more(axis).zip(more(axis + 2)).map(|(before, behind)| before + behind);
        around.is_some_and(|around| window.kernel[axis] + around == largest.kernel[axis])
    };
    window.stride == largest.stride && along(0) && along(1)
}

/// Puts one convolution, and the activation, in the place of the parts and their Concat.
fn replace(graph: &mut Graph, at: usize, parts: &[Part], window: Window) {
    let concat = graph.nodes[at].clone();
    let read = graph.nodes[parts[0].conv].inputs[0];
    let inputs = graph.shape(read).parts()[1];
    let outputs = parts.iter().map(|part| part.outputs).sum();
    let [rows, columns] = window.kernel;
    let (mut weights, mut bias) = (Vec::with_capacity(outputs * inputs * rows * columns), Vec::new());
    for part in parts {
        let node = &graph.nodes[part.conv];
        let elements = graph.constant(node.inputs[1]).expect("`part` has looked");
        padded(elements, &part.window, &window, &mut weights);
        match node.inputs.get(2).and_then(|&id| graph.constant(id)) {
            Some(elements) => bias.extend_from_slice(elements),
            None => bias.resize(bias.len() + part.outputs, 0.0),
        }
    }
    let shape = |extents| Shape::new(extents).expect("not more than twice its parts' elements");
    let named = graph.nodes[parts[0].conv].inputs[1];
    let weights = constant(graph, named, shape(vec![outputs, inputs, rows, columns]), weights.into());
    let bias = constant(graph, named, shape(vec![outputs]), bias.into());
    let names = |of: &dyn Fn(&Part) -> Option<usize>| -> Vec<String> {
        parts.iter().filter_map(of).flat_map(|at| graph.nodes[at].names.clone()).collect()
    };
    let mut conv = Node {
        names: names(&|part| Some(part.conv)),
        op: Op::Conv { window, groups: 1 },
        inputs: vec![read, weights, bias],
        output: concat.output,
    };
    let mut behind = names(&|part| part.activation.map(|(at, _)| at));
    behind.extend(concat.names);
    let mut last = Vec::new();
    if let Some((_, activation)) = parts[0].activation {
        let between = Value { name: conv.names[0].clone(), ..graph.value(concat.output).clone() };
        graph.values.push(between);
        conv.output = ValueId(graph.values.len() - 1);
        let (op, inputs) = (Op::Activation(activation), vec![conv.output]);
        last.push(Node { names: behind, op, inputs, output: concat.output });
    } else {
        conv.names.extend(behind);
    }
    let gone =
        |at: usize| parts.iter().any(|part| part.conv == at || part.activation.is_some_and(|of| of.0 == at));
    let behind = graph.nodes.split_off(at + 1);
    graph.nodes.pop();
    remove_nodes(graph, gone);
    graph.nodes.push(conv);
    graph.nodes.extend(last);
    graph.nodes.extend(behind);
}

/// Adds weights of a window to those of one that covers it, with zeros around.
fn padded(elements: &[f32], window: &Window, largest: &Window, to: &mut Vec<f32>) {
    let [rows, columns] = window.kernel;
    let [above, left] = [0, 1].map(|axis| largest.pads[axis] - window.pads[axis]);
    for kernel in elements.chunks_exact(rows * columns) {
        for row in 0..largest.kernel[0] {
            for column in 0..largest.kernel[1] {
                let inside = row.checked_sub(above).zip(column.checked_sub(left));
                let inside = inside.filter(|&(row, column)| row < rows && column < columns);
                to.push(inside.map_or(0.0, |(row, column)| kernel[row * columns + column]));
            }
        }
    }
}
