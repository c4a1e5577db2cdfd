//! `softnic ctl capture`: the packets of a NIC's wire, into a pcapng file.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use soft_nic::control::{Blocks, call_for_packets};
use soft_nic::link::capture::pcapng::BlockKind;

use super::nics::{Target, put};

/// The process whose packets are captured, and the file they go to.
#[derive(Debug, Args)]
pub struct Capture {
    /// Process whose NIC is captured.
    #[arg(value_name = "PID")]
    pid: u32,
    /// File to write, or - for stdout.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// End after so many packets; otherwise when the process ends, or with Ctrl-C.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
}

/// What was captured.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    packets: u64,
    dropped: u64,
}

pub fn run(options: &Capture) -> Result<()> {
    let Target { view, member } = Target::of_process(options.pid)?;
    let mut blocks = call_for_packets(&view, &member, options.packets.unwrap_or_default())?;
    // Only now: a capture that cannot be leaves no file.
    let to_stdout = options.file.as_os_str() == "-";
    let Tally { packets, dropped } = if to_stdout {
        write(&mut blocks, &mut io::stdout().lock()).context("writing to stdout")?
    } else {
        let shown = options.file.display();
        let mut file = File::create(&options.file).with_context(|| format!("creating {shown}"))?;
        write(&mut blocks, &mut file).with_context(|| format!("writing {shown}"))?
    };
    let said = match dropped {
        0 => format!("{packets} packets"),
        dropped => format!("{packets} packets; {dropped} more found no room in time and are missing"),
    };
    if to_stdout {
        eprintln!("{said}")
    } else {
        println!("{said}")
    }
    if let Some(wanted) = options.packets.filter(|wanted| packets < *wanted) {
        bail!("process {} ended after {packets} of {wanted} packets", options.pid);
    }
    Ok(())
}

/// Writes whole blocks, so that the file is readable whenever the capture stops. Of the statistics blocks, a
/// sign of life too, it writes those with a new drop count and the last.
fn write(blocks: &mut Blocks, out: &mut impl Write) -> Result<Tally> {
    let (mut tally, mut bytes, mut last) = (Tally::default(), Vec::new(), Vec::new());
    while let Some((kind, block)) = blocks.next_block()? {
        let mut to = &mut bytes;
        match kind {
            BlockKind::Packet => tally.packets += 1,
            BlockKind::Statistics { dropped } => {
                last.clear();
                if dropped == tally.dropped {
                    to = &mut last;
                }
                tally.dropped = dropped;
            }
            BlockKind::Other => {}
        }
        to.extend_from_slice(block);
        if !blocks.has_next() || bytes.len() > 1 << 20 {
            if !put(out, &bytes)? {
                return Ok(tally);
            }
            bytes.clear();
        }
    }
    put(out, &last)?;
    Ok(tally)
}
