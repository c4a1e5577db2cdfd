//! `softnic replay FILE` runs a recording again; `softnic trace FILE` draws it.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use soft_nic::recording::{ReplayError, replay};

use crate::trace;

#[derive(Debug, Args)]
#[command(after_long_help = REPLAY_HELP)]
pub struct Replay {
    /// A file that `softnic run --record` has written.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

const REPLAY_HELP: &str = "The device gets what the file has (register writes, commands, packets that arrived, times, and the memory it read). \
     A digest of what it sends, completes and asks is compared with the recorded one after each round. The payload of messages is not in \
     the file: of it, address and length are compared.\n\n\
     Exit status: 0 when all is as recorded, 1 at the first step that differs, which is named, 2 for a file that is no whole recording.\n\n\
     Example:\n  softnic run --record run.rec -- ib_write_bw HOST; softnic replay run.rec";

#[derive(Debug, Args)]
#[command(after_long_help = TRACE_HELP)]
pub struct Trace {
    /// A file that `softnic run --record` has written.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// File that gets the events as JSON, for https://ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "OUT")]
    perfetto: PathBuf,
}

const TRACE_HELP: &str = "Each queue pair is a track. A slice «round» has what the NIC did for it at one time: doorbells taken, WQEs read, \
     packets or messages sent and received, CQEs written. An arrow joins those of one message. Within a round the NIC reads a clock for \
     long messages alone: without it each event is 1 ns long, behind the one before. A message that is lost in shared memory has no event.\n\n\
     A trace is a replay: at a difference, or where the file is cut off or damaged, it ends and has what precedes that.\n\n\
     Exit status: 0 when the trace is whole, 1 when it ends at a step that differs, 2 for a file that is no whole recording.\n\n\
     Example:\n  softnic trace run.rec --perfetto run.json";

pub fn run_replay(Replay { file }: &Replay) -> Result<()> {
    let replayed = replay(file).map_err(|error| match error {
        // It names the file itself.
        ReplayError::Recording { .. } => anyhow::Error::new(error),
        error => anyhow::Error::new(error).context(file.display().to_string()),
    })?;
    println!("{}: {replayed}, as recorded", file.display());
    Ok(())
}

pub fn run_trace(Trace { file, perfetto }: &Trace) -> Result<()> {
    let events = trace::write(file, perfetto)?;
    println!("{}: {events} events", perfetto.display());
    Ok(())
}

/// Exit status of an error: 1 for a difference, 2 for what the user can mend.
pub fn status(error: &anyhow::Error) -> u8 {
    match error.downcast_ref() {
        Some(ReplayError::Differs { .. } | ReplayError::Panics { .. }) => 1,
        _ => 2,
    }
}
