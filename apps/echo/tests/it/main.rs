//! Echo as its users start it: two processes, exit codes, JSON lines, signals.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod answers;
mod bad_input;
mod ends;
mod modes;
mod service;
mod signals;
