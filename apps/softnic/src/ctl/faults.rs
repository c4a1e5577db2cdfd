//! `softnic ctl link`, `set` and `inject`: what makes a NIC worse than it is, on demand.

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use mlx5_device::Span;
use soft_nic::control::Request;

use super::nics::RunningNics;

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
    /// Probability, 0 to 1, that a packet that leaves is lost; in shared memory a message, however long, stands for a packet.
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    loss: Option<f64>,
    /// Seed of the losses: with the same seed the same traffic from the same address loses the same packets.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// One-way delay of what this NIC sends, 0 to 1s, for example 250us; 0: none. Messages in flight keep their time.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    delay: Option<Span>,
    /// Shape to this rate, Gbit/s of wire bytes, 0.001 to 1000, or `none`.
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = limit)]
    rate_gbps: Option<String>,
    /// Send no more than so many requests and answers to READs in a second, 0.1 to 1000000000, or `none`.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = limit)]
    messages_per_second: Option<String>,
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
        #[arg(long, value_name = "NAME")]
        syndrome: String,
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
fn limit(text: &str) -> Result<String, &'static str> {
    match text == "none" || text.parse::<f64>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("a number or `none` is needed"),
    }
}

/// A number as people write QPNs and PSNs.
fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number, decimal or 0x…, is needed".to_owned())
}

pub fn link(link: &Link) -> Result<()> {
    let state = if matches!(link.state, State::Up) { "up" } else { "down" };
    let port = if link.port == 1 { String::new() } else { format!(" port={}", link.port) };
    ask(link.pid, &format!("link {} {state}{port}", link.device))
}

pub fn set(set: &Set) -> Result<()> {
    let mut line = "set".to_owned();
    let value =
        |name: &str, value: Option<String>| value.map(|value| format!(" {name}={value}")).unwrap_or_default();
    line += &value("loss", set.loss.map(|loss| loss.to_string()));
    line += &value("seed", set.seed.map(|seed| seed.to_string()));
    line += &value("delay", set.delay.map(|delay| delay.to_string()));
    line += &value("rate-gbps", set.rate_gbps.clone());
    line += &value("messages-per-second", set.messages_per_second.clone());
    if line == "set" {
        bail!("nothing to set; give --loss, --seed, --delay, --rate-gbps or --messages-per-second");
    }
    ask(set.pid, &line)
}

pub fn inject(inject: &Inject) -> Result<()> {
    let line = match &inject.fault {
        Fault::Drop { qp, psn: None } => format!("inject drop qp={qp}"),
        Fault::Drop { qp, psn: Some(psn) } => format!("inject drop qp={qp} psn={psn}"),
        Fault::ErrorCqe { qp, syndrome } => format!("inject error-cqe qp={qp} syndrome={syndrome}"),
        Fault::CorruptCrc { qp } => format!("inject corrupt-crc qp={qp}"),
        Fault::DelayRead { qp, us } => format!("inject delay-read qp={qp} us={us}"),
    };
    ask(inject.pid, &line)
}

/// Asks for something that has no answer but «done».
fn ask(pid: u32, line: &str) -> Result<()> {
    let request = Request::parse(line).map_err(anyhow::Error::msg)?;
    let (nics, target) = RunningNics::of_process(pid)?;
    nics.ask(&target, &request)?;
    Ok(())
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
}
