//! Compiles in what only the build knows: the compiler's version and the profile.
//!
//! The git revision is left out on purpose: it changes with every commit. A command that records a result
//! asks git then (`revision.rs`), so that a commit does not rebuild the workspace.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    println!("cargo:rustc-env=MEASURE_RUSTC={}", version.trim());
    println!("cargo:rustc-env=MEASURE_PROFILE={}", std::env::var("PROFILE").unwrap_or_default());
}
