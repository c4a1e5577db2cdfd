//! Options of ends whose queues kernels post to and poll.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use cli::{Gpu, Memory, name};
use generator::kernel::generate::{MAX_PRODUCERS, Style};
use rdma_shim::{Doorbell, Options, Order};

use crate::kernel_receiver::KernelReceiver;
use crate::kernel_sender::{Host, Kind, WARP};
use crate::poster::PosterName;
use crate::receiver::{GpuTarget, ReceiverKind};

/// The kernel that the host twin runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KernelName {
    /// As `gpu-thread`.
    Thread,
    /// As `gpu-warp`.
    Warp,
    /// As `gpu-shared`.
    Shared,
    /// As `gpu-original`.
    Original,
}

/// What receives messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReceiverName {
    /// A CPU thread.
    Cpu,
    /// A GPU kernel, one warp for each queue pair.
    Gpu,
    /// The same kernel on threads of this CPU.
    HostTwin,
}

/// Options of kernels.
#[derive(Debug, Args)]
pub struct KernelOptions {
    /// Kernel that runs on threads of this CPU (with --poster host-twin).
    #[arg(long, value_enum, default_value = "thread")]
    pub kernel: KernelName,
    /// Warps that share each queue pair (with gpu-shared).
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PRODUCERS)))]
    pub producers: u32,
    /// Let host-twin kernels' stores become visible late, in an order this number selects [default: at once].
    #[arg(long, value_name = "N")]
    pub twin_seed: Option<u64>,
    /// Code that receives messages (with --listen).
    #[arg(long, value_enum, default_value = "cpu")]
    pub receiver: ReceiverName,
    /// Memory of the messages at this end.
    #[arg(long, value_enum, default_value = "host")]
    pub payload_memory: Memory,
    #[command(flatten)]
    pub gpu: Gpu,
}

impl KernelOptions {
    pub fn gpu(&self) -> Host {
        Host::Gpu(self.gpu.clone())
    }

    /// What receives messages, ready for use. Errors: no GPU, no toolkit; options that do not go together.
    pub fn receiver_kind(&self) -> Result<ReceiverKind> {
        let (memory, place) = (self.payload_memory, self.payload_memory.place());
        let machine = match self.receiver {
            ReceiverName::Cpu if memory == Memory::Host => return Ok(ReceiverKind::Processor(None)),
            ReceiverName::Cpu => self.gpu().machine("leave out --payload-memory")?,
            ReceiverName::Gpu => self.gpu().machine("--receiver host-twin or cpu, into host memory")?,
            ReceiverName::HostTwin if memory != Memory::Host => {
                bail!("--payload-memory {}: the host twin has no GPU memory", name(memory))
            }
            ReceiverName::HostTwin => Host::Twin { seed: self.twin_seed }.machine("")?,
        };
        let gpu = (memory != Memory::Host).then(|| GpuTarget { machine: machine.clone(), place });
        Ok(match self.receiver {
            ReceiverName::Cpu => ReceiverKind::Processor(gpu),
            ReceiverName::Gpu | ReceiverName::HostTwin => {
                ReceiverKind::Kernel { receiver: KernelReceiver::new(&machine, place)?, gpu }
            }
        })
    }

    /// The kernel of this poster and its machine; `None`: a CPU thread. Errors: options that do not combine.
    pub fn kind(&self, poster: PosterName, options: Options, inline: bool) -> Result<Option<Kind>> {
        let Some(style) = self.style(poster) else {
            if self.payload_memory != Memory::Host {
                bail!(
                    "--payload-memory {}: a processor cannot number messages there; use a gpu poster",
                    name(self.payload_memory)
                );
            }
            return Ok(None);
        };
        let is_twin = poster == PosterName::HostTwin;
        let host = if is_twin { Host::Twin { seed: self.twin_seed } } else { self.gpu() };
        if is_twin && self.payload_memory != Memory::Host {
            bail!("--payload-memory {}: the host twin has no GPU memory", name(self.payload_memory));
        }
        if inline && self.payload_memory != Memory::Host {
            bail!(
                "--inline with --payload-memory {}: inline payload is copied into the ring, which lies in host memory",
                name(self.payload_memory)
            );
        }
        if matches!(style, Style::Shared(_)) && (inline || options.doorbell == Doorbell::BlueFlame) {
            bail!("a queue that warps share takes neither --inline nor --doorbell blueflame");
        }
        let is_plain = options.order == Order::Strict && options.doorbell == Doorbell::EightBytes && !inline;
        if style == Style::Original && !is_plain {
            bail!("the original's style takes none of --inline, --order early and --doorbell blueflame");
        }
        Ok(Some(Kind { host, style, options, place: self.payload_memory.place() }))
    }

    /// The threads that post; `None` for a CPU thread.
    fn style(&self, poster: PosterName) -> Option<Style> {
        Some(match (poster, self.kernel) {
            (PosterName::CpuIbverbs | PosterName::CpuShim, _) => return None,
            (PosterName::GpuThread, _) | (PosterName::HostTwin, KernelName::Thread) => Style::Thread,
            (PosterName::GpuWarp, _) | (PosterName::HostTwin, KernelName::Warp) => Style::Warp,
            (PosterName::GpuShared, _) | (PosterName::HostTwin, KernelName::Shared) => {
                Style::Shared(self.producers)
            }
            (PosterName::GpuOriginal, _) | (PosterName::HostTwin, KernelName::Original) => Style::Original,
        })
    }

    /// Messages a doorbell when none are asked for.
    pub fn doorbell_batch(&self, poster: PosterName) -> u32 {
        if self.style(poster).is_some_and(|style| style.threads() > 1) { WARP } else { 1 }
    }
}
