//! Compiles the kernels for the host twin.

fn main() {
    host_twin_build::Kernels::new("kernels").folder("kernels").compile();
}
