//! The thread that serves: it polls for requests of all clients and runs the models, one request at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use cli::{FAILED, emit_listening, on_question, sentence, speaks_to_people};
use pipeline::Mode;
use pipeline::cpu::{Counts, CpuError, Endpoint, Memory, Served, Setting};
use serving::Arrival;
use verbs::connect::{Closer, Listener, Path};
use verbs::{Context, QpType};

use crate::model::Model;
use crate::offload;
use crate::options::Options;
use crate::report::{ModelStatus, StatusWriter, Totals};
use crate::session::{Granted, Key, Outcome, Service, Shared, accept};

/// Rounds without anything to do before the core is offered to other threads.
const IDLE_ROUNDS: u32 = 64;
/// How long requests are answered with «stopping» before connections are closed.
pub const STOPPING: Duration = Duration::from_millis(500);
/// How long answers that are being sent, and clients that clear away, are waited for then.
pub const ENDING: Duration = Duration::from_secs(5);

/// Checks that the slots fit, and listens.
pub fn listen(
    options: &Options,
    found: &[(zoo::Manifest, slots::Geometry)],
) -> Result<((Context, Path), Listener)> {
    let each: Vec<_> = found
        .iter()
        .map(|(manifest, geometry)| (manifest.name.clone(), Memory::bytes(geometry, 1)))
        .collect();
    options.check_memory(&each)?;
    let nic = options.nic.open("inference-server")?;
    let listener = Listener::bind(&options.listen).map_err(|error| {
        anyhow!("{error}; give --listen an address of this host and a free port (0: any)")
    })?;
    Ok((nic, listener))
}

/// Has clients accepted, and says so.
pub fn begin<S: Service>(options: &Options, listener: Listener, shared: &Arc<Shared<S>>) -> Result<()> {
    let (address, mine) = (listener.address()?.to_string(), Arc::clone(shared));
    // It ends with the process: nothing wakes it but a client.
    std::thread::Builder::new().name("accept".into()).spawn(move || accept(&listener, &mine))?;
    let json = options.json.as_deref();
    if speaks_to_people(json) {
        say!("listening on {address}: {} by {}", options.models.join(", "), options.mode);
    }
    emit_listening(json, address)
}

/// Serves until it is stopped: the exit code.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<u8> {
    let found = Model::geometries(options)?;
    let ((context, path), listener) = listen(options, &found)?;
    let machine = options.offloads().then(|| options.machine()).transpose()?;
    let mut served = Vec::new();
    for (manifest, geometry) in found {
        let (model, mut lane) = match &machine {
            Some(machine) => {
                let mut lane = offload::served(options, machine, &manifest, &geometry)?;
                if options.trace {
                    lane.trace()?;
                }
                (Model::elsewhere(manifest.name, geometry), lane)
            }
            None => {
                let model = Model::load(options, &manifest, geometry.clone())?;
                (model, Served::new(geometry, options.slots)?)
            }
        };
        lane.set_patience(options.patience());
        lane.set_order(options.slot_order());
        served.push((model, lane));
    }
    let (commands, receiver) = channel();
    let memories: Vec<Memory> = served.iter().map(|(_, served)| served.memory().clone()).collect();
    let models = served.iter().map(|(model, _)| (model.name.clone(), model.geometry.clone())).collect();
    let polling = Polling { context, mode: options.mode, memories, is_traced: options.trace, commands };
    begin(options, listener, &Shared::new(options, path, models, polling))?;
    let (totals, question) = (Totals::new(options), Arc::new(AtomicBool::new(false)));
    let status = StatusWriter::start(options)?;
    if status.is_some() {
        let asks = Arc::clone(&question);
        on_question(move || asks.store(true, Ordering::Relaxed))?;
    }
    let left = vec![Counts::default(); served.len()];
    let commands = receiver;
    let server = Server {
        options,
        served,
        commands,
        closers: HashMap::new(),
        granted: 0,
        totals,
        question,
        status,
        left,
        complained: HashSet::new(),
    };
    server.run(stop)
}

/// What a connection's thread asks of the one that serves.
enum Command {
    /// Slots for a new client of a model.
    Grant { model: usize, wanted: u16, reply: Sender<Result<Granted, String>> },
    /// The client's queue pair is connected.
    Admit { key: Key, endpoint: Box<Endpoint>, closer: Closer },
    /// The client has gone.
    Leave { key: Key, reply: Sender<Result<Option<Endpoint>, CpuError>> },
    /// Nothing of its queue pair is left.
    Gone { key: Key },
    /// All is said of it.
    Left { key: Key, counts: Counts, has_failed: bool },
}

/// The thread that polls, as connections' threads know it.
struct Polling {
    context: Context,
    mode: Mode,
    memories: Vec<Memory>,
    is_traced: bool,
    commands: Sender<Command>,
}

impl Service for Polling {
    type End = Endpoint;

    fn grant(&self, model: usize, wanted: u16) -> Result<Granted> {
        let (reply, granted) = channel();
        self.commands.send(Command::Grant { model, wanted, reply }).map_err(|_| ending())?;
        granted.recv().map_err(|_| ending())?.map_err(anyhow::Error::msg)
    }

    fn end(&self, model: usize, kind: QpType, arrival: Arrival, granted: &Granted) -> Result<Endpoint> {
        let setting =
            Setting { mode: self.mode, kind, arrival, granted: &granted.1, is_traced: self.is_traced };
        Ok(Endpoint::new(&self.context, &self.memories[model], &setting)?)
    }

    fn admit(&self, key: Key, end: Endpoint, closer: Closer) -> Result<()> {
        let admit = Command::Admit { key, endpoint: Box::new(end), closer };
        self.commands.send(admit).map_err(|_| ending())
    }

    fn leave(&self, key: Key) -> Result<Option<Outcome>> {
        let (reply, endpoint) = channel();
        if self.commands.send(Command::Leave { key, reply }).is_err() {
            return Ok(None);
        }
        let endpoint = endpoint.recv().unwrap_or(Ok(None))?;
        Ok(Some(endpoint.map_or_else(Outcome::default, |mut endpoint| Outcome {
            counts: endpoint.counts,
            failure: endpoint.failure.clone(),
            trace: endpoint.take_trace(),
        })))
    }

    fn gone(&self, key: Key) {
        let _ = self.commands.send(Command::Gone { key });
    }

    fn left(&self, key: Key, counts: Counts, has_failed: bool) {
        let _ = self.commands.send(Command::Left { key, counts, has_failed });
    }
}

pub fn ending() -> anyhow::Error {
    anyhow!("the server is ending")
}

struct Server<'a> {
    options: &'a Options,
    served: Vec<(Model, Served)>,
    commands: Receiver<Command>,
    /// Of each client that is served; `None` once it was closed.
    closers: HashMap<Key, Option<Closer>>,
    /// Clients that have slots.
    granted: usize,
    totals: Totals,
    /// Models whose failure was told.
    complained: HashSet<usize>,
    /// Counters are asked for.
    question: Arc<AtomicBool>,
    status: Option<StatusWriter>,
    /// What the clients of each model got that have left.
    left: Vec<Counts>,
}

/// How far the end has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Requests are answered with «stopping».
    Stopping(Instant),
    /// Connections are closed.
    Ending(Instant),
}

impl Server<'_> {
    /// The exit code. After an error of a model's kernels clients see connections close with the program.
    fn run(mut self, stop: &AtomicBool) -> Result<u8> {
        let ended = self.serve(stop);
        if let Err(error) = &ended {
            complain!("inference-server: {}", sentence(error));
        }
        let code = self.totals.end(self.options)?;
        Ok(if ended.is_err() { FAILED } else { code })
    }

    fn serve(&mut self, stop: &AtomicBool) -> Result<()> {
        let (since, mut phase, mut idle) = (Instant::now(), Phase::Serving, 0_u32);
        let mut rounds = 0_u32;
        loop {
            let did = self.hear(phase == Phase::Serving)? | self.round(phase == Phase::Serving)?;
            rounds = rounds.wrapping_add(1);
            idle = if did { 0 } else { idle.saturating_add(1) };
            if self.question.load(Ordering::Relaxed) && self.question.swap(false, Ordering::Relaxed) {
                self.answer(since.elapsed());
            }
            if idle >= IDLE_ROUNDS {
                std::thread::yield_now();
            }
            match phase {
                Phase::Serving => {
                    let sessions = self.options.sessions;
                    let is_enough = sessions > 0 && self.totals.clients >= sessions;
                    // The clock is read when there is time for it.
                    let is_over =
                        (rounds.is_multiple_of(256) || did) && since.elapsed() >= self.options.max_time();
                    self.totals.interrupted = stop.load(Ordering::Relaxed);
                    if self.totals.interrupted || is_over || is_enough {
                        phase = Phase::Stopping(Instant::now());
                    }
                }
                Phase::Stopping(begun) => {
                    let is_quiet = self.served.iter().all(|(_, served)| served.is_quiet());
                    let is_late = begun.elapsed() > STOPPING;
                    if self.granted == 0 || (is_late && is_quiet && !did) || begun.elapsed() > ENDING {
                        self.closers.values_mut().for_each(close);
                        phase = Phase::Ending(Instant::now());
                    }
                }
                Phase::Ending(begun) if self.granted == 0 || begun.elapsed() > ENDING => break,
                Phase::Ending(_) => {}
            }
        }
        Ok(())
    }

    /// Serves a request of each model, if it has one: whether anything came or was served.
    fn round(&mut self, computes: bool) -> Result<bool> {
        let mut did = false;
        for (number, (model, served)) in self.served.iter_mut().enumerate() {
            did |= served.look();
            for (client, _) in served.failed() {
                // Its thread wakes up, and has it removed.
                self.closers.entry((number, client)).and_modify(close);
            }
            let mut run = |inputs: &[Vec<f32>], outputs: &mut Vec<Vec<f32>>| model.run(inputs, outputs);
            did |= served.serve(computes.then_some(&mut run as _))?;
            if let Some(why) = served.model_failure()
                && self.complained.insert(number)
            {
                complain!("inference-server: {} failed, and its client is told so: {why}", model.name);
            }
        }
        Ok(did)
    }

    /// Writes the counters.
    fn answer(&self, since: Duration) {
        let Some(status) = &self.status else { return };
        let of = |((model, served), left): (&(Model, Served), &Counts)| {
            let (clients, now) = served.counts();
            let (answered, refused) = (left.answered + now.answered, left.refused + now.refused);
            ModelStatus { model: model.name.clone(), clients, answered, refused, kernels: None }
        };
        let models = self.served.iter().zip(&self.left).map(of).collect();
        status.write(since, models);
    }

    /// Does what clients' threads ask for.
    fn hear(&mut self, admits: bool) -> Result<bool> {
        let mut did = false;
        while let Ok(command) = self.commands.try_recv() {
            did = true;
            match command {
                Command::Grant { reply, .. } if !admits => {
                    let _ = reply.send(Err("the server is ending".into()));
                }
                Command::Grant { model, wanted, reply } => {
                    let served = &mut self.served[model].1;
                    let granted = served.grant(wanted).and_then(|granted| {
                        let limited = self.options.credits.map(|credits| served.limit(granted.0, credits));
                        limited.unwrap_or(Ok(())).map(|()| granted)
                    });
                    let granted = granted.map_err(|error| error.to_string());
                    self.granted += usize::from(granted.is_ok());
                    let _ = reply.send(granted);
                }
                Command::Admit { key, endpoint, closer } => {
                    self.served[key.0].1.admit(key.1, *endpoint);
                    self.closers.insert(key, Some(closer));
                    if !admits {
                        self.closers.entry(key).and_modify(close);
                    }
                }
                Command::Leave { key, reply } => {
                    self.closers.remove(&key);
                    let _ = reply.send(self.served[key.0].1.remove(key.1));
                }
                Command::Gone { key } => self.served[key.0].1.withdraw(key.1)?,
                Command::Left { key, counts, has_failed } => {
                    self.granted -= 1;
                    self.totals.left(counts, has_failed);
                    self.left[key.0].answered += counts.answered;
                    self.left[key.0].refused += counts.refused;
                }
            }
        }
        Ok(did)
    }
}

pub fn close(closer: &mut Option<Closer>) {
    if let Some(closer) = closer.take() {
        closer.close();
    }
}
