//! A running generator: its lines, its end, and no survivor.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest life of anything here.
const DEADLINE: Duration = Duration::from_secs(60);

/// A generator with JSON on its standard output.
pub struct Generator {
    child: Child,
    lines: BufReader<ChildStdout>,
}

/// How a generator ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub lines: Vec<Value>,
    pub stderr: String,
    pub after: Duration,
}

impl Ended {
    /// The only line.
    pub fn line(&self) -> &Value {
        assert_eq!(self.lines.len(), 1, "{self:?}");
        &self.lines[0]
    }
}

/// `generator` with these arguments.
pub fn command(arguments: &[&str]) -> Command {
    // Where the tests were carried to another machine, the environment says where it lies.
    let program = std::env::var_os("CARGO_BIN_EXE_generator");
    let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_generator").into()));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Whether this host has a device: `Err` is what the generator says.
pub fn device() -> Result<(), String> {
    let output = command(&["probe", "--json"]).output().map_err(|e| e.to_string())?;
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    if output.status.success() { Ok(()) } else { Err(report["error"].to_string()) }
}

impl Generator {
    pub fn start(arguments: &[&str]) -> Generator {
        let mut child = command(arguments).args(["--json", "-"]).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Generator { child, lines }
    }

    /// A receiver, and the address that it chose.
    pub fn receiver(arguments: &[&str]) -> (Generator, String) {
        let mut receiver = Generator::start(&[&["--listen", "127.0.0.1:0"], arguments].concat());
        let line = receiver.next_line();
        assert_eq!(line["kind"], "listening");
        let address = line["address"].as_str().unwrap().to_owned();
        (receiver, address)
    }

    pub fn next_line(&mut self) -> Value {
        let mut text = String::new();
        self.lines.read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text:?}"))
    }

    /// Sends a signal by name; returns the moment before it.
    pub fn signal(&self, name: &str) -> Instant {
        let before = Instant::now();
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        before
    }

    /// Waits for the end; `after` counts from the call.
    pub fn end(&mut self) -> Ended {
        self.end_since(Instant::now())
    }

    /// The same; `after` counts from `start`.
    pub fn end_since(&mut self, start: Instant) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < DEADLINE, "still running after {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(2));
        };
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

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
