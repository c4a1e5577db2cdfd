//! One point of a transfer: a receiver, a sender, and their output: `Bench::measure` of figures 4 and 5.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use experiment::point::{Key, Point, poster};
use experiment::spec::Extent;
use experiment::{Spec, run};
use measure::{Label, Part, Provenance};
use serde::Deserialize;

use super::cpu::ProcessSnapshot;
use super::nic::{Nic, Peer, Programs, Receiver};
use crate::descendants::descendants;
use crate::process::{Ended, JsonProgram, WAIT};
use crate::refused::refused;

/// How long a sender's result may take beside the time of posting: it waits for completions as long as one
/// comes within 30 s, and then up to a minute for the receiver's counts (`apps/generator/README.md`).
const RESULT: Duration = Duration::from_secs(120);

/// What a spec calls such points.
pub const APP: &str = "generator";

/// `[options]` of a spec whose program is the generator.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Whether the posting code is also compared within one process.
    #[serde(default)]
    pub bench_post: bool,
    /// Options of the generator, name → value.
    generator: toml::Table,
    /// Bytes of messages that both ends together have in use, for every poster: bounds window and burst of
    /// large messages, see [`Transfer::in_flight`]. Without it the generator chooses the window.
    working_set_bytes: Option<u64>,
    /// Working set of messages below `helped_from_bytes` of which the other one holds less than two bursts:
    /// their bursts are short in any case, and this one fits into one core's own cache.
    large_working_set_bytes: Option<u64>,
    /// Payloads that the software NIC's helpers copy (`copy_threads` of nic.toml), as far as it has some.
    helped_from_bytes: Option<u64>,
}

/// Outstanding messages of a point, and how many of them a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// At most, a power of two.
    pub window: u32,
    /// Posted and timed together, and completed by one CQE.
    pub batch: u32,
}

/// Windows of messages that the generator keeps: two of source slots, one of target slots.
const WINDOWS_IN_USE: u64 = 3;
/// The generator's own window for small messages.
const MOST_IN_FLIGHT: u64 = 512;

/// The factor that is every transfer's x.
const PAYLOAD: &str = "payload_bytes";
/// The other factor: requests that a point hands over in one call.
const LIST: &str = "list";

impl Transfer {
    /// Of a spec. Error: another program, an unknown option, or a grid that is not of payloads and lists.
    pub fn of(spec: &Spec) -> Result<Transfer> {
        ensure!(spec.app == APP, "{}: no program `{}` is known to measure", spec.name, spec.app);
        grid_of_payloads(spec)?;
        spec.options.clone().try_into().with_context(|| format!("{}: options", spec.name))
    }

    /// Messages of a whole burst, whatever their size.
    pub fn burst(&self) -> u32 {
        let batch = self.generator.get("batch").and_then(toml::Value::as_integer);
        batch.and_then(|batch| u32::try_from(batch).ok()).unwrap_or(1)
    }

    /// Window and burst of messages of this size, if the spec bounds them: the largest power of two that the
    /// working set holds, at least two messages.
    pub fn in_flight(&self, payload_bytes: u64) -> Option<InFlight> {
        let fitting = |bytes: u64| -> u32 {
            1 << (bytes / WINDOWS_IN_USE / payload_bytes.max(1)).clamp(2, MOST_IN_FLIGHT).ilog2()
        };
        let copied_by_one = self.helped_from_bytes.is_none_or(|from| payload_bytes < from);
        let window = match (fitting(self.working_set_bytes?), self.large_working_set_bytes) {
            (window, Some(bytes)) if window < 2 * self.burst() && copied_by_one => fitting(bytes),
            (window, _) => window,
        };
        Some(InFlight { window, batch: self.burst().min(window / 2) })
    }

    /// What the sender is told beside its peer and its device.
    pub fn sender_options(
        &self,
        spec: &Spec,
        series: &str,
        payload_bytes: u64,
        list: u64,
        seconds: f64,
    ) -> Vec<String> {
        let own = spec.series.get(series).map(|own| &own.options);
        let has_own = |name: &str| own.is_some_and(|own| own.contains_key(name));
        let in_flight = self.in_flight(payload_bytes);
        // One call hands over a burst at most.
        let list = in_flight.map_or(list, |in_flight| list.min(in_flight.batch.into()));
        let mut options = Vec::new();
        let mut option = |name: &str, value: String| options.extend([format!("--{name}"), value]);
        let mut chosen = vec![
            ("poster", series.to_owned()),
            ("payload", payload_bytes.to_string()),
            ("doorbell-batch", list.to_string()),
            ("seconds", seconds.to_string()),
        ];
        if let Some(InFlight { window, batch }) = in_flight {
            chosen.extend([("window", window.to_string()), ("batch", batch.to_string())]);
        }
        for (name, value) in chosen.iter().filter(|(name, _)| !has_own(name)) {
            option(name, value.clone());
        }
        let is_chosen = |name: &str| chosen.iter().any(|(chosen, _)| *chosen == name);
        let general = self.generator.iter().filter(|(name, _)| !has_own(name) && !is_chosen(name));
        for (name, value) in own.into_iter().flatten().chain(general) {
            option(name, value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
        option("json", "-".to_owned());
        options
    }

    /// Window and burst that a point's sender is told; the generator chooses others by size and revision.
    pub fn asked(&self, spec: &Spec, key: &Key) -> BTreeMap<String, u64> {
        let options = self.sender_options(spec, &key.series, key.x, list(key), 0.0);
        let told = |name: &str| {
            let at = options.iter().position(|word| word.strip_prefix("--") == Some(name))?;
            Some((name.to_owned(), options.get(at + 1)?.parse().ok()?))
        };
        ["window", "batch"].into_iter().filter_map(told).collect()
    }
}

/// Refuses a grid whose x is not the payload, that has no lists, or has a factor no sender option takes.
fn grid_of_payloads(spec: &Spec) -> Result<()> {
    let wrong = |what: String| Err(refused(format!("experiments/{}/spec.toml: {what}", spec.name)));
    if spec.x.as_deref() != Some(PAYLOAD) {
        let x = spec.x.as_ref().map_or("there is no x".to_owned(), |x| format!("x is `{x}`"));
        return wrong(format!(
            "{x}, but the generator sweeps the payload; write x = \"{PAYLOAD}\", and its sizes in [grid]"
        ));
    }
    let factors = spec.grid(Extent::Normal).factors;
    if !factors.contains_key(LIST) {
        return wrong(format!("[grid] has no `{LIST}`; write {LIST} = [1] there to post one by one"));
    }
    match factors.keys().find(|name| ![PAYLOAD, LIST].contains(&name.as_str())) {
        None => Ok(()),
        Some(other) => wrong(format!(
            "[grid] sweeps `{other}`, but the generator's factors are `{PAYLOAD}` and `{LIST}`; write one value of it in \
             [options.generator], or a series for each value"
        )),
    }
}

/// Requests that a point hands over in one call.
fn list(key: &Key) -> u64 {
    key.at.get(LIST).copied().unwrap_or(1)
}

/// What a run needs beside its key.
pub struct Bench<'a> {
    pub spec: &'a Spec,
    pub transfer: Transfer,
    pub programs: &'a Programs,
    pub nic: &'a Nic,
    pub receiver: Receiver,
    pub peer: Option<Peer<'a>>,
    pub logs: &'a Path,
    pub provenance: &'a Provenance,
    /// Rate of the port, where it means something.
    pub link_gbps: Option<f64>,
}

/// The sender's last line, as far as a point needs to know it; all of it is kept as the point's `detail`.
#[derive(Debug, Deserialize)]
struct Run {
    window: u64,
    batch: u64,
    posted: u64,
    completed: u64,
    received: u64,
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

/// Distribution of the bursts' means.
#[derive(Debug, Deserialize)]
struct Bursts {
    p50_ns: f64,
}

impl Run {
    /// What was counted, and what is missing of it; `None`: every message that was posted completed, arrived,
    /// and was right where it was checked.
    fn missing(&self) -> Option<String> {
        if self.content_ok && self.posted == self.completed {
            return None;
        }
        let incomplete = self.posted.saturating_sub(self.completed);
        let counts = [(incomplete, "without completion"), (self.lost, "lost"), (self.torn, "torn")];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let mut missing: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        if missing.is_empty() {
            missing.push(if self.verified == 0 { "none checked".into() } else { "the counts differ".into() });
        }
        let Run { posted, completed, received, .. } = self;
        let why = self.error.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let missing = missing.join(", ");
        Some(format!("posted {posted}, completed {completed}, received {received} ({missing}){why}"))
    }
}

impl run::Bench for Bench<'_> {
    fn asked(&self, key: &Key) -> BTreeMap<String, u64> {
        self.transfer.asked(self.spec, key)
    }

    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let series = &key.series;
        let mut receiver = None;
        self.receiver.renew(self.nic, self.peer, self.logs)?;
        let address = match &self.receiver {
            Receiver::Standing { address, .. } => address.clone(),
            Receiver::Each => {
                let mut command = self.nic.end_of_point(self.programs)?;
                command.args(["--listen", "127.0.0.1:0", "--nic", self.nic.device(), "--json", "-"]);
                let mut session = JsonProgram::start(&mut command, &self.logs.join("receiver.log"))?;
                let address = session.address("the receiver", WAIT)?;
                receiver = Some(session);
                address
            }
        };
        let mut command = self.nic.end_of_point(self.programs)?;
        command.args(["--connect", &address, "--nic", self.nic.device()]);
        command.args(self.transfer.sender_options(self.spec, series, key.x, list(key), seconds));
        let mut sender = JsonProgram::start(&mut command, &self.logs.join("sender.log"))?;
        let (answer, posting_threads) = watch(&mut sender, RESULT + Duration::from_secs_f64(seconds))?;
        let run: Run = serde_json::from_value(answer.clone()).context("reading the sender's result")?;
        match sender.child.wait(WAIT)? {
            _ if run.interrupted => bail!("stopped by a signal"),
            // 1: something was lost or torn, which the point says.
            Ended::Well | Ended::Status(1) => {}
            Ended::Status(2) => {
                return Err(refused(run.error.unwrap_or_else(|| "the generator refused".into())));
            }
            ended => bail!("the sender {ended}; see {}", self.logs.join("sender.log").display()),
        }
        // It ends by itself when its sender has gone.
        if let Some(mut receiver) = receiver {
            receiver.child.wait(WAIT)?;
        }
        // Whether a GPU took part is the series' own matter: a CPU's numbers are no weaker for want of one.
        let provenance = Provenance { gpu: poster(series), ..self.provenance.clone() };
        let parts = self.spec.needs.iter().map(|need| need.part).filter(|part| *part != Part::Gpu);
        let parts = parts.chain((provenance.gpu != Label::None).then_some(Part::Gpu));
        let posting_threads = if provenance.gpu == Label::None { posting_threads } else { launched(series) };
        // Without a count of the receiver no rate was measured.
        let counted = |rate: f64| (run.received > 0).then_some(rate);
        let numbers = [
            ("payload_gbps", counted(run.payload_gbps)),
            ("wire_gbps", counted(run.wire_gbps)),
            ("msgs_per_s", counted(run.msgs_per_s)),
            // The mean also holds whatever else the core did meanwhile.
            ("post_ns", Some(run.post.as_ref().map_or(run.post_ns, |bursts| bursts.p50_ns))),
            ("post_mean_ns", Some(run.post_ns)),
            ("posting_threads", posting_threads.map(f64::from)),
            ("link_gbps", self.link_gbps),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let label = Label::weakest(parts.map(|part| provenance.label(&[part])));
        Ok(Point {
            seconds,
            settings: [("window".to_owned(), run.window), ("batch".to_owned(), run.batch)].into(),
            values: numbers.collect(),
            missing: run.missing(),
            detail: answer,
            ..Point::new(&self.spec.name, key.clone(), label, provenance)
        })
    }
}

/// Threads that a kernel posts with on the one queue pair; `None`: its lanes act as one.
fn launched(series: &str) -> Option<u32> {
    matches!(series, "gpu-thread" | "gpu-original").then_some(1)
}

/// Waits for the sender's result, and counts its busy threads meanwhile: the NIC's own are not among them.
fn watch(sender: &mut JsonProgram, limit: Duration) -> Result<(serde_json::Value, Option<u32>)> {
    let since = Instant::now();
    let mut ticks = Vec::new();
    loop {
        if let Some(answer) = sender.try_json(&["run"], Duration::from_millis(10))? {
            return Ok((answer, busy(&ticks)));
        }
        // The last look before the end counts: ticks only grow.
        let seen = thread_ticks(sender.child.0.id());
        ticks = if seen.is_empty() { ticks } else { seen };
        let (log, seconds) = (sender.log.display(), limit.as_secs());
        ensure!(since.elapsed() <= limit, "the sender gave no result within {seconds} s; see {log}");
    }
}

/// CPU ticks of each thread of the generator at or below `process`, the NIC's threads left out.
fn thread_ticks(process: u32) -> Vec<u64> {
    let name = |process: &u32| fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let candidates = descendants(process).into_iter().chain([process]);
    let generator = candidates.into_iter().find(|process| name(process).trim() == "generator");
    let looked = generator.map(|generator| ProcessSnapshot::at(Path::new(&format!("/proc/{generator}"))));
    looked.and_then(Result::ok).map_or_else(Vec::new, |look| look.own_ticks())
}

/// Threads that used at least a tenth of what the busiest one used. `None`: no thread was seen at work.
fn busy(ticks: &[u64]) -> Option<u32> {
    let most = ticks.iter().copied().max().filter(|most| *most > 0)?;
    Some(ticks.iter().filter(|ticks| **ticks * 10 >= most).count() as u32)
}

#[cfg(test)]
mod tests {
    use experiment::refused::Refused;
    use experiment::spec::Series;

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

    fn transfer(name: &str) -> (Spec, Transfer) {
        let spec = Spec::read(&crate::workspace::root().join("experiments").join(name)).unwrap();
        let transfer = Transfer::of(&spec).unwrap();
        (spec, transfer)
    }

    #[test]
    fn a_grid_that_is_not_of_payloads_is_refused_with_what_to_write() {
        let spec = |x: &str, factors: &str| {
            let less = "{ repeat = 1, seconds = 0.1 }";
            let text = format!(
                "title = \"t\"\napp = \"generator\"\n{x}\nvalues = [\"post_ns\"]\nrange = \"post_ns\"\nquick = {less}\n\
                 full = {less}\noptions = {{ generator = {{}} }}\n\
                 grid = {{ series = [\"cpu-shim\"], {factors}, repeat = 1, seconds = 0.1 }}\n"
            );
            Spec::parse("e", &text).unwrap()
        };
        let (x, both) = ("x = \"payload_bytes\"", "payload_bytes = [64], list = [1]");
        Transfer::of(&spec(x, both)).unwrap();
        for (x, factors, words) in [
            (
                "x = \"list\"",
                both,
                "x is `list`, but the generator sweeps the payload; write x = \"payload_bytes\"",
            ),
            ("x = \"size\"", "size = [64], list = [1]", "x is `size`"),
            ("", both, "there is no x"),
            (x, "payload_bytes = [64]", "[grid] has no `list`; write list = [1]"),
            (x, "payload_bytes = [64], list = [1], queues = [2]", "[grid] sweeps `queues`"),
        ] {
            let error = Transfer::of(&spec(x, factors)).unwrap_err();
            let said = error.to_string();
            assert!(error.is::<Refused>() && said.starts_with("experiments/e/spec.toml: "), "{said}");
            assert!(said.contains(words) && said.lines().count() == 1, "{words}: {said}");
        }
    }

    #[test]
    fn a_point_says_what_it_lacks() {
        let said = |posted, completed, received, [lost, torn, verified]: [u64; 3], content_ok| {
            let said = serde_json::json!({
                "window": 64, "batch": 32, "posted": posted, "completed": completed, "received": received, "verified": verified,
                "torn": torn, "lost": lost, "content_ok": content_ok, "msgs_per_s": 1, "payload_gbps": 1, "wire_gbps": 1,
                "post_ns": 1, "interrupted": false,
            });
            serde_json::from_value::<Run>(said).unwrap()
        };
        let run = |posted, completed, received, checked, content_ok| {
            said(posted, completed, received, checked, content_ok).missing()
        };
        assert_eq!(run(10, 10, 10, [0, 0, 10], true), None);
        for (missing, words) in [
            // The drain ended too early: everything had arrived.
            (
                run(256, 128, 256, [0, 0, 9], false),
                "posted 256, completed 128, received 256 (128 without completion)",
            ),
            // The generator's rule compares what completed with what arrived.
            (run(10, 9, 9, [0, 0, 9], true), "received 9 (1 without completion)"),
            (run(10, 10, 10, [2, 1, 9], false), "(2 lost, 1 torn)"),
            (run(10, 10, 10, [0, 0, 0], false), "(none checked)"),
            (run(10, 10, 11, [0, 0, 9], false), "(the counts differ)"),
            (
                Run { error: Some("none of them for 30s".into()), ..said(10, 9, 9, [0, 0, 9], true) }
                    .missing(),
                "(1 without completion): none of them for 30s",
            ),
        ] {
            assert!(missing.as_ref().is_some_and(|said| said.ends_with(words)), "{missing:?}");
        }
    }

    #[test]
    fn the_timed_burst_is_the_same_for_every_size_and_holds_whole_lists() {
        for figure in ["fig4", "fig5"] {
            let (spec, transfer) = transfer(figure);
            let batch = u64::from(transfer.burst());
            assert_eq!(batch, 32, "{figure}: README.md says so");
            assert!(
                spec.judges
                    .iter()
                    .chain(&spec.judges)
                    .any(|judges| judges.settings.get("batch") == Some(&batch))
            );
            let grid = spec.grid(Extent::Full);
            let others = grid.series.iter().flat_map(|series| grid.others(series));
            assert!(others.into_iter().all(|at| batch.is_multiple_of(at["list"])), "{figure}");
        }
        // Figure 5 is about that time.
        assert_eq!(transfer("fig5").1.in_flight(1 << 20), None);
    }

    #[test]
    fn large_messages_of_figure_4_stay_in_caches_and_small_ones_are_as_the_generator_has_them() {
        let (_, spec) = transfer("fig4");
        for (payload, window, batch) in [
            (64, 512, 32),
            (2048, 512, 32),
            (4096, 256, 32),
            (21_000, 64, 32),
            (22_040, 8, 4),
            (60_000, 4, 2),
            (65_536, 16, 8),
            (131_072, 8, 4),
            (262_144, 4, 2),
            (1 << 20, 2, 1),
        ] {
            assert_eq!(spec.in_flight(payload), Some(InFlight { window, batch }), "{payload} B");
            // Two windows and a message behind them at 1 MiB, else what README.md says.
            let used = u64::from(window) * WINDOWS_IN_USE * payload;
            let in_one_cache = (22_000..65_536).contains(&payload);
            let most = if in_one_cache { spec.large_working_set_bytes } else { spec.working_set_bytes };
            assert!(used <= most.unwrap() || window == 2, "{payload} B: {used}");
        }
        // One core's own cache on the machine that the README's numbers are of.
        assert!(spec.large_working_set_bytes.unwrap() < 2 << 20);
    }

    #[test]
    fn the_sender_is_told_everything_on_its_command_line() {
        let (mut spec, transfer) = transfer("fig4");
        let options = transfer.sender_options(&spec, "cpu-shim", 4096, 16, 0.5).join(" ");
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
        let options = toml::toml! { poster = "cpu-shim" batch = 16 };
        spec.series.insert("slow".into(), Series { options, ..Series::default() });
        let own = transfer.sender_options(&spec, "slow", 4096, 1, 0.5);
        let at = own.iter().position(|word| word == "--batch").unwrap();
        assert_eq!((own[at + 1].as_str(), own.iter().filter(|word| *word == &own[at]).count()), ("16", 1));
        assert!(own.windows(2).any(|pair| pair == ["--poster", "cpu-shim"]), "{own:?}");
    }

    #[test]
    fn each_point_of_figures_4_and_5_is_warmed_up_by_a_tenth_of_its_time_or_more() {
        for figure in ["fig4", "fig5"] {
            let (spec, transfer) = transfer(figure);
            for extent in [Extent::Smoke, Extent::Quick, Extent::Normal, Extent::Full] {
                let grid = spec.grid(extent);
                let seconds = grid.seconds;
                for series in &grid.series {
                    let options = transfer.sender_options(&spec, series, 4096, 1, seconds);
                    let at = options.iter().position(|word| word == "--warm-up").expect(series);
                    let warm_up: f64 = options[at + 1].parse().unwrap();
                    assert!(warm_up >= seconds / 10.0, "{figure}, {series}: {warm_up} s before {seconds} s");
                }
            }
        }
    }

    #[test]
    fn window_burst_and_doorbell_of_large_messages_are_the_same_for_every_poster() {
        let (spec, transfer) = transfer("fig4");
        for (series, list, doorbell) in [("cpu-shim", 1, 1), ("gpu-original", 1, 1), ("gpu-warp", 32, 8)] {
            let options = transfer.sender_options(&spec, series, 65_536, list, 0.5).join(" ");
            for part in ["--window 16 --batch 8".to_owned(), format!("--doorbell-batch {doorbell} ")] {
                assert_eq!(options.matches(&part).count(), 1, "{part} in {options}");
            }
            assert_eq!(options.matches("--batch").count(), 1, "{options}");
        }
    }
}
