//! What `bench-nic` measures: each number with the program that gives it, each ratio with its aim.

/// Which number a program's output holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Average bandwidth of a perftest `_bw` row, in GB/s.
    Bandwidth,
    /// Messages per second of a perftest `_bw` row.
    Rate,
    /// Typical latency of a perftest `_lat` row, in µs.
    Latency,
    /// 99th percentile of a perftest `_lat` row, in µs.
    Latency99,
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
    /// A generator pair on the software NIC; messages per second.
    Generator {
        /// Options of the sender.
        options: &'static [&'static str],
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
    /// What the C prototype reached on two cores, for comparison.
    pub prototype: Option<f64>,
    /// Once is enough: a long wait, no contest.
    pub once: bool,
}

/// What a number or ratio should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// Nothing: it is reported.
    Report,
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Aim {
    /// Whether `value` meets it; `None` where there is no aim.
    pub fn met(self, value: f64) -> Option<bool> {
        match self {
            Aim::Report => None,
            Aim::AtLeast(aim) => Some(value >= aim),
            Aim::AtMost(aim) => Some(value <= aim),
        }
    }
}

/// One line of the verdict: a number, or a number divided by another one of the same repetition.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    /// Its name.
    pub name: &'static str,
    /// Name of a measure.
    pub of: &'static str,
    /// Name of the measure it is divided by.
    pub by: Option<&'static str>,
    /// What it should be.
    pub aim: Aim,
}

const fn perftest(
    name: &'static str,
    unit: &'static str,
    tool: &'static str,
    options: &'static [&'static str],
    column: Column,
    prototype: Option<f64>,
) -> Measure {
    Measure {
        name,
        unit,
        source: Source::Perftest { tool, options, column, pump: false },
        prototype,
        once: false,
    }
}

const fn pumped(name: &'static str, tool: &'static str, prototype: Option<f64>) -> Measure {
    let source = Source::Perftest { tool, options: LATENCY, column: Column::Latency, pump: true };
    Measure { name, unit: "us", source, prototype, once: false }
}

const fn baseline(
    name: &'static str,
    unit: &'static str,
    options: &'static [&'static str],
    field: &'static str,
    scale: f64,
) -> Measure {
    Measure { name, unit, source: Source::Baseline { options, field, scale }, prototype: None, once: false }
}

const LATENCY: &[&str] = &["-s", "8", "-n", "2000"];
const LARGE: &[&str] = &["-s", "65536", "-n", "20000"];
const SMALL: &[&str] = &["-s", "8", "-n", "500000"];

/// Every number, neighbours being what a ratio compares.
pub const MEASURES: &[Measure] = &[
    perftest("write 64 KiB", "GB/s", "ib_write_bw", LARGE, Column::Bandwidth, Some(16.0)),
    baseline(
        "process_vm_writev 64 KiB",
        "GB/s",
        &["process-vm-writev", "--bytes", "65536"],
        "/bytes_per_second",
        1e-9,
    ),
    perftest("write 1 MiB", "GB/s", "ib_write_bw", &["-s", "1048576", "-n", "2000"], Column::Bandwidth, None),
    baseline(
        "process_vm_writev 1 MiB",
        "GB/s",
        &["process-vm-writev", "--bytes", "1048576"],
        "/bytes_per_second",
        1e-9,
    ),
    perftest("read 64 KiB", "GB/s", "ib_read_bw", LARGE, Column::Bandwidth, Some(12.0)),
    perftest("send 64 KiB", "GB/s", "ib_send_bw", LARGE, Column::Bandwidth, Some(11.0)),
    perftest("write 8 B", "msg/s", "ib_write_bw", SMALL, Column::Rate, Some(3.8e6)),
    perftest("send 8 B", "msg/s", "ib_send_bw", SMALL, Column::Rate, Some(3.1e6)),
    baseline("word ring", "msg/s", &["word-ring"], "/per_second", 1.0),
    perftest("send 8 B, half round trip", "us", "ib_send_lat", LATENCY, Column::Latency, None),
    pumped("send 8 B, half round trip, pump", "ib_send_lat", Some(0.74)),
    perftest("write 8 B, half round trip", "us", "ib_write_lat", LATENCY, Column::Latency, None),
    baseline("flag ping-pong, half round trip", "us", &["flag-ping-pong"], "/half_round_trip/p50_ns", 1e-3),
    Measure { name: "idle NIC", unit: "% of a core", source: Source::IdleCpu, prototype: None, once: true },
    Measure { name: "idle process", unit: "MiB", source: Source::IdleMemory, prototype: None, once: true },
    Measure {
        name: "first send after 1 s, p99",
        unit: "us",
        source: Source::Perftest {
            tool: "ib_send_lat",
            // The gap is in µs; both ends wait it out at the same time.
            options: &["-s", "8", "-n", "20", "--latency_gap=1000000"],
            column: Column::Latency99,
            pump: false,
        },
        prototype: None,
        once: true,
    },
    Measure {
        name: "8 B writes on the only QP",
        unit: "msg/s",
        source: Source::Generator { options: &["--op", "write", "--payload", "8"] },
        prototype: None,
        once: false,
    },
    Measure {
        name: "8 B writes on one of 1000 QPs",
        unit: "msg/s",
        source: Source::Generator { options: &["--op", "write", "--payload", "8", "--idle-qps", "999"] },
        prototype: None,
        once: false,
    },
];

/// What the numbers should be.
pub const RATIOS: &[Ratio] = &[
    Ratio {
        name: "(a) WRITE 64 KiB ÷ process_vm_writev",
        of: "write 64 KiB",
        by: Some("process_vm_writev 64 KiB"),
        aim: Aim::AtLeast(0.85),
    },
    Ratio {
        name: "(a) WRITE 1 MiB ÷ process_vm_writev",
        of: "write 1 MiB",
        by: Some("process_vm_writev 1 MiB"),
        aim: Aim::AtLeast(0.85),
    },
    Ratio { name: "(b) WRITE 8 B, messages/s", of: "write 8 B", by: None, aim: Aim::AtLeast(3e6) },
    Ratio { name: "(b) SEND 8 B, messages/s", of: "send 8 B", by: None, aim: Aim::AtLeast(3e6) },
    Ratio { name: "(b) WRITE 8 B ÷ word ring", of: "write 8 B", by: Some("word ring"), aim: Aim::Report },
    Ratio { name: "(b) SEND 8 B ÷ word ring", of: "send 8 B", by: Some("word ring"), aim: Aim::Report },
    Ratio {
        name: "(c) SEND 8 B half round trip with the pump, us",
        of: "send 8 B, half round trip, pump",
        by: None,
        aim: Aim::AtMost(1.0),
    },
    Ratio {
        name: "(c) SEND 8 B half round trip with the pump ÷ flag",
        of: "send 8 B, half round trip, pump",
        by: Some("flag ping-pong, half round trip"),
        aim: Aim::Report,
    },
    Ratio {
        name: "(c) SEND 8 B half round trip ÷ flag",
        of: "send 8 B, half round trip",
        by: Some("flag ping-pong, half round trip"),
        aim: Aim::Report,
    },
    Ratio { name: "(d) idle NIC, % of a core", of: "idle NIC", by: None, aim: Aim::AtMost(0.5) },
    Ratio { name: "(d) idle process, MiB", of: "idle process", by: None, aim: Aim::AtMost(16.0) },
    Ratio {
        name: "(d) first send after 1 s idle, p99, us",
        of: "first send after 1 s, p99",
        by: None,
        aim: Aim::AtMost(2500.0),
    },
    Ratio {
        name: "(e) one of 1000 QPs ÷ the only QP",
        of: "8 B writes on one of 1000 QPs",
        by: Some("8 B writes on the only QP"),
        aim: Aim::AtLeast(0.7),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ratio_names_measures_that_exist_once() {
        let count = |name: &str| MEASURES.iter().filter(|measure| measure.name == name).count();
        for ratio in RATIOS {
            assert_eq!(count(ratio.of), 1, "{}", ratio.name);
            assert_eq!(ratio.by.map_or(1, count), 1, "{}", ratio.name);
        }
    }

    #[test]
    fn aims_point_the_right_way() {
        assert_eq!([Aim::AtLeast(2.0).met(1.0), Aim::AtLeast(2.0).met(2.0)], [Some(false), Some(true)]);
        assert_eq!(
            [Aim::AtMost(2.0).met(3.0), Aim::AtMost(2.0).met(2.0), Aim::Report.met(1.0)],
            [Some(false), Some(true), None]
        );
    }
}
