//! Models as lists of kernels: imports an ONNX file, plans its execution once, and runs it.
//!
//! [`import`](import::import) reads a file into a [`Graph`](graph::Graph), whose shapes are known and whose
//! constants are read. A [`Plan`](plan::Plan) is what is launched, in order, with a place in one arena for
//! each value. Knows no request and no NIC.

pub mod engine;
pub mod evaluate;
pub mod graph;
pub mod import;
pub mod launch;
pub mod layers;
pub mod plan;
mod shape;
