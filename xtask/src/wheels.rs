//! Libraries from Python's package index: the lists `xtask/*-wheel*.txt` say which, and their hashes.
//!
//! NVIDIA's run-time compiler needs no GPU and no driver, so the tests of device code run everywhere; ONNX
//! Runtime is the reference of models. The wheels are unpacked into folders below cargo's target folder, once
//! for each list. With [`Wheels::variable`] set to the user's own nothing is fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::files;
use crate::process::{Ended, run_logged, said};
use crate::refused::refused;
use crate::workspace::{root, target_dir};

/// In the folder: the list that it was filled by, written last.
const STAMP: &str = "wheels.txt";
/// 133 MB took 3 s; other lines are slower.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Wheels that are fetched together.
pub struct Wheels {
    /// What `doctor` and set-up call them.
    pub what: &'static str,
    /// The variable that names the user's own, for us and for the suites.
    pub variable: &'static str,
    /// The list, in pip's own format, and its text.
    list: (&'static str, &'static str),
    /// Below the target folder: where they are unpacked, and in it what the variable names.
    folder: &'static str,
    inner: &'static str,
    megabytes: u32,
    /// For which Python the wheels are, if they are not for all.
    python: &'static str,
}

/// Of a list of this folder.
macro_rules! list {
    ($name:literal) => {
        (concat!("xtask/", $name), include_str!(concat!("../", $name)))
    };
}

/// Wheels for every Python. The variable names their folder.
const fn wheels(
    what: &'static str,
    variable: &'static str,
    folder: &'static str,
    list: (&'static str, &'static str),
    megabytes: u32,
) -> Wheels {
    Wheels { what, variable, list, folder, inner: "", megabytes, python: "" }
}

/// NVIDIA's run-time compiler and linker.
pub const CUDA: Wheels =
    wheels("NVIDIA's run-time compiler", "DOORBELL_CUDA", "cuda", list!("cuda-wheels.txt"), 133);

/// ONNX Runtime.
pub const ONNX_RUNTIME: Wheels = Wheels {
    inner: "onnxruntime/capi",
    python: "--python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64",
    ..wheels("ONNX Runtime", "DOORBELL_ONNXRUNTIME", "onnxruntime", list!("onnxruntime-wheel.txt"), 24)
};

/// What `dist` links with.
pub const LINKER: Wheels =
    wheels("a linker that knows old glibc versions", "DOORBELL_ZIG", "zig", list!("dist-wheels.txt"), 98);

/// What checks the playbooks in the long run of the tests.
pub const ANSIBLE_LINT: Wheels =
    wheels("ansible-lint", "DOORBELL_ANSIBLE_LINT", "ansible-lint", list!("ansible-lint-wheels.txt"), 14);

/// NIXL with the UCX that it brings: Python bindings of a library that moves memory between processes.
const NIXL: Wheels = wheels("NIXL", "DOORBELL_NIXL", "nixl", list!("nixl-wheel.txt"), 69);

/// Mooncake's transfer engine, without CUDA.
const MOONCAKE: Wheels = wheels("Mooncake", "DOORBELL_MOONCAKE", "mooncake", list!("mooncake-wheel.txt"), 46);

/// What `compat` runs.
pub const COMPAT: [&Wheels; 2] = [&NIXL, &MOONCAKE];

/// All that the suites need.
pub const ALL: [&Wheels; 2] = [&CUDA, &ONNX_RUNTIME];

impl Wheels {
    pub fn folder(&self) -> PathBuf {
        target_dir().join(self.folder)
    }

    /// What the variable would name of the wheels that were fetched.
    pub fn fetched(&self) -> PathBuf {
        self.folder().join(self.inner)
    }

    /// What our programs and suites use: the user's own, else what was fetched.
    pub fn used(&self) -> PathBuf {
        self.own().unwrap_or_else(|| self.fetched())
    }

    /// Whether nothing has to be fetched.
    pub fn are_there(&self) -> bool {
        self.own().is_some() || self.filled(&self.folder())
    }

    /// Version of the first wheel of the list.
    pub fn version(&self) -> Option<String> {
        let first = self.list.1.lines().find(|line| !line.starts_with('#'))?;
        first.split_once("==")?.1.split_whitespace().next().map(str::to_owned)
    }

    /// What the variable names, if it is set.
    pub fn own(&self) -> Option<PathBuf> {
        std::env::var_os(self.variable).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    /// What `doctor` prints.
    pub fn state(&self) -> String {
        match (self.own(), self.filled(&self.folder())) {
            (Some(own), _) => format!("{}, which {} names", own.display(), self.variable),
            (None, true) => format!("wheels in {}", self.folder().display()),
            (None, false) => "not fetched: `cargo xtask setup` does, for tests and models on a GPU".into(),
        }
    }

    /// Fetches them unless they are there. `pip`: installs pip where it is missing.
    pub fn prepare(&self, no_install: bool, pip: impl FnOnce() -> Result<()>) -> Result<()> {
        let folder = self.folder();
        if self.are_there() {
            return Ok(());
        }
        let command = self.command(&folder, &root().join(self.list.0));
        if no_install {
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            return Err(refused(format!(
                "{} is missing (--no-install was given); fetch it with:\n  python3 {}\nthen cp {} {}, or set {} to your own",
                self.what,
                words.join(" "),
                self.list.0,
                folder.join(STAMP).display(),
                self.variable
            )));
        }
        if !has_pip() {
            pip()?;
        }
        let (Wheels { what, megabytes, list: (list, _), .. }, into) = (self, folder.display());
        say!("setup: fetching {what}, {megabytes} MB, into {into} ({list})");
        let since = Instant::now();
        self.fetch(&folder)?;
        say!("setup: fetched and unpacked in {} s", since.elapsed().as_secs());
        Ok(())
    }

    /// Shell lines that fetch them without a checkout into a folder of the current one, and set the variable.
    pub fn by_hand(&self) -> String {
        let lines = self.list.1.lines().filter(|line| !line.starts_with('#'));
        let lines: Vec<String> = lines.map(|line| format!("'{line}'")).collect();
        let (list, folder) = (format!("{}.txt", self.folder), self.folder);
        let command = self.command(Path::new(folder), Path::new(&list));
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let (lines, words, own) = (lines.join(" "), words.join(" "), Path::new(folder).join(self.inner));
        let sets = format!("export {}=$PWD/{}", self.variable, own.display());
        format!("printf '%s\\n' {lines} > {list} && python3 {words} && {sets}")
    }

    /// Whether the folder was filled, to its end, by the list as it is now.
    fn filled(&self, folder: &Path) -> bool {
        fs::read_to_string(folder.join(STAMP)).is_ok_and(|list| list == self.list.1)
    }

    /// pip, so that it takes exactly what the list says, and looks for nothing else.
    fn command(&self, folder: &Path, list: &Path) -> Command {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:"]);
        command.args(["--no-compile", "--disable-pip-version-check", "--progress-bar", "off"]);
        command.args(self.python.split_whitespace()).arg("--target").arg(folder).arg("-r").arg(list);
        command
    }

    fn fetch(&self, folder: &Path) -> Result<()> {
        // A fetch that is killed on the way leaves no folder that looks whole.
        let _ = fs::remove_dir_all(folder);
        let log = target_dir().join(format!("xtask-test/{}-wheels.log", self.folder));
        let mut command = self.command(folder, &root().join(self.list.0));
        let (ended, list, at) = (run_logged(&mut command, &log, LIMIT)?, self.list.0, log.display());
        let said = fs::read_to_string(&log).unwrap_or_default();
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("ERROR")).collect();
        let why = errors.join(" ");
        ensure!(ended == Ended::Well, "pip did not fetch {list} (it {ended}): {why} (whole log: {at})");
        files::write(&folder.join(STAMP), self.list.1)
    }
}

fn has_pip() -> bool {
    said(Command::new("python3").args(["-m", "pip", "--version"])).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wheel_has_its_version_and_its_hash() {
        for (wheels, count) in
            [(CUDA, 3), (ONNX_RUNTIME, 1), (LINKER, 2), (ANSIBLE_LINT, 32), (NIXL, 1), (MOONCAKE, 1)]
        {
            let lines: Vec<&str> = wheels.list.1.lines().filter(|line| !line.starts_with('#')).collect();
            assert_eq!(lines.len(), count);
            for line in lines {
                let (name, hashes) = line.split_once(" --hash=sha256:").unwrap();
                assert!(name.contains("=="), "{line}");
                // One for each version of Python.
                for hash in hashes.split(" --hash=sha256:") {
                    assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
                }
            }
        }
    }

    #[test]
    fn only_what_the_list_says_is_taken() {
        let command = CUDA.command(Path::new("/t/cuda"), Path::new("/t/list"));
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        for word in ["--require-hashes", "--no-deps", "/t/cuda"] {
            assert!(words.iter().any(|given| given == word), "{words:?}");
        }
    }

    #[test]
    fn the_command_by_hand_is_one_line_for_a_shell() {
        let said = ONNX_RUNTIME.by_hand();
        assert!(said.starts_with("printf '%s\\n' 'onnxruntime==") && !said.contains('\n'), "{said}");
    }

    #[test]
    fn a_folder_that_was_not_filled_to_its_end_is_filled_again() {
        let folder = std::env::temp_dir().join(format!("xtask-wheels-{}", std::process::id()));
        fs::create_dir_all(folder.join("nvidia")).unwrap();
        assert!(!CUDA.filled(&folder));
        fs::write(folder.join(STAMP), CUDA.list.1.replace("13.0.88", "13.0.48")).unwrap();
        assert!(!CUDA.filled(&folder), "an older list");
        fs::write(folder.join(STAMP), CUDA.list.1).unwrap();
        assert!(CUDA.filled(&folder));
        fs::remove_dir_all(&folder).unwrap();
    }
}
