//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use rdma_shim::{Doorbell, Options, Order};
use verbs::code::Mtu;
use verbs::connect::{GidChoice, PathOptions};

use crate::plan::{Op, Plan, Service, Verify, Wish};
use crate::poster::Kind;
use crate::report::PosterNames;
use crate::sender::Until;

/// Sends RDMA messages as fast as one thread can post them, to a receiver that is really there.
#[derive(Debug, Parser)]
#[command(
    name = "generator",
    version,
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

/// Options of `baseline`.
#[derive(Debug, Args)]
pub struct Baseline {
    /// What is measured.
    pub what: BaselineKind,
    /// Bytes of a copy.
    #[arg(long, default_value_t = 65536)]
    pub bytes: usize,
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// The two cores, as `0,1`; without it the first two that this process may use.
    #[arg(long, value_delimiter = ',')]
    pub cores: Vec<u32>,
    /// Of `udp-ping-pong`: answer at this address.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect")]
    pub listen: Option<SocketAddr>,
    /// Of `udp-ping-pong`: measure against the one who listens there.
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

/// Device and port.
#[derive(Debug, Clone, Args)]
pub struct Nic {
    /// Device; without it the first, or the one with --ip.
    #[arg(long, value_name = "NAME")]
    pub nic: Option<String>,
    /// Port of the device.
    #[arg(long, default_value_t = 1)]
    pub port: u8,
    /// Entry of the GID table; without it the first RoCE v2 entry with an IPv4 address.
    #[arg(long, value_name = "N", conflicts_with = "ip")]
    pub gid_index: Option<u32>,
    /// Our IP address on the RDMA network, instead of --gid-index.
    #[arg(long)]
    pub ip: Option<IpAddr>,
    /// Path MTU in bytes; without it the port's active one.
    #[arg(long, value_parser = mtu)]
    pub mtu: Option<Mtu>,
    /// Service level of what this end sends: 0 to 15, on Ethernet 0 to 7.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = at_most::<15>, allow_negative_numbers = true)]
    pub sl: u8,
    /// Traffic class of what this end sends (on RoCE v2 DSCP and ECN): 0 to 255.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = at_most::<255>, allow_negative_numbers = true)]
    pub traffic_class: u8,
    /// Acknowledgement timeout of this end: 0 to 31, 4.096 µs × 2^N, 0 waits for ever.
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = at_most::<31>, allow_negative_numbers = true)]
    pub timeout: u8,
    /// Retries of this end after a timeout: 0 to 7.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_most::<7>, allow_negative_numbers = true)]
    pub retry: u8,
    /// Retries of this end when the other has no receive posted (RNR NAK): 0 to 7, 7 for ever.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = at_most::<7>, allow_negative_numbers = true)]
    pub rnr_retry: u8,
}

/// What is wrong with the command line, with clap's tip; clap's own text has lines for the usage too.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let reason = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = reason.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: a similar "));
    let tip = tip.map_or_else(String::new, |tip| format!("; a similar {tip}"));
    format!("{}{tip} (--help tells more)", words.join(" ").trim_start_matches("error: "))
}

/// Whether an address has a port, before a device is opened for it.
pub fn check_address(option: &str, address: &str) -> Result<()> {
    let example = match address.parse::<IpAddr>() {
        Ok(IpAddr::V6(v6)) => format!("[{v6}]:18515"),
        _ => format!("{}:18515", address.trim_end_matches(':')),
    };
    if address.parse::<IpAddr>().is_ok() || !address.contains(':') || address.ends_with(':') {
        bail!("{option} {address} has no port: give one, as in {option} {example}");
    }
    let (host, port) = address.rsplit_once(':').unwrap_or_default();
    match port.parse::<u16>() {
        Ok(0) if option == "--connect" => {
            bail!("--connect {address}: nobody listens on port 0; give the receiver's")
        }
        Ok(_) => Ok(()),
        Err(_) => {
            bail!("{option} {address}: `{port}` is no port; give {host}:PORT with a number up to 65535")
        }
    }
}

fn at_most<const MOST: u8>(text: &str) -> Result<u8, String> {
    let value = text.parse().ok().filter(|value| *value <= MOST);
    value.ok_or_else(|| format!("give a number from 0 to {MOST}"))
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes: u32 = text.parse().map_err(|_| format!("{text} is no number of bytes"))?;
    Mtu::try_from(bytes)
}

impl Nic {
    /// As `verbs::connect` takes it.
    pub fn path(&self) -> PathOptions {
        let gid = match (self.gid_index, self.ip) {
            (Some(index), _) => GidChoice::Index(index),
            (None, Some(ip)) => GidChoice::Ip(ip),
            (None, None) => GidChoice::Auto,
        };
        PathOptions {
            device: self.nic.clone(),
            port: self.port,
            gid,
            mtu: self.mtu,
            service_level: self.sl,
            traffic_class: self.traffic_class,
            timeout: self.timeout,
            retry_count: self.retry,
            rnr_retry: self.rnr_retry,
            ..PathOptions::default()
        }
    }
}

/// Who posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PosterName {
    /// `ibv_post_send`.
    CpuIbverbs,
    /// The shim.
    CpuShim,
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
    /// Messages a doorbell.
    #[arg(long, default_value_t = 1)]
    pub doorbell_batch: u32,
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
            doorbell_batch: self.doorbell_batch,
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

    /// Who posts.
    pub fn poster(&self) -> (Kind, PosterNames) {
        match self.poster {
            PosterName::CpuIbverbs => {
                (Kind::Ibverbs, PosterNames { poster: "cpu-ibverbs", order: None, doorbell: None })
            }
            PosterName::CpuShim => {
                let (order, order_name) = match self.order {
                    OrderName::Strict => (Order::Strict, "strict"),
                    OrderName::Early => (Order::Early, "early"),
                };
                let (doorbell, doorbell_name) = match self.doorbell {
                    DoorbellName::EightBytes => (Doorbell::EightBytes, "8-bytes"),
                    DoorbellName::BlueFlame => (Doorbell::BlueFlame, "blueflame"),
                };
                let options = Options { order, doorbell, signal_all: false };
                let names = PosterNames {
                    poster: "cpu-shim",
                    order: Some(order_name),
                    doorbell: Some(doorbell_name),
                };
                (Kind::Shim(options), names)
            }
        }
    }
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
    fn an_address_without_a_port_is_refused_with_one_that_has_it() {
        for (option, address, words) in [
            ("--connect", "localhost", "--connect localhost:18515"),
            ("--connect", "localhost:", "--connect localhost:18515"),
            ("--listen", "127.0.0.1", "--listen 127.0.0.1:18515"),
            ("--connect", "fe80::1", "--connect [fe80::1]:18515"),
            ("--listen", "[::]", "`]` is no port"),
            ("--connect", "host:http", "`http` is no port"),
            ("--connect", "host:65536", "`65536` is no port"),
            ("--connect", "host:0", "port 0"),
        ] {
            let error = check_address(option, address).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{option} {address}")) && error.contains(words), "{error}");
        }
        for (option, address) in
            [("--listen", "0.0.0.0:0"), ("--connect", "h:1"), ("--connect", "[::1]:7000")]
        {
            check_address(option, address).unwrap();
        }
    }

    #[test]
    fn a_connection_gets_what_was_asked_for_and_else_the_defaults_of_verbs() {
        let parse = |text: &str| Cli::try_parse_from(text.split_whitespace()).unwrap().transfer.nic.path();
        assert_eq!(parse("generator --connect h:1"), PathOptions::default());
        let wanted = PathOptions {
            gid: GidChoice::Index(3),
            mtu: Some(Mtu::Mtu2048),
            service_level: 5,
            traffic_class: 96,
            timeout: 17,
            retry_count: 2,
            rnr_retry: 1,
            ..PathOptions::default()
        };
        let options =
            "--gid-index 3 --mtu 2048 --sl 5 --traffic-class 96 --timeout 17 --retry 2 --rnr-retry 1";
        assert_eq!(parse(&format!("generator --connect h:1 {options}")), wanted);
    }

    #[test]
    fn ends_and_posters_are_what_was_asked_for() {
        let parse = |text: &str| Cli::try_parse_from(text.split_whitespace()).unwrap().transfer;
        let sender = parse(
            "generator --connect h:1 --poster cpu-shim --order early --doorbell blueflame --seconds 0.5",
        );
        assert_eq!(sender.until().unwrap(), Until::Elapsed(Duration::from_millis(500)));
        let options = Options { order: Order::Early, doorbell: Doorbell::BlueFlame, signal_all: false };
        assert_eq!(sender.poster().0, Kind::Shim(options));
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
