//! Serves models over RDMA: clients write requests into the server's slots, it writes answers into theirs.
//!
//! `README.md` describes options, exit codes and JSON lines. Bad input ends with one line and exit code 2.
//! Knows nothing of which NIC lies below (INV-4).

#![forbid(unsafe_code)]
// They panic on a closed pipe: `say!` and `complain!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate cli;

mod gpu;
mod model;
mod offload;
mod options;
mod report;
mod serve;
mod session;

use std::process::ExitCode;

use cli::{check_address, stop_flag};
use pipeline::Processor;

use crate::options::{OPTION_SCOPES, Options};

fn main() -> ExitCode {
    cli::main("inference-server", &OPTION_SCOPES, |options: Options| {
        check_address("--listen", &options.listen)?;
        options.check()?;
        match options.mode.waits() {
            Processor::Gpu => gpu::run(&options),
            Processor::Cpu => serve::run(&options, &*stop_flag()?),
        }
    })
}
