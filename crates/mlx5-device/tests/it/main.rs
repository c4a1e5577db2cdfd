//! Two devices in one test: memory, registers and the wire between them are values, and time is a number.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod changed;
mod commands;
mod doorbells;
mod due;
mod errors;
mod fabric;
mod faults;
mod impairment;
mod limits;
mod machine;
mod ports;
mod ports_down;
mod queues;
mod reasons;
mod replay;
mod shared_receive;
mod windows;
