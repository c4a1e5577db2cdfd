//! The smallest complete program: a resident GPU kernel answers each message that its queue receives. Another
//! end asks it, checks each answer, and reports the round trip.
//!
//! `README.md` describes options, exit codes and JSON lines. Bad input ends with one line and exit code 2.
//! Knows nothing of which NIC lies below (INV-4).

// They panic on a closed pipe: `say!` and `complain!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate cli;

mod answers;
mod asking;
mod cpu;
mod end;
mod loopback;
mod modes;
mod options;
mod outcome;
mod report;
mod service;

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::bail;
use cli::{INTERRUPTED, check_address, stop_flag};

use crate::options::{OPTION_SCOPES, Options};

fn main() -> ExitCode {
    cli::main("doorbell-echo", &OPTION_SCOPES, |options: Options| {
        let stop = stop_flag()?;
        let code = match (&options.listen, &options.connect) {
            (Some(address), _) => check_address("--listen", address)
                .and_then(|()| options.check_service())
                .and_then(|()| service::run(&options, address, &stop)),
            (None, Some(address)) => check_address("--connect", address)
                .and_then(|()| options.check_asking())
                .and_then(|()| match options.mode {
                    Some(mode) => modes::client::run(&options, mode, address, &stop),
                    None => asking::run(&options, address, &stop),
                }),
            (None, None) if options.loopback => options
                .check_service()
                .and_then(|()| options.check_asking())
                .and_then(|()| loopback::run(&options, &stop)),
            (None, None) => {
                bail!(
                    "give --listen ADDRESS:PORT to answer, --connect HOST:PORT to ask, or --loopback for both here (--help tells more)"
                )
            }
        };
        match code {
            // Whatever the error is called, the signal is why.
            Err(_) if stop.load(Ordering::Relaxed) => Ok(INTERRUPTED),
            code => code,
        }
    })
}
