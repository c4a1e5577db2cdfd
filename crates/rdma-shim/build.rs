//! Compiles the C routines for the host; nothing but a C compiler is needed (no rdma-core headers, INV-8).

fn main() {
    for file in [
        "include/doorbell.h",
        "include/order.h",
        "include/order_host.h",
        "include/mlx5_layout.h",
        "src/shim.c",
        "src/baseline.c",
    ] {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/shim.c")
        .file("src/baseline.c")
        .include("include")
        .std("c11")
        // The routines are measured: an unoptimised build would measure the compiler.
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .flag("-pedantic")
        .compile("rdma_shim");
}
