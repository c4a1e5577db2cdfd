//! Configuration of one NIC process: what `nic.toml` and the launcher's options say.
//!
//! One table ([`KEYS`]) has every key and its allowed range; parsing, errors and `--help` read it. The
//! launcher writes the whole configuration, normalised, into [`CONFIG_VARIABLE`] for the interposer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use mlx5_device::Span;
use mlx5_device::carrier::MAX_DELAY_NS;
use mlx5_device::config::NicConfig;
pub use mlx5_device::config::{DoorbellOrder, LinkLayer, LinkPath, MAX_DEVICES, MAX_PORTS, Model};

/// Environment variable that carries the normalised text to the interposer.
pub const CONFIG_VARIABLE: &str = "SOFTNIC_CONFIG";

/// Most helper threads of a process.
pub const MAX_COPY_THREADS: u8 = 4;

/// Helper threads for long payloads, which then lie in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum CopyThreads {
    /// As many as the cores have room for.
    #[serde(rename = "auto")]
    Auto,
    /// So many.
    #[serde(untagged)]
    Count(u8),
}

/// A key of `nic.toml`.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    /// What a value may be, as the error says it.
    pub allowed: &'static str,
    /// What it sets.
    pub meaning: &'static str,
    /// The launcher's option and the name of the option's value, if it takes one, with a space between; empty
    /// where there is none.
    pub option: &'static str,
    set: fn(&mut Config, &toml::Value) -> Option<()>,
}

/// Makes [`Config`], its default and [`KEYS`] from one table. A row has a key's name, type, default, the
/// function that reads an allowed value, and the texts `allowed`, `meaning` and `option` of [`Key`].
macro_rules! settings {
    ($($(#[$attribute:meta])* $name:ident: $type:ty = $default:expr, $read:expr, $allowed:literal, $meaning:literal, $option:literal;)+) => {
        /// All settings of one NIC process; [`KEYS`] says what each one means.
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        pub struct Config { $($(#[$attribute])* pub $name: $type),+ }

        impl Default for Config {
            fn default() -> Self {
                Self { $($name: $default),+ }
            }
        }

        /// Every key that `nic.toml` may hold.
        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($name),
            allowed: $allowed,
            meaning: $meaning,
            option: $option,
            set: |config, value| {
                let read: fn(&toml::Value) -> Option<$type> = $read;
                config.$name = read(value)?;
                Some(())
            },
        }),+];
    };
}

settings! {
    devices: u8 = 1, |value| within(1..=MAX_DEVICES, value),
        "a whole number from 1 to 8",
        "devices shown, mlx5_0 upwards", "devices N";
    ports: u8 = 1, |value| within(1..=MAX_PORTS, value),
        "1 or 2",
        "ports of every device", "ports N";
    model: Model = Model::default(), parsed,
        "\"cx5\", \"cx6\", \"cx6dx\" or \"cx7\"",
        "which ConnectX the devices are", "model MODEL";
    link_layer: LinkLayer = LinkLayer::default(), parsed,
        "\"ib\" or \"roce\"",
        "link layer of the ports", "link-layer LAYER";
    path: LinkPath = LinkPath::default(), parsed,
        "\"shm\", \"wire\" or \"auto\"",
        "path of messages: shm (shared memory within a fabric), wire (RoCEv2 over UDP) or auto (shm, and wire to other addresses)", "path PATH";
    /// Rate to shape to, in Gbit/s of wire bytes; none: as fast as memory is.
    rate_gbps: Option<f64> = None, |value| number(0.001..=1000.0, value).map(Some),
        "a number from 0.001 to 1000",
        "rate to shape to, Gbit/s of wire bytes (absent: not shaped)", "rate-gbps X";
    strict: bool = true, toml::Value::as_bool,
        "true or false",
        "execute a send queue only as far as doorbell register writes cover it, if it has a register of its own", "";
    doorbell_order: DoorbellOrder = DoorbellOrder::default(), parsed,
        "\"strict\" or \"early\"",
        "\"strict\": the doorbell record must be written before the register; \"early\": it may follow", "";
    relaxed_ordering: bool = false, toml::Value::as_bool,
        "true or false",
        "let the bytes of one WRITE become visible in any order, not only in increasing address order", "";
    copy_threads: CopyThreads = CopyThreads::Count(0), copy_threads,
        "a whole number from 0 to 4, or \"auto\"",
        "helper threads that copy payloads from 64 KiB on (auto: none below 8 cores, one from 8, two from 16)", "";
    mtu: u16 = 4096, |value| whole(value).filter(|mtu| [256, 512, 1024, 2048, 4096].contains(mtu)),
        "256, 512, 1024, 2048 or 4096",
        "active MTU of the ports in bytes", "mtu BYTES";
    /// Address of `mlx5_0`, port 1, on RoCE in its GIDs; each further port has the next. Absent: loopback's.
    ipv4: Option<Ipv4Addr> = None, |value| ipv4(value).map(Some),
        "a unicast IPv4 address, as \"192.168.1.10\", with room for all devices after it",
        "IPv4 address of mlx5_0, port 1, one of this host, on RoCE in its GIDs; each further port has the next address (absent: 127.0.0.1; \
         with path wire that of the first interface that is up)", "ipv4 ADDRESS";
    ipv6: Option<Ipv6Addr> = None, |value| ipv6(value).map(Some),
        "a unicast IPv6 address that is not link-local, as \"fd00::10\", with room for all devices after it",
        "IPv6 address of mlx5_0, port 1, on RoCE in its GIDs; each further port has the next address", "ipv6 ADDRESS";
    loss: f64 = 0.0, |value| number(0.0..=1.0, value),
        "a number from 0 to 1",
        "probability of a loss: on the wire of a packet that leaves, in shared memory of a whole message", "loss P";
    reorder: f64 = 0.0, |value| number(0.0..=1.0, value),
        "a number from 0 to 1",
        "probability that a packet that leaves is overtaken by up to three later ones: on the wire only", "";
    seed: u64 = 1, whole,
        "a whole number from 0",
        "seed of loss and reorder: with the same seed the same traffic from the same address loses the same packets", "";
    cm_timeout: u8 = 20, |value| within(0..=31, value),
        "a whole number from 0 to 31",
        "response time-out of a peer's connection manager: 4.096 us times 2 to the power of this", "";
    cm_retries: u8 = 15, |value| within(0..=15, value),
        "a whole number from 0 to 15",
        "how often a request to a peer's connection manager is repeated after that time-out", "";
    #[serde(skip_serializing_if = "Span::is_zero")]
    delay: Span = Span(0), |value| parsed(value).filter(|delay: &Span| delay.0 <= MAX_DELAY_NS),
        "a time from \"0\" to \"1s\", as \"250us\"",
        "one-way delay of everything that the NIC sends", "delay TIME";
    pump: bool = false, toml::Value::as_bool,
        "true or false",
        "run the NIC from inside the program's own ibv_poll_cq too (for two busy programs on two cores)", "pump";
    fabric: String = "default".to_owned(), fabric,
        "1 to 64 of the characters a-z A-Z 0-9 . _ -",
        "name of the fabric; only processes that name the same one reach each other", "fabric NAME";
    stats: Option<String> = None, |value| file_name(value).map(Some),
        "a file name without control characters",
        "file to which each process appends one JSON line of counters when it exits", "stats FILE";
    record: Option<String> = None, |value| file_name(value).map(Some),
        "a file name without control characters",
        "file that gets all that goes into the NIC of a process, for softnic replay and softnic trace; a second process of the program \
         writes FILE.PID, or FILE.PID.2 where that is there", "record FILE";
}

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
    /// What the device is made with.
    pub fn nic(&self) -> NicConfig {
        NicConfig {
            devices: self.devices,
            ports: self.ports,
            model: self.model,
            link_layer: self.link_layer,
            mtu: self.mtu,
            ipv4: self.ipv4.unwrap_or(Ipv4Addr::LOCALHOST),
            ipv6: self.ipv6,
            path: self.path,
            rate_gbps: self.rate_gbps,
            loss: self.loss,
            reorder: self.reorder,
            seed: self.seed,
            delay_ns: self.delay.0,
            strict: self.strict,
            doorbell_order: self.doorbell_order,
            relaxed_ordering: self.relaxed_ordering,
        }
    }

    /// Each port's addresses on the wire; none unless the link layer is RoCE and the path asks for a wire.
    /// `auto` asks for one when an IPv4 address was given that others can send to.
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
        let nic = self.nic();
        (0..nic.all_ports()).flat_map(|place| nic.addresses(place)).collect()
    }

    /// How many helper threads long payloads get on `cores` cores. `auto`: as many as there is room for,
    /// beside a NIC, its program and as much again for their peer.
    pub fn copy_helpers(&self, cores: usize) -> u8 {
        match self.copy_threads {
            CopyThreads::Auto => (cores / 8).min(2) as u8,
            CopyThreads::Count(count) => count,
        }
    }

    /// Reads the text of a `nic.toml`. `origin` is what errors name as the place.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
            origin: origin.to_owned(),
            line: error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count()),
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
        self.set(key, &string, origin).or_else(|error| self.set(key, &other.ok_or(error)?, origin))
    }

    /// The normalised text: every key that has a value, so that [`Config::parse`] gives an equal `Config`.
    pub fn to_toml(&self) -> String {
        let table = toml::Table::try_from(self);
        table.expect("every setting is a value of TOML: a seed is read from an i64").to_string()
    }

    /// What the launcher left in the environment; defaults where it left nothing.
    pub fn from_environment() -> Result<Self, ConfigError> {
        match std::env::var(CONFIG_VARIABLE) {
            Ok(text) => Self::parse(&text, CONFIG_VARIABLE),
            Err(_) => Ok(Self::default()),
        }
    }
}

fn parsed<T: FromStr>(value: &toml::Value) -> Option<T> {
    value.as_str()?.parse().ok()
}

fn whole<T: TryFrom<i64>>(value: &toml::Value) -> Option<T> {
    T::try_from(value.as_integer()?).ok()
}

fn within(range: RangeInclusive<u8>, value: &toml::Value) -> Option<u8> {
    whole(value).filter(|number| range.contains(number))
}

fn number(range: RangeInclusive<f64>, value: &toml::Value) -> Option<f64> {
    let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64))?;
    Some(number).filter(|number| range.contains(number))
}

fn copy_threads(value: &toml::Value) -> Option<CopyThreads> {
    match value {
        toml::Value::String(word) if word == "auto" => Some(CopyThreads::Auto),
        number => within(0..=MAX_COPY_THREADS, number).map(CopyThreads::Count),
    }
}

fn ipv4(value: &toml::Value) -> Option<Ipv4Addr> {
    let address: Ipv4Addr = parsed(value)?;
    let last = u32::from(address).checked_add(u32::from(MAX_DEVICES * MAX_PORTS)).map(Ipv4Addr::from)?;
    let unicast = |a: Ipv4Addr| !(a.is_unspecified() || a.is_multicast() || a.is_broadcast());
    Some(address).filter(|_| unicast(address) && unicast(last))
}

fn ipv6(value: &toml::Value) -> Option<Ipv6Addr> {
    let address: Ipv6Addr = parsed(value)?;
    let last = u128::from(address).checked_add(u128::from(MAX_DEVICES * MAX_PORTS)).map(Ipv6Addr::from)?;
    let unicast = |a: Ipv6Addr| {
        !(a.is_unspecified() || a.is_multicast() || a.is_unicast_link_local()) && a.to_ipv4_mapped().is_none()
    };
    Some(address).filter(|_| unicast(address) && unicast(last))
}

fn fabric(value: &toml::Value) -> Option<String> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let name = value.as_str()?;
    ((1..=64).contains(&name.len()) && name.bytes().all(good)).then(|| name.to_owned())
}

fn file_name(value: &toml::Value) -> Option<String> {
    let name = value.as_str()?;
    let good = !name.is_empty() && name.len() < 4096 && !name.chars().any(char::is_control);
    good.then(|| name.to_owned())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
