//! One point of `bench-models`: ours, then each way of the peer, again and again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use experiment::Experiment;
use experiment::point::{Key, Point};
use experiment::run;
use experiment::statistics::spread;
use measure::{BackgroundLoad, Part, Provenance};
use serde_json::{Value, json};

use super::peer::{Peer, STARTED};
use crate::figure::models::Profiler;
use crate::refused::Refused;

/// How the peer runs a model on a GPU, and on the processor.
pub const WAYS: [&str; 4] = ["eager-nchw", "eager-nhwc", "compiled-nchw", "compiled-nhwc"];
pub const ON_THE_CPU: [&str; 1] = ["python"];
/// Longest that a point may take, so that `timeout 540 … --resume` measures one at least.
pub const POINT: Duration = Duration::from_secs(480);
/// Longest that the peer may take to answer, but to prepare a way.
const ANSWERED: Duration = Duration::from_secs(60);
/// What is kept of the profiler's line.
const SAID: [&str; 6] =
    ["libraries", "layout", "layout_periods_us", "weights", "arena_bytes", "arena_bound_bytes"];

/// Measures a point: ours, then each way of the peer, again and again.
pub struct Turns<'a> {
    pub experiment: &'a Experiment,
    pub profiler: Profiler<'a>,
    pub peer: Peer<'a>,
    /// Folder of the models' files.
    pub store: &'a Path,
    /// Repetitions.
    pub rounds: u32,
    /// Longest that a point may take.
    pub limit: Duration,
    pub provenance: &'a Provenance,
}

impl run::Bench for Turns<'_> {
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let label = self.provenance.label(&[Part::Gpu]);
        let mut point = Point::new(&self.experiment.spec.name, key.clone(), label, self.provenance.clone());
        point.seconds = seconds;
        let (others, before) = (BackgroundLoad::watch(), self.peer.used());
        match self.turns(&mut point) {
            Err(error) if error.is::<Refused>() => return Err(error),
            Err(error) => {
                // After an error of CUDA a process fails every request: the next point has a new process.
                self.peer.end();
                point.missing = Some(format!("{error:#}"));
            }
            Ok(()) => {}
        }
        // The peer runs on, so its time is not among that of children that ended.
        if let Some((process, seconds)) = self.peer.used() {
            let earlier = before.filter(|(one, _)| *one == process).map_or(0.0, |(_, seconds)| seconds);
            point.others = others.and_then(|others| others.cores_beside(seconds - earlier));
        }
        Ok(point)
    }
}

/// What a point is about.
struct Subject<'a> {
    model: &'a str,
    precision: &'a str,
    gpu: bool,
    seconds: f64,
    until: Instant,
}

impl Subject<'_> {
    /// Time that is left of the point's. Error: none is.
    fn left(&self) -> Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the time that a point may take is over");
        Ok(left)
    }
}

/// Numbers of one repetition, or of a part of it.
type Numbers = BTreeMap<String, f64>;

impl Turns<'_> {
    fn turns(&mut self, point: &mut Point) -> Result<()> {
        let (kind, model) = point.series.split_once('/').context("a series is PRECISION/MODEL")?;
        let precision = kind.strip_prefix("gpu-");
        let subject = &Subject {
            model,
            precision: precision.unwrap_or("fp32"),
            gpu: precision.is_some(),
            seconds: point.seconds,
            until: Instant::now() + self.limit,
        };
        let (ways, prepared, failed) = self.prepare(subject)?;
        ensure!(!ways.is_empty(), "the peer prepared none of its ways: {failed:?}");
        let tensors = &self.profiler.logs.join("tensors");
        let (mut rounds, mut line, mut allowed) = (Vec::new(), Value::Null, 0.0);
        for round in 0..self.rounds {
            let outputs = (round == 0).then_some(&**tensors);
            let mut found;
            (line, found) = self.our_turn(subject, outputs)?;
            if round == 0 {
                if !subject.gpu {
                    self.same_onnx_runtime(&line)?;
                }
                found.extend(found.get("start_s").map(|&first| ("first_start_s".into(), first)));
                let apart;
                (apart, allowed) = self.compare(subject, &ways, tensors)?;
                found.extend(apart);
            }
            self.their_turn(subject, &ways, &mut found)?;
            rounds.push(found);
        }
        let _ = fs::remove_dir_all(tensors);
        for name in rounds.iter().flat_map(Numbers::keys) {
            let all: Vec<f64> = rounds.iter().filter_map(|round| round.get(name).copied()).collect();
            let Some([median, least, most]) = spread(&all) else { continue };
            point.spread.insert(name.clone(), [least, most]);
            point.values.insert(name.clone(), median);
        }
        let ours: BTreeMap<&str, &Value> = SAID.iter().map(|name| (*name, &line[*name])).collect();
        let period = |way: &&str| point.values.get(&period_name(way)).copied().unwrap_or(f64::MAX);
        let fastest = ways.iter().min_by(|one, other| period(one).total_cmp(&period(other)));
        point.detail = json!({
            "rounds": rounds, "fastest": fastest, "failed": failed, "prepare_s": prepared,
            "ours": ours, "timer": line["timer"], "allowed_difference": allowed,
        });
        Ok(())
    }

    /// The ways that the peer prepared, how long each took it, and why it did not prepare the others.
    fn prepare(
        &mut self,
        subject: &Subject,
    ) -> Result<(Vec<&'static str>, Value, BTreeMap<&'static str, String>)> {
        let file = self.store.join(format!("{}.seeded.onnx", subject.model));
        let threads = self.provenance.cores.max(1);
        let mut ways = if subject.gpu { WAYS.to_vec() } else { ON_THE_CPU.to_vec() };
        let (mut prepared, mut failed, mut at) = (BTreeMap::new(), BTreeMap::new(), 0);
        match self.peer.ask(&json!({ "do": "forget" }), ANSWERED) {
            Err(error) if error.is::<Refused>() => return Err(error),
            // A new process has nothing to free.
            Err(_) => self.peer.end(),
            Ok(_) => {}
        }
        while let Some(&way) = ways.get(at) {
            let precision = subject.precision;
            let request = json!({
                "do": "prepare", "file": file, "precision": precision, "way": way, "threads": threads,
            });
            let begin = STARTED.min(subject.left()?);
            let started = if self.peer.is_lost() { self.peer.start(begin).map(drop) } else { Ok(()) };
            // A time-out ends the process. The other half is for its earlier ways, which are prepared again.
            let (limit, since) = (subject.left()? / 2, Instant::now());
            match started.and_then(|()| self.peer.ask(&request, limit)) {
                Ok(answer) => {
                    prepared.insert(way, answer["prepare_s"].clone());
                    at += 1;
                }
                Err(error) => {
                    let late = if since.elapsed() < limit { "" } else { ": half of what a point had left" };
                    failed.insert(ways.remove(at), format!("{error:#}{late}"));
                    // What was prepared is lost with a process.
                    at = if self.peer.is_lost() { 0 } else { at };
                }
            }
        }
        Ok((ways, json!(prepared), failed))
    }

    /// Our line, and the numbers of this repetition: on a GPU of two runs, one launched by the host and one
    /// by itself.
    fn our_turn(&self, subject: &Subject, outputs: Option<&Path>) -> Result<(Value, Numbers)> {
        let line = self.ours(subject, subject.gpu.then_some("graph"), outputs)?;
        let number = |name: &str| line.pointer(name).and_then(Value::as_f64);
        let mut found = Numbers::from([("ours_us".to_owned(), median_us(&line)?)]);
        // What the profiler does not say is left out.
        if let (Some(bytes), Some(bound)) = (number("/arena_bytes"), number("/arena_bound_bytes")) {
            found.insert("arena_ratio".into(), bytes / bound.max(1.0));
        }
        let parts = line["start_ms"].as_object().into_iter().flatten();
        found.extend(parts.filter_map(|(part, ms)| Some((format!("start_ms/{part}"), ms.as_f64()?))));
        found.extend(number("/start_ms/total").map(|total| ("start_s".into(), total / 1e3)));
        if subject.gpu {
            let by_itself = self.ours(subject, Some("self"), None)?;
            found.insert("self_us".into(), median_us(&by_itself)?);
            if let (Some(turn), Some(span)) = (by_itself["turn_ns"].as_f64(), by_itself["span_ns"].as_f64()) {
                found.insert("over_span_us".into(), (turn - span) / 1e3);
            }
        }
        Ok((line, found))
    }

    /// Error: our engine and the peer's Python have two versions of ONNX Runtime.
    fn same_onnx_runtime(&self, line: &Value) -> Result<()> {
        let ours = line.pointer("/provenance/versions/onnxruntime").and_then(Value::as_str);
        let theirs = self.provenance.versions.get("onnxruntime-python").map(String::as_str);
        let [ours, theirs] = [ours, theirs].map(|version| version.unwrap_or("of unknown version"));
        ensure!(
            ours == theirs,
            "ONNX Runtime is {ours} in our engine and {theirs} in the peer's Python: unset \
             DOORBELL_ONNXRUNTIME, or install one version for both (--python names another Python)"
        );
        Ok(())
    }

    /// Difference of each way's outputs from ours, the largest of them, and the largest allowed. A larger one
    /// is kept as a number while another way agrees with ours. Error: none does.
    fn compare(&mut self, subject: &Subject, ways: &[&str], tensors: &Path) -> Result<(Numbers, f64)> {
        let [input, ours, theirs] =
            ["input-0.f32", "output-0.f32", "peer.f32"].map(|name| tensors.join(name));
        let (mut found, mut said, mut allowed) = (Numbers::new(), Vec::new(), 0.0);
        for way in ways {
            let request = json!({ "do": "output", "way": way, "input": input, "output": theirs });
            self.ask(subject, way, &request)?;
            let apart;
            (apart, allowed) = difference(subject.precision, &ours, &theirs)?;
            found.insert(difference_name(way), apart);
            said.push(format!("{way} by {apart:.1e}"));
        }
        ensure!(
            found.values().any(|apart| *apart <= allowed),
            "outputs differ from those of each way of the peer: {}, at most {allowed:.0e}",
            said.join(", ")
        );
        found.insert("difference".into(), found.values().copied().fold(0.0, f64::max));
        Ok((found, allowed))
    }

    /// Times each way, and adds what follows to our numbers.
    fn their_turn(&mut self, subject: &Subject, ways: &[&str], found: &mut Numbers) -> Result<()> {
        let (mut period, mut alone) = (f64::INFINITY, f64::INFINITY);
        for &way in ways {
            let request = json!({ "do": "time", "way": way, "seconds": subject.seconds });
            let answer = self.ask(subject, way, &request)?;
            let us =
                |name: &str| answer[name].as_f64().with_context(|| format!("the peer, {way}: no {name}"));
            (period, alone) = (period.min(us("period_us")?), alone.min(us("alone_us")?));
            found.insert(period_name(way), us("period_us")?);
        }
        found.insert("ratio".into(), found["ours_us"] / period);
        found.insert("peer_us".into(), period);
        if let Some(by_itself) = found.get("self_us").copied() {
            found.extend([("self_ratio".into(), by_itself / alone), ("peer_alone_us".into(), alone)]);
        }
        Ok(())
    }

    /// What the peer answers about a way.
    fn ask(&mut self, subject: &Subject, way: &str, request: &Value) -> Result<Value> {
        self.peer.ask(request, subject.left()?.min(ANSWERED)).with_context(|| format!("the peer, {way}"))
    }

    /// The profiler's line of one run. Error: also outputs that are not those of a run alone.
    fn ours(&self, subject: &Subject, launch: Option<&str>, outputs: Option<&Path>) -> Result<Value> {
        let engine = if subject.gpu { "cuda" } else { "cpu" };
        let [seconds, warmup] = [subject.seconds, subject.seconds / 4.0].map(|seconds| seconds.to_string());
        let threads = self.provenance.cores.max(1).to_string();
        let mut words =
            vec!["run", subject.model, "--engine", engine, "--seconds", &seconds, "--warmup", &warmup];
        match launch {
            Some(launch) => words.extend(["--precision", subject.precision, "--launch", launch]),
            None => words.extend(["--threads", &threads]),
        }
        let outputs = outputs.map(|folder| folder.display().to_string());
        words.extend(outputs.iter().flat_map(|folder| ["--outputs", folder]));
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let limit = self.profiler.limit.min(subject.left()?);
        let line = Profiler { limit, ..self.profiler }.line("ours", &words)?;
        let wrong = &line["outputs_wrong"];
        ensure!(wrong == 0, "{wrong} of {} outputs of ours are wrong", line["outputs_compared"]);
        Ok(line)
    }
}

/// What a way's period is called.
pub fn period_name(way: &str) -> String {
    format!("{}_us", way.replace('-', "_"))
}

/// What the difference of a way's outputs from ours is called.
pub fn difference_name(way: &str) -> String {
    format!("{}_difference", way.replace('-', "_"))
}

/// The median time of a run: from the end of one to the end of the next, where the GPU says that.
fn median_us(line: &Value) -> Result<f64> {
    let ns = line.pointer("/period/p50_ns").or_else(|| line.pointer("/run/p50_ns")).and_then(Value::as_f64);
    Ok(ns.context("the profiler's line has no run.p50_ns")? / 1e3)
}

/// How far two outputs are apart, and how far they may be: twice what `profiler check` allows, as both are
/// rounded.
pub fn difference(precision: &str, ours: &Path, theirs: &Path) -> Result<(f64, f64)> {
    let read = |path: &Path| -> Result<Vec<f64>> {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(bytes.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four))).collect())
    };
    let (ours, theirs) = (read(ours)?, read(theirs)?);
    let count = ours.len();
    ensure!(count > 0 && count == theirs.len(), "{count} outputs, the peer has {}", theirs.len());
    let rms =
        |values: &mut dyn Iterator<Item = f64>| (values.map(|x| x * x).sum::<f64>() / count as f64).sqrt();
    let apart = || ours.iter().zip(&theirs).map(|(one, other)| (one - other).abs());
    let whole = rms(&mut theirs.iter().copied());
    // `max` skips what is no number.
    ensure!(
        apart().all(f64::is_finite) && whole > 0.0,
        "an output is no number, or all of the peer's are zero"
    );
    let most = apart().fold(0.0, f64::max) / whole;
    Ok(match precision {
        "fp32" => (most, 2e-4),
        "tf32" => (rms(&mut apart()) / whole, 1e-2),
        _ => (rms(&mut apart()) / whole, 4e-2),
    })
}
