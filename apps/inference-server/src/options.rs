//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use cli::{Gpu, Memory, Nic, OptionScope, named};
use host_twin::Visibility;
use pipeline::{Mode, Processor};
use rdma_shim::kernel::{Machine, Place};
use serving::{ARRIVALS, Arrival, TRANSPORTS, Transport};
use slots::SlotOrder;

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
    /// How requests are served.
    #[arg(long, default_value = "cpu-cpu-ibverbs", value_parser = cli::choice::<Mode>(Mode::ALL.map(|mode| (mode.name(), mode.alias(), mode.about()))))]
    pub mode: Mode,
    /// GPU modes and --engine gpu: what runs the kernels.
    #[arg(long, value_enum, default_value = "gpu")]
    pub machine: MachineName,
    #[command(flatten)]
    pub gpu: Gpu,
    /// GPU modes: where requests lie [default: gpu; with --machine twin host].
    #[arg(long, value_enum)]
    pub place: Option<Memory>,
    /// GPU modes: how the server's thread waits.
    #[arg(long, value_enum, default_value = "event")]
    pub sleep: Sleep,
    /// What runs a model in a CPU mode.
    #[arg(long, value_enum, default_value = "onnx")]
    pub engine: Engine,
    /// How this processor drives a model on a GPU [default: fair].
    #[arg(long, value_enum)]
    pub baseline: Option<Baseline>,
    /// Threads of ONNX Runtime for each model.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Library of ONNX Runtime, or its folder [default: DOORBELL_ONNXRUNTIME, what set-up fetched, or
    /// Python's package].
    #[arg(long, value_name = "PATH")]
    pub onnxruntime: Option<PathBuf>,
    /// Slots of each model: requests that all its clients together may have in flight.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub slots: u32,
    /// Most slots of one client.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub slots_per_client: u16,
    /// Most requests of a client that wait or are served [default: its slots]. It is told; more are refused.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub credits: Option<u16>,
    /// Which waiting request of a client is served first [default: arrival; where a GPU waits index, since
    /// its kernels walk over the slots]. Clients take turns in either order.
    #[arg(long, value_parser = named::<SlotOrder>(&SLOT_ORDERS))]
    pub slot_order: Option<SlotOrder>,
    /// Most memory for all models' slots; the default, 5 GiB, holds 4,096 slots of 1 MiB in- and outputs.
    #[arg(long, value_name = "BYTES", default_value_t = 5 << 30)]
    pub memory: u64,
    /// Most connections at a time.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub clients: u16,
    /// Disconnect a client that takes no answer for so long.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub patience: u32,
    /// Serve only queue pairs of this service [default: the client chooses].
    #[arg(long, value_parser = named::<Transport>(&TRANSPORTS))]
    pub transport: Option<Transport>,
    /// Serve only clients whose messages arrive this way [default: the client chooses; where a GPU waits
    /// flag, since a model's kernels wait for one kind].
    #[arg(long, value_parser = named::<Arrival>(&ARRIVALS))]
    pub arrival: Option<Arrival>,
    /// Time the steps of each request, and report them for each client that leaves, in a line `traced`.
    #[arg(long)]
    pub trace: bool,
    /// Write counters as a JSON line to this file at each SIGUSR1; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub status: Option<PathBuf>,
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

/// What runs kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MachineName {
    /// A GPU.
    Gpu,
    /// Threads of this processor, in place of a GPU; slow, and tells nothing about speed.
    Twin,
}

/// How the thread of a GPU mode waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sleep {
    /// Asleep until something is to be done: a signal, a client, or the end of a model's turns.
    Event,
    /// In cudaDeviceSynchronize with blocking sync, for one model.
    Block,
    /// In cudaDeviceSynchronize spinning, for one model: it uses a core.
    Spin,
}

/// Options that not every mode uses.
pub const OPTION_SCOPES: [OptionScope<Options>; 7] = [
    OptionScope {
        options: &["engine"],
        to: "--mode cpu-cpu-ibverbs or cpu-cpu-shim",
        when: |options| !options.mode.needs_gpu(),
    },
    OptionScope {
        options: &["threads", "onnxruntime"],
        to: "--engine onnx in --mode cpu-cpu-ibverbs or cpu-cpu-shim",
        when: |options| !options.mode.needs_gpu() && options.engine == Engine::Onnx,
    },
    OptionScope {
        options: &["baseline"],
        to: "--engine gpu in --mode cpu-cpu-ibverbs or cpu-cpu-shim",
        when: |options| !options.mode.needs_gpu() && options.engine == Engine::Gpu,
    },
    OptionScope {
        options: &["machine"],
        to: "a --mode with a GPU or --engine gpu",
        when: Options::uses_machine,
    },
    OptionScope {
        options: &["trace"],
        to: "--mode gpu-graph, gpu-while, gpu-ahead, gpu-persistent, or cpu-cpu-shim with --engine gpu",
        when: Options::can_trace,
    },
    OptionScope {
        options: &["place", "sleep"],
        to: "--mode gpu-cpu, gpu-graph, gpu-while, gpu-ahead or gpu-persistent",
        when: |options| options.mode.waits() == Processor::Gpu,
    },
    OptionScope {
        options: &["gpu", "cuda"],
        to: "--machine gpu, in a --mode with a GPU or with --engine gpu",
        when: |options| options.uses_machine() && options.machine == MachineName::Gpu,
    },
];

/// What runs a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// ONNX Runtime on the processor.
    Onnx,
    /// Our kernels on the host twin, which is slow and tells nothing about speed.
    Twin,
    /// A GPU, which this processor drives as --baseline says.
    Gpu,
}

/// How this processor drives a model on a GPU, in the paper's figure 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Baseline {
    /// Pinned slots, streams for copies, two instances of the model, one thread.
    Fair,
    /// As the paper's release: pageable slots, two threads, and a wait for the run before in front of each.
    Faithful,
}

/// The orders of a client's requests.
const SLOT_ORDERS: [(&str, &str); 2] = [
    ("arrival", "The one that arrived first"),
    ("index", "The one in the next slot, as the paper's release walks over its slots"),
];

impl Options {
    /// Whether such a server can be.
    pub fn check(&self) -> Result<()> {
        if self.sleep != Sleep::Event && (self.machine == MachineName::Twin || self.models.len() > 1) {
            bail!(
                "--sleep {}: it is for one --model on --machine gpu; give --sleep event",
                cli::name(self.sleep)
            );
        }
        if self.mode == Mode::GpuPersistent && self.models.len() > 1 {
            bail!("--mode gpu-persistent: the kernel of one model fills the GPU; give --model once");
        }
        if self.arrival == Some(Arrival::Send) && self.transport == Some(Transport::Uc) {
            bail!("--arrival send: a SEND that --transport uc loses takes no receive; give --transport rc");
        }
        if self.trace && self.arrival != Some(Arrival::Completion) {
            bail!(
                "--trace: a receive completion tells when a request has arrived; give --arrival completion"
            );
        }
        if self.mode.waits() == Processor::Gpu && self.slot_order == Some(SlotOrder::Arrival) {
            bail!(
                "--slot-order arrival: in --mode {} kernels walk over the slots, and a flag does not tell when it came; give --slot-order index",
                self.mode
            );
        }
        if self.machine == MachineName::Twin && self.place.is_some_and(|place| place != Memory::Host) {
            bail!("--place: only --machine gpu has GPU memory");
        }
        if let Some(twice) = (1..self.models.len()).find(|&at| self.models[..at].contains(&self.models[at])) {
            bail!("--model {}: named twice", self.models[twice]);
        }
        Ok(())
    }

    /// Whether the slots fit into the memory. `each`: name and bytes of a slot of each model.
    pub fn check_memory(&self, each: &[(String, u64)]) -> Result<()> {
        let all: u64 = each.iter().map(|(_, bytes)| bytes).sum();
        let spare = u64::from(self.works_in_slots());
        let needed = all.saturating_mul(u64::from(self.slots) + spare);
        if needed <= self.memory {
            return Ok(());
        }
        let names: Vec<String> = each.iter().map(|(name, bytes)| format!("{name}: {bytes}")).collect();
        bail!(
            "--slots {}: {needed} bytes (a slot of {}), --memory allows {}: give at most --slots {}",
            self.slots,
            names.join(", "),
            self.memory,
            (self.memory / all.max(1)).saturating_sub(spare)
        )
    }

    /// Whether models work in the slots, and in a spare one of each model where there is no good request.
    pub fn works_in_slots(&self) -> bool {
        self.mode.waits() == Processor::Gpu
            && (self.machine == MachineName::Gpu || self.mode == Mode::GpuPersistent)
    }

    /// The order of a client's requests, as it is.
    pub fn slot_order(&self) -> SlotOrder {
        let usual = if self.mode.waits() == Processor::Gpu { SlotOrder::Index } else { SlotOrder::Arrival };
        self.slot_order.unwrap_or(usual)
    }

    /// How messages arrive, if the client does not choose.
    pub fn arrival(&self) -> Option<Arrival> {
        self.arrival.or((self.mode.waits() == Processor::Gpu).then_some(Arrival::Flag))
    }

    /// Where requests lie in a GPU mode.
    pub fn place(&self) -> Place {
        match (self.place, self.machine) {
            (Some(place), _) => place.place(),
            (None, MachineName::Gpu) => Place::Gpu,
            (None, MachineName::Twin) => Place::Host,
        }
    }

    /// Whether kernels of a machine are launched.
    pub fn uses_machine(&self) -> bool {
        self.mode.needs_gpu() || self.engine == Engine::Gpu
    }

    /// Whether what waits and what posts note their steps.
    fn can_trace(&self) -> bool {
        match (self.mode.waits(), self.mode.posts()) {
            (Processor::Gpu, Processor::Gpu) => true,
            (Processor::Cpu, Processor::Cpu) => self.mode == Mode::CpuCpuShim && self.engine == Engine::Gpu,
            _ => false,
        }
    }

    /// Whether a machine computes while this processor waits for requests.
    pub fn offloads(&self) -> bool {
        self.mode.waits() == Processor::Cpu && self.uses_machine()
    }

    pub fn baseline(&self) -> Baseline {
        self.baseline.unwrap_or(Baseline::Fair)
    }

    /// The machine for a GPU mode's kernels. Errors: no GPU, driver or toolkit, and where it was sought.
    pub fn machine(&self) -> Result<Machine> {
        match self.machine {
            MachineName::Gpu => {
                if self.sleep != Sleep::Event {
                    let gpu = self.gpu.gpu.map_or_else(gpu::Gpu::first, gpu::Gpu::of_ordinal);
                    // Where there is none, the machine's error says more.
                    gpu.map_or(Ok(()), |gpu| gpu.wait_asleep(self.sleep == Sleep::Block))?;
                }
                self.gpu.machine(" --machine twin runs kernels on this processor")
            }
            MachineName::Twin => Ok(Machine::twin(Visibility::InOrder)),
        }
    }

    /// What runs the models, for results.
    pub fn engine_name(&self) -> String {
        match self.uses_machine() {
            true => cli::name(self.machine),
            false => cli::name(self.engine),
        }
    }

    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.patience.into())
    }

    pub fn max_time(&self) -> Duration {
        self.max_seconds.map_or(Duration::MAX, |seconds| Duration::from_secs(seconds.into()))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use slots::layout::FLAG_BYTES;
    use slots::{Geometry, Tensor, TensorKind};

    use super::*;

    fn parsed(text: &str) -> Result<Options, clap::Error> {
        let words = format!("server --listen h:1 --model a {text}");
        Options::try_parse_from(words.split_whitespace())
    }

    fn parse(text: &str) -> Options {
        parsed(text).unwrap()
    }

    #[test]
    fn options_are_consistent_and_every_mode_has_its_name() {
        Options::command().debug_assert();
        for mode in Mode::ALL {
            parse(&format!("--mode {mode}")).check().unwrap();
        }
    }

    #[test]
    fn help_and_refusal_name_every_mode_and_help_the_release_s_name() {
        cli::testing::names_each::<Options>(
            "mode",
            &Mode::ALL.map(|mode| (mode.name(), mode.release_name())),
        );
    }

    /// Why a command line is refused, by its options alone or by their values.
    fn refusal(text: &str) -> Option<String> {
        let options = match parsed(text) {
            Ok(options) => options,
            // Behind the first line it says the usage.
            Err(error) => return error.to_string().lines().next().map(str::to_owned),
        };
        let stray = cli::testing::stray(&format!("--listen h:1 --model a {text}"), &OPTION_SCOPES);
        stray.or_else(|| options.check().err().map(|error| error.to_string()))
    }

    #[test]
    fn options_that_exclude_each_other_are_refused_in_a_sentence_that_names_both() {
        // The last column: what is served instead.
        let table = [
            ("--engine twin", "--mode gpu-graph --machine twin", "--mode cpu-cpu-shim"),
            ("--threads 2", "--mode cpu-gpu", "--mode cpu-cpu-ibverbs"),
            ("--onnxruntime f", "--mode gpu-while", "--mode cpu-cpu-shim"),
            ("--threads 2", "--engine twin", "--engine onnx"),
            ("--threads 2", "--engine gpu", "--engine onnx"),
            ("--onnxruntime f", "--engine twin", "--mode cpu-cpu-shim"),
            ("--onnxruntime f", "--engine gpu", "--engine onnx"),
            ("--baseline fair", "--mode cpu-gpu", "--engine gpu"),
            ("--baseline fair", "--engine twin", "--engine gpu"),
            ("--machine twin", "--mode cpu-cpu-shim", "--mode gpu-while"),
            ("--machine twin", "--mode cpu-cpu-ibverbs", "--mode cpu-gpu"),
            ("--machine twin", "--engine twin", "--engine gpu"),
            ("--trace", "--mode gpu-cpu", "--mode gpu-while --arrival completion"),
            ("--trace", "--mode cpu-cpu-shim", "--mode cpu-cpu-shim --engine gpu --arrival completion"),
            ("--trace", "--arrival flag --mode gpu-graph", "--mode gpu-graph --arrival completion"),
            ("--place host", "--mode cpu-gpu", "--mode gpu-graph"),
            ("--place gpu", "--machine twin --mode gpu-graph", "--mode gpu-graph"),
            ("--sleep spin", "--mode cpu-gpu", "--mode gpu-cpu"),
            ("--sleep spin", "--machine twin --mode gpu-graph", "--mode gpu-while"),
            ("--sleep block", "--model b --mode gpu-graph", "--mode gpu-graph"),
            ("--gpu 1", "--machine twin --mode gpu-graph", "--mode gpu-graph"),
            ("--gpu 1", "--machine twin --engine gpu", "--engine gpu"),
            ("--cuda f", "--mode cpu-cpu-shim", "--mode gpu-persistent"),
            ("--slot-order arrival", "--mode gpu-while", "--mode cpu-gpu"),
            ("--arrival send", "--transport uc", "--transport rc"),
            ("--mode gpu-persistent", "--model b", "--slot-order index"),
            ("--gid-index 1", "--ip 10.0.0.1", "--mtu 1024"),
        ];
        for (option, other, heeded) in table {
            let said = refusal(&format!("{other} {option}")).unwrap_or_else(|| panic!("{option} {other}"));
            let name = other.split(' ').next().unwrap();
            assert!(said.contains(option.split(' ').next().unwrap()) && said.contains(name), "{said}");
            assert_eq!(refusal(&format!("{heeded} {option}")), None);
        }
        let command = Options::command();
        let excluding = command.get_arguments().filter(|arg| !command.get_arg_conflicts_with(arg).is_empty());
        let scoped = OPTION_SCOPES.iter().flat_map(|row| row.options).map(ToString::to_string);
        for option in excluding.filter_map(|arg| arg.get_long().map(str::to_owned)).chain(scoped) {
            let is_named =
                |row: &(&str, &str, &str)| format!("{} ", row.0).starts_with(&format!("--{option} "));
            assert!(table.iter().any(is_named), "a row for --{option}");
        }
        let said = refusal("--model b --model a").unwrap();
        assert!(said.contains("a: named twice"), "{said}");
    }

    #[test]
    fn kernels_walk_over_the_slots_and_a_cpu_serves_them_as_they_come() {
        for (mode, usual) in [("gpu-graph", SlotOrder::Index), ("cpu-gpu", SlotOrder::Arrival)] {
            assert_eq!(parse(&format!("--mode {mode}")).slot_order(), usual);
            assert_eq!(refusal(&format!("--mode {mode} --slot-order index")), None);
        }
    }

    #[test]
    fn slots_of_a_model_of_1_mib_fit_4096_times_by_default() {
        // An image and a thousand numbers, and halves of 1 MiB.
        for [inputs, outputs] in [[3 * 224 * 224, 1000], [1 << 17; 2]] {
            let [request, answer] = [inputs, outputs].map(|count| Tensor { kind: TensorKind::F32, count });
            let geometry = Geometry::new(0, &[request], &[answer]).unwrap();
            let each = [("m".to_owned(), (geometry.server_stride() + FLAG_BYTES) as u64)];
            parse("--slots 4096").check_memory(&each).unwrap();
        }
    }

    #[test]
    fn slots_beyond_the_memory_are_refused_with_the_number_that_fits() {
        let each = [("a".to_owned(), 60), ("b".to_owned(), 40)];
        parse("--slots 10 --memory 1000").check_memory(&each).unwrap();
        let error = parse("--slots 11 --memory 1099").check_memory(&each).unwrap_err().to_string();
        assert!(error.contains("1100 bytes") && error.ends_with("at most --slots 10"), "{error}");
        // With a spare slot of each model.
        for mode in ["gpu-graph --machine gpu", "gpu-persistent --machine twin"] {
            parse(&format!("--mode {mode} --slots 9 --memory 1000")).check_memory(&each).unwrap();
            let ten = parse(&format!("--mode {mode} --slots 10 --memory 1000"));
            let error = ten.check_memory(&each).unwrap_err().to_string();
            assert!(error.contains("1100 bytes") && error.ends_with("at most --slots 9"), "{error}");
        }
        parse("--mode gpu-graph --machine twin --slots 10 --memory 1000").check_memory(&each).unwrap();
    }
}
