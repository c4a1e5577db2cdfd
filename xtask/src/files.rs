//! Files and folders, with errors that name them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::done;

/// All files below a folder, by relative path and in order, links included. `skips`: names in it left out.
pub fn below(top: &Path, skips: &[&str]) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        let at = top.join(&folder);
        for entry in fs::read_dir(&at).with_context(|| format!("reading {}", at.display()))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                _ if skips.iter().any(|skip| path == Path::new(skip)) => {}
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Removes a file, or a folder with all in it. One that is not there is no error.
pub fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Writes a file, and makes its folder.
pub fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("writing {}", path.display()))
}

/// Copies a file, and makes the folder. A program that may be running there is left its own file.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| {
            let _ = fs::remove_file(to);
            fs::copy(from, to)
        })
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies a program without its symbols (binutils).
pub fn strip(from: &Path, to: &Path) -> Result<()> {
    // Not over a program that may be running: a new file under the old name.
    let _ = fs::remove_file(to);
    done(Command::new("strip").arg("-o").arg(to).arg(from))
}
