//! Packet generator: one thread sends RDMA messages as fast as it can post them, to a real receiver.
//!
//! `README.md` describes options, exit codes and JSON lines. Bad input ends with one line and exit code 2.
//! Knows nothing of which NIC lies below (INV-4).

// They panic on a closed pipe: `say!` and `complain!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
extern crate cli;

mod baseline;
mod bench_post;
mod bench_post_gpu;
mod control;
mod kernel_options;
mod kernel_receiver;
mod kernel_sender;
mod lane;
mod option_scope;
mod options;
mod payload;
mod plan;
mod post_times;
mod poster;
mod probe;
mod receiver;
mod report;
mod sender;
mod udp;
mod wire;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, bail};
use cli::{FAILED, INTERRUPTED, check_address, emit, emit_listening, sentence, speaks_to_people, stop_flag};
use measure::Label;
use serde::Serialize;

use crate::kernel_sender::KernelSender;
use crate::options::{Cli, Command, PosterKind, Transfer};
use crate::sender::{Outcome, Sender, StopCondition};

fn main() -> ExitCode {
    cli::main("generator", &option_scope::OPTION_SCOPES, |cli: Cli| match cli.command {
        Some(Command::Probe(probe)) => probe::run(probe.json),
        Some(Command::Baseline(baseline)) => baseline::run(&baseline),
        Some(Command::BenchPost(bench)) => bench_post::run(&bench, &*stop_flag()?),
        Some(Command::BenchPostGpu(bench)) => bench_post_gpu::run(&bench, &*stop_flag()?),
        None => {
            let stop = stop_flag()?;
            match transfer(&cli.transfer, &stop) {
                // Whatever the error is called, the signal is why.
                Err(_) if stop.load(Ordering::Relaxed) => Ok(INTERRUPTED),
                result => result,
            }
        }
    })
}

fn transfer(options: &Transfer, stop: &AtomicBool) -> Result<u8> {
    match (&options.listen, &options.connect) {
        (Some(address), _) => receive(options, address, stop),
        (None, Some(address)) => send(options, address, stop),
        (None, None) => {
            bail!("give --listen ADDRESS:PORT to receive or --connect HOST:PORT to send (--help tells more)")
        }
    }
}

fn send(options: &Transfer, address: &str, stop: &AtomicBool) -> Result<u8> {
    let (plan, until, (poster, mut names)) = (options.plan()?, options.until()?, options.poster()?);
    let (pause, warm_up) = (options.pause()?, options.warm_up()?);
    check_address("--connect", address)?;
    let machine = match &poster {
        PosterKind::Cpu(_) => None,
        PosterKind::Kernel(kind) => {
            kind.check(&plan)?;
            Some(kind.host.machine("--poster host-twin, cpu-shim or cpu-ibverbs")?)
        }
    };
    if let Some(machine) = &machine {
        let gpu = if machine.is_gpu() { Label::Hardware } else { Label::Emulated };
        (names.machine, names.gpu) = (Some(machine.name()), gpu);
    }
    let (context, path) = options.nic.open("generator")?;
    let idle = sender::IdleQps::open(&context, &path, options.idle_qps)?;
    let session = |until, pause, warm_up| -> Result<Outcome> {
        let proposal = control::Proposal { generator: control::VERSION, plan: plan.clone(), warm_up };
        match (&poster, &machine) {
            (PosterKind::Kernel(kind), Some(machine)) => {
                KernelSender::connect(proposal, kind, machine, address, &context, &path, stop)?
                    .run(until, stop)
            }
            (PosterKind::Kernel(_), None) => bail!("no machine for kernels"),
            (PosterKind::Cpu(kind), _) => {
                Sender::connect(proposal, *kind, address, &context, &path, stop)?.run(until, pause, stop)
            }
        }
    };
    let warmed_up = warm_up.map(|time| session(StopCondition::Elapsed(time), None, true)).transpose()?;
    let failed =
        |warm_up: &Outcome| warm_up.interrupted || warm_up.error.is_some() || !warm_up.received.is_clean();
    let (kind, outcome) = match warmed_up.filter(failed) {
        Some(outcome) => ("warm-up", outcome),
        None => ("run", session(until, pause, false)?),
    };
    let setup = report::RunSetup {
        idle_qps: idle.count(),
        warm_up_seconds: warm_up.unwrap_or_default().as_secs_f64(),
    };
    let run = report::Run::new(kind, &plan, names, setup, context.name(), &path, &outcome);
    report::tell(options.json.as_deref(), &run, report::Run::text)?;
    match (kind, &run.counts.error) {
        ("run", Some(error)) => complain!("generator: {error}"),
        ("run", None) => {}
        (_, error) => {
            let counts = if run.interrupted { "stopped by a signal" } else { "see its counts" };
            let why = error.as_deref().unwrap_or(counts);
            complain!("generator: the warm-up failed and nothing was measured: {why}");
        }
    }
    Ok(match (run.is_success(), run.interrupted) {
        (_, true) => INTERRUPTED,
        (true, false) => 0,
        (false, false) => FAILED,
    })
}

fn receive(options: &Transfer, address: &str, stop: &AtomicBool) -> Result<u8> {
    #[derive(Serialize)]
    struct Line {
        kind: &'static str,
        #[serde(flatten)]
        received: control::Received,
        interrupted: bool,
    }
    check_address("--listen", address)?;
    let kind = options.kernels.receiver_kind()?;
    let (context, path) = options.nic.open("generator")?;
    let listener = verbs::connect::Listener::bind(address).map_err(|error| {
        anyhow!("{error}; give --listen an address of this host and a free port (0: any)")
    })?;
    let bound = listener.address()?.to_string();
    let json = options.json.as_deref();
    emit_listening(json, &bound)?;
    if speaks_to_people(json) {
        say!("listening on {bound}");
    }
    let mut worst = 0;
    let mut sessions = 0;
    let mut limit = None;
    while options.sessions == 0 || sessions < options.sessions {
        let outcome = match receiver::serve(&listener, &context, &path, &kind, limit.take(), stop) {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return Ok(if options.sessions == 0 { worst } else { INTERRUPTED }),
            // A plan that cannot be ends a session and not the service.
            Err(error) if options.sessions != 1 => {
                complain!("generator: {error:#}");
                worst = worst.max(FAILED);
                sessions += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        let received = outcome.received;
        if let Some(error) = &received.error {
            complain!("generator: {error}");
        }
        let is_clean = received.is_clean();
        if outcome.warm_up && is_clean && !outcome.interrupted {
            limit = Some(control::SETUP);
            continue;
        }
        worst = worst.max(if is_clean { 0 } else { FAILED });
        let line = Line { kind: "received", received, interrupted: outcome.interrupted };
        report::tell(json, &line, |line| line.received.text())?;
        if outcome.interrupted || stop.load(Ordering::Relaxed) {
            return Ok(INTERRUPTED);
        }
        sessions += 1;
    }
    Ok(worst)
}
