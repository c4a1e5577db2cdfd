//! `cargo xtask zoo`: lists the models, builds them with seeded weights, fetches trained ones, and verifies
//! the files.
//!
//! `modelzoo/models` says everything about a model; the files lie in a store, in a checkout below cargo's
//! target folder. Building needs no network, and gives the same bytes on every machine: a bundle carries the
//! manifests and builds the files where it is.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use zoo::{Manifest, Store, StoreError, UnknownModel, Verified, Weights};

use crate::refused::{nearest, refused};
use crate::{carried, stop, workspace};

mod fetch;

use fetch::{Client, mendable};

/// Where the manifests are, from the root.
const MANIFESTS: &str = "modelzoo/models";
/// Lines that a download gives where no bar can be drawn.
const LINES: u64 = 10;

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// What models there are, how large they are, and which files are there.
    List(ModelSelection),
    /// Write the models with seeded weights; needs no network.
    Build(ModelSelection),
    /// Download trained weights, or take them from a file.
    Fetch {
        #[command(flatten)]
        which: ModelSelection,
        /// The published file, which you have already: its hash is checked as well.
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// Check files against their manifests: hashes, shapes, bytes, parameters, multiply-accumulates.
    Verify(ModelSelection),
}

#[derive(Args)]
struct ModelSelection {
    /// Models [default: all].
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// The small models only.
    #[arg(long, conflicts_with = "models")]
    small: bool,
    /// Folder of the files [default: target/zoo; in a bundle, zoo in its folder].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

/// Where the files are without --store.
pub fn folder() -> PathBuf {
    carried::folder().map_or_else(|| workspace::target_dir().join("zoo"), |bundle| bundle.join("zoo"))
}

pub fn manifests() -> PathBuf {
    workspace::root().join(MANIFESTS)
}

impl ModelSelection {
    fn store(&self) -> Store {
        Store::at(self.store.clone().unwrap_or_else(folder))
    }

    fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut manifests = Manifest::all(&manifests(), &self.models).map_err(|error| {
            let unknown: Option<&UnknownModel> = error.downcast_ref();
            let nearest = unknown.map_or_else(String::new, |it| nearest(&it.model, &it.names));
            refused(format!("{error}{nearest}"))
        })?;
        manifests.retain(|model| !self.models.is_empty() || model.small || !self.small);
        Ok(manifests)
    }
}

pub fn run(options: &Options) -> Result<()> {
    match &options.action {
        Action::List(which) => {
            list(which)?.iter().for_each(|row| say!("{row}"));
            Ok(())
        }
        Action::Build(which) => build(which),
        Action::Fetch { which, from } => fetch(which, from.as_deref()),
        Action::Verify(which) => verify(which),
    }
}

/// A header, and a row for each model.
fn list(which: &ModelSelection) -> Result<Vec<String>> {
    let store = which.store();
    let head =
        "model                   parameters MACs, 10^6  input, B output, B  seeded; trained".to_owned();
    let row = |model: Manifest| {
        let outputs: u64 = model.output.iter().map(|output| output.bytes).sum();
        let seeded = state(store.check(&model.seeded_file(), model.seeded.sha256), "not built");
        let trained = model.weights.as_ref().map_or_else(
            || "none are published".to_owned(),
            |weights| state(store.check(&model.trained_file(), weights.sha256), &weights.tried),
        );
        let (parameters, macs) = (model.counts.parameters, model.counts.macs as f64 / 1e6);
        format!(
            "{:22} {parameters:>11} {macs:>10.0} {:>9} {outputs:>9}  {seeded}; {trained}",
            model.name, model.input.bytes
        )
    };
    Ok([head].into_iter().chain(which.manifests()?.into_iter().map(row)).collect())
}

/// A file in words; `missing` where there is none.
fn state(checked: Result<PathBuf, StoreError>, missing: &str) -> String {
    match checked {
        Ok(_) => "there".to_owned(),
        Err(StoreError::Missing { .. }) => missing.to_owned(),
        Err(error) => error.to_string(),
    }
}

fn build(which: &ModelSelection) -> Result<()> {
    let store = which.store();
    for model in which.manifests()? {
        let (file, wanted) = (model.seeded_file(), model.seeded.sha256);
        if let Ok(path) = store.check(&file, wanted) {
            say!("{}: there already", path.display());
            continue;
        }
        let bytes = model.build();
        let (name, count) = (&model.name, bytes.len());
        let path = store.write(&file, &bytes, wanted).map_err(|error| match error {
            StoreError::Refused { found, .. } => refused(format!(
                "{name}: the builder writes SHA-256 {found} and {count} bytes, {MANIFESTS}/{name}.toml says {wanted}; if \
                 the architecture was changed on purpose, change [seeded] there"
            )),
            error => mendable(error),
        })?;
        say!("{}: {} bytes, SHA-256 {wanted}", path.display(), bytes.len());
    }
    Ok(())
}

fn fetch(which: &ModelSelection, from: Option<&Path>) -> Result<()> {
    let store = which.store();
    let models = which.manifests()?;
    if from.is_some() && which.models.len() != 1 {
        return Err(refused("--from: name the one model whose weights the file has"));
    }
    let client = Client::new();
    for model in models {
        match &model.weights {
            Some(weights) => say!("{}", take(&store, &model, weights, from, &client)?),
            None => say!("{}: no trained weights are published", model.name),
        }
    }
    Ok(())
}

/// Gets one model's trained file, and returns what is in it.
fn take(
    store: &Store,
    model: &Manifest,
    weights: &Weights,
    from: Option<&Path>,
    client: &Client,
) -> Result<String> {
    let file = model.trained_file();
    let path = match (store.check(&file, weights.sha256), from) {
        (Ok(path), _) => path,
        (Err(_), Some(from)) => {
            let bytes =
                std::fs::read(from).map_err(|error| refused(format!("{}: {error}", from.display())))?;
            store.write(&file, &bytes, weights.sha256).map_err(mendable)?
        }
        (Err(_), None) => over_http(store, model, weights, client)?,
    };
    let bytes = store.read(&file, weights.sha256).map_err(mendable)?;
    let verified = model.verify_trained(&bytes).map_err(mendable)?;
    Ok(format!("{}: {}, {}", path.display(), in_words(model, &verified), weights.licence))
}

fn over_http(store: &Store, model: &Manifest, weights: &Weights, client: &Client) -> Result<PathBuf> {
    let partial = store.resume(&model.trained_file()).map_err(mendable)?;
    stop::goes_on_with(format!("{} zoo fetch {} goes on", workspace::us(), model.name));
    let bar = ProgressBar::new(weights.bytes);
    let style = "{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).context("the bar's template")?);
    bar.set_message(model.name.clone());
    let plain = !std::io::stderr().is_terminal();
    let mut told = 0;
    let mut show = |bytes: u64| {
        bar.set_position(bytes);
        let tenth = bytes * LINES / weights.bytes;
        if plain && tenth > told {
            told = tenth;
            tell!("{}: {bytes} of {} bytes", model.name, weights.bytes);
        }
    };
    let fetched = fetch::download(client, weights, partial, &mut show);
    bar.finish_and_clear();
    fetched
}

fn verify(which: &ModelSelection) -> Result<()> {
    let store = which.store();
    let (mut wrong, mut missing) = (0, 0);
    for model in which.manifests()? {
        match store.read(&model.seeded_file(), model.seeded.sha256) {
            Err(StoreError::Missing { path }) => {
                let us = workspace::us();
                say!("{} seeded: not built: {}; {us} zoo build {0}", model.name, path.display());
                missing += 1;
            }
            seeded => wrong += tell_verified(&model, "seeded", seeded, Manifest::verify),
        }
        let Some(weights) = &model.weights else { continue };
        match store.read(&model.trained_file(), weights.sha256) {
            Err(StoreError::Missing { .. }) => {
                say!("{} trained: not here ({})", model.name, weights.tried);
            }
            trained => wrong += tell_verified(&model, "trained", trained, Manifest::verify_trained),
        }
    }
    match (wrong, missing) {
        (0, 0) => Ok(()),
        (0, _) => bail!("zoo verify: {missing} files are not built yet; nothing is wrong with the others"),
        _ => bail!("zoo verify: {wrong} files are not what their manifests say"),
    }
}

/// Says what was found, and counts a file that is wrong.
fn tell_verified(
    model: &Manifest,
    what: &str,
    read: Result<Vec<u8>, StoreError>,
    verify: fn(&Manifest, &[u8]) -> Result<Verified>,
) -> usize {
    let read = read.map_err(|error| error.to_string());
    match read.and_then(|bytes| verify(model, &bytes).map_err(|error| error.to_string())) {
        Ok(verified) => {
            let outputs: u64 = model.output.iter().map(|output| output.bytes).sum();
            let words = in_words(model, &verified);
            say!("{} {what}: {words}, {} bytes in, {outputs} out", model.name, model.input.bytes);
            0
        }
        Err(error) => {
            say!("{} {what}: WRONG: {error}", model.name);
            1
        }
    }
}

/// Counts beside the published ones.
fn in_words(model: &Manifest, verified: &Verified) -> String {
    let macs = match &verified.macs {
        Ok(macs) => {
            format!("{:.1}e6 MACs (published {:.0}e6)", *macs as f64 / 1e6, model.counts.macs as f64 / 1e6)
        }
        Err(error) => format!("MACs not counted ({error})"),
    };
    format!("{} parameters (published {}), {macs}", verified.parameters, model.counts.parameters)
}

#[cfg(test)]
mod tests;
