//! What `bench-post-gpu` says, as JSON lines and as text.

use generator::kernel::post_bench::{GpuBench, LENGTH, PeerHeaders, Place, Sample, Scope, Sharing};
use gpu::{Gpu, ImageBuilder};
use measure::{Label, Provenance, Revision};
use serde::Serialize;

use super::table::{Against, Call, Required, Row};
use rdma_shim::Order;

/// The first line: where the numbers come from.
#[derive(Debug, Serialize)]
pub struct Machine {
    kind: &'static str,
    /// Without the revision, which the program that keeps results knows.
    #[serde(flatten)]
    provenance: Provenance,
    payload_bytes: u32,
    /// Runs of each side of a row that count.
    rounds: u32,
    /// Of the GPU's global timer, by which all is timed.
    timer_step_ns: u64,
    /// Why there are no numbers of the peer.
    no_peer: Option<String>,
}

impl Machine {
    pub fn of(
        gpu: Gpu,
        builder: &ImageBuilder,
        peer: Option<&PeerHeaders>,
        bench: &GpuBench,
        rounds: u32,
        timer_step_ns: u64,
    ) -> anyhow::Result<Machine> {
        let mut provenance = Provenance::of(Revision { commit: String::new(), dirty: true }, &[]);
        provenance.gpu = Label::Hardware;
        provenance.gpu_device = format!("{}, {}", gpu.name()?, gpu.arch()?);
        let (compiler, linker) = builder.tools()?;
        let versions = [
            ("cuda", gpu::driver_version()?),
            ("nvrtc", compiler.version().to_string()),
            ("nvjitlink", linker.version().to_string()),
        ];
        provenance.versions.extend(versions.map(|(name, version)| (name.to_owned(), version)));
        if let Some(peer) = peer {
            provenance.versions.insert("gpunetio".into(), peer.version().into());
        }
        Ok(Machine {
            kind: "bench-post-gpu",
            provenance,
            payload_bytes: LENGTH,
            rounds,
            timer_step_ns,
            no_peer: bench.no_peer().map(str::to_owned),
        })
    }

    pub fn text(&self) -> String {
        let Machine { provenance, payload_bytes, rounds, timer_step_ns, .. } = self;
        let peer = match &self.no_peer {
            Some(why) => format!("no gpunetio beside ours: {}", short(why)),
            None => format!("gpunetio {}", provenance.versions.get("gpunetio").map_or("?", String::as_str)),
        };
        format!(
            "{}, nic none: WRITEs of {payload_bytes} bytes, ns a WQE, median of {rounds} runs in turn, by the GPU's timer \
             (step {timer_step_ns} ns); {peer}",
            provenance.gpu_device
        )
    }
}

/// A reason with a compiler's log, as one line: what was done and the first error. JSON has all of it.
fn short(why: &str) -> String {
    let mut lines = why.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.find(|line| line.contains("error")) {
        Some(error) => format!("{first} {error}"),
        None => first.to_owned(),
    }
}

/// Runs of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// ns a WQE; the middle one of the runs.
    pub p50_ns: f64,
    pub min_ns: f64,
    pub max_ns: f64,
    /// Median by events around the launch, which is within.
    pub event_p50_ns: f64,
    /// Steady state: median time a WQE while the played NIC had rung WQEs that it had not completed.
    pub nic_p50_ns: Option<f64>,
    pub runs: usize,
    /// WQEs of each.
    pub posts: u32,
}

impl Spread {
    pub fn of(samples: &[Sample]) -> Option<Spread> {
        let sorted = |number: &dyn Fn(&Sample) -> f64| {
            let mut numbers: Vec<f64> = samples.iter().map(number).collect();
            numbers.sort_by(f64::total_cmp);
            numbers
        };
        let spans = sorted(&Sample::ns_per_wqe);
        let events = sorted(&|sample| sample.event_ns as f64 / f64::from(sample.posts));
        let nic = sorted(&|sample| sample.nic_ns.unwrap_or_default() as f64 / f64::from(sample.posts));
        let middle = spans.len() / 2;
        Some(Spread {
            p50_ns: *spans.get(middle)?,
            min_ns: *spans.first()?,
            max_ns: *spans.last()?,
            event_p50_ns: events[middle],
            nic_p50_ns: samples[0].nic_ns.map(|_| nic[middle]),
            runs: spans.len(),
            posts: samples[0].posts,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Sides {
    /// The peer's, or the original's.
    pub theirs: Option<Spread>,
    pub early: Option<Spread>,
    pub strict: Option<Spread>,
}

#[derive(Debug, Serialize)]
pub struct Measured {
    kind: &'static str,
    row: String,
    nic: Label,
    gpu: Label,
    against: Against,
    sharing: Sharing,
    scope: Scope,
    producers: u32,
    queues: u32,
    per_ring: u32,
    call: Call,
    /// For the WQEs of a doorbell.
    our_calls: u32,
    their_calls: u32,
    /// How many of our WQEs share one completion, in a steady state.
    signal_every: Option<u32>,
    room: &'static str,
    ring: Place,
    #[serde(flatten)]
    sides: Sides,
    /// Ours ÷ gpunetio, or the original ÷ ours.
    ratio_early: Option<f64>,
    ratio_strict: Option<f64>,
    required: Option<Required>,
    verdict: Option<&'static str>,
    /// Whether every ring held what the host's shim writes.
    content_ok: bool,
    /// Why there is no number of theirs.
    no_peer: Option<String>,
    pub error: Option<String>,
}

impl Measured {
    /// Of a row. `no_peer`: why there is no peer.
    pub fn new(row: &Row, no_peer: Option<&str>, sides: Result<Sides, String>) -> Measured {
        let (sides, error) = match sides {
            Ok(sides) => (sides, None),
            Err(error) => (Sides::default(), Some(error)),
        };
        let ratio = |ours: &Option<Spread>| {
            let (ours, theirs) = (ours.as_ref()?, sides.theirs.as_ref()?);
            Some(row.ratio(ours.p50_ns, theirs.p50_ns))
        };
        let (ratio_early, ratio_strict) = (ratio(&sides.early), ratio(&sides.strict));
        let verdict = row.required.zip(ratio_early);
        let case = row.ours(Order::Early);
        let [our_calls, their_calls] = row.calls();
        Measured {
            kind: "bench-post-gpu-row",
            row: row.name(),
            nic: Label::None,
            gpu: Label::Hardware,
            against: row.against,
            sharing: case.sharing,
            scope: case.scope,
            producers: case.producers,
            queues: case.queues(),
            per_ring: case.per_ring,
            call: row.call,
            our_calls,
            their_calls,
            signal_every: row.signal_every(),
            room: row.room(),
            ring: case.place,
            ratio_early,
            ratio_strict,
            required: row.required,
            verdict: verdict.map(|(required, ratio)| if required.is_met(ratio) { "met" } else { "missed" }),
            content_ok: error.is_none() && sides.early.is_some(),
            no_peer: no_peer.filter(|_| row.is_beside_peer()).map(str::to_owned),
            sides,
            error,
        }
    }

    pub fn text(&self) -> String {
        if let Some(error) = &self.error {
            return format!("{:<64} {error}", self.row);
        }
        let side = |name: &str, spread: &Option<Spread>, ratio: Option<f64>| {
            let ns = spread.as_ref().map_or("-".into(), |spread| format!("{:.1}", spread.p50_ns));
            let ratio = ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2})"));
            format!("  {name} {ns:>7}{ratio:<7}")
        };
        let them = match self.against {
            Against::OriginalVolatile | Against::OriginalRelease => "original",
            _ => "gpunetio",
        };
        let calls = match (self.our_calls, self.their_calls) {
            (ours, theirs) if ours == theirs => String::new(),
            (ours, theirs) => format!("  calls a doorbell: {ours} against {theirs}"),
        };
        let nic = self.sides.early.as_ref().and_then(|early| early.nic_p50_ns);
        let nic = nic.map_or(String::new(), |ns| format!("  played NIC {ns:.1}"));
        let verdict = match (self.required, self.verdict) {
            (Some(Required::AtMost(most)), Some(verdict)) => format!("  at most {most}: {verdict}"),
            (Some(Required::AtLeast(least)), Some(verdict)) => format!("  at least {least}: {verdict}"),
            _ => String::new(),
        };
        format!(
            "{:<64}{}{}{}{verdict}{calls}{nic}",
            self.row,
            side(them, &self.sides.theirs, None),
            side("early", &self.sides.early, self.ratio_early),
            side("strict", &self.sides.strict, self.ratio_strict)
        )
    }
}

/// A line of what posts are made of.
#[derive(Debug, Serialize)]
pub struct FloorLine {
    kind: &'static str,
    row: String,
    nic: Label,
    gpu: Label,
    time: Option<Spread>,
    /// Where WQEs were written, whether they were the host's shim's.
    content_ok: bool,
    pub error: Option<String>,
}

impl FloorLine {
    pub fn new(row: impl Into<String>, measured: Result<Option<Spread>, String>) -> FloorLine {
        let (time, error) = match measured {
            Ok(time) => (time, None),
            Err(error) => (None, Some(error)),
        };
        let content_ok = time.is_some();
        let (kind, row) = ("bench-post-gpu-floor", row.into());
        FloorLine { kind, row, nic: Label::None, gpu: Label::Hardware, time, content_ok, error }
    }

    pub fn text(&self) -> String {
        match (&self.error, &self.time) {
            (Some(error), _) => format!("{:<64} {error}", self.row),
            (None, Some(time)) => format!("{:<64}  {:.1} ns each", self.row, time.p50_ns),
            (None, None) => format!("{:<64}  -", self.row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::rows;
    use super::*;

    fn spread(ns: f64) -> Option<Spread> {
        let sample = |factor: f64| Sample {
            posts: 100,
            span_ns: (ns * factor * 100.0) as u64,
            event_ns: 5000,
            nic_ns: Some((1000.0 * factor) as u64),
        };
        Spread::of(&[sample(1.0), sample(0.5), sample(3.0)])
    }

    #[test]
    fn a_floors_line_has_a_time_or_says_why_not() {
        let line = FloorLine::new("floor/fence", Ok(spread(40.0)));
        assert!(line.content_ok && line.text().ends_with("40.0 ns each"), "{}", line.text());
        let line = FloorLine::new("floor/wqe", Err("3 of 64 WQEs are wrong".into()));
        assert!(!line.content_ok && line.text().ends_with("3 of 64 WQEs are wrong"));
        assert_eq!(serde_json::to_value(&line).unwrap()["kind"], "bench-post-gpu-floor");
    }

    #[test]
    fn a_compilers_log_is_one_line_for_people() {
        for (why, said) in [
            ("its headers were not given", "its headers were not given"),
            (
                "compiling bench_put.cu for compute_90: COMPILATION (6):\na.h(1): warning: x\n\n  y\nb.h(2): error: no z\n",
                "compiling bench_put.cu for compute_90: COMPILATION (6): b.h(2): error: no z",
            ),
        ] {
            assert_eq!(short(why), said);
        }
    }

    #[test]
    fn the_middle_run_counts() {
        let found = spread(40.0).unwrap();
        assert_eq!((found.p50_ns, found.min_ns, found.max_ns), (40.0, 20.0, 120.0));
        assert_eq!((found.event_p50_ns, found.runs, found.posts), (50.0, 3, 100));
        assert_eq!(found.nic_p50_ns, Some(10.0));
        assert_eq!(Spread::of(&[]), None);
    }

    /// Rows: ns of theirs and ours, and the ratios and verdict that come of them.
    #[test]
    fn a_rows_line_has_ratio_and_verdict_or_says_why_not() {
        let rows = rows(false);
        let row = |name: &str| rows.iter().find(|row| row.name() == name).unwrap();
        let per_16 = row("exclusive/1-thread/per-16/list/first-lap/host");
        let original = row("exclusive/1-thread/per-1/one/first-lap/host/original-volatile");
        for (row, theirs, early, ratio, verdict) in [
            (per_16, Some(200.0), 60.0, Some(0.3), Some("met")),
            (per_16, Some(100.0), 60.0, Some(0.6), Some("missed")),
            (per_16, None, 60.0, None, None),
            (original, Some(150.0), 60.0, Some(2.5), Some("met")),
            (original, Some(149.0), 60.0, Some(149.0 / 60.0), Some("missed")),
        ] {
            let sides =
                Sides { theirs: theirs.and_then(spread), early: spread(early), strict: spread(120.0) };
            let no_peer = theirs.is_none().then_some("its headers were not given");
            let line = Measured::new(row, no_peer, Ok(sides));
            assert_eq!((line.ratio_early, line.verdict), (ratio, verdict), "{}", line.text());
            assert!(line.content_ok && line.error.is_none());
            assert_eq!(line.no_peer.is_some(), theirs.is_none());
            let json = serde_json::to_value(&line).unwrap();
            assert_eq!(json["kind"], "bench-post-gpu-row");
            assert_eq!((&json["nic"], &json["gpu"]), (&"none".into(), &"hardware".into()));
        }
        let failed = Measured::new(per_16, None, Err("3 of 64 WQEs are wrong".into()));
        assert!(!failed.content_ok && failed.verdict.is_none() && failed.text().contains("3 of 64"));
    }
}
