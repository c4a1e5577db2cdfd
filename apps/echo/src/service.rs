//! The end that answers: launches its kernel, sleeps, and looks now and then whether it is still wanted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use cli::{FAILED, INTERRUPTED, emit, emit_listening, sentence, speaks_to_people};
use echo::kernel::{Echo, Listening};
use rdma_shim::kernel::{Machine, Reason, Region, Running};
use serde::Serialize;
use verbs::Pd;
use verbs::connect::{ConnectError, Listener, Path, Session, Wait};

use crate::answers::Answers;
use crate::end::{ClientEnd, LOOK, PATIENCE, SETUP, ServiceEnd, is_stranger, join, queue};
use crate::options::Options;
use crate::{asking, modes};

/// Longest message where nothing else is asked for.
const BYTES: u32 = 1 << 16;

#[derive(Serialize)]
struct Ended {
    kind: &'static str,
    #[serde(flatten)]
    answered: ServiceEnd,
    interrupted: bool,
}

/// Answers as many askers as were asked for.
pub fn run(options: &Options, address: &str, stop: &AtomicBool) -> Result<u8> {
    let machine = options.machine()?;
    let name = machine.as_ref().map_or_else(|| "none".into(), Machine::name);
    let (context, path) = options.nic.open("doorbell-echo")?;
    let mut answers: Box<dyn Answers> = match options.mode {
        Some(mode) => {
            let bytes = options.payload.unwrap_or(asking::BYTES);
            Box::new(modes::Service::new(options, mode, (&context, &path), bytes)?)
        }
        None => {
            let machine = machine.context("a kernel answers")?;
            let bytes = options.payload.unwrap_or(BYTES);
            Box::new(Resident { options, machine, path: &path, pd: context.alloc_pd()?, bytes, echo: None })
        }
    };
    let listener = Listener::bind(address).map_err(|error| {
        anyhow!("{error}; give --listen an address of this host and a free port (0: any)")
    })?;
    let json = options.json.as_deref();
    let (mut worst, mut sessions, mut told) = (0, 0, false);
    while options.sessions == 0 || sessions < options.sessions {
        answers.prepare()?;
        if !std::mem::replace(&mut told, true) {
            let address = listener.address()?.to_string();
            if speaks_to_people(json) {
                say!("listening on {address}; kernels run on: {name}");
            }
            emit_listening(json, address)?;
        }
        let mut session = match listener.accept(Wait::at_most(Duration::MAX).unless(stop)) {
            Err(ConnectError::Stopped { .. }) => {
                return Ok(if options.sessions == 0 { worst } else { INTERRUPTED });
            }
            session => session?,
        };
        match answers.join(&mut session, stop) {
            Err(error) if is_stranger(&error) => {
                complain!("doorbell-echo: {}; still listening", sentence(&error));
                continue;
            }
            Err(error) if options.sessions == 1 => return Err(error),
            Err(error) => {
                complain!("doorbell-echo: {}", sentence(&error));
                worst = worst.max(FAILED);
            }
            Ok(()) => {
                let ended = answers.serve(&mut session, stop);
                worst = worst.max(finish(ended, &mut session, options, stop)?);
            }
        }
        sessions += 1;
        if stop.load(Ordering::Relaxed) {
            return Ok(INTERRUPTED);
        }
    }
    Ok(worst)
}

/// The kernel that answers SENDs, one for each client.
struct Resident<'a> {
    options: &'a Options,
    machine: Machine,
    path: &'a Path,
    pd: Pd,
    /// Of the longest message.
    bytes: u32,
    echo: Option<(Echo, Region)>,
}

impl Answers for Resident<'_> {
    fn prepare(&mut self) -> Result<()> {
        let (window, most_bytes) = (self.options.window(), self.bytes);
        let bytes = u64::from(window) * u64::from(most_bytes);
        let (queue, region) = queue(self.options, &self.machine, &self.pd, window, bytes)?;
        let listening = Listening { window, most_bytes, patience: PATIENCE };
        self.echo = Some((Echo::new(queue, &region, listening)?, region));
        Ok(())
    }

    fn join(&mut self, session: &mut Session, stop: &AtomicBool) -> Result<()> {
        let (echo, _) = self.echo.as_ref().context("no kernel is ready")?;
        join(session, self.path, echo.queue().qp(), self.bytes, true, stop).map(drop)
    }

    fn serve(&mut self, session: &mut Session, stop: &AtomicBool) -> Result<ServiceEnd> {
        let (echo, _region) = self.echo.take().context("no kernel is ready")?;
        serve(echo, session, stop)
    }
}

/// Answers one asker until it is through or gone, the kernel has ended, or a signal came.
fn serve(echo: Echo, session: &mut Session, stop: &AtomicBool) -> Result<ServiceEnd> {
    let running = echo.start()?;
    wait_until_ready(&running)?;
    session.barrier(Wait::at_most(SETUP).unless(stop))?;
    let (mut asked, mut gone) = (None, None);
    while asked.is_none() && gone.is_none() && !stop.load(Ordering::Relaxed) && !running.is_over()? {
        match session.receive::<ClientEnd>("its count", Wait::at_most(LOOK)) {
            Ok(said) => asked = Some(said.asked),
            Err(ConnectError::Deadline { .. }) => {}
            Err(error) => gone = Some(error),
        }
    }
    running.cancel();
    let outcome = running.end(SETUP)?.outcome()?;
    let failure = outcome.failure.filter(|failure| failure.reason != Reason::Cancelled);
    let answered = outcome.messages;
    let error = match (failure, gone, asked) {
        (Some(failure), ..) => Some(failure.to_string()),
        (None, Some(gone), _) => Some(format!("the client is gone: {gone}")),
        // A client that stopped in the middle did not get the last one.
        (None, None, Some(asked)) if asked != answered && asked.checked_add(1) != Some(answered) => {
            Some(format!("{} had {asked} answers, {answered} were given", session.peer()))
        }
        _ => None,
    };
    Ok(ServiceEnd { answered, error })
}

/// Waits until its receives are posted.
pub fn wait_until_ready(running: &Running<Echo>) -> Result<()> {
    let since = Instant::now();
    loop {
        let ready = running.held().map_or(Ok(false), Echo::is_ready)?;
        if ready || running.is_over()? {
            return Ok(());
        }
        if since.elapsed() > SETUP {
            bail!("the kernel has not begun {SETUP:?} after its launch; does something else keep the GPU?");
        }
        std::thread::yield_now();
    }
}

/// Says how a session ended, to the peer as well: its exit code.
fn finish(
    ended: Result<ServiceEnd>,
    session: &mut Session,
    options: &Options,
    stop: &AtomicBool,
) -> Result<u8> {
    let interrupted = stop.load(Ordering::Relaxed);
    let answered = ended.unwrap_or_else(|error| ServiceEnd { answered: 0, error: Some(sentence(&error)) });
    // A client that is gone gets no message; what it would have got is printed here.
    let _ = session.send(&answered);
    if let Some(error) = answered.error.as_ref().filter(|_| !interrupted) {
        complain!("doorbell-echo: {error}");
    }
    let code = if answered.error.is_none() { 0 } else { FAILED };
    let json = options.json.as_deref();
    if speaks_to_people(json) {
        say!("answered {} messages of {}", answered.answered, session.peer());
    }
    emit(json, &Ended { kind: "answered", answered, interrupted })?;
    Ok(code)
}
