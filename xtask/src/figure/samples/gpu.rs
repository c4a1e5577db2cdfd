//! Clocks and power of a GPU, from one `nvidia-smi` a run, with a line a second; energy, from its driver.
//!
//! Source: `nvidia-smi --help-query-gpu`, which has no count of energy: `gpu-probe --energy` asks NVML for it
//! before and after a point. Programs that stay cost less than starting one a second.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use experiment::Samples;
use measure::background_load::seconds_of;
use serde_json::json;

use crate::figure::reader::Reader;
use crate::gpu_machine::{self, GpuMachine};
use crate::process::{ChildGuard, JsonProgram};
use crate::testbed;
use crate::testbed::hosts::{self, Host};

/// What is asked for, and the names of the gauges.
const QUERY: &str = "--query-gpu=clocks.sm,clocks.mem,power.draw";
const GAUGES: [&str; 3] = ["gpu_sm_mhz", "gpu_memory_mhz", "gpu_watts"];
/// Place of the power among them.
const WATTS: usize = 2;
/// What stands for all of them where there are none.
const ALL: [&str; 4] = ["gpu_sm_mhz", "gpu_memory_mhz", "gpu_watts", "gpu_joules"];

const NO_BUS: &str = "the GPU's place on the PCI bus is not known";

/// A line of `nvidia-smi`: the gauges; `None`: the GPU does not say.
type Line = [Option<f64>; 3];
/// The lines of a run, and when each was read.
type Lines = Arc<Mutex<Vec<(Instant, Line)>>>;

/// The GPU's readings, or why there are none. Clones share the programs, which end with the last of them.
#[derive(Clone, Debug)]
pub enum Gpu {
    Read(Arc<Readers>),
    Absent(String),
}

/// `nvidia-smi` and what it has said, and what answers with the energy.
#[derive(Debug)]
pub struct Readers {
    smi: ChildGuard,
    lines: Lines,
    /// The last line that is no reading.
    words: Arc<Mutex<Option<String>>>,
    energy: Reader,
}

/// When a point began, and by then the CPU time in seconds that `nvidia-smi` had used, and the GPU's energy.
#[derive(Clone, Debug)]
pub struct PointStart {
    at: Instant,
    used_s: f64,
    energy_mj: Result<u64, String>,
}

impl Gpu {
    /// The GPU that programs of this run take, where it has a part in the run.
    pub fn of_run(has_part: bool) -> Gpu {
        if !has_part {
            return Gpu::Absent("no GPU has a part in the run".into());
        }
        let Ok(program) = testbed::program("nvidia-smi") else {
            return Gpu::Absent("no nvidia-smi".into());
        };
        let found = GpuMachine::ask().and_then(|machine| Ok((machine.bus(), gpu_machine::probe()?)));
        match found {
            Ok((Some(bus), probe)) => Gpu::by(Command::new(program), probe, &bus),
            Ok((None, _)) => Gpu::Absent(NO_BUS.into()),
            Err(error) => Gpu::Absent(format!("{error:#}")),
        }
    }

    /// That of a host, by the programs there.
    pub fn on(host: &Host, bus: Option<&str>) -> anyhow::Result<Gpu> {
        let smi = host.command(&hosts::until_stdin_ends(&["nvidia-smi"]))?;
        let probe = host.command(&[host.file("bin/gpu-probe")])?;
        Ok(bus.map_or_else(|| Gpu::Absent(NO_BUS.into()), |bus| Gpu::by(smi, probe, bus)))
    }

    /// By programs that are `nvidia-smi` and `gpu-probe`, or stand-ins in tests.
    pub fn by(mut smi: Command, mut probe: Command, bus: &str) -> Gpu {
        smi.args([QUERY, "--format=csv,noheader,nounits", "--loop-ms=1000", "--id", bus]);
        smi.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut smi = match ChildGuard::start(&mut smi) {
            Ok(smi) => smi,
            Err(error) => return Gpu::Absent(format!("nvidia-smi: {}", error.root_cause())),
        };
        let (lines, words) = (Lines::default(), Arc::default());
        let stdout = smi.0.stdout.take().map(|stdout| Box::new(stdout) as Box<dyn Read + Send>);
        let stderr = smi.0.stderr.take().map(|stderr| Box::new(stderr) as Box<dyn Read + Send>);
        for stream in [stdout, stderr].into_iter().flatten() {
            let (lines, words): (_, Arc<Mutex<_>>) = (Arc::clone(&lines), Arc::clone(&words));
            // Ends with the program.
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    match reading(&line) {
                        Some(read) => locked(&lines).push((Instant::now(), read)),
                        None => *locked(&words) = Some(line),
                    }
                }
            });
        }
        let energy = JsonProgram::start(probe.args(["--energy", bus]), Path::new("/dev/null"));
        Gpu::Read(Arc::new(Readers { smi, lines, words, energy: Reader::of("gpu-probe --energy", energy) }))
    }

    /// Their processes, whose time is not that of programs of the run: `nvidia-smi` first.
    pub fn processes(&self) -> Vec<u32> {
        let Gpu::Read(readers) = self else { return Vec::new() };
        [Some(readers.smi.0.id()), readers.energy.process()].into_iter().flatten().collect()
    }

    fn smi_s(&self) -> Option<f64> {
        self.processes().first().copied().and_then(seconds_of)
    }

    /// A point begins now.
    pub fn begin(&self) -> PointStart {
        let energy_mj = match self {
            Gpu::Read(readers) => readers.energy_mj(),
            Gpu::Absent(why) => Err(why.clone()),
        };
        PointStart { at: Instant::now(), used_s: self.smi_s().unwrap_or_default(), energy_mj }
    }

    /// Puts the readings since then into the samples of the point.
    pub fn end(&self, begin: PointStart, samples: &mut Samples) {
        let readers = match self {
            Gpu::Read(readers) => readers,
            Gpu::Absent(why) => {
                samples.absent.extend(ALL.map(|name| (name.to_owned(), why.clone())));
                return;
            }
        };
        let words = locked(&readers.words).as_ref().map_or_else(String::new, |said| format!(": {said}"));
        for (at, name) in GAUGES.into_iter().enumerate() {
            let why = format!("nvidia-smi said no number during the point{words}");
            samples.gauge_or(name, &readers.since(begin.at, at), &why);
        }
        let grown = begin.energy_mj.and_then(|before| grown(before, readers.energy_mj()?));
        match grown {
            Ok(energy_mj) => drop(samples.counts.insert("gpu_joules".into(), energy_mj as f64 / 1e3)),
            Err(why) => drop(samples.absent.insert("gpu_joules".into(), why)),
        }
        let used = self.smi_s().map(|seconds| (seconds - begin.used_s) * 1e3);
        samples.counts.extend(used.map(|used| ("nvidia_smi_cpu_ms".to_owned(), used)));
    }

    /// The GPU's mean power since then, in watts; `None` without a reading.
    pub fn watts_since(&self, at: Instant) -> Option<f64> {
        let Gpu::Read(readers) = self else { return None };
        let watts = readers.since(at, WATTS);
        (!watts.is_empty()).then(|| watts.iter().sum::<f64>() / watts.len() as f64)
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// By how much the energy grew. Error: it did not.
fn grown(before: u64, after: u64) -> Result<u64, String> {
    match after.checked_sub(before) {
        None => Err(format!("the counter went back from {before} to {after} mJ")),
        Some(0) => Err("the counter did not move during the point".into()),
        Some(grown) => Ok(grown),
    }
}

impl Readers {
    /// Energy since the driver was loaded, or why it is not known.
    fn energy_mj(&self) -> Result<u64, String> {
        let said = self.energy.ask(&json!({}), Ok)?;
        let why = || said["why"].as_str().unwrap_or("gpu-probe does not say the energy").to_owned();
        said["energy_mj"].as_u64().ok_or_else(why)
    }

    /// Readings of one gauge since then.
    fn since(&self, at: Instant, gauge: usize) -> Vec<f64> {
        let lines = locked(&self.lines);
        lines.iter().filter(|(when, _)| *when >= at).filter_map(|(_, line)| line[gauge]).collect()
    }
}

/// The numbers of a line, `1980, 2619, 70.34`; `[N/A]`: the GPU says none. `None`: not 3 fields.
fn reading(line: &str) -> Option<Line> {
    let fields: Vec<Option<f64>> = line.split(',').map(|field| field.trim().parse().ok()).collect();
    fields.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::process::{WAIT, script};

    #[test]
    fn a_line_has_three_numbers_and_one_that_is_not_known_is_none() {
        assert_eq!(reading("1980, 2619, 70.34"), Some([Some(1980.0), Some(2619.0), Some(70.34)]));
        assert_eq!(reading("1980, [N/A], [Not Supported]"), Some([Some(1980.0), None, None]));
        assert_eq!([reading("No devices were found"), reading("1, 2")], [None, None]);
    }

    fn wait_for(gpu: &Gpu, is_there: impl Fn(&Readers) -> bool) {
        let Gpu::Read(readers) = gpu else { panic!("{gpu:?}") };
        let since = Instant::now();
        while !is_there(readers) {
            assert!(since.elapsed() < WAIT, "no line came");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until so many lines were read.
    fn wait_for_lines(gpu: &Gpu, count: usize) {
        wait_for(gpu, |readers| locked(&readers.lines).len() >= count);
    }

    /// Answers each line with a counter that has moved by 2.5 J.
    fn counter() -> Command {
        let mut shell = Command::new("sh");
        let line = r#"mj=5000000000; while read -r asked; do mj=$((mj+2500)); echo "{\"kind\":\"answer\",\"energy_mj\":$mj}"; done"#;
        shell.args(["-c", line]);
        shell
    }

    #[test]
    fn readings_are_those_of_the_point_and_energy_is_by_how_much_the_counter_grew() {
        let path = std::env::temp_dir().join(format!("xtask-smi-{}", std::process::id()));
        // Idle until the point begins.
        let text = "#!/bin/sh\necho '345, 2619, 20'\nuntil [ -e $0.begins ]; do sleep 0.02; done\n\
                    while :; do echo '1500, 2619, 50'; echo '1600, 2619, 70'; sleep 0.05; done\n";
        script(&path, text);
        let gpu = Gpu::by(Command::new(&path), counter(), "0000:17:00.0");
        wait_for_lines(&gpu, 1);
        assert_eq!(gpu.watts_since(Instant::now()), None);
        let begin = gpu.begin();
        let since = begin.at;
        let begins = path.with_file_name(format!("xtask-smi-{}.begins", std::process::id()));
        std::fs::write(&begins, "").unwrap();
        wait_for_lines(&gpu, 5);
        let mut samples = Samples::default();
        gpu.end(begin, &mut samples);
        let [_, least, most] = samples.gauges["gpu_sm_mhz"];
        assert_eq!([least, most], [1500.0, 1600.0]);
        let watts = gpu.watts_since(since).unwrap();
        assert!((50.0..70.0).contains(&watts), "{watts} W");
        assert_eq!(samples.counts["gpu_joules"], 2.5);
        assert!(samples.absent.is_empty() && samples.counts.contains_key("nvidia_smi_cpu_ms"), "{samples:?}");
        let (processes, other) = (gpu.processes(), gpu.clone());
        let alive = || processes.iter().filter(|process| crate::descendants::is_alive(**process)).count();
        drop(gpu);
        assert_eq!(alive(), 2, "a clone still reads");
        drop(other);
        assert_eq!(alive(), 0);
        [path, begins].iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }

    #[test]
    fn a_gpu_without_a_reading_says_why() {
        let absent = |gpu: Gpu| {
            let mut samples = Samples::default();
            gpu.end(gpu.begin(), &mut samples);
            assert_eq!(gpu.watts_since(Instant::now()), None);
            samples.absent
        };
        let by = |smi: &str, probe| absent(Gpu::by(Command::new(smi), probe, "0"));
        let none = by("/no/such/nvidia-smi", counter());
        assert!(none["gpu_watts"].starts_with("nvidia-smi: No such file"), "{none:?}");
        // It ends at once, as where the driver is not loaded.
        let silent = by("true", counter());
        assert_eq!(silent["gpu_watts"], "nvidia-smi said no number during the point");
        assert!(!silent.contains_key("gpu_joules"), "{silent:?}");
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo 'sh: nvidia-smi: not found' >&2; exit 127"]);
        let gone = Gpu::by(shell, counter(), "0");
        wait_for(&gone, |readers| locked(&readers.words).is_some());
        let why = "nvidia-smi said no number during the point: sh: nvidia-smi: not found";
        assert_eq!(absent(gone)["gpu_watts"], why);
        let says = |line: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("while read -r asked; do {line}; done")]);
            by("true", shell)["gpu_joules"].clone()
        };
        let why = r#"echo '{"kind":"answer","why":"NVML: no such GPU (6)"}'"#;
        assert_eq!(says(why), "NVML: no such GPU (6)");
        let still = r#"echo '{"kind":"answer","energy_mj":7}'"#;
        assert_eq!(says(still), "the counter did not move during the point");
        assert_eq!(grown(9, 7).unwrap_err(), "the counter went back from 9 to 7 mJ");
        assert!(says("exit 3").starts_with("gpu-probe --energy: it ended with status 3"));
        assert_eq!(absent(Gpu::of_run(false)).len(), ALL.len());
    }
}
