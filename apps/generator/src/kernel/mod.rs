//! The kernels of `kernels/`, each with a safe wrapper that holds all the kernel touches until it has ended.
//!
//! The build script compiles them for the host twin; a GPU's compiler takes the same texts on first use.

#![allow(non_camel_case_types, reason = "names are C's")]

pub mod generate;
pub mod post_bench;
pub mod receive;
#[cfg(test)]
mod tests;

use rdma_shim::kernel::Source;

host_twin::include_kernels!("kernels");

/// What the kernels include beside the shim's headers.
const HEADERS: &[(&str, &str)] = &[
    ("generate.h", include_str!("../../kernels/generate.h")),
    ("post_original.h", include_str!("../../kernels/post_original.h")),
];

const fn source(name: &'static str, text: &'static str) -> Source {
    Source { name, text, headers: HEADERS, twin: &KERNELS }
}
