//! The command line.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use cli::{Gpu, Memory, Nic, OptionScope, name};
use host_twin::Visibility;
use measure::Label;
use pipeline::{Mode, Processor};
use rdma_shim::kernel::Machine;

/// Longest message.
pub const MOST_BYTES: u32 = 1 << 20;
/// Most questions: a time is kept of each.
const MOST_QUESTIONS: u32 = 10_000_000;

/// A kernel that stays on the GPU answers messages. A client asks, checks each answer, and times it.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell-echo",
    version = cli::VERSION,
    after_help = "Both ends need an RDMA device. On a host without one, start them under the software NIC: \
                  softnic run -- doorbell-echo --listen 127.0.0.1:7000 --machine twin"
)]
pub struct Options {
    /// Answer clients that connect here, one after the other.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    pub listen: Option<String>,
    /// Send questions to the service at this address.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: Option<String>,
    /// Run service and client in this process. On one GPU, kernels of two processes would take turns.
    #[arg(long, conflicts_with_all = ["listen", "connect"])]
    pub loopback: bool,
    /// Serve through the slots of the pipeline, in this mode; the client names the same one. Without it one
    /// resident kernel answers SENDs by SENDs.
    #[arg(long, value_parser = cli::choice::<Mode>(Mode::ALL.map(|mode| (mode.name(), mode.alias(), mode.about()))))]
    pub mode: Option<Mode>,
    /// Where this process's kernel runs.
    #[arg(long, value_enum, default_value = "gpu")]
    pub machine: MachineName,
    /// Where this process's messages lie.
    #[arg(long, value_enum, default_value = "host")]
    pub memory: Memory,
    #[command(flatten)]
    pub gpu: Gpu,
    /// Client: number of questions, one after the other.
    #[arg(long, default_value_t = 10_000)]
    pub count: u32,
    /// Client: bytes of a question, a multiple of 8 [default: 64]. Service: bytes of the longest message it
    /// takes [default: 65536]; with --mode, of each message [default: 64].
    #[arg(long, value_name = "BYTES")]
    pub payload: Option<u32>,
    /// Service: messages in flight [default: 8]. With --mode: one slot each, for a client too [default: 1].
    #[arg(long, value_name = "N")]
    pub window: Option<u32>,
    /// Service: number of clients, one after another, before it ends; 0: until it is stopped.
    #[arg(long, default_value_t = 1)]
    pub sessions: u32,
    /// Device and port.
    #[command(flatten)]
    pub nic: Nic,
    /// Write JSON lines to this file; - is standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// What runs a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MachineName {
    /// A GPU.
    Gpu,
    /// Threads of this processor, in place of a GPU.
    Twin,
    /// No kernel: this client posts through libibverbs.
    Cpu,
}

/// Options that not every role uses. A command line without a role is refused first.
pub const OPTION_SCOPES: [OptionScope<Options>; 5] = [
    OptionScope {
        options: &["count"],
        to: "--connect or --loopback",
        when: |options| options.listen.is_none(),
    },
    OptionScope { options: &["mode"], to: "--listen or --connect", when: |options| !options.loopback },
    OptionScope {
        options: &["window"],
        to: "--listen or --mode",
        when: |options| options.mode.is_some() || (options.connect.is_none() && !options.loopback),
    },
    OptionScope {
        options: &["sessions"],
        to: "--listen",
        when: |options| options.connect.is_none() && !options.loopback,
    },
    OptionScope {
        options: &["gpu", "cuda"],
        to: "--machine gpu",
        when: |options| options.machine == MachineName::Gpu,
    },
];

impl Options {
    /// Whether a service can be as was asked for.
    pub fn check_service(&self) -> Result<()> {
        let has_kernels = self.mode.is_none_or(Mode::needs_gpu);
        match (has_kernels, self.machine) {
            (true, MachineName::Cpu) => bail!("--machine cpu: a kernel answers; give --machine gpu or twin"),
            (false, MachineName::Gpu | MachineName::Twin) => {
                bail!("--machine {}: no kernel answers in this mode; give --machine cpu", name(self.machine))
            }
            _ => {}
        }
        if self.mode.is_some_and(|mode| mode.waits() == Processor::Cpu) && self.memory != Memory::Host {
            bail!("--memory {}: where the CPU waits, messages lie in host memory", name(self.memory));
        }
        self.check_ends()
    }

    /// Whether what was asked for can be asked.
    pub fn check_asking(&self) -> Result<()> {
        if !(1..=MOST_QUESTIONS).contains(&self.count) {
            bail!("--count {}: give 1 to {MOST_QUESTIONS} questions", self.count);
        }
        if self.mode.is_some() && self.machine != MachineName::Cpu {
            bail!(
                "--machine {}: a client of a mode posts through libibverbs; give --machine cpu",
                name(self.machine)
            );
        }
        self.check_ends()
    }

    /// Messages in flight.
    pub fn window(&self) -> u32 {
        self.window.unwrap_or(if self.connect.is_some() { 1 } else { 8 })
    }

    fn check_ends(&self) -> Result<()> {
        if !(1..=1024).contains(&self.window()) {
            bail!("--window {}: give 1 to 1024 messages", self.window());
        }
        if self.machine != MachineName::Gpu && self.memory != Memory::Host {
            bail!("--memory {}: only --machine gpu has GPU memory", name(self.memory));
        }
        match self.payload {
            Some(bytes) if !(8..=MOST_BYTES).contains(&bytes) || !bytes.is_multiple_of(8) => {
                bail!("--payload {bytes}: give a multiple of 8 bytes, 8 to {MOST_BYTES}")
            }
            _ => Ok(()),
        }
    }

    /// The machine for kernels; none for the CPU. Errors: no GPU, driver or toolkit, and where it was sought.
    pub fn machine(&self) -> Result<Option<Machine>> {
        Ok(match self.machine {
            MachineName::Gpu => {
                let others = match self.connect {
                    Some(_) => "--machine twin, or cpu, asks",
                    None => "--machine twin runs kernels",
                };
                Some(self.gpu.machine(&format!(" {others} on this processor"))?)
            }
            MachineName::Twin => Some(Machine::twin(Visibility::InOrder)),
            MachineName::Cpu => None,
        })
    }

    /// What stands for the GPU in a result.
    pub fn gpu_label(&self) -> Label {
        match self.machine {
            MachineName::Gpu => Label::Hardware,
            MachineName::Twin => Label::Emulated,
            MachineName::Cpu => Label::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn help_and_refusal_name_every_mode_and_help_the_release_s_name() {
        cli::testing::names_each::<Options>(
            "mode",
            &Mode::ALL.map(|mode| (mode.name(), mode.release_name())),
        );
    }

    #[test]
    fn an_option_that_this_end_does_not_look_at_is_refused() {
        let stray = |text: &str| cli::testing::stray(text, &OPTION_SCOPES);
        // Where it means something, and where not.
        let cases: [(_, _, &[&str]); 6] = [
            ("--count 4", "--connect h:1", &["--listen h:1"]),
            ("--window 4", "--listen h:1", &["--connect h:1", "--loopback"]),
            ("--mode cpu-gpu", "--connect h:1", &["--loopback"]),
            ("--sessions 4", "--listen h:1", &["--connect h:1 --machine cpu", "--loopback"]),
            ("--gpu 3", "--loopback", &["--loopback --machine twin", "--connect h:1 --machine cpu"]),
            ("--cuda DIR", "--listen h:1 --machine gpu", &["--listen h:1 --machine twin"]),
        ];
        for (option, heeded, idle) in cases {
            assert_eq!(stray(&format!("{heeded} {option}")), None);
            assert_eq!(stray(option), None, "an end is asked for first");
            for rest in idle {
                let said = stray(&format!("{rest} {option}")).unwrap_or_else(|| panic!("{rest} {option}"));
                assert!(
                    said.starts_with(&format!("{option} would do nothing here: it goes with ")),
                    "{said}"
                );
            }
        }
        assert_eq!(OPTION_SCOPES.iter().map(|row| row.options.len()).sum::<usize>(), cases.len());
        assert_eq!(stray("--loopback --count 4 --payload 8 --memory gpu"), None);
    }

    #[test]
    fn what_cannot_be_is_refused_by_the_option_that_says_it() {
        let parse = |text: &str| Options::try_parse_from(format!("echo {text}").split_whitespace()).unwrap();
        for (options, words) in [
            ("--connect h:1 --count 0", "--count 0: give 1 to 10000000"),
            ("--connect h:1 --payload 12", "--payload 12: give a multiple of 8 bytes, 8 to 1048576"),
            ("--connect h:1 --payload 0", "--payload 0"),
            ("--connect h:1 --payload 1048584", "--payload 1048584"),
            ("--connect h:1 --machine cpu --memory gpu", "--memory gpu: only --machine gpu"),
            ("--connect h:1 --machine twin --memory gpu-dma-buf", "--memory gpu-dma-buf: only"),
            ("--connect h:1 --machine twin --mode gpu-cpu", "--machine twin: a client of a mode"),
            ("--connect h:1 --machine cpu --mode gpu-cpu --window 0", "--window 0"),
        ] {
            let error = parse(options).check_asking().unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
        for (options, words) in [
            ("--listen h:1 --machine cpu", "--machine cpu"),
            ("--listen h:1 --machine cpu --mode gpu-while", "--machine cpu: a kernel answers"),
            (
                "--listen h:1 --machine twin --mode cpu-cpu-shim",
                "--machine twin: no kernel answers in this mode",
            ),
            ("--listen h:1 --memory gpu --mode cpu-gpu", "--memory gpu: where the CPU waits"),
            ("--listen h:1 --window 0", "--window 0"),
            ("--listen h:1 --window 1025", "--window 1025: give 1 to 1024"),
            ("--listen h:1 --payload 7", "--payload 7"),
        ] {
            let error = parse(options).check_service().unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
        parse("--listen h:1 --memory gpu --payload 8").check_service().unwrap();
        parse("--connect h:1 --machine cpu --payload 1048576").check_asking().unwrap();
    }
}
