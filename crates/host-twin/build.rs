//! Compiles the entry into a kernel, and the kernels of the tests; nothing but compilers is needed.

use host_twin_build::Kernels;

fn main() {
    println!("cargo:rerun-if-changed=src/jump.c");
    let mut build = cc::Build::new();
    build.file("src/jump.c").std("gnu11").warnings(true).extra_warnings(true).compile("host_twin_entry");
    Kernels::new("kernels").folder("tests/kernels").compile();
}
