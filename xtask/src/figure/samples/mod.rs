//! Samples: what CPU, GPU, NIC and switch did while each point of a figure was measured (`docs/samples.md`).
//!
//! A thread reads once a second, counters are read before and after the point. The samples decide nothing:
//! what cannot be read is «n/a: why», and the point stands.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::Result;
use experiment::point::{Key, Point};
use experiment::run::Bench;
use experiment::spec::Grid;
use experiment::{Experiment, Samples, resume};
use measure::background_load::{seconds_of, seconds_of_children};
use measure::{Label, Provenance};

use crate::descendants::descendants;
use crate::{progress, stop};

mod gpu;
mod hook;
mod machine;
mod nic;
mod nodes;

pub use gpu::Gpu;
use hook::Hook;
use machine::{Machine, MachineSampler};
use nic::Counters;
pub use nodes::BetweenNodes;

/// Why the programs' use is not known.
const ELSEWHERE: &str = "both ends run on other hosts";

/// `--counters-hook` of this command.
static HOOK: OnceLock<String> = OnceLock::new();

/// The command that is run before and after each point from now on.
pub fn set_hook(command: &str) {
    let _ = HOOK.set(command.to_owned());
}

/// Where processes on the software NIC leave their counters in a run's folder.
pub fn counters_file(out: &Path) -> PathBuf {
    out.join("logs/nic-counters.jsonl")
}

/// Measures what is missing of `grid`; a signal says where the finished points are, and how to go on.
pub fn measure(
    experiment: &Experiment,
    how: &resume::Options,
    provenance: &Provenance,
    grid: &Grid,
    bench: &mut dyn Bench,
) -> Result<resume::Earlier> {
    let gpu = Gpu::of_run(!provenance.gpu_device.is_empty());
    measure_beside(gpu, experiment, how, provenance, grid, bench)
}

/// [`measure`] with readings of the GPU that the bench takes numbers from as well.
pub fn measure_beside(
    gpu: Gpu,
    experiment: &Experiment,
    how: &resume::Options,
    provenance: &Provenance,
    grid: &Grid,
    bench: &mut dyn Bench,
) -> Result<resume::Earlier> {
    let results = how.out.join("results.jsonl");
    stop::goes_on_with(format!("; finished points are in {}, {}", results.display(), how.again));
    let mut sampled = Sampled::new(bench, how, provenance, gpu)?;
    progress::measure(experiment, how, provenance, grid, &mut sampled)
}

/// A bench whose points carry samples.
pub struct Sampled<'a> {
    bench: &'a mut dyn Bench,
    machine: Machine,
    gpu: Gpu,
    nic: Counters,
    hook: Option<Hook>,
}

impl Sampled<'_> {
    /// For a run with this provenance and these readings of its GPU. Error: refused, a hook does not work.
    pub fn new<'a>(
        bench: &'a mut dyn Bench,
        how: &resume::Options,
        provenance: &Provenance,
        gpu: Gpu,
    ) -> Result<Sampled<'a>> {
        let root = Path::new("/");
        let on_wire = provenance.nic_options.get("path").is_some_and(|path| path == "wire");
        let nic = match provenance.nic {
            // This machine's card of that name is another one.
            _ if !bench.is_here() || on_wire => Counters::OfBench,
            Label::Hardware => Counters::of_card(root, &provenance.device),
            Label::None => Counters::Absent("no NIC has a part in the run".into()),
            _ => Counters::Software(counters_file(&how.out)),
        };
        let hook = HOOK.get().map(|command| Hook::tried(command)).transpose()?;
        Ok(Sampled { bench, machine: Machine::Here(root.to_owned()), gpu, nic, hook })
    }
}

impl Bench for Sampled<'_> {
    fn asked(&self, key: &Key) -> BTreeMap<String, u64> {
        self.bench.asked(key)
    }

    fn is_here(&self) -> bool {
        self.bench.is_here()
    }

    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        let (nic, hook) = (self.nic.before(), self.hook.as_ref().map(Hook::read));
        let mut samples = Samples::default();
        let gpu_begins = self.gpu.begin();
        let (since, used) = (Instant::now(), ProgramTime::now(&self.gpu.processes()));
        let watch = MachineSampler::start(&self.machine, seconds)?;
        let measured = self.bench.measure(key, seconds);
        watch.end(&mut samples);
        let cores = used.cores(&ProgramTime::now(&self.gpu.processes()), since.elapsed().as_secs_f64());
        self.gpu.end(gpu_begins, &mut samples);
        let mut point = measured?;
        samples.gauge("programs_cores", &[cores]);
        if !self.bench.is_here() {
            // They would be of a machine that only waits.
            samples = Samples::without("programs_cores", ELSEWHERE);
        }
        samples.extend(self.nic.grown(&nic));
        // Programs on other hosts are no children of this process.
        samples.extend(point.samples.take().unwrap_or_default());
        samples.extend(match hook.zip(self.hook.as_ref().map(Hook::read)) {
            None => Samples::default(),
            Some((Ok(before), Ok(after))) => nic::differences("hook", &before, &after),
            Some((Err(error), _) | (_, Err(error))) => Samples::without("hook", format!("{error:#}")),
        });
        point.samples = Some(samples);
        Ok(point)
    }
}

/// CPU time of the programs that a run started.
struct ProgramTime {
    /// Of those that have ended.
    ended_s: f64,
    /// Of those that run, by process.
    running_s: BTreeMap<u32, f64>,
}

impl ProgramTime {
    /// `but`: processes that are none of the run's programs.
    fn now(but: &[u32]) -> ProgramTime {
        let running = descendants(process::id()).into_iter().filter(|process| !but.contains(process));
        let running_s = running.filter_map(|process| Some((process, seconds_of(process)?))).collect();
        ProgramTime { ended_s: seconds_of_children().unwrap_or_default(), running_s }
    }

    /// Cores on average until `now`. What ran before the point and has ended since counts from the point on.
    fn cores(&self, now: &ProgramTime, seconds: f64) -> f64 {
        let sum = |used: &ProgramTime| used.ended_s + used.running_s.values().sum::<f64>();
        ((sum(now) - sum(self)) / seconds.max(1e-3)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use experiment::point::example;

    use super::*;

    /// Measures nothing, but runs a shell.
    struct Shell<'a>(&'a str);

    impl Bench for Shell<'_> {
        fn measure(&mut self, _: &Key, _: f64) -> Result<Point> {
            anyhow::ensure!(std::process::Command::new("sh").args(["-c", self.0]).status()?.success());
            Ok(example("cpu-shim", 64))
        }
    }

    fn sampled(command: &str, hook: &str) -> Samples {
        let mut shell = Shell(command);
        let root = std::env::temp_dir().join(format!("xtask-sampled-none-{}", process::id()));
        let mut sampled = Sampled {
            bench: &mut shell,
            machine: Machine::Here(root),
            gpu: Gpu::of_run(false),
            nic: Counters::Absent("no NIC has a part in the run".into()),
            hook: Some(Hook::tried(hook).unwrap()),
        };
        let point = sampled.measure(&example("cpu-shim", 64).key(), 0.01).unwrap();
        assert_eq!(point.values, example("cpu-shim", 64).values, "samples change no number");
        point.samples.unwrap()
    }

    #[test]
    fn a_point_has_what_the_hook_counted_meanwhile_and_what_its_programs_used() {
        let file = std::env::temp_dir().join(format!("xtask-sampled-{}", process::id()));
        std::fs::write(&file, "10").unwrap();
        let at = file.display();
        let busy = format!("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo 25 > {at}");
        let samples = sampled(&busy, &format!("echo port1.rx,$(cat {at}); echo same,7"));
        assert_eq!(samples.counts["hook.port1.rx"], 15.0);
        assert!(!samples.counts.contains_key("hook.same"), "{samples:?}");
        assert!(samples.gauges["programs_cores"][0] > 0.0, "{samples:?}");
        for name in ["nic", "gpu_watts", "cpu_watts", "cpu_mhz"] {
            assert!(samples.absent.contains_key(name), "{name}: {samples:?}");
        }
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_hook_is_refused_where_nothing_is_sampled() {
        let options =
            crate::figure::Options { counters_hook: Some("echo rx,1".into()), ..Default::default() };
        for name in ["fig3", "bench-nic", "bench-gpu", "bench-post-gpu", "bench-models"] {
            let error = crate::figure::run(name, &options).unwrap_err();
            let said = format!("{name}: nothing is sampled there; leave --counters-hook out");
            assert!(error.is::<crate::refused::Refused>() && error.to_string() == said, "{error}");
        }
    }

    /// A bench whose both ends run on hosts with cards.
    struct OnHosts;

    impl Bench for OnHosts {
        fn is_here(&self) -> bool {
            false
        }

        fn measure(&mut self, _: &Key, _: f64) -> Result<Point> {
            let mut samples = Samples::default();
            samples.gauge("sender.cpu_cores", &[1.5]);
            samples.counts.insert("nic.cqes".into(), 3.0);
            Ok(Point { samples: Some(samples), ..example("cpu-shim", 64) })
        }
    }

    #[test]
    fn a_run_on_other_hosts_has_what_was_read_there_and_no_counters_of_a_card_of_this_machine() {
        let key = example("cpu-shim", 64).key();
        let mut provenance = example("cpu-shim", 64).provenance;
        (provenance.nic, provenance.device) = (Label::Hardware, "mlx5_0".into());
        let how = resume::Options {
            extent: experiment::spec::Extent::Quick,
            resume: false,
            record: false,
            out: "out".into(),
            again: "again".into(),
        };
        let mut on_hosts = OnHosts;
        let mut sampled = Sampled::new(&mut on_hosts, &how, &provenance, Gpu::of_run(false)).unwrap();
        let samples = sampled.measure(&key, 0.01).unwrap().samples.unwrap();
        let mut read_there =
            Samples { absent: [("programs_cores".into(), ELSEWHERE.into())].into(), ..Samples::default() };
        read_there.gauge("sender.cpu_cores", &[1.5]);
        read_there.counts.insert("nic.cqes".into(), 3.0);
        assert_eq!(samples, read_there);
    }

    #[test]
    fn a_hook_that_fails_later_leaves_the_point_and_says_why() {
        let file = std::env::temp_dir().join(format!("xtask-sampled-fails-{}", process::id()));
        std::fs::write(&file, "").unwrap();
        let at = file.display();
        let samples = sampled(&format!("rm {at}"), &format!("cat {at} && echo rx,1"));
        assert_eq!(samples.absent["hook"], "the command ended with status 1");
    }
}
