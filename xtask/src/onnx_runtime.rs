//! Which ONNX Runtime the profiler and the server load here, and the command that fetches one.
//!
//! The search is that of `inference::engine::onnx_runtime`, in the same order: `--onnxruntime`, the variable,
//! set-up's folder, Python's package. This program links no engine (`ARCHITECTURE.md`), so it looks itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::carried;
use crate::process::{WAIT, output};
use crate::wheels::ONNX_RUNTIME;

/// Prints the folder of Python's package, or an empty line.
const WHERE: &str = "import importlib.util as u; s = u.find_spec('onnxruntime'); print(s.submodule_search_locations[0] if s else '')";

#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub library: PathBuf,
    /// What named it.
    by: String,
}

/// The places of a search.
pub struct Search<'a> {
    /// What `--onnxruntime` names: the library or its folder.
    pub option: Option<&'a Path>,
    pub variable: Option<PathBuf>,
    /// The folder that set-up fills.
    pub setup: PathBuf,
    pub python: &'a Path,
}

impl<'a> Search<'a> {
    pub fn here(option: Option<&'a Path>) -> Search<'a> {
        let (variable, setup) = (ONNX_RUNTIME.own(), ONNX_RUNTIME.fetched());
        Search { option, variable, setup, python: Path::new("python3") }
    }

    /// The library that our programs load. Error: where it looked. A named place without a library ends the
    /// search, as in our programs.
    pub fn find(&self) -> Result<Found, String> {
        let variable = ONNX_RUNTIME.variable;
        let by_variable = self.variable.as_deref().map(|named| (variable, "=", named));
        if let Some((by, sign, named)) =
            self.option.map(|named| ("--onnxruntime", " ", named)).or(by_variable)
        {
            let library = within(named).map(|library| Found { library, by: format!("named by {by}") });
            return library.ok_or_else(|| format!("{by}{sign}{}", named.display()));
        }
        if let Some(library) = within(&self.setup) {
            return Ok(Found { library, by: "fetched by set-up".into() });
        }
        let by = "of Python's package onnxruntime".into();
        let library = self.of_python().map(|library| Found { library, by });
        library.map_err(|why| format!("{why}, {} has none, {variable} is not set", self.setup.display()))
    }

    /// In the site-packages of Python.
    fn of_python(&self) -> Result<PathBuf, String> {
        let python = self.python.display();
        let said = output(Command::new(self.python).args(["-c", WHERE]), WAIT);
        let folder = said.map_err(|error| format!("{python}: {error:#}"))?.trim().to_owned();
        let library = Some(folder).filter(|folder| !folder.is_empty());
        let library = library.and_then(|folder| within(&Path::new(&folder).join("capi")));
        library.ok_or_else(|| format!("{python} has no package onnxruntime"))
    }

    /// What `doctor` prints.
    pub fn state(&self) -> String {
        let means = match carried::folder() {
            Some(_) => "fetch the tested version",
            None => "figures 1 and 2, `bench-models` and `demo` fetch it, or you",
        };
        match self.find() {
            Err(looked) => format!("not found: {looked}; {means} by: {}", ONNX_RUNTIME.by_hand()),
            Ok(Found { library, by }) => {
                let name = library.file_name().unwrap_or_default().to_string_lossy();
                let version = name.split_once(".so.").map_or("of unknown version", |(_, version)| version);
                format!("{version}, {by}: {}", library.display())
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process;

    /// A folder with a Python whose site-packages have or lack the package, and other places' libraries.
    struct Places(PathBuf);

    impl Places {
        fn new(name: &str) -> Places {
            let folder = std::env::temp_dir().join(format!("xtask-onnx-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            for place in ["option", "variable", "setup", "site/onnxruntime/capi", "empty"] {
                fs::create_dir_all(folder.join(place)).unwrap();
            }
            for (place, version) in
                [("option", 1), ("variable", 2), ("setup", 3), ("site/onnxruntime/capi", 4)]
            {
                fs::write(folder.join(place).join(format!("libonnxruntime.so.1.{version}.0")), "").unwrap();
            }
            let site = folder.join("site/onnxruntime");
            process::script(&folder.join("python"), &format!("#!/bin/sh\necho {}\n", site.display()));
            process::script(&folder.join("python-without"), "#!/bin/sh\necho\n");
            Places(folder)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Places {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn doctor_says_which_library_and_what_named_it() {
        let places = Places::new("order");
        let python = places.at("python");
        let option = places.at("option");
        let of = |option, variable, setup| Search { option, variable, setup, python: &python };
        for (search, words) in [
            (
                of(Some(&*option), Some(places.at("variable")), places.at("setup")),
                "1.1.0, named by --onnxruntime: ",
            ),
            (
                of(None, Some(places.at("variable")), places.at("setup")),
                "1.2.0, named by DOORBELL_ONNXRUNTIME: ",
            ),
            (of(None, None, places.at("setup")), "1.3.0, fetched by set-up: "),
            (of(None, None, places.at("empty")), "1.4.0, of Python's package onnxruntime: "),
        ] {
            let said = search.state();
            assert!(said.starts_with(words) && said.contains("/libonnxruntime.so.1."), "{said}");
        }
    }

    #[test]
    fn without_the_library_doctor_names_the_places_and_the_pinned_command_with_its_hash() {
        let places = Places::new("none");
        let (python, without) = (places.at("no-python"), places.at("python-without"));
        let empty = places.at("empty");
        for (option, variable, python, words) in [
            (Some(&*empty), None, &*without, "--onnxruntime "),
            (None, Some(empty.clone()), &*without, "DOORBELL_ONNXRUNTIME="),
            (None, None, &*without, "has no package onnxruntime"),
            (None, None, &*python, "No such file"),
        ] {
            let said = Search { option, variable, setup: empty.clone(), python }.state();
            assert!(said.starts_with("not found: ") && said.contains(words), "{said}");
            assert!(said.contains("; figures 1 and 2, `bench-models` and `demo` fetch it"), "{said}");
            for word in ["onnxruntime==", "--hash=sha256:", "--require-hashes", "--no-deps"] {
                assert!(said.contains(word), "{word}: {said}");
            }
        }
    }
}
