//! Source of a number of `bench-nic`: its series' `options` in `experiments/bench-nic/spec.toml`.

use anyhow::{Context, Result};
use experiment::Spec;
use serde::Deserialize;

/// Which number a perftest row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// Average bandwidth of a `_bw` row, in GB/s.
    Bandwidth,
    /// Messages per second of a `_bw` row.
    Rate,
    /// Typical latency of a `_lat` row, in µs.
    Latency,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Perftest {
    pub tool: String,
    /// Options of both ends.
    pub options: Vec<String>,
    pub column: Column,
    /// Probability that a packet is lost, on the wire.
    #[serde(default)]
    pub loss: f64,
    /// Whether the NIC also runs inside the program's `ibv_poll_cq`.
    #[serde(default)]
    pub pump: bool,
    /// Whether either end writes a recording, which is removed afterwards.
    #[serde(default)]
    pub record: bool,
}

/// Where a number comes from.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum Source {
    /// A perftest pair on the software NIC.
    Perftest(Perftest),
    /// A perftest pair between two hosts, as RoCEv2 packets.
    Wire(Perftest),
    /// One TCP stream of `iperf3` between the same hosts, in GB/s.
    Iperf,
    /// `generator baseline udp-ping-pong` between the same hosts, in µs.
    UdpPingPong,
    /// A generator pair on the software NIC; the field of the sender's line.
    Generator {
        /// Options of the sender.
        options: Vec<String>,
        /// Options of the receiver.
        #[serde(default)]
        receiver: Vec<String>,
        /// JSON pointer.
        #[serde(default = "rate")]
        field: String,
    },
    /// `doorbell-echo`, one kernel asks and one answers; the field of its line, and its unit in ours.
    Echo {
        options: Vec<String>,
        /// JSON pointer.
        field: String,
        /// Factor to our unit.
        scale: f64,
    },
    /// `generator --pause 1`: 99th percentile of a message that comes after a second of idling, in ms.
    First,
    /// `generator bench-post`: the shim's time to post a 64 B WRITE ÷ libmlx5's, with a card's fences.
    Post {
        /// Requests a doorbell.
        list: u64,
        /// The shim's doorbell; libmlx5 rings for a lone request through BlueFlame, for a list with 8 bytes.
        doorbell: String,
    },
    /// `generator baseline`, without a NIC; the field of its line, and what one unit of it is in ours.
    Baseline {
        /// Which baseline, and its options.
        options: Vec<String>,
        /// JSON pointer.
        field: String,
        /// Factor to our unit.
        scale: f64,
    },
    /// An example of soft-nic; the field of its line.
    Example {
        /// One of [`super::EXAMPLES`].
        name: String,
        options: Vec<String>,
        /// JSON pointer.
        field: String,
    },
    /// An open device that does nothing: its NIC thread's share of a core, in percent.
    IdleCpu,
    /// An open device that does nothing: memory of the whole process, in MiB.
    IdleMemory,
}

/// Messages a second.
fn rate() -> String {
    "/msgs_per_s".to_owned()
}

impl Source {
    /// Of a series. Error: the spec does not say, or names what is not known.
    pub fn of(spec: &Spec, series: &str) -> Result<Source> {
        let own = spec.series.get(series).with_context(|| format!("no series `{series}`"))?;
        own.options.clone().try_into().with_context(|| format!("options of `{series}`"))
    }

    /// Whether it needs two hosts, which are network namespaces.
    pub fn needs_hosts(&self) -> bool {
        matches!(self, Source::Wire(_) | Source::Iperf | Source::UdpPingPong)
    }
}
