//! What two processes of this machine can do without a NIC: the floors beside which the NIC's numbers stand.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::options::{Baseline, BaselineKind, time};
use crate::post_times::{PostTimes, Spread};
use crate::udp;

mod processes;

#[derive(Debug, Serialize)]
struct Report {
    kind: &'static str,
    what: String,
    /// On which the two processes were; those of udp-ping-pong are where the system puts them.
    cores: Option<[u32; 2]>,
    bytes: usize,
    seconds: f64,
    count: u64,
    half_round_trip: Option<Spread>,
    per_second: Option<f64>,
    bytes_per_second: Option<f64>,
    gbps: Option<f64>,
}

pub fn run(options: &Baseline) -> Result<u8> {
    let time = time("--seconds", options.seconds, 60.0)?;
    if !(8..=1 << 30).contains(&options.bytes) {
        bail!("--bytes {} is out of range: 8 to 1 GiB", options.bytes);
    }
    // Either option with another baseline was refused before (`option_scope`).
    if options.what == BaselineKind::UdpPingPong {
        match (options.listen, options.connect) {
            (Some(address), None) => return udp::answer(address, options.json.as_deref()).map(|()| 0),
            (None, Some(_)) => {}
            _ => bail!("udp-ping-pong takes --listen ADDRESS:PORT or --connect ADDRESS:PORT"),
        }
    }
    let cores = match options.cores[..] {
        [] => processes::first_two_cores()?,
        [one, other] => [one, other],
        _ => bail!("--cores takes two numbers, as 0,1"),
    };
    let report = measure(options, cores, time)?;
    crate::report::tell(options.json.as_deref(), &report, text)?;
    Ok(0)
}

fn measure(options: &Baseline, cores: [u32; 2], time: Duration) -> Result<Report> {
    let empty = Report {
        kind: "baseline",
        what: cli::name(options.what),
        cores: Some(cores),
        bytes: 8,
        seconds: options.seconds,
        count: 0,
        half_round_trip: None,
        per_second: None,
        bytes_per_second: None,
        gbps: None,
    };
    Ok(match options.what {
        BaselineKind::FlagPingPong => {
            let samples = processes::flag_ping_pong(cores, time).context("measuring a flag ping-pong")?;
            let mut times = PostTimes::new();
            samples.iter().for_each(|&tenths| times.record(tenths, 10));
            Report { count: samples.len() as u64, half_round_trip: times.spread(), ..empty }
        }
        BaselineKind::UdpPingPong => {
            let to = options.connect.context("udp-ping-pong needs --connect")?;
            let samples =
                udp::ping(to, time).with_context(|| format!("measuring a UDP ping-pong with {to}"))?;
            let mut times = PostTimes::new();
            samples.iter().for_each(|&ns| times.record(ns, 1));
            Report { cores: None, count: samples.len() as u64, half_round_trip: times.spread(), ..empty }
        }
        BaselineKind::WordRing => {
            let rate = processes::word_ring(cores, time).context("measuring a ring of words")?;
            Report { count: rate.count, seconds: rate.seconds, per_second: Some(rate.per_second()), ..empty }
        }
        BaselineKind::ProcessVmWritev => {
            let rate = processes::process_vm_writev(cores, time, options.bytes as u64);
            let rate =
                rate.context("measuring process_vm_writev (does the kernel allow it? see kernel.yama)")?;
            let bytes_per_second = rate.per_second() * options.bytes as f64;
            Report {
                bytes: options.bytes,
                count: rate.count,
                seconds: rate.seconds,
                per_second: Some(rate.per_second()),
                bytes_per_second: Some(bytes_per_second),
                gbps: Some(bytes_per_second * 8.0 / 1e9),
                ..empty
            }
        }
    })
}

fn text(report: &Report) -> String {
    let result = match (report.half_round_trip, report.gbps, report.per_second) {
        (Some(spread), _, _) => {
            format!("half round trip p50 {:.0} ns, p99 {:.0} ns", spread.p50_ns, spread.p99_ns)
        }
        (_, Some(gbps), _) => format!("{gbps:.1} Gbit/s in copies of {} bytes", report.bytes),
        (_, _, rate) => format!("{:.2} M words a second", rate.unwrap_or(0.0) / 1e6),
    };
    let on = report.cores.map(|[one, other]| format!(" on cores {one} and {other}")).unwrap_or_default();
    format!("{}{on}: {result}", report.what)
}
