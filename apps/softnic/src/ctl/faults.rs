//! `softnic ctl link`, `set` and `inject`: what makes a NIC worse than it is, on demand.

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use mlx5_device::Span;
use mlx5_device::counters::{syndrome_named, syndrome_names};
use mlx5_device::faults::{Injection, InjectionKind, Settings};
use soft_nic::config::MAX_DEVICES;
use soft_nic::control::Request;

use super::nics::Target;

/// A port goes down or up.
#[derive(Debug, Args)]
pub struct Link {
    /// Process that has the NIC.
    #[arg(value_name = "PID")]
    pid: u32,
    /// New state of the port.
    state: State,
    /// Device.
    #[arg(long, value_name = "NAME", default_value = "mlx5_0")]
    device: String,
    /// Its port.
    #[arg(long, value_name = "N", default_value_t = 1)]
    port: u8,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    Down,
    Up,
}

/// What may be changed while the NIC runs.
#[derive(Debug, Args)]
pub struct Set {
    /// Process whose NIC is changed.
    #[arg(value_name = "PID")]
    pid: u32,
    /// Probability, 0 to 1, of a loss: on the wire of a packet, in shared memory of a whole message.
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    loss: Option<f64>,
    /// Probability, 0 to 1, that later packets arrive before a packet: on the wire only.
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    reorder: Option<f64>,
    /// Seed of loss and reorder: the same seed, traffic and address lose and reorder the same packets.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// One-way delay of what this NIC sends, 0 to 1s, such as 250us; 0: none. Messages in flight keep theirs.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    delay: Option<Span>,
    /// Shape to this rate, Gbit/s of wire bytes, 0.001 to 1000, or `none`.
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = limit)]
    rate_gbps: Option<Limit>,
    /// Send no more than so many requests and answers to READs in a second, 0.1 to 1000000000, or `none`.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = limit)]
    messages_per_second: Option<Limit>,
}

/// One fault, at the next message that it fits.
#[derive(Debug, Args)]
pub struct Inject {
    /// Process whose NIC gets the fault.
    #[arg(value_name = "PID")]
    pid: u32,
    #[command(subcommand)]
    fault: Fault,
}

#[derive(Debug, Subcommand)]
enum Fault {
    /// Lose one request of a QP, on the wire one packet of it: the one with this PSN, or the next.
    Drop {
        /// QPN, decimal or 0x….
        #[arg(long, value_parser = number)]
        qp: u32,
        /// PSN, 24 bits; without it, the next request.
        #[arg(long, value_parser = number)]
        psn: Option<u32>,
    },
    /// End the next send of a QP with an error CQE; the queue goes to error as on a card.
    ErrorCqe {
        /// QPN, decimal or 0x….
        #[arg(long, value_parser = number)]
        qp: u32,
        /// As the counters `error_…` name it: remote_access, retry_exceeded…
        #[arg(long, value_name = "NAME", value_parser = error_cqe)]
        syndrome: InjectionKind,
    },
    /// Send the next packet of a QP with a wrong ICRC; only where it is connected over the wire.
    CorruptCrc {
        /// QPN, decimal or 0x….
        #[arg(long, value_parser = number)]
        qp: u32,
    },
    /// Answer the next READ that arrives at a QP later, by --us; traffic of other queues goes on.
    DelayRead {
        /// QPN of the QP that answers, decimal or 0x….
        #[arg(long, value_parser = number)]
        qp: u32,
        /// Delay of the answer in microseconds, up to 60000000.
        #[arg(long)]
        us: u32,
    },
}

/// A rate, or that there is none.
#[derive(Debug, Clone, Copy)]
struct Limit(Option<f64>);

fn limit(text: &str) -> Result<Limit, &'static str> {
    match text.parse() {
        _ if text == "none" => Ok(Limit(None)),
        Ok(rate) => Ok(Limit(Some(rate))),
        Err(_) => Err("a number or `none` is needed"),
    }
}

/// The fault with a syndrome by the name of its counter, without `error_`.
fn error_cqe(name: &str) -> Result<InjectionKind, String> {
    let all = || syndrome_names().collect::<Vec<_>>().join(", ");
    let named = syndrome_named(name).map(InjectionKind::ErrorCqe);
    named.ok_or_else(|| format!("{name:?} is no syndrome; there are {}", all()))
}

/// A number as people write QPNs and PSNs.
fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number, decimal or 0x…, is needed".to_owned())
}

pub fn link(Link { pid, state, device, port }: &Link) -> Result<()> {
    let index = device.strip_prefix("mlx5_").and_then(|index| index.parse().ok());
    let Some(index) = index.filter(|index| *index < MAX_DEVICES) else {
        bail!("{device:?} is no device; mlx5_0 to mlx5_7 can be");
    };
    ask(*pid, &Request::Link { device: index, port: *port, up: matches!(state, State::Up) })
}

pub fn set(set: &Set) -> Result<()> {
    let Set { loss, reorder, seed, delay, .. } = *set;
    let [rate_gbps, messages_per_second] =
        [set.rate_gbps, set.messages_per_second].map(|limit| limit.map(|limit| limit.0));
    let settings = Settings { loss, reorder, seed, delay, rate_gbps, messages_per_second };
    if settings == Settings::default() {
        bail!(
            "nothing to set; give --loss, --reorder, --seed, --delay, --rate-gbps or --messages-per-second"
        );
    }
    ask(set.pid, &Request::Set(settings))
}

pub fn inject(inject: &Inject) -> Result<()> {
    let (qpn, kind) = match inject.fault {
        Fault::Drop { qp, psn } => (qp, InjectionKind::Drop(psn)),
        Fault::ErrorCqe { qp, syndrome } => (qp, syndrome),
        Fault::CorruptCrc { qp } => (qp, InjectionKind::CorruptCrc),
        Fault::DelayRead { qp, us } => (qp, InjectionKind::DelayRead(us)),
    };
    ask(inject.pid, &Request::Inject(Injection { qpn, kind }))
}

/// Asks for something that has no answer but «done».
fn ask(pid: u32, request: &Request) -> Result<()> {
    request.check().map_err(anyhow::Error::msg)?;
    Target::of_process(pid)?.ask(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!((number("64"), number("0x40")), (Ok(64), Ok(64)));
        for text in ["", "0x", "-1", "4294967296", "x"] {
            assert!(number(text).is_err(), "{text}");
        }
    }

    /// What `softnic ctl` says of these words, before it looks for the process.
    fn refused(words: &[&str]) -> String {
        #[derive(Debug, clap::Parser)]
        enum Asked {
            Link(Link),
            Set(Set),
            Inject(Inject),
        }
        let words = ["ctl"].iter().chain(words);
        let error = match <Asked as clap::Parser>::try_parse_from(words) {
            Err(error) => error.to_string().split("\n\n").next().unwrap_or_default().to_owned(),
            Ok(Asked::Link(asked)) => link(&asked).unwrap_err().to_string(),
            Ok(Asked::Set(asked)) => set(&asked).unwrap_err().to_string(),
            Ok(Asked::Inject(asked)) => inject(&asked).unwrap_err().to_string(),
        };
        assert!(error.len() < 400 && !error.contains("there is no process"), "{error}");
        error
    }

    #[test]
    fn what_no_nic_can_be_asked_is_refused_in_one_short_line() {
        for (words, said) in [
            (
                &["link", "0", "down", "--device", "mlx5_8"][..],
                "\"mlx5_8\" is no device; mlx5_0 to mlx5_7 can be",
            ),
            (&["link", "0", "down", "--device", "eth0"], "\"eth0\" is no device"),
            (&["link", "0", "sideways"], "'sideways'"),
            (&["link", "0", "up", "--port", "256"], "256"),
            (&["set", "0"], "nothing to set"),
            (&["set", "0", "--loss", "much"], "'much'"),
            (&["set", "0", "--loss", "none"], "'none'"),
            (&["set", "0", "--luck", "1"], "--luck"),
            (&["set", "0", "--delay", "1"], "is no time"),
            (&["set", "0", "--delay", "soon"], "is no time"),
            (&["set", "0", "--messages-per-second", "few"], "a number or `none` is needed"),
            (&["inject", "0", "drop"], "--qp"),
            (&["inject", "0", "drop", "--qp", "-1"], "-1"),
            (&["inject", "0", "drop", "--qp", "1", "--psn", "16777216"], "PSN 16777216; it has 24 bits"),
            (
                &["inject", "0", "error-cqe", "--qp", "1", "--syndrome", "bad_mood"],
                "\"bad_mood\" is no syndrome; there are",
            ),
            (&["inject", "0", "delay-read", "--qp", "1", "--us", "60000001"], "60000000 is the longest"),
        ] {
            let error = refused(words);
            assert!(error.contains(said), "{words:?}: {error}");
        }
    }
}
