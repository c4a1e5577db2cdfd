//! What `bench-nic` measures: each number with the program that gives it, and what is aimed at.

use serde::{Deserialize, Serialize};

/// Which number a program's output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Average bandwidth of a perftest `_bw` row, in GB/s.
    Bandwidth,
    /// Messages per second of a perftest `_bw` row.
    Rate,
    /// Typical latency of a perftest `_lat` row, in µs.
    Latency,
}

/// Where a number comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A perftest pair on the software NIC.
    Perftest {
        /// Program.
        tool: &'static str,
        /// Options of both ends.
        options: &'static [&'static str],
        /// Number to take.
        column: Column,
        /// Whether the NIC also runs inside the program's `ibv_poll_cq`.
        pump: bool,
    },
    /// A perftest pair between two hosts, as RoCEv2 packets.
    Wire {
        /// Program.
        tool: &'static str,
        /// Options of both ends.
        options: &'static [&'static str],
        /// Number to take.
        column: Column,
        /// Probability that a packet is lost.
        loss: f64,
        /// Whether the NIC also runs inside the program's `ibv_poll_cq`.
        pump: bool,
    },
    /// One TCP stream of `iperf3` between the same hosts, in GB/s.
    Iperf,
    /// `generator baseline udp-ping-pong` between the same hosts, in µs.
    UdpPingPong,
    /// A generator pair on the software NIC; messages per second.
    Generator {
        /// Options of the sender.
        options: &'static [&'static str],
    },
    /// `generator --pause 1`: 99th percentile of a message that comes after a second of idling, in ms.
    First,
    /// `generator bench-post`: the shim's time to post a 64 B WRITE divided by libmlx5's, with the fences of a card.
    Post {
        /// Requests a doorbell.
        list: u64,
    },
    /// `generator baseline`, without a NIC; the field of its line, and what one unit of it is in ours.
    Baseline {
        /// Which baseline, and its options.
        options: &'static [&'static str],
        /// JSON pointer.
        field: &'static str,
        /// Factor to our unit.
        scale: f64,
    },
    /// 10,000 connected queue pairs that nobody uses (`idle_queues`, an example of soft-nic); the field of its line.
    IdleQueues {
        /// JSON pointer.
        field: &'static str,
    },
    /// An open device that does nothing: its NIC thread's share of a core, in percent.
    IdleCpu,
    /// An open device that does nothing: memory of the whole process, in MiB.
    IdleMemory,
}

/// One number.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name in table and JSON.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// Once is enough: a long wait, no contest.
    pub once: bool,
}

impl Measure {
    /// Whether it needs two hosts, which are network namespaces.
    pub fn needs_hosts(&self) -> bool {
        matches!(self.source, Source::Wire { .. } | Source::Iperf | Source::UdpPingPong)
    }

    /// Whether machines were recorded before it was asked for: these lack it until they are measured again.
    pub fn came_later(&self) -> bool {
        self.name == "8 B writes on one of 10,000 QPs" || matches!(self.source, Source::IdleQueues { .. })
    }

    /// Whether the NIC also ran inside the program's `ibv_poll_cq`.
    pub fn pump(&self) -> bool {
        matches!(self.source, Source::Perftest { pump: true, .. } | Source::Wire { pump: true, .. })
    }
}

/// What a number or ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Nothing: it is reported.
    Report,
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Less than this.
    Below(f64),
}

/// What became of an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Met,
    /// Not as it should be.
    NotMet,
    /// Nothing was aimed at.
    Reported,
    /// A number that it needs is missing.
    NotMeasured,
}

impl Target {
    /// Judges what was measured.
    pub fn judge(self, measured: Option<f64>) -> Verdict {
        let Some(value) = measured else { return Verdict::NotMeasured };
        let met = match self {
            Target::Report => return Verdict::Reported,
            Target::AtLeast(aim) => value >= aim,
            Target::AtMost(aim) => value <= aim,
            Target::Below(aim) => value < aim,
        };
        if met { Verdict::Met } else { Verdict::NotMet }
    }

    /// In words.
    pub fn text(self) -> String {
        match self {
            Target::Report => "—".to_owned(),
            Target::AtLeast(aim) => format!("≥ {aim}"),
            Target::AtMost(aim) => format!("≤ {aim}"),
            Target::Below(aim) => format!("< {aim}"),
        }
    }
}

/// Machines with fewer cores leave none for the NICs of two programs that poll.
pub const ENOUGH_CORES: usize = 4;

/// Where a target holds; elsewhere the number is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// On every machine.
    Anywhere,
    /// Where there are [`ENOUGH_CORES`].
    WithCores,
    /// Where there are fewer: the pump is the cure for that.
    WithoutCores,
}

impl Holds {
    fn on(self, cores: usize) -> bool {
        match self {
            Holds::Anywhere => true,
            Holds::WithCores => cores >= ENOUGH_CORES,
            Holds::WithoutCores => cores < ENOUGH_CORES,
        }
    }
}

/// One thing aimed at: a number, or a number divided by another one of the same repetition.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// Its name.
    pub name: &'static str,
    /// Name of a measure.
    pub of: &'static str,
    /// Name of the measure it is divided by.
    pub by: Option<&'static str>,
    /// What it should be.
    pub target: Target,
    /// Where.
    pub holds: Holds,
}

impl Aim {
    /// What is asked of a machine with so many cores.
    pub fn target_on(&self, cores: usize) -> Target {
        if self.holds.on(cores) { self.target } else { Target::Report }
    }

    const fn only(self, holds: Holds) -> Aim {
        Aim { holds, ..self }
    }
}

const fn perftest(
    name: &'static str,
    unit: &'static str,
    tool: &'static str,
    options: &'static [&'static str],
    column: Column,
) -> Measure {
    Measure { name, unit, source: Source::Perftest { tool, options, column, pump: false }, once: false }
}

const fn pumped(
    name: &'static str,
    unit: &'static str,
    tool: &'static str,
    options: &'static [&'static str],
    column: Column,
) -> Measure {
    Measure { name, unit, source: Source::Perftest { tool, options, column, pump: true }, once: false }
}

const fn wire(
    name: &'static str,
    unit: &'static str,
    tool: &'static str,
    options: &'static [&'static str],
    column: Column,
    loss: f64,
) -> Measure {
    Measure { name, unit, source: Source::Wire { tool, options, column, loss, pump: false }, once: false }
}

const fn other(name: &'static str, unit: &'static str, source: Source) -> Measure {
    Measure { name, unit, source, once: false }
}

const fn once(name: &'static str, unit: &'static str, source: Source) -> Measure {
    Measure { name, unit, source, once: true }
}

const fn copy(options: &'static [&'static str]) -> Source {
    Source::Baseline { options, field: "/bytes_per_second", scale: 1e-9 }
}

const LATENCY: &[&str] = &["-s", "8", "-n", "2000"];
const LARGE: &[&str] = &["-s", "65536", "-n", "20000"];
const SMALL: &[&str] = &["-s", "8", "-n", "500000"];
/// GID 3 is the RoCE v2 one of the IPv4 address.
const WIRE_LARGE: &[&str] = &["-x", "3", "-s", "65536", "-n", "5000"];
/// The ack time-out is 2^8 × 4.096 µs.
const WIRE_IMPATIENT: &[&str] = &["-x", "3", "-s", "65536", "-n", "5000", "-u", "8"];
const WIRE_LATENCY: &[&str] = &["-x", "3", "-s", "8", "-n", "5000"];
const WIRE_PUMPED: Source = Source::Wire {
    tool: "ib_send_lat",
    options: WIRE_LATENCY,
    column: Column::Latency,
    loss: 0.0,
    pump: true,
};
const FLAG: Source =
    Source::Baseline { options: &["flag-ping-pong"], field: "/half_round_trip/p50_ns", scale: 1e-3 };
const RING: Source = Source::Baseline { options: &["word-ring"], field: "/per_second", scale: 1.0 };
const ONE_QP: Source = Source::Generator { options: &["--op", "write", "--payload", "8"] };
const TEN_THOUSAND_QPS: Source =
    Source::Generator { options: &["--op", "write", "--payload", "8", "--idle-qps", "9999"] };
const MANY_QPS: Source =
    Source::Generator { options: &["--op", "write", "--payload", "8", "--idle-qps", "999"] };

/// Every number, neighbours being what a ratio compares.
pub const MEASURES: &[Measure] = &[
    perftest("write 64 KiB", "GB/s", "ib_write_bw", LARGE, Column::Bandwidth),
    other("process_vm_writev 64 KiB", "GB/s", copy(&["process-vm-writev", "--bytes", "65536"])),
    perftest("write 1 MiB", "GB/s", "ib_write_bw", &["-s", "1048576", "-n", "2000"], Column::Bandwidth),
    other("process_vm_writev 1 MiB", "GB/s", copy(&["process-vm-writev", "--bytes", "1048576"])),
    perftest("read 64 KiB", "GB/s", "ib_read_bw", LARGE, Column::Bandwidth),
    perftest("send 64 KiB", "GB/s", "ib_send_bw", LARGE, Column::Bandwidth),
    pumped("write 64 KiB, pump", "GB/s", "ib_write_bw", LARGE, Column::Bandwidth),
    pumped("write 1 MiB, pump", "GB/s", "ib_write_bw", &["-s", "1048576", "-n", "2000"], Column::Bandwidth),
    perftest("write 8 B", "msg/s", "ib_write_bw", SMALL, Column::Rate),
    perftest("send 8 B", "msg/s", "ib_send_bw", SMALL, Column::Rate),
    other("word ring", "msg/s", RING),
    pumped("write 8 B, pump", "msg/s", "ib_write_bw", SMALL, Column::Rate),
    pumped("send 8 B, pump", "msg/s", "ib_send_bw", SMALL, Column::Rate),
    perftest("send 8 B, half round trip", "us", "ib_send_lat", LATENCY, Column::Latency),
    pumped("send 8 B, half round trip, pump", "us", "ib_send_lat", LATENCY, Column::Latency),
    perftest("write 8 B, half round trip", "us", "ib_write_lat", LATENCY, Column::Latency),
    other("flag ping-pong, half round trip", "us", FLAG),
    once("idle NIC", "% of a core", Source::IdleCpu),
    once("idle process", "MiB", Source::IdleMemory),
    once("first write after 1 s, p99", "ms", Source::First),
    other("8 B writes on the only QP", "msg/s", ONE_QP),
    other("8 B writes on one of 1000 QPs", "msg/s", MANY_QPS),
    other("8 B writes on one of 10,000 QPs", "msg/s", TEN_THOUSAND_QPS),
    other("an idle QP, memory", "B", Source::IdleQueues { field: "/bytes_each" }),
    other("an idle QP, passed by", "ns", Source::IdleQueues { field: "/scan_ns_each" }),
    wire("write over the wire", "GB/s", "ib_write_bw", WIRE_LARGE, Column::Bandwidth, 0.0),
    other("iperf3, one stream", "GB/s", Source::Iperf),
    wire("read over the wire", "GB/s", "ib_read_bw", WIRE_LARGE, Column::Bandwidth, 0.0),
    wire("send over the wire, half round trip", "us", "ib_send_lat", WIRE_LATENCY, Column::Latency, 0.0),
    other("UDP ping-pong, half round trip", "us", Source::UdpPingPong),
    other("send over the wire, half round trip, pump", "us", WIRE_PUMPED),
    wire("write over the wire, time-out 8", "GB/s", "ib_write_bw", WIRE_IMPATIENT, Column::Bandwidth, 0.0),
    wire("write over the wire, 0.1 % lost", "GB/s", "ib_write_bw", WIRE_IMPATIENT, Column::Bandwidth, 0.001),
    wire("write over the wire, 1 % lost", "GB/s", "ib_write_bw", WIRE_IMPATIENT, Column::Bandwidth, 0.01),
    other("post one by one, shim ÷ libmlx5", "ratio", Source::Post { list: 1 }),
    other("post in lists of 16, shim ÷ libmlx5", "ratio", Source::Post { list: 16 }),
];

const fn number(name: &'static str, of: &'static str, target: Target) -> Aim {
    Aim { name, of, by: None, target, holds: Holds::Anywhere }
}

const fn ratio(name: &'static str, of: &'static str, by: &'static str, target: Target) -> Aim {
    Aim { name, of, by: Some(by), target, holds: Holds::Anywhere }
}

/// What the numbers should be.
pub const AIMS: &[Aim] = &[
    ratio(
        "(a) WRITE 64 KiB ÷ process_vm_writev",
        "write 64 KiB",
        "process_vm_writev 64 KiB",
        Target::AtLeast(0.85),
    )
    .only(Holds::WithCores),
    ratio(
        "(a) WRITE 64 KiB with the pump ÷ process_vm_writev",
        "write 64 KiB, pump",
        "process_vm_writev 64 KiB",
        Target::AtLeast(0.85),
    )
    .only(Holds::WithoutCores),
    ratio(
        "(a) WRITE 1 MiB ÷ process_vm_writev",
        "write 1 MiB",
        "process_vm_writev 1 MiB",
        Target::AtLeast(0.85),
    )
    .only(Holds::WithCores),
    ratio(
        "(a) WRITE 1 MiB with the pump ÷ process_vm_writev",
        "write 1 MiB, pump",
        "process_vm_writev 1 MiB",
        Target::AtLeast(0.85),
    )
    .only(Holds::WithoutCores),
    number("(b) WRITE 8 B, messages/s", "write 8 B", Target::AtLeast(3e6)).only(Holds::WithCores),
    number("(b) SEND 8 B, messages/s", "send 8 B", Target::AtLeast(3e6)).only(Holds::WithCores),
    number("(b) WRITE 8 B with the pump, messages/s", "write 8 B, pump", Target::AtLeast(3e6))
        .only(Holds::WithoutCores),
    number("(b) SEND 8 B with the pump, messages/s", "send 8 B, pump", Target::AtLeast(3e6))
        .only(Holds::WithoutCores),
    ratio("(b) WRITE 8 B ÷ word ring", "write 8 B", "word ring", Target::Report),
    ratio("(b) SEND 8 B ÷ word ring", "send 8 B", "word ring", Target::Report),
    number(
        "(c) SEND 8 B half round trip with the pump, us",
        "send 8 B, half round trip, pump",
        Target::AtMost(1.0),
    ),
    ratio(
        "(c) SEND 8 B half round trip with the pump ÷ flag",
        "send 8 B, half round trip, pump",
        "flag ping-pong, half round trip",
        Target::Report,
    ),
    ratio(
        "(c) SEND 8 B half round trip ÷ flag",
        "send 8 B, half round trip",
        "flag ping-pong, half round trip",
        Target::Report,
    ),
    number("(d) idle NIC, % of a core", "idle NIC", Target::Below(0.5)),
    number("(d) idle process, MiB", "idle process", Target::Below(16.0)),
    number("(d) first WRITE after 1 s idle, p99, ms", "first write after 1 s, p99", Target::AtMost(2.5)),
    ratio(
        "(e) one of 1000 QPs ÷ the only QP",
        "8 B writes on one of 1000 QPs",
        "8 B writes on the only QP",
        Target::AtLeast(0.7),
    ),
    ratio(
        "(e) one of 10,000 QPs ÷ the only QP",
        "8 B writes on one of 10,000 QPs",
        "8 B writes on the only QP",
        Target::AtLeast(0.5),
    ),
    number("(e) NIC's memory for an idle QP, B", "an idle QP, memory", Target::Below(4096.0)),
    number("(e) a look at an idle QP, ns", "an idle QP, passed by", Target::AtMost(5.0)),
    ratio(
        "(w) WRITE 64 KiB over the wire ÷ iperf3",
        "write over the wire",
        "iperf3, one stream",
        Target::AtLeast(0.6),
    ),
    ratio(
        "(w) SEND 8 B half round trip over the wire ÷ UDP",
        "send over the wire, half round trip",
        "UDP ping-pong, half round trip",
        Target::AtMost(1.5),
    )
    .only(Holds::WithCores),
    ratio(
        "(w) the same with the pump ÷ UDP",
        "send over the wire, half round trip, pump",
        "UDP ping-pong, half round trip",
        Target::AtMost(1.5),
    )
    .only(Holds::WithoutCores),
    ratio(
        "(w) WRITE 64 KiB, 0.1 % lost ÷ lossless",
        "write over the wire, 0.1 % lost",
        "write over the wire, time-out 8",
        Target::AtLeast(0.7),
    ),
    ratio(
        "(w) WRITE 64 KiB, 1 % lost ÷ lossless",
        "write over the wire, 1 % lost",
        "write over the wire, time-out 8",
        Target::AtLeast(0.3),
    ),
    number("post 64 B one by one, shim ÷ libmlx5", "post one by one, shim ÷ libmlx5", Target::AtMost(0.5)),
    number(
        "post 64 B in lists of 16, shim ÷ libmlx5",
        "post in lists of 16, shim ÷ libmlx5",
        Target::AtMost(0.5),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_aim_names_measures_that_exist_once() {
        let count = |name: &str| MEASURES.iter().filter(|measure| measure.name == name).count();
        for aim in AIMS {
            assert_eq!(count(aim.of), 1, "{}", aim.name);
            assert_eq!(aim.by.map_or(1, count), 1, "{}", aim.name);
        }
    }

    #[test]
    fn every_requirement_has_its_aim() {
        // On both kinds of machines alike: with the pump on one, without it on the other.
        for cores in [2, 16] {
            let has = |start: &str, target: Target| {
                AIMS.iter()
                    .filter(|aim| aim.name.starts_with(start) && aim.target_on(cores) == target)
                    .count()
            };
            for (start, target, count) in [
                ("(a)", Target::AtLeast(0.85), 2),
                ("(b)", Target::AtLeast(3e6), 2),
                ("(b)", Target::Report, 4),
                ("(c)", Target::AtMost(1.0), 1),
                ("(c)", Target::Report, 2),
                ("(d)", Target::Below(0.5), 1),
                ("(d)", Target::Below(16.0), 1),
                ("(d)", Target::AtMost(2.5), 1),
                ("(e)", Target::AtLeast(0.7), 1),
                ("(e)", Target::AtLeast(0.5), 1),
                ("(w)", Target::AtLeast(0.6), 1),
                ("(w)", Target::AtMost(1.5), 1),
                ("(w)", Target::AtLeast(0.7), 1),
                ("(w)", Target::AtLeast(0.3), 1),
                ("post", Target::AtMost(0.5), 2),
            ] {
                assert_eq!(has(start, target), count, "{start} {target:?} {cores}");
            }
        }
    }

    #[test]
    fn aims_point_the_right_way() {
        use Verdict::{Met, NotMeasured, NotMet, Reported};
        for (target, value, verdict) in [
            (Target::AtLeast(2.0), Some(1.9), NotMet),
            (Target::AtLeast(2.0), Some(2.0), Met),
            (Target::AtMost(2.0), Some(2.1), NotMet),
            (Target::AtMost(2.0), Some(2.0), Met),
            (Target::Below(2.0), Some(2.0), NotMet),
            (Target::Below(2.0), Some(1.9), Met),
            (Target::Report, Some(1.0), Reported),
            (Target::Report, None, NotMeasured),
            (Target::AtMost(2.0), None, NotMeasured),
        ] {
            assert_eq!(target.judge(value), verdict, "{target:?} {value:?}");
        }
    }
}
