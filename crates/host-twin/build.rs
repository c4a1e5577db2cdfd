//! Compiles the entry into a kernel; nothing but a C compiler is needed.

fn main() {
    println!("cargo:rerun-if-changed=src/jump.c");
    let mut build = cc::Build::new();
    build.file("src/jump.c").std("gnu11").warnings(true).extra_warnings(true).compile("host_twin_entry");
}
