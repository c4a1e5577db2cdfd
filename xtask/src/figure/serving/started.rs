//! A server or client that a point started, here or on a host: what it prints, its signals, its CPU use.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::figure::cpu::{Look, ProcessSnapshot, READER};
use crate::figure::reader::Reader;
use crate::process::{JsonProgram, WAIT, output};
use crate::testbed::hosts::Host;

/// A program that runs.
pub struct Started {
    pub program: JsonProgram,
    pub process: Process,
}

/// Its process.
#[derive(Clone)]
pub struct Process {
    id: u32,
    /// The host that it runs on, where that is reached by ssh.
    host: Option<Arc<ReadHost>>,
}

/// A host, and a shell there that reads what processes use.
pub struct ReadHost {
    host: Host,
    reader: Reader,
}

impl ReadHost {
    /// Starts the shell.
    pub fn start(host: &Host, log: &Path) -> Result<Arc<ReadHost>> {
        let reader = JsonProgram::start(&mut host.command(&["sh", "-c", READER])?, log)?;
        Ok(Arc::new(ReadHost { host: host.clone(), reader: Reader::of(&host.name, Ok(reader)) }))
    }

    fn look(&self, process: u32) -> Result<ProcessSnapshot> {
        let was_read = self.reader.process().is_some();
        let said = self.reader.ask(&process.into(), Ok).map_err(|why| {
            if was_read {
                tell!("what processes use is not read any more: {why}");
            }
            anyhow!(why)
        })?;
        ProcessSnapshot::of_lines(process, said["said"].as_str().unwrap_or_default())
    }
}

impl Started {
    /// A program of this machine. The launcher becomes it: one process, whose number stays.
    pub fn here(command: &mut Command, log: &Path) -> Result<Started> {
        let program = JsonProgram::start(command, log)?;
        let process = Process { id: program.child.0.id(), host: None };
        Ok(Started { program, process })
    }

    /// A program on a host that says its process first.
    pub fn on(host: &Arc<ReadHost>, command: &mut Command, log: &Path) -> Result<Started> {
        let mut program = JsonProgram::start(command, log)?;
        let said = program.json("process", WAIT)?["process"].as_u64().and_then(|id| id.try_into().ok());
        let id = said.context("a program on a host does not say its process")?;
        Ok(Started { program, process: Process { id, host: Some(Arc::clone(host)) } })
    }
}

impl Process {
    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let sent = match &self.host {
            None => kill(Pid::from_raw(i32::try_from(self.id)?), signal).map_err(anyhow::Error::from),
            Some(on) => {
                let name = signal.as_str().trim_start_matches("SIG");
                output(&mut on.host.command(&["kill", "-s", name, &self.id.to_string()])?, WAIT).map(drop)
            }
        };
        sent.context("sending the server a signal")
    }

    /// What looks at it.
    pub fn look(&self) -> Look {
        let id = self.id;
        match self.host.clone() {
            None => {
                let folder = PathBuf::from(format!("/proc/{id}"));
                Box::new(move || ProcessSnapshot::at(&folder))
            }
            Some(on) => Box::new(move || on.look(id)),
        }
    }

    /// Counters of its software NIC; `softnic`: the program of this machine that asks.
    pub fn nic_counters(&self, softnic: &Path) -> Result<Value> {
        let id = self.id.to_string();
        let words = ["ctl", "counters", &id, "--json"];
        let mut ask = match &self.host {
            None => Command::new(softnic),
            Some(on) => on.host.command(&[on.host.file("bin/softnic")])?,
        };
        let said = output(ask.args(words), WAIT).context("asking the server's NIC for its counters")?;
        let line: Value = serde_json::from_str(said.trim()).context("the counters of the server's NIC")?;
        Ok(line["counters"].clone())
    }
}
