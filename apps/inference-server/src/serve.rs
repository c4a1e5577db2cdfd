//! The thread that serves: it polls for requests of all clients and runs the models, one request at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use cli::{FAILED, INTERRUPTED, emit_listening, speaks_to_people};
use pipeline::cpu::{Memory, Served};
use serving::{Arrival, Transport};
use verbs::connect::{Closer, Listener};

use crate::model::Model;
use crate::options::{ArrivalName, Options, TransportName};
use crate::report::Totals;
use crate::session::{Command, Key, Shared, accept};

/// Rounds without anything to do before the core is offered to other threads.
const IDLE_ROUNDS: u32 = 64;
/// How long requests are answered with «stopping» before connections are closed.
const STOPPING: Duration = Duration::from_millis(500);
/// How long answers that are being sent, and clients that clear away, are waited for then.
const ENDING: Duration = Duration::from_secs(5);

/// Serves until it is stopped: the exit code.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<u8> {
    options.check()?;
    let found = Model::geometries(options)?;
    let bytes = |geometry| Memory::bytes(geometry, 1);
    let each: Vec<_> =
        found.iter().map(|(manifest, geometry)| (manifest.name.clone(), bytes(geometry))).collect();
    options.check_memory(&each)?;
    let (context, path) = options.nic.open("inference-server")?;
    let listener = Listener::bind(&options.listen).map_err(|error| {
        anyhow!("{error}; give --listen an address of this host and a free port (0: any)")
    })?;
    let mut served = Vec::new();
    for (manifest, geometry) in found {
        let model = Model::load(options, &manifest, geometry.clone())?;
        served.push((model, Served::new(geometry, options.slots)?));
    }
    let shared = Arc::new(Shared {
        context,
        path,
        mode: options.mode,
        models: served.iter().map(|(model, served)| (model.name.clone(), served.memory().clone())).collect(),
        slots_per_client: options.slots_per_client,
        transport: options.transport.map(|name| match name {
            TransportName::Rc => Transport::Rc,
            TransportName::Uc => Transport::Uc,
        }),
        arrival: options.arrival.map(|name| match name {
            ArrivalName::Flag => Arrival::Flag,
            ArrivalName::Tail => Arrival::Tail,
            ArrivalName::Completion => Arrival::Completion,
        }),
        clients: options.clients.into(),
        connections: AtomicUsize::new(0),
        json: options.json.clone(),
    });
    let address = listener.address()?.to_string();
    let (send, commands) = channel();
    // It ends with the process: nothing wakes it but a client.
    std::thread::Builder::new().name("accept".into()).spawn(move || accept(&listener, &shared, &send))?;
    let json = options.json.as_deref();
    if speaks_to_people(json) {
        say!("listening on {address}: {} by {}", options.models.join(", "), options.mode);
    }
    emit_listening(json, address)?;
    let totals = Totals::new(options);
    let server = Server { options, served, commands, closers: HashMap::new(), granted: 0, totals };
    server.run(stop)
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
    fn run(mut self, stop: &AtomicBool) -> Result<u8> {
        let (since, mut phase, mut idle) = (Instant::now(), Phase::Serving, 0_u32);
        loop {
            let did = self.hear(phase == Phase::Serving)? | self.round(phase == Phase::Serving)?;
            idle = if did { 0 } else { idle.saturating_add(1) };
            if idle >= IDLE_ROUNDS {
                std::thread::yield_now();
            }
            match phase {
                Phase::Serving => {
                    let sessions = self.options.sessions;
                    let is_enough = sessions > 0 && self.totals.clients >= sessions;
                    // The clock is read when there is time for it.
                    let is_over = (idle % 256 == 1 || did) && since.elapsed() >= self.options.max_time();
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
        self.totals.end(self.options)?;
        Ok(match self.options.sessions {
            0 => 0,
            _ if self.totals.interrupted => INTERRUPTED,
            _ if self.totals.failed > 0 => FAILED,
            _ => 0,
        })
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
        }
        Ok(did)
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
                    let granted = self.served[model].1.grant(wanted).map_err(|error| error.to_string());
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
                Command::Gone { key, counts, has_failed } => {
                    self.granted -= 1;
                    self.served[key.0].1.withdraw(key.1)?;
                    self.totals.left(counts, has_failed);
                }
            }
        }
        Ok(did)
    }
}

fn close(closer: &mut Option<Closer>) {
    if let Some(closer) = closer.take() {
        closer.close();
    }
}
