//! `softnic ctl explain`: why what failed, with what the NIC at the other end knows of it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use soft_nic::control::Request;

use super::nics::{RunningNics, Target, program_of, show};

/// The process whose failures are explained, and how.
#[derive(Debug, Args)]
#[command(
    after_help = "The last hundred: refused commands, rejected connections, stalled queues, and error completions, with what was \
                  flushed behind one. Where the peer refused, its process is asked too. Times are UTC, oldest first."
)]
pub struct Explain {
    /// Process whose NIC is asked.
    #[arg(value_name = "PID")]
    pid: u32,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// One line of a NIC.
#[derive(Debug, PartialEq)]
struct Row {
    /// Since 1970.
    ns: u64,
    kind: String,
    qpn: Option<u32>,
    wqe: Option<u32>,
    /// QPN of the peer that knows more.
    peer: Option<u32>,
    /// Of the same, after it.
    more: u64,
    text: String,
}

pub fn run(options: &Explain) -> Result<()> {
    let (nics, target) = RunningNics::of_process(options.pid)?;
    let (mut text, mut peers) = (String::new(), Peers::new());
    for row in rows(&nics, &target)? {
        let told = row.peer.map(|peer| {
            let slot = mlx5_device::slot_of(peer);
            let known = peers.entry(slot).or_insert_with(|| ask_peer(&nics, &target, slot));
            peers_reason(known, &row, peer)
        });
        text += &if options.json { as_json(&row, told) } else { in_words(&row, told) };
    }
    if text.is_empty() && !options.json {
        text = format!("nothing failed yet in {} (pid {})\n", program_of(options.pid), options.pid);
    }
    show(&text).map(drop)
}

fn rows(nics: &RunningNics, target: &Target) -> Result<Vec<Row>> {
    let lines = nics.ask(target, &Request::Explain)?;
    let nonsense = || format!("process {}: its answer makes no sense", target.member.pid);
    lines.iter().map(row).collect::<Option<_>>().with_context(nonsense)
}

fn row((ns, line): &(String, String)) -> Option<Row> {
    let words: Vec<&str> = line.splitn(6, ' ').collect();
    let [kind, qpn, wqe, peer, more, text] = words[..] else { return None };
    let number = |word: &str| if word == "-" { Some(None) } else { word.parse().ok().map(Some) };
    Some(Row {
        ns: ns.parse().ok()?,
        kind: kind.to_owned(),
        qpn: number(qpn)?,
        wqe: number(wqe)?,
        peer: number(peer)?,
        more: more.parse().ok()?,
        // What a terminal would take for a command came from another process.
        text: text.replace(|c: char| c.is_control(), " "),
    })
}

/// What the process at this slot has to say, asked once; the error is a sentence.
type Peers = BTreeMap<u8, Result<(u32, Vec<Row>), String>>;

fn ask_peer(nics: &RunningNics, target: &Target, slot: u8) -> Result<(u32, Vec<Row>), String> {
    let mut all = nics.targets.iter().chain([target]);
    let found = all.find(|other| other.view == target.view && other.member.slot == slot);
    let other = found.ok_or_else(|| format!("the process in slot {slot} has ended"))?;
    let rows = rows(nics, other).map_err(|error| format!("{error:#}"))?;
    Ok((other.member.pid, rows))
}

/// What the peer's process has on the failure, or why nothing.
fn peers_reason(known: &Result<(u32, Vec<Row>), String>, row: &Row, peer: u32) -> String {
    let (pid, rows) = match known {
        Ok(known) => known,
        Err(why) => return format!("of QP {peer:#x} nothing is known: {why}"),
    };
    // Both clocks are this machine's, read one after the other.
    let is_it = |its: &&Row| {
        its.qpn == Some(peer) && its.kind != "flush" && its.ns <= row.ns.saturating_add(1_000_000)
    };
    match rows.iter().rfind(is_it) {
        Some(its) => format!("process {pid}: {}", its.text),
        None => format!("process {pid} has no reason of QP {peer:#x} among its last hundred"),
    }
}

fn in_words(row: &Row, told: Option<String>) -> String {
    let (us, s) = (row.ns / 1000 % 1_000_000, row.ns / 1_000_000_000);
    let more = if row.more > 0 { format!(" (and {} more)", row.more) } else { String::new() };
    let told = told.map_or(String::new(), |told| format!("{:17}{told}\n", ""));
    format!("{:02}:{:02}:{:02}.{us:06}  {}{more}\n{told}", s / 3600 % 24, s / 60 % 60, s % 60, row.text)
}

fn as_json(row: &Row, told: Option<String>) -> String {
    let Row { ns, kind, qpn, wqe, more, text, .. } = row;
    let line =
        json!({"unix_ns": ns, "kind": kind, "qp": qpn, "wqe": wqe, "more": more, "why": text, "peer": told});
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Row> {
        row(&("45296000007000".to_owned(), line.to_owned()))
    }

    #[test]
    fn a_line_is_shown_with_time_repetitions_and_what_the_peer_knows() {
        let row = parsed("remote_access 64 7 65 2 QP 0x40, WQE 7: a \u{1b}[2J key").unwrap();
        assert_eq!((row.qpn, row.wqe, row.peer, row.more), (Some(64), Some(7), Some(65), 2));
        let words = in_words(&row, Some("process 9: QP 0x41: why".to_owned()));
        let first = "12:34:56.000007  QP 0x40, WQE 7: a  [2J key (and 2 more)";
        assert_eq!(words, format!("{first}\n                 process 9: QP 0x41: why\n"));
        let wanted = json!({"unix_ns": 45296000007000u64, "kind": "remote_access", "qp": 64, "wqe": 7, "more": 2,
            "why": "QP 0x40, WQE 7: a  [2J key", "peer": null});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&as_json(&row, None)).unwrap(), wanted);
    }

    #[test]
    fn nonsense_of_another_process_is_no_row() {
        for line in [
            "",
            "command",
            "command - - - 0",
            "command x - - 0 why",
            "command - - - - why",
            "c 1 2 4294967296 0 w",
        ] {
            assert_eq!(parsed(line), None, "{line:?}");
        }
    }
}
