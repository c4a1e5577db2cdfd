//! One started program: its output in a file, a deadline on every wait, and no survivor when a test fails.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub use nix::sys::signal::Signal;
use nix::sys::signal::killpg;
use nix::unistd::Pid;

/// Longest life of any program here. Far above what a busy machine needs.
pub const DEADLINE: Duration = Duration::from_secs(300);
/// How often waits look: short beside what they wait for, and cheap.
const LOOK: Duration = Duration::from_millis(5);

/// Lines of output shown on failure: perftest's errors come first, its heading, buffered, after them.
const LAST_LINES: usize = 50;

/// A running program in a process group of its own, killed with its group when dropped.
pub struct Program {
    what: String,
    child: Child,
    output: PathBuf,
    started: Instant,
    status: Option<ExitStatus>,
}

impl Program {
    /// Starts `command` with this standard input, and both output streams going to the file `output`.
    pub fn start(mut command: Command, input: Stdio, what: &str, output: &Path) -> Self {
        let file =
            File::create(output).unwrap_or_else(|error| panic!("creating {}: {error}", output.display()));
        let both = file.try_clone().expect("a second handle of a file just made");
        command.stdin(input).stdout(file).stderr(both).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("starting {what}: {error}"));
        Self { what: what.into(), child, output: output.into(), started: Instant::now(), status: None }
    }

    /// Process id: of the program itself, since `softnic run` becomes the program it starts.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything printed so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// What it has mapped, seen from outside.
    pub fn maps(&self) -> String {
        fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap_or_default()
    }

    /// Time on a processor so far, of all threads (`proc_pid_stat(5)`: utime and stime, in ticks of 10 ms).
    pub fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // The name, field 2, stands in brackets and may hold anything; utime and stime are fields 14 and 15.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 =
            after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
        Duration::from_millis(10 * ticks)
    }

    /// The exit status, once there is one.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("waiting for a child of ours");
        }
        self.status
    }

    /// Waits for the end, at most until `deadline` counted from the start.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus, String> {
        let started = self.started;
        loop {
            if let Some(status) = self.exited() {
                return Ok(status);
            }
            if started.elapsed() > deadline {
                return Err(format!("{} still runs after {deadline:?}\n{}", self.what, self.tail()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for the end and demands exit status 0; returns the output.
    pub fn succeed(&mut self) -> String {
        let status = self.wait(DEADLINE).unwrap_or_else(|why| panic!("{why}"));
        assert!(status.success(), "{}\n{}", self.ending(), self.tail());
        self.output()
    }

    /// Sends a signal to the whole group.
    pub fn signal(&self, signal: Signal) {
        let group = Pid::from_raw(self.pid().try_into().expect("a process id is positive"));
        killpg(group, signal).unwrap_or_else(|error| panic!("{signal} to {}: {error}", self.what));
    }

    /// How it ended, in words.
    pub fn ending(&mut self) -> String {
        match self.exited() {
            None => format!("{} still runs", self.what),
            Some(status) => match status.signal() {
                Some(signal) => format!("{} was ended by signal {signal}", self.what),
                None => format!("{} ended with status {}", self.what, status.code().unwrap_or(-1)),
            },
        }
    }

    /// The last lines of its output, for failure messages.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        format!("--- last lines of {}:\n{last}\n---", self.what)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.exited().is_none() {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

/// A terminal: the master of a new pseudoterminal, which `isatty(3)` takes for one.
pub fn terminal() -> Stdio {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(nix::libc::O_NOCTTY);
    options.open("/dev/ptmx").unwrap_or_else(|error| panic!("/dev/ptmx: {error}")).into()
}

/// Waits until `condition` holds, at most `limit`; says whether it came to hold.
pub fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// The program's path, or why there is none: an absolute path as it is, other names by `PATH`.
pub fn find(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| format!("{name} not found"))
}
