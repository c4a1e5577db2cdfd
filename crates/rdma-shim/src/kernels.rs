//! The kernels of `kernels/` for the host twin, as the build script compiled them.

host_twin::include_kernels!("kernels");
host_twin::include_kernels!("planted");
