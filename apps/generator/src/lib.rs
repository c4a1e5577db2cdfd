//! The generator's kernels and their launches: senders, a receiver, and the timing of a GPU's posts.
//!
//! The program itself is `src/main.rs`. Knows nothing of which NIC lies below (INV-4).

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod kernel;
