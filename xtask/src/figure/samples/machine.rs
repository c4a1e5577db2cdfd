//! CPU use, frequency and energy of this machine while a point is measured, read once a second by a thread of their own.
//!
//! Source: `proc_stat(5)`; `Documentation/admin-guide/pm/cpufreq.rst` (`scaling_cur_freq`, in kHz); `Documentation/power/powercap`
//! (`energy_uj` of `intel-rapl:N`, which AMD's processors have too, begins again at `max_energy_range_uj`; `name` is `package-N` for a
//! processor, and `psys` for the platform, whose energy has that of the processors in it).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use experiment::Samples;
use measure::background_load;
use nix::time::{ClockId, clock_gettime};

/// Time between two readings.
const APART: Duration = Duration::from_secs(1);
/// The shortest time that a rate is taken over: the kernel counts CPU time in hundredths of a second.
const LEAST: Duration = Duration::from_millis(500);

/// Where the files lie: `/`, or a folder in tests.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
    /// `cpu0/cpufreq/scaling_cur_freq` of each core.
    frequencies: Vec<PathBuf>,
    /// A processor's counter of energy each, with the value at which it begins again.
    energies: Vec<(PathBuf, f64)>,
    /// Why there is no energy.
    why_no_energy: String,
}

impl Files {
    /// Looks for what this machine has below `root`.
    pub fn find(root: &Path) -> Files {
        let cores = numbered(&root.join("sys/devices/system/cpu"), "cpu");
        let frequencies: Vec<PathBuf> =
            cores.iter().map(|core| core.join("cpufreq/scaling_cur_freq")).collect();
        let frequencies = frequencies.into_iter().filter(|file| file.is_file()).collect();
        let is_processor = |zone: &PathBuf| {
            fs::read_to_string(zone.join("name")).is_ok_and(|name| name.starts_with("package"))
        };
        let zones = numbered(&root.join("sys/class/powercap"), "intel-rapl:").into_iter();
        // The energy of some of the processors would be taken for that of all.
        let energies: Result<Vec<_>, String> = zones.filter(is_processor).map(|zone| energy(&zone)).collect();
        let (energies, why_no_energy) = match energies {
            Ok(energies) => (energies, "no /sys/class/powercap/intel-rapl:0".to_owned()),
            Err(why) => (Vec::new(), why),
        };
        Files { root: root.to_owned(), frequencies, energies, why_no_energy }
    }

    /// Seconds since the machine's start that cores were busy.
    fn busy_s(&self) -> Option<f64> {
        background_load::busy(&fs::read_to_string(self.root.join("proc/stat")).ok()?)
    }

    /// Mean of all cores.
    fn mhz(&self) -> Option<f64> {
        let khz: Vec<f64> = self.frequencies.iter().filter_map(|file| number(file)).collect();
        (!khz.is_empty()).then(|| khz.iter().sum::<f64>() / khz.len() as f64 / 1e3)
    }

    fn energy_uj(&self) -> Vec<Option<f64>> {
        self.energies.iter().map(|(file, _)| number(file)).collect()
    }

    /// Joules of all processors between two readings of their counters.
    fn joules(&self, before: &[Option<f64>], after: &[Option<f64>]) -> Option<f64> {
        let grown =
            self.energies.iter().zip(before.iter().zip(after)).map(|((_, range), (before, after))| {
                let grown = (*after)? - (*before)?;
                Some(if grown < 0.0 { grown + range } else { grown })
            });
        let all: Vec<f64> = grown.collect::<Option<_>>()?;
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / 1e6)
    }
}

/// A zone's counter, and the value at which it begins again. Error: why it cannot be read.
fn energy(zone: &Path) -> Result<(PathBuf, f64), String> {
    let file = zone.join("energy_uj");
    fs::read_to_string(&file)
        .map_err(|error| format!("energy_uj of {} cannot be read: {error}; root may read it", name(zone)))?;
    let range = number(&zone.join("max_energy_range_uj"));
    Ok((file, range.ok_or_else(|| format!("{} has no max_energy_range_uj", name(zone)))?))
}

/// Entries called `PREFIX` and a number, in no order.
fn numbered(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| {
        name(path)
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    entries.map(|entry| entry.path()).filter(is_one).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn number(file: &Path) -> Option<f64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// What the thread has read.
#[derive(Debug, Default)]
struct Readings {
    cores: Vec<f64>,
    mhz: Vec<f64>,
    watts: Vec<f64>,
    joules: Option<f64>,
    /// CPU time of the thread itself.
    own_ms: Option<f64>,
}

/// The thread of one point.
#[derive(Debug)]
pub struct MachineSampler {
    over: Sender<()>,
    thread: JoinHandle<Readings>,
    files: Files,
}

impl MachineSampler {
    /// Reads from now on. The first reading within a point is after half of its `seconds`, so that a short one has one.
    pub fn start(files: &Files, seconds: f64) -> Result<MachineSampler> {
        let (over, is_over) = channel();
        let own = files.clone();
        let first = APART.min(Duration::try_from_secs_f64(seconds / 2.0).unwrap_or(APART));
        let reads = move || {
            let mut state = State::new(&own);
            let mut wait = first;
            loop {
                // The owner drops its end, or says that the point is over.
                let is_over = !matches!(is_over.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
                state.read(is_over);
                if is_over {
                    return Readings { own_ms: own_ms(), ..state.readings };
                }
                wait = APART;
            }
        };
        let thread = std::thread::Builder::new().name("samples".into()).spawn(reads);
        Ok(MachineSampler {
            over,
            thread: thread.context("starting the thread of samples")?,
            files: files.clone(),
        })
    }

    /// Ends it, and puts what it has read into the point's samples.
    pub fn end(self, samples: &mut Samples) {
        let _ = self.over.send(());
        let Ok(readings) = self.thread.join() else {
            samples.absent.insert("cpu".into(), "the thread of samples failed".into());
            return;
        };
        for (name, readings, why) in [
            ("cpu_cores", &readings.cores, "/proc/stat does not say"),
            ("cpu_mhz", &readings.mhz, "no cpufreq below /sys/devices/system/cpu"),
            ("cpu_watts", &readings.watts, &*self.files.why_no_energy),
        ] {
            samples.gauge_or(name, readings, why);
        }
        samples.counts.extend(readings.joules.map(|joules| ("cpu_joules".to_owned(), joules)));
        samples.counts.extend(readings.own_ms.map(|ms| ("sampling_cpu_ms".to_owned(), ms)));
    }
}

/// Readings, and the counters that the next rates begin from.
struct State<'a> {
    files: &'a Files,
    since: Instant,
    busy_s: Option<f64>,
    energy_uj: Vec<Option<f64>>,
    readings: Readings,
}

impl State<'_> {
    fn new(files: &Files) -> State<'_> {
        let (busy_s, energy_uj) = (files.busy_s(), files.energy_uj());
        State { files, since: Instant::now(), busy_s, energy_uj, readings: Readings::default() }
    }

    /// Reads gauges while the point is measured, and rates over no less than half a second, unless the point itself is shorter.
    fn read(&mut self, is_over: bool) {
        let seconds = self.since.elapsed();
        if !is_over || self.readings.mhz.is_empty() {
            self.readings.mhz.extend(self.files.mhz());
        }
        let is_short = self.readings.cores.is_empty() && self.readings.watts.is_empty();
        if seconds < LEAST && !(is_over && is_short) {
            // Its energy counts, though not as a rate.
            if is_over {
                let energy_uj = self.files.energy_uj();
                self.add(self.files.joules(&self.energy_uj, &energy_uj));
            }
            return;
        }
        let (busy_s, energy_uj) = (self.files.busy_s(), self.files.energy_uj());
        let seconds = seconds.as_secs_f64().max(1e-3);
        let cores = busy_s.zip(self.busy_s).map(|(now, before)| ((now - before) / seconds).max(0.0));
        self.readings.cores.extend(cores);
        let joules = self.files.joules(&self.energy_uj, &energy_uj);
        self.readings.watts.extend(joules.map(|joules| joules / seconds));
        self.add(joules);
        (self.since, self.busy_s, self.energy_uj) = (Instant::now(), busy_s, energy_uj);
    }

    fn add(&mut self, joules: Option<f64>) {
        if let Some(joules) = joules {
            *self.readings.joules.get_or_insert(0.0) += joules;
        }
    }
}

/// CPU time of this thread so far.
fn own_ms() -> Option<f64> {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok()?;
    Some(Duration::from(used).as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of two cores with two processors, below a folder of its own.
    fn fake(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-samples-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/stat", "cpu  100 0 0 5000 0 0 0 0 0 0\n");
        for (core, khz) in [(0, "1000000\n"), (1, "3000000\n")] {
            write(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"), khz);
        }
        write("sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "9\n");
        for (zone, name) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:2", "psys"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl-mmio:0", "package-0"),
        ] {
            write(&format!("sys/class/powercap/{zone}/name"), &format!("{name}\n"));
            write(&format!("sys/class/powercap/{zone}/energy_uj"), "1000000\n");
            write(&format!("sys/class/powercap/{zone}/max_energy_range_uj"), "5000000\n");
        }
        root
    }

    #[test]
    fn cores_frequency_and_energy_are_read_from_files_and_a_counter_that_begins_again_counts_on() {
        let root = fake("read");
        let files = Files::find(&root);
        assert_eq!(
            (files.frequencies.len(), files.energies.len()),
            (2, 2),
            "subzones and the platform count no more"
        );
        let mut state = State::new(&files);
        state.since -= Duration::from_secs(2);
        fs::write(root.join("proc/stat"), "cpu  300 0 100 5000 0 0 0 0 0 0\n").unwrap();
        fs::write(root.join("sys/class/powercap/intel-rapl:0/energy_uj"), "4000000\n").unwrap();
        // From 1 J over the range of 5 J to 0.5 J: 4.5 J.
        fs::write(root.join("sys/class/powercap/intel-rapl:1/energy_uj"), "500000\n").unwrap();
        state.read(false);
        let readings = &state.readings;
        assert_eq!((readings.mhz.as_slice(), readings.joules), (&[2000.0][..], Some(7.5)));
        // Three seconds of two: a little less, since the test takes time too.
        assert!(readings.cores[0] > 1.0 && readings.cores[0] <= 1.5, "{readings:?}");
        assert!(readings.watts[0] > 2.0 && readings.watts[0] <= 3.75, "{readings:?}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_machine_that_says_nothing_is_not_applicable_with_the_reason() {
        let root = fake("nothing");
        fs::remove_dir_all(root.join("sys/devices")).unwrap();
        fs::remove_file(root.join("sys/class/powercap/intel-rapl:0/energy_uj")).unwrap();
        let mut samples = Samples::default();
        MachineSampler::start(&Files::find(&root), 0.02).unwrap().end(&mut samples);
        assert_eq!(samples.gauges.keys().collect::<Vec<_>>(), ["cpu_cores"], "{samples:?}");
        let why = &samples.absent["cpu_watts"];
        assert!(why.starts_with("energy_uj of intel-rapl:0 cannot be read: No such file"), "{why}");
        assert!(samples.absent["cpu_mhz"].starts_with("no cpufreq"), "{samples:?}");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(Files::find(&root).why_no_energy, "no /sys/class/powercap/intel-rapl:0");
    }

    #[test]
    fn a_short_point_has_a_reading_and_says_what_sampling_took() {
        let root = fake("short");
        let mut samples = Samples::default();
        MachineSampler::start(&Files::find(&root), 0.02).unwrap().end(&mut samples);
        assert_eq!(samples.gauges["cpu_mhz"], [2000.0; 3]);
        assert_eq!((samples.gauges["cpu_watts"], samples.counts["cpu_joules"]), ([0.0; 3], 0.0));
        let own_ms = samples.counts["sampling_cpu_ms"];
        assert!(own_ms > 0.0, "{own_ms} ms");
        fs::remove_dir_all(root).unwrap();
    }
}
