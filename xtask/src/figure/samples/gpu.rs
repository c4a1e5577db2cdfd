//! Clocks and power of a GPU, by one `nvidia-smi` that says a line a second for the whole run.
//!
//! Source: `nvidia-smi --help-query-gpu`. One program that stays costs less than one a second. It has no count of a GPU's energy, so that
//! energy is the mean of the power times the point's time.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use experiment::Samples;
use measure::others::seconds_of;

use crate::gpu_machine::GpuMachine;
use crate::process::ChildGuard;

/// What is asked for, and the names of the gauges.
const QUERY: &str = "--query-gpu=clocks.sm,clocks.mem,power.draw";
const GAUGES: [&str; 3] = ["gpu_sm_mhz", "gpu_memory_mhz", "gpu_watts"];
/// What stands for all of them where there are none.
const ALL: [&str; 4] = ["gpu_sm_mhz", "gpu_memory_mhz", "gpu_watts", "gpu_joules"];

type Lines = Arc<Mutex<Vec<[Option<f64>; 3]>>>;

/// The GPU's readings, or why there are none.
#[derive(Debug)]
pub enum Gpu {
    Read(Smi),
    Absent(String),
}

#[derive(Debug)]
pub struct Smi {
    child: ChildGuard,
    lines: Lines,
    /// Seconds of its own CPU time when the point began.
    used: f64,
}

impl Gpu {
    /// The GPU that programs of this run take, where it has a part in the run.
    pub fn of_run(has_part: bool) -> Gpu {
        if !has_part {
            return Gpu::Absent("no GPU has a part in the run".into());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join("nvidia-smi").is_file()) {
            return Gpu::Absent("no nvidia-smi".into());
        }
        match GpuMachine::ask().map(|machine| machine.bus()) {
            Ok(Some(bus)) => Gpu::by(Command::new("nvidia-smi"), &bus),
            Ok(None) => Gpu::Absent("the GPU's place on the PCI bus is not known".into()),
            Err(error) => Gpu::Absent(format!("{error:#}")),
        }
    }

    /// By a program that is `nvidia-smi`, or a stand-in in tests.
    fn by(mut smi: Command, bus: &str) -> Gpu {
        smi.args([QUERY, "--format=csv,noheader,nounits", "--loop-ms=1000", "--id", bus]);
        smi.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = match smi.spawn() {
            Ok(child) => ChildGuard(child),
            Err(error) => return Gpu::Absent(format!("nvidia-smi: {error}")),
        };
        let lines = Lines::default();
        if let Some(stdout) = child.0.stdout.take() {
            let kept = Arc::clone(&lines);
            // Ends with the program, which ends with this value.
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).extend(reading(&line));
                }
            });
        }
        Gpu::Read(Smi { child, lines, used: 0.0 })
    }

    /// Its process, whose time is not that of a program of the run.
    pub fn process(&self) -> Option<u32> {
        match self {
            Gpu::Read(smi) => Some(smi.child.0.id()),
            Gpu::Absent(_) => None,
        }
    }

    /// From here on readings are those of the next point.
    pub fn begin(&mut self) {
        if let Gpu::Read(smi) = self {
            smi.lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
            smi.used = seconds_of(smi.child.0.id()).unwrap_or_default();
        }
    }

    /// Puts the readings since then into the samples of the point, which began at `since`.
    pub fn end(&mut self, since: Instant, samples: &mut Samples) {
        let smi = match self {
            Gpu::Read(smi) => smi,
            Gpu::Absent(why) => {
                samples.absent.extend(ALL.map(|name| (name.to_owned(), why.clone())));
                return;
            }
        };
        let lines = std::mem::take(&mut *smi.lines.lock().unwrap_or_else(PoisonError::into_inner));
        for (at, name) in GAUGES.into_iter().enumerate() {
            let readings: Vec<f64> = lines.iter().filter_map(|line| line[at]).collect();
            samples.gauge(name, &readings);
            if readings.is_empty() {
                let why = "nvidia-smi said no number during the point";
                samples.absent.insert(name.to_owned(), why.to_owned());
            }
        }
        let watts: Vec<f64> = lines.iter().filter_map(|line| line[2]).collect();
        match watts.len() {
            0 => drop(samples.absent.insert("gpu_joules".into(), "gpu_watts is not known".into())),
            count => {
                let mean = watts.iter().sum::<f64>() / count as f64;
                samples.counts.insert("gpu_joules".into(), mean * since.elapsed().as_secs_f64());
            }
        }
        let used = seconds_of(smi.child.0.id()).map(|seconds| (seconds - smi.used) * 1e3);
        samples.counts.extend(used.map(|used| ("nvidia_smi_cpu_ms".to_owned(), used)));
    }
}

/// The numbers of a line, `1980, 2619, 70.34`; one that the GPU does not say is `[N/A]`. No line with another count of fields.
fn reading(line: &str) -> Option<[Option<f64>; 3]> {
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

    #[test]
    fn readings_are_those_of_the_point_and_energy_is_power_times_time() {
        let path = std::env::temp_dir().join(format!("xtask-smi-{}", std::process::id()));
        script(
            &path,
            "#!/bin/sh\nwhile :; do echo '1500, 2619, 50'; echo '1600, 2619, 70'; sleep 0.05; done\n",
        );
        let mut gpu = Gpu::by(Command::new(&path), "0000:17:00.0");
        let since = Instant::now();
        gpu.begin();
        let Gpu::Read(smi) = &gpu else { panic!("{gpu:?}") };
        while smi.lines.lock().unwrap().len() < 4 {
            assert!(since.elapsed() < WAIT, "no line came");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut samples = Samples::default();
        gpu.end(since, &mut samples);
        let [_, least, most] = samples.gauges["gpu_sm_mhz"];
        assert_eq!([least, most], [1500.0, 1600.0]);
        let (joules, most) = (samples.counts["gpu_joules"], 70.0 * since.elapsed().as_secs_f64());
        assert!(joules > 0.0 && joules <= most, "{joules} J of at most {most}");
        assert!(samples.absent.is_empty() && samples.counts.contains_key("nvidia_smi_cpu_ms"), "{samples:?}");
        drop(gpu);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_gpu_without_a_reading_says_why() {
        let mut gpu = Gpu::by(Command::new("/no/such/nvidia-smi"), "0");
        let mut samples = Samples::default();
        gpu.end(Instant::now(), &mut samples);
        assert!(samples.absent["gpu_watts"].starts_with("nvidia-smi: No such file"), "{samples:?}");
        // It ends at once, as where the driver is not loaded.
        let mut silent = Gpu::by(Command::new("true"), "0");
        let mut samples = Samples::default();
        silent.end(Instant::now(), &mut samples);
        assert_eq!(samples.absent["gpu_watts"], "nvidia-smi said no number during the point");
        assert_eq!(samples.absent["gpu_joules"], "gpu_watts is not known");
        let mut samples = Samples::default();
        Gpu::of_run(false).end(Instant::now(), &mut samples);
        assert_eq!(samples.absent.len(), ALL.len());
    }
}
