//! Programs that a command runs: output to a log, a time limit, and nothing left behind.
//!
//! No library: `duct` and `xshell` wait without a limit, end a child but not what it started, and count no
//! descendant's CPU time. Tests and figures need all of that.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use measure::background_load::seconds_of;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::descendants::{halted, is_alive, send};
use crate::refused::refused;
use crate::{shell, stop};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Exit status 0.
    Well,
    Status(i32),
    /// By a signal that xtask did not send.
    Signal(i32),
    /// We ended it after its time limit.
    TimedOut,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Ended::Well => f.write_str("ended well"),
            Ended::Status(code) => write!(f, "ended with status {code}"),
            Ended::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {number}"),
            },
            Ended::TimedOut => f.write_str("took longer than it may"),
        }
    }
}

/// Runs `command` to its end with stdout and stderr in `log`; ends it and all it started after `limit`.
pub fn run_logged(command: &mut Command, log: &Path, limit: Duration) -> Result<Ended> {
    Ok(run_timed(command, log, limit)?.0)
}

/// As [`run_logged`], of a program whose status 1 means that its results say what is wrong; also returns its
/// last words. Error: it refused (status 2) or crashed.
pub fn run_told(command: &mut Command, log: &Path, limit: Duration, what: &str) -> Result<(Ended, String)> {
    let ended = run_logged(command, log, limit)?;
    let last = last_words(log);
    match ended {
        Ended::Well | Ended::Status(1) => Ok((ended, last)),
        Ended::Status(2) => Err(refused(last)),
        ended => bail!("{what} {ended}: {last} (whole log: {})", log.display()),
    }
}

pub fn last_words(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    said.lines().last().unwrap_or("it said nothing").to_owned()
}

/// As [`run_logged`]; also returns the CPU time of the program and of all below it that it waited for.
pub fn run_timed(command: &mut Command, log: &Path, limit: Duration) -> Result<(Ended, Duration)> {
    let mut child = ChildGuard::logged(command, log)?;
    let (since, process) = (Instant::now(), child.0.id());
    wait_for(limit, || Ok((!is_alive(process)).then_some(())))?;
    // A program that has ended and was not waited for still has its counts.
    let used = Duration::from_secs_f64(seconds_of(process).unwrap_or_default());
    Ok((child.wait(limit.saturating_sub(since.elapsed()))?, used))
}

/// Asks every 20 ms until there is an answer; `None`: there was none within `limit`.
pub fn wait_for<T>(limit: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let since = Instant::now();
    loop {
        let answer = ask()?;
        if answer.is_some() || since.elapsed() >= limit {
            return Ok(answer);
        }
        sleep(Duration::from_millis(20));
    }
}

/// What a program says on stdout, if it ends well within `limit`.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = ChildGuard::start(command)?;
    let mut stdout = child.0.stdout.take().context("stdout was piped")?;
    let (said, text) = channel();
    // Ends with the program.
    std::thread::spawn(move || said.send(std::io::read_to_string(&mut stdout)));
    match child.wait(limit)? {
        // Something that it started may hold its stdout open for as long as it likes.
        Ended::Well => text
            .recv_timeout(limit.min(WAIT))
            .map_err(|_| anyhow!("{program} ended, but something that it started keeps its stdout open"))?
            .context("reading its output"),
        ended => bail!("{program} {ended}"),
    }
}

/// A program, the first of these words, with the others as its arguments.
pub fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// The first words of a command line, for errors.
fn line(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    shell::line(&words).chars().take(100).collect()
}

/// What a small program says on stdout once it ends. Error: it failed, with its words on stderr and stdout.
pub fn said(command: &mut Command) -> Result<String> {
    let ended = command.stdin(Stdio::null()).output();
    let ended = ended.with_context(|| format!("starting {}", command.get_program().display()))?;
    let [said, error] = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(ended.status.success(), "{}: {}", line(command), format!("{error}\n{said}").trim());
    Ok(said)
}

/// Runs a program that speaks for itself, to its end. Error: it ended badly.
pub fn done(command: &mut Command) -> Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("starting {}", command.get_program().display()))?;
    ensure!(status.success(), "{} failed", line(command));
    Ok(())
}

/// The first program of these names in `PATH`, or in one of the folders behind it.
pub fn on_path(names: &[&str], behind: &[&Path]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(behind.iter().map(|folder| (*folder).to_owned()));
    let programs = folders.flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    programs.into_iter().find(|program| program.is_file())
}

/// A child that does not outlive its owner, nor do its own children.
#[derive(Debug)]
pub struct ChildGuard(pub Child);

impl ChildGuard {
    /// Starts a program, unless this command is being stopped.
    pub fn start(command: &mut Command) -> Result<ChildGuard> {
        stop::hold();
        let child = command.spawn();
        Ok(ChildGuard(child.with_context(|| format!("starting {}", command.get_program().display()))?))
    }

    /// Starts a program with stdout and stderr in `log`.
    pub fn logged(command: &mut Command, log: &Path) -> Result<ChildGuard> {
        let file = fs::create_dir_all(log.parent().unwrap_or(log)).and_then(|()| File::create(log));
        let file = file.with_context(|| format!("writing {}", log.display()))?;
        ChildGuard::start(command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file))
    }

    /// Waits for the end; after `limit` ends it.
    pub fn wait(&mut self, limit: Duration) -> Result<Ended> {
        let ended = wait_for(limit, || self.poll())?;
        Ok(ended.unwrap_or_else(|| {
            self.end();
            Ended::TimedOut
        }))
    }

    /// How it ended, if it has.
    pub fn poll(&mut self) -> Result<Option<Ended>> {
        let status = self.0.try_wait().context("waiting for a program")?;
        let ended = status.map(|status| match status.code() {
            Some(0) => Ended::Well,
            Some(code) => Ended::Status(code),
            None => Ended::Signal(status.signal().unwrap_or_default()),
        });
        match ended {
            // As a program ends that heard a terminal's Ctrl-C.
            Some(Ended::Signal(_) | Ended::Status(130)) => stop::hold_if_soon(),
            _ => stop::hold(),
        }
        Ok(ended)
    }

    /// Kills the child and everything that it started.
    pub fn end(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            send(&halted(self.0.id()), Signal::SIGKILL);
            // What hangs inside a driver cannot be killed; it is left behind, not waited for without end.
            let since = Instant::now();
            while matches!(self.0.try_wait(), Ok(None)) && since.elapsed() < WAIT {
                sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        self.end();
    }
}

/// How long a program may take for something that takes no time.
pub const WAIT: Duration = Duration::from_secs(20);

/// A program that prints JSON lines on stdout; its stderr goes to a log.
#[derive(Debug)]
pub struct JsonProgram {
    pub child: ChildGuard,
    pub log: PathBuf,
    lines: Receiver<String>,
    /// Ends with this process, however that ends.
    stdin: ChildStdin,
}

impl JsonProgram {
    pub fn start(command: &mut Command, log: &Path) -> Result<JsonProgram> {
        let file = File::create(log).with_context(|| format!("writing {}", log.display()))?;
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        let mut child = ChildGuard::start(command)?;
        let stdout = child.0.stdout.take().context("stdout was piped")?;
        let (said, lines) = channel();
        // Ends with the program, or with the receiver of its lines.
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.into_iter().try_for_each(|line| said.send(line).map_err(|_| ()))
        });
        let stdin = child.0.stdin.take().context("stdin was piped")?;
        Ok(JsonProgram { child, log: log.to_owned(), lines, stdin })
    }

    /// Writes a request on a line of its stdin, waits for the `answer`. Requests are short: they fit a pipe.
    pub fn ask(&mut self, request: &Value, limit: Duration) -> Result<Value> {
        // A program that is gone says why when its answer is read.
        let _ = writeln!(self.stdin, "{request}");
        self.json("answer", limit)
    }

    /// The next object of these `kinds` within `limit`, if any. An earlier end is an error with its words.
    pub fn try_json(&mut self, kinds: &[&str], limit: Duration) -> Result<Option<Value>> {
        let until = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    // Another kind, or something for people, is passed over.
                    let object = serde_json::from_str(line.trim()).unwrap_or(Value::Null);
                    if kinds.iter().any(|kind| object["kind"] == *kind) {
                        return Ok(Some(object));
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.child.wait(WAIT)?;
                    let last = last_words(&self.log);
                    return match ended {
                        Ended::Status(2) => Err(refused(last)),
                        _ => bail!("it {ended} before it said `{}`: {last}", kinds.join("` or `")),
                    };
                }
            }
        }
    }

    /// The next object of this `kind`; it must come within `limit`.
    pub fn json(&mut self, kind: &str, limit: Duration) -> Result<Value> {
        self.json_of(&[kind], limit)
    }

    /// Where the program listens, `what` in words, as it says within `limit`.
    pub fn address(&mut self, what: &str, limit: Duration) -> Result<String> {
        let said = self.json("listening", limit).with_context(|| format!("starting {what}"))?;
        let address = said["address"].as_str();
        Ok(address.with_context(|| format!("{what} does not say where it listens"))?.to_owned())
    }

    /// Waits for the end. Error: it is a bad one; `what`: the program in words.
    pub fn ends_well(&mut self, what: &str, limit: Duration) -> Result<()> {
        let ended = self.child.wait(limit)?;
        ensure!(ended == Ended::Well, "{what} {ended}; see {}", self.log.display());
        Ok(())
    }

    /// The next object of one of these `kinds`; it must come within `limit`.
    pub fn json_of(&mut self, kinds: &[&str], limit: Duration) -> Result<Value> {
        let answer = self.try_json(kinds, limit)?;
        answer.with_context(|| {
            let (kinds, seconds) = (kinds.join("` or `"), limit.as_secs());
            format!("it did not say `{kinds}` within {seconds} s; see {}", self.log.display())
        })
    }
}

#[cfg(test)]
pub use tests::{one_test, script};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descendants::{descendants, end_unharmed, is_alive};

    /// The test of that path alone, in its own process: what it prints can be read, and it may end as it
    /// likes.
    pub fn one_test(name: &str) -> Command {
        let mut us = Command::new(std::env::current_exe().expect("a test runs"));
        us.args(["--exact", name, "--nocapture"]);
        us
    }

    /// Writes a shell script that can be started at once, for tests. Another process writes it: a file that
    /// one of our threads writes while another forks cannot be started («text file busy»).
    pub fn script(path: &Path, text: &str) {
        let beside = path.with_extension("text");
        fs::write(&beside, text).expect("a folder for tests can be written");
        let line = r#"rm -f "$1" && cp "$0" "$1" && chmod 755 "$1""#;
        let copied = Command::new("sh").args(["-c", line]).arg(&beside).arg(path).status();
        assert!(copied.expect("there is a shell").success(), "{}", path.display());
    }

    fn shell(script: &str, limit_ms: u64) -> (Ended, String) {
        let log =
            std::env::temp_dir().join(format!("xtask-process-{}-{}.log", std::process::id(), script.len()));
        let ended =
            run_logged(Command::new("sh").args(["-c", script]), &log, Duration::from_millis(limit_ms))
                .unwrap();
        (ended, fs::read_to_string(log).unwrap())
    }

    #[test]
    fn both_outputs_are_in_the_log() {
        assert_eq!(shell("echo out; echo err >&2; exit 3", 5000), (Ended::Status(3), "out\nerr\n".into()));
    }

    #[test]
    fn the_signal_that_ended_a_program_is_named() {
        let words = |script| shell(script, 5000).0.to_string();
        assert_eq!(words("kill -SEGV $$"), "was ended by SIGSEGV");
        assert_eq!(words("kill -40 $$"), "was ended by signal 40");
        assert_eq!(words("exit 127"), "ended with status 127");
    }

    #[test]
    fn a_program_over_its_limit_is_ended_with_its_children() {
        // It starts one after another, as a build does.
        let (ended, log) = shell("while true; do sleep 60 & echo $!; sleep 0.01; done", 300);
        assert_eq!(ended, Ended::TimedOut);
        let sleepers: Vec<u32> = log.lines().filter_map(|line| line.parse().ok()).collect();
        let since = Instant::now();
        while sleepers.iter().any(|sleeper| is_alive(*sleeper)) {
            assert!(since.elapsed() < WAIT, "of {} programs some still run", sleepers.len());
            sleep(Duration::from_millis(5));
        }
        assert!(!sleepers.is_empty());
    }

    #[test]
    fn cpu_time_of_a_program_holds_that_of_its_children() {
        let log = std::env::temp_dir().join(format!("xtask-process-{}-used.log", std::process::id()));
        let count = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let (ended, used) =
            run_timed(Command::new("sh").args(["-c", &format!("({count}); wait")]), &log, WAIT).unwrap();
        let (_, idle) = run_timed(Command::new("sleep").arg("0.3"), &log, WAIT).unwrap();
        fs::remove_file(log).unwrap();
        assert_eq!(ended, Ended::Well);
        assert!(used >= Duration::from_millis(20) && idle < used, "{used:?} {idle:?}");
    }

    #[test]
    fn a_grandchild_that_keeps_stdout_open_is_said_at_the_deadline() {
        let since = Instant::now();
        let said = |script| output(Command::new("sh").args(["-c", script]), Duration::from_millis(500));
        assert_eq!(said("echo said").unwrap(), "said\n");
        let error = said("sleep 30 & echo said").unwrap_err().to_string();
        assert!(error.contains("sh ended") && error.contains("stdout open"), "{error}");
        assert!(since.elapsed() < WAIT, "{:?}", since.elapsed());
    }

    #[test]
    fn what_must_not_be_killed_is_given_up_on_at_the_deadline_and_lives() {
        let log = std::env::temp_dir().join(format!("xtask-process-{}-unharmed.log", std::process::id()));
        let script = r#"sh -c 'trap "" INT; echo "{\"kind\":\"deaf\"}"; exec sleep 60'; true"#;
        let mut above = JsonProgram::start(Command::new("sh").args(["-c", script]), &log).unwrap();
        above.json("deaf", WAIT).unwrap();
        let ancestor = above.child.0.id();
        assert!(!end_unharmed(ancestor, Duration::from_millis(200)));
        assert!(!descendants(ancestor).is_empty(), "it was killed");
        above.child.end();
        assert!(end_unharmed(ancestor, WAIT));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run_logged(
            &mut Command::new("no-such-program"),
            Path::new("/tmp/xtask-none.log"),
            Duration::ZERO,
        );
        assert!(format!("{:#}", error.unwrap_err()).contains("no-such-program"));
    }
}
