//! NVIDIA's run-time compiler from Python's package index: `xtask/cuda-wheels.txt` says which, and their hashes.
//!
//! No GPU and no driver is needed to compile and link for one, so the tests of device code run everywhere. The wheels
//! are unpacked into a folder below cargo's target folder, once for each list. With
//! `DOORBELL_CUDA` set to a toolkit nothing is fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{Ended, run_logged};
use crate::refused::refused;
use crate::workspace::{root, target_dir};

/// What is fetched, in pip's own format.
const LIST: &str = "xtask/cuda-wheels.txt";
const WANTED: &str = include_str!("../cuda-wheels.txt");
/// The variable that names a toolkit, for us and for the suite.
pub const VARIABLE: &str = "DOORBELL_CUDA";
/// In the folder: the list that it was filled by, written last.
const STAMP: &str = "wheels.txt";
/// 133 MB took 3 s; somebody's line is slower.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Where the wheels are unpacked.
pub fn folder() -> PathBuf {
    target_dir().join("cuda")
}

/// The toolkit that the suite is to use: the user's own, else the wheels.
pub fn toolkit() -> PathBuf {
    own().unwrap_or_else(folder)
}

fn own() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// What `doctor` prints.
pub fn state() -> String {
    match (own(), filled(&folder())) {
        (Some(own), _) => format!("{}, which {VARIABLE} names", own.display()),
        (None, true) => format!("wheels in {}", folder().display()),
        (None, false) => "not fetched: `cargo xtask setup` does, for the suite `gpu`".into(),
    }
}

/// Makes sure that the suite has a compiler. `pip`: installs pip where it is missing.
pub fn prepare(no_install: bool, pip: impl FnOnce() -> Result<()>) -> Result<()> {
    let folder = folder();
    if own().is_some() || filled(&folder) {
        return Ok(());
    }
    let command = command(&folder);
    if no_install {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        return Err(refused(format!(
            "the run-time compiler is missing (--no-install was given); fetch it with:\n  python3 {}\nthen cp {LIST} {}, \
             or set {VARIABLE} to a toolkit",
            words.join(" "),
            folder.join(STAMP).display()
        )));
    }
    if !has_pip() {
        pip()?;
    }
    say!("setup: fetching NVIDIA's run-time compiler, 133 MB, into {} ({LIST})", folder.display());
    let since = Instant::now();
    fetch(&folder)?;
    say!("setup: fetched and unpacked in {} s", since.elapsed().as_secs());
    Ok(())
}

/// Whether the folder was filled, to its end, by the list as it is now.
fn filled(folder: &Path) -> bool {
    fs::read_to_string(folder.join(STAMP)).is_ok_and(|list| list == WANTED)
}

fn has_pip() -> bool {
    Command::new("python3").args(["-m", "pip", "--version"]).output().is_ok_and(|said| said.status.success())
}

/// pip, so that it takes exactly what the list says, and looks for nothing else.
fn command(folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:"]);
    command.args(["--no-compile", "--disable-pip-version-check", "--progress-bar", "off", "--target"]);
    command.arg(folder).arg("-r").arg(root().join(LIST));
    command
}

fn fetch(folder: &Path) -> Result<()> {
    // A fetch that is killed on the way leaves no folder that looks whole.
    let _ = fs::remove_dir_all(folder);
    let log = target_dir().join("xtask-test/cuda-wheels.log");
    match run_logged(&mut command(folder), &log, LIMIT)? {
        Ended::Well => {}
        ended => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("ERROR")).collect();
            bail!(
                "pip did not fetch {LIST} (it {ended}): {} (whole log: {})",
                errors.join(" "),
                log.display()
            );
        }
    }
    let stamp = folder.join(STAMP);
    fs::write(&stamp, WANTED).with_context(|| format!("writing {}", stamp.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wheel_has_its_version_and_its_hash() {
        let lines: Vec<&str> = WANTED.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.len(), 3);
        for line in lines {
            let (name, hash) = line.split_once(" --hash=sha256:").unwrap();
            assert!(name.starts_with("nvidia-") && name.contains("==13.0."), "{line}");
            assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
        }
    }

    #[test]
    fn only_what_the_list_says_is_taken() {
        let command = command(Path::new("/t/cuda"));
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        for word in ["--require-hashes", "--no-deps", "/t/cuda"] {
            assert!(words.iter().any(|given| given == word), "{words:?}");
        }
    }

    #[test]
    fn a_folder_that_was_not_filled_to_its_end_is_filled_again() {
        let folder = std::env::temp_dir().join(format!("xtask-wheels-{}", std::process::id()));
        fs::create_dir_all(folder.join("nvidia")).unwrap();
        assert!(!filled(&folder));
        fs::write(folder.join(STAMP), WANTED.replace("13.0.88", "13.0.48")).unwrap();
        assert!(!filled(&folder), "an older list");
        fs::write(folder.join(STAMP), WANTED).unwrap();
        assert!(filled(&folder));
        fs::remove_dir_all(&folder).unwrap();
    }
}
