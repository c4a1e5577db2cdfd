//! Figure 6: how long a server takes for a request, by what drives the GPU.
//!
//! A series is `gpu-DRIVER-MODEL`. A point is a server that notes its steps (`--trace`) and one client after the other, each with a load
//! of its own; in the first repetition also a server that notes nothing, whose rate tells what the noting takes
//! (`experiments/fig6/README.md`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::spec::{Extent, Grid};
use experiment::{Experiment, Spec, resume};
use measure::{Part, Provenance, json_lines};
use serde_json::{Value, json};

use super::{Machine, Programs, SILENCE, begin, ended, listening, on_nic, parts, provenance};
use crate::figure::{Nic, Options, measure_points};
use crate::gpu_machine::GpuMachine;
use crate::process::{Ended, Speaking, WAIT};
use crate::{workspace, zoo};

/// What the spec calls the points of this figure.
pub const APP: &str = "serving-time";
/// The steps of a request, as the server calls them.
const STEPS: [&str; 9] = ["queue", "wait", "to_gpu", "copy_in", "run", "copy_out", "to_cpu", "send", "other"];

/// One of so many answers may have a receive completion that is stamped too late: the system's clock may be set while a point runs. The
/// software NIC's are never, as the tests ask; no card was tried.
const DISORDERED: u64 = 1000;

/// How a client loads the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// As many requests in flight as keep the GPU busy.
    Full,
    /// One request at a time.
    One,
    /// At a share of the rate that all reach under [`Load::Full`], whatever the answers do.
    Half,
    Most,
}

impl Load {
    const ALL: [Load; 4] = [Load::Full, Load::One, Load::Half, Load::Most];

    /// Those of a pass, in their order. The open loops are in the second one: their rate depends on the first one of other series.
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

/// A series taken apart.
struct Line<'a> {
    driver: &'a str,
    model: &'a str,
}

impl<'a> Line<'a> {
    fn of(series: &'a str) -> Result<Line<'a>> {
        let (driver, model) = parts(series, "DRIVER")?;
        Ok(Line { driver, model })
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
    fn options(&self) -> Result<Vec<String>> {
        let words: &[&str] = match self.driver {
            "fair" | "faithful" => &["--mode", "cpu-cpu-shim", "--engine", "gpu", "--baseline", self.driver],
            "graph" => &["--mode", "gpu-graph"],
            "while" => &["--mode", "gpu-while"],
            "persistent" => &["--mode", "gpu-persistent"],
            other => bail!("no driver `{other}`: faithful, fair, graph, while or persistent"),
        };
        Ok(words.iter().map(|word| (*word).to_owned()).collect())
    }
}

/// Measures and reports.
pub fn run(experiment: Experiment, options: &Options) -> Result<()> {
    let Some(begun) = begin(&experiment, options, dry_run)? else { return Ok(()) };
    execute(&experiment, &begun.how, begun.machine, &begun.here, &Programs::of(&workspace::programs()))
}

/// The grid of an extent: `--quick` has the first model.
fn grid(spec: &Spec, extent: Extent) -> (Grid, Vec<String>) {
    let mut grid = spec.grid(extent);
    let model = |series: &str| Line::of(series).map(|line| line.model.to_owned()).unwrap_or_default();
    let first = grid.series.first().map(|series| model(series));
    let is_kept = |series: &String| extent != Extent::Quick || Some(model(series)) == first;
    let (kept, left_out) = grid.series.iter().cloned().partition(is_kept);
    grid.series = kept;
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
    let slots = whole(spec, series, "slots")?.to_string();
    let words = ["--machine", machine.name(), "--model", line.model, "--arrival", "completion"];
    let rest = ["--slots", &slots, "--slots-per-client", &slots, "--listen", "127.0.0.1:0", "--json", "-"];
    let mut all = line.options()?;
    if machine == Machine::Gpu && !line.is_baseline() {
        let place = option(spec, series, "place")?.as_str().context("fig6: place is no word")?;
        all.extend(["--place".to_owned(), place.to_owned()]);
    }
    all.extend(words.iter().chain(&rest).map(|word| (*word).to_owned()));
    all.extend(is_traced.then(|| "--trace".to_owned()));
    Ok(all)
}

/// What a client is told, but for the server's address. `per_s`: rate of an open loop.
fn client_options(spec: &Spec, series: &str, load: Load, [seconds, per_s]: [f64; 2]) -> Result<Vec<String>> {
    let slots = match load {
        Load::One => 1,
        Load::Full => whole(spec, series, "window")?,
        Load::Half | Load::Most => whole(spec, series, "slots")?,
    };
    let slots = slots.to_string();
    let [inputs, seconds, rate] =
        [whole(spec, series, "inputs")?.to_string(), seconds.to_string(), format!("{per_s:.3}")];
    let words = [
        "--model",
        Line::of(series)?.model,
        "--arrival",
        "completion",
        "--slots",
        &slots,
        "--inputs",
        &inputs,
        "--seconds",
        &seconds,
    ];
    let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    if matches!(load, Load::Half | Load::Most) {
        all.extend(["--rate".to_owned(), rate]);
    }
    all.extend(["--deadline", "60", "--json", "-"].map(str::to_owned));
    Ok(all)
}

fn execute(
    experiment: &Experiment,
    how: &resume::Options,
    machine: Machine,
    here: &GpuMachine,
    programs: &Programs,
) -> Result<()> {
    let spec = &experiment.spec;
    std::fs::create_dir_all(how.out.join("logs")).with_context(|| format!("--out {}", how.out.display()))?;
    let provenance = provenance(spec, machine, here)?;
    let (grid, left_out) = grid(spec, how.extent);
    let nic = Nic::software(spec, &how.out)?;
    let series = &grid.series;
    let mut bench =
        Timed { spec, series, out: &how.out, machine, here, programs, nic: &nic, provenance: &provenance };
    let earlier = measure_points(experiment, how, &provenance, &grid, &mut bench)?;
    let timers = json!([{
        "name": "service",
        "start": "the timestamp of the request's receive completion, by the NIC's clock",
        "stop": "behind the answer's doorbell: the GPU's global timer, or the CPU's clock where it rings",
    }]);
    run::report(experiment, how, &earlier, &Extra { left_out, timers, ..Extra::default() })
}

/// Points of a server and its clients each.
struct Timed<'a> {
    spec: &'a Spec,
    /// Those of the grid.
    series: &'a [String],
    out: &'a Path,
    machine: Machine,
    here: &'a GpuMachine,
    programs: &'a Programs,
    nic: &'a Nic,
    provenance: &'a Provenance,
}

impl run::Bench for Timed<'_> {
    fn asked(&self, _: &Key) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let label = self.provenance.label(&[Part::Gpu]);
        let mut point = Point::new(&self.spec.name, key.clone(), label, self.provenance.clone());
        point.seconds = seconds;
        let of_all = match if key.x == 0 { Ok(0.0) } else { self.rate_of_all(key) } {
            Ok(rate) => rate,
            Err(error) => {
                point.missing = Some(format!("{error:#}"));
                return Ok(point);
            }
        };
        let (mut server, address, log) = self.server(key, true)?;
        for load in Load::of_pass(key.x) {
            let share = match load {
                Load::Full | Load::One => 0.0,
                load => share(self.spec, &key.series, load.name())?,
            };
            let run = self.client(key, load, &address, [seconds, share * of_all])?;
            let traced = server.json_of(&["traced"], SILENCE).context("the server")?;
            fill(&mut point, load, &run, &traced)?;
        }
        ended(&mut server, &log)?;
        if key.repetition == 0 && key.x == 0 {
            let (mut server, address, log) = self.server(key, false)?;
            let run = self.client(key, Load::Full, &address, [seconds, 0.0])?;
            ended(&mut server, &log)?;
            let untraced = run["answers_per_second"].as_f64().unwrap_or_default();
            ensure!(untraced > 0.0, "no answer without --trace; see {}", log.display());
            let traced = point.values.get("full_per_s").copied().unwrap_or_default();
            point.values.insert("trace_cost".into(), 1.0 - traced / untraced);
        }
        Ok(point)
    }
}

/// The least rate under [`Load::Full`] of all series that drive the series's model, in its repetition; a kernel that stays has its
/// own. Error: one of them has no whole point.
fn rate_of_all(all: &[String], points: &[Point], key: &Key) -> Result<f64> {
    let line = Line::of(&key.series)?;
    let mut least = f64::INFINITY;
    for series in all {
        let other = Line::of(series)?;
        if other.model != line.model || other.stays() != line.stays() {
            continue;
        }
        let is_of =
            |point: &&Point| point.series == *series && point.x == 0 && point.repetition == key.repetition;
        let whole = points.iter().filter(is_of).find(|point| point.missing.is_none());
        let rate = whole.and_then(|point| point.values.get("full_per_s").copied());
        let rate = rate.filter(|rate| *rate > 0.0).with_context(|| {
            format!(
                "{series}: no whole point of pass 0 in repetition {}, whose rate is needed",
                key.repetition
            )
        })?;
        least = least.min(rate);
    }
    Ok(least)
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
    put("per_s", run["answers_per_second"].as_f64());
    if matches!(load, Load::One | Load::Full) {
        for step in STEPS {
            put(&format!("{step}_us"), us(traced, &format!("/steps/{step}/mean_ns")));
        }
    }
    if load == Load::One {
        let [end, service] = [us(run, "/latency/mean_ns"), us(traced, "/service/mean_ns")];
        put("nic_us", end.zip(service).map(|(end, service)| end - service));
    }
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
    let missing = super::missing(run)
        .or_else(|| (lost > 0).then(|| format!("{lost} answers were not traced")))
        .or_else(|| (count == 0).then(|| "no answer was traced".to_owned()))
        .or_else(|| {
            let is_bad = disordered * DISORDERED > count;
            is_bad.then(|| {
                format!("{disordered} of {count} receive completions are stamped later than they were found")
            })
        });
    if point.missing.is_none() {
        point.missing = missing.map(|missing| format!("{name}: {missing}"));
    }
    if point.detail.is_null() {
        point.detail = json!({});
    }
    let detail = point.detail.as_object_mut().context("the detail of a point is no object")?;
    let of_client = json!({ "latency": run["latency"], "service": run["service"], "answered": run["answered"], "rate": run["rate"] });
    detail.insert(name.to_owned(), json!({ "service": traced["service"], "client": of_client }));
    Ok(())
}

impl Timed<'_> {
    /// [`rate_of_all`], of the points that are finished.
    fn rate_of_all(&self, key: &Key) -> Result<f64> {
        let points = json_lines::read::<Point>(&self.out.join("results.jsonl"))?.records;
        rate_of_all(self.series, &points, key)
    }

    /// Starts a server, and waits until it listens: with where, and its log.
    fn server(&self, key: &Key, is_traced: bool) -> Result<(Speaking, String, PathBuf)> {
        let what = if is_traced { "server" } else { "untraced" };
        let log = self.out.join(format!("logs/{}-{}-{what}-{}.log", key.series, key.repetition, key.x));
        let mut command = on_nic(self.nic, self.programs, self.here, &self.programs.server);
        command.args(server_options(self.spec, &key.series, self.machine, is_traced)?);
        let (server, address) = listening(&mut command, &log)?;
        Ok((server, address, log))
    }

    /// Runs a client to its end: its last line.
    fn client(&self, key: &Key, load: Load, address: &str, times: [f64; 2]) -> Result<Value> {
        let log = self.out.join(format!("logs/{}-{}-{}.log", key.series, key.repetition, load.name()));
        let mut command = on_nic(self.nic, self.programs, self.here, &self.programs.client);
        command.args(["--connect", address]);
        command.args(client_options(self.spec, &key.series, load, times)?);
        command.arg("--manifests").arg(zoo::manifests());
        let mut client = Speaking::start(&mut command, &log)?;
        let (since, limit) = (Instant::now(), Duration::from_secs_f64(times[0]) + 2 * SILENCE);
        let run = client.json("run", limit).with_context(|| format!("the client; see {}", log.display()))?;
        let ended = client.child.wait(WAIT)?;
        // What it counts says more than its exit code.
        let is_told = super::missing(&run).is_some();
        ensure!(
            ended == Ended::Well || is_told,
            "the client {ended} after {:.1} s; see {}",
            since.elapsed().as_secs_f64(),
            log.display()
        );
        Ok(run)
    }
}

/// What would be measured, drawn and judged (INV-10).
fn dry_run(experiment: &Experiment, how: &resume::Options, machine: Machine) -> Result<String> {
    let spec = &experiment.spec;
    let (grid, left_out) = grid(spec, how.extent);
    let mut lines = vec![
        format!("{}: {}", spec.name, spec.title),
        format!(
            "{} points: {} series × 2 passes × {} repetitions, each of two loads of {} s; each point ends within nine minutes, --resume goes on",
            grid.keys().len(),
            grid.series.len(),
            grid.repeat,
            grid.seconds
        ),
        format!("nic: the software NIC, two processes; machine: {}", machine.name()),
        format!("results: {}", how.out.display()),
    ];
    for series in &grid.series {
        lines.push(format!(
            "{series}: inference-server {}",
            server_options(spec, series, machine, true)?.join(" ")
        ));
        for load in Load::ALL {
            lines.push(format!(
                "  {}: doorbell-client --connect … {}",
                load.name(),
                client_options(spec, series, load, [grid.seconds, f64::NAN])?.join(" ").replace(
                    "NaN",
                    &format!(
                        "{} of the least full",
                        option(spec, series, load.name()).unwrap_or(&toml::Value::Integer(1))
                    )
                )
            ));
        }
    }
    let plots = spec.stacks.iter().map(|plot| (&plot.name, &plot.title, &plot.series));
    lines.extend(super::drawn_and_judged(experiment, plots, (&grid.series, &left_out), machine));
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use measure::Label;

    use super::*;

    fn spec() -> Spec {
        Spec::read(&workspace::root().join("experiments/fig6")).unwrap()
    }

    /// M9: the release has the slow baseline alone.
    #[test]
    fn release_m9_each_model_has_both_baselines_beside_the_gpu() {
        let spec = spec();
        let series = spec.grid(Extent::Normal).series;
        let of = |model: &str| -> Vec<&str> {
            let own = series.iter().filter_map(|series| Line::of(series).ok());
            own.filter(|line| line.model == model).map(|line| line.driver).collect()
        };
        assert_eq!(of("super-resolution-x1"), ["faithful", "fair", "graph", "while", "persistent"]);
        for model in ["squeezenet-1.1", "resnet50-v1.5"] {
            assert_eq!(of(model), ["faithful", "fair", "graph", "while"]);
        }
        for series in &series {
            let options = server_options(&spec, series, Machine::Gpu, true).unwrap();
            assert!(options.contains(&"--trace".to_owned()), "{series}");
        }
    }

    #[test]
    fn open_loops_offer_all_drivers_of_a_model_the_same_rate() {
        let key =
            |series: &str, x, repetition| Key { series: series.into(), x, at: BTreeMap::new(), repetition };
        let point = |series: &str, repetition: u32, per_s: f64| {
            let provenance = Provenance::of(workspace::revision(), &[]);
            let mut point = Point::new("fig6", key(series, 0, repetition), Label::Emulated, provenance);
            point.values.insert("full_per_s".into(), per_s);
            point
        };
        let points = [
            point("gpu-fair-m-1", 0, 300.0),
            point("gpu-graph-m-1", 0, 200.0),
            point("gpu-persistent-m-1", 0, 10.0),
            point("gpu-fair-m-1", 1, 100.0),
            point("gpu-fair-n", 0, 1.0),
        ];
        let all = ["gpu-fair-m-1", "gpu-graph-m-1", "gpu-persistent-m-1", "gpu-fair-n"].map(str::to_owned);
        let rate = |series: &str, repetition| {
            let rate = rate_of_all(&all, &points, &key(series, 1, repetition));
            rate.map_err(|error| error.to_string())
        };
        assert_eq!([rate("gpu-fair-m-1", 0), rate("gpu-graph-m-1", 0)], [Ok(200.0), Ok(200.0)]);
        assert_eq!((rate("gpu-persistent-m-1", 0), rate("gpu-fair-n", 0)), (Ok(10.0), Ok(1.0)));
        // A rate that one of them has not shown is not offered to the others.
        let error = rate("gpu-fair-m-1", 1).unwrap_err();
        assert!(error.starts_with("gpu-graph-m-1: no whole point of pass 0 in repetition 1"), "{error}");
    }

    #[test]
    fn steps_add_up_to_the_service_and_bad_answers_are_told() {
        let spec = spec();
        let key = Key { series: "gpu-graph-squeezenet-1.1".into(), x: 0, at: BTreeMap::new(), repetition: 0 };
        let mut point = Point::new("fig6", key, Label::Emulated, Provenance::of(workspace::revision(), &[]));
        let summary = |ns: u64| json!({ "p50_ns": ns, "p99_ns": 2 * ns, "mean_ns": ns as f64 });
        let steps: serde_json::Map<String, Value> =
            STEPS.iter().map(|step| ((*step).to_owned(), summary(1_000))).collect();
        let traced = json!({
            "service": summary(9_000), "attended": summary(8_000), "steps": steps, "clock_error_ns": 300, "lost": 0,
            "disordered": 1, "count": 1_000,
        });
        let run = |wrong: u64| {
            json!({
                "latency": summary(20_000), "answers_per_second": 7.0, "sent": 9,
                "wrong": wrong, "lost": 0, "duplicate": 0, "refused": {},
            })
        };
        for load in Load::ALL {
            fill(&mut point, load, &run(0), &traced).unwrap();
        }
        point.values.insert("trace_cost".into(), 0.0);
        let missing: Vec<&String> =
            spec.values.iter().filter(|name| !point.values.contains_key(*name)).collect();
        assert_eq!(missing, Vec::<&String>::new());
        let one: f64 = STEPS.iter().map(|step| point.values[&format!("one_{step}_us")]).sum();
        assert_eq!((one, point.values["one_us"], point.values["one_nic_us"]), (9.0, 9.0, 11.0));
        assert_eq!((point.values["post_share"], point.values["clock_error_us"]), (0.25, 0.3));
        assert_eq!(point.missing, None);
        fill(&mut point, Load::Half, &run(2), &traced).unwrap();
        assert_eq!(point.missing.as_deref(), Some("half: 2 wrong of 9 requests"));
        for (field, value, why) in [
            ("disordered", 2, "full: 2 of 1000 receive completions are stamped later than they were found"),
            ("lost", 7, "full: 7 answers were not traced"),
            ("count", 0, "full: no answer was traced"),
        ] {
            let mut traced = traced.clone();
            traced[field] = value.into();
            point.missing = None;
            fill(&mut point, Load::Full, &run(0), &traced).unwrap();
            assert_eq!(point.missing.as_deref(), Some(why));
            traced.as_object_mut().unwrap().remove(field);
            let error = fill(&mut point, Load::Full, &run(0), &traced).unwrap_err().to_string();
            assert_eq!(error, format!("the server's line `traced` has no {field}"));
        }
    }
}
