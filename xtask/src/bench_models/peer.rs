//! The peer of `bench-models`: a script that is asked on its stdin, one line of JSON a request.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use measure::background_load::seconds_of;
use serde_json::Value;

use crate::process::JsonProgram;
use crate::refused::refused;
use crate::wheels;

/// Longest that it may take to start.
pub const STARTED: Duration = Duration::from_secs(120);

/// A peer's process: started when it is asked, and again when it was lost.
pub struct Peer<'a> {
    python: &'a str,
    script: PathBuf,
    logs: &'a Path,
    sessions: u32,
    session: Option<JsonProgram>,
}

impl<'a> Peer<'a> {
    /// One that does not run yet.
    pub fn new(python: Option<&'a str>, script: PathBuf, logs: &'a Path) -> Peer<'a> {
        Peer { python: python.unwrap_or("python3"), script, logs, sessions: 0, session: None }
    }

    /// Whether its process is gone, and what it had prepared.
    pub fn is_lost(&self) -> bool {
        self.session.is_none()
    }

    /// Its process and the processor's seconds that it used, if it runs.
    pub fn used(&self) -> Option<(u32, f64)> {
        let process = self.session.as_ref()?.child.0.id();
        Some((process, seconds_of(process)?))
    }

    /// Ends its process, if it runs; the next request starts a new one.
    pub fn end(&mut self) {
        self.session = None;
    }

    /// What it says of itself. Error: refused when it cannot run here.
    pub fn start(&mut self, limit: Duration) -> Result<Value> {
        let mut command = Command::new(self.python);
        // The folder that has the package `onnxruntime`.
        let wheel = wheels::ONNX_RUNTIME.used();
        let wheel = wheel.ancestors().nth(2).unwrap_or(&wheel);
        command.arg(&self.script).env("PYTHONDONTWRITEBYTECODE", "1").env("DOORBELL_WHEEL", wheel);
        self.sessions += 1;
        let log = self.logs.join(format!("peer-{}.log", self.sessions));
        let mut session = JsonProgram::start(&mut command, &log)?;
        let help = || format!("{} (--python names another Python)", self.script.display());
        let hello =
            session.json("hello", limit).map_err(|error| refused(format!("{}: {error:#}", help())))?;
        if let Some(error) = hello["error"].as_str() {
            return Err(refused(format!("{}: {error}", help())));
        }
        self.session = Some(session);
        Ok(hello)
    }

    /// Error: also what the answer calls one. A process that does not answer is ended.
    pub fn ask(&mut self, request: &Value, limit: Duration) -> Result<Value> {
        if self.session.is_none() {
            self.start(STARTED)?;
        }
        let session = self.session.as_mut().context("it was started")?;
        let (answer, log) = (session.ask(request, limit), session.log.display().to_string());
        let answer = answer.inspect_err(|_| self.session = None)?;
        match answer["error"].as_str() {
            None => Ok(answer),
            Some(error) => bail!("{error} (whole log: {log})"),
        }
    }
}
