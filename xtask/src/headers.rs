//! `cargo xtask headers`: writes the generated files again, or with `--check` says which differ from their source
//! (INV-14).

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::workspace::root;

/// Options of `headers`.
#[derive(Args)]
pub struct Options {
    /// Write nothing; fail when a file differs from what its source gives.
    #[arg(long)]
    check: bool,
}

/// One generator: a program of the workspace that writes files, and with `--check` compares them.
struct Generator {
    /// What it makes, for the messages.
    makes: &'static str,
    /// Arguments of `cargo run`.
    command: &'static [&'static str],
}

const GENERATORS: &[Generator] = &[
    Generator {
        makes: "the shim's constants (crates/rdma-shim/include/mlx5_layout.h)",
        command: &["-p", "rdma-shim", "--bin", "headers"],
    },
    Generator {
        makes: "the bindings of rdma-core (crates/verbs/src/sys/generated)",
        command: &["-p", "verbs-generate"],
    },
];

/// Runs every generator; all of them, even when one fails, so that one run shows everything.
pub fn run(options: &Options) -> Result<()> {
    let mut stale = Vec::new();
    for generator in GENERATORS {
        let mut command = Command::new("cargo");
        command.args(["run", "--quiet", "--locked"]).args(generator.command).current_dir(root());
        if options.check {
            command.args(["--", "--check"]);
        }
        if !command
            .status()
            .with_context(|| format!("starting the generator of {}", generator.makes))?
            .success()
        {
            stale.push(generator.makes);
        }
    }
    if !stale.is_empty() {
        bail!(
            "differ from their source, or could not be generated: {}; run `cargo xtask headers`",
            stale.join(", ")
        );
    }
    println!(
        "headers: {} generators, {}",
        GENERATORS.len(),
        if options.check { "all equal" } else { "all written" }
    );
    Ok(())
}
