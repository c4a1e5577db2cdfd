//! Copies of files, with their symbols or without.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

pub fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(above) = to.parent() {
        fs::create_dir_all(above).with_context(|| format!("making {}", above.display()))?;
    }
    let _ = fs::remove_file(to);
    fs::copy(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies a program without its symbols.
pub fn strip(from: &Path, to: &Path) -> Result<()> {
    // Not over a program that may be running: a new file under the old name.
    let _ = fs::remove_file(to);
    let status =
        Command::new("strip").arg("-o").arg(to).arg(from).status().context("starting strip (binutils)")?;
    match status.success() {
        true => Ok(()),
        false => bail!("strip {} failed", from.display()),
    }
}
