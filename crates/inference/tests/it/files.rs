//! ONNX files made for tests: a graph of a few nodes, with weights from a small generator.

use inference::layers::Random;
use prost::Message;
use zoo::onnx::{Attribute, Graph, Model, Node, OperatorSet, Tensor, ValueInfo};

/// A file in the making. Every node reads and writes by name.
#[derive(Clone)]
pub struct File {
    pub model: Model,
    random: Random,
}

impl File {
    /// With one input of that shape, called `x`.
    pub fn new(shape: &[usize]) -> File {
        let graph =
            Graph { name: "test".to_owned(), input: vec![ValueInfo::float("x", shape)], ..Graph::default() };
        let opset_import = vec![OperatorSet { domain: String::new(), version: 17 }];
        let model = Model { ir_version: 8, graph: Some(graph), opset_import, ..Model::default() };
        File { model, random: Random(1) }
    }

    pub fn graph(&mut self) -> &mut Graph {
        self.model.graph.as_mut().expect("every test's file has one")
    }

    /// A node that writes what it is called.
    pub fn node(mut self, op: &str, inputs: &[&str], output: &str, attributes: &[Attribute]) -> File {
        self.graph().node.push(Node {
            op_type: op.to_owned(),
            name: format!("the {output}"),
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            attribute: attributes.to_vec(),
            ..Node::default()
        });
        self
    }

    /// Weights of that shape between -1 and 1.
    pub fn weights(mut self, name: &str, shape: &[usize]) -> File {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| self.random.next()).collect();
        self.graph().initializer.push(Tensor::float(name, shape, &values));
        self
    }

    /// Weights of that shape between a half and one and a half, as variances are.
    pub fn positive(mut self, name: &str, shape: &[usize]) -> File {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| 1.0 + self.random.next() / 2.0).collect();
        self.graph().initializer.push(Tensor::float(name, shape, &values));
        self
    }

    pub fn ints(mut self, name: &str, values: &[i64]) -> File {
        self.graph().initializer.push(Tensor::ints(name, values));
        self
    }

    /// The file's bytes, with this output; its shape is the importer's business.
    pub fn bytes(mut self, output: &str) -> Vec<u8> {
        self.graph().output.push(ValueInfo { name: output.to_owned(), r#type: None });
        self.model.encode_to_vec()
    }
}
