//! Figure 6: how long a server takes for a request, by what drives the GPU.
//!
//! A series is `gpu-DRIVER-MODEL`, or `gpu-DRIVER+VARIANT-MODEL` with other requests. A point: a `--trace`
//! server, and one client per load (`experiments/fig6/README.md`). NIC counters time requests by flag.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::spec::{Extent, Grid};
use experiment::statistics::median;
use experiment::{Experiment, Spec};
use measure::{Label, json_lines};
use serde_json::{Value, json};

use super::bench::{self, SILENCE, ServerBench, ServerFigure, missing, parts};
use super::started::{Process, Started};
use crate::figure::options::{Machine, Options};
use crate::process::WAIT;
use crate::shell;

/// What the spec calls the points of this figure.
pub const APP: &str = "serving-time";
/// The steps of a request, as the server calls them.
const STEPS: [&str; 9] = ["queue", "wait", "to_gpu", "copy_in", "run", "copy_out", "to_cpu", "send", "other"];

/// One answer in so many may have a receive completion stamped too late, as the system's clock may be set
/// while a point runs. The software NIC's never are, as the tests ask; no card was tried.
const DISORDERED: u64 = 1000;

/// The emulated NIC, not the server, limits a load whose requests take more than 1/0.9 of the time in which
/// they are due, while the server is busy for less than 0.9 of it.
const BUSY: f64 = 0.9;

/// The NIC limits it only if a request's wait in the server is below this share of its time of service.
const QUEUED: f64 = 0.5;

/// How a client loads the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Several requests in flight.
    Full,
    /// One request at a time.
    One,
    /// At a share of the runs a second that the GPU can do, whatever the answers do.
    Half,
    Most,
}

impl Load {
    const ALL: [Load; 4] = [Load::Full, Load::One, Load::Half, Load::Most];

    /// A pass's loads in order. The open loops come second: [`Load::One`] of other series sets their rate.
    fn of_pass(pass: u64) -> [Load; 2] {
        if pass == 0 { [Load::Full, Load::One] } else { [Load::Half, Load::Most] }
    }

    fn name(self) -> &'static str {
        match self {
            Load::Full => "full",
            Load::One => "one",
            Load::Half => "half",
            Load::Most => "most",
        }
    }
}

/// The variant whose requests arrive by flag writes.
const FLAG: &str = "flag";

/// Requests due on average in the time of an open loop, which may be longer for them, but not beyond
/// [`LONGEST_S`]: a twin on a busy machine serves one a second.
const ARRIVALS: f64 = 4.0;
const LONGEST_S: f64 = 15.0;

/// Until a client whose time is over has said its last line: it waits a minute for an answer.
const BEYOND: Duration = SILENCE.saturating_add(WAIT);

/// A series taken apart.
struct Line<'a> {
    driver: &'a str,
    /// What its requests have of their own.
    variant: Option<&'a str>,
    model: &'a str,
}

impl<'a> Line<'a> {
    fn of(series: &'a str) -> Result<Line<'a>> {
        let (driver, model) = parts(series, "DRIVER")?;
        let (driver, variant) =
            driver.split_once('+').map_or((driver, None), |(driver, variant)| (driver, Some(variant)));
        Ok(Line { driver, variant, model })
    }

    /// How requests arrive.
    fn arrival(&self) -> &'static str {
        if self.variant == Some(FLAG) { FLAG } else { "completion" }
    }

    /// Whether one kernel stays on the GPU.
    fn stays(&self) -> bool {
        self.driver == "persistent"
    }

    /// Whether the CPU drives the GPU.
    fn is_baseline(&self) -> bool {
        matches!(self.driver, "fair" | "faithful")
    }

    /// What the server is told of what drives the GPU.
    fn options(&self) -> Result<String> {
        Ok(match self.driver {
            driver @ ("fair" | "faithful") => format!("--mode cpu-cpu-shim --engine gpu --baseline {driver}"),
            "graph" => "--mode gpu-graph".into(),
            "while" => "--mode gpu-while".into(),
            "ahead" => "--mode gpu-ahead".into(),
            "persistent" => "--mode gpu-persistent".into(),
            other => bail!("no driver `{other}`: faithful, fair, graph, while, ahead or persistent"),
        })
    }
}

/// Measures and reports.
pub fn run(mut experiment: Experiment, options: &Options) -> Result<()> {
    let Some(figure) = ServerFigure::begin(&mut experiment, options, dry_run)? else { return Ok(()) };
    execute(&experiment, &figure)
}

/// The grid of an extent: `--quick` has the first model, without variants and the kernel that stays.
fn grid(spec: &Spec, extent: Extent) -> (Grid, Vec<String>) {
    let mut grid = spec.grid(extent);
    let model = |series: &str| Line::of(series).map(|line| line.model.to_owned()).unwrap_or_default();
    let first = grid.series.first().map(|series| model(series));
    let is_plain = |series: &str| Line::of(series).is_ok_and(|line| line.variant.is_none() && !line.stays());
    let is_kept =
        |series: &String| extent != Extent::Quick || (Some(model(series)) == first && is_plain(series));
    let left_out = grid.series.extract_if(.., |series| !is_kept(series)).collect();
    (grid, left_out)
}

/// An option of a series, or else of all.
fn option<'a>(spec: &'a Spec, series: &str, name: &str) -> Result<&'a toml::Value> {
    let own = spec.series.get(series).and_then(|own| own.options.get(name));
    own.or_else(|| spec.options.get(name)).with_context(|| format!("fig6: no option {name}"))
}

fn whole(spec: &Spec, series: &str, name: &str) -> Result<i64> {
    option(spec, series, name)?.as_integer().with_context(|| format!("fig6: {name} is no whole number"))
}

fn share(spec: &Spec, series: &str, name: &str) -> Result<f64> {
    option(spec, series, name)?.as_float().with_context(|| format!("fig6: {name} is no number"))
}

/// What a server is told.
fn server_options(spec: &Spec, series: &str, machine: Machine, is_traced: bool) -> Result<Vec<String>> {
    let line = Line::of(series)?;
    let [slots, memory, warmup] = ["slots", "memory", "warmup"].map(|name| whole(spec, series, name));
    let (slots, memory, warmup) = (slots?, memory?, warmup?);
    let mut place = String::new();
    if machine == Machine::Gpu && !line.is_baseline() {
        let word = option(spec, series, "place")?.as_str().context("fig6: place is no word")?;
        place = format!("--place {word}");
    }
    let trace = if is_traced { "--trace" } else { "" };
    let status = if line.is_baseline() { "" } else { "--status -" };
    Ok(shell::words(&format!(
        "{} {place} --machine {} --model {} --arrival {} --warmup {warmup} --slots {slots} --slots-per-client {slots} \
         --memory {memory} --json - {trace} {status}",
        line.options()?,
        machine.name(),
        line.model,
        line.arrival()
    )))
}

/// What a client is told, but for the server's address. `per_s`: rate of an open loop.
fn client_options(spec: &Spec, series: &str, load: Load, [seconds, per_s]: [f64; 2]) -> Result<Vec<String>> {
    let (slots, rate) = match load {
        Load::One => (1, String::new()),
        Load::Full => (whole(spec, series, "window")?, String::new()),
        Load::Half | Load::Most => (whole(spec, series, "slots")?, format!("--rate {per_s:.3}")),
    };
    let (line, inputs) = (Line::of(series)?, whole(spec, series, "inputs")?);
    Ok(shell::words(&format!(
        "--model {} --arrival {} --slots {slots} --inputs {inputs} --seconds {seconds} {rate} --deadline 60 --json -",
        line.model,
        line.arrival()
    )))
}

fn execute(experiment: &Experiment, figure: &ServerFigure) -> Result<()> {
    let spec = &experiment.spec;
    let (grid, left_out) = grid(spec, figure.how.extent);
    let models = grid.series.iter().map(|series| Ok(Line::of(series)?.model));
    let models = models.collect::<Result<BTreeSet<&str>>>()?;
    figure.on_nic(spec, &models, &|bench| execute_on(bench, experiment, (&grid, &left_out)))
}

/// Whether the software NIC times the requests of a series.
fn is_flag(series: &str) -> bool {
    Line::of(series).is_ok_and(|line| line.variant == Some(FLAG))
}

/// Takes what a card does not measure out of a grid: which series.
fn left_out_of_card(grid: &mut Grid) -> Vec<String> {
    bench::leave_out(grid, &is_flag, "a card does not count the time from a request to its answer")
}

/// Measures and reports what is kept of the grid.
fn execute_on(
    bench: &ServerBench<'_>,
    experiment: &Experiment,
    (grid, left_out): (&Grid, &[String]),
) -> Result<()> {
    let (mut grid, mut left_out) = (grid.clone(), left_out.to_vec());
    if bench.is_card() {
        left_out.extend(left_out_of_card(&mut grid));
    }
    let mut points = Timed { bench, keys: grid.keys() };
    let earlier = bench.measure(experiment, &grid, bench.figure.gpu(), &mut points)?;
    let lines = grid.series.iter().filter_map(|series| said_use(series, &earlier.points)).collect();
    let timers = json!([{
        "name": "service",
        "start": "the timestamp of the request's receive completion, by the NIC's clock",
        "stop": "behind the answer's doorbell: the GPU's global timer, or the CPU's clock where it rings",
    }]);
    let extra = Extra { left_out, timers, lines, ..Extra::default() };
    run::report(experiment, &bench.figure.how, &earlier, &extra)
}

/// Points of a server and its clients each.
struct Timed<'a> {
    bench: &'a ServerBench<'a>,
    /// Those of the grid.
    keys: Vec<Key>,
}

impl run::Bench for Timed<'_> {
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let mut point = self.bench.point(key, seconds);
        if Line::of(&key.series)?.variant == Some(FLAG) {
            self.by_the_nic(key, seconds, &mut point)?;
            return Ok(point);
        }
        let runs_per_s = match if key.x == 0 { Ok(0.0) } else { self.known(key) } {
            Ok(known) => known,
            Err(error) => {
                point.missing = Some(format!("{error:#}"));
                return Ok(point);
            }
        };
        let (mut server, address) = self.server(key, true)?;
        if key.x == 0 && !Line::of(&key.series)?.is_baseline() {
            fill_graph(&mut point, &bench::status(&mut server)?);
        }
        let mut took = Vec::new();
        for load in Load::of_pass(key.x) {
            let share = match load {
                Load::Full | Load::One => 0.0,
                load => share(self.bench.spec, &key.series, load.name())?,
            };
            let times = [lasts(seconds, share * runs_per_s), share * runs_per_s];
            let run = self.client(key, load, &address, times)?;
            let traced = server.program.json_of(&["traced"], WAIT).context("the server")?;
            fill(&mut point, load, &run, &traced)?;
            point.detail[load.name()]["asked_s"] = times[0].into();
            took.push((load, [times[0], run["seconds"].as_f64().unwrap_or_default()]));
        }
        for (load, times) in took {
            fill_limit(&mut point, load, times)?;
        }
        bench::end(&mut server)?;
        Ok(point)
    }
}

/// How long a load of a point of so many seconds lasts. `per_s`: rate of an open loop.
fn lasts(seconds: f64, per_s: f64) -> f64 {
    if per_s > 0.0 { seconds.max((ARRIVALS / per_s).min(LONGEST_S)) } else { seconds }
}

/// Runs a second of the series's model that the GPU can do, by the longest run under [`Load::One`] of all
/// drivers in this repetition; a kernel that stays has its own. Error: one of them has no whole point.
fn known(all: &[String], points: &[Point], key: &Key) -> Result<f64> {
    let line = Line::of(&key.series)?;
    let mut most_us: f64 = 0.0;
    for series in all {
        let other = Line::of(series)?;
        if other.model != line.model || other.stays() != line.stays() || other.variant.is_some() {
            continue;
        }
        let is_of =
            |point: &&Point| point.series == *series && point.x == 0 && point.repetition == key.repetition;
        let whole = points.iter().filter(is_of).find(|point| point.missing.is_none());
        let run_us = whole.and_then(|point| point.values.get("one_run_us").copied());
        let run_us = run_us.filter(|us| *us > 0.0).with_context(|| {
            let nth = key.repetition;
            format!("{series}: no whole point of pass 0 in repetition {nth}, whose run time is needed")
        })?;
        most_us = most_us.max(run_us);
    }
    Ok(1e6 / most_us)
}

/// How long a request keeps the server from beginning the next under a load: `fair` computes one beside the
/// copies of others. `None`: a step was not timed.
fn taken_us(point: &Point, load: Load) -> Result<Option<f64>> {
    let us = |step: &str| point.values.get(&format!("{}_{step}_us", load.name())).copied();
    Ok(match Line::of(&point.series)?.driver {
        "fair" | "ahead" => us("run"),
        _ => STEPS.iter().filter(|step| **step != "queue").map(|step| us(step)).sum(),
    })
}

/// Says in a point whether the emulated NIC, not the server, limits a load that was asked for so many seconds
/// and took so many: requests reached an idle server late, and did not queue. A card never does. Says nothing
/// if a number is missing.
fn fill_limit(point: &mut Point, load: Load, [asked, took]: [f64; 2]) -> Result<()> {
    let value = |what: &str| point.values.get(&format!("{}_{what}", load.name())).copied();
    let is_late = match load {
        Load::One => return Ok(()),
        Load::Full => true,
        Load::Half | Load::Most => took * BUSY > asked,
    };
    let (Some(per_s), Some(queue_us), Some(taken_us)) =
        (value("per_s"), value("queue_us"), taken_us(point, load)?)
    else {
        return Ok(());
    };
    let is_emulated = point.provenance.nic == Label::Emulated;
    let is_limited = is_emulated && is_late && per_s * taken_us / 1e6 < BUSY && queue_us < QUEUED * taken_us;
    point.values.insert(format!("{}_limited", load.name()), f64::from(u8::from(is_limited)));
    Ok(())
}

/// The GPU's use by a series under each load, as a line; `None`: it has none.
fn said_use(series: &str, points: &[Point]) -> Option<String> {
    let of = |load: Load, what: &str| {
        let name = format!("{}_{what}", load.name());
        let own = points.iter().filter(|point| point.series == series);
        median(&own.filter_map(|point| point.values.get(&name).copied()).collect::<Vec<f64>>())
    };
    let said = |load: Load| {
        let is_limited = of(load, "limited").is_some_and(|limited| limited != 0.0);
        let limited = if is_limited { " (NIC-limited, not judged)" } else { "" };
        Some(format!("{} {:.2}{limited}", load.name(), of(load, "use")?))
    };
    let said: Vec<String> = Load::ALL.into_iter().filter_map(said).collect();
    (!said.is_empty()).then(|| format!("{series}: use of the GPU: {}", said.join(", ")))
}

/// Puts the counts of what has the server's turns into its point; the twin has none.
fn fill_graph(point: &mut Point, status: &Value) {
    let fields = [("graph_nodes", "nodes"), ("host_nodes", "host_nodes"), ("host_copies", "host_copies")];
    let count = |field: &str| status["models"][0]["graph"][field].as_f64();
    point.values.extend(fields.iter().filter_map(|(name, field)| Some(((*name).to_owned(), count(field)?))));
}

/// Puts the numbers of a load into its point.
fn fill(point: &mut Point, load: Load, run: &Value, traced: &Value) -> Result<()> {
    let name = load.name();
    let us = |from: &Value, pointer: &str| from.pointer(pointer).and_then(Value::as_f64).map(|ns| ns / 1e3);
    let mut put = |what: &str, value: Option<f64>| {
        point.values.extend(value.map(|value| (format!("{name}_{what}"), value)));
    };
    put("us", us(traced, "/service/p50_ns"));
    put("p99_us", us(traced, "/service/p99_ns"));
    put("end_us", us(run, "/latency/p50_ns"));
    let per_s = run["answers_per_second"].as_f64();
    put("per_s", per_s);
    put("use", per_s.zip(us(traced, "/steps/run/mean_ns")).map(|(per_s, run_us)| per_s * run_us / 1e6));
    for step in STEPS {
        put(&format!("{step}_us"), us(traced, &format!("/steps/{step}/mean_ns")));
    }
    let [end, service] = [us(run, "/latency/mean_ns"), us(traced, "/service/mean_ns")];
    put("nic_us", end.zip(service).map(|(end, service)| end - service));
    if load == Load::Full {
        put("attended_us", us(traced, "/attended/p50_ns"));
        let posts = us(traced, "/steps/wait/mean_ns").zip(us(traced, "/steps/send/mean_ns"));
        let share = posts.zip(us(traced, "/attended/mean_ns")).map(|((wait, send), all)| (wait + send) / all);
        point.values.extend(share.map(|share| ("post_share".to_owned(), share)));
    }
    let counted = |name: &str| {
        traced[name].as_u64().with_context(|| format!("the server's line `traced` has no {name}"))
    };
    let error_us = counted("clock_error_ns")? as f64 / 1e3;
    let worst = point.values.entry("clock_error_us".into()).or_default();
    *worst = worst.max(error_us);
    let [lost, disordered, count] = [counted("lost")?, counted("disordered")?, counted("count")?];
    let missing = missing(run).or_else(|| match () {
        () if lost > 0 => Some(format!("{lost} answers were not traced")),
        () if count == 0 => Some("no answer was traced".to_owned()),
        () if disordered * DISORDERED > count => Some(format!(
            "{disordered} of {count} receive completions are stamped later than they were found"
        )),
        () => None,
    });
    point.missing = point.missing.take().or_else(|| Some(format!("{name}: {}", missing?)));
    if point.detail.is_null() {
        point.detail = json!({});
    }
    let detail = point.detail.as_object_mut().context("the detail of a point is no object")?;
    let of_client = json!({ "latency": run["latency"], "service": run["service"], "answered": run["answered"], "rate": run["rate"] });
    detail.insert(name.to_owned(), json!({ "service": traced["service"], "client": of_client }));
    Ok(())
}

/// A NIC's counts: its queues' first sends after a message of the peer, and the time until these in ns.
type Turnarounds = [u64; 2];

/// Puts the service of one request at a time into its point, by the server NIC's counters before and after.
fn fill_by_the_nic(point: &mut Point, run: &Value, before: Turnarounds, after: Turnarounds) {
    let [count, ns] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    let answered = run["answered"].as_u64().unwrap_or_default();
    let end = run.pointer("/latency/p50_ns").and_then(Value::as_f64).map(|ns| ns / 1e3);
    point.values.extend(end.map(|end| ("one_end_us".to_owned(), end)));
    if count > 0 {
        point.values.insert("one_flag_us".into(), ns as f64 / count as f64 / 1e3);
    }
    point.missing = missing(run).or_else(|| {
        // Others than answers would be in the sum.
        let is_bad = count == 0 || count.abs_diff(answered) * DISORDERED > answered;
        is_bad.then(|| format!("one: the NIC timed {count} sends, and {answered} requests were answered"))
    });
    point.detail = json!({ "latency": run["latency"], "answered": run["answered"], "turnarounds": count });
}

impl Timed<'_> {
    /// Serves one request at a time whose arrival nothing but the NIC has a time of.
    fn by_the_nic(&self, key: &Key, seconds: f64, point: &mut Point) -> Result<()> {
        let (mut server, address) = self.server(key, false)?;
        let before = self.turnarounds(&server.process)?;
        let run = self.client(key, Load::One, &address, [seconds, 0.0])?;
        let after = self.turnarounds(&server.process)?;
        bench::end(&mut server)?;
        fill_by_the_nic(point, &run, before, after);
        Ok(())
    }

    fn turnarounds(&self, process: &Process) -> Result<Turnarounds> {
        let counters = process.nic_counters(&self.bench.figure.programs.softnic)?;
        let count =
            |name: &str| counters[name].as_u64().with_context(|| format!("the NIC does not count {name}"));
        Ok([count("turnarounds")?, count("turnaround_ns")?])
    }

    /// [`known`], of the points that are finished.
    fn known(&self, key: &Key) -> Result<f64> {
        let points = json_lines::read::<Point>(&self.bench.figure.how.out.join("results.jsonl"))?.records;
        let is_first = |one: &Key| one.x == 0 && one.repetition == key.repetition;
        let all: Vec<String> =
            self.keys.iter().filter(|one| is_first(one)).map(|one| one.series.clone()).collect();
        known(&all, &points, key)
    }

    /// Starts a server, and waits until it listens: with where.
    fn server(&self, key: &Key, is_traced: bool) -> Result<(Started, String)> {
        let what = if is_traced { "server" } else { "untraced" };
        let log = self.bench.log(&format!("{}-{}-{what}-{}", key.series, key.repetition, key.x));
        let machine = self.bench.figure.machine;
        self.bench.listening(&server_options(self.bench.spec, &key.series, machine, is_traced)?, &log)
    }

    /// Runs a client to its end: its last line.
    fn client(&self, key: &Key, load: Load, address: &str, times: [f64; 2]) -> Result<Value> {
        let log = self.bench.log(&format!("{}-{}-{}", key.series, key.repetition, load.name()));
        let options = client_options(self.bench.spec, &key.series, load, times)?;
        let mut client = self.bench.client(Line::of(&key.series)?.model, address, &options, &log)?.program;
        let (since, limit) = (Instant::now(), Duration::from_secs_f64(times[0]) + BEYOND);
        let run = client.json("run", limit).with_context(|| format!("the client; see {}", log.display()))?;
        bench::ended(&mut client, &run, since)?;
        Ok(run)
    }
}

/// What would be measured, drawn and judged (INV-10).
fn dry_run(experiment: &Experiment, options: &Options) -> Result<String> {
    let (spec, machine) = (&experiment.spec, options.machine());
    let (mut grid, mut left_out) = grid(spec, options.extent());
    if options.nic.is_some() {
        left_out.extend(left_out_of_card(&mut grid));
    }
    let (count, repeat, seconds) = (grid.series.len(), grid.repeat, grid.seconds);
    let points = format!(
        " of {count} series in 2 passes × {repeat} repetitions at most, each of two loads of {seconds} s (with a rate \
         longer, up to {LONGEST_S} s, where fewer than {ARRIVALS} requests would come on average)"
    );
    let commands = |series: &String| {
        let loads: &[Load] = match Line::of(series)?.variant {
            Some(FLAG) => &[Load::One],
            Some(_) => &Load::of_pass(0),
            None => &Load::ALL,
        };
        let server = server_options(spec, series, machine, loads.len() > 1)?.join(" ");
        let mut lines = vec![format!("{series}: inference-server --listen … {server}")];
        for &load in loads {
            let share = option(spec, series, load.name()).unwrap_or(&toml::Value::Integer(1)).to_string();
            let client = client_options(spec, series, load, [seconds, f64::NAN])?.join(" ");
            let client = client.replace("NaN", &format!("{share} of the GPU's runs a second"));
            lines.push(format!("  {}: doorbell-client --connect … {client}", load.name()));
        }
        Ok(lines)
    };
    bench::dry_run((experiment, options), [&points, ""], (&grid, &left_out), &commands)
}

#[cfg(test)]
mod tests;
