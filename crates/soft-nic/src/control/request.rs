//! What a NIC can be asked: one line of words, parsed into a value before anything is done.

use std::fmt;

use mlx5_device::counters::{syndrome_named, syndrome_names};
use mlx5_device::faults::InjectionKind::{CorruptCrc, DelayRead, Drop, ErrorCqe};
use mlx5_device::faults::{Injection, Settings};
use mlx5_layout::CqeSyndrome;

#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Devices, their ports and how many QPs they have.
    Status,
    /// Every counter, by the names of the stats line; behind them each port's, where there are several.
    Counters,
    /// The last reasons why something failed.
    Explain,
    /// A port goes down or up.
    Link {
        /// Index of the device.
        device: u8,
        /// Number of its port, from 1.
        port: u8,
        up: bool,
    },
    /// Loss, seed, delay, rates.
    Set(Settings),
    /// One fault.
    Inject(Injection),
    /// The packets of the wire, as a pcapng file behind the answer.
    Capture {
        /// Ends after so many; 0: when the caller goes away.
        packets: u64,
    },
}

impl Request {
    /// Parses a line. The error is a sentence.
    pub fn parse(line: &str) -> Result<Request, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["status"] => Ok(Request::Status),
            ["counters"] => Ok(Request::Counters),
            ["explain"] => Ok(Request::Explain),
            ["link", device, state @ ("up" | "down"), ref port @ ..] if port.len() <= 1 => {
                let device = device_index(device)?;
                let port = port.first().map_or(Ok(1), |port| value_of(port, "port"))?;
                Ok(Request::Link { device, port, up: state == "up" })
            }
            ["set", ref values @ ..] if !values.is_empty() => settings(values).map(Request::Set),
            ["inject", ref words @ ..] => injection(words).map(Request::Inject),
            ["capture"] => Ok(Request::Capture { packets: 0 }),
            ["capture", packets] => Ok(Request::Capture { packets: value_of(packets, "packets")? }),
            _ => Err(format!("{:?} is nothing that this NIC can be asked", shown(line))),
        }
    }
}

/// Index of a device from its name, `mlx5_0`.
fn device_index(name: &str) -> Result<u8, String> {
    let index = name.strip_prefix("mlx5_").and_then(|index| index.parse().ok());
    index
        .filter(|index| *index < 8)
        .ok_or_else(|| format!("{:?} is no device; mlx5_0 to mlx5_7 can be", shown(name)))
}

fn value_of<T: std::str::FromStr>(word: &str, key: &str) -> Result<T, String> {
    let value = word.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("{:?} where {key}=VALUE is needed", shown(word)))
}

/// The same, or `key=none`.
fn value_or_none<T: std::str::FromStr>(word: &str, key: &str) -> Result<Option<T>, String> {
    if word.strip_prefix(key) == Some("=none") { Ok(None) } else { value_of(word, key).map(Some) }
}

fn settings(words: &[&str]) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")).0 {
            "loss" => settings.loss = Some(value_of(word, "loss")?),
            "seed" => settings.seed = Some(value_of(word, "seed")?),
            "delay" => {
                let time = word.split_once('=').map_or("", |(_, time)| time);
                settings.delay = Some(time.parse()?);
            }
            key @ "rate-gbps" => settings.rate_gbps = Some(value_or_none(word, key)?),
            key @ "messages-per-second" => settings.messages_per_second = Some(value_or_none(word, key)?),
            _ => {
                let what = "loss, seed, delay, rate-gbps and messages-per-second can";
                return Err(format!("{:?} cannot be set; {what}", shown(word)));
            }
        }
    }
    Ok(settings)
}

fn injection(words: &[&str]) -> Result<Injection, String> {
    let (qp, kind) = match *words {
        ["drop", qp] => (qp, Drop(None)),
        ["drop", qp, psn] => match value_of(psn, "psn")? {
            psn @ 0..=0xff_ffff => (qp, Drop(Some(psn))),
            psn => return Err(format!("PSN {psn}; it has 24 bits")),
        },
        ["error-cqe", qp, name] => (qp, ErrorCqe(syndrome(&value_of::<String>(name, "syndrome")?)?)),
        ["corrupt-crc", qp] => (qp, CorruptCrc),
        ["delay-read", qp, us] => match value_of(us, "us")? {
            us @ 0..=60_000_000 => (qp, DelayRead(us)),
            us => return Err(format!("a delay of {us} µs; 60000000 is the longest")),
        },
        _ => {
            return Err("nothing known to inject; drop, error-cqe, corrupt-crc and delay-read are".to_owned());
        }
    };
    Ok(Injection { qpn: value_of(qp, "qp")?, kind })
}

/// A syndrome by the name of its counter, without `error_`.
fn syndrome(name: &str) -> Result<CqeSyndrome, String> {
    let all = || syndrome_names().collect::<Vec<_>>().join(", ");
    syndrome_named(name).ok_or_else(|| format!("{:?} is no syndrome; there are {}", shown(name), all()))
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Status => f.write_str("status"),
            Request::Counters => f.write_str("counters"),
            Request::Explain => f.write_str("explain"),
            Request::Link { device, port, up } => {
                write!(f, "link mlx5_{device} {}", if *up { "up" } else { "down" })?;
                if *port == 1 { Ok(()) } else { write!(f, " port={port}") }
            }
            Request::Set(settings) => write!(f, "set {settings}"),
            Request::Inject(injection) => write!(f, "inject {injection}"),
            Request::Capture { packets: 0 } => f.write_str("capture"),
            Request::Capture { packets } => write!(f, "capture packets={packets}"),
        }
    }
}

/// The beginning of what came, for a message about it.
fn shown(line: &str) -> String {
    line.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        for line in [
            "status",
            "counters",
            "explain",
            "link mlx5_0 down",
            "link mlx5_7 up",
            "link mlx5_0 up port=2",
            "set loss=0.01 seed=18446744073709551615 delay=250us rate-gbps=2.5 messages-per-second=1000",
            "set delay=0",
            "set rate-gbps=none",
            "set messages-per-second=none",
            "set loss=0",
            "inject drop qp=64",
            "inject drop qp=64 psn=16777215",
            "inject error-cqe qp=64 syndrome=remote_access",
            "inject delay-read qp=64 us=1000",
            "inject corrupt-crc qp=64",
            "capture",
            "capture packets=18446744073709551615",
        ] {
            assert_eq!(Request::parse(line).map(|request| request.to_string()), Ok(line.to_owned()));
        }
        for name in syndrome_names() {
            let line = format!("inject error-cqe qp=64 syndrome={name}");
            assert_eq!(Request::parse(&line).map(|request| request.to_string()), Ok(line));
        }
    }

    #[test]
    fn anything_else_is_refused_in_one_short_line() {
        for line in [
            "",
            " ",
            "status now",
            "explain 7",
            "counters\nstatus",
            "Status",
            &"x".repeat(1000),
            "\0",
            "link mlx5_8 down",
            "link eth0 down",
            "link mlx5_0 sideways",
            "link mlx5_0 up 2",
            "link mlx5_0 up port=256",
            "set",
            "set loss",
            "set loss=much",
            "set luck=1",
            "set delay=1",
            "set delay=soon",
            "set delay",
            "set loss=none",
            "set messages-per-second=few",
            "inject",
            "inject drop",
            "inject drop qp=-1",
            "inject drop qp=1 psn=16777216",
            "inject error-cqe qp=1 syndrome=bad_mood",
            "inject delay-read qp=1 us=60000001",
            "capture packets=-1",
            "capture everything",
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.len() < 400 && !error.contains('\n'), "{error}");
        }
    }
}
