//! The client as users start it, against a mock server that can send wrong answers, and the real one.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod answers;
mod bad_input;
mod faults;
mod neighbours;
mod nic_faults;
mod played;
mod server;
mod server_ends;
