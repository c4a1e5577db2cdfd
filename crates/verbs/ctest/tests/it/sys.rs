//! The raw floor of `verbs`, compiled once more for its private parts.
#![allow(dead_code, unused_imports, missing_docs)]
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]

#[rustfmt::skip]
#[path = "../../../src/sys/generated/ibverbs.rs"]
pub mod ibverbs;
#[path = "../../../src/sys/inline.rs"]
pub mod inline;
#[rustfmt::skip]
#[path = "../../../src/sys/generated/mlx5.rs"]
pub mod mlx5;
