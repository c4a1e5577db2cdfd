//! `softnic run -- COMMAND…`: starts any dynamically linked program on a software mlx5 NIC, and becomes it.
//! `softnic ctl …` talks to the NIC of a program that runs ([`ctl`]).
//!
//! All that `run` does is check (configuration, program, library), set the environment and `exec`. The interposing library,
//! which it finds beside itself, does the rest inside the program and its children.

mod ctl;
mod launch;
mod program;

use std::process::ExitCode;

fn main() -> ExitCode {
    match launch::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Misuse is one line, whatever layers of context it came through.
            let line = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("softnic: {line}");
            ExitCode::from(2)
        }
    }
}
