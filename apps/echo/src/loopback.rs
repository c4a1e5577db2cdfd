//! Both ends in this process: a GPU runs one process's kernels side by side, two processes' in turns of ms.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use cli::{connect_pair, sentence};
use echo::kernel::{Echo, EchoClient, Listening, Questions};
use verbs::Pd;

use crate::asking::{BYTES, THREADS, outcome_of, say_run};
use crate::end::{ACCESS, LOOK, PATIENCE, SETUP, queue};
use crate::options::Options;
use crate::outcome::Outcome;
use crate::service::wait_until_ready;

/// Asks a service of our own, and says what came of it.
pub fn run(options: &Options, stop: &AtomicBool) -> Result<u8> {
    let machine = options.machine()?.context("kernels ask and answer")?;
    let (context, path) = options.nic.open("doorbell-echo")?;
    let (pd, bytes): (Pd, _) = (context.alloc_pd()?, options.payload.unwrap_or(BYTES));
    let (echo_queue, echo_region) = queue(options, &machine, &pd, 2, 2 * u64::from(bytes))?;
    let (ask_queue, ask_region) = queue(options, &machine, &pd, 2, 2 * u64::from(bytes))?;
    connect_pair(&path, ACCESS, echo_queue.qp(), ask_queue.qp())?;
    let listening = Listening { window: 2, most_bytes: bytes, patience: PATIENCE };
    let echo = Echo::new(echo_queue, &echo_region, listening)?;
    let threads = if machine.is_gpu() { THREADS.min(bytes / 8) } else { 1 };
    let questions = Questions { count: options.count, bytes, patience: PATIENCE, threads };
    let ask = EchoClient::new(ask_queue, &ask_region, questions)?;
    let service = echo.start()?;
    wait_until_ready(&service)?;
    let running = ask.start()?;
    while !stop.load(Ordering::Relaxed) && !running.is_over()? && !service.is_over()? {
        running.wait(LOOK)?;
    }
    running.cancel();
    let asked = running.end(SETUP);
    service.cancel();
    // Before the client's memory is freed: unregistering memory of a GPU waits for all of its kernels.
    let answered = service.end(SETUP)?.outcome()?;
    let asked = asked.and_then(|ask| outcome_of(&ask, None));
    let mut outcome =
        asked.unwrap_or_else(|error| Outcome { error: Some(sentence(&error.into())), ..Outcome::default() });
    if outcome.error.is_none() && answered.messages < outcome.times.len() as u64 {
        outcome.error = Some(format!("{} messages were answered", answered.messages));
    }
    say_run(options, bytes, context.name(), &path, &outcome, stop.load(Ordering::Relaxed))
}
