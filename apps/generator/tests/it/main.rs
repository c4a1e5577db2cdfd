//! The generator as its users start it: two processes, exit codes, JSON lines, signals.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod bench_post_gpu;
mod ends;
mod judgement;
mod kernels;
mod signals;
mod transfer;
mod wrappers;
