//! Compiles the kernels for the host twin.

fn main() {
    let kernels = host_twin_build::Kernels::new("kernels").include("../../crates/rdma-shim/include");
    let kernels = kernels.include("../../crates/gpu/kernels");
    kernels.folder("kernels").compile();
}
