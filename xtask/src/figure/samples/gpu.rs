//! Clocks and power of a GPU, by one `nvidia-smi` that says a line a second for the whole run.
//!
//! Source: `nvidia-smi --help-query-gpu`. One program that stays costs less than one a second. It has no count of a GPU's energy, so that
//! energy is the mean of the power times the point's time.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use experiment::Samples;
use measure::background_load::seconds_of;

use crate::gpu_machine::GpuMachine;
use crate::process::ChildGuard;
use crate::testbed;

/// What is asked for, and the names of the gauges.
const QUERY: &str = "--query-gpu=clocks.sm,clocks.mem,power.draw";
const GAUGES: [&str; 3] = ["gpu_sm_mhz", "gpu_memory_mhz", "gpu_watts"];
/// Place of the power among them.
const WATTS: usize = 2;
/// What stands for all of them where there are none.
const ALL: [&str; 4] = ["gpu_sm_mhz", "gpu_memory_mhz", "gpu_watts", "gpu_joules"];

/// A line of `nvidia-smi`: the gauges; `None`: the GPU does not say.
type Line = [Option<f64>; 3];
/// The lines of a run, and when each was read.
type Lines = Arc<Mutex<Vec<(Instant, Line)>>>;

/// The GPU's readings, or why there are none. Clones share one program, which ends with the last of them.
#[derive(Clone, Debug)]
pub enum Gpu {
    Read(Arc<Smi>),
    Absent(String),
}

/// `nvidia-smi`, and what it has said.
#[derive(Debug)]
pub struct Smi {
    child: ChildGuard,
    lines: Lines,
}

/// When a point began, and the CPU time in seconds that `nvidia-smi` had used by then.
#[derive(Clone, Copy, Debug)]
pub struct PointStart {
    at: Instant,
    used_s: f64,
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
        match GpuMachine::ask().map(|machine| machine.bus()) {
            Ok(Some(bus)) => Gpu::by(Command::new(program), &bus),
            Ok(None) => Gpu::Absent("the GPU's place on the PCI bus is not known".into()),
            Err(error) => Gpu::Absent(format!("{error:#}")),
        }
    }

    /// By a program that is `nvidia-smi`, or a stand-in in tests.
    pub fn by(mut smi: Command, bus: &str) -> Gpu {
        smi.args([QUERY, "--format=csv,noheader,nounits", "--loop-ms=1000", "--id", bus]);
        smi.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = match ChildGuard::start(&mut smi) {
            Ok(child) => child,
            Err(error) => return Gpu::Absent(format!("nvidia-smi: {}", error.root_cause())),
        };
        let lines = Lines::default();
        if let Some(stdout) = child.0.stdout.take() {
            let kept = Arc::clone(&lines);
            // Ends with the program.
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let read = reading(&line).map(|line| (Instant::now(), line));
                    kept.lock().unwrap_or_else(PoisonError::into_inner).extend(read);
                }
            });
        }
        Gpu::Read(Arc::new(Smi { child, lines }))
    }

    /// Its process, whose time is not that of a program of the run.
    pub fn process(&self) -> Option<u32> {
        match self {
            Gpu::Read(smi) => Some(smi.child.0.id()),
            Gpu::Absent(_) => None,
        }
    }

    /// A point begins now.
    pub fn begin(&self) -> PointStart {
        let used_s = self.process().and_then(seconds_of).unwrap_or_default();
        PointStart { at: Instant::now(), used_s }
    }

    /// Puts the readings since then into the samples of the point.
    pub fn end(&self, begin: PointStart, samples: &mut Samples) {
        let smi = match self {
            Gpu::Read(smi) => smi,
            Gpu::Absent(why) => {
                samples.absent.extend(ALL.map(|name| (name.to_owned(), why.clone())));
                return;
            }
        };
        for (at, name) in GAUGES.into_iter().enumerate() {
            let why = "nvidia-smi said no number during the point";
            samples.gauge_or(name, &smi.since(begin.at, at), why);
        }
        let joules = self.watts_since(begin.at).map(|watts| watts * begin.at.elapsed().as_secs_f64());
        match joules {
            Some(joules) => drop(samples.counts.insert("gpu_joules".into(), joules)),
            None => drop(samples.absent.insert("gpu_joules".into(), "gpu_watts is not known".into())),
        }
        let used = self.process().and_then(seconds_of).map(|seconds| (seconds - begin.used_s) * 1e3);
        samples.counts.extend(used.map(|used| ("nvidia_smi_cpu_ms".to_owned(), used)));
    }

    /// The GPU's mean power since then, in watts; `None` without a reading.
    pub fn watts_since(&self, at: Instant) -> Option<f64> {
        let Gpu::Read(smi) = self else { return None };
        let watts = smi.since(at, WATTS);
        (!watts.is_empty()).then(|| watts.iter().sum::<f64>() / watts.len() as f64)
    }
}

impl Smi {
    /// Readings of one gauge since then.
    fn since(&self, at: Instant, gauge: usize) -> Vec<f64> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|(when, _)| *when >= at).filter_map(|(_, line)| line[gauge]).collect()
    }
}

/// The numbers of a line, `1980, 2619, 70.34`; one that the GPU does not say is `[N/A]`. No line with another count of fields.
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

    /// Waits until so many lines were read.
    fn wait_for_lines(gpu: &Gpu, count: usize) {
        let Gpu::Read(smi) = gpu else { panic!("{gpu:?}") };
        let since = Instant::now();
        while smi.lines.lock().unwrap().len() < count {
            assert!(since.elapsed() < WAIT, "no line came");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn readings_are_those_of_the_point_and_energy_is_power_times_time() {
        let path = std::env::temp_dir().join(format!("xtask-smi-{}", std::process::id()));
        // Idle until the point begins.
        let text = "#!/bin/sh\necho '345, 2619, 20'\nuntil [ -e $0.begins ]; do sleep 0.02; done\n\
                    while :; do echo '1500, 2619, 50'; echo '1600, 2619, 70'; sleep 0.05; done\n";
        script(&path, text);
        let gpu = Gpu::by(Command::new(&path), "0000:17:00.0");
        wait_for_lines(&gpu, 1);
        assert_eq!(gpu.watts_since(Instant::now()), None);
        let begin = gpu.begin();
        let begins = path.with_file_name(format!("xtask-smi-{}.begins", std::process::id()));
        std::fs::write(&begins, "").unwrap();
        wait_for_lines(&gpu, 5);
        let mut samples = Samples::default();
        gpu.end(begin, &mut samples);
        let [_, least, most] = samples.gauges["gpu_sm_mhz"];
        assert_eq!([least, most], [1500.0, 1600.0]);
        let watts = gpu.watts_since(begin.at).unwrap();
        assert!((50.0..70.0).contains(&watts), "{watts} W");
        let (joules, most) = (samples.counts["gpu_joules"], 70.0 * begin.at.elapsed().as_secs_f64());
        assert!(joules > 0.0 && joules <= most, "{joules} J of at most {most}");
        assert!(samples.absent.is_empty() && samples.counts.contains_key("nvidia_smi_cpu_ms"), "{samples:?}");
        let (process, other) = (gpu.process().unwrap(), gpu.clone());
        drop(gpu);
        assert!(crate::descendants::is_alive(process), "a clone still reads");
        drop(other);
        assert!(!crate::descendants::is_alive(process));
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
        let none = absent(Gpu::by(Command::new("/no/such/nvidia-smi"), "0"));
        assert!(none["gpu_watts"].starts_with("nvidia-smi: No such file"), "{none:?}");
        // It ends at once, as where the driver is not loaded.
        let silent = absent(Gpu::by(Command::new("true"), "0"));
        assert_eq!(silent["gpu_watts"], "nvidia-smi said no number during the point");
        assert_eq!(silent["gpu_joules"], "gpu_watts is not known");
        assert_eq!(absent(Gpu::of_run(false)).len(), ALL.len());
    }
}
