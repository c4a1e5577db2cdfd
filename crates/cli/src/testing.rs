//! A program of ours as its users start it, for tests: its lines of JSON, its end, and no survivor.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
pub use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;

use crate::OptionScope;

/// Longest life of anything here, and longest wait for a line.
const DEADLINE: Duration = Duration::from_secs(300);

/// A running program with JSON on its standard output.
#[derive(Debug)]
pub struct Program {
    child: Child,
    lines: BufReader<ChildStdout>,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code, if it was no signal.
    pub code: Option<i32>,
    /// Lines of JSON that were not taken before.
    pub lines: Vec<Value>,
    /// Standard error.
    pub stderr: String,
    /// Time since the call, or the moment that was given.
    pub after: Duration,
}

impl Ended {
    /// The only line.
    pub fn line(&self) -> &Value {
        assert_eq!(self.lines.len(), 1, "{self:?}");
        &self.lines[0]
    }
}

/// Path of a program that cargo built. If the tests were carried to another machine, the environment has it
/// under cargo's name for it.
pub fn program(variable: &str, built: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| built.to_owned())
}

/// A program with these arguments, its output taken.
pub fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end, and asks that it refuses with exit code 2 and one line that has all these words.
pub fn refused(program: &str, arguments: &[&str], words: &[&str]) {
    let mut child = command(program, arguments).spawn().unwrap();
    let is_ended = ended(&mut child, Instant::now(), DEADLINE).is_some();
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(is_ended, "{arguments:?}: not refused within {DEADLINE:?}: {said}");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
}

/// How it ended, if it has until `limit` after `start`.
fn ended(child: &mut Child, start: Instant, limit: Duration) -> Option<ExitStatus> {
    loop {
        match child.try_wait().unwrap() {
            None if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(2)),
            status => return status,
        }
    }
}

/// Asserts that `--help` lists each name of an option's values beside its alias, and that an unknown value is
/// refused with all of them.
pub fn names_each<C: Parser>(option: &str, names: &[(&str, Option<&str>)]) {
    let help = C::command().render_long_help().to_string();
    let refusal = C::command().try_get_matches_from(["program", &format!("--{option}=none-such")]);
    let refusal = refusal.unwrap_err().to_string();
    for (name, other) in names {
        let start = format!("- {name}:");
        let line = help.lines().find(|line| line.trim_start().starts_with(&start));
        let line = line.unwrap_or_else(|| panic!("--help has no line {start}\n{help}"));
        assert!(other.is_none_or(|other| line.contains(other)), "{line}");
        assert!(refusal.contains(name), "{name}: {refusal}");
    }
}

/// The message about the first unused option of a command line, given without its program.
pub fn stray<C: Parser>(words: &str, table: &[OptionScope<C>]) -> Option<String> {
    let command = C::command().no_binary_name(true);
    let matches = command.try_get_matches_from(words.split_whitespace()).unwrap();
    crate::stray(&C::from_arg_matches(&matches).unwrap(), &matches, table)
}

impl Program {
    /// Starts it with `--json -`.
    pub fn start(program: &str, arguments: &[&str]) -> Program {
        Program::spawn(command(program, arguments))
    }

    fn spawn(mut command: Command) -> Program {
        let mut child = command.args(["--json", "-"]).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Program { child, lines }
    }

    /// One that listens, and the address that it chose.
    pub fn listening(program: &str, arguments: &[&str]) -> (Program, String) {
        Program::listening_in([], program, arguments)
    }

    /// One that listens in an environment that has these variables too.
    pub fn listening_in<'a>(
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
        program: &str,
        arguments: &[&str],
    ) -> (Program, String) {
        let mut command = command(program, &[&["--listen", "127.0.0.1:0"], arguments].concat());
        command.envs(variables);
        let mut listening = Program::spawn(command);
        let line = listening.next_line();
        assert_eq!(line["kind"], "listening");
        let address = line["address"].as_str().unwrap().to_owned();
        (listening, address)
    }

    /// The next line. Panics with what was said on standard error when there is none, and when none comes.
    pub fn next_line(&mut self) -> Value {
        if self.lines.buffer().is_empty() {
            let mut pipe = [PollFd::new(self.lines.get_ref().as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut pipe, PollTimeout::try_from(DEADLINE).unwrap()).unwrap();
            assert!(ready > 0, "no line within {DEADLINE:?}");
        }
        let mut text = String::new();
        self.lines.read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|_| {
            let _ = self.child.kill();
            let mut stderr = String::new();
            let _ = self.child.stderr.as_mut().unwrap().read_to_string(&mut stderr);
            panic!("{text:?} {stderr}")
        })
    }

    /// Number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal; returns the moment before it.
    pub fn signal(&self, signal: Signal) -> Instant {
        let before = Instant::now();
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        before
    }

    /// Whether it runs no longer.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end; `after` counts from the call.
    pub fn end(&mut self) -> Ended {
        self.end_since(Instant::now())
    }

    /// The same; `after` counts from `start`.
    pub fn end_since(&mut self, start: Instant) -> Ended {
        let status = ended(&mut self.child, start, DEADLINE);
        let status = status.unwrap_or_else(|| panic!("still running after {DEADLINE:?}"));
        let after = start.elapsed();
        let mut lines = Vec::new();
        for line in self.lines.by_ref().lines() {
            lines.push(serde_json::from_str(&line.unwrap()).unwrap());
        }
        let mut stderr = String::new();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut stderr).unwrap();
        Ended { code: status.code(), lines, stderr, after }
    }
}

/// Tries longer and longer loads, the first for `load`, until one has done something: on a busy machine a
/// short one may do nothing. Panics if a minute is not enough.
pub fn until_loaded<T>(mut load: Duration, mut run: impl FnMut(Duration) -> Option<T>) -> T {
    loop {
        if let Some(found) = run(load) {
            return found;
        }
        crate::complain!("nothing was done in {load:?}: the load is tried for longer");
        load *= 3;
        assert!(load < Duration::from_secs(60), "nothing was done in {:?}", load / 3);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
