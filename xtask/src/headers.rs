//! `cargo xtask headers`: writes the generated files again, or with `--check` says which differ from their
//! source (INV-14).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::process::said;
use crate::refused::refused;
use crate::workspace::{names_in, root};

#[derive(Args)]
pub struct Options {
    /// Write nothing; fail when a file differs from what its source gives.
    #[arg(long)]
    check: bool,
    /// Start the generators in this folder instead of building them.
    #[arg(long, value_name = "DIR", hide = true)]
    built: Option<PathBuf>,
}

/// Programs of the workspace that write files, or compare them: package, program, and what it makes.
const GENERATORS: [[&str; 3]; 2] = [
    ["rdma-shim", "headers", "the shim's constants (crates/rdma-shim/include/mlx5_layout.h)"],
    [BINDINGS, BINDINGS, "the bindings of rdma-core (crates/verbs/src/sys/generated)"],
];
/// The generator that needs more than Rust.
const BINDINGS: &str = "verbs-generate";

const INSTALL: &str = "Debian, Ubuntu: apt-get install libclang-dev libibverbs-dev pkg-config";

/// Runs every generator; all of them, even when one fails, so that one run shows everything.
pub fn run(options: &Options) -> Result<()> {
    let (mut stale, mut skipped) = (Vec::new(), 0);
    if !slots_header(options.check)? {
        stale.push(slots::header::PATH);
    }
    for [package, program, makes] in GENERATORS {
        if let Some(lacking) = (program == BINDINGS).then(libclang_or_headers).flatten() {
            if !options.check {
                return Err(refused(format!("{makes} cannot be generated: {lacking}; {INSTALL}")));
            }
            // verbs-ctest compares the committed text with the headers in any case.
            say!("SKIP headers: {makes}: {lacking}; {INSTALL}");
            skipped += 1;
            continue;
        }
        let mut command = match &options.built {
            Some(folder) => Command::new(folder.join(program)),
            None => {
                let mut cargo = Command::new("cargo");
                cargo.args(["run", "--locked", "-p", package, "--bin", program, "--"]);
                cargo
            }
        };
        command.args(options.check.then_some("--check")).current_dir(root());
        let status = command.status();
        let status = status.with_context(|| format!("starting the generator of {makes}"))?;
        stale.extend((!status.success()).then_some(makes));
    }
    let what = stale.join(", ");
    ensure!(
        stale.is_empty(),
        "differ from their source, or could not be generated: {what}; run `cargo xtask headers`"
    );
    let done = if options.check { "all equal" } else { "all written" };
    say!("headers: {} generators, {done}", 1 + GENERATORS.len() - skipped);
    Ok(())
}

/// Writes the layout of slots, or compares it. `false`: it differs.
fn slots_header(check: bool) -> Result<bool> {
    let (path, text) = (root().join(slots::header::PATH), slots::header::text());
    if !check {
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        return Ok(true);
    }
    Ok(fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))? == text)
}

/// What the bindings' generator lacks on this machine.
fn libclang_or_headers() -> Option<&'static str> {
    if said(Command::new("pkg-config").args(["--exists", "libibverbs"])).is_err() {
        return Some("pkg-config finds no libibverbs");
    }
    let named = std::env::var_os("LIBCLANG_PATH").is_some();
    (!named && !has_libclang(Path::new("/usr/lib"))).then_some("libclang is not installed")
}

/// Whether `lib` holds libclang where Debian and Ubuntu put it: `llvm-N/lib`, or the architecture's folder.
fn has_libclang(lib: &Path) -> bool {
    let mut folders: Vec<PathBuf> = names_in(lib)
        .iter()
        .filter(|name| name.starts_with("llvm-"))
        .map(|name| lib.join(name).join("lib"))
        .collect();
    folders.push(lib.join("x86_64-linux-gnu"));
    let is_libclang = |name: &String| {
        let rest = name.strip_prefix("libclang").unwrap_or_default();
        // libclang-cpp is another library.
        rest.starts_with(".so") || rest.starts_with('-') && !rest.starts_with("-cpp") && rest.contains(".so")
    };
    folders.iter().any(|folder| names_in(folder).iter().any(is_libclang))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libclang_is_found_where_distributions_put_it() {
        let lib = std::env::temp_dir().join(format!("xtask-headers-{}", std::process::id()));
        for (file, found) in [
            ("llvm-14/lib/libclang.so.1", true),
            ("llvm-14/lib/libclang-cpp.so.14", false),
            ("x86_64-linux-gnu/libclang-18.so.18", true),
            ("x86_64-linux-gnu/libclan.so", false),
            ("elsewhere/libclang.so", false),
        ] {
            let _ = fs::remove_dir_all(&lib);
            let path = lib.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
            assert_eq!(has_libclang(&lib), found, "{file}");
        }
    }
}
