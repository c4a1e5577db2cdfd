//! `cargo xtask`: every project command, one file each; this one is the list.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Prints a line. Who reads it may go away (`| head`): that is no error of ours, and no reason to panic.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod bench_nic;
mod bundle;
mod doctor;
mod figure;
mod headers;
mod measured;
mod process;
mod refused;
mod report;
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
    /// Measure and draw a figure of the paper, and judge its claims.
    Figure {
        /// Number of the figure in the paper.
        number: u32,
        #[command(flatten)]
        options: figure::Options,
    },
    /// Figure 4: throughput against payload size.
    BenchThroughput(figure::Options),
    /// Figure 5: time to post one request.
    BenchPost(figure::Options),
    /// How fast the software NIC is, against what two processes can do without one.
    BenchNic(bench_nic::Options),
    /// A folder of programs for a machine without cargo, git and network.
    Bundle(bundle::Options),
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
        Command::Figure { number, options } => figure::run(number, &options),
        Command::BenchThroughput(options) => figure::run(4, &options),
        Command::BenchPost(options) => figure::run(5, &options),
        Command::BenchNic(options) => bench_nic::run(&options),
        Command::Bundle(options) => bundle::run(&options),
    }
}
