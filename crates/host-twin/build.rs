//! Compiles the words that tell a lane its place, and the tests' kernels; needs nothing but compilers.

use host_twin_build::Kernels;

fn main() {
    println!("cargo:rerun-if-changed=src/here.c");
    let mut build = cc::Build::new();
    build.file("src/here.c").std("gnu11").warnings(true).extra_warnings(true).compile("host_twin_here");
    Kernels::new("kernels").folder("tests/kernels").compile();
}
