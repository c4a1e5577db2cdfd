//! What is fused, what shares memory, and that nothing that lives at once overlaps.

use std::sync::Arc;

use super::*;
use crate::graph::{Activation, Graph, Node, Value, ValueId, Window};

/// A graph in the making, of images of 4 channels and 5 times 5 pixels.
struct TestGraph(Graph);

impl TestGraph {
    fn new() -> TestGraph {
        let graph =
            Graph { name: "model".into(), values: vec![], nodes: vec![], inputs: vec![], outputs: vec![] };
        let mut model = TestGraph(graph);
        let input = model.value(4, None);
        model.0.inputs.push(input);
        model
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
        self.conv_of(input, [1, 1], [0; 4])
    }

    /// A convolution whose image stays as large as it is.
    fn conv_of(&mut self, input: ValueId, kernel: [usize; 2], pads: [usize; 4]) -> ValueId {
        let count = 16 * kernel[0] * kernel[1];
        let elements: Vec<f32> = (0..count).map(|at| at as f32 + 1.0).collect();
        let weights = self.value(4, Some(elements.into()));
        self.0.values[weights.0].shape = Shape::new(vec![4, 4, kernel[0], kernel[1]]).expect("it is small");
        let window = Window { kernel, stride: [1, 1], pads, dilation: [1, 1], round_up: false };
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
    let mut model = TestGraph::new();
    let (input, relu) = (model.0.inputs[0], Op::Activation(Activation::Relu));
    let left = model.conv(input);
    let right = model.conv(input);
    let sum = model.node(Op::Add, &[left, right], 4);
    let output = model.node(relu, &[sum], 4);
    let plan = model.plan(output);
    assert_eq!(tasks(&plan), ["Load 0", "Conv", "Conv+Add+Relu", "Store 0"]);
    assert_eq!(plan.steps[2].names, ["n1", "n2", "n3"]);
}

#[test]
fn what_is_read_twice_is_written() {
    let mut model = TestGraph::new();
    let (input, relu) = (model.0.inputs[0], Op::Activation(Activation::Relu));
    let conv = model.conv(input);
    let positive = model.node(relu, &[conv], 4);
    let output = model.node(Op::Mul, &[conv, positive], 4);
    assert_eq!(tasks(&model.plan(output)), ["Load 0", "Conv", "Relu", "Mul", "Store 0"]);
}

#[test]
fn an_input_stays_in_its_slot_where_one_convolution_of_few_terms_reads_it() {
    let half = Format { precision: Precision::Half, layout: Layout::ChannelsLast };
    let single = Format { precision: Precision::Single, ..half };
    // `may`: a kernel could read the slot.
    for (what, format, kernel, pads, may, wanted) in [
        ("16 terms", half, [2, 2], [0, 0, 1, 1], true, &["Conv", "Store 0"][..]),
        ("32 terms", half, [2, 4], [0, 1, 1, 2], true, &["Conv", "Store 0"]),
        ("36 terms", half, [3, 3], [1; 4], false, &["Load 0", "Conv", "Store 0"]),
        ("a window of a pixel", half, [1, 1], [0; 4], false, &["Load 0", "Conv", "Store 0"]),
        ("single precision", single, [2, 2], [0, 0, 1, 1], false, &["Load 0", "Conv", "Store 0"]),
        ("read twice", half, [2, 2], [0, 0, 1, 1], true, &["Load 0", "Conv", "Mul", "Store 0"]),
    ] {
        let mut model = TestGraph::new();
        let input = model.0.inputs[0];
        let mut output = model.conv_of(input, kernel, pads);
        if what == "read twice" {
            output = model.node(Op::Mul, &[output, input], 4);
        }
        model.0.outputs.push(output);
        let mut plan = Plan::in_format(&model.0, format).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(tasks(&plan), wanted, "{what}");
        assert_eq!(plan.pieces.len(), wanted.len() - 1, "{what}: each step but the last has a piece");
        let conv = wanted.iter().position(|task| *task == "Conv").expect("it is there");
        for (number, is_right) in [(0, may), (1, false)] {
            plan.steps[conv].reads[0] = Source::Input(number);
            assert_eq!(plan.check().is_ok(), is_right, "{what}: input {number}");
        }
    }
}

#[test]
fn parts_of_a_concat_are_written_where_it_is_read() {
    let mut model = TestGraph::new();
    let input = model.0.inputs[0];
    let (left, right) = (model.conv(input), model.conv(input));
    let joined = model.node(Op::Concat { axis: 1 }, &[left, right], 8);
    let output = model.node(Op::Activation(Activation::Sigmoid), &[joined], 8);
    let plan = model.plan(output);
    assert_eq!(tasks(&plan), ["Load 0", "Conv", "Conv", "Sigmoid", "Store 0"]);
    let places: Vec<Place> = plan.steps[1..3].iter().filter_map(|step| step.write).collect();
    assert_eq!((places[0].piece, places[0].offset), (places[1].piece, 0));
    assert_eq!((places[1].offset, places[1].image), (4 * 25, 8 * 25));
}

#[test]
fn constants_are_computed_once_and_an_output_may_be_none() {
    let mut model = TestGraph::new();
    let weights = model.value(4, Some(vec![-0.5; 16].into()));
    let output = model.node(Op::Activation(Activation::Relu), &[weights], 4);
    model.0.outputs.push(output);
    let said = Plan::new(&model.0).expect_err("it is constant").to_string();
    assert!(said.contains("does not depend on its input"), "{said}");
}

#[test]
fn a_chain_needs_two_pieces_at_a_time() {
    let mut model = TestGraph::new();
    let mut value = model.0.inputs[0];
    for _ in 0..8 {
        value = model.conv(value);
    }
    let plan = model.plan(value);
    assert_eq!(plan.arena.bytes, plan.arena.bound);
    assert_eq!(plan.arena.bound, 2 * 512);
    assert_eq!(plan.arena.sum, 9 * 512);
}

#[test]
fn a_plan_that_leaves_its_memory_is_refused() {
    let mut model = TestGraph::new();
    let input = model.0.inputs[0];
    let conv = model.conv(input);
    let output = model.node(Op::Activation(Activation::Relu), &[conv], 4);
    let plan = model.plan(output);
    assert!(plan.check().is_ok());
    type Change = fn(&mut Plan);
    let changes: [Change; 9] = [
        |plan| plan.steps[1].write.as_mut().expect("it writes").image = 1 << 33,
        |plan| plan.steps[1].write.as_mut().expect("it writes").offset += 1,
        |plan| plan.steps[1].write.as_mut().expect("it writes").channel += 1,
        |plan| plan.steps[1].write.as_mut().expect("it writes").piece += 7,
        |plan| plan.constants[0] = plan.constants[0][1..].into(),
        |plan| plan.constants.clear(),
        |plan| plan.arena.bytes -= 256,
        |plan| plan.steps[0].task = Task::Load { number: 1 },
        |plan| plan.steps[1].to = Shape::new(vec![1, 4, 5, 6]).expect("it is small"),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut changed = plan.clone();
        change(&mut changed);
        assert!(changed.check().is_err(), "change {number}");
    }
}

#[test]
fn a_constant_is_as_long_as_its_shape_and_folding_has_a_bound() {
    let mut model = TestGraph::new();
    let input = model.0.inputs[0];
    let conv = model.conv(input);
    model.0.outputs.push(conv);
    let mut short = model.0.clone();
    short.values[1].constant = Some(vec![0.5; 15].into());
    assert!(Plan::new(&short).expect_err("it is short").to_string().contains("15 elements"));
    let large = Shape::new(vec![1, 1, 3000, 3000]).expect("it is a shape");
    model.0.values[2].shape = large.clone();
    model.0.nodes[0] =
        Node { names: vec!["large".into()], op: Op::Reshape, inputs: vec![ValueId(1)], output: ValueId(2) };
    model.0.values[1] = Value { name: "c".into(), shape: large, constant: Some(vec![0.5; 9_000_000].into()) };
    assert!(Plan::new(&model.0).expect_err("it is large").to_string().contains("4194304"));
}

#[test]
fn a_long_chain_of_second_names_is_planned() {
    let mut model = TestGraph::new();
    let mut value = model.0.inputs[0];
    for _ in 0..2000 {
        value = model.node(Op::Reshape, &[value], 4);
    }
    // Deeper than any stack if each link were a call.
    let output = model.node(Op::Activation(Activation::Relu), &[value], 4);
    assert_eq!(tasks(&model.plan(output)).last().map(String::as_str), Some("Store 0"));
}

#[test]
fn what_one_concat_joins_is_one_convolution_with_channels_last() {
    let half = Format { precision: Precision::Half, layout: Layout::ChannelsLast };
    let relu = Op::Activation(Activation::Relu);
    type Change = fn(&mut TestGraph, [ValueId; 4]) -> Vec<ValueId>;
    let changes: [(&str, Change, &[&str]); 5] = [
        ("as it is", |_, all| vec![all[1], all[3]], &["Load 0", "Conv+Relu", "Store 0"]),
        (
            "a part is read by others",
            |model, all| {
                model.0.outputs.push(all[0]);
                vec![all[1], all[3]]
            },
            &["Load 0", "Conv", "Relu", "Conv+Relu", "Store 0", "Store 1"],
        ),
        (
            "one without an activation",
            |_, all| vec![all[1], all[2]],
            &["Load 0", "Conv+Relu", "Conv", "Store 0"],
        ),
        (
            "another stride",
            |model, all| {
                let Op::Conv { window, .. } = &mut model.0.nodes[0].op else { panic!("it is one") };
                window.stride = [2, 2];
                vec![all[1], all[3]]
            },
            &["Load 0", "Conv+Relu", "Conv+Relu", "Store 0"],
        ),
        (
            "many products more",
            |model, all| {
                let (input, relu) = (model.0.inputs[0], Op::Activation(Activation::Relu));
                let large = model.conv_of(input, [5, 5], [2; 4]);
                let large = model.node(relu, &[large], 4);
                vec![all[1], large, all[1]]
            },
            &["Load 0", "Conv+Relu", "Conv+Relu", "Copy", "Store 0"],
        ),
    ];
    for (what, change, wanted) in changes {
        let mut model = TestGraph::new();
        let input = model.0.inputs[0];
        let small = model.conv(input);
        let positive = model.node(relu.clone(), &[small], 4);
        let large = model.conv_of(input, [3, 3], [1; 4]);
        let also = model.node(relu.clone(), &[large], 4);
        let parts = change(&mut model, [small, positive, large, also]);
        let joined = model.node(Op::Concat { axis: 1 }, &parts, 4 * parts.len());
        model.0.outputs.insert(0, joined);
        // What no output depends on is not there.
        model
            .0
            .nodes
            .retain(|node| what != "many products more" || node.output != large && node.output != also);
        model.0.nodes.retain(|node| what != "one without an activation" || node.output != also);
        if what == "another stride" {
            // Its shape is not looked at here; the plan's check would refuse it.
            let mut graph = model.0.clone();
            let before = graph.nodes.len();
            join::join(&mut graph);
            assert_eq!(graph.nodes.len(), before, "{what}");
            continue;
        }
        let plan = Plan::in_format(&model.0, half).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(tasks(&plan), wanted, "{what}");
        if what == "as it is" {
            assert_eq!(plan.steps[1].names, ["n0", "n2", "n1", "n3", "n4"]);
            let weights = &plan.constants[0];
            assert_eq!(weights.len(), 8 * 4 * 9);
            assert_eq!(
                weights[..18],
                [0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 0., 0., 0., 2., 0., 0., 0., 0.]
            );
            assert_eq!(weights[4 * 4 * 9..][..4], [1., 2., 3., 4.]);
        }
    }
}

#[test]
fn weights_that_many_nodes_share_do_not_become_many() {
    let half = Format { precision: Precision::Half, layout: Layout::ChannelsLast };
    for (count, wanted) in [(2, 1), (3, 3), (40, 40)] {
        let mut model = TestGraph::new();
        let input = model.0.inputs[0];
        let first = model.conv(input);
        let weights = model.0.nodes[0].inputs[1];
        let op = model.0.nodes[0].op.clone();
        let mut parts = vec![first];
        parts.extend((1..count).map(|_| model.node(op.clone(), &[input, weights], 4)));
        let joined = model.node(Op::Concat { axis: 1 }, &parts, 4 * count);
        model.0.outputs.push(joined);
        let plan = Plan::in_format(&model.0, half).expect("it can be planned");
        let convolutions = tasks(&plan).iter().filter(|task| *task == "Conv").count();
        assert_eq!(convolutions, wanted, "{count} nodes");
        assert!(plan.constants.iter().map(|elements| elements.len()).sum::<usize>() <= 2 * 16 + 8);
    }
}
