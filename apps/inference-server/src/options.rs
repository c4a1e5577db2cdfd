//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use cli::Nic;
use pipeline::Mode;

/// Serves models to clients over RDMA.
#[derive(Debug, Parser)]
#[command(
    name = "inference-server",
    version = cli::VERSION,
    after_help = "It needs an RDMA device. On a host without one, start it under the software NIC: \
                  softnic run -- inference-server --listen 127.0.0.1:7000 --model squeezenet-1.1"
)]
pub struct Options {
    /// Accept clients that connect here; port 0: any.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: String,
    /// Name of a model; `cargo xtask zoo list` has them. Give it again for a further model.
    #[arg(long = "model", value_name = "NAME", required = true)]
    pub models: Vec<String>,
    /// How requests are served. In the paper's release the first two are cpu-cpu, then cpu-gpu, gpu-cpu, and gpu-graph is
    /// gpu-gpu; the last two are new.
    #[arg(long, default_value = "cpu-cpu-ibverbs", value_parser = mode)]
    pub mode: Mode,
    /// What runs a model in a CPU mode.
    #[arg(long, value_enum, default_value = "onnx")]
    pub engine: Engine,
    /// Threads of ONNX Runtime for each model.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Library of ONNX Runtime, or its folder [default: DOORBELL_ONNXRUNTIME, what set-up fetched, or Python's package].
    #[arg(long, value_name = "PATH")]
    pub onnxruntime: Option<PathBuf>,
    /// Slots of each model: requests that all its clients together may have in flight.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub slots: u32,
    /// Most slots of one client.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub slots_per_client: u16,
    /// Most memory for the slots of all models.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub memory: u64,
    /// Most connections at a time.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: u16,
    /// Serve only queue pairs of this service [default: the client chooses].
    #[arg(long, value_enum)]
    pub transport: Option<TransportName>,
    /// Serve only clients whose messages arrive this way [default: the client chooses].
    #[arg(long, value_enum)]
    pub arrival: Option<ArrivalName>,
    /// Runs of each model before it listens.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warmup: u32,
    /// End when so many clients have left; 0: serve until it is stopped.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub sessions: u64,
    /// End after this time, as by a signal.
    #[arg(long, value_name = "S")]
    pub max_seconds: Option<u32>,
    /// Folder of the manifests [default: modelzoo/models, in this folder, in the program's, or above].
    #[arg(long, value_name = "FOLDER")]
    pub manifests: Option<PathBuf>,
    /// Folder of the built models [default: target/zoo beside modelzoo, or zoo in a bundle].
    #[arg(long, value_name = "FOLDER")]
    pub store: Option<PathBuf>,
    /// Device and port.
    #[command(flatten)]
    pub nic: Nic,
    /// Write JSON lines to this file; - is standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

fn mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|error: pipeline::UnknownMode| error.to_string())
}

/// What runs a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// ONNX Runtime on the processor.
    Onnx,
    /// Our kernels on the host twin, which is slow and tells nothing about speed.
    Twin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    /// Reliable connection.
    Rc,
    /// Unreliable connection: messages may be lost.
    Uc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrivalName {
    /// A second WRITE, of a flag.
    Flag,
    /// The last bytes of the message.
    Tail,
    /// A receive completion.
    Completion,
}

impl Options {
    /// Whether such a server can be.
    pub fn check(&self) -> Result<()> {
        if self.mode.needs_gpu() {
            bail!(
                "--mode {}: the modes with a GPU are not served yet; give --mode cpu-cpu-ibverbs or cpu-cpu-shim",
                self.mode
            );
        }
        if let Some(twice) = (1..self.models.len()).find(|&at| self.models[..at].contains(&self.models[at])) {
            bail!("--model {}: named twice", self.models[twice]);
        }
        Ok(())
    }

    /// Whether the slots fit into the memory. `each`: name and bytes of a slot of each model.
    pub fn check_memory(&self, each: &[(String, u64)]) -> Result<()> {
        let all: u64 = each.iter().map(|(_, bytes)| bytes).sum();
        let needed = all.saturating_mul(self.slots.into());
        if needed <= self.memory {
            return Ok(());
        }
        let names: Vec<String> = each.iter().map(|(name, bytes)| format!("{name}: {bytes}")).collect();
        bail!(
            "--slots {}: {needed} bytes (a slot of {}), --memory allows {}: give at most --slots {}",
            self.slots,
            names.join(", "),
            self.memory,
            self.memory / all.max(1)
        )
    }

    pub fn max_time(&self) -> Duration {
        self.max_seconds.map_or(Duration::MAX, |seconds| Duration::from_secs(seconds.into()))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(text: &str) -> Options {
        let words = format!("server --listen h:1 --model a {text}");
        Options::try_parse_from(words.split_whitespace()).unwrap()
    }

    #[test]
    fn options_are_consistent_and_every_mode_has_its_name() {
        Options::command().debug_assert();
        for mode in Mode::ALL {
            let checked = parse(&format!("--mode {mode}")).check();
            assert_eq!(checked.is_err(), mode.needs_gpu(), "{mode}");
        }
        assert!(parse("--model b --model a").check().unwrap_err().to_string().contains("a: named twice"));
    }

    #[test]
    fn slots_beyond_the_memory_are_refused_with_the_number_that_fits() {
        let each = [("a".to_owned(), 60), ("b".to_owned(), 40)];
        parse("--slots 10 --memory 1000").check_memory(&each).unwrap();
        let error = parse("--slots 11 --memory 1099").check_memory(&each).unwrap_err().to_string();
        assert!(error.contains("1100 bytes") && error.ends_with("at most --slots 10"), "{error}");
    }
}
