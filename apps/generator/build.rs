//! Compiles the kernels for the host twin, and what two processes do without a NIC.

fn main() {
    println!("cargo:rerun-if-changed=src/baseline/processes.c");
    cc::Build::new()
        .file("src/baseline/processes.c")
        .std("c11")
        // The routines are measured: an unoptimised build would measure the compiler.
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-pedantic")
        .compile("generator_processes");
    let kernels = host_twin_build::Kernels::new("kernels").include("../../crates/rdma-shim/include");
    kernels.folder("kernels").compile();
}
