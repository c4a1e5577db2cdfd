//! CPU use, frequency and energy of this machine during a point, read once a second by a separate thread.
//!
//! Source: `proc_stat(5)`; `Documentation/admin-guide/pm/cpufreq.rst` (`scaling_cur_freq`, in kHz);
//! `Documentation/power/powercap` (`energy_uj` of `intel-rapl:N`, also AMD's, wraps at `max_energy_range_uj`;
//! `name`: `package-N` for a processor, `psys` for the platform, processors included).

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use experiment::Samples;
use measure::background_load;
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::figure::reader::{self, Reader};
use crate::testbed::hosts::Host;

/// Time between two readings.
const APART: Duration = Duration::from_secs(1);
/// The shortest time that a rate is taken over: the kernel counts CPU time in hundredths of a second.
const LEAST: Duration = Duration::from_millis(500);

/// First lines of files, by their paths below the sysfs; empty: the file is there and cannot be read. `stat`
/// is that of the processes' file system.
type Texts = BTreeMap<String, String>;

/// Shell that answers each line of stdin with these texts of its machine. Argument: the sysfs.
const READER: &str = r#"cd "$1" || exit
echo '{"kind":"ready"}'
while read -r request; do
    read -r said < /proc/stat
    said="\"stat\":\"$said\""
    for file in devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq class/powercap/intel-rapl:*/name \
        class/powercap/intel-rapl:*/energy_uj class/powercap/intel-rapl:*/max_energy_range_uj; do
        line=
        test -e "$file" && { read -r line < "$file"; said="$said,\"$file\":\"$line\""; }
    done 2> /dev/null
    printf '{"kind":"answer","said":{%s}}\n' "$said"
done"#;

/// The machine that is read.
#[derive(Clone)]
pub enum Machine {
    /// This one: `/`, or a folder in tests.
    Here(PathBuf),
    /// A host, by a shell there.
    There(Arc<Reader>),
}

impl Machine {
    /// Starts the shell on a host.
    pub fn on(host: &Host, log: &Path) -> Machine {
        let shell = host.command(&["sh", "-c", READER, "sh", &host.sys]);
        let shell = shell.and_then(|mut shell| reader::ready(&mut shell, log));
        Machine::There(Arc::new(Reader::of(&host.name, shell)))
    }

    /// Error: why the machine is not read any more.
    fn read(&self) -> Result<Reading, String> {
        match self {
            Machine::Here(root) => Ok(Reading::of(&texts(root))),
            Machine::There(reader) => reader
                .ask(&json!({}), |mut said| Ok(Reading::of(&serde_json::from_value(said["said"].take())?))),
        }
    }
}

/// What the reader says, of this machine.
fn texts(root: &Path) -> Texts {
    let sys = root.join("sys");
    let mut texts = Texts::new();
    let mut put = |name: String, file: &Path| {
        let text = fs::read_to_string(file);
        let is_there = !text.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        texts.extend(is_there.then(|| (name, text.unwrap_or_default())));
    };
    put("stat".into(), &root.join("proc/stat"));
    for (folder, files) in [
        ("devices/system/cpu", &["cpufreq/scaling_cur_freq"][..]),
        ("class/powercap", &["name", "energy_uj", "max_energy_range_uj"]),
    ] {
        for entry in fs::read_dir(sys.join(folder)).into_iter().flatten().flatten() {
            for file in files {
                let name = format!("{folder}/{}/{file}", entry.file_name().to_string_lossy());
                put(name.clone(), &sys.join(name));
            }
        }
    }
    texts
}

/// One look at a machine.
struct Reading {
    /// When it had come: between two readings of a host lies a round trip, which the counters span too.
    at: Instant,
    /// Seconds since the machine's start that cores were busy.
    busy_s: Option<f64>,
    /// Mean of all cores.
    mhz: Option<f64>,
    /// Counter of each processor in µJ, and the value at which it begins again. Error: why there is none.
    energies: Result<Vec<[f64; 2]>, String>,
}

impl Reading {
    fn of(texts: &Texts) -> Reading {
        let number = |name: &str| texts.get(name)?.trim().parse::<f64>().ok();
        let files = numbered(texts, "devices/system/cpu/cpu", "/cpufreq/scaling_cur_freq");
        let khz: Vec<f64> = files.filter_map(number).collect();
        let zones = numbered(texts, "class/powercap/intel-rapl:", "/name");
        let energy = |name: &str| {
            let zone = name.trim_end_matches("/name");
            let of = |file: &str| {
                let path = format!("{zone}/{file}");
                let why = match texts.contains_key(&path) {
                    true => "cannot be read; root may read it",
                    false => "is not there",
                };
                number(&path)
                    .ok_or_else(|| format!("{file} of {} {why}", zone.rsplit('/').next().unwrap_or(zone)))
            };
            Ok([of("energy_uj")?, of("max_energy_range_uj")?])
        };
        // The energy of some of the processors would be taken for that of all.
        let energies: Result<Vec<_>, String> =
            zones.filter(|name| texts[*name].starts_with("package")).map(energy).collect();
        let energies = match energies {
            Ok(none) if none.is_empty() => Err("no /sys/class/powercap/intel-rapl:0".to_owned()),
            energies => energies,
        };
        Reading {
            at: Instant::now(),
            busy_s: texts.get("stat").and_then(|stat| background_load::busy(stat)),
            mhz: (!khz.is_empty()).then(|| khz.iter().sum::<f64>() / khz.len() as f64 / 1e3),
            energies,
        }
    }

    /// Joules of all processors since an earlier look.
    fn joules_since(&self, before: &Reading) -> Option<f64> {
        let (Ok(before), Ok(after)) = (&before.energies, &self.energies) else { return None };
        let grown = before.iter().zip(after).map(|([before, _], [after, range])| {
            let grown = after - before;
            if grown < 0.0 { grown + range } else { grown }
        });
        (before.len() == after.len()).then(|| grown.sum::<f64>() / 1e6)
    }
}

/// The names that are `FIRST`, a number and `LAST`.
fn numbered<'a>(texts: &'a Texts, first: &'a str, last: &'a str) -> impl Iterator<Item = &'a str> {
    let is_one = move |name: &&str| {
        let number = name.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
        number.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    texts.keys().map(String::as_str).filter(is_one)
}

/// What the thread has read.
#[derive(Debug, Default)]
struct Readings {
    cores: Vec<f64>,
    mhz: Vec<f64>,
    watts: Vec<f64>,
    joules: Option<f64>,
    /// Why there is no energy, if there is none.
    why_no_energy: String,
    /// Why the machine was not read to the end, if it was not.
    failed: Option<String>,
    /// CPU time of the thread itself.
    own_ms: Option<f64>,
}

/// The thread of one point.
#[derive(Debug)]
pub struct MachineSampler {
    over: Sender<()>,
    thread: JoinHandle<Readings>,
}

impl MachineSampler {
    /// Reads from now on. The first reading is after half of `seconds`, so that a short point has one.
    pub fn start(machine: &Machine, seconds: f64) -> Result<MachineSampler> {
        let (over, is_over) = channel();
        let machine = machine.clone();
        let first = APART.min(Duration::try_from_secs_f64(seconds / 2.0).unwrap_or(APART));
        let reads = move || {
            let mut state = match State::new(&machine) {
                Ok(state) => state,
                Err(why) => return Readings { failed: Some(why), ..Readings::default() },
            };
            let mut wait = first;
            loop {
                // The owner drops its end, or says that the point is over.
                let is_over = !matches!(is_over.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
                let failed = state.read(is_over).err();
                if is_over || failed.is_some() {
                    return Readings { own_ms: own_ms(), failed, ..state.readings };
                }
                wait = APART;
            }
        };
        let thread = std::thread::Builder::new().name("samples".into()).spawn(reads);
        Ok(MachineSampler { over, thread: thread.context("starting the thread of samples")? })
    }

    /// Ends it, and puts what it has read into the point's samples.
    pub fn end(self, samples: &mut Samples) {
        let _ = self.over.send(());
        let Ok(readings) = self.thread.join() else {
            samples.absent.insert("cpu".into(), "the thread of samples failed".into());
            return;
        };
        let failed = readings.failed.as_deref();
        for (name, all, why) in [
            ("cpu_cores", &readings.cores, "/proc/stat does not say"),
            ("cpu_mhz", &readings.mhz, "no cpufreq below /sys/devices/system/cpu"),
            ("cpu_watts", &readings.watts, &*readings.why_no_energy),
        ] {
            samples.gauge_or(name, all, failed.unwrap_or(why));
        }
        samples.counts.extend(readings.joules.map(|joules| ("cpu_joules".to_owned(), joules)));
        samples.counts.extend(readings.own_ms.map(|ms| ("sampling_cpu_ms".to_owned(), ms)));
    }
}

/// Readings, and the look that the next rates begin from.
struct State<'a> {
    machine: &'a Machine,
    last: Reading,
    readings: Readings,
}

impl State<'_> {
    fn new(machine: &Machine) -> Result<State<'_>, String> {
        let last = machine.read()?;
        let changed = || "the processors with a counter of energy changed".to_owned();
        let why_no_energy = last.energies.as_ref().err().cloned().unwrap_or_else(changed);
        let readings = Readings { why_no_energy, ..Readings::default() };
        Ok(State { machine, last, readings })
    }

    /// Reads gauges during the point, and rates over at least half a second, unless the point is shorter.
    fn read(&mut self, is_over: bool) -> Result<(), String> {
        let now = self.machine.read()?;
        let seconds = now.at.saturating_duration_since(self.last.at);
        if !is_over || self.readings.mhz.is_empty() {
            self.readings.mhz.extend(now.mhz);
        }
        let is_short = self.readings.cores.is_empty() && self.readings.watts.is_empty();
        let joules = now.joules_since(&self.last);
        let is_rate = seconds >= LEAST || is_over && is_short;
        // At the end energy counts, though not as a rate.
        if let (Some(joules), true) = (joules, is_rate || is_over) {
            *self.readings.joules.get_or_insert(0.0) += joules;
        }
        if is_rate {
            let seconds = seconds.as_secs_f64().max(1e-3);
            let busy = now.busy_s.zip(self.last.busy_s);
            self.readings.cores.extend(busy.map(|(now, before)| ((now - before) / seconds).max(0.0)));
            self.readings.watts.extend(joules.map(|joules| joules / seconds));
            self.last = now;
        }
        Ok(())
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
    use crate::process::{JsonProgram, WAIT};

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
        let here = Machine::Here(root.clone());
        let mut state = State::new(&here).unwrap();
        assert_eq!(state.last.energies, Ok(vec![[1e6, 5e6]; 2]), "subzones and the platform count no more");
        state.last.at -= Duration::from_secs(2);
        fs::write(root.join("proc/stat"), "cpu  300 0 100 5000 0 0 0 0 0 0\n").unwrap();
        fs::write(root.join("sys/class/powercap/intel-rapl:0/energy_uj"), "4000000\n").unwrap();
        // From 1 J over the range of 5 J to 0.5 J: 4.5 J.
        fs::write(root.join("sys/class/powercap/intel-rapl:1/energy_uj"), "500000\n").unwrap();
        state.read(false).unwrap();
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
        MachineSampler::start(&Machine::Here(root.clone()), 0.02).unwrap().end(&mut samples);
        assert_eq!(samples.gauges.keys().collect::<Vec<_>>(), ["cpu_cores"], "{samples:?}");
        let why = &samples.absent["cpu_watts"];
        assert_eq!(why, "energy_uj of intel-rapl:0 is not there");
        assert!(samples.absent["cpu_mhz"].starts_with("no cpufreq"), "{samples:?}");
        fs::remove_dir_all(&root).unwrap();
        let why = Machine::Here(root).read().unwrap().energies.unwrap_err();
        assert_eq!(why, "no /sys/class/powercap/intel-rapl:0");
    }

    /// The processes' file system is the machine's own.
    #[test]
    fn the_shell_of_a_host_reads_the_same_files() {
        let root = fake("there");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", READER, "sh"]).arg(root.join("sys"));
        let mut reader = JsonProgram::start(&mut shell, &root.join("log")).unwrap();
        reader.json("ready", WAIT).unwrap();
        let there = Machine::There(Arc::new(Reader::of("far", Ok(reader))));
        let here = Machine::Here(root.clone());
        let read = || [&here, &there].map(|machine| machine.read().unwrap());
        let [of_here, of_there] = read();
        assert_eq!((of_there.mhz, &of_there.energies), (Some(2000.0), &of_here.energies));
        assert!(of_there.busy_s > Some(0.0) && of_here.energies.is_ok());
        let energy = root.join("sys/class/powercap/intel-rapl:1/energy_uj");
        fs::remove_file(&energy).unwrap();
        let gone = Err("energy_uj of intel-rapl:1 is not there".to_owned());
        assert_eq!(read().map(|reading| reading.energies), [gone.clone(), gone]);
        // Stands in for a file that only root may read: root runs tests too.
        fs::create_dir(&energy).unwrap();
        let refused = Err("energy_uj of intel-rapl:1 cannot be read; root may read it".to_owned());
        assert_eq!(read().map(|reading| reading.energies), [refused.clone(), refused]);
        fs::remove_dir_all(root).unwrap();
    }

    /// Each answer of this host takes a fifth of a second, in which one core is busy.
    #[test]
    fn the_way_to_a_host_is_in_the_time_of_a_rate_as_it_is_in_the_counters() {
        let log = std::env::temp_dir().join(format!("xtask-samples-far-{}", std::process::id()));
        let shell = r#"busy=0; while read -r asked; do sleep 0.2; busy=$((busy+20))
            echo "{\"kind\":\"answer\",\"said\":{\"stat\":\"cpu  $busy 0 0 0 0 0 0 0 0 0\"}}"; done"#;
        let reader = JsonProgram::start(std::process::Command::new("sh").args(["-c", shell]), &log).unwrap();
        let far = Machine::There(Arc::new(Reader::of("far", Ok(reader))));
        let mut state = State::new(&far).unwrap();
        state.read(true).unwrap();
        let cores = state.readings.cores[0];
        assert!(cores > 0.0 && cores <= 1.0, "{cores} of one core");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_host_that_is_not_read_is_not_applicable_with_the_words_of_its_shell() {
        let root = fake("silent");
        let ssh = root.join("ssh");
        crate::process::script(&ssh, "#!/bin/sh\necho 'no route to host' >&2; exit 255\n");
        let own = [("name", "a".into()), ("ssh", ssh.display().to_string().into())];
        let host = serde_json::from_str(&crate::testbed::hosts::tests::line(&own)).unwrap();
        let mut samples = Samples::default();
        MachineSampler::start(&Machine::on(&host, &root.join("log")), 0.02).unwrap().end(&mut samples);
        assert_eq!(samples.absent.len(), 3, "{samples:?}");
        for why in samples.absent.values() {
            assert!(why.starts_with("a: ") && why.contains("no route to host"), "{samples:?}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_short_point_has_a_reading_and_says_what_sampling_took() {
        let root = fake("short");
        let mut samples = Samples::default();
        MachineSampler::start(&Machine::Here(root.clone()), 0.02).unwrap().end(&mut samples);
        assert_eq!(samples.gauges["cpu_mhz"], [2000.0; 3]);
        assert_eq!((samples.gauges["cpu_watts"], samples.counts["cpu_joules"]), ([0.0; 3], 0.0));
        let own_ms = samples.counts["sampling_cpu_ms"];
        assert!(own_ms > 0.0, "{own_ms} ms");
        fs::remove_dir_all(root).unwrap();
    }
}
