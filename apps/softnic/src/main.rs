//! `softnic run -- COMMAND…` becomes any dynamically linked program, on a software mlx5 NIC. `softnic ctl …`
//! talks to the NIC of a running program ([`ctl`]); `softnic replay` and `softnic trace` read its recording.
//!
//! `run` only checks (configuration, program, library), sets the environment and calls `exec`. The
//! interposing library, found beside it, does the rest inside the program and its children.

mod ctl;
mod launch;
mod program;
mod replay;
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    match launch::run(std::env::args_os()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Misuse is one line, whatever layers of context it came through.
            let line = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("softnic: {line}");
            ExitCode::from(replay::status(&error))
        }
    }
}
