//! Sends requests as they are due, takes answers, and counts what came of each.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cli::{FAILED, INTERRUPTED, emit, sentence, speaks_to_people};
use measure::Histogram;
use serving::{Connection, ConnectionError, Found, SetupRequest, Transport, model};
use slots::Status;
use slots::client::AnswerError;
use verbs::connect::Wait;
use zoo::Manifest;

use crate::backoff::Backoff;
use crate::load::{Load, input_of};
use crate::options::Options;
use crate::report::{Counts, Outcome, Run};
use crate::verify::Verifier;

/// How long connecting may take.
const SETUP: Duration = Duration::from_secs(10);
/// How often deadlines, the server and the user are looked after.
const LOOK_NS: u64 = 5_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The exit code.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<u8> {
    let (manifest, _) = Manifest::find(&options.model, options.manifests.as_deref())?;
    let geometry = model::geometry(&manifest, 0)?;
    let inputs: Vec<Vec<u8>> = (0..usize::from(options.inputs))
        .map(|number| Ok(manifest.test_input(number)?.iter().flat_map(|value| value.to_le_bytes()).collect()))
        .collect::<Result<_>>()?;
    let verifier = Verifier::new(&manifest, inputs.len(), options.reference.as_deref(), options.tolerance)?;
    let (context, path) = options.nic.open("doorbell-client")?;
    let setup_request =
        SetupRequest::new(&options.model, &geometry, options.slots, options.arrival, options.transport);
    let wait = Wait::at_most(SETUP).unless(stop);
    let connection = Connection::open((&context, &path), &options.connect, &setup_request, geometry, wait);
    let connection = connection.with_context(|| format!("the server at {}", options.connect))?;
    let outcome = ClientRun::new(options, connection, inputs, verifier).run(stop);
    let run = Run::new(options, context.name(), path.mtu.bytes(), &outcome);
    emit(options.json.as_deref(), &run)?;
    if speaks_to_people(options.json.as_deref()) {
        say!("{}", run.text());
    }
    if let Some(error) = &outcome.error {
        complain!("doorbell-client: {error}");
    }
    Ok(match (outcome.interrupted, outcome.is_success()) {
        // What was found before the signal is not hidden by it.
        (true, _) if !outcome.counts.has_faults() => INTERRUPTED,
        (false, true) => 0,
        _ => FAILED,
    })
}

/// A run that goes on.
struct ClientRun<'a> {
    options: &'a Options,
    connection: Connection,
    inputs: Vec<Vec<u8>>,
    tally: Tally,
    load: Load,
    start_ns: u64,
    /// When deadlines are looked after again.
    look_ns: u64,
    backoff: Backoff,
    /// Since when every slot has waited for a late answer, and none has come.
    exhausted_ns: Option<u64>,
    /// Whether each second has a line, when the next one is due, and the answers before it.
    live: Option<(u64, u64)>,
}

/// What came of the requests so far.
struct Tally {
    outcome: Outcome,
    verifier: Verifier,
    warm_up: u64,
    inputs: usize,
    /// The server has said that it stops: nothing more is asked.
    is_stopping: bool,
}

impl<'a> ClientRun<'a> {
    fn new(
        options: &'a Options,
        connection: Connection,
        inputs: Vec<Vec<u8>>,
        verifier: Verifier,
    ) -> ClientRun<'a> {
        let outcome = Outcome {
            counts: Counts::default(),
            latency: Histogram::new(),
            service: Histogram::new(),
            seconds: 0.0,
            first_wrong: None,
            interrupted: false,
            error: None,
        };
        let start_ns = connection.now_ns();
        let speaks = speaks_to_people(options.json.as_deref());
        let is_live = options.live || (speaks && std::io::stdout().is_terminal());
        ClientRun {
            tally: Tally {
                outcome,
                verifier,
                warm_up: options.warm_up,
                inputs: inputs.len(),
                is_stopping: false,
            },
            load: options.load(start_ns),
            options,
            connection,
            inputs,
            start_ns,
            look_ns: start_ns,
            backoff: Backoff::new(start_ns),
            exhausted_ns: None,
            live: is_live.then_some((start_ns + SECOND_NS, 0)),
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Outcome {
        let ended = loop {
            match self.turn(stop) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(sentence(&self.explained(error))),
            }
        };
        self.connection.settle();
        let outcome = &mut self.tally.outcome;
        outcome.counts.duplicate = self.connection.duplicates();
        if !outcome.interrupted {
            // After an error no answer comes any more.
            outcome.counts.lost += self.connection.outstanding() as u64;
        }
        outcome.error = ended;
        self.tally.outcome
    }

    /// The error that ends a run, with its reason where the server has died.
    fn explained(&mut self, error: anyhow::Error) -> anyhow::Error {
        use ConnectionError::{Completion, Post};
        let is_of_the_nic = matches!(error.downcast_ref(), Some(Completion { .. } | Post { .. }));
        if is_of_the_nic && self.connection.closes_soon() {
            error.context("the server is gone")
        } else {
            error
        }
    }

    /// Sends due requests and takes one answer, if any. False: all is done, or the user stopped the run.
    /// Error: why the run ends early.
    fn turn(&mut self, stop: &AtomicBool) -> Result<bool> {
        let now_ns = self.connection.now_ns();
        if now_ns >= self.look_ns {
            self.look(now_ns)?;
            if stop.load(Ordering::Relaxed) {
                self.tally.outcome.interrupted = true;
                return Ok(false);
            }
        }
        while !self.tally.is_stopping
            && let Some(due) = self.load.due(self.connection.now_ns(), self.connection.outstanding())
        {
            let input = &self.inputs[input_of(due.id, self.inputs.len())];
            let deadline_ns = due.at_ns + self.patience_ns();
            if !self.connection.ask(due.id, due.at_ns, &[input], deadline_ns)? {
                break;
            }
            self.load.sent();
            self.tally.outcome.counts.sent += 1;
            self.backoff.sent(now_ns);
        }
        let Some(found) = self.connection.poll()? else {
            match self.backoff.sleep(now_ns, self.load.idle_ns(now_ns)) {
                Some(time) => std::thread::sleep(time),
                None => std::thread::yield_now(),
            }
            if self.tally.is_stopping && self.connection.outstanding() == 0 {
                bail!("the server is stopping");
            }
            return Ok(self.connection.outstanding() > 0 || !self.load.is_over(now_ns));
        };
        self.exhausted_ns = None;
        self.tally.take(self.start_ns, found);
        self.backoff.found(now_ns);
        Ok(true)
    }

    /// Looks after deadlines, the server, and the line of each second.
    fn look(&mut self, now_ns: u64) -> Result<()> {
        self.look_ns = now_ns + LOOK_NS;
        let waited = self.load.expired(now_ns, self.patience_ns());
        self.tally.outcome.counts.lost += self.connection.expired().len() as u64 + waited;
        if let Some((next_ns, before)) = self.live
            && now_ns >= next_ns
        {
            let answered = self.tally.outcome.counts.answered;
            let seconds = (now_ns - self.start_ns) as f64 / 1e9;
            self.tally.outcome.counts.duplicate = self.connection.duplicates();
            let live = self.tally.outcome.live(seconds, answered - before);
            if speaks_to_people(self.options.json.as_deref()) {
                say!("{}", live.text());
            } else {
                emit(self.options.json.as_deref(), &live)?;
            }
            self.live = Some((next_ns + SECOND_NS, answered));
        }
        self.exhausted_ns = self.connection.is_exhausted().then(|| self.exhausted_ns.unwrap_or(now_ns));
        if let Some(since_ns) = self.exhausted_ns {
            if self.options.transport == Transport::Uc {
                bail!(
                    "no slot is left: UC has lost a message of each that the server lets us use; ask for more --slots"
                );
            }
            let is_silent = now_ns - since_ns >= self.patience_ns();
            ensure!(!is_silent, "the server is silent: no slot got its answer within twice --deadline");
        }
        let outstanding = self.connection.outstanding();
        ensure!(self.connection.is_alive(), "the server is gone, with {outstanding} requests outstanding");
        Ok(())
    }

    fn patience_ns(&self) -> u64 {
        self.options.deadline.as_nanos() as u64
    }
}

impl Tally {
    /// Counts what was found. To compare an answer is no part of its latency.
    fn take(&mut self, start_ns: u64, found: Found<'_>) {
        let outcome = &mut self.outcome;
        let answered = match found {
            Ok(answered) => answered,
            Err(AnswerError::Late { .. }) => {
                outcome.counts.late += 1;
                return;
            }
            // The connection counts those.
            Err(AnswerError::Unasked { .. }) => return,
            Err(error @ (AnswerError::Wrong { .. } | AnswerError::NoSlot(_))) => {
                outcome.counts.wrong += 1;
                outcome.first_wrong.get_or_insert_with(|| error.to_string());
                return;
            }
        };
        let (header, taken_ns) = (answered.answer.header, answered.taken_ns);
        outcome.seconds = taken_ns.saturating_sub(start_ns) as f64 / 1e9;
        outcome.counts.answered += 1;
        if answered.answer.status != Status::Ok {
            outcome.counts.refuse(answered.answer.status);
            self.is_stopping |= answered.answer.status == Status::Stopping;
            return;
        }
        if outcome.counts.answered > self.warm_up {
            outcome.latency.record(taken_ns.saturating_sub(header.cookie));
            outcome.service.record(header.ended_ns.saturating_sub(header.begun_ns));
        }
        let input = input_of(header.request_id, self.inputs);
        if let Some(fault) = self.verifier.fault(input, answered.outputs()) {
            outcome.counts.wrong += 1;
            let id = header.request_id;
            outcome.first_wrong.get_or_insert_with(|| format!("request {id}, {fault}"));
        }
    }
}
