//! `--picture FILE`: the top of the page as a PNG, by headless Chromium. `README.md` shows one.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::process::{on_path, output};
use crate::refused::refused;

/// Longest run of the browser, which takes some seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// Pixels of the picture. Its tables are whole at this width.
pub const WIDTH: u32 = 1100;
const HEIGHT: u32 = 760;

/// Headless Chromium by the name that a package gives it.
pub fn chromium() -> Option<PathBuf> {
    on_path(&["chromium-headless-shell", "chromium"], &[])
}

/// Writes the top of a page into a PNG file. Error: refused where there is no browser.
pub fn take(page: &Path, file: &Path) -> Result<()> {
    let chromium = chromium().ok_or_else(|| {
        refused("report: --picture needs chromium-headless-shell or chromium (`cargo xtask setup`, on Debian), or leave it out")
    })?;
    let [page, file] = [page, file].map(std::path::absolute);
    let (page, file) = (page.context("finding the page")?, file.context("finding the picture")?);
    let beside = file.with_extension("part.png");
    let profile = std::env::temp_dir().join(format!("xtask-picture-{}", std::process::id()));
    let mut browser = Command::new(chromium);
    // The page is ours; root has no sandbox.
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    browser.arg(format!("--window-size={WIDTH},{HEIGHT}"));
    browser.arg(format!("--user-data-dir={}", profile.display()));
    browser.arg(format!("--screenshot={}", beside.display())).arg(url(&page));
    let taken = output(&mut browser, LIMIT);
    let _ = std::fs::remove_dir_all(profile);
    taken?;
    ensure!(beside.is_file(), "the browser left no picture {}", beside.display());
    std::fs::rename(&beside, &file).with_context(|| format!("writing {}", file.display()))
}

/// The URL of a file with an absolute path: a `#` or `%` of the path is none of the URL.
fn url(path: &Path) -> String {
    format!("file://{}", in_url(path.as_os_str().as_bytes()))
}

/// What of a URL's signs stays as it is, being often in our paths and files.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b',');

/// As a part of a URL, by RFC 3986.
pub fn in_url(bytes: &[u8]) -> String {
    percent_encode(bytes, KEPT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_a_url_is_encoded() {
        assert_eq!(url(Path::new("/t/report/index.html")), "file:///t/report/index.html");
        assert_eq!(url(Path::new("/a b/#1/50%?/ä")), "file:///a%20b/%231/50%25%3F/%C3%A4");
        assert_eq!(in_url(b"a,\"<\n%"), "a,%22%3C%0A%25");
    }
}
