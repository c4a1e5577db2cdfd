//! Options of `profiler run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::engine::Engine;
use crate::{format, model, subject};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    pub model: model::Choice,
    /// What runs the model [default: cuda where there is a GPU with CUDA's toolkit and cuDNN, else cpu; a
    /// line on standard error says which].
    #[arg(long, value_enum)]
    pub engine: Option<Engine>,
    #[command(flatten)]
    pub format: format::Choice,
    /// How a GPU is told to run: with --engine own or cuda [default: self].
    #[arg(long, value_enum)]
    pub launch: Option<Launch>,
    /// Instances side by side, each with inputs of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub instances: u16,
    /// Length of the measurement; at least one run of each instance is measured.
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    pub seconds: f64,
    /// Least number of runs, of all instances together; the measurement goes on until they are done.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub runs: u64,
    /// Time before it in which all instances run and nothing is recorded.
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds)]
    pub warmup: f64,
    /// Threads of one instance: with --engine cpu [default: the cores, shared by the instances].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Append the result to FILE as one line of JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the first instance's inputs and outputs of its run alone to FOLDER: input-0.f32, output-0.f32,
    /// and so on, little-endian values of single precision.
    #[arg(long, value_name = "FOLDER")]
    pub outputs: Option<PathBuf>,
    #[command(flatten)]
    pub gpu: subject::Gpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Launch {
    /// The CPU launches the model's graph and waits for its end, each time.
    Host,
    /// The CPU launches the graph 100 times before it waits.
    Graph,
    /// The graph launches itself.
    #[value(name = "self")]
    #[serde(rename = "self")]
    ByItself,
    /// A WHILE node runs the graph again and again.
    While,
}

impl Options {
    /// The engine that was named, or whose options were; else the usual one, and what a line says of it.
    pub fn engine(&self) -> (Engine, Option<String>) {
        let named = self.launch.is_some() || self.gpu.is_named();
        if let Some(engine) = self.engine.or(named.then_some(Engine::Cuda)) {
            return (engine, None);
        }
        match self.gpu.has_libraries() {
            Ok(found) => (Engine::Cuda, Some(format!("--engine cuda: {found}"))),
            Err(why) => (Engine::Cpu, Some(format!("--engine cpu, in the place of a GPU: {why:#}"))),
        }
    }
}

/// Seconds, a day at most.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("{text} is not within 0 to 86400"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_that_is_none_is_refused() {
        for (text, taken) in [("0", true), ("1.5", true), ("-1", false), ("NaN", false), ("1e300", false)] {
            assert_eq!(seconds(text).is_ok(), taken, "{text}");
        }
    }
}
