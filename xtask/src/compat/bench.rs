//! One row, run: its processes on a NIC of their own, and what they and the NIC's counters say of it.

use std::cell::OnceCell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::kernel::{self, End, Guest};
use super::programs::{Program, Row};
use super::results::Verdict;
use crate::bench_nic::pair::{free_port, is_listening};
use crate::process::{ChildGuard, Ended, WAIT, run_logged, wait_for};
use crate::workspace::{root, target_dir};

/// How long a server may live on after its client.
const LEAVING: Duration = Duration::from_secs(10);

/// Runs of a row that loses a race against itself.
const ATTEMPTS: usize = 6;

/// A verdict, and what works or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    pub why: String,
}

impl Outcome {
    pub fn of(verdict: Verdict, why: impl Into<String>) -> Outcome {
        Outcome { verdict, why: why.into() }
    }
}

/// What a process left.
#[derive(Clone, Debug)]
pub struct Side {
    /// `None`: it was stopped after its client had ended.
    pub ended: Option<Ended>,
    pub said: String,
}

/// Where rows are run.
pub struct Bench {
    softnic: PathBuf,
    pub logs: PathBuf,
    /// Booted for the first row that needs it; or why it cannot be.
    guest: OnceCell<Result<Guest, String>>,
}

/// One row's processes: where they write, and which port is theirs.
struct Place {
    folder: PathBuf,
    port: u16,
}

impl Place {
    fn file(&self, end: usize, kind: &str) -> PathBuf {
        self.folder.join(format!("{end}.{kind}"))
    }

    /// What a process left that ended so.
    fn side(&self, end: usize, ended: Option<Ended>) -> Result<Side> {
        let said = fs::read(self.file(end, "log"))?;
        Ok(Side { ended, said: String::from_utf8_lossy(&said).into_owned() })
    }

    /// Starts a server, and waits for it to listen on the port, or to say the row's words.
    fn serving(&self, command: &mut Command, row: &Row) -> Result<ChildGuard> {
        let log = self.file(0, "log");
        let (mut server, mut said) = (ChildGuard::logged(command, &log)?, String::new());
        let ready = wait_for(WAIT, || {
            // Before its words are read: one that has ended has said all.
            let ended = server.poll()?;
            said = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let listens = || is_listening(server.0.id(), self.port);
            match ended {
                _ if row.ready.as_ref().map_or_else(listens, |words| said.contains(words)) => Ok(Some(())),
                Some(ended) => bail!("the server {ended}: {}", first_error(&said)),
                None => Ok(None),
            }
        })?;
        ready.with_context(|| format!("the server does not get ready: {}", first_error(&said)))?;
        Ok(server)
    }
}

impl Bench {
    pub fn new(softnic: PathBuf, logs: PathBuf) -> Bench {
        Bench { softnic, logs, guest: OnceCell::new() }
    }

    /// Runs a row whose program is prepared.
    pub fn run(&self, program: &Program, row: &Row) -> Outcome {
        // A machine on which no guest boots says nothing of the NIC.
        if let Some(Err(why)) = row.kernel.map(|_| self.guest(program)) {
            return Outcome::of(Verdict::NotRun, without_places(&format!("no guest: {why}")));
        }
        let is_raced =
            |sides: &[Side]| sides.iter().any(|side| row.races.iter().any(|words| side.said.contains(words)));
        for attempt in 1.. {
            let tried = self.sides(program, row).and_then(|(sides, stats)| Ok((sides, moved(&stats)?)));
            match tried {
                Ok((sides, _)) if attempt < ATTEMPTS && is_raced(&sides) => {}
                Ok((sides, moved)) => return judge(row, &sides, moved),
                Err(error) => return failed(row, format!("{error:#}")),
            }
        }
        unreachable!("the last attempt is judged")
    }

    fn sides(&self, program: &Program, row: &Row) -> Result<(Vec<Side>, Vec<PathBuf>)> {
        let name = format!("{}-{}", program.name, row.name);
        let folder = self.logs.join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let at = Place { folder, port: free_port()? };
        if let Some(kernel) = row.kernel {
            return self.sides_with(kernel, program, row, &at);
        }
        let on_nic = |end: usize, command: &str| {
            self.on_nic(Command::new(&self.softnic), program, row, &at, end, command)
        };
        let commands = row.commands();
        let [server, client] = &commands[..] else {
            let ended = run_logged(&mut on_nic(0, &commands[0]), &at.file(0, "log"), row.deadline())?;
            return Ok((vec![at.side(0, Some(ended))?], vec![at.file(0, "jsonl")]));
        };
        let mut serving = at.serving(&mut on_nic(0, server), row)?;
        let asked = run_logged(&mut on_nic(1, client), &at.file(1, "log"), row.deadline())?;
        let is_stopped = row.stop && serving.poll()?.is_none();
        // A guard that is dropped ends its program.
        let served = if is_stopped { None } else { Some(serving.wait(LEAVING)?) };
        drop(serving);
        let sides = vec![at.side(0, served)?, at.side(1, Some(asked))?];
        Ok((sides, vec![at.file(0, "jsonl"), at.file(1, "jsonl")]))
    }

    /// The guest, which is booted for the first row. Error: why it cannot be.
    fn guest(&self, program: &Program) -> Result<&Guest, String> {
        let boot = || Guest::boot(&program.folder(), &self.logs).map_err(|error| format!("{error:#}"));
        self.guest.get_or_init(boot).as_ref().map_err(String::clone)
    }

    /// Runs a server and a client of which one is in the guest of a kernel.
    fn sides_with(
        &self,
        kernel: End,
        program: &Program,
        row: &Row,
        at: &Place,
    ) -> Result<(Vec<Side>, Vec<PathBuf>)> {
        let guest = self.guest(program).map_err(|why| anyhow!(why))?;
        let commands = row.commands();
        let [server, client] = &commands[..] else { bail!("a row with `kernel` has a server and a client") };
        let loses = row.nic.iter().any(|option| option == "--loss");
        let of = |command: &str, end| {
            let filled = kernel::filled(&program.filled(command, at.port), end, kernel);
            if loses && end == kernel { kernel::losing(&filled, row.deadline()) } else { filled }
        };
        // The shell around it tells what was lost, once its command was ended.
        let limit = row.deadline() + if loses { LEAVING } else { Duration::ZERO };
        let on_nic = |number: usize, command: &str| {
            self.on_nic(guest.beside(&self.softnic), program, row, at, number, command)
        };
        let sides = match kernel {
            End::Server => {
                let ready = kernel::ready(row.ready.as_deref(), at.port);
                let serving = guest.start(&of(server, End::Server), &ready, limit)?;
                serving.wait_until_ready()?;
                let asked =
                    run_logged(&mut on_nic(1, &of(client, End::Client)), &at.file(1, "log"), row.deadline())?;
                let served = serving.wait(LEAVING);
                [Side { ended: Some(served), said: serving.said() }, at.side(1, Some(asked))?]
            }
            End::Client => {
                let mut serving = at.serving(&mut on_nic(0, &of(server, End::Server)), row)?;
                let asking = guest.start(&of(client, End::Client), "true", limit)?;
                let asked = asking.wait(limit + LEAVING);
                let served = serving.wait(LEAVING)?;
                [at.side(0, Some(served))?, Side { ended: Some(asked), said: asking.said() }]
            }
        };
        let stats = at.file(if kernel == End::Server { 1 } else { 0 }, "jsonl");
        // A row that is to show what is done about lost packets has to lose some.
        let counters = lines(std::slice::from_ref(&stats))?;
        let lost = ["injected_lost_requests", "injected_lost_replies"].map(|name| counted(&counters, name));
        ensure!(!loses || lost != [0, 0], "the NIC lost no packet");
        let guest = &sides[usize::from(kernel == End::Client)];
        // Else its end is what went wrong.
        if loses && guest.ended == Some(Ended::Well) {
            let found = kernel::sent_and_lost(&guest.said);
            let [sent, lost] = found.context("tc does not say what the guest lost")?;
            // Few packets may all arrive.
            ensure!(lost > 0 || sent < 1000, "the guest lost none of {sent} packets");
        }
        Ok((sides.into(), vec![stats]))
    }

    /// A command of a row behind the launcher, which is `softnic` or runs it elsewhere.
    fn on_nic(
        &self,
        mut softnic: Command,
        program: &Program,
        row: &Row,
        at: &Place,
        end: usize,
        command: &str,
    ) -> Command {
        softnic.args(["run", "--fabric", &format!("xtask-compat-{}-{}", std::process::id(), at.port)]);
        softnic.args(row.options()).arg("--stats").arg(at.file(end, "jsonl"));
        // A shell in between would hide by which signal a program ended.
        let exec = if command.contains(['&', ';', '|']) { "" } else { "exec " };
        softnic.args(["--", "sh", "-c", &format!("{exec}{}", program.filled(command, at.port))]);
        softnic.current_dir(program.folder());
        softnic.envs(row.env.iter().map(|(name, value)| (name, program.filled_value(value, at.port))));
        softnic.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_MANIFEST_DIR");
        // The NIC's own words; with them its commands are slower.
        let is_logged = row.ready.as_ref().is_some_and(|words| words.starts_with("rdma_cm "));
        softnic.envs(is_logged.then_some(("SOFTNIC_LOG", "1")));
        softnic
    }
}

/// Messages and bytes that the NICs of all processes received. If a signal ended a receiver, so that it left
/// no counts, those that the others sent are more.
fn moved(stats: &[PathBuf]) -> Result<[u64; 2]> {
    let lines = lines(stats)?;
    let most = |what: &str| {
        counted(&lines, &format!("{what}_received")).max(counted(&lines, &format!("{what}_sent")))
    };
    // What the NIC asked for by READ, where its peer has no counts.
    Ok([most("messages"), most("bytes").max(counted(&lines, "bytes_read"))])
}

fn lines(stats: &[PathBuf]) -> Result<Vec<Value>> {
    let text: String = stats.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("the NIC's counters")
}

fn counted(lines: &[Value], name: &str) -> u64 {
    lines.iter().filter_map(|line| line["counters"][name].as_u64()).sum()
}

/// A row's outcome by its processes' ends, their words and the NIC's counts. The client is last in `sides`.
pub fn judge(row: &Row, sides: &[Side], [messages, bytes]: [u64; 2]) -> Outcome {
    let names: &[&str] = if sides.len() == 1 { &["it"] } else { &["the server", "the client"] };
    // A client says more of a failure than its server, which ends because of it.
    let bad_end = names.iter().zip(sides).rev().find_map(|(name, side)| {
        let ended = side.ended.filter(|ended| *ended != Ended::Well)?;
        Some((ended, format!("{name} {ended}: {}", first_error(&side.said))))
    });
    let mut missing = Vec::new();
    let [.., client] = sides else { return Outcome::of(Verdict::Fails, "nothing was run") };
    for (all, side) in [(&row.says, client), (&row.server_says, &sides[0])] {
        let unsaid = all.iter().filter(|words| !side.said.contains(*words));
        missing.extend(unsaid.map(|words| format!("`{words}` is not said")));
    }
    let is_said = |words: &&String| sides.iter().any(|side| side.said.contains(*words));
    missing.extend(row.never.iter().filter(is_said).map(|words| format!("`{words}` is said")));
    for (name, moved, least) in [("messages", messages, row.messages), ("bytes", bytes, row.bytes)] {
        if moved < least {
            missing.push(format!("{moved} {name} went over the NIC, at least {least} have to"));
        }
    }
    let counted = row.count.as_ref().map(|count| {
        let skipped = count.subtract.iter().map(|words| sum_beside(&client.said, words)).sum();
        (sum_beside(&client.said, &count.add).saturating_sub(skipped), skipped, count.at_least)
    });
    if let Some((passed, _, least)) = counted.filter(|(passed, _, least)| passed < least) {
        missing.push(format!("{passed} tests passed, at least {least} have to"));
    }
    let is_late = matches!(bad_end, Some((Ended::TimedOut, _)));
    if is_late || !missing.is_empty() {
        // What is missing behind the first is its consequence.
        let why = bad_end.map(|(_, why)| why).into_iter().chain(missing.into_iter().take(1));
        return failed(row, why.collect::<Vec<_>>().join("; "));
    }
    let why = match (bad_end, counted, row.note.clone()) {
        (Some((_, end)), Some((passed, ..)), note) => {
            format!("{passed} tests passed; {}", note.unwrap_or(end))
        }
        (Some((ended, _)), None, Some(note)) => format!("its data is right, then it {ended}: {note}"),
        (Some((_, end)), None, None) => return Outcome::of(Verdict::Fails, without_places(&end)),
        (None, Some((passed, skipped @ 1.., _)), _) => {
            format!("{passed} tests passed, {skipped} were skipped{}", in_brackets(row))
        }
        (None, ..) => return Outcome::of(Verdict::Works, ""),
    };
    Outcome::of(Verdict::InPart, without_places(&why))
}

fn failed(row: &Row, why: String) -> Outcome {
    Outcome::of(Verdict::Fails, without_places(&(why + &in_brackets(row))))
}

/// The note of a row behind other words.
fn in_brackets(row: &Row) -> String {
    row.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"))
}

/// The sum of the numbers that touch `words`, before or behind them.
fn sum_beside(text: &str, words: &str) -> u64 {
    let beside = |(at, _): (usize, &str)| {
        let before = &text[..at];
        let start = before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let behind = &text[at + words.len()..];
        let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
        before[start..].parse::<u64>().or_else(|_| behind[..digits].parse()).unwrap_or(0)
    };
    text.match_indices(words).map(beside).sum()
}

/// The first line that tells of an error, or else the last one.
fn first_error(said: &str) -> String {
    const WORDS: &str = "error, fail, cannot, can't, couldn't, unable, not supported, refused, no such, invalid, unreachable, panicked";
    let is_error = |line: &&str| WORDS.split(", ").any(|word| line.to_lowercase().contains(word));
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut line = lines().find(is_error).or_else(|| lines().next_back()).unwrap_or("it said nothing");
    // UCX and Open MPI begin a line with time and process, in brackets.
    while let Some((_, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        line = rest.trim_start();
    }
    line.chars().take(200).collect()
}

/// A message without what differs between runs and machines: our folders, and process ids of the NIC.
fn without_places(text: &str) -> String {
    let folders = [target_dir(), root()].map(|folder| format!("{}/", folder.display()));
    let mut text = folders.iter().fold(text.to_owned(), |text, folder| text.replace(folder, ""));
    while let Some((before, rest)) = text.split_once("softnic[") {
        let rest = rest.split_once(']').map_or(rest, |(_, rest)| rest);
        text = format!("{before}softnic{rest}");
    }
    text
}
