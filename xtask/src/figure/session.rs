//! One point: a receiver, a sender, and what both said.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use measure::{Label, Part, Provenance};
use serde::Deserialize;

use super::nic::{Nic, Programs, Receiver};
use crate::process::{Ended, Speaking, WAIT, descendants};
use crate::refused::refused;
use experiment::Spec;
use experiment::point::{Bursts, Key, Point, poster};

/// How long a sender's result may take beside the time of posting: it waits for completions as long as one comes within
/// 30 s, and then up to a minute for the receiver's counts (`apps/generator/README.md`).
const RESULT: Duration = Duration::from_secs(120);

/// What a run needs beside its key.
pub struct Bench<'a> {
    /// The experiment.
    pub spec: &'a Spec,
    /// Our programs.
    pub programs: &'a Programs,
    /// The NIC.
    pub nic: &'a Nic,
    /// The receiver.
    pub receiver: &'a Receiver,
    /// Where logs go.
    pub logs: &'a Path,
    /// What every point carries.
    pub provenance: &'a Provenance,
    /// Rate of the port, where it means something.
    pub link_gbps: Option<f64>,
}

/// The sender's last line, as far as it goes into a point.
#[derive(Debug, Deserialize)]
struct Run {
    window: u32,
    batch: u32,
    posted: u64,
    completed: u64,
    received: u64,
    received_bytes: u64,
    verified: u64,
    torn: u64,
    lost: u64,
    content_ok: bool,
    msgs_per_s: f64,
    payload_gbps: f64,
    wire_gbps: f64,
    post_ns: f64,
    post: Option<Bursts>,
    interrupted: bool,
    error: Option<String>,
}

impl Bench<'_> {
    /// Measures one point.
    pub fn measure(&self, key: &Key, seconds: f64) -> Result<Point> {
        let (series, payload_bytes, list, repetition) = key;
        let mut receiver = None;
        let address = match self.receiver {
            Receiver::Standing { address, .. } => address.clone(),
            Receiver::Each => {
                let mut command = self.nic.generator(self.programs);
                command.args(["--listen", "127.0.0.1:0", "--nic", self.nic.device(), "--json", "-"]);
                let mut session = Speaking::start(&mut command, &self.logs.join("receiver.log"))?;
                let listening = session.json("listening", WAIT).context("starting the receiver")?;
                receiver = Some(session);
                listening["address"]
                    .as_str()
                    .context("the receiver does not say where it listens")?
                    .to_owned()
            }
        };
        let mut command = self.nic.generator(self.programs);
        command.args(["--connect", &address, "--nic", self.nic.device()]);
        command.args(sender_options(self.spec, series, *payload_bytes, *list, seconds));
        let mut sender = Speaking::start(&mut command, &self.logs.join("sender.log"))?;
        let (answer, posting_threads) = watch(&mut sender, RESULT + Duration::from_secs_f64(seconds))?;
        let run: Run = serde_json::from_value(answer).context("reading the sender's result")?;
        match sender.child.wait(WAIT)? {
            _ if run.interrupted => bail!("stopped by a signal"),
            // 1: something was lost or torn, which the point says.
            Ended::Well | Ended::Status(1) => {}
            Ended::Status(2) => {
                return Err(refused(run.error.unwrap_or_else(|| "the generator refused".into())));
            }
            ended => bail!("the sender {ended:?}; see {}", self.logs.join("sender.log").display()),
        }
        // It ends by itself when its sender has gone.
        if let Some(mut receiver) = receiver {
            receiver.child.wait(WAIT)?;
        }
        // Whether a GPU took part is the series' own matter: a CPU's numbers are no weaker for want of one.
        let provenance = Provenance { gpu: poster(series), ..self.provenance.clone() };
        let parts = self.spec.needs.iter().map(|need| need.part);
        let parts = parts.chain((provenance.gpu != Label::None).then_some(Part::Gpu));
        Ok(Point {
            figure: Some(self.spec.figure),
            series: series.clone(),
            payload_bytes: *payload_bytes,
            list: *list,
            repetition: *repetition,
            seconds,
            window: Some(run.window),
            batch: Some(run.batch),
            payload_gbps: run.payload_gbps,
            wire_gbps: run.wire_gbps,
            msgs_per_s: run.msgs_per_s,
            post_ns: run.post.map_or(run.post_ns, |bursts| bursts.p50_ns),
            post_mean_ns: run.post_ns,
            post: run.post,
            posted: run.posted,
            completed: run.completed,
            received: run.received,
            received_bytes: run.received_bytes,
            verified: run.verified,
            torn: run.torn,
            lost: run.lost,
            content_ok: run.content_ok,
            posting_threads: if provenance.gpu == Label::None { posting_threads } else { launched(series) },
            link_gbps: self.link_gbps,
            label: Label::weakest(parts.map(|part| provenance.label(&[part]))),
            provenance,
        })
    }
}

/// Threads that a kernel posts with on the one queue pair; `None`: its lanes act as one.
fn launched(series: &str) -> Option<u32> {
    matches!(series, "gpu-thread" | "gpu-original").then_some(1)
}

/// What the sender is told beside its peer and its device.
pub fn sender_options(spec: &Spec, series: &str, payload_bytes: u64, list: u32, seconds: f64) -> Vec<String> {
    let own = spec.series.get(series);
    let has_own = |name: &str| own.is_some_and(|own| own.contains_key(name));
    let in_flight = spec.in_flight(payload_bytes);
    // One call hands over a burst at most.
    let list = in_flight.map_or(list, |in_flight| list.min(in_flight.batch));
    let mut options = Vec::new();
    let mut option = |name: &str, value: String| options.extend([format!("--{name}"), value]);
    let mut chosen = vec![
        ("poster", series.to_owned()),
        ("payload", payload_bytes.to_string()),
        ("doorbell-batch", list.to_string()),
        ("seconds", seconds.to_string()),
    ];
    chosen.extend(in_flight.into_iter().flat_map(|in_flight| {
        [("window", in_flight.window.to_string()), ("batch", in_flight.batch.to_string())]
    }));
    for (name, value) in &chosen {
        if !has_own(name) {
            option(name, value.clone());
        }
    }
    let is_chosen = |name: &str| chosen.iter().any(|(chosen, _)| *chosen == name);
    let general = spec.generator.iter().filter(|(name, _)| !has_own(name) && !is_chosen(name));
    for (name, value) in own.into_iter().flatten().chain(general) {
        option(name, value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    option("json", "-".to_owned());
    options
}

/// Window and burst that the sender of a point is told; `None`: it chooses.
pub fn in_flight_told(
    spec: &Spec,
    series: &str,
    payload_bytes: u64,
    list: u32,
) -> (Option<u32>, Option<u32>) {
    let options = sender_options(spec, series, payload_bytes, list, 0.0);
    let told = |name: &str| {
        let at = options.iter().position(|word| word == name)?;
        options.get(at + 1)?.parse().ok()
    };
    (told("--window"), told("--batch"))
}

/// Waits for the sender's result, and counts its busy threads meanwhile: the NIC's own are not among them.
fn watch(sender: &mut Speaking, limit: Duration) -> Result<(serde_json::Value, Option<u32>)> {
    let since = Instant::now();
    let mut ticks = Vec::new();
    loop {
        if let Some(answer) = sender.try_json("run", Duration::from_millis(10))? {
            return Ok((answer, busy(&ticks)));
        }
        // The last look before the end counts: ticks only grow.
        let seen = thread_ticks(sender.child.0.id());
        if !seen.is_empty() {
            ticks = seen;
        }
        if since.elapsed() > limit {
            bail!("the sender gave no result within {} s; see {}", limit.as_secs(), sender.log.display());
        }
    }
}

/// CPU ticks of each thread of the generator at or below `process`, the NIC's threads left out.
fn thread_ticks(process: u32) -> Vec<u64> {
    let name = |process: &u32| fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let mut candidates = descendants(process);
    candidates.push(process);
    let Some(generator) = candidates.iter().find(|process| name(process).trim() == "generator") else {
        return Vec::new();
    };
    let tasks = fs::read_dir(format!("/proc/{generator}/task"))
        .map(|tasks| tasks.flatten().collect())
        .unwrap_or_else(|_| Vec::new());
    let ticks = |task: &fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (name, rest) = stat.rsplit_once(')')?;
        // utime and stime are the 14th and 15th field, the state after the name is the 3rd.
        let fields: Vec<u64> =
            rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
        (!name.contains("(softnic")).then(|| fields.iter().sum())
    };
    tasks.iter().filter_map(ticks).collect()
}

/// Threads that used at least a tenth of what the busiest one used. `None`: no thread was seen at work.
fn busy(ticks: &[u64]) -> Option<u32> {
    let most = ticks.iter().copied().max().filter(|most| *most > 0)?;
    Some(ticks.iter().filter(|ticks| **ticks * 10 >= most).count() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_thread_posts_nothing() {
        for (ticks, count) in [(&[50, 0, 1][..], Some(1)), (&[50, 45], Some(2)), (&[0, 0], None), (&[], None)]
        {
            assert_eq!(busy(ticks), count, "{ticks:?}");
        }
    }

    #[test]
    fn what_the_gpu_was_is_the_posters_matter() {
        for (series, label) in [
            ("cpu-ibverbs", Label::None),
            ("cpu-shim", Label::None),
            ("gpu-thread", Label::Hardware),
            ("gpu-shared", Label::Hardware),
            ("host-twin", Label::Emulated),
        ] {
            assert_eq!(poster(series), label, "{series}");
        }
    }

    #[test]
    fn the_sender_is_told_everything_on_its_command_line() {
        let spec = Spec::read(&crate::workspace::root().join("experiments/fig4")).unwrap();
        let options = sender_options(&spec, "cpu-shim", 4096, 16, 0.5).join(" ");
        for part in [
            "--poster cpu-shim",
            "--payload 4096",
            "--doorbell-batch 16",
            "--seconds 0.5",
            "--op write",
            "--json -",
        ] {
            assert!(options.contains(part), "{part} in {options}");
        }
        // A series' own options come in the place of the general ones, each once.
        let mut spec = spec;
        spec.series.insert("slow".into(), toml::toml! { poster = "cpu-shim" batch = 16 });
        let own = sender_options(&spec, "slow", 4096, 1, 0.5);
        let at = own.iter().position(|word| word == "--batch").unwrap();
        assert_eq!((own[at + 1].as_str(), own.iter().filter(|word| *word == &own[at]).count()), ("16", 1));
        assert!(own.windows(2).any(|pair| pair == ["--poster", "cpu-shim"]), "{own:?}");
    }

    #[test]
    fn window_burst_and_doorbell_of_large_messages_are_the_same_for_every_poster() {
        let spec = Spec::read(&crate::workspace::root().join("experiments/fig4")).unwrap();
        for (series, list, doorbell) in [("cpu-shim", 1, 1), ("gpu-original", 1, 1), ("gpu-warp", 32, 8)] {
            let options = sender_options(&spec, series, 65_536, list, 0.5).join(" ");
            for part in ["--window 16 --batch 8".to_owned(), format!("--doorbell-batch {doorbell} ")] {
                assert_eq!(options.matches(&part).count(), 1, "{part} in {options}");
            }
            assert_eq!(options.matches("--batch").count(), 1, "{options}");
        }
    }
}
