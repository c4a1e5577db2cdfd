//! `softnic run -- COMMAND…` becomes any dynamically linked program, on a software mlx5 NIC. `softnic ctl …`
//! talks to the NIC of a running program ([`ctl`]); `softnic replay` and `softnic trace` read its recording.
//!
//! All that `run` does is check (configuration, program, library), set the environment and `exec`. The interposing library,
//! which it finds beside itself, does the rest inside the program and its children.

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
