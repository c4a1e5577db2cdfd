//! Every operator, at the edges of its shapes, on the host twin and by the plain reference, step by step.

use inference::engine::twin::Twin;
use inference::import::import;
use inference::plan::{Plan, Task};
use inference::{evaluate, graph::Graph};
use zoo::onnx::Attribute;

use crate::files::{File, Random};

/// The largest difference relative to the root mean square of what is wanted.
pub fn distance(found: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let square = |value: f64| value * value;
    let norm = wanted.iter().map(|&value| square(value.into())).sum::<f64>() / wanted.len() as f64;
    let apart = found.iter().zip(wanted).map(|(&one, &two)| f64::from(one) - f64::from(two));
    let most =
        apart.fold(0.0_f64, |most, apart| if apart.is_nan() { f64::INFINITY } else { most.max(apart.abs()) });
    most / norm.sqrt().max(1e-6)
}

/// Runs a file on the twin and compares what each step wrote with the value of that name; how many steps were compared.
pub fn compare(file: &[u8], batch: usize, what: &str) -> usize {
    let graph = import(file, batch).unwrap_or_else(|error| panic!("{what}: {error}"));
    let plan = Plan::new(&graph).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut random = Random(7);
    let inputs: Vec<Vec<f32>> =
        graph.inputs.iter().map(|&id| random.tensor(graph.shape(id).count())).collect();
    let wanted = evaluate::run(&graph, &inputs);
    let mut twin = Twin::new(plan).unwrap_or_else(|error| panic!("{what}: {error}"));
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    twin.bring(&inputs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (mut compared, mut outputs) = (0, Vec::new());
    for at in 0..twin.plan().steps.len() {
        let written = twin.step(at).unwrap_or_else(|error| panic!("{what}: {error}"));
        let step = &twin.plan().steps[at];
        if matches!(step.task, Task::Store { .. }) {
            outputs.push(written);
        } else if let Some(value) = written_by(&graph, step.names.last().expect("a step has a name")) {
            let wanted = wanted[value].as_ref().expect("the reference computes every value");
            if wanted.len() == written.len() {
                let distance = distance(&written, wanted);
                assert!(distance < 1e-4, "{what}: {step:?}: {distance}");
                compared += 1;
            }
        }
    }
    for (&id, output) in graph.outputs.iter().zip(&outputs) {
        let wanted = wanted[id.0].as_ref().expect("the reference computes every value");
        let distance = distance(output, wanted);
        assert!(distance < 1e-4, "{what}: output: {distance}");
    }
    compared
}

fn written_by(graph: &Graph, node: &str) -> Option<usize> {
    graph.nodes.iter().find(|other| other.names[0] == node).map(|node| node.output.0)
}

#[test]
fn convolutions_of_every_shape_are_those_of_the_reference() {
    measure::need!(compiler(), "a C++ compiler");
    let ints = |name, values: &[i64]| Attribute::ints(name, values);
    for (channels, outputs, groups, kernel, stride, pads, dilation, side) in [
        (3, 5, 1, [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], [9, 7]),
        (1, 1, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [1, 1]),
        (17, 65, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [8, 9]),
        (4, 70, 1, [5, 5], [2, 2], [2, 1, 0, 3], [1, 1], [13, 11]),
        (5, 3, 1, [3, 2], [1, 2], [2, 2, 2, 2], [2, 3], [7, 8]),
        (6, 6, 6, [3, 3], [2, 2], [1, 1, 1, 1], [1, 1], [10, 9]),
        (6, 12, 3, [3, 3], [1, 1], [0, 0, 0, 0], [1, 1], [5, 6]),
        (8, 8, 8, [5, 5], [1, 1], [2, 2, 2, 2], [1, 1], [6, 12]),
        (3, 2, 1, [7, 7], [3, 3], [3, 3, 3, 3], [1, 1], [4, 4]),
    ] {
        for batch in [1, 3] {
            for bias in [false, true] {
                let attributes = [
                    ints("kernel_shape", &kernel),
                    ints("strides", &stride),
                    ints("pads", &pads),
                    ints("dilations", &dilation),
                    Attribute::int("group", groups),
                ];
                let shape = [outputs, channels / groups as usize, kernel[0] as usize, kernel[1] as usize];
                let inputs: &[&str] = if bias { &["x", "w", "b"] } else { &["x", "w"] };
                let file =
                    File::new(&[1, channels, side[0], side[1]]).weights("w", &shape).weights("b", &[outputs]);
                let file = file.node("Conv", inputs, "y", &attributes).bytes("y");
                let what = format!(
                    "{channels} {outputs} {groups} {kernel:?} {stride:?} {pads:?} {dilation:?} {side:?} {batch} {bias}"
                );
                compare(&file, batch, &what);
            }
        }
    }
}

#[test]
fn pools_count_pads_and_round_as_they_are_told() {
    measure::need!(compiler(), "a C++ compiler");
    for (op, more) in [
        ("MaxPool", vec![]),
        ("MaxPool", vec![Attribute::int("ceil_mode", 1)]),
        ("AveragePool", vec![]),
        ("AveragePool", vec![Attribute::int("count_include_pad", 1)]),
        ("AveragePool", vec![Attribute::int("count_include_pad", 1), Attribute::int("ceil_mode", 1)]),
        ("AveragePool", vec![Attribute::int("ceil_mode", 1)]),
    ] {
        for (kernel, stride, pads) in
            [([3, 3], [2, 2], [0, 0, 0, 0]), ([3, 2], [2, 3], [1, 1, 1, 0]), ([2, 2], [1, 1], [0, 1, 1, 1])]
        {
            let mut attributes = more.clone();
            attributes.extend([
                Attribute::ints("kernel_shape", &kernel),
                Attribute::ints("strides", &stride),
                Attribute::ints("pads", &pads),
            ]);
            let file = File::new(&[1, 3, 12, 10]).node(op, &["x"], "y", &attributes).bytes("y");
            compare(&file, 2, &format!("{op} {more:?} {kernel:?} {stride:?} {pads:?}"));
        }
    }
}

#[test]
fn activations_sums_products_and_means_are_those_of_the_reference() {
    measure::need!(compiler(), "a C++ compiler");
    for (op, attributes) in [
        ("Relu", vec![]),
        ("Sigmoid", vec![]),
        ("HardSwish", vec![]),
        ("HardSigmoid", vec![Attribute::float("alpha", 1.0 / 6.0)]),
        ("GlobalAveragePool", vec![]),
        ("ReduceMean", vec![Attribute::ints("axes", &[-2, -1])]),
        ("ReduceMean", vec![Attribute::ints("axes", &[3, 2]), Attribute::int("keepdims", 0)]),
    ] {
        let file = File::new(&[1, 5, 7, 9]).node(op, &["x"], "y", &attributes).bytes("y");
        compare(&file, 3, op);
    }
    let clip = File::new(&[1, 5, 7, 9]).weights("low", &[]).positive("high", &[]);
    compare(&clip.node("Clip", &["x", "low", "high"], "y", &[]).bytes("y"), 2, "Clip");
    for op in ["Add", "Mul"] {
        let file = File::new(&[1, 4, 6, 5]).node("Relu", &["x"], "r", &[]).node(op, &["x", "r"], "y", &[]);
        compare(&file.bytes("y"), 2, op);
    }
    for order in [["x", "m"], ["m", "x"]] {
        let file = File::new(&[1, 4, 6, 5]).node("GlobalAveragePool", &["x"], "m", &[]).node(
            "Mul",
            &order,
            "y",
            &[],
        );
        compare(&file.bytes("y"), 2, "Mul by channel");
    }
}

#[test]
fn products_of_matrices_take_their_weights_either_way() {
    measure::need!(compiler(), "a C++ compiler");
    for (transposed, shape) in [(1, [13, 60]), (0, [60, 13])] {
        let attributes = [
            Attribute::int("transB", transposed),
            Attribute::float("alpha", 0.5),
            Attribute::float("beta", 2.0),
        ];
        let file = File::new(&[1, 5, 3, 4]).weights("w", &shape).weights("b", &[13]).node(
            "Flatten",
            &["x"],
            "f",
            &[],
        );
        compare(&file.node("Gemm", &["f", "w", "b"], "y", &attributes).bytes("y"), 3, "Gemm");
    }
    let file = File::new(&[1, 60]).weights("w", &[60, 7]).node("MatMul", &["x", "w"], "y", &[]);
    compare(&file.bytes("y"), 2, "MatMul");
}

#[test]
fn channels_are_joined_shuffled_and_named_anew() {
    measure::need!(compiler(), "a C++ compiler");
    let conv = |file: File, name: &str, outputs: usize| {
        let weights = format!("w{name}");
        file.weights(&weights, &[outputs, 4, 1, 1]).node("Conv", &["x", &weights], name, &[])
    };
    let axis = [Attribute::int("axis", 1)];
    let joined = conv(conv(File::new(&[1, 4, 5, 6]), "a", 3), "b", 2).node(
        "Concat",
        &["a", "x", "b", "a"],
        "c",
        &axis,
    );
    compare(&joined.clone().bytes("c"), 3, "a part twice, and the input");
    let nested = joined.node("Concat", &["c", "b"], "y", &axis).node("Relu", &["y"], "z", &[]);
    compare(&nested.bytes("z"), 2, "a Concat of a Concat");
    let shuffled = File::new(&[1, 18, 4, 5]);
    let attributes = [Attribute::int("blocksize", 3), Attribute::string("mode", "CRD")];
    compare(&shuffled.node("DepthToSpace", &["x"], "y", &attributes).bytes("y"), 2, "DepthToSpace");
    let reshaped = File::new(&[1, 6, 2, 2]).ints("s", &[0, 2, -1, 1]).node("Relu", &["x"], "r", &[]);
    let reshaped = reshaped.node("Reshape", &["r", "s"], "t", &[]).node("Sigmoid", &["t"], "y", &[]);
    compare(&reshaped.bytes("y"), 2, "Reshape");
}

#[test]
fn batch_normalisation_goes_into_the_weights_or_stands_alone() {
    measure::need!(compiler(), "a C++ compiler");
    let normal = |file: File, from: &str, to: &str| {
        let file = file
            .weights("scale", &[6])
            .weights("offset", &[6])
            .weights("mean", &[6])
            .positive("variance", &[6]);
        file.node(
            "BatchNormalization",
            &[from, "scale", "offset", "mean", "variance"],
            to,
            &[Attribute::float("epsilon", 0.001)],
        )
    };
    compare(&normal(File::new(&[1, 6, 5, 4]), "x", "y").bytes("y"), 2, "alone");
    let conv = File::new(&[1, 3, 5, 4]).weights("w", &[6, 3, 3, 3]).weights("b", &[6]).node(
        "Conv",
        &["x", "w", "b"],
        "c",
        &[],
    );
    compare(
        &normal(conv.clone(), "c", "y").node("Relu", &["y"], "z", &[]).bytes("z"),
        2,
        "behind a convolution",
    );
    // The convolution's own result is read as well.
    let both = normal(conv, "c", "n").node("Add", &["c", "n"], "y", &[]);
    compare(&both.bytes("y"), 2, "beside a convolution");
}

/// Whether this build has kernels for the twin.
fn compiler() -> Result<(), String> {
    let file = File::new(&[1, 1]).node("Relu", &["x"], "y", &[]).bytes("y");
    let graph = import(&file, 1).map_err(|error| error.to_string())?;
    let plan = Plan::new(&graph).map_err(|error| error.to_string())?;
    Twin::new(plan).map(|_| ()).map_err(|error| error.to_string())
}
