//! A model by its name: its manifest, its ONNX file, and inputs for it.
//!
//! The manifest says everything about shapes. Without a file in the store, seeded weights are built in
//! memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use inference::graph::Graph;
use inference::import::import;
use inference::layers::Random;
use inference::plan::{Format, Plan};
use prost::Message;
use zoo::{Manifest, Store};

/// Which model.
#[derive(Args)]
pub struct Choice {
    /// Name of the model; `cargo xtask zoo list` has them.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Inputs of one run.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// An ONNX file of this model, such as one with trained weights, in the place of seeded ones.
    #[arg(long, value_name = "FILE")]
    model_file: Option<PathBuf>,
    /// Folder of the manifests [default: modelzoo/models, in this folder, in the program's, or above].
    #[arg(long, value_name = "FOLDER")]
    manifests: Option<PathBuf>,
    /// Folder of the built models [default: target/zoo beside modelzoo, or zoo in a bundle].
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// Library of ONNX Runtime, or its folder [default: DOORBELL_ONNXRUNTIME, what set-up fetched, or
    /// Python's package onnxruntime].
    #[arg(long, value_name = "PATH")]
    pub onnxruntime: Option<PathBuf>,
}

/// A model that is ready to be run.
pub struct Model {
    pub manifest: Manifest,
    pub batch: usize,
    /// The ONNX file, for this batch.
    pub file: Vec<u8>,
    /// Where the file came from, for people.
    pub weights: String,
    pub graph: Graph,
    /// Of the tree or the bundle.
    pub root: PathBuf,
}

impl Model {
    /// Finds, reads and imports it.
    pub fn find(options: &Choice) -> Result<Model> {
        let (manifest, folder) = Manifest::find(&options.model, options.manifests.as_deref())?;
        let root = folder.ancestors().nth(2).unwrap_or(&folder).to_owned();
        let batch = usize::from(options.batch);
        let (file, weights) = match &options.model_file {
            Some(path) => (given(path, batch)?, path.display().to_string()),
            None if batch > 1 => {
                let weights = format!("seeded weights, built in memory for batch {batch}");
                (manifest.architecture.build(batch).encode_to_vec(), weights)
            }
            None => {
                let store = options.store.as_ref().map_or_else(|| Store::beside(&folder), Store::at);
                store.seeded(&manifest)?
            }
        };
        // Before the manifest's counts: the importer says what is wrong with a file, where, and what helps.
        let graph = import(&file, batch).with_context(|| weights.clone())?;
        if options.model_file.is_some() {
            let other = || format!("--model-file {weights} is no {}", manifest.title);
            manifest.verify_trained(&file).with_context(other)?;
        }
        Ok(Model { manifest, batch, file, weights, graph, root })
    }

    /// The plans of its graph in these formats.
    pub fn plans(&self, formats: &[Format]) -> Result<Vec<Plan>> {
        let plan = |&format| Plan::in_format(&self.graph, format).with_context(|| self.weights.clone());
        formats.iter().map(plan).collect()
    }

    /// Inputs that depend on the seed alone.
    pub fn inputs(&self, seed: u64) -> Vec<Vec<f32>> {
        let mut random = Random(seed);
        self.graph.inputs.iter().map(|&id| random.tensor(self.graph.shape(id).count())).collect()
    }

    /// Bytes of the inputs of one run, and of its outputs.
    pub fn bytes(&self) -> [u64; 2] {
        let outputs: u64 = self.manifest.output.iter().map(|output| output.bytes).sum();
        [self.manifest.input.bytes, outputs].map(|bytes| bytes * self.batch as u64)
    }
}

/// Each tensor as a slice.
pub fn views(tensors: &[Vec<f32>]) -> Vec<&[f32]> {
    tensors.iter().map(Vec::as_slice).collect()
}

/// A file that the user names.
fn given(path: &Path, batch: usize) -> Result<Vec<u8>> {
    let name = path.display();
    ensure!(batch == 1, "--model-file {name}: its batch is in the file; leave --batch out");
    std::fs::read(path).with_context(|| format!("--model-file {name}"))
}
