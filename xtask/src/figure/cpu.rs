//! A process's CPU time and voluntary context switches by thread, from `/proc/PID`, the NIC's threads apart.
//!
//! Follows proc(5): `stat` has CPU time in ticks of 1/100 s, the process's with ended threads;
//! `task/TID/status` has a thread's switches. Its start time tells a thread from a later one of its number.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Ticks a second: `USER_HZ`, which is 100 on every Linux of x86-64.
const TICKS: f64 = 100.0;
/// Begin of the names of the NIC's threads.
pub const NIC: &str = "softnic";
/// Begin of the names of the CUDA driver's own threads, which every program that uses it has.
pub const DRIVER: &str = "cuda";
/// Threads that ended between two looks stand under this name.
const ENDED: &str = "(ended)";

/// A thread's number, and when it began in ticks since the machine did.
type ThreadId = (u32, u64);

/// What a thread has used since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Thread {
    name: String,
    ticks: u64,
    switches: u64,
}

/// What a process had used at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// It has ended, and was not waited for.
    has_ended: bool,
    /// All of its threads, those that have ended included.
    ticks: u64,
    threads: BTreeMap<ThreadId, Thread>,
}

/// What a process used between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessUse {
    pub seconds: f64,
    /// CPU seconds of all threads but the NIC's; threads that ended in between count here.
    pub own: f64,
    /// CPU seconds of the NIC's threads.
    pub nic: f64,
    /// Voluntary context switches by name of all threads but the NIC's that lived at the end.
    pub switches: BTreeMap<String, u64>,
    /// Threads that did not live at the end any more, whose switches are not known.
    pub ended: usize,
    /// CPU seconds by a thread's name.
    pub by_name: BTreeMap<String, f64>,
}

impl ProcessUse {
    pub fn own_cores(&self) -> f64 {
        self.own / self.seconds.max(1e-9)
    }

    pub fn nic_cores(&self) -> f64 {
        self.nic / self.seconds.max(1e-9)
    }

    /// Without threads whose name begins so, if that says anything.
    pub fn switches_per_s(&self, without: &str) -> f64 {
        let counts = |name: &str| without.is_empty() || !name.starts_with(without);
        let all = self.switches.iter().filter(|(name, _)| counts(name)).map(|(_, count)| count);
        all.sum::<u64>() as f64 / self.seconds.max(1e-9)
    }
}

/// A text of `stat`. The name, in brackets, may hold brackets and spaces.
fn stat(text: &str) -> Option<Stat> {
    let (before, after) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    // The state is the first field behind the name, and field 3 of all.
    let fields: Vec<&str> = after.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let has_ended = fields.first() == Some(&"Z");
    Some(Stat { name, ticks: number(14)?.checked_add(number(15)?)?, began: number(22)?, has_ended })
}

/// What `stat` says of a process or a thread.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    ticks: u64,
    /// In ticks since the machine's begin.
    began: u64,
    has_ended: bool,
}

/// Voluntary switches in a text of `status`.
fn switches(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

impl ProcessSnapshot {
    /// Looks at a process; `folder`: `/proc/PID`. One that has ended and was not waited for has its sum, and
    /// no threads. Errors: it is gone; a file is not as proc(5) says.
    pub fn at(folder: &Path) -> Result<ProcessSnapshot> {
        let file = folder.join("stat");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let threads = fs::read_dir(folder.join("task")).into_iter().flatten().flatten().filter_map(|entry| {
            // A thread may end while it is looked at: it counts as ended.
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
            Some((entry.file_name().to_str()?.parse().ok()?, read("stat")?, read("status")?))
        });
        ProcessSnapshot::of(&text, threads)
            .with_context(|| format!("{}: `{}` is no stat of proc(5)", file.display(), text.trim()))
    }

    /// Of the process's `stat`, and of each thread's number, `stat` and `status`.
    fn of(process: &str, threads: impl Iterator<Item = (u32, String, String)>) -> Option<ProcessSnapshot> {
        let Stat { ticks, has_ended, .. } = stat(process)?;
        let threads = threads.filter_map(|(number, text, status)| {
            let (Stat { name, ticks, began, .. }, switches) = (stat(&text)?, switches(&status)?);
            Some(((number, began), Thread { name, ticks, switches }))
        });
        Some(ProcessSnapshot { ticks, has_ended, threads: threads.collect() })
    }

    /// From [`READER`]'s lines `FILE:LINE` of these files below `/proc`, separated by `|`. Error: the process
    /// is gone, or they are another one's.
    pub fn of_lines(process: u32, said: &str) -> Result<ProcessSnapshot> {
        let lines = || said.split('|').filter_map(|line| line.split_once(':'));
        let text = |file: &str| lines().find(|(name, _)| *name == file).map(|(_, text)| text);
        let (first, _) = lines().next().context("the process is gone")?;
        let process = format!("/proc/{process}/stat");
        ensure!(first == process, "the first file is {first}, not {process}");
        let threads = lines().filter_map(|(file, stat)| {
            let folder = file.strip_suffix("/stat")?;
            let (_, number) = folder.rsplit_once("/task/")?;
            Some((number.parse().ok()?, stat.to_owned(), text(&format!("{folder}/status"))?.to_owned()))
        });
        let stat = text(&process).unwrap_or_default();
        ProcessSnapshot::of(stat, threads)
            .with_context(|| format!("{process}: `{stat}` is no stat of proc(5)"))
    }

    /// Whether it had ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Ticks of each thread but the NIC's.
    pub fn own_ticks(&self) -> Vec<u64> {
        let own = self.threads.values().filter(|thread| !thread.name.starts_with(NIC));
        own.map(|thread| thread.ticks).collect()
    }

    /// Takes what a later look saw. Threads that it did not see any more keep what they had used.
    pub fn update(&mut self, later: ProcessSnapshot) {
        (self.ticks, self.has_ended) = (later.ticks, later.has_ended);
        self.threads.extend(later.threads);
    }

    /// What was used from `before` until this look.
    pub fn since(&self, before: &ProcessSnapshot, seconds: f64) -> ProcessUse {
        let mut used = ProcessUse { seconds, ..ProcessUse::default() };
        let mut alive = 0;
        for (id, thread) in &self.threads {
            let none = Thread::default();
            let then = before.threads.get(id).unwrap_or(&none);
            let ticks = thread.ticks.saturating_sub(then.ticks);
            alive = ticks.saturating_add(alive);
            *used.by_name.entry(thread.name.clone()).or_default() += ticks as f64 / TICKS;
            if thread.name.starts_with(NIC) {
                used.nic += ticks as f64 / TICKS;
            } else {
                *used.switches.entry(thread.name.clone()).or_default() +=
                    thread.switches.saturating_sub(then.switches);
            }
        }
        used.ended = before.threads.keys().filter(|id| !self.threads.contains_key(id)).count();
        // The sum was read before the threads were, so that a running thread may be ahead of it.
        let whole = self.ticks.saturating_sub(before.ticks).max(alive);
        if whole > alive {
            used.by_name.insert(ENDED.into(), (whole - alive) as f64 / TICKS);
        }
        used.own = whole as f64 / TICKS - used.nic;
        used
    }
}

/// Run by `sh`: answers each line of stdin, a process, with what [`ProcessSnapshot::of_lines`] reads.
pub const READER: &str = r#"while read -r process; do
    at=/proc/$process
    said=$(grep -sH -e '^[0-9]' -e '^voluntary_ctxt' "$at/stat" "$at"/task/*/stat "$at"/task/*/status | tr '|\n\t"\\' '_| __')
    printf '{"kind":"answer","said":"%s"}\n' "$said"
done"#;

/// Looks at one process. Error: it is gone.
pub type Look = Box<dyn FnMut() -> Result<ProcessSnapshot> + Send>;

/// One look of a [`ProcessSampler`]: seconds since it began.
type Taken = (f64, ProcessSnapshot);

/// Looks at a process again and again, on a thread of its own.
pub struct ProcessSampler {
    began: Instant,
    look: Arc<Mutex<Look>>,
    /// The thread ends when this does.
    over: Sender<()>,
    thread: JoinHandle<Vec<Taken>>,
}

impl ProcessSampler {
    /// Begins; looks are so far apart. Error: no thread.
    pub fn start(look: Look, apart: Duration) -> Result<ProcessSampler> {
        let look = Arc::new(Mutex::new(look));
        let (began, (over, is_over), seen) = (Instant::now(), channel(), Arc::clone(&look));
        let looks = move || {
            let mut taken = Vec::new();
            loop {
                let look = seen.lock().unwrap_or_else(PoisonError::into_inner)().ok();
                taken.extend(look.map(|look| (began.elapsed().as_secs_f64(), look)));
                if is_over.recv_timeout(apart) != Err(RecvTimeoutError::Timeout) {
                    return taken;
                }
            }
        };
        let thread = std::thread::Builder::new().name("cpu-watch".into()).spawn(looks)?;
        Ok(ProcessSampler { began, look, over, thread })
    }

    /// Seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A look now, for the border of a phase. Error: the process is gone.
    pub fn border(&self) -> Result<Taken> {
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((self.seconds(), look()?))
    }

    /// Ends: all looks in their order.
    pub fn end(self) -> Vec<Taken> {
        drop(self.over);
        self.thread.join().unwrap_or_default()
    }
}

/// Cores between each two looks: the middle of the time, cores of its own and of the NIC's threads.
pub fn timeline(taken: &[Taken]) -> Vec<[f64; 3]> {
    let cores = |pair: &[Taken]| {
        let used = pair[1].1.since(&pair[0].1, pair[1].0 - pair[0].0);
        [(pair[0].0 + pair[1].0) / 2.0, used.own_cores(), used.nic_cores()]
    };
    taken.windows(2).map(cores).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;
    use crate::process::{JsonProgram, WAIT, wait_for};

    impl ProcessSnapshot {
        /// A process without threads that can be seen, after so many ticks.
        pub fn after(ticks: u64) -> ProcessSnapshot {
            ProcessSnapshot { ticks, ..ProcessSnapshot::default() }
        }
    }

    /// A line of `stat` with these fields, and others that are no zeros.
    fn line(id: u32, name: &str, [utime, stime, began]: [u64; 3]) -> String {
        format!(
            "{id} ({name}) S 1 7 7 0 -1 4194560 99 98 97 96 {utime} {stime} 95 94 20 0 3 0 {began} 5000 60 18446744073709551615"
        )
    }

    #[test]
    fn a_name_may_hold_brackets_and_spaces_and_children_do_not_count() {
        let read = Stat { name: "a) (b 1".into(), ticks: 16, began: 300, has_ended: false };
        assert_eq!(stat(&line(7, "a) (b 1", [11, 5, 300])), Some(read));
        for damaged in ["", "7", "7 (a", "7 (a) S 1 2 3", &line(7, "a", [1, 2, 3]).replace(" 1 2 ", " x 2 ")]
        {
            assert_eq!(stat(damaged), None, "{damaged}");
        }
        let status = "Name:\ta\nnonvoluntary_ctxt_switches:\t9\nvoluntary_ctxt_switches:\t41\n";
        assert_eq!(switches(status), Some(41));
        assert_eq!(switches("Name:\ta\n"), None);
    }

    /// A process in a folder: its sum, and threads by number, name, ticks, begin and switches.
    fn process(name: &str, ticks: u64, threads: &[(u32, &str, u64, u64, u64)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-cpu-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("task")).unwrap();
        fs::write(folder.join("stat"), line(1, "server", [ticks, 0, 50])).unwrap();
        for (id, name, ticks, began, switches) in threads {
            let task = folder.join(format!("task/{id}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("stat"), line(*id, name, [*ticks - *ticks / 2, *ticks / 2, *began])).unwrap();
            fs::write(task.join("status"), format!("voluntary_ctxt_switches:\t{switches}\n")).unwrap();
        }
        folder
    }

    /// M15: the release's sampler compares a core's number as text to numbers; an unpinned run reads 0.
    #[test]
    fn release_m15_every_thread_counts_wherever_it_runs_and_those_that_ended_too() {
        let before = process(
            "before",
            1000,
            &[
                (1, "server", 400, 50, 10),
                (2, "softnic-nic", 500, 51, 1000),
                (3, "worker", 100, 52, 5),
                (5, "cuda-EvtHandlr", 1, 53, 20),
            ],
        );
        let after = process(
            "after",
            1760,
            &[
                (1, "server", 410, 50, 12),
                (2, "softnic-nic", 1100, 51, 9000),
                // Number 3 is another thread, and a further NIC thread is new.
                (3, "later", 30, 900, 7),
                (4, "softnic-ctl", 20, 901, 50),
                (5, "cuda-EvtHandlr", 1, 53, 220),
            ],
        );
        let [one, two] = [&before, &after].map(|folder| ProcessSnapshot::at(folder).unwrap());
        let used = two.since(&one, 10.0);
        // 760 ticks in all: the server's 10, the later one's 30, the NIC's 620, and 100 of ended threads.
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        assert_eq!([rounded(used.own), rounded(used.nic), used.seconds], [1.4, 6.2, 10.0]);
        assert_eq!(used.ended, 1);
        let apart = [("cuda-EvtHandlr".to_owned(), 200), ("later".into(), 7), ("server".into(), 2)];
        assert_eq!(used.switches, BTreeMap::from(apart), "the NIC's switches do not count");
        let names: Vec<(&str, f64)> =
            used.by_name.iter().map(|(name, seconds)| (name.as_str(), *seconds)).collect();
        let wanted = [
            (ENDED, 1.0),
            ("cuda-EvtHandlr", 0.0),
            ("later", 0.3),
            ("server", 0.1),
            ("softnic-ctl", 0.2),
            ("softnic-nic", 6.0),
        ];
        assert_eq!(names, wanted);
        assert!(
            (used.own_cores() - 0.14).abs() < 1e-9
                && (used.switches_per_s(DRIVER) - 0.9).abs() < 1e-9
                && (used.switches_per_s("") - 20.9).abs() < 1e-9
        );
        for folder in [before, after] {
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn the_nics_threads_of_a_process_that_has_ended_are_still_the_nics() {
        let folders = [
            process("lives", 1000, &[(1, "server", 400, 50, 10), (2, "softnic-nic", 600, 51, 1000)]),
            process("ends", 1300, &[(1, "server", 410, 50, 11), (2, "softnic-nic", 890, 51, 1900)]),
            // A zombie: the leader alone is there.
            process("zombie", 1310, &[(1, "server", 420, 50, 12)]),
        ];
        let [lives, ends, zombie] = folders.each_ref().map(|folder| ProcessSnapshot::at(folder).unwrap());
        let mut last = lives.clone();
        [ends, zombie].into_iter().for_each(|look| last.update(look));
        let used = last.since(&lives, 1.0);
        assert_eq!([used.own, used.nic].map(|seconds| (seconds * 100.0).round()), [20.0, 290.0]);
        folders.iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
    }

    #[test]
    fn a_shell_on_a_host_says_of_a_process_what_is_read_here() {
        let log = std::env::temp_dir().join(format!("xtask-cpu-reader-{}", std::process::id()));
        // It waits for its stdin: what it used does not change.
        let mut idle =
            JsonProgram::start(Command::new("sh").args(["-c", "echo '{\"kind\":\"a\"}'; read x"]), &log)
                .unwrap();
        idle.json("a", WAIT).unwrap();
        let mut reader = JsonProgram::start(Command::new("sh").args(["-c", READER]), &log).unwrap();
        let id = idle.child.0.id();
        let mut look = |id: u32| {
            let said = reader.ask(&id.into(), WAIT).unwrap();
            ProcessSnapshot::of_lines(id, said["said"].as_str().unwrap())
        };
        let here = || ProcessSnapshot::at(Path::new(&format!("/proc/{id}"))).unwrap();
        let is_same = wait_for(WAIT, || Ok((look(id)? == here()).then_some(())));
        assert!(is_same.unwrap().is_some(), "{:?} {:?}", look(id), here());
        assert_eq!((here().threads.len(), look(id).unwrap().has_ended()), (1, false));
        assert_eq!(look(4_194_305).unwrap_err().to_string(), "the process is gone");
        let of_another = ProcessSnapshot::of_lines(7, "/proc/8/stat:8 (sh) S 1").unwrap_err().to_string();
        assert_eq!(of_another, "the first file is /proc/8/stat, not /proc/7/stat");
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(id.try_into().unwrap()),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        let has_ended = wait_for(WAIT, || Ok(look(id)?.has_ended().then_some(())));
        assert!(has_ended.unwrap().is_some(), "{:?}", look(id));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_process_that_is_gone_or_damaged_is_an_error_that_names_the_file() {
        let error = ProcessSnapshot::at(Path::new("/proc/4194305")).unwrap_err();
        assert!(format!("{error:#}").contains("/proc/4194305/stat"), "{error:#}");
        let folder = process("damaged", 1, &[]);
        fs::write(folder.join("stat"), "1 (a) S").unwrap();
        let error = ProcessSnapshot::at(&folder).unwrap_err().to_string();
        assert!(error.contains("is no stat of proc(5)"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn this_process_is_seen_to_work_and_a_watch_keeps_its_looks() {
        let own = PathBuf::from(format!("/proc/{}", std::process::id()));
        let look = Box::new(move || ProcessSnapshot::at(&own));
        let watch = ProcessSampler::start(look, Duration::from_millis(1)).unwrap();
        let first = watch.border().unwrap();
        // Other tests of this process work too.
        let worked = || watch.border().unwrap().1.since(&first.1, 1.0).own >= 0.05;
        let since = Instant::now();
        while !worked() {
            assert!(since.elapsed() < Duration::from_secs(60));
            (0..200_000_u64).for_each(|number| {
                std::hint::black_box(number);
            });
        }
        let taken = watch.end();
        assert!(taken.len() >= 2 && taken.is_sorted_by(|one, next| one.0 <= next.0));
        let has_itself =
            |look: &ProcessSnapshot| look.threads.values().any(|thread| thread.name == "cpu-watch");
        assert!(taken.iter().all(|(_, look)| has_itself(look)));
        let line = timeline(&taken);
        assert_eq!(line.len(), taken.len() - 1);
        assert!(line.iter().any(|[_, own, nic]| *own > 0.0 && *nic == 0.0));
    }
}
