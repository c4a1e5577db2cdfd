//! Ordinary CUDA kernels on the twin beside plain Rust, and the errors of kernels that break rules.

#![allow(clippy::unwrap_used, reason = "tests")]

mod misuse;
mod ordinary;
mod reference;

use host_twin::{Arguments, Launch, LaunchReport, TwinError, run};

host_twin::include_kernels!("kernels");

fn compiler() -> Result<(), String> {
    KERNELS.find("places").map(drop).map_err(|error| error.to_string())
}

/// Runs a kernel whose pointers lead into vectors that the caller holds until this returns.
fn run_on(kernel: &str, launch: &Launch, arguments: Arguments) -> Result<LaunchReport, TwinError> {
    // SAFETY: as said above, and each test gives what the kernel's source asks for.
    unsafe { run(KERNELS.find(kernel).unwrap(), launch, arguments) }
}
