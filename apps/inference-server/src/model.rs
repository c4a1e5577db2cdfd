//! The models that are served, each on an engine of its own.

use anyhow::{Context as _, Result};
use inference::engine::Engine;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::plan::Plan;
use slots::Geometry;
use zoo::{Manifest, Store};

use crate::options::{self, Options};

/// A model that is ready to run.
pub struct Model {
    pub name: String,
    pub geometry: Geometry,
    engine: Box<dyn Engine>,
}

impl Model {
    /// The geometry of each model that was asked for, numbered in the order of the command line.
    pub fn geometries(options: &Options) -> Result<Vec<(Manifest, Geometry)>> {
        let one = |(number, name): (u32, &String)| {
            let (manifest, _) = Manifest::find(name, options.manifests.as_deref())?;
            let geometry = serving::model::geometry(&manifest, number)?;
            Ok((manifest, geometry))
        };
        (0..).zip(&options.models).map(one).collect()
    }

    /// Loads a model and runs it as often as was asked for.
    pub fn load(options: &Options, manifest: &Manifest, geometry: Geometry) -> Result<Model> {
        let (_, folder) = Manifest::find(&manifest.name, options.manifests.as_deref())?;
        let store = options.store.as_ref().map_or_else(|| Store::beside(&folder), Store::at);
        let (file, weights) = store.seeded(manifest)?;
        let engine: Box<dyn Engine> = match options.engine {
            options::Engine::Onnx => {
                let runtime = Runtime::load(options.onnxruntime.as_deref())
                    .context("--engine onnx; --engine twin needs no library, and is slow")?;
                Box::new(runtime.model(&file, options.threads.into())?)
            }
            options::Engine::Twin => {
                let graph = import(&file, 1).with_context(|| weights.clone())?;
                Box::new(Twin::new(Plan::new(&graph).with_context(|| weights.clone())?)?)
            }
        };
        let mut model = Model { name: manifest.name.clone(), geometry, engine };
        let inputs: Vec<Vec<f32>> = model
            .geometry
            .request
            .entries()
            .iter()
            .map(|entry| vec![0.0; entry.length as usize / size_of::<f32>()])
            .collect();
        for _ in 0..options.warmup {
            let ran = model.run(&inputs, &mut Vec::new());
            ran.map_err(anyhow::Error::msg).with_context(|| format!("--warmup of {}", model.name))?;
        }
        Ok(model)
    }

    /// As a pipeline wants it.
    pub fn run(&mut self, inputs: &[Vec<f32>], outputs: &mut Vec<Vec<f32>>) -> Result<(), String> {
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        self.engine.run_into(&inputs, outputs).map_err(|error| error.to_string())
    }
}
