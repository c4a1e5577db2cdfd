//! Sends requests to an inference server, verifies each answer, and reports latencies.
//!
//! `README.md` describes options, exit codes and JSON lines. Bad input ends with one line and exit code 2.
//! Knows no engine, and nothing of which NIC lies below (INV-4).

#![forbid(unsafe_code)]
// They panic on a closed pipe: `say!` and `complain!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate cli;

mod asking;
mod backoff;
mod load;
mod options;
mod report;
mod verify;

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use cli::{INTERRUPTED, stop_flag};

use crate::options::{OPTION_SCOPES, Options};

fn main() -> ExitCode {
    cli::main("doorbell-client", &OPTION_SCOPES, |options: Options| {
        let stop = stop_flag()?;
        match options.check().and_then(|()| asking::run(&options, &stop)) {
            // Whatever the error is called, the signal is why.
            Err(_) if stop.load(Ordering::Relaxed) => Ok(INTERRUPTED),
            code => code,
        }
    })
}
