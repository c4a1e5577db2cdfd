//! The bindings of `verbs` and the layouts of `mlx5-layout` against the headers of the installed rdma-core.
//!
//! `build.rs` makes the C side. On a system without the headers each test skips, and says so.

#[cfg(headers)]
mod bindings;
#[cfg(headers)]
mod layouts;
#[cfg(headers)]
mod sys;

/// On a system without headers there is nothing to compare with: one SKIP line for each comparison.
#[cfg(not(headers))]
mod no_headers {
    #[test]
    fn bindings_are_the_headers() {
        measure::skip!(headers, "the headers of rdma-core 44 or newer (apt-get install libibverbs-dev)");
    }

    #[test]
    fn layouts_are_the_headers() {
        measure::skip!(headers, "the headers of rdma-core 44 or newer (apt-get install libibverbs-dev)");
    }
}
