//! Where ONNX Runtime lies, which runs the zoo's files: the one search of all programs.
//!
//! The library comes with the package `onnxruntime` of Python's package index.

use std::io::{Error, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that names the library, or a folder that holds it.
pub const VARIABLE: &str = "DOORBELL_ONNXRUNTIME";

/// Prints the folder of Python's package, or an empty line.
const WHERE: &str = "import importlib.util as u; s = u.find_spec('onnxruntime'); print(s.submodule_search_locations[0] if s else '')";
/// Longest start and end of Python.
const PYTHON: Duration = Duration::from_secs(20);
/// Time between two looks whether Python has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A library that was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub library: PathBuf,
    /// What named it, in words.
    pub by: &'static str,
}

/// The places of a search, in their order.
pub struct Search<'a> {
    /// The library or its folder, as an option names it.
    pub option: Option<&'a Path>,
    /// What [`VARIABLE`] names.
    pub variable: Option<PathBuf>,
    /// The program that searches: set-up fills a folder beside it, cargo's target folder.
    pub program: Option<PathBuf>,
    /// The program that is asked where its package lies.
    pub python: &'a Path,
}

impl<'a> Search<'a> {
    /// The places of this process, and what an option names.
    pub fn here(option: Option<&'a Path>) -> Search<'a> {
        let variable = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
        Search { option, variable, program: std::env::current_exe().ok(), python: Path::new("python3") }
    }

    /// The library. Error: all that was looked at. A place that is named and has none ends the search.
    pub fn find(&self) -> Result<Found, String> {
        if let Some(named) = self.option {
            let found = within(named).map(|library| Found { library, by: "named by an option" });
            return found.ok_or_else(|| named.display().to_string());
        }
        if let Some(named) = &self.variable {
            let found = within(named).map(|library| Found { library, by: "named by DOORBELL_ONNXRUNTIME" });
            return found.ok_or_else(|| format!("{VARIABLE}={}", named.display()));
        }
        if let Some(library) = self.program.as_deref().and_then(fetched) {
            return Ok(Found { library, by: "fetched by set-up" });
        }
        let python = self.python.display();
        let folder = said_by(Command::new(self.python).args(["-c", WHERE]));
        let library = match folder.map(|folder| folder.trim().to_owned()) {
            Ok(folder) if folder.is_empty() => None,
            Ok(folder) => within(&Path::new(&folder).join("capi")),
            Err(error) => return Err(format!("{python}: {error}; {VARIABLE} is not set")),
        };
        let found = library.map(|library| Found { library, by: "of Python's package onnxruntime" });
        found.ok_or_else(|| format!("{python} has no package onnxruntime; {VARIABLE} is not set"))
    }
}

/// What set-up fetched into cargo's target folder, in which the program lies.
fn fetched(program: &Path) -> Option<PathBuf> {
    program.ancestors().find_map(|folder| within(&folder.join("onnxruntime/onnxruntime/capi")))
}

/// The file itself, or the library in a folder.
fn within(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    let entries = std::fs::read_dir(path).ok()?.flatten();
    let is_library = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("libonnxruntime.so");
    entries.filter(|entry| is_library(&entry.file_name())).map(|entry| entry.path()).max()
}

/// What a program writes, a few lines at most, if it ends well within [`PYTHON`].
fn said_by(command: &mut Command) -> std::io::Result<String> {
    let since = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if since.elapsed() >= PYTHON {
            child.kill().and_then(|()| child.wait())?;
            return Err(Error::other(format!("it has not ended within {} s", PYTHON.as_secs())));
        }
        std::thread::sleep(LOOK);
    };
    if !status.success() {
        return Err(Error::other(format!("it ended with {status}")));
    }
    // It has ended, so that all it wrote lies in the pipe; what it started may hold that open.
    let mut said = vec![0; 4096];
    let count = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read(&mut said))?;
    said.truncate(count);
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of libraries, and of Pythons.
    struct Places(PathBuf);

    impl Places {
        fn new() -> Places {
            let folder = std::env::temp_dir().join(format!("zoo-onnx-runtime-{}", std::process::id()));
            for (version, place) in
                ["option", "variable", "onnxruntime/onnxruntime/capi", "site/onnxruntime/capi"]
                    .iter()
                    .enumerate()
            {
                std::fs::create_dir_all(folder.join(place)).unwrap();
                let library = folder.join(place).join(format!("libonnxruntime.so.1.{}", version + 1));
                std::fs::write(library, "").unwrap();
            }
            std::fs::create_dir_all(folder.join("empty")).unwrap();
            let places = Places(folder);
            places.python("python", &format!("echo {}", places.at("site/onnxruntime").display()));
            places.python("python-without", "echo");
            places.python("python-fails", "exit 3");
            places
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        /// A shell writes it: a file that this process has open for writing may be refused as a program.
        fn python(&self, name: &str, line: &str) {
            let write = r#"printf '#!/bin/sh\n%s\n' "$0" > "$1" && chmod 755 "$1""#;
            let written = Command::new("sh").args(["-c", write, line]).arg(self.at(name)).status();
            assert!(written.unwrap().success());
        }
    }

    impl Drop for Places {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_option_comes_before_the_variable_then_what_setup_fetched_then_pythons_package() {
        let places = Places::new();
        let find = |option: Option<&str>, variable: Option<&str>, program: &str, python: &str| {
            let option = option.map(|name| places.at(name));
            let (variable, program) = (variable.map(|name| places.at(name)), Some(places.at(program)));
            Search { option: option.as_deref(), variable, program, python: &places.at(python) }.find()
        };
        let (inside, elsewhere) = ("debug/deps/it-1", "/elsewhere/it");
        for (option, variable, program, wanted, by) in [
            (Some("option"), Some("variable"), inside, "option/libonnxruntime.so.1.1", "by an option"),
            (Some("option/libonnxruntime.so.1.1"), None, inside, "option/libonnxruntime.so.1.1", "an option"),
            (None, Some("variable"), inside, "variable/libonnxruntime.so.1.2", VARIABLE),
            (None, None, inside, "onnxruntime/onnxruntime/capi/libonnxruntime.so.1.3", "set-up"),
            (None, None, elsewhere, "site/onnxruntime/capi/libonnxruntime.so.1.4", "Python's package"),
        ] {
            let found = find(option, variable, program, "python").unwrap();
            assert_eq!(found.library, places.at(wanted));
            assert!(found.by.contains(by), "{found:?}");
        }
        for (option, variable, python, words) in [
            (Some("empty"), None, "python", "/empty"),
            (None, Some("empty"), "python", "DOORBELL_ONNXRUNTIME="),
            (None, None, "python-without", "has no package onnxruntime"),
            (None, None, "python-fails", "it ended with exit status: 3"),
            (None, None, "no-python", "No such file"),
        ] {
            let looked = find(option, variable, elsewhere, python).unwrap_err();
            assert!(looked.contains(words) && !looked.contains('\n'), "{words}: {looked}");
        }
    }
}
