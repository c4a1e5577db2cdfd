//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use cli::Nic;
use generator::kernel::generate::Style;
use rdma_shim::{Doorbell, Options, Order};

use crate::kernel_options::KernelOptions;
use crate::kernel_sender;
use crate::plan::{Op, Plan, Service, Verify, Wish};
use crate::poster::Kind;
use crate::report::PosterNames;
use crate::sender::Until;

/// Sends RDMA messages as fast as one thread can post them, to a receiver that is really there.
#[derive(Debug, Parser)]
#[command(
    name = "generator",
    version = cli::VERSION,
    args_conflicts_with_subcommands = true,
    after_help = "Both ends need an RDMA device. On a host without one, start them under the software NIC: \
                  softnic run -- generator --listen 127.0.0.1:7000"
)]
pub struct Cli {
    /// Something else than sending or receiving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Sending or receiving.
    #[command(flatten)]
    pub transfer: Transfer,
}

/// Everything beside sending and receiving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Says what devices are here.
    Probe(Probe),
    /// Time of a post: libmlx5 and the shim in turn, in one process, on two queue pairs of one device.
    BenchPost(BenchPost),
    /// Time of a post on a GPU, without a NIC: the shim, gpunetio where its headers are given, the original's style.
    BenchPostGpu(BenchPostGpu),
    /// What two processes of this machine can do without a NIC.
    Baseline(Baseline),
}

/// Options of `probe`.
#[derive(Debug, Args)]
pub struct Probe {
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench-post`.
#[derive(Debug, Args)]
pub struct BenchPost {
    /// Which device and port.
    #[command(flatten)]
    pub nic: Nic,
    /// Bytes of each WRITE.
    #[arg(long, default_value_t = 64)]
    pub payload: u32,
    /// Bursts of each kind.
    #[arg(long, default_value_t = 3000)]
    pub rounds: u32,
    /// Where JSON goes: a file, or - for standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Options of `bench-post-gpu`.
#[derive(Debug, Args)]
pub struct BenchPostGpu {
    /// Headers of gpunetio, to measure its doca_gpu_dev_verbs_put beside ours: nvidia/nvshmem/include/gpunetio of the pip
    /// package nvidia-nvshmem-cu13 3.8.0.
    #[arg(long, value_name = "DIR")]
    pub peer_headers: Option<PathBuf>,
    /// Only the rows with a requirement, fewer posts and 3 rounds.
    #[arg(long)]
    pub quick: bool,
    /// Runs of each side of a row (7).
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Only rows whose name contains this.
    #[arg(long, value_name = "ROW")]
    pub only: Option<String>,
    /// The rows' names, and nothing else.
    #[arg(long)]
    pub list: bool,
    /// Where JSON lines go: a file, or - for standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Options of `baseline`.
#[derive(Debug, Args)]
pub struct Baseline {
    /// What is measured.
    pub what: BaselineKind,
    /// Of process-vm-writev: bytes of a copy.
    #[arg(long, default_value_t = 65536)]
    pub bytes: usize,
    /// How long; with --listen the other end says it.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// The two cores, as `0,1`; without it the first two that this process may use. udp-ping-pong pins nobody.
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<u32>,
    /// Of udp-ping-pong: answer at this address.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    pub listen: Option<SocketAddr>,
    /// Of udp-ping-pong: measure against the one who listens there.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub connect: Option<SocketAddr>,
    /// Where JSON goes: a file, or - for standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// See [`Baseline::what`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BaselineKind {
    /// Half a round trip between two flags in shared memory.
    FlagPingPong,
    /// Words a second through a ring in shared memory.
    WordRing,
    /// Bytes a second by `process_vm_writev`.
    ProcessVmWritev,
    /// Half a round trip of 8 bytes between two UDP sockets that are polled, one process each (--listen, --connect).
    UdpPingPong,
}

/// Who posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PosterName {
    /// `ibv_post_send`.
    CpuIbverbs,
    /// The shim.
    CpuShim,
    /// The shim in a kernel of a GPU: one thread for each queue pair.
    GpuThread,
    /// A warp for each queue pair.
    GpuWarp,
    /// Several warps that share each queue pair (--producers).
    GpuShared,
    /// One thread, in the style of the paper's original release.
    GpuOriginal,
    /// The kernel on threads of this processor: no GPU, and no speed.
    HostTwin,
}

/// The shim's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// A fence between record and register.
    Strict,
    /// None there.
    Early,
}

/// The shim's doorbell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DoorbellName {
    /// 8 bytes.
    #[value(name = "8-bytes")]
    EightBytes,
    /// A lone request through the register, as libmlx5 does.
    #[value(name = "blueflame")]
    BlueFlame,
}

/// Options of sending and receiving.
#[derive(Debug, Args)]
pub struct Transfer {
    /// Receive: wait for a sender here (port 0: any; the first line says which).
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Send to the receiver that listens there.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,
    /// Device and port.
    #[command(flatten)]
    pub nic: Nic,
    /// Who posts.
    #[arg(long, value_enum, default_value = "cpu-ibverbs")]
    pub poster: PosterName,
    /// Operation.
    #[arg(long, value_enum, default_value = "write")]
    pub op: Op,
    /// Service: rc, or uc.
    #[arg(long, value_enum, default_value = "rc")]
    pub service: Service,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64)]
    pub payload: u64,
    /// Messages a completion.
    #[arg(long)]
    pub batch: Option<u32>,
    /// Messages a doorbell (1; 32 where warps post).
    #[arg(long)]
    pub doorbell_batch: Option<u32>,
    /// Outstanding messages a queue pair at most.
    #[arg(long)]
    pub window: Option<u32>,
    /// Queue pairs, used in turn.
    #[arg(long, default_value_t = 1)]
    pub qps: u32,
    /// More queue pairs that are open, connected and idle at the sender: what they cost the busy ones.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=16000))]
    pub idle_qps: u32,
    /// Messages in all (a million without --seconds).
    #[arg(long, conflicts_with = "seconds")]
    pub count: Option<u64>,
    /// How long to send.
    #[arg(long, allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// Messages one by one, this many seconds apart: what the first one costs after idling (needs --count).
    #[arg(long, requires = "count", conflicts_with_all = ["batch", "doorbell_batch", "qps"])]
    pub pause: Option<f64>,
    /// Payload inside the request.
    #[arg(long)]
    pub inline: bool,
    /// What the receiver looks at.
    #[arg(long, value_enum, default_value = "end")]
    pub verify: Verify,
    /// The shim's order.
    #[arg(long, value_enum, default_value = "strict")]
    pub order: OrderName,
    /// The shim's doorbell.
    #[arg(long, value_enum, default_value = "8-bytes")]
    pub doorbell: DoorbellName,
    /// Kernels.
    #[command(flatten)]
    pub kernels: KernelOptions,
    /// Senders that the receiver serves one after another; 0: until it is stopped.
    #[arg(long, default_value_t = 1)]
    pub sessions: u64,
    /// Where JSON lines go: a file, or - for standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Transfer {
    /// The plan, or which number does not fit.
    pub fn plan(&self) -> Result<Plan> {
        let wish = Wish {
            op: self.op,
            service: self.service,
            payload_bytes: self.payload,
            qps: self.qps,
            batch: if self.pause.is_some() { Some(1) } else { self.batch },
            doorbell_batch: self.doorbell_batch.unwrap_or_else(|| self.kernels.doorbell_batch(self.poster)),
            window: self.window,
            inline: self.inline,
            verify: self.verify,
        };
        wish.plan().map_err(anyhow::Error::msg)
    }

    /// When to stop.
    pub fn until(&self) -> Result<Until> {
        match (self.count, self.seconds) {
            (Some(0), _) => bail!("--count 0 sends nothing: give 1 or more"),
            (Some(count), _) => Ok(Until::Count(count)),
            (None, Some(seconds)) if seconds > 0.0 && seconds <= 86400.0 => {
                Ok(Until::Elapsed(Duration::from_secs_f64(seconds)))
            }
            (None, Some(seconds)) => bail!("--seconds {seconds} is out of range: above 0, to 86400"),
            (None, None) => Ok(Until::Count(1_000_000)),
        }
    }

    /// Idle time before each message.
    pub fn pause(&self) -> Result<Option<Duration>> {
        match self.pause {
            Some(seconds) if !(seconds > 0.0 && seconds <= 60.0) => {
                bail!("--pause {seconds} is out of range: above 0, to 60 seconds")
            }
            pause => Ok(pause.map(Duration::from_secs_f64)),
        }
    }

    /// Who posts. Errors: options that do not go together.
    pub fn poster(&self) -> Result<(Who, PosterNames)> {
        let (order, order_name) = match self.order {
            OrderName::Strict => (Order::Strict, "strict"),
            OrderName::Early => (Order::Early, "early"),
        };
        let (doorbell, doorbell_name) = match self.doorbell {
            DoorbellName::EightBytes => (Doorbell::EightBytes, "8-bytes"),
            DoorbellName::BlueFlame => (Doorbell::BlueFlame, "blueflame"),
        };
        let options = Options { order, doorbell, signal_all: false };
        let name = match self.poster {
            PosterName::CpuIbverbs => "cpu-ibverbs",
            PosterName::CpuShim => "cpu-shim",
            PosterName::GpuThread => "gpu-thread",
            PosterName::GpuWarp => "gpu-warp",
            PosterName::GpuShared => "gpu-shared",
            PosterName::GpuOriginal => "gpu-original",
            PosterName::HostTwin => "host-twin",
        };
        let mut names = PosterNames::cpu(name, Some(order_name), Some(doorbell_name));
        let kernel = self.kernels.kind(self.poster, options, self.inline)?;
        let who = match (self.poster, kernel) {
            (PosterName::CpuIbverbs, _) => {
                names = PosterNames::cpu(name, None, None);
                Who::Cpu(Kind::Ibverbs)
            }
            (_, None) => Who::Cpu(Kind::Shim(options)),
            (_, Some(kind)) => {
                if self.pause.is_some() {
                    bail!("--pause with --poster {name}: a kernel posts without pauses; use a cpu poster");
                }
                names.producers = match kind.style {
                    Style::Shared(producers) => producers,
                    Style::Thread | Style::Original | Style::Warp => 1,
                };
                names.payload_memory = self.kernels.payload_memory.name();
                Who::Kernel(kind)
            }
        };
        Ok((who, names))
    }
}

/// Which code posts, and who runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// A thread of this processor.
    Cpu(Kind),
    /// A kernel.
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
        assert_eq!(sender.until().unwrap(), Until::Elapsed(Duration::from_millis(500)));
        let options = Options { order: Order::Early, doorbell: Doorbell::BlueFlame, signal_all: false };
        assert_eq!(sender.poster().unwrap().0, Who::Cpu(Kind::Shim(options)));
        assert_eq!(parse("generator --connect h:1").until().unwrap(), Until::Count(1_000_000));
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
