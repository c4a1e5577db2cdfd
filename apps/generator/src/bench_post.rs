//! Time of a post by libmlx5 and by the shim: A B A B in one process, on two queue pairs of one device.
//!
//! A burst fits the send queue and is timed as a whole; its completion is waited for outside the timer. Both
//! sides post prepared requests to a queue pair with its own doorbell register. Both spend the fences that a
//! card needs: one between record and register, one behind the register.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use measure::timer;
use rdma_shim::{Completion, Doorbell, Options, Order};
use serde::Serialize;
use verbs::connect::Path;
use verbs::{
    Context, Cq, Payload, Pd, Qp, QpBuilder, QpType, QueuePair, SendFlags, SendOperation, SendOperations,
    SendRequest, Sge, WorkCompletion,
};

use crate::lane::{ACCESS, memory};
use crate::options::BenchPost;
use crate::post_times::{PostTimes, Spread};
use crate::poster::Lists;

const BURST: usize = 64;
/// Requests a doorbell in each row.
const LISTS: [usize; 2] = [1, 16];
/// Bursts that are dropped at the beginning: a tenth of the rounds, and so many at most.
const WARM_UP_BURSTS: u32 = 100;
/// Longest wait for a burst's completion.
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
struct Report {
    kind: &'static str,
    device: String,
    payload_bytes: u32,
    burst: usize,
    rounds: u32,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    list: usize,
    doorbell: &'static str,
    order: &'static str,
    /// Whether libmlx5 rings in the same way: a lone request through BlueFlame, a list by 8 bytes.
    same_doorbell: bool,
    libmlx5: Spread,
    shim: Spread,
    ratio: f64,
}

/// The shim's choices, with their names; the first is its default.
const CHOICES: [(Order, &str, Doorbell, &str); 3] = [
    (Order::Strict, "strict", Doorbell::EightBytes, "8-bytes"),
    (Order::Strict, "strict", Doorbell::BlueFlame, "blueflame"),
    (Order::Early, "early", Doorbell::EightBytes, "8-bytes"),
];

/// Measures every list length with every choice.
pub fn run(options: &BenchPost, stop: &AtomicBool) -> Result<u8> {
    let BenchPost { payload, rounds, .. } = *options;
    ensure!((8..=4096).contains(&payload), "--payload {payload} is out of range: 8 to 4096 bytes");
    ensure!((1..=1_000_000).contains(&rounds), "--rounds {rounds} is out of range: 1 to 1000000");
    let (context, path) = options.nic.open("generator")?;
    let mut rows = Vec::new();
    for (order, order_name, doorbell, doorbell_name) in CHOICES {
        let choice = Options { order, doorbell, signal_all: false };
        for list in LISTS {
            let (libmlx5, shim) = measure(&context, &path, options, choice, list, stop)?;
            let ratio = shim.p50_ns / libmlx5.p50_ns;
            let same_doorbell = list > 1 || doorbell == Doorbell::BlueFlame;
            let (order, doorbell) = (order_name, doorbell_name);
            rows.push(Row { list, doorbell, order, same_doorbell, libmlx5, shim, ratio });
        }
    }
    let report = Report {
        kind: "bench-post",
        device: context.name().into(),
        payload_bytes: payload,
        burst: BURST,
        rounds,
        rows,
    };
    crate::report::tell(options.json.as_deref(), &report, text)?;
    Ok(if stop.load(Ordering::Relaxed) { crate::INTERRUPTED } else { 0 })
}

/// Both ends' queue pairs.
fn builder() -> QpBuilder {
    QpBuilder::new(QpType::Rc)
        .send_requests(2 * BURST as u32)
        .receive_requests(0)
        .operations(SendOperations::WRITE)
        .own_register(true)
}

/// Connects `qp` with a new queue pair of the same port, whose end only lends its memory.
fn target(pd: &Pd, path: &Path, qp: &Qp) -> Result<QueuePair> {
    let cq = Cq::new(pd.context(), 1)?;
    let target = builder().build(pd, &cq, &cq)?;
    cli::connect_pair(path, ACCESS, qp, &target)?;
    Ok(target)
}

fn measure(
    context: &Context,
    path: &Path,
    options: &BenchPost,
    choice: Options,
    list: usize,
    stop: &AtomicBool,
) -> Result<(Spread, Spread)> {
    let (pd, memory) = memory(context, 4 << 12)?;
    let mut cq = Cq::new(context, 2 * BURST as u32 + 16)?;
    let mut libmlx5 = builder().build(&pd, &cq, &cq)?;
    let shim_cq = Cq::new(context, 2 * BURST as u32 + 16)?.into_direct()?;
    let mut shim = rdma_shim::QueuePair::create(&builder(), &pd, shim_cq, None, choice)?;
    let _targets = [target(&pd, path, &libmlx5)?, target(&pd, path, shim.qp())?];

    let entries = [memory.sge(0..options.payload as usize)?];
    let remote = memory.remote(8192)?;
    let requests: Vec<_> = (0..BURST).map(|at| request(at, remote, &entries)).collect();
    let mut lists = Lists::new(&requests, list)?;

    let (mut times, mut shim_times) = (PostTimes::new(), PostTimes::new());
    // The first bursts touch cold memory and wake the device: not recorded.
    let warm_up = (options.rounds / 10).min(WARM_UP_BURSTS);
    for round in 0..warm_up + options.rounds {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let post = timer::POST.start();
        for list in &mut lists.ibverbs {
            libmlx5.post_send_list(list)?;
        }
        let ns = post.elapsed_ns();
        let mut found = [WorkCompletion::default()];
        wait(|| {
            Ok((cq.poll(&mut found)? == 1).then(|| (found[0].is_success(), found[0].status().to_string())))
        })?;

        let post = timer::POST.start();
        for at in (0..BURST).step_by(list) {
            shim.post(&lists.shim, at..at + list)?;
        }
        let shim_ns = post.elapsed_ns();
        let mut found = [Completion::default()];
        wait(|| {
            Ok((shim.poll(&mut found)? == 1).then(|| (found[0].is_success(), found[0].status().to_string())))
        })?;
        if round >= warm_up {
            times.record(ns, BURST as u64);
            shim_times.record(shim_ns, BURST as u64);
        }
    }
    let nothing = "stopped before the first burst";
    Ok((times.spread().context(nothing)?, shim_times.spread().context(nothing)?))
}

fn request<'a>(at: usize, remote: verbs::Remote, entries: &'a [Sge]) -> SendRequest<'a> {
    let mut request = SendRequest::new(at as u64, SendOperation::Write(remote), Payload::Gather(entries));
    request.flags = if at + 1 == BURST { SendFlags::SIGNALED } else { SendFlags::NONE };
    request
}

/// Polls until `look` finds the burst's completion.
fn wait(mut look: impl FnMut() -> Result<Option<(bool, String)>>) -> Result<()> {
    let start = Instant::now();
    loop {
        match look()? {
            Some((true, _)) => return Ok(()),
            Some((false, status)) => bail!("a burst failed: {status}"),
            None if start.elapsed() > DEADLINE => bail!("a burst did not complete within {DEADLINE:?}"),
            None => std::hint::spin_loop(),
        }
    }
}

fn text(report: &Report) -> String {
    let Report { payload_bytes, burst, rounds, .. } = report;
    let row = |row: &Row| {
        format!(
            "\nlist {:>2}  {:<9}  {:<6}  libmlx5 {:>6.1} ns  shim {:>6.1} ns  ratio {:.2}{}",
            row.list,
            row.doorbell,
            row.order,
            row.libmlx5.p50_ns,
            row.shim.p50_ns,
            row.ratio,
            if row.same_doorbell { "" } else { ", libmlx5 by BlueFlame" }
        )
    };
    let rows: String = report.rows.iter().map(row).collect();
    format!("{payload_bytes} bytes, bursts of {burst}, p50 of {rounds} bursts{rows}")
}
