//! The lines of `--json`, and what is said to people.

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Result;
use cli::{FAILED, INTERRUPTED, emit, sentence, speaks_to_people};
use measure::{Histogram, Label, Summary};
use pipeline::cpu::Counts;
use pipeline::gpu::Structure;
use pipeline::trace::{Step, Trace};
use serde::Serialize;

use crate::options::Options;

/// A client that comes or goes.
#[derive(Debug, Serialize)]
pub struct Joined<'a> {
    pub kind: &'static str,
    pub client: u32,
    pub model: &'a str,
    pub peer: &'a str,
    #[serde(flatten)]
    pub left: Option<Left<'a>>,
}

/// What came of a client that has left.
#[derive(Debug, Serialize)]
pub struct Left<'a> {
    pub answered: u64,
    pub refused: u64,
    /// What went wrong, if anything did.
    pub error: Option<&'a str>,
}

/// How long the requests of a client that has left took, with `--trace`.
#[derive(Debug, Serialize)]
pub struct Traced<'a> {
    kind: &'static str,
    client: u32,
    model: &'a str,
    /// Answers that were traced, and those whose record was lost.
    count: usize,
    lost: u64,
    /// Answers whose receive completion is stamped later than it was found.
    disordered: u64,
    clock_error_ns: u64,
    /// From the receive completion to the doorbell.
    service: Option<Summary>,
    /// The sum of the steps without the queue, and without the time between them.
    attended: Option<Summary>,
    /// Its steps, and `other`, the time between them.
    steps: BTreeMap<&'static str, Option<Summary>>,
}

impl<'a> Traced<'a> {
    pub fn new(client: u32, model: &'a str, trace: &Trace) -> Traced<'a> {
        let summary = |ns: &mut dyn Iterator<Item = u64>| {
            let mut histogram = Histogram::new();
            ns.for_each(|ns| histogram.record(ns));
            histogram.summary()
        };
        let samples = || trace.samples.iter();
        let step = |step: Step| (step.name(), summary(&mut samples().map(|sample| sample.ns(step))));
        let other = summary(
            &mut samples().map(|sample| sample.service_ns.saturating_sub(sample.steps_ns.iter().sum())),
        );
        Traced {
            kind: "traced",
            client,
            model,
            count: trace.samples.len(),
            lost: trace.lost,
            disordered: trace.disordered,
            clock_error_ns: trace.clock_error_ns,
            service: summary(&mut samples().map(|sample| sample.service_ns)),
            attended: summary(
                &mut samples().map(|sample| sample.steps_ns.iter().sum::<u64>() - sample.ns(Step::Queue)),
            ),
            steps: Step::ALL.map(step).into_iter().chain([("other", other)]).collect(),
        }
    }
}

/// The counters of `--status`.
#[derive(Debug, Serialize)]
struct Status {
    kind: &'static str,
    mode: &'static str,
    /// Since the server listens.
    seconds: f64,
    models: Vec<ModelStatus>,
}

/// Those of a model.
#[derive(Debug, Serialize)]
pub struct ModelStatus {
    pub model: String,
    /// Clients that are served now.
    pub clients: usize,
    /// Since the server listens.
    pub answered: u64,
    pub refused: u64,
    /// Of a GPU mode.
    #[serde(flatten)]
    pub kernels: Option<KernelStatus>,
}

/// What kernels count.
#[derive(Debug, Serialize)]
pub struct KernelStatus {
    pub turns: u64,
    /// Answers whose WRITE was seen to have completed.
    pub sent: u64,
    /// Receive completions that named a slot of another client, or one in use.
    pub strays: u64,
    /// The graph that has the turns; none: one kernel stays, or the twin's kernels are launched one by one.
    pub graph: Option<GraphStatus>,
}

/// What a turn is made of: nodes of each kind.
#[derive(Debug, Serialize)]
pub struct GraphStatus {
    nodes: usize,
    kernels: usize,
    host_nodes: usize,
    copies: usize,
    host_copies: usize,
}

impl GraphStatus {
    pub fn of(structure: Structure) -> GraphStatus {
        let Structure { nodes, kernels, host_nodes, copies, host_copies } = structure;
        GraphStatus { nodes, kernels, host_nodes, copies, host_copies }
    }
}

/// Writes the counters of `--status`, on a thread of its own: a reader that has stopped holds up no request.
pub struct StatusWriter {
    mode: &'static str,
    lines: SyncSender<Status>,
}

impl StatusWriter {
    pub fn start(options: &Options) -> Result<Option<StatusWriter>> {
        let Some(file) = options.status.clone() else { return Ok(None) };
        let (lines, waiting) = sync_channel::<Status>(1);
        let write = move || {
            for line in waiting {
                if let Err(error) = emit(Some(&file), &line) {
                    complain!("inference-server: --status: {}", sentence(&error));
                }
            }
        };
        std::thread::Builder::new().name("status".into()).spawn(write)?;
        Ok(Some(StatusWriter { mode: options.mode.name(), lines }))
    }

    /// Queues the counters for writing, without waiting. Drops them if two reports are still unwritten.
    pub fn write(&self, since: Duration, models: Vec<ModelStatus>) {
        let seconds = since.as_secs_f64();
        let _ = self.lines.try_send(Status { kind: "status", mode: self.mode, seconds, models });
    }
}

/// All that was served.
#[derive(Debug, Serialize)]
pub struct Totals {
    kind: &'static str,
    mode: &'static str,
    engine: String,
    models: Vec<String>,
    nic: Label,
    pub clients: u64,
    /// Clients that left with an error.
    pub failed: u64,
    pub answered: u64,
    pub refused: u64,
    pub interrupted: bool,
}

impl Totals {
    pub fn new(options: &Options) -> Totals {
        Totals {
            kind: "served",
            mode: options.mode.name(),
            engine: options.engine_name(),
            models: options.models.clone(),
            nic: cli::nic_label(),
            clients: 0,
            failed: 0,
            answered: 0,
            refused: 0,
            interrupted: false,
        }
    }

    /// A client has left.
    pub fn left(&mut self, Counts { answered, refused }: Counts, has_failed: bool) {
        self.clients += 1;
        self.failed += u64::from(has_failed);
        self.answered += answered;
        self.refused += refused;
    }

    /// Says it: the exit code.
    pub fn end(&self, options: &Options) -> Result<u8> {
        let json = options.json.as_deref();
        if speaks_to_people(json) {
            say!("{} clients: {} answers, {} refusals", self.clients, self.answered, self.refused);
        }
        emit(json, self)?;
        Ok(match options.sessions {
            0 => 0,
            _ if self.interrupted => INTERRUPTED,
            sessions if self.failed > 0 || self.clients < sessions => FAILED,
            _ => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser as _;

    use super::*;

    #[test]
    fn counters_that_nobody_reads_and_that_cannot_be_written_hold_up_nothing() {
        let pipe = std::env::temp_dir().join(format!("inference-server-status-{}", std::process::id()));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for file in ["/dev/null/status".into(), pipe.clone()] {
            let options = ["inference-server", "--listen", "127.0.0.1:0", "--model", "a", "--status"];
            let mut options = Options::parse_from(options.into_iter().chain(["-"]));
            options.status = Some(file);
            let writer = StatusWriter::start(&options).unwrap().unwrap();
            for seconds in 0..5 {
                writer.write(Duration::from_secs(seconds), Vec::new());
            }
        }
        let (told, read) = std::sync::mpsc::channel();
        let file = pipe.clone();
        // A pipe that no line is written into is not read to its end.
        std::thread::spawn(move || told.send(std::fs::read_to_string(file)));
        let text = read.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
        std::fs::remove_file(&pipe).unwrap();
        assert!(text.starts_with("{\"kind\":\"status\",") && text.ends_with("\n"), "{text}");
    }
}
