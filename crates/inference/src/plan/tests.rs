//! What is fused, what shares memory, and that nothing that lives at once overlaps.

use std::sync::Arc;

use super::*;
use crate::graph::{Node, Value, Window};

/// A graph in the making, of images of 4 channels and 5 times 5 pixels.
struct Sketch(Graph);

impl Sketch {
    fn new() -> Sketch {
        let graph =
            Graph { name: "sketch".into(), values: vec![], nodes: vec![], inputs: vec![], outputs: vec![] };
        let mut sketch = Sketch(graph);
        let input = sketch.value(4, None);
        sketch.0.inputs.push(input);
        sketch
    }

    fn value(&mut self, channels: usize, constant: Option<Arc<[f32]>>) -> ValueId {
        let extents =
            if constant.is_some() { vec![channels, channels, 1, 1] } else { vec![1, channels, 5, 5] };
        let shape = Shape::new(extents).expect("it is small");
        self.0.values.push(Value { name: format!("v{}", self.0.values.len()), shape, constant });
        ValueId(self.0.values.len() - 1)
    }

    fn node(&mut self, op: Op, inputs: &[ValueId], channels: usize) -> ValueId {
        let output = self.value(channels, None);
        self.0.nodes.push(Node {
            names: vec![format!("n{}", self.0.nodes.len())],
            op,
            inputs: inputs.to_vec(),
            output,
        });
        output
    }

    fn conv(&mut self, input: ValueId) -> ValueId {
        let weights = self.value(4, Some(vec![0.5; 16].into()));
        let window =
            Window { kernel: [1, 1], stride: [1, 1], pads: [0; 4], dilation: [1, 1], round_up: false };
        self.node(Op::Conv { window, groups: 1 }, &[input, weights], 4)
    }

    fn plan(mut self, output: ValueId) -> Plan {
        self.0.outputs.push(output);
        Plan::new(&self.0).expect("it can be planned")
    }
}

fn tasks(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(|step| step.task.to_string()).collect()
}

#[test]
fn the_later_of_two_summands_takes_the_sum_and_the_activation() {
    let mut sketch = Sketch::new();
    let (input, relu) = (sketch.0.inputs[0], Op::Activation(Activation::Relu));
    let left = sketch.conv(input);
    let right = sketch.conv(input);
    let sum = sketch.node(Op::Add, &[left, right], 4);
    let output = sketch.node(relu, &[sum], 4);
    let plan = sketch.plan(output);
    assert_eq!(tasks(&plan), ["Load 0", "Conv", "Conv+Add+Relu", "Store 0"]);
    assert_eq!(plan.steps[2].names, ["n1", "n2", "n3"]);
}

#[test]
fn what_is_read_twice_is_written() {
    let mut sketch = Sketch::new();
    let (input, relu) = (sketch.0.inputs[0], Op::Activation(Activation::Relu));
    let conv = sketch.conv(input);
    let positive = sketch.node(relu, &[conv], 4);
    let output = sketch.node(Op::Mul, &[conv, positive], 4);
    assert_eq!(tasks(&sketch.plan(output)), ["Load 0", "Conv", "Relu", "Mul", "Store 0"]);
}

#[test]
fn parts_of_a_concat_are_written_where_it_is_read() {
    let mut sketch = Sketch::new();
    let input = sketch.0.inputs[0];
    let (left, right) = (sketch.conv(input), sketch.conv(input));
    let joined = sketch.node(Op::Concat { axis: 1 }, &[left, right], 8);
    let output = sketch.node(Op::GlobalAveragePool, &[joined], 8);
    let plan = sketch.plan(output);
    assert_eq!(tasks(&plan), ["Load 0", "Conv", "Conv", "GlobalAveragePool", "Store 0"]);
    let places: Vec<Place> = plan.steps[1..3].iter().filter_map(|step| step.write).collect();
    assert_eq!((places[0].piece, places[0].offset), (places[1].piece, 0));
    assert_eq!((places[1].offset, places[1].image), (4 * 25, 8 * 25));
}

#[test]
fn constants_are_computed_once_and_an_output_may_be_none() {
    let mut sketch = Sketch::new();
    let weights = sketch.value(4, Some(vec![-0.5; 16].into()));
    let output = sketch.node(Op::Activation(Activation::Relu), &[weights], 4);
    sketch.0.outputs.push(output);
    let said = Plan::new(&sketch.0).expect_err("it is constant").to_string();
    assert!(said.contains("does not depend on its input"), "{said}");
}

#[test]
fn a_chain_needs_two_pieces_at_a_time() {
    let mut sketch = Sketch::new();
    let mut value = sketch.0.inputs[0];
    for _ in 0..8 {
        value = sketch.conv(value);
    }
    let plan = sketch.plan(value);
    assert_eq!(plan.arena.bytes, plan.arena.bound);
    assert_eq!(plan.arena.bound, 2 * 512);
    assert_eq!(plan.arena.sum, 9 * 512);
}
