//! `softnic ctl counters`: what NICs have counted, once or again and again.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use soft_nic::control::{CallError, Request, printable};

use super::nics::{Target, program_of, show};

/// The processes whose counters are shown, and how.
#[derive(Debug, Args)]
pub struct Show {
    /// Process whose counters are shown.
    #[arg(value_name = "PID", conflicts_with = "all")]
    pid: Option<u32>,
    /// Every NIC of this user; with --fabric those of one fabric.
    #[arg(long)]
    all: bool,
    /// Only this fabric, with --all.
    #[arg(long, value_name = "NAME", requires = "all")]
    fabric: Option<String>,
    /// One JSON object for each NIC, with every counter, also those that are 0; with --watch one each time.
    #[arg(long)]
    json: bool,
    /// Repeat every SECONDS, 0.01 to 3600, below a blank line; a PID until it ends, --all until Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Seconds of `--watch`.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "0.01 to 3600 seconds".to_owned())
}

pub fn run(options: &Show) -> Result<()> {
    if options.pid.is_none() && !options.all {
        bail!(
            "no process is named: give a PID from `softnic ctl list`, or --all; see `softnic ctl counters --help`"
        );
    }
    let mut looked = false;
    let mut said_waiting = false;
    loop {
        let targets = match options.pid {
            Some(pid) => match Target::of_process(pid) {
                Ok(target) => vec![target],
                // It was there before: the end of what was watched.
                Err(_) if looked => return Ok(()),
                Err(error) => return Err(error),
            },
            None => Target::all(options.fabric.as_deref())?,
        };
        if targets.is_empty() && options.watch.is_none() {
            bail!(
                "no process has a NIC{}; `softnic ctl list` shows the processes that have one, and their fabrics",
                options.fabric.as_ref().map_or(String::new(), |name| format!(" on fabric {name:?}"))
            );
        }
        if targets.is_empty() && !said_waiting {
            let _ = writeln!(io::stderr(), "waiting for a NIC; Ctrl-C ends");
        }
        said_waiting = targets.is_empty();
        // A blank line tells this look from the one before.
        let mut separator = if looked && !options.json { "\n" } else { "" };
        for target in &targets {
            match target.ask::<Vec<(String, u64)>>(&Request::Counters) {
                Ok(counters) => {
                    if !show(&format!("{separator}{}", text(options, target, &counters)))? {
                        return Ok(());
                    }
                    (looked, separator) = (true, "");
                }
                // One that ends while all are asked, or that was watched to its end.
                Err(error) if has_ended(&error) && (options.all || looked) => {}
                // The others are asked all the same, and a watch goes on.
                Err(error) if options.all || looked => eprintln!("softnic: {error:#}"),
                Err(error) => return Err(error),
            }
        }
        let Some(pause) = options.watch else { return Ok(()) };
        std::thread::sleep(pause);
    }
}

fn has_ended(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CallError::Ended(_)))
}

/// One look at one NIC. For reading, what is 0 is left out.
fn text(options: &Show, Target { view, member }: &Target, counters: &[(String, u64)]) -> String {
    let fabric = &view.name;
    let program = program_of(member.pid);
    if options.json {
        let values: Map<String, Value> =
            counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
        let line = json!({"fabric": fabric, "slot": member.slot, "pid": member.pid, "comm": program, "counters": values});
        return format!("{line}\n");
    }
    let mut text = format!(
        "{program} (pid {}, fabric {fabric}, slot {}); counters that are 0 are left out\n",
        member.pid, member.slot
    );
    for (name, count) in counters.iter().filter(|(_, count)| *count > 0) {
        text += &format!("  {:<28} {count:>20}\n", printable(name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_neither_nothing_nor_for_ever() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "1e9", "", "x"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
