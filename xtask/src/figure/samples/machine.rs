//! CPU use, frequency and energy of this machine during a point, read once a second by a separate thread.
//!
//! Source: `proc_stat(5)`; `Documentation/admin-guide/pm/cpufreq.rst` (`scaling_cur_freq`, in kHz);
//! `Documentation/power/powercap` (`energy_uj` of `intel-rapl:N`, also AMD's, wraps at `max_energy_range_uj`;
//! `name`: `package-N` for a processor, `psys` for the platform, processors included).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use experiment::Samples;
use measure::background_load;
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::process::{JsonProgram, WAIT};
use crate::testbed::hosts::Host;

/// Time between two readings.
const APART: Duration = Duration::from_secs(1);
/// The shortest time that a rate is taken over: the kernel counts CPU time in hundredths of a second.
const LEAST: Duration = Duration::from_millis(500);

/// First lines of files, by their paths below the sysfs; `stat` is that of the processes' file system.
type Texts = BTreeMap<String, String>;

/// Shell that answers each line of stdin with these texts of its machine. Argument: the sysfs.
const READER: &str = r#"cd "$1" || exit
echo '{"kind":"ready"}'
while read -r request; do
    read -r said < /proc/stat
    said="\"stat\":\"$said\""
    for file in devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq class/powercap/intel-rapl:*/name \
        class/powercap/intel-rapl:*/energy_uj class/powercap/intel-rapl:*/max_energy_range_uj; do
        read -r line < "$file" && said="$said,\"$file\":\"$line\""
    done 2> /dev/null
    printf '{"kind":"answer","said":{%s}}\n' "$said"
done"#;

/// The machine that is read.
#[derive(Clone)]
pub enum Machine {
    /// This one: `/`, or a folder in tests.
    Here(PathBuf),
    /// A host, by a shell there. Error: why it is not read any more.
    There(Arc<Mutex<Result<JsonProgram, String>>>),
}

impl Machine {
    /// Starts the shell on a host.
    pub fn on(host: &Host, log: &Path) -> Result<Machine> {
        let mut reader = JsonProgram::start(&mut host.command(&["sh", "-c", READER, "sh", &host.sys])?, log)?;
        reader.json("ready", WAIT)?;
        Ok(Machine::There(Arc::new(Mutex::new(Ok(reader)))))
    }

    fn read(&self) -> Reading {
        match self {
            Machine::Here(root) => Reading::of(&texts(root)),
            Machine::There(reader) => {
                let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                let said = match &mut *reader {
                    Ok(program) => program.ask(&json!({}), WAIT).map_err(|error| format!("{error:#}")),
                    Err(why) => Err(why.clone()),
                };
                // A late answer would pass for the next one.
                let said = said.inspect_err(|why| *reader = Err(why.clone()));
                let texts = said.and_then(|mut said| {
                    serde_json::from_value(said["said"].take()).map_err(|error| error.to_string())
                });
                texts.map_or_else(
                    |why| Reading { busy_s: None, mhz: None, energies: Err(why) },
                    |texts| Reading::of(&texts),
                )
            }
        }
    }
}

/// What the reader says, of this machine.
fn texts(root: &Path) -> Texts {
    let sys = root.join("sys");
    let mut texts = Texts::new();
    let mut put = |name: String, file: &Path| {
        texts.extend(fs::read_to_string(file).ok().map(|text| (name, text)));
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
        let khz: Vec<f64> = numbered(texts, "devices/system/cpu/cpu", "/cpufreq/scaling_cur_freq")
            .filter_map(number)
            .collect();
        let zones = numbered(texts, "class/powercap/intel-rapl:", "/name");
        let energy = |name: &str| {
            let zone = name.trim_end_matches("/name");
            let of = |file: &str| {
                let why = || {
                    format!(
                        "{file} of {} cannot be read; root may read it",
                        zone.rsplit('/').next().unwrap_or(zone)
                    )
                };
                number(&format!("{zone}/{file}")).ok_or_else(why)
            };
            Ok([of("energy_uj")?, of("max_energy_range_uj")?])
        };
        // The energy of some of the processors would be taken for that of all.
        let energies: Result<Vec<_>, String> =
            zones.filter(|name| texts[*name].starts_with("package")).map(energy).collect();
        let is_any = |all: &Vec<_>| !all.is_empty();
        Reading {
            busy_s: texts.get("stat").and_then(|stat| background_load::busy(stat)),
            mhz: (!khz.is_empty()).then(|| khz.iter().sum::<f64>() / khz.len() as f64 / 1e3),
            energies: energies.and_then(|all| {
                Some(all).filter(is_any).ok_or_else(|| "no /sys/class/powercap/intel-rapl:0".to_owned())
            }),
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
            let mut state = State::new(&machine);
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
        Ok(MachineSampler { over, thread: thread.context("starting the thread of samples")? })
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
            ("cpu_watts", &readings.watts, &*readings.why_no_energy),
        ] {
            samples.gauge_or(name, readings, why);
        }
        samples.counts.extend(readings.joules.map(|joules| ("cpu_joules".to_owned(), joules)));
        samples.counts.extend(readings.own_ms.map(|ms| ("sampling_cpu_ms".to_owned(), ms)));
    }
}

/// Readings, and the look that the next rates begin from.
struct State<'a> {
    machine: &'a Machine,
    since: Instant,
    last: Reading,
    readings: Readings,
}

impl State<'_> {
    fn new(machine: &Machine) -> State<'_> {
        let last = machine.read();
        let why_no_energy = last.energies.as_ref().err().cloned().unwrap_or_default();
        let readings = Readings { why_no_energy, ..Readings::default() };
        State { machine, since: Instant::now(), last, readings }
    }

    /// Reads gauges during the point, and rates over at least half a second, unless the point is shorter.
    fn read(&mut self, is_over: bool) {
        let seconds = self.since.elapsed();
        let now = self.machine.read();
        if !is_over || self.readings.mhz.is_empty() {
            self.readings.mhz.extend(now.mhz);
        }
        let is_short = self.readings.cores.is_empty() && self.readings.watts.is_empty();
        let joules = now.joules_since(&self.last);
        if seconds < LEAST && !(is_over && is_short) {
            // Its energy counts, though not as a rate.
            if is_over {
                self.add(joules);
            }
            return;
        }
        let seconds = seconds.as_secs_f64().max(1e-3);
        let cores = now.busy_s.zip(self.last.busy_s).map(|(now, before)| ((now - before) / seconds).max(0.0));
        self.readings.cores.extend(cores);
        self.readings.watts.extend(joules.map(|joules| joules / seconds));
        self.add(joules);
        (self.since, self.last) = (Instant::now(), now);
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
        let here = Machine::Here(root.clone());
        let mut state = State::new(&here);
        assert_eq!(state.last.energies, Ok(vec![[1e6, 5e6]; 2]), "subzones and the platform count no more");
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
        MachineSampler::start(&Machine::Here(root.clone()), 0.02).unwrap().end(&mut samples);
        assert_eq!(samples.gauges.keys().collect::<Vec<_>>(), ["cpu_cores"], "{samples:?}");
        let why = &samples.absent["cpu_watts"];
        assert!(why.starts_with("energy_uj of intel-rapl:0 cannot be read; "), "{why}");
        assert!(samples.absent["cpu_mhz"].starts_with("no cpufreq"), "{samples:?}");
        fs::remove_dir_all(&root).unwrap();
        let why = Machine::Here(root).read().energies.unwrap_err();
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
        let there = Machine::There(Arc::new(Mutex::new(Ok(reader))));
        let (here, there) = (Machine::Here(root.clone()).read(), there.read());
        assert_eq!((there.mhz, &there.energies), (Some(2000.0), &here.energies));
        assert!(there.busy_s > Some(0.0) && here.energies.is_ok());
        let gone = Machine::There(Arc::new(Mutex::new(Err("gone".into())))).read();
        assert_eq!((gone.mhz, gone.energies), (None, Err("gone".into())));
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
