//! Packet generator: sends RDMA messages as fast as one thread can post them, to a receiver that is really there.
//!
//! `README.md` describes options, exit codes and JSON lines. Bad input ends with one line and exit code 2.
//! Knows nothing of which NIC lies below (INV-4).

// They panic when who reads has gone away: `say!` and `complain!` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// A line on standard output. Who reads it may go away (`| head`): that is no error of ours, and no reason to panic.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// A line on standard error, in the same way.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod baseline;
mod bench_post;
mod control;
mod lane;
mod options;
mod payload;
mod plan;
mod poster;
mod probe;
mod receiver;
mod report;
mod sender;
mod udp;
mod wire;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use serde::Serialize;

use crate::options::{Cli, Command, Transfer};

/// Not everything was sent, received and found whole.
const FAILED: u8 = 1;
/// Something in the request cannot be.
const BAD_INPUT: u8 = 2;
/// A signal ended it (128 + SIGINT, as shells say it).
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return bad_input(&options::one_line(&error)),
    };
    let code = match cli.command {
        Some(Command::Probe(probe)) => probe::run(probe.json),
        Some(Command::Baseline(baseline)) => baseline::run(&baseline),
        Some(Command::BenchPost(bench)) => stop_flag().and_then(|stop| bench_post::run(&bench, &stop)),
        None => stop_flag().and_then(|stop| match transfer(&cli.transfer, &stop) {
            // Whatever the error is called, the signal is why.
            Err(_) if stop.load(Ordering::Relaxed) => Ok(INTERRUPTED),
            result => result,
        }),
    };
    code.map_or_else(|error| bad_input(&sentence(&error)), ExitCode::from)
}

/// An error with its causes, each once: many a message already says its cause.
fn sentence(error: &anyhow::Error) -> String {
    let causes = error.chain().map(ToString::to_string);
    causes.fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.contains(&cause) => text,
        said => format!("{said}: {cause}"),
    })
}

/// A flag that Ctrl-C and SIGTERM set: whoever takes it must look at it.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).context("waiting for signals")?;
    }
    Ok(stop)
}

/// One line, whatever the error looked like.
fn bad_input(error: &str) -> ExitCode {
    let line: Vec<_> = error.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    complain!("generator: {}", line.join(" "));
    ExitCode::from(BAD_INPUT)
}

/// Opens the device that was asked for.
fn open(nic: &options::Nic) -> Result<(verbs::Context, verbs::connect::Path)> {
    nic.path().open().map_err(|error| {
        // Without any driver the kernel refuses the question itself.
        let none = verbs::devices().map_or_else(|refusal| refusal.errno().is_some(), |list| list.is_empty());
        if none {
            anyhow!(
                "{error}; without a card, `softnic run -- generator …` gives it a device (--help tells more)"
            )
        } else {
            error.into()
        }
    })
}

/// Writes one JSON line to standard output (`-`) or at the end of a file.
fn emit(json: Option<&Path>, line: &impl Serialize) -> Result<()> {
    let Some(path) = json else { return Ok(()) };
    let mut text = serde_json::to_string(line).context("writing JSON")?;
    text.push('\n');
    if path.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        return out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .context("writing to standard output");
    }
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let file = file.and_then(|mut file| file.write_all(text.as_bytes()));
    file.with_context(|| format!("writing to {}", path.display()))
}

/// Whether people read standard output.
fn speaks_to_people(json: Option<&Path>) -> bool {
    json.is_none_or(|path| path.as_os_str() != "-")
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
    let (plan, until, (kind, names)) = (options.plan()?, options.until()?, options.poster());
    let pause = options.pause()?;
    options::check_address("--connect", address)?;
    let (context, path) = open(&options.nic)?;
    let idle = sender::IdleQps::open(&context, &path, options.idle_qps)?;
    let sender = sender::Sender::connect(plan.clone(), kind, address, &context, &path, stop)?;
    let outcome = sender.run(until, pause, stop)?;
    let run = report::Run::new(&plan, names, idle.count(), context.name(), &path, &outcome);
    let json = options.json.as_deref();
    emit(json, &run)?;
    if speaks_to_people(json) {
        say!("{}", run.text());
    }
    if let Some(error) = &run.error {
        complain!("generator: {error}");
    }
    Ok(match (run.is_success(), run.interrupted) {
        (_, true) => INTERRUPTED,
        (true, false) => 0,
        (false, false) => FAILED,
    })
}

fn receive(options: &Transfer, address: &str, stop: &AtomicBool) -> Result<u8> {
    #[derive(Serialize)]
    struct Listening {
        kind: &'static str,
        address: String,
    }
    #[derive(Serialize)]
    struct Line {
        kind: &'static str,
        #[serde(flatten)]
        received: control::Received,
        interrupted: bool,
    }
    options::check_address("--listen", address)?;
    let (context, path) = open(&options.nic)?;
    let listener = verbs::connect::Listener::bind(address).map_err(|error| {
        anyhow!("{error}; give --listen an address of this host and a free port (0: any)")
    })?;
    let bound = listener.address()?.to_string();
    let json = options.json.as_deref();
    emit(json, &Listening { kind: "listening", address: bound.clone() })?;
    if speaks_to_people(json) {
        say!("listening on {bound}");
    }
    let mut worst = 0;
    let mut sessions = 0;
    while options.sessions == 0 || sessions < options.sessions {
        let outcome = match receiver::serve(&listener, &context, &path, stop) {
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
        let clean = received.error.is_none() && received.torn == 0 && received.lost == 0;
        worst = worst.max(if clean { 0 } else { FAILED });
        if speaks_to_people(json) {
            say!(
                "received {}  verified {} of {}  torn {}  lost {}",
                received.received,
                received.verified,
                received.checked,
                received.torn,
                received.lost
            );
        }
        emit(json, &Line { kind: "received", received, interrupted: outcome.interrupted })?;
        if outcome.interrupted || stop.load(Ordering::Relaxed) {
            return Ok(INTERRUPTED);
        }
        sessions += 1;
    }
    Ok(worst)
}
