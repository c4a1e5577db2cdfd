//! The end that asks: a kernel, or this program through libibverbs; and what came of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cli::{FAILED, INTERRUPTED, emit, speaks_to_people};
use echo::kernel::{EchoClient, Questions};
use rdma_shim::kernel::{KernelError, Reason, Region};
use verbs::connect::{Path, Session, Wait};
use verbs::{Pd, Qp};

use crate::cpu::Cpu;
use crate::end::{ClientEnd, LOOK, PATIENCE, SETUP, ServiceEnd, join, queue};
use crate::options::Options;
use crate::outcome::{Outcome, early_end};
use crate::report::Run;

/// How long a service may take to begin to listen.
pub const CONNECT: Duration = Duration::from_secs(3);
/// Bytes of a question where nothing else is asked for.
pub const BYTES: u32 = 64;
/// Threads of a kernel that fill and check a question.
pub const THREADS: u32 = 128;

enum Client {
    Kernel(Box<EchoClient>, Region),
    Cpu(Box<Cpu>),
}

impl Client {
    fn new(options: &Options, pd: &Pd, bytes: u32) -> Result<Client> {
        let Some(machine) = options.machine()? else {
            return Ok(Client::Cpu(Box::new(Cpu::new(pd, bytes, options.count)?)));
        };
        let (queue, region) = queue(options, &machine, pd, 2, 2 * u64::from(bytes))?;
        let threads = if machine.is_gpu() { THREADS.min(bytes / 8) } else { 1 };
        let questions = Questions { count: options.count, bytes, patience: PATIENCE, threads };
        Ok(Client::Kernel(Box::new(EchoClient::new(queue, &region, questions)?), region))
    }

    fn qp(&self) -> &Qp {
        match self {
            Client::Kernel(ask, _) => ask.queue().qp(),
            Client::Cpu(cpu) => cpu.qp(),
        }
    }

    fn ask(self, session: &mut Session, stop: &AtomicBool) -> Result<Outcome> {
        match self {
            Client::Kernel(ask, _region) => ask_by_kernel(*ask, session, stop),
            Client::Cpu(cpu) => cpu.ask(session, stop),
        }
    }
}

/// Sleeps until the kernel has all its answers, the service is gone, or a signal came.
fn ask_by_kernel(ask: EchoClient, session: &mut Session, stop: &AtomicBool) -> Result<Outcome> {
    let running = ask.start()?;
    let mut why = None;
    while why.is_none() && !stop.load(Ordering::Relaxed) && !running.is_over()? {
        why = early_end(session, LOOK);
    }
    running.cancel();
    Ok(outcome_of(&running.end(SETUP)?, why)?)
}

/// What a kernel says that asked; else `why` it was told to end.
pub fn outcome_of(asked: &EchoClient, why: Option<String>) -> Result<Outcome, KernelError> {
    let outcome = asked.outcome()?;
    let failure = outcome.failure.filter(|failure| failure.reason != Reason::Cancelled);
    Ok(Outcome {
        times: asked.round_trips_ns()?,
        wrong_words: outcome.wrong_words,
        first_wrong: outcome.first_wrong,
        error: failure.map(|failure| failure.to_string()).or(why),
    })
}

pub fn run(options: &Options, address: &str, stop: &AtomicBool) -> Result<u8> {
    let (context, path) = options.nic.open("doorbell-echo")?;
    let (pd, bytes) = (context.alloc_pd()?, options.payload.unwrap_or(BYTES));
    let asker = Client::new(options, &pd, bytes)?;
    let setup = || Wait::at_most(SETUP).unless(stop);
    let mut session = Session::connect(address, Wait::at_most(CONNECT).unless(stop))
        .context("is a service listening there?")?;
    join(&mut session, &path, asker.qp(), bytes, false, stop)?;
    session.barrier(setup())?;
    let mut outcome = asker.ask(&mut session, stop)?;
    let interrupted = stop.load(Ordering::Relaxed);
    if outcome.error.is_none() && !interrupted {
        outcome.error = hear(&mut session, outcome.times.len() as u64, setup());
    } else {
        let _ = session.send(&ClientEnd { asked: outcome.times.len() as u64 });
    }
    say_run(options, bytes, context.name(), &path, &outcome, interrupted)
}

/// Says what came of asking: the exit code.
pub fn say_run(
    options: &Options,
    bytes: u32,
    device: &str,
    path: &Path,
    outcome: &Outcome,
    interrupted: bool,
) -> Result<u8> {
    let run = Run::new(options, bytes, device, path, outcome, interrupted);
    let json = options.json.as_deref();
    emit(json, &run)?;
    if speaks_to_people(json) {
        say!("{}", run.text());
    }
    if let Some(error) = &run.error {
        complain!("doorbell-echo: {error}");
    }
    Ok(match (interrupted, run.is_success()) {
        (true, _) => INTERRUPTED,
        (false, true) => 0,
        (false, false) => FAILED,
    })
}

/// Tells the service that we are through: what it says against that.
fn hear(session: &mut Session, asked: u64, wait: Wait<'_>) -> Option<String> {
    let answered = session
        .send(&ClientEnd { asked })
        .and_then(|()| session.receive::<ServiceEnd>("the service's count", wait));
    match answered {
        Err(error) => Some(error.to_string()),
        Ok(ServiceEnd { error: Some(error), .. }) => Some(format!("the service says: {error}")),
        Ok(_) => None,
    }
}
