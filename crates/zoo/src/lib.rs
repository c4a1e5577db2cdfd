//! The model zoo: what the models are, not how they run.
//!
//! [`onnx`] has the messages of an ONNX file.
//! Opens no network connection: `cargo xtask zoo fetch` downloads. Knows no engine.

#![forbid(unsafe_code)]

pub mod onnx;
