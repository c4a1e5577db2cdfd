//! Files that are there whole, or as they were before.

use std::path::Path;

use anyhow::{Context, Result};

/// As [`measure::write_whole()`], with the file in the error.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    measure::write_whole(path, bytes).with_context(|| format!("writing {}", path.display()))
}
