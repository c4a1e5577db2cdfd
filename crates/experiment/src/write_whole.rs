//! Files that are there whole, or as they were before.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes a file under another name and renames it: it is there whole, or as it was before.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("writing {}", path.display()))
}
