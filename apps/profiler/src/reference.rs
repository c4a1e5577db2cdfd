//! `profiler reference`: a file with what an engine computes for test inputs, for clients of a server.
//!
//! The file has little-endian values of single precision: the outputs of the first input, one behind the
//! other, then those of the second, and so on. The inputs are `Manifest::test_input`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::single_run;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    choice: single_run::Choice,
    /// Number of test inputs.
    #[arg(long, value_name = "K", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    inputs: u16,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Writes the file.
pub fn run(options: &Options) -> Result<bool> {
    let (model, mut compute) = options.choice.load()?;
    let mut bytes = Vec::new();
    for number in 0..usize::from(options.inputs) {
        let input = model.manifest.test_input(number)?;
        let outputs = compute(&[&input]).with_context(|| format!("test input {number}"))?;
        bytes.extend(outputs.iter().flatten().flat_map(|value| value.to_le_bytes()));
    }
    measure::write_whole(&options.out, &bytes).with_context(|| format!("--out {}", options.out.display()))?;
    let inputs = options.inputs;
    say!(
        "{}: outputs of {inputs} test inputs, {} bytes: {}",
        model.manifest.title,
        bytes.len(),
        model.weights
    );
    Ok(true)
}
