//! `cargo xtask`: every project command, one file each; this one is the list.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod doctor;
mod headers;
mod process;
mod refused;
mod setup;
mod test;
mod tidy;
mod workspace;

/// Every project command.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What this machine has and lacks.
    Doctor,
    /// Install what a command needs.
    Setup(setup::Options),
    /// Set-up, tidy, fmt, clippy, all tests, dry runs of the figures.
    Test(test::Options),
    /// Textual checks of the tree.
    Tidy(tidy::Options),
    /// Write the generated files again, or check them.
    Headers(headers::Options),
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            // What the user can mend is told apart from what went wrong.
            if error.is::<refused::Refused>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Doctor => doctor::run(),
        Command::Setup(options) => setup::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Tidy(options) => tidy::run(&options),
        Command::Headers(options) => headers::run(&options),
    }
}
