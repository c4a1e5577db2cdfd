//! Commands of xtask as users start them, where a test needs the program itself.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod ansible;
mod bed;
mod bundle;
mod hosts;
mod report;
mod testbed;
mod tune;
