//! Every operator, at the edges of its shapes, on the host twin and by the plain reference, step by step.

use inference::engine::Engine;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::layers::{Random, distance};
use inference::plan::{Format, Layout, Plan, Precision, Task};
use inference::{evaluate, graph::Graph};
use zoo::onnx::{Attribute, AttributeKind, Tensor};

use crate::files::File;

/// Every way in which values may lie, and the distance from the reference that it allows.
pub const FORMATS: [(Format, f64); 3] = [
    (Format { precision: Precision::Single, layout: Layout::ChannelsFirst }, 1e-4),
    (Format { precision: Precision::Single, layout: Layout::ChannelsLast }, 1e-4),
    (Format { precision: Precision::Half, layout: Layout::ChannelsLast }, 2e-2),
];

/// Runs a file on the twin and compares what each step wrote with the value of that name; how many steps were
/// compared.
fn compare(file: &[u8], batch: usize, (format, tolerance): (Format, f64), what: &str) -> usize {
    let graph = import(file, batch).unwrap_or_else(|error| panic!("{what}: {error}"));
    let plan = Plan::in_format(&graph, format).unwrap_or_else(|error| panic!("{what}: {error}"));
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
                let distance = distance(format.precision, &written, wanted);
                assert!(distance < tolerance, "{what}: {format:?} {step:?}: {distance}");
                compared += 1;
            }
        }
    }
    for (&id, output) in graph.outputs.iter().zip(&outputs) {
        let wanted = wanted[id.0].as_ref().expect("the reference computes every value");
        let distance = distance(format.precision, output, wanted);
        assert!(distance < tolerance, "{what}: {format:?}: output: {distance}");
    }
    compared
}

fn written_by(graph: &Graph, node: &str) -> Option<usize> {
    graph.nodes.iter().find(|other| other.names[0] == node).map(|node| node.output.0)
}

/// A file, what it is, and the batch to run it with.
type Case = (String, Vec<u8>, usize);

fn convolutions() -> Vec<Case> {
    let ints = |name, values: &[i64]| Attribute::ints(name, values);
    let mut cases = Vec::new();
    for (channels, outputs, groups, kernel, stride, pads, dilation, side) in [
        (3, 5, 1, [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], [9, 7]),
        (1, 1, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [1, 1]),
        (17, 65, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [8, 9]),
        (4, 70, 1, [5, 5], [2, 2], [2, 1, 0, 3], [1, 1], [13, 11]),
        (5, 3, 1, [3, 2], [1, 2], [2, 2, 2, 2], [2, 3], [7, 8]),
        (16, 72, 1, [3, 2], [1, 1], [1, 0, 1, 2], [2, 1], [12, 13]),
        (24, 32, 1, [3, 3], [2, 1], [1, 1, 0, 1], [1, 1], [9, 17]),
        (8, 9, 1, [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], [12, 13]),
        (1, 64, 1, [5, 5], [1, 1], [2, 2, 2, 2], [1, 1], [12, 13]),
        (8, 70, 1, [2, 2], [2, 1], [1, 0, 0, 3], [1, 2], [9, 17]),
        (6, 6, 6, [3, 3], [2, 2], [1, 1, 1, 1], [1, 1], [10, 9]),
        (6, 12, 3, [3, 3], [1, 1], [0, 0, 0, 0], [1, 1], [5, 6]),
        (6, 6, 6, [3, 2], [2, 1], [2, 0, 1, 3], [2, 3], [9, 8]),
        (8, 12, 4, [2, 3], [1, 2], [0, 3, 2, 1], [3, 2], [8, 9]),
        (8, 8, 8, [5, 5], [1, 1], [2, 2, 2, 2], [1, 1], [6, 12]),
        // More channels than a block of `depthwise` has threads; windows it lacks; several outputs a group.
        (72, 72, 72, [3, 3], [1, 1], [1, 1, 1, 1], [1, 1], [5, 9]),
        (130, 130, 130, [5, 5], [2, 1], [2, 1, 1, 3], [1, 2], [7, 11]),
        (4, 4, 4, [3, 5], [1, 1], [1, 2, 1, 2], [1, 1], [6, 7]),
        (4, 8, 4, [3, 3], [1, 1], [1, 1, 1, 1], [2, 1], [6, 7]),
        (3, 2, 1, [7, 7], [3, 3], [3, 3, 3, 3], [1, 1], [4, 4]),
        // Single pixels: one, two, four, eight warps a sum; channels no multiple of four; strides, pads.
        (8, 37, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [5, 7]),
        (132, 10, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [3, 3]),
        (288, 33, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [2, 5]),
        (1040, 5, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [1, 3]),
        (7, 6, 1, [1, 1], [1, 1], [0, 0, 0, 0], [1, 1], [4, 3]),
        (8, 6, 1, [1, 1], [2, 1], [0, 0, 0, 0], [1, 1], [4, 3]),
        (8, 6, 1, [1, 1], [1, 1], [1, 0, 0, 1], [1, 1], [4, 3]),
    ] {
        for (batch, bias) in [(1, false), (1, true), (3, false), (3, true)] {
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
            let what = format!("Conv {channels} {shape:?} {attributes:?} {side:?}, batch {batch}");
            cases.push((what, file, batch));
        }
    }
    cases
}

/// A pool of 12x10 pixels with these attributes too; with a dilation, of the operator set that has it.
fn pool(
    op: &str,
    mut attributes: Vec<Attribute>,
    (kernel, stride, pads): ([i64; 2], [i64; 2], [i64; 4]),
    dilation: Option<[i64; 2]>,
) -> Case {
    attributes.extend([
        Attribute::ints("kernel_shape", &kernel),
        Attribute::ints("strides", &stride),
        Attribute::ints("pads", &pads),
    ]);
    let mut file = File::new(&[1, 3, 12, 10]);
    if let Some(dilation) = dilation {
        attributes.push(Attribute::ints("dilations", &dilation));
        file.model.opset_import[0].version = 19;
    }
    (format!("{op} {attributes:?}"), file.node(op, &["x"], "y", &attributes).bytes("y"), 2)
}

fn pools() -> Vec<Case> {
    let mut cases = Vec::new();
    for (op, more) in [
        ("MaxPool", vec![]),
        ("MaxPool", vec![Attribute::int("ceil_mode", 1)]),
        ("AveragePool", vec![]),
        ("AveragePool", vec![Attribute::int("count_include_pad", 1)]),
        ("AveragePool", vec![Attribute::int("count_include_pad", 1), Attribute::int("ceil_mode", 1)]),
        ("AveragePool", vec![Attribute::int("ceil_mode", 1)]),
    ] {
        for window in
            [([3, 3], [2, 2], [0, 0, 0, 0]), ([3, 2], [2, 3], [1, 1, 1, 0]), ([2, 2], [1, 1], [0, 1, 1, 1])]
        {
            cases.push(pool(op, more.clone(), window, None));
        }
    }
    cases
}

/// Pools with a dilation. ONNX Runtime knows none of an AveragePool below operator set 19.
fn dilated_pools() -> Vec<Case> {
    let mut cases = Vec::new();
    for (op, more) in [
        ("MaxPool", vec![]),
        ("MaxPool", vec![Attribute::int("ceil_mode", 1)]),
        ("AveragePool", vec![]),
        ("AveragePool", vec![Attribute::int("count_include_pad", 1)]),
    ] {
        for (window, dilation) in
            [(([3, 3], [1, 1], [0, 0, 0, 0]), [2, 2]), (([2, 3], [2, 1], [1, 2, 0, 1]), [3, 2])]
        {
            cases.push(pool(op, more.clone(), window, Some(dilation)));
        }
    }
    cases
}

/// Windows whose pads a rule gives, odd ones among them.
fn rules_of_pads() -> Vec<Case> {
    let mut cases = Vec::new();
    for rule in ["VALID", "SAME_UPPER", "SAME_LOWER"] {
        for (op, kernel, stride) in [
            ("Conv", [3, 2], [2, 1]),
            ("Conv", [4, 4], [1, 3]),
            ("MaxPool", [2, 3], [2, 2]),
            ("AveragePool", [4, 2], [1, 2]),
        ] {
            let attributes = [
                Attribute::string("auto_pad", rule),
                Attribute::ints("kernel_shape", &kernel),
                Attribute::ints("strides", &stride),
            ];
            let file =
                File::new(&[1, 3, 9, 10]).weights("w", &[4, 3, kernel[0] as usize, kernel[1] as usize]);
            let inputs: &[&str] = if op == "Conv" { &["x", "w"] } else { &["x"] };
            cases.push((
                format!("{op} {attributes:?}"),
                file.node(op, inputs, "y", &attributes).bytes("y"),
                2,
            ));
        }
    }
    cases
}

fn functions_of_elements() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        ("Relu", vec![]),
        ("Sigmoid", vec![]),
        ("HardSwish", vec![]),
        ("HardSigmoid", vec![Attribute::float("alpha", 1.0 / 6.0)]),
        ("GlobalAveragePool", vec![]),
        ("ReduceMean", vec![Attribute::ints("axes", &[-2, -1])]),
        ("ReduceMean", vec![Attribute::ints("axes", &[3, 2]), Attribute::int("keepdims", 0)]),
    ]
    .map(|(op, attributes)| {
        (op.to_owned(), File::new(&[1, 5, 7, 9]).node(op, &["x"], "y", &attributes).bytes("y"), 3)
    })
    .into();
    let clip = File::new(&[1, 5, 7, 9]).weights("low", &[]).positive("high", &[]);
    cases.push(("Clip".to_owned(), clip.node("Clip", &["x", "low", "high"], "y", &[]).bytes("y"), 2));
    for op in ["Add", "Mul"] {
        let file = File::new(&[1, 4, 6, 5]).node("Relu", &["x"], "r", &[]).node(op, &["x", "r"], "y", &[]);
        cases.push((op.to_owned(), file.bytes("y"), 2));
    }
    // As many pixels as a warp has, and one more.
    for side in [[16, 32], [19, 27]] {
        let file = File::new(&[1, 5, side[0], side[1]]).node("GlobalAveragePool", &["x"], "y", &[]);
        cases.push((format!("GlobalAveragePool of {side:?}"), file.bytes("y"), 2));
    }
    for order in [["x", "m"], ["m", "x"]] {
        let file = File::new(&[1, 4, 6, 5]).node("GlobalAveragePool", &["x"], "m", &[]);
        cases.push(("Mul by channel".to_owned(), file.node("Mul", &order, "y", &[]).bytes("y"), 2));
    }
    cases
}

fn products_of_matrices() -> Vec<Case> {
    let mut cases = Vec::new();
    for (transposed, shape) in [(1, [13, 60]), (0, [60, 13])] {
        let attributes = [
            Attribute::int("transB", transposed),
            Attribute::float("alpha", 0.5),
            Attribute::float("beta", 2.0),
        ];
        let file = File::new(&[1, 5, 3, 4]).weights("w", &shape).weights("b", &[13]);
        let file = file.node("Flatten", &["x"], "f", &[]).node("Gemm", &["f", "w", "b"], "y", &attributes);
        cases.push((format!("Gemm {transposed}"), file.bytes("y"), 3));
    }
    let file = File::new(&[1, 60]).weights("w", &[60, 7]).node("MatMul", &["x", "w"], "y", &[]);
    cases.push(("MatMul".to_owned(), file.bytes("y"), 2));
    cases
}

/// Blocks of 3 × 3 pixels from 18 channels, by a Transpose between two Reshapes, as PyTorch exported them.
pub fn shuffle(order: &[i64], to: &[i64]) -> File {
    let file = File::new(&[1, 4, 4, 5]).weights("w", &[18, 4, 1, 1]).weights("b", &[18]);
    let file = file.ints("s", &[1, 2, 3, 3, 4, 5]).ints("t", to).node("Conv", &["x", "w", "b"], "c", &[]);
    let file = file.node("Reshape", &["c", "s"], "d", &[]);
    let file = file.node("Transpose", &["d"], "e", &[Attribute::ints("perm", order)]);
    file.node("Reshape", &["e", "t"], "y", &[])
}

fn places() -> Vec<Case> {
    let conv = |file: File, name: &str, outputs: usize| {
        let weights = format!("w{name}");
        file.weights(&weights, &[outputs, 4, 1, 1]).node("Conv", &["x", &weights], name, &[])
    };
    let axis = [Attribute::int("axis", 1)];
    let joined = conv(conv(File::new(&[1, 4, 5, 6]), "a", 3), "b", 2);
    let joined = joined.node("Concat", &["a", "x", "b", "a"], "c", &axis);
    let nested = joined.clone().node("Concat", &["c", "b"], "y", &axis).node("Relu", &["y"], "z", &[]);
    let attributes = [Attribute::int("blocksize", 3), Attribute::string("mode", "CRD")];
    let shuffled = File::new(&[1, 18, 4, 5]).node("DepthToSpace", &["x"], "y", &attributes);
    let reshaped = File::new(&[1, 6, 2, 2]).ints("s", &[0, 2, -1, 1]).node("Relu", &["x"], "r", &[]);
    let reshaped = reshaped.node("Reshape", &["r", "s"], "t", &[]).node("Sigmoid", &["t"], "y", &[]);
    // Pixels become channels, and what is no image is joined.
    let turned = File::new(&[1, 1, 4, 4]).ints("s", &[1, 16, 1, 1]).node("Relu", &["x"], "r", &[]);
    let turned = turned.node("Reshape", &["r", "s"], "t", &[]).node("Sigmoid", &["t"], "y", &[]);
    let rows = File::new(&[1, 4, 2, 4]).ints("s", &[0, 4, 8]).node("Relu", &["x"], "r", &[]);
    let rows = rows.node("Reshape", &["r", "s"], "a", &[]).node("Sigmoid", &["a"], "b", &[]);
    let rows = rows.node("Concat", &["a", "b"], "y", &axis);
    // Operators that compute nothing.
    let value = Attribute {
        name: "value".to_owned(),
        kind: AttributeKind::Tensor.into(),
        t: Some(Tensor::ints("", &[0, 6, 4])),
        ..Attribute::default()
    };
    let same = File::new(&[1, 6, 2, 2]).ints("a", &[3]).node("Relu", &["x"], "r", &[]);
    let same = same.node("Identity", &["r"], "i", &[]).node("Dropout", &["i"], "d", &[]);
    let same = same.node("Constant", &[], "s", &[value]).node("Reshape", &["d", "s"], "t", &[]);
    let same = same.node("Unsqueeze", &["t", "a"], "u", &[]).node("Sigmoid", &["u"], "v", &[]);
    let same = same.node("Squeeze", &["v", "a"], "q", &[]).node("Relu", &["q"], "y", &[]);
    // A constant's own extents are not the batch.
    let scale = File::new(&[1, 4, 3, 3]).weights("w", &[4]).ints("s", &[1, 4, 1, 1]);
    let scale = scale.node("Reshape", &["w", "s"], "t", &[]).node("Mul", &["x", "t"], "y", &[]);
    // One convolution does with channels last: of kernels that are rectangles, with a bias and without.
    let pads = |pads: &[i64]| [Attribute::ints("pads", pads), Attribute::ints("strides", &[2, 1])];
    let fire =
        File::new(&[1, 4, 7, 6]).weights("u", &[3, 4, 1, 1]).weights("v", &[5, 4, 2, 3]).weights("b", &[5]);
    let fire = fire.node("Relu", &["x"], "r", &[]).node("Conv", &["r", "u"], "a", &pads(&[0, 0, 1, 0]));
    let fire = fire.node("Conv", &["r", "v", "b"], "c", &pads(&[1, 1, 1, 1])).node("Relu", &["a"], "d", &[]);
    let fire = fire.node("Relu", &["c"], "e", &[]).node("Concat", &["d", "e"], "f", &axis);
    let fire = fire.node("Sigmoid", &["f"], "y", &[]);
    // Its 9 channels lie in pixels with room for 12 or 16, and are blocks when they are stored.
    let added = File::new(&[1, 8, 5, 3]).weights("w", &[8, 8, 1, 1]).weights("b", &[8]).node(
        "Relu",
        &["x"],
        "r",
        &[],
    );
    let added = added.node("Conv", &["r", "w", "b"], "c", &[]).node("Add", &["c", "r"], "y", &[]);
    let blocks = File::new(&[1, 4, 5, 6]).weights("w", &[9, 4, 1, 1]).weights("b", &[9]);
    let blocks =
        blocks.node("Conv", &["x", "w", "b"], "c", &[]).node("DepthToSpace", &["c"], "y", &attributes);
    let shuffle = shuffle(&[0, 1, 4, 2, 5, 3], &[1, 2, 12, 15]);
    let squeeze = File::new(&[1, 12, 5, 3]).weights("w", &[7, 12, 1, 1]).weights("b", &[7]);
    let squeeze =
        squeeze.node("GlobalAveragePool", &["x"], "m", &[]).node("Conv", &["m", "w", "b"], "c", &[]);
    let squeeze = squeeze.node("HardSigmoid", &["c"], "y", &[]);
    // A squeeze block's factor is computed where it multiplies, whichever factor comes first: of more
    // channels and pixels than a block of the kernel has. Where another operator reads it, it is written.
    let excited = |factors: [&str; 2], function| {
        let file = File::new(&[1, 35, 9, 8]).weights("w", &[35, 7, 1, 1]).weights("b", &[35]);
        let file = file.weights("v", &[7, 35, 1, 1]).node("GlobalAveragePool", &["x"], "m", &[]);
        let file = file.node("Conv", &["m", "v"], "s", &[]).node("Conv", &["s", "w", "b"], "c", &[]);
        file.node(function, &["c"], "f", &[]).node("Mul", &factors, "e", &[])
    };
    let excite = excited(["x", "f"], "HardSigmoid").node("Relu", &["e"], "y", &[]);
    let excite_last = excited(["f", "x"], "Sigmoid");
    let read_twice = excited(["x", "f"], "HardSigmoid").node("Mul", &["e", "f"], "y", &[]);
    // Its only window lies in the pads, and sees no pixel.
    let beside = [Attribute::ints("pads", &[1, 1, 1, 1]), Attribute::ints("strides", &[3, 3])];
    let beside = File::new(&[1, 4, 1, 1]).weights("w", &[5, 4, 1, 1]).weights("b", &[5]).node(
        "Conv",
        &["x", "w", "b"],
        "y",
        &beside,
    );
    vec![
        ("a convolution beside its one pixel".to_owned(), beside.bytes("y"), 2),
        ("convolutions of one Concat".to_owned(), fire.bytes("y"), 2),
        ("a 1x1 convolution and what is added".to_owned(), added.bytes("y"), 3),
        ("blocks of what a convolution writes".to_owned(), blocks.bytes("y"), 2),
        ("a pixel shuffle of older exporters".to_owned(), shuffle.bytes("y"), 2),
        ("a convolution of one pixel".to_owned(), squeeze.bytes("y"), 3),
        ("squeeze and excite".to_owned(), excite.bytes("y"), 3),
        ("squeeze and excite, the factors first".to_owned(), excite_last.bytes("e"), 2),
        ("factors that are read twice".to_owned(), read_twice.bytes("y"), 2),
        ("Reshape of pixels to channels".to_owned(), turned.bytes("y"), 3),
        ("Concat of three axes".to_owned(), rows.bytes("y"), 2),
        ("Reshape of a constant".to_owned(), scale.bytes("y"), 1),
        ("operators that compute nothing".to_owned(), same.bytes("y"), 2),
        ("Concat of a part twice, and of the input".to_owned(), joined.bytes("c"), 3),
        ("Concat of a Concat".to_owned(), nested.bytes("z"), 2),
        ("DepthToSpace".to_owned(), shuffled.bytes("y"), 2),
        ("Reshape".to_owned(), reshaped.bytes("y"), 2),
    ]
}

fn normalisations() -> Vec<Case> {
    let normal = |file: File, from: &str, to: &str| {
        let file = file.weights("scale", &[6]).weights("offset", &[6]).weights("mean", &[6]);
        let file = file.positive("variance", &[6]);
        let inputs = [from, "scale", "offset", "mean", "variance"];
        file.node("BatchNormalization", &inputs, to, &[Attribute::float("epsilon", 0.001)])
    };
    let conv = File::new(&[1, 3, 5, 4]).weights("w", &[6, 3, 3, 3]).weights("b", &[6]);
    let conv = conv.node("Conv", &["x", "w", "b"], "c", &[]);
    let behind = normal(conv.clone(), "c", "y").node("Relu", &["y"], "z", &[]);
    // The convolution's own result is read as well.
    let beside = normal(conv, "c", "n").node("Add", &["c", "n"], "y", &[]);
    vec![
        ("BatchNormalization alone".to_owned(), normal(File::new(&[1, 6, 5, 4]), "x", "y").bytes("y"), 2),
        ("BatchNormalization behind a convolution".to_owned(), behind.bytes("z"), 2),
        ("BatchNormalization beside a convolution".to_owned(), beside.bytes("y"), 2),
    ]
}

/// Every operator at the edges of its shapes.
pub fn files_of_every_operator() -> Vec<Case> {
    let all = [
        convolutions(),
        pools(),
        dilated_pools(),
        rules_of_pads(),
        functions_of_elements(),
        products_of_matrices(),
        places(),
        normalisations(),
    ];
    all.concat()
}

#[test]
fn operators_are_those_of_the_reference_at_the_edges_of_their_shapes() {
    measure::need!(compiler(), "a C++ compiler");
    let mut steps = 0;
    for (what, file, batch) in files_of_every_operator() {
        steps += FORMATS.map(|format| compare(&file, batch, format, &what)).iter().sum::<usize>();
    }
    assert!(steps > 240, "only {steps} steps were compared");
}

/// The plain reference is ours: another one computes the same.
#[test]
fn the_reference_is_onnx_runtimes() {
    let found = Runtime::load(None).map_err(|error| error.to_string());
    let runtime = measure::need!(found, reference, "ONNX Runtime");
    for (what, file, _) in files_of_every_operator() {
        let graph = import(&file, 1).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut random = Random(7);
        let inputs: Vec<Vec<f32>> =
            graph.inputs.iter().map(|&id| random.tensor(graph.shape(id).count())).collect();
        let ours = evaluate::run(&graph, &inputs);
        let views: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let mut model = runtime.model(&file, 1).unwrap_or_else(|error| panic!("{what}: {error}"));
        let theirs = model.run(&views).unwrap_or_else(|error| panic!("{what}: {error}"));
        for (&id, theirs) in graph.outputs.iter().zip(&theirs) {
            let ours = ours[id.0].as_ref().expect("the reference computes every value");
            let distance = distance(Precision::Single, ours, theirs);
            assert!(distance < 1e-5, "{what}: {distance}");
        }
    }
}

/// Whether this build has kernels for the twin.
pub fn compiler() -> Result<(), String> {
    inference::engine::has_twin().map_err(|error| error.to_string())
}
