//! The client as its users start it, against a server that the tests play: it answers, and it can be wrong.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod answers;
mod bad_input;
mod faults;
mod played;
