//! The model zoo: what the models are, not how they run.
//!
//! [`onnx`] has the messages of an ONNX file, [`Architecture`] writes such files with weights from [`seed`], and [`count`] says
//! how many parameters and multiply-accumulates they have.
//! Opens no network connection: `cargo xtask zoo fetch` downloads. Knows no engine.

#![forbid(unsafe_code)]

mod architecture;
pub mod count;
pub mod onnx;
pub mod seed;

pub use architecture::Architecture;
