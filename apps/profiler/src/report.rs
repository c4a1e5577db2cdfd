//! The result of `profiler run`: a line of JSON, and a few lines for people.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use inference::plan::{Format, Plan};
use measure::{Histogram, JsonLines, Label, Part, Provenance, Summary, Timer};
use serde::Serialize;

use crate::engine::Engine;
use crate::engine::name;
use crate::format::{Layout, Precision};
use crate::model::Model;
use crate::overlap::{Overlap, why_none};
use crate::run_options::{Launch, Options};
use crate::together::ConcurrentRuns;

/// What is known of an engine and its plan, beside times.
#[derive(Default, Serialize)]
pub struct Facts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch: Option<Launch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Period of the graph in each layout that was timed, in µs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layout_periods_us: BTreeMap<String, f64>,
    /// What computes steps beside our kernels, with versions.
    pub libraries: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`, on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Bytes of an instance's arena, and the least that any arena for these steps has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena_bound_bytes: Option<usize>,
    /// What the arena's values take together, without sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena_sum_bytes: Option<usize>,
    /// Bytes that an instance has for libraries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<usize>,
    /// The GPU's time of one run alone that the host launches, the median: from the begin of its first kernel
    /// to the end of its last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_ns: Option<u64>,
    /// The GPU's time of one turn alone of the graph that launches itself, without stamps, the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_ns: Option<u64>,
    /// From the process's start to the first answer.
    pub start_ms: BTreeMap<&'static str, f64>,
}

impl Facts {
    /// The memory of an instance.
    pub fn memory_of(&mut self, plan: &Plan, workspace: usize) {
        self.arena_bytes = Some(plan.arena.bytes);
        self.arena_bound_bytes = Some(plan.arena.bound);
        self.arena_sum_bytes = Some(plan.arena.sum);
        self.workspace_bytes = Some(workspace);
    }

    /// The periods by which the layout was chosen.
    pub fn periods(&mut self, periods: &[(Format, Duration)]) {
        let one =
            |(format, period): &(Format, Duration)| (name(Layout::of(*format)), period.as_secs_f64() * 1e6);
        self.layout_periods_us = periods.iter().map(one).collect();
    }
}

/// One line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    kind: &'static str,
    model: &'a str,
    weights: &'a str,
    engine: Engine,
    precision: Precision,
    #[serde(flatten)]
    facts: Facts,
    batch: usize,
    instances: u16,
    seconds: f64,
    warmup_seconds: f64,
    /// What `run` and the quantiles measure.
    timer: Timer,
    clock: &'static str,
    runs: u64,
    /// Runs of all instances in a second.
    runs_per_s: f64,
    /// Bytes of one run.
    input_bytes: u64,
    output_bytes: u64,
    run: Summary,
    /// 1,001 of them: the 0th, 0.1th, … 100th percentile.
    quantiles_ns: Vec<u64>,
    outputs_compared: u64,
    outputs_wrong: u64,
    #[serde(flatten)]
    stamps: Option<StampTimes>,
    /// How far instances ran at the same time.
    overlap: Option<Overlap>,
    /// Why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_overlap: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    energy_mj_per_run: Option<f64>,
    /// Why the energy is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    energy: Option<String>,
    label: Label,
    #[serde(skip_serializing_if = "Option::is_none")]
    substitute: Option<&'static str>,
    provenance: Provenance,
}

/// What the GPU's stamps say of graphs that launch themselves.
#[derive(Serialize)]
struct StampTimes {
    /// From the end of a run to the end of the next one.
    period: Summary,
    clock_step_ns: u64,
    stamps_lost: u64,
    outputs_compared_meanwhile: u64,
    #[serde(skip)]
    copies_wait: bool,
}

/// What a run's time is, by the way in which it is started.
fn timer(launch: Option<Launch>) -> Timer {
    let (starts, stops) = match launch {
        None => ("before a model's inputs are handed to its engine", "when its outputs are there"),
        Some(Launch::Host) => ("before the CPU launches the graph", "when its stream is idle"),
        Some(Launch::Graph) => {
            ("before the CPU launches the graph 100 times", "when its stream is idle; divided by 100")
        }
        Some(Launch::ByItself | Launch::While) => (
            "when a kernel that only reads the clock begins, before the first one of a turn",
            "when its last kernel ends, and a kernel that only reads the clock begins",
        ),
    };
    Timer { name: "run_ns", starts, stops }
}

/// Prints what was measured, and whether all outputs were right. `start`: the way to the first answer, for
/// people.
pub fn report(
    (options, engine): (&Options, Engine),
    model: &Model,
    (facts, start): (Facts, &str),
    provenance: Provenance,
    together: ConcurrentRuns,
) -> Result<bool> {
    let ConcurrentRuns { measured, energy, stamps } = together;

    let mut histogram = Histogram::new();
    measured.iter().for_each(|one| histogram.merge(&one.histogram));
    let [input_bytes, output_bytes] = model.bytes();
    let overlap = stamps.as_ref().and_then(|stamps| stamps.overlap);
    let outputs_wrong = measured.iter().map(|one| one.wrong).sum();
    let line = Line {
        kind: "profiler-run",
        model: &model.manifest.name,
        weights: &model.weights,
        engine,
        precision: options.format.precision,
        batch: model.batch,
        instances: options.instances,
        seconds: options.seconds,
        warmup_seconds: options.warmup,
        timer: timer(facts.launch),
        clock: if stamps.is_some() { "the GPU's global timer" } else { "CLOCK_MONOTONIC of the CPU" },
        runs: histogram.count(),
        runs_per_s: measured.iter().map(|one| one.rate).sum(),
        input_bytes,
        output_bytes,
        run: histogram.summary().context("nothing was measured")?,
        quantiles_ns: (0..=1000).map(|at| histogram.percentile_ns(f64::from(at) / 10.0)).collect(),
        outputs_compared: measured.iter().map(|one| one.compared).sum(),
        outputs_wrong,
        overlap,
        no_overlap: overlap.is_none().then(|| why_none(options.instances, stamps.is_some())),
        energy_mj_per_run: energy.as_ref().ok().copied(),
        energy: energy.err().map(|why| format!("n/a: {why}")),
        stamps: stamps.and_then(|stamps| {
            Some(StampTimes {
                period: Summary::exact(stamps.periods_ns)?,
                clock_step_ns: stamps.clock_step_ns,
                stamps_lost: stamps.lost,
                outputs_compared_meanwhile: stamps.meanwhile,
                copies_wait: stamps.copies_wait,
            })
        }),
        label: provenance.label(&[Part::Gpu]),
        substitute: match engine {
            Engine::Cpu => Some("the processor, in the place of a GPU"),
            Engine::Twin => Some("the host twin, in the place of a GPU"),
            Engine::Own | Engine::Cuda => None,
        },
        provenance,
        facts,
    };
    if options.json.as_deref() != Some(Path::new("-")) {
        say_line(&line, model, start);
    }
    match options.json.as_deref() {
        Some(path) if path == Path::new("-") => say!("{}", serde_json::to_string(&line)?),
        Some(path) => JsonLines::append_to(path)
            .and_then(|mut lines| lines.push(&line))
            .with_context(|| format!("--json {}", path.display()))?,
        None => {}
    }
    Ok(outputs_wrong == 0)
}

/// The result for people.
fn say_line(line: &Line<'_>, model: &Model, start: &str) {
    let ms = |ns: u64| ns as f64 / 1e6;
    say!("{}, batch {}: {}", model.manifest.title, line.batch, line.weights);
    let periods = line.facts.layout_periods_us.iter().map(|(layout, us)| format!(", {layout} {us:.1} µs"));
    let layout = line.facts.layout.map_or_else(String::new, |layout| format!(" {}", name(layout)));
    say!(
        "{} {}{layout}{}; libraries: {}",
        name(line.engine),
        name(line.precision),
        periods.collect::<String>(),
        line.facts.libraries
    );
    let with = line.facts.threads.map_or_else(String::new, |threads| format!(", {threads} threads each"));
    say!("{} side by side{with}: {} runs, {:.1} a second", line.instances, line.runs, line.runs_per_s);
    let Summary { min_ns, p50_ns, p90_ns, p99_ns, max_ns, .. } = line.run;
    let [least, p50, p90, p99, most] = [min_ns, p50_ns, p90_ns, p99_ns, max_ns].map(ms);
    say!("one run, ms: least {least:.3}, p50 {p50:.3}, p90 {p90:.3}, p99 {p99:.3}, most {most:.3}");
    say!("  from: {}; to: {}; {}", line.timer.starts, line.timer.stops, line.clock);
    say!(
        "outputs: {} compared with those of a run alone, bit for bit, {} wrong",
        line.outputs_compared,
        line.outputs_wrong
    );
    let facts = &line.facts;
    if let (Some(arena), Some(bound), Some(sum), Some(work)) =
        (facts.arena_bytes, facts.arena_bound_bytes, facts.arena_sum_bytes, facts.workspace_bytes)
    {
        say!(
            "memory of an instance, bytes: arena {arena} (bound {bound}, sum {sum} without sharing), workspace {work}"
        );
    }
    if let Some(span_ns) = facts.span_ns {
        say!(
            "one run alone on the GPU, launched by the host: {:.3} ms from first to last kernel",
            ms(span_ns)
        );
    }
    if let Some(turn_ns) = facts.turn_ns {
        say!("one turn alone of the graph that launches itself: {:.3} ms", ms(turn_ns));
    }
    if let Some(stamps) = &line.stamps {
        say!(
            "from end to end of a run, ms: p50 {:.3}, p99 {:.3}; the clock's step is {} ns; {} runs' stamps overwritten",
            ms(stamps.period.p50_ns),
            ms(stamps.period.p99_ns),
            stamps.clock_step_ns,
            stamps.stamps_lost
        );
        let ended = if stamps.copies_wait { "; then a copy waited for the graphs" } else { "" };
        say!("outputs compared while the instances ran: {}{ended}", stamps.outputs_compared_meanwhile);
    }
    match line.overlap {
        Some(overlap) => say!(
            "overlap: {:.2} runs at once on average; {:.1}% of {} runs overlap another instance's",
            overlap.at_once_mean,
            100.0 * overlap.overlapping_share,
            overlap.runs
        ),
        None => say!("overlap: none: {}", line.no_overlap.unwrap_or_default()),
    }
    say!("from the process's start to the first answer, ms: {start}");
    let substitute = line.substitute.map_or_else(String::new, |what| format!("; a substitute: {what}"));
    let energy = match (line.energy_mj_per_run, &line.energy) {
        (Some(mj), _) => format!("{mj:.2} mJ a run, the GPU's idle power included"),
        (None, why) => why.clone().unwrap_or_default(),
    };
    say!("label: {} (gpu: {}){substitute}; energy: {energy}", line.label, line.provenance.gpu);
}
