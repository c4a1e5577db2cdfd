//! ONNX Runtime as an engine: the reference of the others, and what runs a model where there is no GPU.
//!
//! The library is found when the program runs.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;
use ort::session::{Session, SessionInputValue};
use ort::value::{TensorRef, ValueType};
use zoo::onnx_runtime::Search;

use super::{Engine, EngineError};

/// The library, loaded.
#[derive(Debug, Clone)]
pub struct Runtime {
    environment: Environment,
    library: PathBuf,
}

/// The process's only one: the library allows no second environment.
static LOADED: Mutex<Option<Runtime>> = Mutex::new(None);

impl Runtime {
    /// The library that [`Search`] finds. Errors name what was looked at, and the remedy.
    pub fn load(given: Option<&Path>) -> Result<Runtime, EngineError> {
        let found = Search::here(given).find().map_err(|looked| EngineError::NoRuntime { looked })?;
        let library = found.library;
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
}
