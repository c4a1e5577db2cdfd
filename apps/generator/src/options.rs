//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use cli::{Nic, name};
use generator::kernel::generate::Style;
use measure::Label;
use rdma_shim::{Doorbell, Options, Order};

use crate::kernel_options::KernelOptions;
use crate::kernel_sender;
use crate::plan::{Op, Plan, Service, Verify};
use crate::poster::{Kind, PosterName};
use crate::report::PosterNames;
use crate::sender::StopCondition;

/// Sends RDMA messages to a receiver in another process, as fast as one thread can post them.
#[derive(Debug, Parser)]
#[command(
    name = "generator",
    version = cli::VERSION,
    args_conflicts_with_subcommands = true,
    after_help = "The shim is this project's posting code: it writes work requests and rings doorbells without libmlx5. The host \
                  twin runs its GPU kernels on threads of this CPU.\n\n\
                  Both ends need an RDMA device. On a host without one, start them under the software NIC: \
                  softnic run -- generator --listen 127.0.0.1:7000"
)]
pub struct Cli {
    /// What to do besides sending and receiving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of sending and receiving.
    #[command(flatten)]
    pub transfer: Transfer,
}

/// Commands besides sending and receiving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the RDMA devices of this host.
    Probe(Probe),
    /// Measure the time of a post: libmlx5 and the shim in turn, on two queue pairs of one device.
    BenchPost(BenchPost),
    /// Measure a GPU's time of a post without a NIC: the shim, gpunetio (--peer-headers), the original style.
    BenchPostGpu(BenchPostGpu),
    /// Measure what two processes of this machine achieve without a NIC.
    Baseline(Baseline),
}

#[derive(Debug, Args)]
pub struct Probe {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchPost {
    /// Device and port.
    #[command(flatten)]
    pub nic: Nic,
    /// Bytes of each WRITE.
    #[arg(long, default_value_t = 64)]
    pub payload: u32,
    /// Bursts of each kind of post.
    #[arg(long, default_value_t = 3000)]
    pub rounds: u32,
    /// Write JSON to this file; - is standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct BenchPostGpu {
    /// Headers of gpunetio, to measure its doca_gpu_dev_verbs_put as well: the folder
    /// nvidia/nvshmem/include/gpunetio of the pip package nvidia-nvshmem-cu13 3.8.0.
    #[arg(long, value_name = "DIR")]
    pub peer_headers: Option<PathBuf>,
    /// Measure only the rows with a requirement, with fewer posts and 3 rounds.
    #[arg(long)]
    pub quick: bool,
    /// Runs of each side of a row [default: 7].
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Measure only the rows whose name contains this.
    #[arg(long, value_name = "ROW")]
    pub only: Option<String>,
    /// Print the names of the rows and exit.
    #[arg(long)]
    pub list: bool,
    /// Write JSON lines to this file; - is standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Baseline {
    /// What is measured.
    pub what: BaselineKind,
    /// Bytes of a copy (process-vm-writev only).
    #[arg(long, default_value_t = 65536)]
    pub bytes: usize,
    /// Seconds to measure; with --listen the other end decides.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Cores of the two processes, as 0,1 [default: the first two available]. udp-ping-pong pins neither.
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<u32>,
    /// Answer at this address (udp-ping-pong only).
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    pub listen: Option<SocketAddr>,
    /// Measure against the process that listens at this address (udp-ping-pong only).
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub connect: Option<SocketAddr>,
    /// Write JSON to this file; - is standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BaselineKind {
    /// Half a round trip between two flags in shared memory.
    FlagPingPong,
    /// Words a second through a ring in shared memory.
    WordRing,
    /// Bytes a second by `process_vm_writev`.
    ProcessVmWritev,
    /// Half a round trip of 8 bytes between two polled UDP sockets, one process each (--listen, --connect).
    UdpPingPong,
}

/// The shim's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// A fence between doorbell record and register.
    Strict,
    /// No fence there.
    Early,
}

/// The shim's doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoorbellName {
    /// An 8-byte write.
    #[value(name = "8-bytes")]
    EightBytes,
    /// A single WQE is written through the register, as libmlx5 does.
    #[value(name = "blueflame")]
    BlueFlame,
}

/// Options of sending and receiving.
#[derive(Debug, Args)]
pub struct Transfer {
    /// Receive: wait for a sender at this address. Port 0: a free port, named in the first line of output.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Send to the receiver that listens at this address.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,
    /// Device and port.
    #[command(flatten)]
    pub nic: Nic,
    /// Code that posts.
    #[arg(long, value_enum, default_value = "cpu-ibverbs")]
    pub poster: PosterName,
    /// Operation that carries a message.
    #[arg(long, value_enum, default_value = "write")]
    pub op: Op,
    /// Transport service.
    #[arg(long, value_enum, default_value = "rc")]
    pub service: Service,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64)]
    pub payload: u64,
    /// Messages for each completion: the last of so many asks for one [default: 64, fewer of large messages].
    #[arg(long)]
    pub batch: Option<u32>,
    /// Messages that one doorbell tells the NIC of [default: 1, with warps 32].
    #[arg(long)]
    pub doorbell_batch: Option<u32>,
    /// Most messages in flight on a queue pair: posted, not completed [default: 512, fewer above 64 MiB].
    #[arg(long)]
    pub window: Option<u32>,
    /// Queue pairs, used in turn.
    #[arg(long, default_value_t = 1)]
    pub qps: u32,
    /// Idle queue pairs that the sender opens and connects as well, to measure what they cost the busy ones.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=16000))]
    pub idle_qps: u32,
    /// Messages to send in all [default: a million, without --seconds].
    #[arg(long, conflicts_with = "seconds")]
    pub count: Option<u64>,
    /// Seconds to send.
    #[arg(long, allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// Run the same transfer for this many seconds first, in a separate session that is in no result.
    #[arg(long, allow_negative_numbers = true)]
    pub warm_up: Option<f64>,
    /// Send single messages, this many seconds apart, to measure the first post after idling (needs --count).
    #[arg(long, requires = "count", conflicts_with_all = ["batch", "doorbell_batch", "qps"])]
    pub pause: Option<f64>,
    /// Copy the payload into the WQE.
    #[arg(long)]
    pub inline: bool,
    /// Which messages the receiver compares with what was sent.
    #[arg(long, value_enum, default_value = "end")]
    pub verify: Verify,
    /// Whether the shim fences between its two stores of a doorbell, record and register.
    #[arg(long, value_enum, default_value = "strict")]
    pub order: OrderName,
    /// How the shim writes the doorbell register.
    #[arg(long, value_enum, default_value = "8-bytes")]
    pub doorbell: DoorbellName,
    /// Kernels.
    #[command(flatten)]
    pub kernels: KernelOptions,
    /// Senders that the receiver serves, one after another; 0: until it is stopped.
    #[arg(long, default_value_t = 1)]
    pub sessions: u64,
    /// Write JSON lines to this file; - is standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Transfer {
    /// The plan, or which number does not fit.
    pub fn plan(&self) -> Result<Plan> {
        let plan = Plan {
            op: self.op,
            service: self.service,
            payload_bytes: self.payload,
            qps: self.qps,
            batch: 0,
            doorbell_batch: self.doorbell_batch.unwrap_or_else(|| self.kernels.doorbell_batch(self.poster)),
            window: 0,
            inline: self.inline,
            verify: self.verify,
        };
        let batch = if self.pause.is_some() { Some(1) } else { self.batch };
        plan.fitted(batch, self.window).map_err(anyhow::Error::msg)
    }

    /// When to stop.
    pub fn until(&self) -> Result<StopCondition> {
        match (self.count, self.seconds) {
            (Some(0), _) => bail!("--count 0 sends nothing: give 1 or more"),
            (Some(count), _) => Ok(StopCondition::Count(count)),
            (None, Some(seconds)) => Ok(StopCondition::Elapsed(time("--seconds", seconds, 86400.0)?)),
            (None, None) => Ok(StopCondition::Count(1_000_000)),
        }
    }

    /// Time of the warm-up.
    pub fn warm_up(&self) -> Result<Option<Duration>> {
        self.warm_up.map(|seconds| time("--warm-up", seconds, 60.0)).transpose()
    }

    /// Idle time before each message.
    pub fn pause(&self) -> Result<Option<Duration>> {
        self.pause.map(|seconds| time("--pause", seconds, 60.0)).transpose()
    }

    /// The code that posts. Errors: options that do not go together.
    pub fn poster(&self) -> Result<(PosterKind, PosterNames)> {
        let order = match self.order {
            OrderName::Strict => Order::Strict,
            OrderName::Early => Order::Early,
        };
        let doorbell = match self.doorbell {
            DoorbellName::EightBytes => Doorbell::EightBytes,
            DoorbellName::BlueFlame => Doorbell::BlueFlame,
        };
        let options = Options { order, doorbell, signal_all: false };
        let mut names = PosterNames {
            poster: name(self.poster),
            order: Some(name(self.order)),
            doorbell: Some(name(self.doorbell)),
            machine: None,
            gpu: Label::None,
            producers: 1,
            payload_memory: name(self.kernels.payload_memory),
        };
        let kernel = self.kernels.kind(self.poster, options, self.inline)?;
        let poster = match (self.poster, kernel) {
            (PosterName::CpuIbverbs, _) => {
                (names.order, names.doorbell) = (None, None);
                PosterKind::Cpu(Kind::Ibverbs)
            }
            (_, None) => PosterKind::Cpu(Kind::Shim(options)),
            (_, Some(kind)) => {
                if self.pause.is_some() {
                    bail!(
                        "--pause with --poster {}: a kernel posts without pauses; use a cpu poster",
                        names.poster
                    );
                }
                names.producers = match kind.style {
                    Style::Shared(producers) => producers,
                    Style::Thread | Style::Original | Style::Warp => 1,
                };
                PosterKind::Kernel(kind)
            }
        };
        Ok((poster, names))
    }
}

/// The seconds of an option as a time. Error: too many, or none.
pub fn time(option: &str, seconds: f64, most: f64) -> Result<Duration> {
    if !(seconds > 0.0 && seconds <= most) {
        bail!("{option} {seconds} is out of range: above 0, to {most} seconds");
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Which code posts, and the machine that runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PosterKind {
    Cpu(Kind),
    Kernel(kernel_sender::Kind),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ends_and_posters_are_what_was_asked_for() {
        let parse = |text: &str| Cli::try_parse_from(text.split_whitespace()).unwrap().transfer;
        let sender = parse(
            "generator --connect h:1 --poster cpu-shim --order early --doorbell blueflame --seconds 0.5",
        );
        assert_eq!(sender.until().unwrap(), StopCondition::Elapsed(Duration::from_millis(500)));
        let options = Options { order: Order::Early, doorbell: Doorbell::BlueFlame, signal_all: false };
        assert_eq!(sender.poster().unwrap().0, PosterKind::Cpu(Kind::Shim(options)));
        assert_eq!(parse("generator --connect h:1").until().unwrap(), StopCondition::Count(1_000_000));
        for bad in ["--count 0", "--seconds 0", "--seconds -1", "--seconds 1e9"] {
            let transfer = parse(&format!("generator --connect h:1 {}", bad.replacen(' ', "=", 1)));
            assert!(transfer.until().is_err(), "{bad}");
        }
        for bad in [
            "--listen a:1 --connect b:1",
            "--count 1 --seconds 1",
            "--mtu 1000",
            "--op read",
            "--pause 1",
            "--frobnicate",
        ] {
            assert!(Cli::try_parse_from(format!("generator {bad}").split_whitespace()).is_err(), "{bad}");
        }
    }
}
