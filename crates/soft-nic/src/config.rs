//! Configuration of one NIC process: what `nic.toml` and the launcher's options say.
//!
//! One table ([`KEYS`]) names every key with its allowed range; parsing, errors and `--help` read it. The launcher writes
//! the whole of it, normalised, into the environment variable [`CONFIG_VARIABLE`]; the interposer reads it back.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::dma::Copiers;
use crate::link::delay::MAX_NS;
use crate::span::Span;

/// Environment variable that carries the normalised text to the interposer.
pub const CONFIG_VARIABLE: &str = "SOFTNIC_CONFIG";
/// Environment variable naming the file that gets one JSON line of counters per process.
pub const STATS_VARIABLE: &str = "SOFTNIC_STATS";
/// Environment variable naming the fabric: processes of one user see each other only within one fabric.
pub const FABRIC_VARIABLE: &str = "SOFTNIC_FABRIC";

/// Most devices that one process may show.
pub const MAX_DEVICES: u8 = 8;

/// Most ports of one device, as cards have them.
pub const MAX_PORTS: u8 = 2;

/// A value that is spelt as one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? } default $default:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word that configuration files and options use.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl Default for $name {
            fn default() -> Self { Self::$default }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.word()) }
        }

        impl FromStr for $name {
            type Err = ();
            fn from_str(text: &str) -> Result<Self, ()> {
                Self::ALL.iter().copied().find(|value| value.word() == text).ok_or(())
            }
        }
    };
}

words! {
    /// Which ConnectX the NIC says it is; the capabilities are in `device::model`.
    Model {
        /// ConnectX-5 (0x1017).
        ConnectX5 = "cx5",
        /// ConnectX-6 (0x101b).
        ConnectX6 = "cx6",
        /// ConnectX-6 Dx (0x101d).
        ConnectX6Dx = "cx6dx",
        /// ConnectX-7 (0x1021).
        ConnectX7 = "cx7",
    } default ConnectX6
}

words! {
    /// Link layer of the port.
    LinkLayer {
        /// InfiniBand: LIDs, GRH optional.
        Ib = "ib",
        /// Ethernet: RoCE v1 and v2 GIDs, GRH required.
        Roce = "roce",
    } default Ib
}

words! {
    /// Which way messages may take.
    LinkPath {
        /// Shared memory between processes of this host, and nothing else.
        Shm = "shm",
        /// RoCEv2 over UDP, also to processes of this host.
        Wire = "wire",
        /// Shared memory to processes of this fabric, the wire to everybody else where there is one.
        Auto = "auto",
    } default Auto
}

words! {
    /// When a doorbell whose record has not caught up counts.
    DoorbellOrder {
        /// The record must cover the doorbell when the register is read.
        Strict = "strict",
        /// The index in the register is enough, as GPU-initiated stacks rely on.
        Early = "early",
    } default Strict
}

/// All settings of one NIC process; [`KEYS`] says what each one means.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub devices: u8,
    pub ports: u8,
    pub model: Model,
    pub link_layer: LinkLayer,
    pub path: LinkPath,
    /// Rate to shape to, in Gbit/s of wire bytes; none: as fast as memory is.
    pub rate_gbps: Option<f64>,
    pub strict: bool,
    pub doorbell_order: DoorbellOrder,
    pub relaxed_ordering: bool,
    /// Threads that help to copy long payloads, which then lie in the ring. `None`: `auto`, as many as the cores have room for.
    pub copy_threads: Option<u8>,
    pub mtu: u16,
    /// Address of `mlx5_0`, port 1, on RoCE in its GIDs; the n-th port after it gets the n-th after it. Absent: see [`Config::address`].
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    pub loss: f64,
    pub reorder: f64,
    pub seed: u64,
    pub cm_timeout: u8,
    pub cm_retries: u8,
    pub delay: Span,
    pub pump: bool,
    pub fabric: String,
    pub stats: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            ports: 1,
            model: Model::default(),
            link_layer: LinkLayer::default(),
            path: LinkPath::default(),
            rate_gbps: None,
            strict: true,
            doorbell_order: DoorbellOrder::default(),
            relaxed_ordering: false,
            copy_threads: Some(0),
            mtu: 4096,
            ipv4: None,
            ipv6: None,
            loss: 0.0,
            reorder: 0.0,
            seed: 1,
            cm_timeout: 20,
            cm_retries: 15,
            delay: Span(0),
            pump: false,
            fabric: "default".to_owned(),
            stats: None,
        }
    }
}

/// A key of `nic.toml`.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What a value may be, as the error says it.
    pub allowed: &'static str,
    /// What it sets.
    pub meaning: &'static str,
    set: fn(&mut Config, &toml::Value) -> Option<()>,
    get: fn(&Config) -> Option<toml::Value>,
}

/// Word of `copy_threads` for as many as the cores have room for.
const AUTO: &str = "auto";

/// Every key that `nic.toml` may hold.
pub const KEYS: &[Key] = &[
    Key {
        name: "devices",
        allowed: "a whole number from 1 to 8",
        meaning: "devices shown, mlx5_0 upwards",
        set: |c, v| within(1..=MAX_DEVICES, v, &mut c.devices),
        get: |c| Some(i64::from(c.devices).into()),
    },
    Key {
        name: "ports",
        allowed: "1 or 2",
        meaning: "ports of every device",
        set: |c, v| within(1..=MAX_PORTS, v, &mut c.ports),
        get: |c| Some(i64::from(c.ports).into()),
    },
    Key {
        name: "model",
        allowed: "\"cx5\", \"cx6\", \"cx6dx\" or \"cx7\"",
        meaning: "which ConnectX the devices are",
        set: |c, v| word(v, &mut c.model),
        get: |c| Some(c.model.word().into()),
    },
    Key {
        name: "link_layer",
        allowed: "\"ib\" or \"roce\"",
        meaning: "link layer of the ports",
        set: |c, v| word(v, &mut c.link_layer),
        get: |c| Some(c.link_layer.word().into()),
    },
    Key {
        name: "path",
        allowed: "\"shm\", \"wire\" or \"auto\"",
        meaning: "path of messages: shm (shared memory within a fabric), wire (RoCEv2 over UDP) or auto (shm, and wire to other addresses)",
        set: |c, v| word(v, &mut c.path),
        get: |c| Some(c.path.word().into()),
    },
    Key {
        name: "rate_gbps",
        allowed: "a number from 0.001 to 1000",
        meaning: "rate to shape to, Gbit/s of wire bytes (absent: not shaped)",
        set: |c, v| {
            let rate = v.as_float().or_else(|| v.as_integer().map(|n| n as f64))?;
            c.rate_gbps = Some(rate).filter(|rate| (0.001..=1000.0).contains(rate));
            c.rate_gbps.map(|_| ())
        },
        get: |c| c.rate_gbps.map(toml::Value::from),
    },
    Key {
        name: "strict",
        allowed: "true or false",
        meaning: "execute a send queue only as far as doorbell register writes cover it, if it has a register of its own",
        set: |c, v| flag(v, &mut c.strict),
        get: |c| Some(c.strict.into()),
    },
    Key {
        name: "doorbell_order",
        allowed: "\"strict\" or \"early\"",
        meaning: "\"strict\": the doorbell record must be written before the register; \"early\": it may follow",
        set: |c, v| word(v, &mut c.doorbell_order),
        get: |c| Some(c.doorbell_order.word().into()),
    },
    Key {
        name: "relaxed_ordering",
        allowed: "true or false",
        meaning: "let the bytes of one WRITE become visible in any order, not only in increasing address order",
        set: |c, v| flag(v, &mut c.relaxed_ordering),
        get: |c| Some(c.relaxed_ordering.into()),
    },
    Key {
        name: "copy_threads",
        allowed: "a whole number from 0 to 4, or \"auto\"",
        meaning: "helper threads that copy payloads from 64 KiB on (auto: none below 8 cores, one from 8, two from 16)",
        set: |c, v| {
            c.copy_threads = match v {
                toml::Value::String(word) if word == AUTO => None,
                number => Some(u8::try_from(number.as_integer()?).ok().filter(|n| *n <= Copiers::MOST)?),
            };
            Some(())
        },
        get: |c| Some(c.copy_threads.map_or_else(|| AUTO.into(), |threads| i64::from(threads).into())),
    },
    Key {
        name: "mtu",
        allowed: "256, 512, 1024, 2048 or 4096",
        meaning: "active MTU of the ports in bytes",
        set: |c, v| {
            let mtu = u16::try_from(v.as_integer()?).ok()?;
            c.mtu = Some(mtu).filter(|mtu| [256, 512, 1024, 2048, 4096].contains(mtu))?;
            Some(())
        },
        get: |c| Some(i64::from(c.mtu).into()),
    },
    Key {
        name: "ipv4",
        allowed: "a unicast IPv4 address, as \"192.168.1.10\", with room for all devices after it",
        meaning: "IPv4 address of mlx5_0, port 1, on RoCE in its GIDs; each further port has the next address",
        set: |c, v| {
            let address: Ipv4Addr = v.as_str()?.parse().ok()?;
            let last =
                u32::from(address).checked_add(u32::from(MAX_DEVICES * MAX_PORTS)).map(Ipv4Addr::from)?;
            let unicast = |a: Ipv4Addr| !(a.is_unspecified() || a.is_multicast() || a.is_broadcast());
            c.ipv4 = Some(Some(address).filter(|_| unicast(address) && unicast(last))?);
            Some(())
        },
        get: |c| c.ipv4.map(|address| address.to_string().into()),
    },
    Key {
        name: "ipv6",
        allowed: "a unicast IPv6 address that is not link-local, as \"fd00::10\", with room for all devices after it",
        meaning: "IPv6 address of mlx5_0, port 1, on RoCE in its GIDs; each further port has the next address",
        set: |c, v| {
            let address: Ipv6Addr = v.as_str()?.parse().ok()?;
            let last =
                u128::from(address).checked_add(u128::from(MAX_DEVICES * MAX_PORTS)).map(Ipv6Addr::from)?;
            let unicast = |a: Ipv6Addr| {
                !(a.is_unspecified() || a.is_multicast() || a.is_unicast_link_local())
                    && a.to_ipv4_mapped().is_none()
            };
            c.ipv6 = Some(Some(address).filter(|_| unicast(address) && unicast(last))?);
            Some(())
        },
        get: |c| c.ipv6.map(|address| address.to_string().into()),
    },
    Key {
        name: "loss",
        allowed: "a number from 0 to 1",
        meaning: "probability that a packet arriving on the wire is lost; no effect in shared memory",
        set: |c, v| probability(v, &mut c.loss),
        get: |c| Some(c.loss.into()),
    },
    Key {
        name: "reorder",
        allowed: "a number from 0 to 1",
        meaning: "probability that a packet arriving on the wire is overtaken by up to three others",
        set: |c, v| probability(v, &mut c.reorder),
        get: |c| Some(c.reorder.into()),
    },
    Key {
        name: "seed",
        allowed: "a whole number from 0",
        meaning: "seed of loss and reorder: with the same seed the same traffic loses the same packets",
        set: |c, v| {
            c.seed = u64::try_from(v.as_integer()?).ok()?;
            Some(())
        },
        get: |c| i64::try_from(c.seed).ok().map(toml::Value::from),
    },
    Key {
        name: "cm_timeout",
        allowed: "a whole number from 0 to 31",
        meaning: "response time-out of a peer's connection manager: 4.096 us times 2 to the power of this",
        set: |c, v| within(0..=31, v, &mut c.cm_timeout),
        get: |c| Some(i64::from(c.cm_timeout).into()),
    },
    Key {
        name: "cm_retries",
        allowed: "a whole number from 0 to 15",
        meaning: "how often a request to a peer's connection manager is repeated after that time-out",
        set: |c, v| within(0..=15, v, &mut c.cm_retries),
        get: |c| Some(i64::from(c.cm_retries).into()),
    },
    Key {
        name: "delay",
        allowed: "a time from \"0\" to \"1s\", as \"250us\"",
        meaning: "one-way delay of everything that the NIC sends",
        set: |c, v| {
            c.delay = v.as_str()?.parse().ok().filter(|delay: &Span| delay.0 <= MAX_NS)?;
            Some(())
        },
        get: |c| (c.delay.0 > 0).then(|| c.delay.to_string().into()),
    },
    Key {
        name: "pump",
        allowed: "true or false",
        meaning: "run the NIC from inside the program's own ibv_poll_cq too",
        set: |c, v| flag(v, &mut c.pump),
        get: |c| Some(c.pump.into()),
    },
    Key {
        name: "fabric",
        allowed: "1 to 64 of the characters a-z A-Z 0-9 . _ -",
        meaning: "name of the fabric; only processes that name the same one reach each other",
        set: |c, v| {
            let name = v.as_str()?;
            let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            c.fabric = Some(name).filter(|n| (1..=64).contains(&n.len()) && n.bytes().all(good))?.to_owned();
            Some(())
        },
        get: |c| Some(c.fabric.clone().into()),
    },
    Key {
        name: "stats",
        allowed: "a file name without control characters",
        meaning: "file to which each process appends one JSON line of counters when it exits",
        set: |c, v| {
            let name = v.as_str()?;
            let good = !name.is_empty() && name.len() < 4096 && !name.chars().any(char::is_control);
            c.stats = Some(Some(name).filter(|_| good)?.to_owned());
            Some(())
        },
        get: |c| c.stats.clone().map(toml::Value::from),
    },
];

/// Why a configuration was refused: always one line that says what, where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{origin}: line {line}: not valid TOML: {reason}; correct that line")]
    Syntax { origin: String, line: usize, reason: String },
    #[error("{origin}: unknown key `{key}`; remove it or use one of {known}")]
    UnknownKey { origin: String, key: String, known: String },
    #[error("{origin}: {key} = {value} is not allowed; give {allowed}")]
    Value { origin: String, key: &'static str, value: String, allowed: &'static str },
}

impl Config {
    /// IPv4 address of `mlx5_0`, port 1: as given, else the loopback interface's.
    pub fn address(&self) -> Ipv4Addr {
        self.ipv4.unwrap_or(Ipv4Addr::LOCALHOST)
    }

    /// Ports of all devices: those of `mlx5_0` come first, then those of `mlx5_1`…
    pub fn all_ports(&self) -> u8 {
        self.devices * self.ports
    }

    /// Where packets come and go: the addresses of each port, when the path asks for a wire. `auto` asks for one when an
    /// address was given that others can send to.
    pub fn wire_addresses(&self) -> Vec<IpAddr> {
        let others_reach = self.ipv4.is_some_and(|address| !address.is_loopback());
        let wanted = match self.path {
            LinkPath::Shm => false,
            LinkPath::Wire => true,
            LinkPath::Auto => others_reach,
        };
        if !wanted || self.link_layer != LinkLayer::Roce {
            return Vec::new();
        }
        (0..self.all_ports()).flat_map(|place| self.addresses(place)).collect()
    }

    /// The helper threads for long payloads on so many cores.
    pub fn copiers(&self, cores: usize) -> Copiers {
        self.copy_threads.map_or_else(|| Copiers::for_cores(cores), Copiers::new)
    }

    /// The addresses of one port, by its place among all ports.
    pub fn addresses(&self, place: u8) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = Ipv4Addr::from(u32::from(self.address()).wrapping_add(place.into()));
        let v6 = self.ipv6.map(|first| Ipv6Addr::from(u128::from(first).wrapping_add(place.into())));
        [Some(IpAddr::V4(v4)), v6.map(IpAddr::V6)].into_iter().flatten()
    }

    /// Reads the text of a `nic.toml`. `origin` is what errors name as the place.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
            origin: origin.to_owned(),
            line: 1 + error.span().map_or(0, |span| newlines(&text[..span.start.min(text.len())])),
            reason: one_line(error.message()),
        })?;
        let mut config = Self::default();
        for (key, value) in &table {
            config.set(key, value, origin)?;
        }
        Ok(config)
    }

    /// Sets one key, as an option of the launcher does.
    pub fn set(&mut self, key: &str, value: &toml::Value, origin: &str) -> Result<(), ConfigError> {
        let Some(known) = KEYS.iter().find(|known| known.name == key) else {
            return Err(ConfigError::UnknownKey {
                origin: origin.to_owned(),
                key: one_line(key),
                known: KEYS.iter().map(|known| known.name).collect::<Vec<_>>().join(", "),
            });
        };
        (known.set)(self, value).ok_or_else(|| ConfigError::Value {
            origin: origin.to_owned(),
            key: known.name,
            value: one_line(&value.to_string()),
            allowed: known.allowed,
        })
    }

    /// Sets one key from an option's text: a string where the key is one, else a number or a flag.
    pub fn set_text(&mut self, key: &str, text: &str, origin: &str) -> Result<(), ConfigError> {
        let string = toml::Value::from(text);
        let other = text.parse().map(toml::Value::Integer).ok();
        let other = other.or_else(|| text.parse().map(toml::Value::Float).ok());
        let other = other.or_else(|| text.parse().map(toml::Value::Boolean).ok());
        match other {
            Some(other) if self.set(key, &string, origin).is_err() => self.set(key, &other, origin),
            Some(_) => Ok(()),
            None => self.set(key, &string, origin),
        }
    }

    /// The normalised text: every key that has a value, so that [`Config::parse`] gives an equal `Config`.
    pub fn to_toml(&self) -> String {
        let table: toml::Table =
            KEYS.iter().filter_map(|key| Some((key.name.to_owned(), (key.get)(self)?))).collect();
        table.to_string()
    }

    /// What the launcher left in the environment; defaults where it left nothing.
    ///
    /// [`STATS_VARIABLE`] and [`FABRIC_VARIABLE`] go before the text, so that a test can change one of them alone.
    pub fn from_environment() -> Result<Self, ConfigError> {
        let mut config = match std::env::var(CONFIG_VARIABLE) {
            Ok(text) => Self::parse(&text, CONFIG_VARIABLE)?,
            Err(_) => Self::default(),
        };
        for (variable, key) in [(STATS_VARIABLE, "stats"), (FABRIC_VARIABLE, "fabric")] {
            if let Ok(value) = std::env::var(variable) {
                config.set(key, &toml::Value::from(value), variable)?;
            }
        }
        Ok(config)
    }
}

fn word<T: FromStr>(value: &toml::Value, place: &mut T) -> Option<()> {
    *place = value.as_str()?.parse().ok()?;
    Some(())
}

fn within(range: RangeInclusive<u8>, value: &toml::Value, place: &mut u8) -> Option<()> {
    *place = u8::try_from(value.as_integer()?).ok().filter(|number| range.contains(number))?;
    Some(())
}

fn probability(value: &toml::Value, place: &mut f64) -> Option<()> {
    let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
    *place = Some(number).filter(|number| (0.0..=1.0).contains(number))?;
    Some(())
}

fn flag(value: &toml::Value, place: &mut bool) -> Option<()> {
    *place = value.as_bool()?;
    Some(())
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_gives_the_defaults() {
        assert_eq!(Config::parse("", "nic.toml"), Ok(Config::default()));
    }

    #[test]
    fn a_normalised_text_reads_back_equal() {
        let full = Config {
            devices: 3,
            ports: 2,
            model: Model::ConnectX7,
            link_layer: LinkLayer::Roce,
            path: LinkPath::Wire,
            rate_gbps: Some(100.0),
            strict: false,
            doorbell_order: DoorbellOrder::Early,
            relaxed_ordering: true,
            copy_threads: None,
            mtu: 1024,
            ipv4: Some(Ipv4Addr::new(10, 0, 0, 7)),
            ipv6: Some(Ipv6Addr::LOCALHOST),
            loss: 0.25,
            reorder: 1.0,
            seed: 9,
            cm_timeout: 31,
            cm_retries: 0,
            delay: Span(1_500_000),
            pump: true,
            fabric: "test-7".to_owned(),
            stats: Some("/tmp/with \"quotes\".json".to_owned()),
        };
        for config in [Config::default(), full] {
            assert_eq!(Config::parse(&config.to_toml(), "SOFTNIC_CONFIG"), Ok(config));
        }
    }

    #[test]
    fn every_allowed_word_is_read() {
        for model in ["cx5", "cx6", "cx6dx", "cx7"] {
            let config = Config::parse(&format!("model = \"{model}\""), "nic.toml").unwrap();
            assert_eq!(config.model.word(), model);
        }
    }

    #[test]
    fn a_bad_file_is_refused_by_one_line_that_names_file_key_value_and_range() {
        let known = "devices, ports, model, link_layer, path, rate_gbps, strict, doorbell_order, relaxed_ordering, \
                     copy_threads, mtu, ipv4, ipv6, loss, reorder, seed, cm_timeout, cm_retries, delay, pump, \
                     fabric, stats";
        for (text, message) in [
            ("devices = 0", "nic.toml: devices = 0 is not allowed; give a whole number from 1 to 8"),
            ("devices = 9", "nic.toml: devices = 9 is not allowed; give a whole number from 1 to 8"),
            ("devices = -1", "nic.toml: devices = -1 is not allowed; give a whole number from 1 to 8"),
            ("devices = 257", "nic.toml: devices = 257 is not allowed; give a whole number from 1 to 8"),
            ("devices = \"2\"", "nic.toml: devices = \"2\" is not allowed; give a whole number from 1 to 8"),
            ("ports = 0", "nic.toml: ports = 0 is not allowed; give 1 or 2"),
            ("ports = 3", "nic.toml: ports = 3 is not allowed; give 1 or 2"),
            (
                "model = \"cx8\"",
                "nic.toml: model = \"cx8\" is not allowed; give \"cx5\", \"cx6\", \"cx6dx\" or \"cx7\"",
            ),
            (
                "link_layer = \"ethernet\"",
                "nic.toml: link_layer = \"ethernet\" is not allowed; give \"ib\" or \"roce\"",
            ),
            ("path = \"udp\"", "nic.toml: path = \"udp\" is not allowed; give \"shm\", \"wire\" or \"auto\""),
            ("rate_gbps = 0", "nic.toml: rate_gbps = 0 is not allowed; give a number from 0.001 to 1000"),
            (
                "rate_gbps = 1000.5",
                "nic.toml: rate_gbps = 1000.5 is not allowed; give a number from 0.001 to 1000",
            ),
            ("rate_gbps = nan", "nic.toml: rate_gbps = nan is not allowed; give a number from 0.001 to 1000"),
            ("strict = 1", "nic.toml: strict = 1 is not allowed; give true or false"),
            (
                "doorbell_order = \"late\"",
                "nic.toml: doorbell_order = \"late\" is not allowed; give \"strict\" or \"early\"",
            ),
            (
                "relaxed_ordering = \"yes\"",
                "nic.toml: relaxed_ordering = \"yes\" is not allowed; give true or false",
            ),
            (
                "copy_threads = 5",
                "nic.toml: copy_threads = 5 is not allowed; give a whole number from 0 to 4, or \"auto\"",
            ),
            (
                "copy_threads = \"many\"",
                "nic.toml: copy_threads = \"many\" is not allowed; give a whole number from 0 to 4, or \"auto\"",
            ),
            ("mtu = 1500", "nic.toml: mtu = 1500 is not allowed; give 256, 512, 1024, 2048 or 4096"),
            (
                "ipv4 = \"224.0.0.1\"",
                "nic.toml: ipv4 = \"224.0.0.1\" is not allowed; give a unicast IPv4 address, as \"192.168.1.10\", \
                 with room for all devices after it",
            ),
            (
                "ipv4 = \"255.255.255.250\"",
                "nic.toml: ipv4 = \"255.255.255.250\" is not allowed; give a unicast IPv4 address, as \
                 \"192.168.1.10\", with room for all devices after it",
            ),
            (
                "ipv6 = \"fe80::1\"",
                "nic.toml: ipv6 = \"fe80::1\" is not allowed; give a unicast IPv6 address that is not link-local, as \
                 \"fd00::10\", with room for all devices after it",
            ),
            ("loss = 1.5", "nic.toml: loss = 1.5 is not allowed; give a number from 0 to 1"),
            ("reorder = nan", "nic.toml: reorder = nan is not allowed; give a number from 0 to 1"),
            ("seed = -1", "nic.toml: seed = -1 is not allowed; give a whole number from 0"),
            ("cm_timeout = 32", "nic.toml: cm_timeout = 32 is not allowed; give a whole number from 0 to 31"),
            ("cm_retries = 16", "nic.toml: cm_retries = 16 is not allowed; give a whole number from 0 to 15"),
            ("cm_retries = -1", "nic.toml: cm_retries = -1 is not allowed; give a whole number from 0 to 15"),
            (
                "delay = 5",
                "nic.toml: delay = 5 is not allowed; give a time from \"0\" to \"1s\", as \"250us\"",
            ),
            (
                "delay = \"2s\"",
                "nic.toml: delay = \"2s\" is not allowed; give a time from \"0\" to \"1s\", as \"250us\"",
            ),
            ("pump = []", "nic.toml: pump = [] is not allowed; give true or false"),
            (
                "fabric = \"a b\"",
                "nic.toml: fabric = \"a b\" is not allowed; give 1 to 64 of the characters a-z A-Z 0-9 . _ -",
            ),
            (
                "fabric = \"\"",
                "nic.toml: fabric = \"\" is not allowed; give 1 to 64 of the characters a-z A-Z 0-9 . _ -",
            ),
            (
                "stats = \"\"",
                "nic.toml: stats = \"\" is not allowed; give a file name without control characters",
            ),
            ("speed = 3", &format!("nic.toml: unknown key `speed`; remove it or use one of {known}")),
            ("[link]\nrate = 3", &format!("nic.toml: unknown key `link`; remove it or use one of {known}")),
        ] {
            let error = Config::parse(text, "nic.toml").unwrap_err().to_string();
            assert_eq!(error, message, "{text}");
        }
    }

    #[test]
    fn an_options_text_becomes_what_its_key_holds() {
        let mut config = Config::default();
        for (key, text) in
            [("devices", "2"), ("rate_gbps", "99.5"), ("fabric", "7"), ("pump", "true"), ("model", "cx5")]
        {
            config.set_text(key, text, "--option").unwrap();
        }
        let expected = Config {
            devices: 2,
            rate_gbps: Some(99.5),
            fabric: "7".into(),
            pump: true,
            model: Model::ConnectX5,
            ..Config::default()
        };
        assert_eq!(config, expected);
        let error = config.set_text("devices", "many", "--devices").unwrap_err().to_string();
        assert_eq!(error, "--devices: devices = \"many\" is not allowed; give a whole number from 1 to 8");
    }

    #[test]
    fn a_syntax_error_names_its_line_and_stays_on_one() {
        let error = Config::parse("devices = 1\nmodel = = 3\n", "nic.toml").unwrap_err().to_string();
        assert!(error.starts_with("nic.toml: line 2: not valid TOML: "), "{error}");
        assert!(!error.contains('\n'), "{error}");
        let twice = Config::parse("mtu = 256\nmtu = 512\n", "nic.toml").unwrap_err().to_string();
        assert!(twice.starts_with("nic.toml: line 2: "), "{twice}");
    }
}
