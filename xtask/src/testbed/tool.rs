//! Small programs that make and remove a testbed, each with a time limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::on_path;

/// Longest that a small program such as `ip` may take, in seconds.
const TOOL_S: u32 = 10;

/// Stdout of a small program. It is ended after [`TOOL_S`] seconds; its last stderr line is the error.
///
/// [`crate::process::output`] starts nothing after a signal, but this removes what a stopped `up` made.
pub fn tool(words: &[&str]) -> Result<String> {
    let output = Command::new("timeout")
        .args(["--kill-after=1", &TOOL_S.to_string()])
        .args(words)
        .stdin(std::process::Stdio::null())
        .output()
        .context("starting timeout")?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.trim().lines().last().unwrap_or("it said nothing");
    match output.status.code() {
        Some(124 | 137) => bail!("`{}` took longer than {TOOL_S} s", words.join(" ")),
        _ => bail!("`{}` failed: {last}", words.join(" ")),
    }
}

/// The program of this name; the absolute path by which sshd has to be started.
pub fn program(name: &str) -> Result<PathBuf> {
    // A node does not see every folder of the machine's PATH.
    on_path(&[name], &["/usr/sbin", "/sbin"].map(Path::new))
        .and_then(|program| fs::canonicalize(program).ok())
        .with_context(|| format!("there is no {name} on this machine"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_tool_that_fails_or_hangs_is_named_with_its_words() {
        assert_eq!(tool(&["echo", "said"]).unwrap(), "said\n");
        let error = tool(&["sh", "-c", "echo first >&2; echo last >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.ends_with("failed: last"), "{error}");
        assert!(Path::new(&program("sh").unwrap()).is_absolute());
        assert!(program("no-such-program").unwrap_err().to_string().contains("no-such-program"));
    }
}
