//! The end of a squeeze-and-excite block (Hu et al., «Squeeze-and-Excitation Networks», 2018): a convolution
//! of one-pixel images, its activation, and the images times its result become one operator.
//!
//! Each of the three takes a GPU longer to launch than to compute.

use super::fold::{remove_nodes, uses, writer_for_one};
use crate::graph::{Graph, Node, Op};

/// Joins them where nothing else reads what lies between.
pub fn join(graph: &mut Graph) {
    let uses = uses(graph);
    let mut at = 0;
    while let Some(node) = graph.nodes.get(at) {
        if let Some((excite, gone)) = of_product(graph, node, &uses) {
            graph.nodes[at] = excite;
            remove_nodes(graph, |number| gone.contains(&number));
            at -= gone.len();
        }
        at += 1;
    }
}

/// What stands in a product's place, and the two nodes before it that go.
fn of_product(graph: &Graph, product: &Node, uses: &[usize]) -> Option<(Node, [usize; 2])> {
    let &[left, right] = &product.inputs[..] else { return None };
    // The factors are of the same images, as a product's shapes are.
    let (images, factors) = match [left, right].map(|id| graph.shape(id)) {
        _ if product.op != Op::Mul => return None,
        [one, two] if one == two => return None,
        [one, _] if one == graph.shape(product.output) => (left, right),
        _ => (right, left),
    };
    let last = writer_for_one(graph, uses, factors)?;
    let Op::Activation(activation) = graph.nodes[last].op else { return None };
    let first = writer_for_one(graph, uses, graph.nodes[last].inputs[0])?;
    let Node { op: Op::Conv { window, groups: 1 }, inputs, .. } = &graph.nodes[first] else { return None };
    let &[squeezed, weights, bias] = &inputs[..] else { return None };
    let of_a_pixel = window.pads == [0; 4] && graph.shape(squeezed).parts()[2..] == [1, 1];
    let known = graph.constant(squeezed).is_none() && graph.constant(images).is_none();
    let names = [first, last].into_iter().flat_map(|at| &graph.nodes[at].names).chain(&product.names);
    let excite = Node {
        names: names.cloned().collect(),
        op: Op::Excite { activation },
        inputs: vec![images, weights, bias, squeezed],
        output: product.output,
    };
    (of_a_pixel && known && window.kernel == [1, 1]).then_some((excite, [first, last]))
}
