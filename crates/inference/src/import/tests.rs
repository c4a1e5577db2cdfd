//! Files that are wrong in one place each, and bytes that are no file.

use zoo::onnx::{Attribute, Dimension, Extent, Graph, Model, Node, OperatorSet, Tensor, ValueInfo};

use super::*;

/// A convolution with a Relu behind it.
fn model() -> Model {
    let node = |op: &str, input: &[&str], output: &str| Node {
        op_type: op.to_owned(),
        name: format!("the {op}"),
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..Node::default()
    };
    let graph = Graph {
        name: "test".to_owned(),
        node: vec![node("Conv", &["x", "w"], "c"), node("Relu", &["c"], "y")],
        initializer: vec![Tensor::float("w", &[2, 3, 1, 1], &[0.5; 6])],
        input: vec![ValueInfo::float("x", &[1, 3, 4, 4])],
        output: vec![ValueInfo::float("y", &[1, 2, 4, 4])],
    };
    let opset_import = vec![OperatorSet { domain: String::new(), version: 17 }];
    Model { ir_version: 8, graph: Some(graph), opset_import, ..Model::default() }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_place_and_what_helps() {
    type Change = fn(&mut Model);
    fn graph(model: &mut Model) -> &mut Graph {
        model.graph.as_mut().expect("there is one")
    }
    fn extents(model: &mut Model) -> &mut Vec<Dimension> {
        let of = graph(model).input[0].r#type.as_mut().and_then(|of| of.tensor_type.as_mut());
        &mut of.and_then(|tensor| tensor.shape.as_mut()).expect("it has a shape").dim
    }
    let rows: [(&str, Change, &[&str]); 24] = [
        ("no graph", |model| model.graph = None, &["holds no graph"]),
        ("opset", |model| model.opset_import[0].version = 99, &["version 99", "opset 17"]),
        ("no opset", |model| model.opset_import.clear(), &["version 0", "opset 17"]),
        (
            "operator",
            |model| graph(model).node[1].op_type = "Celu".into(),
            &["the Relu (Celu)", "no operator", "Sigmoid"],
        ),
        ("domain", |model| graph(model).node[1].domain = "com.example".into(), &["com.example"]),
        (
            "attribute",
            |model| graph(model).node[0].attribute = vec![Attribute::int("wind", 3)],
            &["the Conv", "wind"],
        ),
        (
            "type",
            |model| graph(model).node[0].attribute = vec![Attribute::float("group", 1.0)],
            &["group", "Int"],
        ),
        (
            "groups",
            |model| graph(model).node[0].attribute = vec![Attribute::int("group", 2)],
            &["the Conv", "2 groups", "2x3x1x1"],
        ),
        (
            "pads",
            |model| graph(model).node[0].attribute = vec![Attribute::ints("pads", &[-1, 0, 0, 0])],
            &["pads", "65536"],
        ),
        (
            "stride",
            |model| graph(model).node[0].attribute = vec![Attribute::ints("strides", &[0, 1])],
            &["of 0"],
        ),
        (
            "chain",
            |model| graph(model).initializer[0] = Tensor::float("w", &[2, 4, 1, 1], &[0.5; 8]),
            &["3 channels", "2x4x1x1"],
        ),
        ("weights", |model| graph(model).node[0].input[1] = "x".into(), &["input x", "only constants"]),
        (
            "missing",
            |model| graph(model).node[1].input[0] = "nothing".into(),
            &["input nothing", "no node before"],
        ),
        ("twice", |model| graph(model).node[1].output[0] = "c".into(), &["tensor c", "two nodes"]),
        (
            "cut",
            |model| graph(model).initializer[0].raw_data.truncate(20),
            &["tensor w of node the Conv (Conv)", "5 elements", "2x3x1x1", "fetch the model again"],
        ),
        ("bytes", |model| graph(model).initializer[0].raw_data.truncate(21), &["tensor w", "21 bytes"]),
        (
            "not a number",
            |model| graph(model).initializer[0].raw_data[8..12].copy_from_slice(&f32::NAN.to_le_bytes()),
            &["tensor w of node the Conv (Conv)", "element 2 is NaN", "damaged", "fetch the model again"],
        ),
        (
            "dynamic",
            |model| extents(model)[2].extent = Some(Extent::Parameter("height".into())),
            &["x: axis 2", "height", "fixed shapes"],
        ),
        ("huge", |model| extents(model)[2].extent = Some(Extent::Value(1 << 40)), &["tensor x", "2^31"]),
        (
            "pads and rule",
            |model| {
                let attributes =
                    vec![Attribute::ints("pads", &[0; 4]), Attribute::string("auto_pad", "SAME_UPPER")];
                graph(model).node[0].attribute = attributes;
            },
            &["pads", "beside auto_pad"],
        ),
        (
            "ceil_mode",
            |model| graph(model).node[0].attribute = vec![Attribute::int("ceil_mode", 1)],
            &["ceil_mode", "no such attribute"],
        ),
        (
            "pool of pads",
            |model| {
                let node = &mut graph(model).node[1];
                node.op_type = "MaxPool".into();
                node.attribute =
                    vec![Attribute::ints("kernel_shape", &[1, 1]), Attribute::ints("pads", &[1; 4])];
            },
            &["pads", "not smaller than the window"],
        ),
        (
            "window",
            |model| {
                let node = &mut graph(model).node[1];
                node.op_type = "AveragePool".into();
                node.attribute = vec![
                    Attribute::ints("kernel_shape", &[65535, 1]),
                    Attribute::ints("dilations", &[65535, 1]),
                    Attribute::string("auto_pad", "SAME_UPPER"),
                ];
            },
            &["does not fit"],
        ),
        ("output", |model| graph(model).output[0].name = "z".into(), &["tensor z", "no node writes it"]),
    ];
    for (what, change, wanted) in rows {
        let mut model = model();
        change(&mut model);
        let said = import(&model.encode_to_vec(), 1).expect_err(what).to_string();
        assert!(wanted.iter().all(|wanted| said.contains(wanted)), "{what}: {said}");
    }
    assert!(import(&model().encode_to_vec(), 1).is_ok());
}

#[test]
fn a_batch_stands_in_place_of_the_first_axis() {
    let mut model = model();
    let graph = model.graph.as_mut().expect("there is one");
    let batch = Dimension { extent: Some(Extent::Parameter("batch".into())) };
    let of = graph.input[0]
        .r#type
        .as_mut()
        .and_then(|of| of.tensor_type.as_mut())
        .and_then(|of| of.shape.as_mut());
    of.expect("it has a shape").dim[0] = batch;
    let graph = import(&model.encode_to_vec(), 5).expect("a batch may be dynamic");
    assert_eq!(graph.shape(graph.outputs[0]).extents(), [5, 2, 4, 4]);
    // With such a batch an extent below -1 is no batch either.
    let file = model.graph.as_mut().expect("there is one");
    file.initializer.push(Tensor::ints("s", &[-2, 32]));
    file.node[1].op_type = "Reshape".into();
    file.node[1].input.push("s".into());
    let said = import(&model.encode_to_vec(), 5).expect_err("-2 is no extent").to_string();
    assert!(said.contains("[-2, 32]"), "{said}");
}
