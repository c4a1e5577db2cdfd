//! Wire format and engine against packets that a kernel sent: `crates/roce/tests/data`, described there.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod captures;
mod connection;
mod conversation;
mod dissection;
mod kernel_host;
mod manager;
mod mutants;
mod payloads;
mod pcap;
mod replay;
