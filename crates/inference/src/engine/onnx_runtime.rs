//! ONNX Runtime as an engine: the reference of the others, and what runs a model where there is no GPU.
//!
//! The library is found when the program runs. It comes with the package `onnxruntime` of Python's package
//! index.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::{TensorRef, ValueType};

use super::{Engine, EngineError};

/// The variable that names the library, or a folder that holds it.
pub const VARIABLE: &str = "DOORBELL_ONNXRUNTIME";

/// The library, loaded.
#[derive(Debug, Clone)]
pub struct Runtime {
    environment: Environment,
    library: PathBuf,
}

/// The process's only one: the library allows no second environment.
static LOADED: Mutex<Option<Runtime>> = Mutex::new(None);

impl Runtime {
    /// The library that is given, or that [`VARIABLE`] names, or that set-up fetched, or Python's. Errors
    /// name what was looked at, and the remedy.
    pub fn load(given: Option<&Path>) -> Result<Runtime, EngineError> {
        let library = Search::here(given).find().map_err(|looked| EngineError::NoRuntime { looked })?;
        let wrong = |reason: String| EngineError::Runtime { at: library.display().to_string(), reason };
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*loaded {
            let other = || wrong(format!("this process has loaded {}", runtime.library.display()));
            return (runtime.library == library).then(|| runtime.clone()).ok_or_else(other);
        }
        let builder = ort::init_from(&library).map_err(|error| wrong(error.to_string()))?;
        let environment = builder.with_name("doorbell").with_telemetry(false).build();
        let environment = environment.map_err(|error| wrong(error.to_string()))?;
        Ok(loaded.insert(Runtime { environment, library: library.clone() }).clone())
    }

    /// The file that was loaded.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// A model of an ONNX file, on so many threads.
    pub fn model(&self, file: &[u8], threads: usize) -> Result<OnnxRuntime, EngineError> {
        let wrong = |reason: String| EngineError::Runtime { at: self.library.display().to_string(), reason };
        let builder = Session::builder(&self.environment).map_err(|error| wrong(error.to_string()))?;
        let mut builder = builder.with_intra_threads(threads).map_err(|error| wrong(error.to_string()))?;
        let session = builder.commit_from_memory(file).map_err(|error| wrong(error.to_string()))?;
        let inputs = session.inputs().iter().map(|input| {
            let shape: Option<Vec<usize>> = match input.dtype() {
                ValueType::Tensor { shape, .. } => {
                    shape.iter().map(|&extent| usize::try_from(extent).ok()).collect()
                }
                _ => None,
            };
            let shape = shape.filter(|shape| crate::graph::Shape::new(shape.clone()).is_some());
            let no_shape =
                || wrong(format!("input {} has no fixed shape; export the model with one", input.name()));
            let shape = shape.ok_or_else(no_shape)?;
            Ok((input.name().to_owned(), shape))
        });
        let inputs = inputs.collect::<Result<Vec<_>, EngineError>>()?;
        Ok(OnnxRuntime { session, inputs, library: self.library.clone() })
    }
}

/// The places of a search, in their order.
struct Search<'a> {
    given: Option<&'a Path>,
    /// What the variable names.
    named: Option<PathBuf>,
    program: Option<PathBuf>,
    python: &'a Path,
}

impl<'a> Search<'a> {
    fn here(given: Option<&'a Path>) -> Search<'a> {
        let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
        Search { given, named, program: std::env::current_exe().ok(), python: Path::new("python3") }
    }

    /// The library's path, or all that was looked at.
    fn find(&self) -> Result<PathBuf, String> {
        if let Some(given) = self.given {
            return within(given).ok_or_else(|| given.display().to_string());
        }
        if let Some(named) = &self.named {
            return within(named).ok_or_else(|| format!("{VARIABLE}={}", named.display()));
        }
        if let Some(fetched) = self.program.as_deref().and_then(fetched) {
            return Ok(fetched);
        }
        let script = "import importlib.util as u; s = u.find_spec('onnxruntime'); print(s.submodule_search_locations[0] if s else '')";
        let said = Command::new(self.python).args(["-c", script]).output();
        let folder = match said {
            Ok(said) if said.status.success() => String::from_utf8_lossy(&said.stdout).trim().to_owned(),
            Ok(said) => return Err(format!("python3 ended with {}; {VARIABLE} is not set", said.status)),
            Err(error) => return Err(format!("python3: {error}; {VARIABLE} is not set")),
        };
        let library = (!folder.is_empty()).then(|| within(&Path::new(&folder).join("capi"))).flatten();
        library.ok_or_else(|| format!("python3 has no package onnxruntime; {VARIABLE} is not set"))
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
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.retain(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so"))
    });
    found.sort();
    found.pop()
}

/// A model in ONNX Runtime.
#[derive(Debug)]
pub struct OnnxRuntime {
    session: Session,
    /// Names and shapes.
    inputs: Vec<(String, Vec<usize>)>,
    library: PathBuf,
}

impl Engine for OnnxRuntime {
    fn name(&self) -> &'static str {
        "ONNX Runtime"
    }

    fn run(&mut self, inputs: &[&[f32]]) -> Result<Vec<Vec<f32>>, EngineError> {
        let mut outputs = Vec::new();
        self.run_into(inputs, &mut outputs)?;
        Ok(outputs)
    }

    fn run_into(&mut self, inputs: &[&[f32]], results: &mut Vec<Vec<f32>>) -> Result<(), EngineError> {
        let wanted: Vec<usize> = self.inputs.iter().map(|(_, shape)| shape.iter().product()).collect();
        super::check_inputs(inputs, &wanted)?;
        let wrong = |error: ort::Error| EngineError::Runtime {
            at: self.library.display().to_string(),
            reason: error.to_string(),
        };
        let mut given: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = Vec::new();
        for ((name, shape), input) in self.inputs.iter().zip(inputs) {
            let tensor = TensorRef::from_array_view((shape.clone(), *input)).map_err(wrong)?;
            given.push((name.as_str().into(), tensor.into()));
        }
        let outputs = self.session.run(given).map_err(wrong)?;
        results.resize_with(outputs.len(), Vec::new);
        for (result, (_, output)) in results.iter_mut().zip(outputs.iter()) {
            let (_, elements) = output.try_extract_tensor::<f32>().map_err(wrong)?;
            result.clear();
            result.extend_from_slice(elements);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_a_short_line_has_what_brings_it() {
        let said = Runtime::load(Some(Path::new("/nowhere"))).expect_err("it is not there").to_string();
        assert!(said.lines().count() == 1 && said.len() < 160, "{said}");
        for words in ["(/nowhere)", "cargo xtask setup", "pip install onnxruntime", "cargo xtask doctor"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[test]
    fn the_option_comes_before_the_variable_then_what_setup_fetched_then_site_packages() {
        let folder = std::env::temp_dir().join(format!("inference-search-{}", std::process::id()));
        for place in ["option", "variable", "onnxruntime/onnxruntime/capi", "site/onnxruntime/capi", "empty"]
        {
            std::fs::create_dir_all(folder.join(place)).expect("a folder");
            let library = folder.join(place).join("libonnxruntime.so.1");
            (place != "empty").then(|| std::fs::write(library, "").expect("a file"));
        }
        let (site, python) = (folder.join("site/onnxruntime"), folder.join("python"));
        // By another process: a file that this one has open for writing may be refused as a program.
        let write = r#"printf '#!/bin/sh\necho %s\n' "$0" > "$1" && chmod 755 "$1""#;
        let written = Command::new("sh").args(["-c", write]).arg(&site).arg(&python).status();
        assert!(written.expect("there is a shell").success());
        let found = |given: Option<&str>, named: Option<&str>, program: &str, python: &Path| {
            let given = given.map(|place| folder.join(place));
            let named = named.map(|place| folder.join(place));
            Search { given: given.as_deref(), named, program: Some(folder.join(program)), python }.find()
        };
        let nowhere = Path::new("/nowhere/python3");
        for (given, named, program, wanted) in [
            (Some("option"), Some("variable"), "debug/it", "option"),
            (Some("option/libonnxruntime.so.1"), None, "debug/it", "option"),
            (None, Some("variable"), "debug/it", "variable"),
            (None, None, "debug/it", "onnxruntime/onnxruntime/capi"),
            (None, None, "/elsewhere/it", "site/onnxruntime/capi"),
        ] {
            let library = folder.join(wanted).join("libonnxruntime.so.1");
            assert_eq!(found(given, named, program, &python), Ok(library), "{given:?} {named:?} {program}");
        }
        // A place that is named and has none ends the search.
        for (given, named, program, words) in [
            (Some("empty"), Some("variable"), "debug/it", "empty"),
            (None, Some("empty"), "debug/it", VARIABLE),
            (None, None, "/elsewhere/it", "python3"),
        ] {
            let looked = found(given, named, program, nowhere).expect_err("it is not there");
            assert!(looked.contains(words), "{looked}");
        }
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn what_setup_fetched_is_found_beside_the_program() {
        let folder = std::env::temp_dir().join(format!("inference-fetched-{}", std::process::id()));
        let library = folder.join("onnxruntime/onnxruntime/capi/libonnxruntime.so.1");
        std::fs::create_dir_all(library.parent().expect("it has one")).expect("a folder");
        std::fs::create_dir_all(folder.join("debug/deps")).expect("a folder");
        assert_eq!(fetched(&folder.join("debug/profiler")), None);
        std::fs::write(&library, "").expect("a file");
        assert_eq!(fetched(&folder.join("debug/profiler")), Some(library.clone()));
        assert_eq!(fetched(&folder.join("debug/deps/it-1")), Some(library));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
