//! Tests that need a toolkit (`toolchain`), tests that also need a GPU (`gpu_*`); each says what it lacks.
//!
//! Runs without Rust on a machine with a GPU: `REQUIRE=gpu,toolkit ./gpu-HASH --test-threads=1`.

#![allow(clippy::unwrap_used)]

mod bench;
mod context;
mod device;
mod driver;
mod nvml;
mod ordinary;
mod probe;
mod process;
mod stand_in;
mod toolchain;
