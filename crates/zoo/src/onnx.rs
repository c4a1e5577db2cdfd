//! The messages of an ONNX file, as far as models for inference use them.
//!
//! Field numbers and types are those of `onnx.proto3` of the ONNX project, IR version 8. Left out: training,
//! functions, sparse tensors, sequences, maps, quantisation annotations, shapes between nodes. Unknown fields
//! of a file are skipped, as protocol buffers define it.

#![allow(missing_docs, reason = "names are those of onnx.proto3, which describes them")]

use prost::{Message, Oneof};

/// A whole file.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSet>,
}

/// A version of the operators of a domain.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSet {
    /// Empty for ONNX's own operators.
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// Nodes in an order in which each follows those that it reads from.
#[derive(Clone, PartialEq, Message)]
pub struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<Tensor>,
    /// Inputs; older files list the initializers here as well.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
}

/// One operator.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// Names of the values that it reads; an empty name is an optional input that is not given.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The node's name, for messages; may be empty.
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// A named constant of an operator. `kind` says which field counts.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, tag = "2")]
    pub f: f32,
    #[prost(int64, tag = "3")]
    pub i: i64,
    #[prost(bytes = "vec", tag = "4")]
    pub s: Vec<u8>,
    #[prost(message, optional, tag = "5")]
    pub t: Option<Tensor>,
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    #[prost(enumeration = "AttributeKind", tag = "20")]
    pub kind: i32,
}

/// Types of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum AttributeKind {
    Undefined = 0,
    Float = 1,
    Int = 2,
    String = 3,
    Tensor = 4,
    Ints = 7,
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    #[prost(enumeration = "DataType", tag = "2")]
    pub data_type: i32,
    /// Elements of type `Float`, if `raw_data` is empty.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of type `Int64`, if `raw_data` is empty.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements as little-endian bytes, the last axis fastest.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
    /// Where the elements are: 0 here, 1 in another file.
    #[prost(int32, tag = "14")]
    pub data_location: i32,
}

/// Types of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum DataType {
    Undefined = 0,
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
}

/// A value's name, type and shape.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<Type>,
}

/// A value's type; only tensors are read.
#[derive(Clone, PartialEq, Message)]
pub struct Type {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

/// A tensor's type and shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(enumeration = "DataType", tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
}

/// A tensor's shape.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// The extent of an axis.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(oneof = "Extent", tags = "1, 2")]
    pub extent: Option<Extent>,
}

/// A number, or the name of a number that is not fixed.
#[derive(Clone, PartialEq, Oneof)]
pub enum Extent {
    #[prost(int64, tag = "1")]
    Value(i64),
    #[prost(string, tag = "2")]
    Parameter(String),
}

impl ValueInfo {
    /// A tensor of `f32` with a fixed shape.
    pub fn float(name: &str, shape: &[usize]) -> ValueInfo {
        let dim = |&extent: &usize| Dimension { extent: Some(Extent::Value(extent as i64)) };
        let shape = Shape { dim: shape.iter().map(dim).collect() };
        let tensor = TensorType { elem_type: DataType::Float.into(), shape: Some(shape) };
        ValueInfo { name: name.to_owned(), r#type: Some(Type { tensor_type: Some(tensor) }) }
    }
}

impl Tensor {
    /// A tensor of `f32`.
    pub fn float(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
        Tensor {
            dims: shape.iter().map(|&extent| extent as i64).collect(),
            data_type: DataType::Float.into(),
            name: name.to_owned(),
            raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ..Tensor::default()
        }
    }

    /// A tensor of `i64` with one axis, as shapes are.
    pub fn ints(name: &str, values: &[i64]) -> Tensor {
        Tensor {
            dims: vec![values.len() as i64],
            data_type: DataType::Int64.into(),
            name: name.to_owned(),
            raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ..Tensor::default()
        }
    }
}

impl Attribute {
    /// An attribute that is a whole number.
    pub fn int(name: &str, i: i64) -> Attribute {
        Attribute { name: name.to_owned(), i, kind: AttributeKind::Int.into(), ..Attribute::default() }
    }

    /// An attribute that is a row of whole numbers.
    pub fn ints(name: &str, ints: &[i64]) -> Attribute {
        let kind = AttributeKind::Ints.into();
        Attribute { name: name.to_owned(), ints: ints.to_vec(), kind, ..Attribute::default() }
    }

    /// An attribute that is a number.
    pub fn float(name: &str, f: f32) -> Attribute {
        Attribute { name: name.to_owned(), f, kind: AttributeKind::Float.into(), ..Attribute::default() }
    }

    /// An attribute that is text.
    pub fn string(name: &str, s: &str) -> Attribute {
        let kind = AttributeKind::String.into();
        Attribute { name: name.to_owned(), s: s.as_bytes().to_vec(), kind, ..Attribute::default() }
    }
}
