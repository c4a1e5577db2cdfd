//! How many streams CUDA runs side by side, which it reads before a context is made.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::result::{Error, Result};

/// As many as CUDA has at most.
const MOST: u32 = 32;
const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// `CUDA_DEVICE_MAX_CONNECTIONS`, and what to say where streams may wait for one another. If it is unset, the
/// program starts again with the most. Errors: it is no number; the program cannot be started.
pub fn connections() -> Result<(u32, Option<String>)> {
    let Some(set) = std::env::var_os(VARIABLE) else {
        let us = std::env::current_exe();
        let again = us.map(|us| {
            Command::new(us).args(std::env::args_os().skip(1)).env(VARIABLE, MOST.to_string()).exec()
        });
        let (Ok(error) | Err(error)) = again;
        return Err(Error::Refused(format!("starting again with {VARIABLE}: {error}")));
    };
    let set = set.to_string_lossy();
    let connections =
        set.parse().map_err(|_| Error::Refused(format!("{VARIABLE}={set} is no number; unset it")))?;
    let warning =
        format!("{VARIABLE} is {connections}, not {MOST}: streams may wait for one another; unset it");
    Ok((connections, (connections < MOST).then_some(warning)))
}
