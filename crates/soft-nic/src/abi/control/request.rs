//! What a NIC can be asked: one line of words, parsed into a value before anything is done.

use std::fmt;

use crate::device::counters::{syndrome_named, syndrome_names};
use crate::device::faults::{Injection, Settings};
use mlx5_layout::CqeSyndrome;

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Devices, their ports and how many QPs they have.
    Status,
    /// Every counter, by the names of the stats line.
    Counters,
    /// A port goes down or up.
    Link {
        /// Index of the device.
        device: u8,
        /// Up.
        up: bool,
    },
    /// Loss, seed, rate.
    Set(Settings),
    /// One fault.
    Inject(Injection),
}

impl Request {
    /// Parses a line. The error is a sentence.
    pub fn parse(line: &str) -> Result<Request, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["status"] => Ok(Request::Status),
            ["counters"] => Ok(Request::Counters),
            ["link", device, state @ ("up" | "down")] => {
                Ok(Request::Link { device: device_index(device)?, up: state == "up" })
            }
            ["set", ref values @ ..] if !values.is_empty() => settings(values).map(Request::Set),
            ["inject", ref words @ ..] => injection(words).map(Request::Inject),
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

/// The value of a word `key=value`.
fn value_of<T: std::str::FromStr>(word: &str, key: &str) -> Result<T, String> {
    let value = word.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("{:?} where {key}=VALUE is needed", shown(word)))
}

fn settings(words: &[&str]) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")).0 {
            "loss" => settings.loss = Some(value_of(word, "loss")?),
            "seed" => settings.seed = Some(value_of(word, "seed")?),
            "rate-gbps" if *word == "rate-gbps=none" => settings.rate_gbps = Some(None),
            "rate-gbps" => settings.rate_gbps = Some(Some(value_of(word, "rate-gbps")?)),
            _ => return Err(format!("{:?} cannot be set; loss, seed and rate-gbps can", shown(word))),
        }
    }
    Ok(settings)
}

fn injection(words: &[&str]) -> Result<Injection, String> {
    match *words {
        ["drop", qp] => Ok(Injection::Drop { qpn: value_of(qp, "qp")?, psn: None }),
        ["drop", qp, psn] => {
            let psn: u32 = value_of(psn, "psn")?;
            if psn >> 24 != 0 {
                return Err(format!("PSN {psn}; it has 24 bits"));
            }
            Ok(Injection::Drop { qpn: value_of(qp, "qp")?, psn: Some(psn) })
        }
        ["error-cqe", qp, name] => {
            let name: String = value_of(name, "syndrome")?;
            Ok(Injection::ErrorCqe { qpn: value_of(qp, "qp")?, syndrome: syndrome(&name)? })
        }
        ["delay-read", qp, us] => {
            let us: u32 = value_of(us, "us")?;
            if us > 60_000_000 {
                return Err(format!("a delay of {us} µs; 60000000 is the longest"));
            }
            Ok(Injection::DelayRead { qpn: value_of(qp, "qp")?, us })
        }
        _ => Err("nothing known to inject; drop, error-cqe and delay-read are".to_owned()),
    }
}

/// A syndrome by the name of its counter, without `error_`.
fn syndrome(name: &str) -> Result<CqeSyndrome, String> {
    let all = || syndrome_names().collect::<Vec<_>>().join(", ");
    syndrome_named(name).ok_or_else(|| format!("{:?} is no syndrome; there are {}", shown(name), all()))
}

fn name_of(syndrome: CqeSyndrome) -> &'static str {
    syndrome_names().find(|name| syndrome_named(name) == Some(syndrome)).unwrap_or_default()
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Status => f.write_str("status"),
            Request::Counters => f.write_str("counters"),
            Request::Link { device, up } => {
                write!(f, "link mlx5_{device} {}", if *up { "up" } else { "down" })
            }
            Request::Set(Settings { loss, seed, rate_gbps }) => {
                f.write_str("set")?;
                loss.iter().try_for_each(|loss| write!(f, " loss={loss}"))?;
                seed.iter().try_for_each(|seed| write!(f, " seed={seed}"))?;
                match rate_gbps {
                    None => Ok(()),
                    Some(None) => f.write_str(" rate-gbps=none"),
                    Some(Some(rate)) => write!(f, " rate-gbps={rate}"),
                }
            }
            Request::Inject(Injection::Drop { qpn, psn: None }) => write!(f, "inject drop qp={qpn}"),
            Request::Inject(Injection::Drop { qpn, psn: Some(psn) }) => {
                write!(f, "inject drop qp={qpn} psn={psn}")
            }
            Request::Inject(Injection::ErrorCqe { qpn, syndrome }) => {
                write!(f, "inject error-cqe qp={qpn} syndrome={}", name_of(*syndrome))
            }
            Request::Inject(Injection::DelayRead { qpn, us }) => {
                write!(f, "inject delay-read qp={qpn} us={us}")
            }
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
            "link mlx5_0 down",
            "link mlx5_7 up",
            "set loss=0.01 seed=18446744073709551615 rate-gbps=2.5",
            "set rate-gbps=none",
            "set loss=0",
            "inject drop qp=64",
            "inject drop qp=64 psn=16777215",
            "inject error-cqe qp=64 syndrome=remote_access",
            "inject delay-read qp=64 us=1000",
        ] {
            assert_eq!(Request::parse(line).map(|request| request.to_string()), Ok(line.to_owned()));
        }
        for name in syndrome_names() {
            assert_eq!(name_of(syndrome(name).unwrap()), name);
        }
    }

    #[test]
    fn anything_else_is_refused_in_one_short_line() {
        for line in [
            "",
            " ",
            "status now",
            "counters\nstatus",
            "Status",
            &"x".repeat(1000),
            "\0",
            "link mlx5_8 down",
            "link eth0 down",
            "link mlx5_0 sideways",
            "set",
            "set loss",
            "set loss=much",
            "set luck=1",
            "inject",
            "inject drop",
            "inject drop qp=-1",
            "inject drop qp=1 psn=16777216",
            "inject error-cqe qp=1 syndrome=bad_mood",
            "inject delay-read qp=1 us=60000001",
        ] {
            let error = Request::parse(line).unwrap_err();
            assert!(error.len() < 400 && !error.contains('\n'), "{error}");
        }
    }
}
