//! Checks and times the zoo's models: layer by layer against ONNX Runtime, alone and several side by side.
//! Runs one for a user's image.
//!
//! `README.md` describes options, exit codes and JSON lines. Bad input ends with one line and exit code 2, a
//! result that is wrong with 1. Knows no NIC and no request.

#![forbid(unsafe_code)]
// They panic on a closed pipe: `say!` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// A line on standard output. A reader that closes the pipe is no error.
macro_rules! say {
    ($($text:tt)*) => {{
        use ::std::io::Write;
        let _ = ::std::io::stdout().write_all(format!("{}\n", format_args!($($text)*)).as_bytes());
    }};
}

/// The same on standard error.
macro_rules! complain {
    ($($text:tt)*) => {{
        use ::std::io::Write;
        let _ = ::std::io::stderr().write_all(format!("{}\n", format_args!($($text)*)).as_bytes());
    }};
}

mod answer;
mod check;
mod energy;
mod engine;
mod format;
mod image;
mod layers;
mod model;
mod overlap;
mod ppm;
mod reference;
mod report;
mod run;
mod run_options;
mod single_run;
mod start;
mod subject;
mod together;
mod turns;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Exit code: a result is wrong.
const FAILED: u8 = 1;
/// Exit code: something in the request cannot be.
const BAD_INPUT: u8 = 2;

/// Checks and times models of the zoo on each engine.
#[derive(Parser)]
#[command(name = "profiler")]
struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Compare a model with ONNX Runtime, layer by layer; exit status 1 if one is beyond the tolerance.
    Check(check::Options),
    /// Time a model, alone or several instances side by side, and compare their outputs with those of a run
    /// alone.
    Run(run_options::Options),
    /// Time each step of a model.
    Layers(layers::Options),
    /// Say what a model sees in an image: likeliest classes, or an image. Useless with usual seeded weights.
    Answer(answer::Options),
    /// Write what an engine computes for test inputs to a file, which clients of a server compare with.
    Reference(reference::Options),
}

fn main() -> ExitCode {
    let done = match manual::asked(Options::command(), std::env::args_os()) {
        Some(written) => written.map(|_| true).map_err(anyhow::Error::from),
        None => run(Options::parse().action),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) => {
            let line = format!("{error:#}").lines().map(str::trim).collect::<Vec<_>>().join(" ");
            complain!("profiler: {line}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn run(action: Action) -> anyhow::Result<bool> {
    match action {
        Action::Check(options) => check::run(&options),
        Action::Run(options) => run::run(&options),
        Action::Layers(options) => layers::run(&options),
        Action::Answer(options) => answer::run(&options),
        Action::Reference(options) => reference::run(&options),
    }
}
