//! Many clients of a server beside one that has as many requests in flight.
//!
//! A series is `gpu-COUNT-MODEL`. A point is a server and so many client processes; what counts is the time
//! in which all of them are served (`experiments/bench-clients/README.md`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::{Experiment, Spec};
use serde_json::{Value, json};

use super::bench::{self, BEGIN, SILENCE, ServerBench, ServerFigure, missing, option, parts};
use super::started::Started;
use crate::figure::cpu::{ProcessSampler, ProcessSnapshot, ProcessUse};
use crate::figure::options::{Machine, Options};
use crate::shell;

/// What the spec calls its points.
pub const APP: &str = "serving-clients";
/// How much longer a client serves than is asked for: until the last one has begun.
const LEAD: f64 = 10.0;

/// A series taken apart.
struct Line<'a> {
    count: u64,
    model: &'a str,
}

impl<'a> Line<'a> {
    fn of(series: &'a str) -> Result<Line<'a>> {
        let (count, model) = parts(series, "COUNT")?;
        let count = count.parse().ok().filter(|count| *count > 0);
        let count = count.with_context(|| format!("series {series}: not gpu-COUNT-MODEL"))?;
        Ok(Line { count, model })
    }
}

/// Measures and reports.
pub fn run(mut experiment: Experiment, options: &Options) -> Result<()> {
    let Some(figure) = ServerFigure::begin(&mut experiment, options, dry_run)? else { return Ok(()) };
    execute(&experiment, &figure)
}

/// What a server is told.
fn server_options(spec: &Spec, line: &Line<'_>, machine: Machine) -> Result<Vec<String>> {
    let (slots, machine, model) = (option(spec, "slots")?, machine.name(), line.model);
    Ok(shell::words(&format!(
        "--mode gpu-graph --machine {machine} --model {model} --slots {slots} --slots-per-client {slots} \
         --json -"
    )))
}

/// What a client is told, but for the server's address. Error: the slots are not the clients' in equal parts.
fn client_options(spec: &Spec, line: &Line<'_>, seconds: f64) -> Result<Vec<String>> {
    let slots = u64::try_from(option(spec, "slots")?)?;
    ensure!(slots.is_multiple_of(line.count), "{}: {slots} slots for {} clients", spec.name, line.count);
    let (own, inputs, model) = (slots / line.count, option(spec, "inputs")?, line.model);
    let seconds = seconds + LEAD;
    Ok(shell::words(&format!(
        "--model {model} --slots {own} --inputs {inputs} --seconds {seconds} --deadline 60 --live --json -"
    )))
}

fn execute(experiment: &Experiment, figure: &ServerFigure) -> Result<()> {
    let (spec, how) = (&experiment.spec, &figure.how);
    let grid = spec.grid(how.extent);
    let models = grid.series.iter().map(|series| Ok(Line::of(series)?.model));
    let models = models.collect::<Result<BTreeSet<&str>>>()?;
    figure.on_nic(spec, &models, &|bench| {
        let earlier = bench.measure(experiment, &grid, figure.gpu(), &mut Clients(bench))?;
        let timers = json!([{ "name": "window", "start": "the last client's first line, after a second", "stop": "the first one's last line" }]);
        run::report(experiment, how, &earlier, &Extra { timers, ..Extra::default() })
    })
}

/// Points of a server and its clients.
struct Clients<'a>(&'a ServerBench<'a>);

/// Answers of a client, as it says each second: when that was heard, and how many in all.
type Heard = Vec<(f64, u64)>;

/// What a client said, its last line, and its use of the CPU and answers between the first and last look.
struct HeardClient {
    heard: Heard,
    run: Value,
    used: Option<(ProcessUse, u64)>,
}

/// A look at a client, when it was taken, and the answers by then.
type Looked = (ProcessSnapshot, f64, u64);

impl run::Bench for Clients<'_> {
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let (bench, line) = (self.0, Line::of(&key.series)?);
        let mut point = bench.point(key, seconds);
        let log = |end: &str| bench.log(&format!("{}-{}-{end}", key.series, key.repetition));
        let options = server_options(bench.spec, &line, bench.figure.machine)?;
        let (mut server, address) = bench.listening(&options, &log("server"))?;
        let watch = ProcessSampler::start(server.process.look(), Duration::from_secs(1))?;
        let mut clients = Vec::new();
        for nth in 0..line.count {
            let options = client_options(bench.spec, &line, seconds)?;
            clients.push(bench.client(line.model, &address, &options, &log(&format!("client-{nth}")))?);
        }
        let (since, late) = (Instant::now(), watch.seconds());
        let heard = std::thread::scope(|scope| {
            let hear = |client| scope.spawn(move || hear(client, since, seconds));
            let hearing: Vec<_> = clients.iter_mut().map(hear).collect();
            let joined = hearing.into_iter().map(|one| one.join().expect("it does not panic"));
            joined.collect::<Result<Vec<HeardClient>>>()
        })?;
        let looks: Vec<_> = watch.end().into_iter().map(|(at, look)| (at - late, look)).collect();
        bench::end(&mut server)?;
        fill(&mut point, &heard, &looks, seconds);
        Ok(point)
    }
}

/// Reads a client's lines to their end.
fn hear(client: &mut Started, since: Instant, seconds: f64) -> Result<HeardClient> {
    let (mut heard, mut looks) = (Heard::new(), None::<[Looked; 2]>);
    let (mut look, client) = (client.process.look(), &mut client.program);
    let limit = Duration::from_secs_f64(seconds + LEAD) + BEGIN;
    loop {
        let said = client.json_of(&["live", "run"], SILENCE).context("a client")?;
        if said["kind"] == "run" {
            bench::ended(client, &said, since)?;
            let used = looks.map(|[first, last]| {
                (last.0.since(&first.0, last.1 - first.1), last.2.saturating_sub(first.2))
            });
            return Ok(HeardClient { heard, run: said, used });
        }
        let answered = said["answered"].as_u64().context("a client's line `live` has no answered")?;
        let at = since.elapsed().as_secs_f64();
        heard.push((at, answered));
        // On another host it may have ended since.
        if let Ok(look) = look() {
            looks = Some(match looks {
                Some([first, (mut last, ..)]) => {
                    last.update(look);
                    [first, (last, at, answered)]
                }
                None => [(look.clone(), at, answered), (look, at, answered)],
            });
        }
        ensure!(since.elapsed() < limit, "a client still runs; see {}", client.log.display());
    }
}

/// When all were served, and each one's answers a second then; `None` if a client said under two lines.
fn together(heard: &[&Heard]) -> Option<([f64; 2], Vec<f64>)> {
    let ends =
        |of: &dyn Fn(&Heard) -> Option<f64>| heard.iter().map(|one| of(one)).collect::<Option<Vec<f64>>>();
    let begin = ends(&|one| Some(one.first()?.0))?.into_iter().fold(f64::MIN, f64::max);
    let end = ends(&|one| Some(one.last()?.0))?.into_iter().fold(f64::MAX, f64::min);
    let rate = |one: &&Heard| {
        let first = one.iter().find(|(at, _)| *at >= begin)?;
        let last = one.iter().rev().find(|(at, _)| *at <= end)?;
        (last.0 > first.0).then(|| last.1.saturating_sub(first.1) as f64 / (last.0 - first.0))
    };
    Some(([begin, end], heard.iter().map(rate).collect::<Option<Vec<f64>>>()?))
}

/// Puts the clients' use per answer, and the server's while all were served, into a point.
fn fill_use(
    point: &mut Point,
    clients: &[HeardClient],
    looks: &[(f64, ProcessSnapshot)],
    [begin, end]: [f64; 2],
) {
    let used: Option<Vec<_>> = clients.iter().map(|one| one.used.as_ref()).collect();
    let used = used.unwrap_or_default();
    let answers = used.iter().map(|(_, answers)| answers).sum::<u64>() as f64;
    let ms = |of: fn(&ProcessUse) -> f64| used.iter().map(|(used, _)| of(used)).sum::<f64>() * 1e3 / answers;
    if answers > 0.0 {
        point.values.insert("client_ms".into(), ms(|used| used.own));
        point.values.insert("client_nic_ms".into(), ms(|used| used.nic));
    }
    let mut inside = looks.iter().filter(|(at, _)| (begin..=end).contains(at));
    if let (Some(first), Some(last)) = (inside.next(), inside.next_back()) {
        let used = last.1.since(&first.1, last.0 - first.0);
        point.values.insert("server_cores".into(), used.own_cores());
        point.values.insert("server_nic_cores".into(), used.nic_cores());
    }
}

/// Puts the numbers of a point into it. `looks`: at the server.
fn fill(point: &mut Point, clients: &[HeardClient], looks: &[(f64, ProcessSnapshot)], seconds: f64) {
    let heard: Vec<&Heard> = clients.iter().map(|one| &one.heard).collect();
    point.missing = clients.iter().find_map(|one| missing(&one.run));
    let (ends, rates) = together(&heard).unwrap_or_default();
    let window = ends[1] - ends[0];
    fill_use(point, clients, looks, ends);
    if window < seconds / 2.0 {
        let why = format!("all clients were served together for {window:.1} s, not {seconds}");
        point.missing.get_or_insert(why);
    }
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    let per_s = rates.iter().sum::<f64>();
    if least == 0.0 {
        point.missing.get_or_insert("a client had no answer while all were served".into());
    }
    if per_s > 0.0 && least > 0.0 {
        let values = [
            ("per_s", per_s),
            ("least_per_s", least),
            ("most_per_s", most),
            ("spread", most / least),
            ("window_s", window),
        ];
        point.values.extend(values.map(|(name, value)| (name.to_owned(), value)));
    }
    point.detail = json!({ "rates": rates });
}

/// What would be measured and judged (INV-10).
fn dry_run(experiment: &Experiment, options: &Options) -> Result<String> {
    let (spec, grid) = (&experiment.spec, experiment.spec.grid(options.extent()));
    let (count, repeat, seconds) = (grid.series.len(), grid.repeat, grid.seconds);
    let points =
        format!(": {count} series × {repeat} repetitions, each of {seconds} s and {LEAD} s more to begin");
    let commands = |series: &String| {
        let line = Line::of(series)?;
        let [server, client] =
            [server_options(spec, &line, options.machine())?, client_options(spec, &line, seconds)?]
                .map(|words| words.join(" "));
        Ok(vec![
            format!("{series}: inference-server --listen … {server}"),
            format!("  {} × doorbell-client --connect … {client}", line.count),
        ])
    };
    bench::dry_run((experiment, options), [&points, ""], (&grid, &[]), &commands)
}

#[cfg(test)]
mod tests {
    use experiment::spec::Extent;
    use measure::{Label, Provenance};

    use super::super::tests::{Stage, how};
    use super::*;
    use crate::workspace;

    fn bench_clients() -> Experiment {
        Experiment::read(&workspace::root().join("experiments"), "bench-clients").unwrap()
    }

    #[test]
    fn rates_are_those_of_the_time_in_which_all_are_served() {
        let early: Heard = vec![(1.0, 100), (2.0, 200), (3.0, 250), (4.0, 300), (5.0, 400)];
        let late: Heard = vec![(2.5, 10), (3.5, 60), (4.5, 110), (9.0, 1000)];
        // From 2.5 to 5 seconds: the early one's lines at 3 and 5, the late one's at 2.5 and 4.5.
        assert_eq!(together(&[&early, &late]), Some(([2.5, 5.0], vec![75.0, 50.0])));
        assert_eq!(together(&[&early, &vec![(6.0, 1)]]), None);
        assert_eq!(together(&[&early, &Heard::new()]), None);
    }

    #[test]
    fn a_point_says_the_sum_and_the_spread_and_what_makes_it_none() {
        let experiment = bench_clients();
        let key = experiment.spec.grid(Extent::Normal).keys().remove(0);
        let run = |wrong: u64| json!({ "sent": 9, "reference": true, "wrong": wrong, "lost": 0, "duplicate": 0, "refused": {} });
        // The first and the last one lie outside of the time in which all are served.
        let looks = [(0.5, 0), (1.5, 100), (2.5, 150), (3.5, 900)];
        let looks = looks.map(|(at, ticks)| (at, ProcessSnapshot::after(ticks)));
        let of = |clients: &[(Heard, Value)]| {
            let provenance = Provenance::of(workspace::revision(), &[]);
            let mut point = Point::new("bench-clients", key.clone(), Label::Emulated, provenance);
            let used = ProcessUse { own: 0.22, nic: 0.11, ..ProcessUse::default() };
            let client = |(heard, run): &(Heard, Value)| HeardClient {
                heard: heard.clone(),
                run: run.clone(),
                used: Some((used.clone(), heard[heard.len() - 1].1 - heard[0].1)),
            };
            fill(&mut point, &clients.iter().map(client).collect::<Vec<_>>(), &looks, 2.0);
            point
        };
        let both = [(vec![(1.0, 0), (3.0, 120)], run(0)), (vec![(1.0, 0), (3.0, 100)], run(0))];
        let point = of(&both);
        assert_eq!(
            (point.values["per_s"], point.values["spread"], point.missing.as_deref()),
            (110.0, 1.2, None)
        );
        assert!(experiment.spec.values.iter().all(|name| point.values.contains_key(name)));
        // 220 answers: of both clients, 440 and 220 ms.
        assert_eq!([point.values["client_ms"], point.values["client_nic_ms"]], [2.0, 1.0]);
        assert_eq!([point.values["server_cores"], point.values["server_nic_cores"]], [0.5, 0.0]);
        let bad = of(&[both[0].clone(), (vec![(1.0, 0), (3.0, 100)], run(2))]);
        assert_eq!(bad.missing.as_deref(), Some("2 wrong of 9 requests"));
        let starved = of(&[both[0].clone(), (vec![(1.0, 7), (3.0, 7)], run(0))]);
        assert_eq!(starved.missing.as_deref(), Some("a client had no answer while all were served"));
        assert!(starved.values.values().all(|value| value.is_finite()));
        let apart = of(&[both[0].clone(), (vec![(2.5, 0), (9.0, 100)], run(0))]);
        assert_eq!(apart.missing.as_deref(), Some("all clients were served together for 0.0 s, not 2"));
    }

    #[test]
    fn as_many_clients_are_started_as_the_series_says() {
        let stage = Stage::new("clients", |text| {
            text.replace(r#""seconds":1.0"#, r#""seconds":1.0,"answered":10"#)
                .replace(r#""seconds":2.0"#, r#""seconds":2.0,"answered":30"#)
                // Until all have said their first line.
                .replace(
                    "sleep 1\n",
                    "echo >> FOLDER/begun; while [ $(wc -l < FOLDER/begun) -lt 64 ]; do sleep 0.2; done\n\
                     for n in 1 2 3; do sleep 0.7; echo \"{\\\"kind\\\":\\\"live\\\",\\\"answered\\\":1$n}\"; done\n",
                )
        });
        let mut experiment = bench_clients();
        experiment.spec.keep(|series| series == "gpu-64-squeezenet-1.1");
        let mut grid = experiment.spec.grid(Extent::Normal);
        (grid.repeat, grid.seconds) = (1, 0.5);
        experiment.spec.set_grid(grid);
        let how = how(stage.0.join("out"), Extent::Normal);
        execute(&experiment, &ServerFigure::of_tests(&stage.0, how, Machine::Gpu)).unwrap();
        let asked = std::fs::read_to_string(stage.0.join("client-options")).unwrap();
        assert!(asked.lines().count() == 64 && asked.contains("--slots 1 "), "{asked}");
        let compared = asked.lines().filter(|line| line.contains("--reference")).count();
        assert_eq!((compared, stage.references()), (64, ["squeezenet-1.1"].map(str::to_owned).to_vec()));
        let [point] = <[Point; 1]>::try_from(stage.points()).unwrap();
        assert_eq!(point.detail["rates"].as_array().map(Vec::len), Some(64));
    }
}
