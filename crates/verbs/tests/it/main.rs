//! Verbs on the NIC of this host: life of objects, messages, errors, queues taken over.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

mod connection;
mod direct;
mod messages;
mod objects;
mod pair;
mod windows;
