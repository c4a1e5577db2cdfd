//! The model zoo: what the models are, not how they run.
//!
//! A [`Manifest`] says everything about a model that is no weight: shapes, types, pre-processing, counts,
//! hashes. [`Architecture`] writes its ONNX file ([`onnx`]) with weights from [`seed`],
//! [`count()`](count::count) says how many parameters and multiply-accumulates it has, [`Store`] keeps the
//! file, [`preprocess`] makes its input of an image, and [`postprocess`] says what its output means.
//! [`onnx_runtime`] finds the library that runs such files elsewhere. Opens no network connection:
//! `cargo xtask zoo fetch` downloads. Knows no engine.

#![forbid(unsafe_code)]

mod architecture;
pub mod count;
mod digest;
mod manifest;
pub mod onnx;
pub mod onnx_runtime;
pub mod postprocess;
pub mod preprocess;
pub mod seed;
mod store;

pub use architecture::Architecture;
pub use digest::Digest;
pub use manifest::{Counts, ElementType, Manifest, Seeded, Tensor, UnknownModel, Verified, Weights, folder};
pub use store::{Partial, Store, StoreError};
