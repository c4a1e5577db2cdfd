//! What is known about a model beside its weights: `modelzoo/models/NAME.toml`.
//!
//! Shapes, types, pre-processing, published counts and hashes are taken from here and never from options. A
//! manifest is checked as it is read, against itself; [`Manifest::verify`] checks a model's file against it.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use prost::Message;
use serde::Deserialize;

use crate::count::{count, shape_of};
use crate::onnx::{Model, ValueInfo};
use crate::postprocess::{Answer, Postprocess};
use crate::preprocess::{Image, Layout, Preprocess, test_image};
use crate::{Architecture, Digest};

/// A name that no manifest has.
#[derive(Debug, thiserror::Error)]
#[error("there is no model {model}; {} has: {}", folder.display(), names.join(", "))]
#[allow(missing_docs, reason = "the message says it")]
pub struct UnknownModel {
    pub model: String,
    pub folder: PathBuf,
    pub names: Vec<String>,
}

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// IEEE 754, 32 bits, little-endian.
    F32,
}

impl ElementType {
    /// Bytes of one.
    pub fn bytes(self) -> u64 {
        match self {
            ElementType::F32 => 4,
        }
    }
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Its name in the seeded file.
    pub name: String,
    /// Its elements.
    pub r#type: ElementType,
    /// The extents, batch 1.
    pub shape: Vec<usize>,
    /// Bytes of a message that holds it.
    pub bytes: u64,
}

/// What was published about the model's size.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Weights.
    pub parameters: u64,
    /// Work of one run of batch 1.
    pub macs: u64,
    /// What `macs` counts.
    pub unit: String,
    /// Rows and columns of the input that they hold for.
    pub resolution: [usize; 2],
    /// The publication that states them.
    pub source: String,
}

/// A file, as its maker states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seeded {
    /// SHA-256 of the file that the builder writes: it changes with the builder or the seed only.
    pub sha256: Digest,
    /// Its bytes.
    pub bytes: u64,
}

/// Trained weights, in a published ONNX file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Where the file is.
    pub url: String,
    /// Its SHA-256, as the publisher states it.
    pub sha256: Digest,
    /// Its bytes, likewise.
    pub bytes: u64,
    /// Where the publisher states it.
    pub source: String,
    /// Its licence.
    pub licence: String,
    /// Whether the download was ever tried.
    pub tried: String,
}

/// One model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The file's name without its ending.
    pub name: String,
    /// The model's name in prose.
    pub title: String,
    /// Whether it is small enough for every test run.
    #[serde(default)]
    pub small: bool,
    /// Its builder.
    pub architecture: Architecture,
    /// Its input.
    pub input: Tensor,
    /// Its outputs, in order.
    pub output: Vec<Tensor>,
    /// How an image becomes the input.
    pub preprocess: Preprocess,
    /// What the first output means.
    pub postprocess: Postprocess,
    /// Its published size.
    pub counts: Counts,
    /// The file with seeded weights.
    pub seeded: Seeded,
    /// The file with trained weights, if one is published with its hash.
    pub weights: Option<Weights>,
}

/// What was counted in a file that fits its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Weights.
    pub parameters: u64,
    /// Multiply-accumulates, or why they were not counted.
    pub macs: Result<u64, String>,
}

/// Where the manifests are, from the root of a checkout or a bundle.
pub const FOLDER: &str = "modelzoo/models";

/// The manifests of the checkout or the bundle that the working folder or this program is in.
pub fn folder() -> Option<PathBuf> {
    let here = std::env::current_dir().ok();
    let program = std::env::current_exe().ok();
    let above = here.iter().chain(&program).flat_map(|path| path.ancestors());
    above.map(|folder| folder.join(FOLDER)).find(|folder| folder.is_dir())
}

/// How far counts may be from the published ones, which are rounded.
const TOLERANCE: f64 = 0.01;

impl Manifest {
    /// Reads one file.
    pub fn read(path: &Path) -> Result<Manifest> {
        let text = fs::read_to_string(path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        Manifest::parse(&text, path)
    }

    /// Reads the `.toml` files of these models, or all of a folder if none is named, in the order of their
    /// names. Errors: a wrong file among those read; a name that no file has.
    pub fn all(folder: &Path, models: &[String]) -> Result<Vec<Manifest>> {
        let io = |error| anyhow!("{}: {error}", folder.display());
        let entries: Vec<_> = fs::read_dir(folder).and_then(Iterator::collect).map_err(io)?;
        let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        paths.sort();
        let name = |path: &PathBuf| Some(path.file_stem()?.to_string_lossy().into_owned());
        let names: Vec<String> = paths.iter().filter_map(name).collect();
        if let Some(unknown) = models.iter().find(|model| !names.contains(model)) {
            let (model, folder) = (unknown.clone(), folder.to_owned());
            bail!(UnknownModel { model, folder, names });
        }
        let is_wanted =
            |path: &&PathBuf| models.is_empty() || name(path).is_some_and(|name| models.contains(&name));
        paths.iter().filter(is_wanted).map(|path| Manifest::read(path)).collect()
    }

    /// Reads the manifest of one model, in this folder or else in [`folder`]. Gives the folder too.
    pub fn find(model: &str, folder: Option<&Path>) -> Result<(Manifest, PathBuf)> {
        let folder = folder.map(Path::to_owned).or_else(self::folder).with_context(|| {
            format!("no folder {FOLDER} here or above; run it in a checkout, or name one with --manifests")
        })?;
        let found = Manifest::all(&folder, &[model.to_owned()])?.pop();
        Ok((found.expect("a name that is known gives one manifest"), folder))
    }

    /// Input number `number` of those that test programs send: a test image, pre-processed. The same bytes on
    /// every machine.
    pub fn test_input(&self, number: usize) -> Result<Vec<f32>> {
        let name = format!("{} input {number}", self.name);
        let [height, width] = self.preprocess.crop;
        self.preprocess.run(&test_image(&name, height, width))
    }

    /// What the first output, of one image, says of the image that its input was made of.
    pub fn answer(&self, image: &Image, output: &[f32]) -> Result<Answer> {
        self.postprocess.answer(&self.preprocess, image, (&self.output[0].shape, output))
    }

    /// Takes a manifest's text. `path` is for messages, and must end in the model's name.
    pub fn parse(text: &str, path: &Path) -> Result<Manifest> {
        let manifest: Manifest = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            anyhow!("{}:{line}: {}", path.display(), error.message())
        })?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        manifest.check(&stem).map_err(|what| anyhow!("{}: {what}", path.display()))?;
        Ok(manifest)
    }

    fn check(&self, stem: &str) -> Result<()> {
        ensure!(stem == self.name, "name is {:?}, the file's is {stem:?}", self.name);
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        if !self.name.bytes().all(plain) || self.name.starts_with('.') {
            bail!("name {:?} has other characters than a-z, 0-9, - and .", self.name);
        }
        if self.output.is_empty() {
            bail!("there is no output");
        }
        for tensor in self.output.iter().chain([&self.input]) {
            let elements =
                tensor.shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent as u64));
            let bytes = elements.and_then(|elements| elements.checked_mul(tensor.r#type.bytes()));
            if bytes != Some(tensor.bytes) || tensor.bytes == 0 || tensor.shape.first() != Some(&1) {
                let Tensor { name, shape, bytes, .. } = tensor;
                bail!("{name}: {bytes} bytes are not those of shape {shape:?} with batch 1");
            }
        }
        self.preprocess.check().map_err(|error| anyhow!("preprocess: {error}"))?;
        let ([height, width], channels) = (self.preprocess.crop, self.preprocess.channels.weights().len());
        let image = match self.preprocess.layout {
            Layout::Nchw => [1, channels, height, width],
            Layout::Nhwc => [1, height, width, channels],
        };
        if self.input.shape != image {
            bail!("preprocess gives {image:?}, input has {:?}", self.input.shape);
        }
        if let Architecture::SuperResolution { factor, height: rows, width: columns } = self.architecture {
            let output = &self.output[0].shape;
            // The crop is checked above: no product overflows.
            let fits = [rows, columns] == [height, width] && (1..=16).contains(&factor);
            if !fits || output[..] != [1, 1, rows * factor, columns * factor] {
                bail!(
                    "{rows} × {columns} pixels times {factor} (1 to 16) are not input {:?} and output {output:?}",
                    self.input.shape
                );
            }
        }
        if self.counts.resolution != [height, width] {
            bail!("counts hold for {:?}, input has {height} × {width}", self.counts.resolution);
        }
        self.postprocess.check([height, width], &self.output[0].shape)?;
        match &self.weights {
            Some(weights) if !weights.url.starts_with("https://") => {
                bail!("weights: {:?} is no https address", weights.url)
            }
            Some(weights) if weights.bytes == 0 || weights.tried.is_empty() || weights.licence.is_empty() => {
                bail!("weights: bytes, licence and tried must say something")
            }
            _ => Ok(()),
        }
    }

    /// The file with seeded weights, batch 1, as the builder writes it today.
    pub fn build(&self) -> Vec<u8> {
        self.architecture.build(1).encode_to_vec()
    }

    /// Name of the seeded file in a [`Store`](crate::Store).
    pub fn seeded_file(&self) -> String {
        format!("{}.seeded.onnx", self.name)
    }

    /// Name of the trained file in a [`Store`](crate::Store).
    pub fn trained_file(&self) -> String {
        format!("{}.trained.onnx", self.name)
    }

    /// Checks the seeded file: hash, names, shapes, bytes, and counts against the published ones.
    pub fn verify(&self, file: &[u8]) -> Result<Verified> {
        let Seeded { sha256, bytes } = self.seeded;
        let found = Digest::of(file);
        if (found, file.len() as u64) != (sha256, bytes) {
            let what = format!(
                "the seeded file has SHA-256 {found} and {} bytes, the manifest says {sha256} and {bytes}",
                file.len()
            );
            return Err(self.wrong(what));
        }
        let model = self.decode(file)?;
        let graph = model.graph.unwrap_or_default();
        let names = |values: &[ValueInfo]| values.iter().map(|value| value.name.clone()).collect::<Vec<_>>();
        let wanted: Vec<_> = self.output.iter().map(|output| output.name.clone()).collect();
        if names(&graph.input) != [self.input.name.clone()] || names(&graph.output) != wanted {
            return Err(self.wrong(format!(
                "inputs {:?}, outputs {:?}",
                names(&graph.input),
                names(&graph.output)
            )));
        }
        let verified = self.verify_trained(file)?;
        match &verified.macs {
            Ok(_) => Ok(verified),
            Err(error) => Err(self.wrong(error)),
        }
    }

    /// Checks a published file: shapes and counts. Its names and its fused operators are its maker's.
    pub fn verify_trained(&self, file: &[u8]) -> Result<Verified> {
        let model = self.decode(file)?;
        let graph = model.graph.clone().unwrap_or_default();
        let weights: std::collections::BTreeSet<&str> =
            graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
        let inputs = graph.input.iter().filter(|input| !weights.contains(input.name.as_str()));
        let values: Vec<&ValueInfo> = inputs.chain(&graph.output).collect();
        let wanted: Vec<&Tensor> = [&self.input].into_iter().chain(&self.output).collect();
        if values.len() != wanted.len() {
            return Err(self.wrong(format!("{} inputs and outputs, not {}", values.len(), wanted.len())));
        }
        for (value, wanted) in values.into_iter().zip(wanted) {
            let shape = shape_of(value).map_err(|error| self.wrong(error))?;
            if shape != wanted.shape {
                return Err(self
                    .wrong(format!("{} has shape {shape:?}, the manifest {:?}", value.name, wanted.shape)));
            }
        }
        let counted = count(&model);
        let parameters =
            counted.as_ref().map_or_else(|_| crate::count::parameters(&graph), |count| count.parameters);
        self.near("parameters", parameters, self.counts.parameters)?;
        let macs = counted.map(|count| count.macs()).map_err(|error| error.to_string());
        if let Ok(macs) = macs {
            self.near("multiply-accumulates", macs, self.counts.macs)?;
        }
        Ok(Verified { parameters, macs })
    }

    fn near(&self, what: &str, found: u64, published: u64) -> Result<()> {
        match (found as f64 / published as f64 - 1.0).abs() <= TOLERANCE {
            true => Ok(()),
            false => Err(self.wrong(format!("{found} {what}, published are {published}"))),
        }
    }

    fn decode(&self, file: &[u8]) -> Result<Model> {
        Model::decode(file).map_err(|error| {
            self.wrong(format!("no ONNX file, or only a part of one: {error}; export or fetch it again"))
        })
    }

    fn wrong(&self, what: impl Display) -> anyhow::Error {
        anyhow!("{}: {what}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X3: &str = include_str!("../../../modelzoo/models/super-resolution-x3.toml");
    const SQUEEZENET: &str = include_str!("../../../modelzoo/models/squeezenet-1.1.toml");

    fn parse(text: &str) -> Result<Manifest> {
        Manifest::parse(text, Path::new("modelzoo/models/super-resolution-x3.toml"))
    }

    fn committed() -> Vec<Manifest> {
        Manifest::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../modelzoo/models"), &[]).unwrap()
    }

    #[test]
    fn a_file_that_is_wrong_stops_its_own_model_alone() {
        let folder = std::env::temp_dir().join(format!("zoo-manifests-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../modelzoo/models/squeezenet-1.1.toml");
        fs::copy(good, folder.join("squeezenet-1.1.toml")).unwrap();
        fs::write(folder.join("wrong.toml"), "mcas = 1").unwrap();
        let all = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Manifest::all(&folder, &names).map(|found| found.len()).map_err(|error| error.to_string())
        };
        assert_eq!(all(&["squeezenet-1.1"]), Ok(1));
        for (names, words) in
            [(&[][..], "wrong.toml:"), (&["wrong"], "wrong.toml:"), (&["no"], "has: squeezenet-1.1, wrong")]
        {
            let error = all(names).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_model_is_found_by_name_and_its_test_inputs_differ() {
        let (manifest, folder) = Manifest::find("super-resolution-x1", None).unwrap();
        assert!(folder.ends_with(FOLDER), "{folder:?}");
        let inputs: Vec<_> = (0..3).map(|number| manifest.test_input(number).unwrap()).collect();
        assert!(inputs.iter().all(|input| input.len() as u64 * 4 == manifest.input.bytes));
        assert!(inputs[0] != inputs[1] && inputs[1] != inputs[2] && inputs[0] != inputs[2]);
        assert_eq!(inputs[1], manifest.test_input(1).unwrap());
        let error = Manifest::find("no-model", None).unwrap_err().to_string();
        assert!(error.contains("has: mobilenet"), "{error}");
    }

    #[test]
    fn release_r3_every_manifest_describes_what_its_builder_writes() {
        let (manifests, folder) =
            (committed(), concat!(env!("CARGO_MANIFEST_DIR"), "/../../modelzoo/models"));
        assert_eq!(manifests.len(), fs::read_dir(folder).unwrap().count());
        for manifest in &manifests {
            let file = manifest.build();
            let verified = manifest.verify(&file).unwrap();
            assert_eq!(verified.parameters, manifest.counts.parameters, "{}", manifest.name);
        }
    }

    #[test]
    fn an_unknown_key_or_a_wrong_value_is_named_with_its_line() {
        parse(X3).unwrap();
        for (from, to, words) in [
            ("title =", "titel =", &["x3.toml:3:", "titel"][..]),
            ("factor = 3", "factor = 3, faktor = 4", &["x3.toml:5:", "faktor"]),
            ("builder = \"super-resolution\"", "builder = \"alexnet\"", &["x3.toml:5:", "alexnet"]),
            ("type = \"f32\"", "type = \"f16\"", &["x3.toml:10:", "f16", "f32"]),
            ("sha256 = \"052d", "sha256 = \"52d", &["64 hexadecimal digits"]),
            ("layout = \"nchw\"", "", &["layout"]),
            ("layout = \"nchw\"", "layout = \"nchw\"\nantialias = true", &["antialias"]),
        ] {
            assert!(X3.contains(from), "{from}");
            let error = parse(&X3.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (from, to, words) in [
            (
                "name = \"super-resolution-x3\"",
                "name = \"super-resolution-x4\"",
                "the file's is \"super-resolution-x3\"",
            ),
            ("bytes = 200704", "bytes = 200700", "input: 200700 bytes"),
            ("shape = [1, 1, 672, 672]", "shape = [2, 1, 672, 672]", "output: 1806336 bytes"),
            ("shape = [1, 1, 672, 672]\nbytes = 1806336", "shape = []\nbytes = 4", "output: 4 bytes"),
            ("shape = [1, 1, 672, 672]", "shape = [4294967296, 4294967296, 2]", "output: 1806336 bytes"),
            ("crop = [224, 224]", "crop = [224, 200]", "preprocess gives [1, 1, 224, 200]"),
            ("crop = [224, 224]", "crop = [225, 224]", "does not fit"),
            ("layout = \"nchw\"", "layout = \"nhwc\"", "preprocess gives [1, 224, 224, 1]"),
            ("channels = \"luminance\"", "channels = \"rgb\"", "1 values for 3 channels"),
            ("resolution = [224, 224]", "resolution = [640, 480]", "counts hold for [640, 480]"),
            ("{ kind = \"luminance\" }", "{ kind = \"logits\", classes = 10 }", "10 classes"),
            ("factor = 3", "factor = 4294967296", "(1 to 16)"),
            ("factor = 3", "factor = 4", "times 4"),
            ("url = \"https:", "url = \"http:", "no https address"),
            ("tried = \"untried: no network\"", "tried = \"\"", "tried"),
        ] {
            assert!(X3.contains(from), "{from}");
            let error = parse(&X3.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("super-resolution-x3.toml"), "{from}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_not_the_manifest_s_is_refused() {
        let manifest = parse(X3).unwrap();
        let file = manifest.build();
        let mut changed = file.clone();
        changed[1000] ^= 1;
        assert!(manifest.verify(&changed).unwrap_err().to_string().contains("SHA-256"));
        // The same hashes in the manifest: what is wrong is the file's content.
        let with = |manifest: &Manifest, file: &[u8]| {
            let seeded = Seeded { sha256: Digest::of(file), bytes: file.len() as u64 };
            Manifest { seeded, ..manifest.clone() }.verify(file).unwrap_err().to_string()
        };
        for (factor, height, words) in [(2, 224, "output has shape"), (3, 112, "input has shape")] {
            let architecture = Architecture::SuperResolution { factor, height, width: 224 };
            let error = with(&manifest, &architecture.build(1).encode_to_vec());
            assert!(error.contains(words), "{error}");
        }
        assert!(with(&manifest, &file[..1000]).contains("no ONNX file"));
        let squeezenet = Manifest::parse(SQUEEZENET, Path::new("squeezenet-1.1.toml")).unwrap();
        let error = with(&squeezenet, &Architecture::MobileNetV3Small.build(1).encode_to_vec());
        assert!(error.contains("2542856 parameters, published are 1235496"), "{error}");
        let mut model = manifest.architecture.build(1);
        let graph = model.graph.as_mut().unwrap();
        (graph.input[0].name, graph.node[0].input[0]) = ("x".to_owned(), "x".to_owned());
        assert!(with(&manifest, &model.encode_to_vec()).contains("inputs [\"x\"]"));
        model.graph.as_mut().unwrap().node[0].op_type = "QLinearConv".to_owned();
        let trained = manifest.verify_trained(&model.encode_to_vec()).unwrap();
        assert_eq!(trained.parameters, 59_657);
        assert!(trained.macs.unwrap_err().to_string().contains("QLinearConv"));
    }
}
