//! Which NIC and port a program uses, and how its end of a connection behaves.

use std::net::IpAddr;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use measure::Label;
use verbs::code::{Access, Mtu};
use verbs::connect::{GidChoice, Hello, Path, PathOptions, QpOffer};
use verbs::{Qp, QpType};

/// NIC and link of this process, for results: `softnic run` tells in the environment. Not for decisions.
pub fn nic_label() -> Label {
    if std::env::var_os("SOFTNIC_FABRIC").is_some() { Label::Emulated } else { Label::Hardware }
}

/// Device and port.
#[derive(Debug, Clone, Args)]
pub struct Nic {
    /// Device, for example mlx5_0 [default: the one that has --ip, else the first].
    #[arg(long, value_name = "NAME")]
    pub nic: Option<String>,
    /// Port of the device.
    #[arg(long, default_value_t = 1)]
    pub port: u8,
    /// Entry of the GID table [default: the first RoCE v2 entry with an IPv4 address].
    #[arg(long, value_name = "N", conflicts_with = "ip")]
    pub gid_index: Option<u32>,
    /// IP address of this end on the RDMA network, instead of --gid-index.
    #[arg(long)]
    pub ip: Option<IpAddr>,
    /// Path MTU in bytes [default: the port's active MTU].
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

    /// Opens the device that was asked for; `program` is named in the advice for hosts without one.
    pub fn open(&self, program: &str) -> Result<(verbs::Context, Path)> {
        self.path().open().map_err(|error| {
            // Without any driver the kernel refuses the question itself.
            let none =
                verbs::devices().map_or_else(|refusal| refusal.errno().is_some(), |list| list.is_empty());
            if none {
                anyhow!(
                    "{error}; without a card, `softnic run -- {program} …` gives it a device (--help tells more)"
                )
            } else {
                error.into()
            }
        })
    }
}

/// Connects two reliable queue pairs of one device with each other; they may be the same one.
pub fn connect_pair(path: &Path, access: Access, one: &Qp, other: &Qp) -> Result<()> {
    let offers = [QpOffer::new(one), QpOffer::new(other)];
    path.to_init(one, access, 0)?;
    if one.number() != other.number() {
        path.to_init(other, access, 0)?;
        path.connect(
            other,
            offers[1],
            &Hello::new(path, QpType::Rc, vec![offers[0]], Vec::new(), ()),
            offers[0],
        )?;
    }
    Ok(path.connect(
        one,
        offers[0],
        &Hello::new(path, QpType::Rc, vec![offers[1]], Vec::new(), ()),
        offers[1],
    )?)
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        nic: Nic,
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
        let parse = |text: &str| Cli::try_parse_from(text.split_whitespace()).unwrap().nic.path();
        assert_eq!(parse("program"), PathOptions::default());
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
        assert_eq!(parse(&format!("program {options}")), wanted);
    }
}
