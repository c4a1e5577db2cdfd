//! What the importer refuses, operator by operator: the message names the node, what is wrong with it, and
//! the numbers.

use inference::import::import;
use zoo::onnx::{Attribute, DataType, Extent, Node, Tensor, TensorType};

use crate::files::File;
use crate::operators::shuffle;

/// What a file is, the file, and what its refusal says.
type Row = (&'static str, File, &'static str);

/// Images of 4 channels.
fn images() -> File {
    File::new(&[1, 4, 6, 6])
}

/// One operator of the images, by these attributes.
fn of_images(op: &str, attributes: &[Attribute]) -> File {
    images().node(op, &["x"], "y", attributes)
}

fn changed(mut file: File, change: impl FnOnce(&mut File)) -> File {
    change(&mut file);
    file
}

fn with(file: File, tensor: Tensor) -> File {
    changed(file, |file| file.graph().initializer.push(tensor))
}

fn windows() -> Vec<Row> {
    let conv = |attributes: &[Attribute]| {
        images().weights("w", &[2, 4, 1, 1]).node("Conv", &["x", "w"], "y", attributes)
    };
    let kernel = Attribute::ints("kernel_shape", &[2, 2]);
    let indices = changed(of_images("MaxPool", std::slice::from_ref(&kernel)), |file| {
        file.graph().node[0].output.push("indices".to_owned());
    });
    vec![
        ("no kernel", of_images("MaxPool", &[]), "the y (MaxPool): attribute kernel_shape: it is missing"),
        (
            "rule",
            of_images("MaxPool", &[kernel.clone(), Attribute::string("auto_pad", "SAME")]),
            "attribute auto_pad: there is no rule SAME",
        ),
        (
            "columns first",
            of_images("MaxPool", &[kernel.clone(), Attribute::int("storage_order", 1)]),
            "attribute storage_order: 1: only rows first",
        ),
        ("indices", indices, "its second output, indices, is not possible"),
        (
            "no images",
            File::new(&[1, 4]).node("MaxPool", &["x"], "y", &[kernel]),
            "the input is 1x4; only images of two axes",
        ),
        ("groups", conv(&[Attribute::int("group", -1)]), "the y (Conv): attribute group: -1"),
        (
            "axes of a mean",
            of_images("ReduceMean", &[Attribute::ints("axes", &[1])]),
            "axes [1]; only the mean of rows and columns, 2 and 3",
        ),
        (
            "no axes of a mean",
            of_images("ReduceMean", &[Attribute::int("noop_with_empty_axes", 1)]),
            "attribute noop_with_empty_axes: 1: only the mean of rows and columns",
        ),
    ]
}

fn elements() -> Vec<Row> {
    let clip = |file: File| file.node("Clip", &["x", "low"], "y", &[]);
    let bounds = [Attribute::float("min", 2.0), Attribute::float("max", 1.0)];
    let computed = images().node("Relu", &["x"], "low", &[]);
    let normal = |variance: f32, attributes: &[Attribute]| {
        let file = images().weights("s", &[4]).weights("o", &[4]).weights("m", &[4]);
        let file = with(file, Tensor::float("v", &[4], &[1.0, 1.0, variance, 1.0]));
        file.node("BatchNormalization", &["x", "s", "o", "m", "v"], "y", attributes)
    };
    vec![
        (
            "not a number",
            of_images("HardSigmoid", &[Attribute::float("alpha", f32::NAN)]),
            "attribute alpha: NaN is no finite number",
        ),
        ("one summand", of_images("Add", &[]), "the y (Add): input number 1: it is missing"),
        (
            "broadcasting",
            images().weights("w", &[1, 4, 1, 1]).node("Add", &["x", "w"], "y", &[]),
            "1x4x6x6 and 1x4x1x1 do not fit",
        ),
        (
            "whole numbers",
            images().ints("s", &[1]).node("Add", &["x", "s"], "y", &[]),
            "input s: whole numbers, where a tensor of f32 is read",
        ),
        ("computed bound", clip(computed), "input low: it is computed; only constants"),
        ("bounds", clip(images().weights("low", &[2])), "input low: more than one number"),
        ("bounds' order", of_images("Clip", &bounds), "attribute min: 2 is above the greatest, 1"),
        ("variance", normal(-1.0, &[]), "input v: a variance of -1; the weights are damaged"),
        (
            "training",
            normal(1.0, &[Attribute::int("training_mode", 1)]),
            "attribute training_mode: 1: export the model for inference",
        ),
        (
            "dropout in training",
            images().weights("t", &[1]).node("Dropout", &["x", "", "t"], "y", &[]),
            "input t: a mode of training; export the model for inference",
        ),
        ("no constant", images().node("Constant", &[], "y", &[]), "attribute value: it is missing"),
    ]
}

fn products() -> Vec<Row> {
    let rows = |weights: &[usize]| File::new(&[1, 4]).weights("w", weights);
    let gemm = |bias: usize, attributes: &[Attribute]| {
        rows(&[4, 3]).weights("b", &[bias]).node("Gemm", &["x", "w", "b"], "y", attributes)
    };
    let product = |file: File| file.node("MatMul", &["x", "w"], "y", &[]);
    vec![
        (
            "transposed rows",
            gemm(3, &[Attribute::int("transA", 1)]),
            "attribute transA: 1: rows are the batch",
        ),
        ("bias", gemm(2, &[]), "input b: 2 is no number for each of 3 outputs"),
        ("three axes", product(rows(&[4, 1, 1])), "the weights are 4x1x1, not a matrix"),
        ("depth", product(rows(&[5, 3])), "rows of 4 and weights of 5"),
        (
            "product of images",
            product(images().weights("w", &[6, 3])),
            "the input is 1x4x6x6, not a matrix; simplify the model",
        ),
    ]
}

fn places() -> Vec<Row> {
    let shaped = |op: &str, shape: &[i64]| images().ints("s", shape).node(op, &["x", "s"], "y", &[]);
    let crd = Attribute::string("mode", "CRD");
    let depth = |block, mode: Vec<Attribute>| {
        of_images("DepthToSpace", &[vec![Attribute::int("blocksize", block)], mode].concat())
    };
    let zero = [Attribute::int("allowzero", 1)];
    vec![
        (
            "axis of a Concat",
            of_images("Concat", &[Attribute::int("axis", 9)]),
            "attribute axis: 9 of 4 axes",
        ),
        ("axis of a Flatten", of_images("Flatten", &[Attribute::int("axis", -5)]), "attribute axis: -5 of 4"),
        ("mode", depth(2, vec![]), "attribute mode: DCR; only CRD"),
        ("block", depth(-1, vec![crd.clone()]), "attribute blocksize: -1"),
        ("blocks", depth(3, vec![crd]), "4 channels do not make blocks of 3x3"),
        (
            "empty axes",
            images().ints("s", &[1, -1]).node("Reshape", &["x", "s"], "y", &zero),
            "attribute allowzero: 1: an axis of 0 is an empty tensor",
        ),
        ("axis to copy", shaped("Reshape", &[0, 4, 6, 6, 0]), "copies axis 4 of [1, 4, 6, 6]"),
        ("two rests", shaped("Reshape", &[-1, -1]), "a shape of [-1, -1]"),
        ("elements", shaped("Reshape", &[5, 5]), "1x4x6x6 has not as many elements as 5x5"),
        (
            "computed shape",
            images().weights("s", &[2]).node("Reshape", &["x", "s"], "y", &[]),
            "input s: a tensor of f32, where constant whole numbers are read",
        ),
        (
            "order",
            shuffle(&[0, 1, 2, 4, 3, 5], &[1, 2, 12, 15]),
            "the e (Transpose): attribute perm: only that of a pixel",
        ),
        ("no order", of_images("Transpose", &[]), "the y (Transpose): attribute perm: only that of a pixel"),
        (
            "blocks elsewhere",
            shuffle(&[0, 1, 4, 2, 5, 3], &[1, 2, 15, 12]),
            "a shape of [1, 2, 15, 12]; the shuffled pixels are 1x2x12x15",
        ),
        ("an axis of blocks", shuffle(&[0, 1, 4, 2, 5, 3], &[1, 2, 0, 15]), "a shape of [1, 2, 0, 15]"),
        (
            "blocks of oblongs",
            changed(shuffle(&[0, 1, 4, 2, 5, 3], &[1, 2, 12, 15]), |file| {
                file.graph().initializer[2] = Tensor::ints("s", &[1, 1, 9, 2, 4, 5]);
            }),
            "attribute perm: only that of a pixel",
        ),
        (
            "a reader of transposed blocks",
            changed(shuffle(&[0, 1, 4, 2, 5, 3], &[1, 2, 12, 15]), |file| {
                file.graph().node[3].op_type = "Relu".into()
            }),
            "input e: transposed blocks, which only a Reshape reads",
        ),
        (
            "a later reader of blocks",
            shuffle(&[0, 1, 4, 2, 5, 3], &[1, 2, 12, 15]).node("Relu", &["d"], "z", &[]),
            "input d: no node before this one writes it",
        ),
        ("axis twice", shaped("Squeeze", &[0, -4]), "axes [0, 0] name one twice"),
        ("axis of more", shaped("Squeeze", &[1]), "axis 1 of [1, 4, 6, 6] is not 1"),
        ("axis behind all", shaped("Unsqueeze", &[5]), "there is no axis 5 of [1, 4, 6, 6]"),
        ("axis far behind", shaped("Unsqueeze", &[6]), "attribute axis: 6 of 5 axes"),
    ]
}

fn tensors() -> Vec<Row> {
    let tensor = |change: fn(&mut Tensor)| {
        let mut tensor = Tensor::float("w", &[4], &[0.5; 4]);
        change(&mut tensor);
        with(of_images("Relu", &[]), tensor)
    };
    let input = |change: fn(&mut TensorType)| {
        changed(of_images("Relu", &[]), |file| {
            let of = file.graph().input[0].r#type.as_mut().and_then(|of| of.tensor_type.as_mut());
            change(of.expect("it is a tensor"));
        })
    };
    let extent = |of: &mut TensorType| {
        of.shape.as_mut().expect("it has one").dim[2].extent = Some(Extent::Value(-3));
    };
    let double = |tensor: &mut Tensor| tensor.data_type = DataType::Double.into();
    let long = |tensor: &mut Tensor| {
        (tensor.data_type, tensor.int64_data) = (DataType::Int64.into(), vec![1, 2]);
        tensor.raw_data.clear();
    };
    vec![
        (
            "other file",
            tensor(|tensor| tensor.data_location = 1),
            "tensor w: its elements lie in another file",
        ),
        ("extent", tensor(|tensor| tensor.dims = vec![-1]), "tensor w: extents of [-1]"),
        ("no elements", tensor(|tensor| tensor.dims = vec![0]), "extents of [0] are empty"),
        ("twice", tensor(|tensor| tensor.float_data = vec![0.5]), "16 bytes are no elements of 4 bytes each"),
        (
            "type",
            tensor(double),
            "1 axes of type Double; weights are FLOAT here: export the model in float32",
        ),
        ("unknown type", tensor(|tensor| tensor.data_type = 99), "of type 99"),
        ("whole numbers", tensor(long), "tensor w: 2 elements for 4"),
        (
            "input's type",
            input(|of| of.elem_type = DataType::Float16.into()),
            "tensor x: the model's input is not",
        ),
        (
            "input's shape",
            input(|of| of.shape = None),
            "the model's input has no shape; export it with fixed",
        ),
        ("input's extent", input(extent), "tensor x: axis 2 is -3"),
        (
            "no tensor",
            changed(of_images("Relu", &[]), |file| file.graph().input[0].r#type = None),
            "tensor x: the model's input is no tensor",
        ),
        (
            "nothing written",
            changed(of_images("Relu", &[]), |file| file.graph().node[0].output.clear()),
            "the y (Relu): it writes nothing",
        ),
        (
            "nodes",
            changed(images(), |file| file.graph().node = vec![Node::default(); 20_001]),
            "it has 20001 nodes, more than 20000",
        ),
        ("no input", changed(images(), |file| file.graph().input.clear()), "tensor y: the model's output"),
    ]
}

#[test]
fn what_the_importer_refuses_is_named_with_its_node_and_its_numbers() {
    for (what, file, words) in [windows(), elements(), products(), places(), tensors()].concat() {
        let said = import(&file.bytes("y"), 1).expect_err(what).to_string();
        assert!(said.contains(words), "{what}: {said}");
        assert_eq!(said.lines().count(), 1, "{what}: {said}");
    }
    let none = changed(of_images("Relu", &[]), |file| file.graph().output.clear());
    let said =
        import(&prost::Message::encode_to_vec(&none.model), 1).expect_err("it has no output").to_string();
    assert!(said.contains("1 inputs, 0 outputs"), "{said}");
}
