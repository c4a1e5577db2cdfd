//! Tests that need a toolkit (`toolchain`), and tests that need a GPU as well (`gpu_*`); each says aloud what it lacks.
//!
//! On a machine with a GPU and no Rust this program runs by itself: `REQUIRE=gpu,toolkit ./gpu-HASH --test-threads=1`.

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
