//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use cli::{Nic, OptionScope, check_address, named};
use serving::{ARRIVALS, Arrival, TRANSPORTS, Transport};

use crate::load::{Arrivals, End, Load};

/// Requests where neither `--count` nor `--seconds` is given.
const COUNT: u64 = 1000;
/// Most requests a second.
const MOST_RATE: f64 = 1e7;

/// Sends requests to an inference server, checks each answer, and times it.
#[derive(Debug, Parser)]
#[command(
    name = "doorbell-client",
    version = cli::VERSION,
    after_help = "Both ends need an RDMA device. On a host without one, start them under the software NIC: \
                  softnic run -- doorbell-client --connect 127.0.0.1:7000 --model squeezenet-1.1"
)]
pub struct Options {
    /// Address of the server.
    #[arg(long, value_name = "HOST:PORT")]
    pub connect: String,
    /// Name of the model; `cargo xtask zoo list` has them.
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// Folder of the manifests [default: modelzoo/models, in this folder, in the program's, or above].
    #[arg(long, value_name = "FOLDER")]
    pub manifests: Option<PathBuf>,
    /// Slots to ask the server for: requests in flight at most.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub slots: u16,
    /// How each side learns that a message is whole.
    #[arg(long, default_value = "flag", value_parser = named::<Arrival>(&ARRIVALS))]
    pub arrival: Arrival,
    /// Service of the queue pair.
    #[arg(long, default_value = "rc", value_parser = named::<Transport>(&TRANSPORTS))]
    pub transport: Transport,
    /// Number of requests [default: 1000, or as many as --seconds takes].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "seconds")]
    pub count: Option<u64>,
    /// Send requests for so long; then wait for the answers.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Closed loop: requests in flight [default: the slots].
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    pub window: Option<u16>,
    /// Open loop: requests a second, whatever the answers do.
    #[arg(long, value_name = "R")]
    pub rate: Option<f64>,
    /// Open loop: when requests are sent.
    #[arg(long, value_enum, default_value = "poisson")]
    pub arrivals: ArrivalsName,
    /// Open loop: seed of the times of a Poisson process.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of different inputs, from 2 on; successive requests differ.
    #[arg(long, value_name = "K", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub inputs: u16,
    /// File of `profiler reference`: the first answer to each input is compared with it, within --tolerance.
    #[arg(long, value_name = "FILE")]
    pub reference: Option<PathBuf>,
    /// Largest difference from the reference, relative to the root mean square of the input's reference.
    #[arg(long, value_name = "T", default_value_t = 1e-4)]
    pub tolerance: f64,
    /// Time within which an answer has to come, from when its request is due; else it is lost. On RC the run
    /// ends when every slot has waited twice as long.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub deadline: Duration,
    /// First answers whose time is not recorded.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warm_up: u64,
    /// Say each second how far the run is: a line where --json - writes, too [default: only on a terminal].
    #[arg(long)]
    pub live: bool,
    /// Device and port.
    #[command(flatten)]
    pub nic: Nic,
    /// Write JSON lines to this file; - is standard output.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// An open loop's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrivalsName {
    /// Independent of one another.
    Poisson,
    /// At equal distances.
    Constant,
}

/// Options that not every load uses.
pub const OPTION_SCOPES: [OptionScope<Options>; 3] = [
    OptionScope { options: &["arrivals"], to: "--rate", when: |options| options.rate.is_some() },
    OptionScope {
        options: &["seed"],
        to: "--rate and --arrivals poisson",
        when: |options| options.rate.is_some() && options.arrivals == ArrivalsName::Poisson,
    },
    OptionScope { options: &["tolerance"], to: "--reference", when: |options| options.reference.is_some() },
];

/// Seconds, more than 0 and a day at most.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    let seconds = Some(seconds).filter(|seconds| *seconds > 0.0 && *seconds <= 86_400.0);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give more than 0 and at most 86400 seconds".into())
}

impl Options {
    pub fn check(&self) -> Result<()> {
        check_address("--connect", &self.connect)?;
        if self.arrival == Arrival::Send && self.transport == Transport::Uc {
            bail!("--arrival send: a SEND that --transport uc loses takes no receive; give --transport rc");
        }
        match (self.window, self.rate) {
            (Some(window), _) if !(1..=self.slots).contains(&window) => {
                bail!("--window {window}: give 1 to {} requests, as many as --slots", self.slots)
            }
            (_, Some(rate)) if !(rate > 0.0 && rate <= MOST_RATE) => {
                bail!("--rate {rate}: give more than 0 and at most {MOST_RATE:.0} requests a second")
            }
            _ if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) => {
                bail!("--tolerance {}: give a number from 0 on", self.tolerance)
            }
            _ => Ok(()),
        }
    }

    /// When requests are due, from this time on by the client's clock.
    pub fn load(&self, start_ns: u64) -> Load {
        let end = match self.seconds {
            Some(time) => End::At(start_ns + time.as_nanos() as u64),
            None => End::Count(self.count.unwrap_or(COUNT)),
        };
        let arrivals = match (self.rate, self.arrivals) {
            (None, _) => Arrivals::Closed { window: self.window.unwrap_or(self.slots).into() },
            (Some(rate), ArrivalsName::Constant) => Arrivals::Constant { rate },
            (Some(rate), ArrivalsName::Poisson) => Arrivals::poisson(rate, self.seed),
        };
        Load::new(arrivals, end, start_ns)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(text: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(format!("client --connect h:1 --model m {text}").split_whitespace())
    }

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
        let options = parse("--arrival completion --transport uc").unwrap();
        assert_eq!((options.arrival, options.transport), (Arrival::Completion, Transport::Uc));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for text in ["--arrival x", "--count 0", "--seconds 0", "--seconds -1", "--slots 0", "--inputs 1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for (text, words) in [
            ("--window 9 --slots 8", "--window 9: give 1 to 8"),
            ("--rate 0", "--rate 0: give more"),
            ("--rate NaN", "--rate NaN"),
            ("--tolerance=-1 --reference f", "--tolerance -1"),
        ] {
            let error = parse(text).unwrap().check().unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }

    /// Why a command line is refused, by its options alone or by their values.
    fn refusal(text: &str) -> Option<String> {
        let options = match parse(text) {
            Ok(options) => options,
            // Behind the first line it says the usage.
            Err(error) => return error.to_string().lines().next().map(str::to_owned),
        };
        let stray = cli::testing::stray(&format!("--connect h:1 --model m {text}"), &OPTION_SCOPES);
        stray.or_else(|| options.check().err().map(|error| error.to_string()))
    }

    #[test]
    fn options_that_exclude_each_other_are_refused_in_a_sentence_that_names_both() {
        // The last column: with what the option is heeded.
        let table = [
            ("--count 2", "--seconds 3", "--rate 1"),
            ("--window 2", "--rate 3", "--count 2"),
            ("--window 9", "--slots 8", "--slots 9"),
            ("--arrival send", "--transport uc", "--transport rc"),
            ("--arrivals constant", "", "--rate 1"),
            ("--seed 3", "", "--rate 1"),
            ("--seed 3", "--arrivals constant --rate 1", "--arrivals poisson --rate 1"),
            ("--tolerance 1", "", "--reference f"),
            ("--gid-index 1", "--ip 10.0.0.1", "--mtu 1024"),
        ];
        for (option, other, heeded) in table {
            let said = refusal(&format!("{option} {other}")).unwrap_or_else(|| panic!("{option} {other}"));
            // Where an option needs another one, that is named.
            let name = if refusal(option).is_some() { heeded } else { other }.split(' ').next().unwrap();
            assert!(said.contains(option.split(' ').next().unwrap()) && said.contains(name), "{said}");
            assert_eq!(refusal(&format!("{option} {heeded}")), None);
        }
        let command = Options::command();
        let excluding = command.get_arguments().filter(|arg| !command.get_arg_conflicts_with(arg).is_empty());
        let scoped = OPTION_SCOPES.iter().flat_map(|row| row.options).map(ToString::to_string);
        for option in excluding.filter_map(|arg| arg.get_long().map(str::to_owned)).chain(scoped) {
            let is_named =
                |row: &(&str, &str, &str)| format!("{} {}", row.0, row.1).contains(&format!("--{option} "));
            assert!(table.iter().any(is_named), "a row for --{option}");
        }
    }
}
