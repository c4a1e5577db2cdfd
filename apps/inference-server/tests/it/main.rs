//! The server as its users start it: right answers, bad clients, clients that go, and its end.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod answers;
mod bad_input;
mod ends;
mod gpu;
mod isolation;
mod limits;
mod refusals;
mod rogue;
mod served;
mod trace;
