//! The generator's kernels, and the Rust that launches them: senders, a receiver, and what times a GPU's posts.
//!
//! The program itself is `src/main.rs`. Knows nothing of which NIC lies below (INV-4).

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod kernel;
