//! `softnic ctl explain`: why what failed, with what the NIC at the other end knows of it.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use soft_nic::abi::reasons::Failure;
use soft_nic::control::{Request, printable};

use super::nics::{Target, program_of, show};

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

pub fn run(options: &Explain) -> Result<()> {
    let target = Target::of_process(options.pid)?;
    let (mut text, mut peers) = (String::new(), Peers::new());
    for row in target.ask::<Vec<Failure>>(&Request::Explain)? {
        let peer_reason = row.peer.map(|peer| {
            let slot = mlx5_device::slot_of(peer);
            let known = peers.entry(slot).or_insert_with(|| ask_peer(&target, slot));
            peers_reason(known, &row, peer)
        });
        text += &if options.json { as_json(&row, peer_reason) } else { in_words(&row, peer_reason) };
    }
    if text.is_empty() && !options.json {
        text = format!("nothing failed yet in {} (pid {})\n", program_of(options.pid), options.pid);
    }
    show(&text).map(drop)
}

/// What the process at this slot has to say, asked once; the error is a sentence.
type Peers = BTreeMap<u8, Result<(u32, Vec<Failure>), String>>;

fn ask_peer(target: &Target, slot: u8) -> Result<(u32, Vec<Failure>), String> {
    let found = Target::of_fabric(&target.view).into_iter().find(|other| other.member.slot == slot);
    let other = found.ok_or_else(|| format!("the process in slot {slot} has ended"))?;
    let rows = other.ask(&Request::Explain).map_err(|error| format!("{error:#}"))?;
    Ok((other.member.pid, rows))
}

/// What the peer's process has on the failure, or why nothing.
fn peers_reason(known: &Result<(u32, Vec<Failure>), String>, row: &Failure, peer: u32) -> String {
    let (pid, rows) = match known {
        Ok(known) => known,
        Err(why) => return format!("of QP {peer:#x} nothing is known: {why}"),
    };
    // Both clocks are this machine's, read one after the other.
    let is_it = |its: &&Failure| {
        its.qpn == Some(peer) && its.kind != "flush" && its.ns <= row.ns.saturating_add(1_000_000)
    };
    match rows.iter().rfind(is_it) {
        Some(its) => format!("process {pid}: {}", printable(&its.text)),
        None => format!("process {pid} has no reason of QP {peer:#x} among its last hundred"),
    }
}

fn in_words(row: &Failure, peer_reason: Option<String>) -> String {
    let (us, s) = (row.ns / 1000 % 1_000_000, row.ns / 1_000_000_000);
    let more = if row.more > 0 { format!(" (and {} more)", row.more) } else { String::new() };
    let peer_reason = peer_reason.map_or(String::new(), |peer_reason| format!("{:17}{peer_reason}\n", ""));
    format!(
        "{:02}:{:02}:{:02}.{us:06}  {}{more}\n{peer_reason}",
        s / 3600 % 24,
        s / 60 % 60,
        s % 60,
        printable(&row.text)
    )
}

fn as_json(row: &Failure, peer_reason: Option<String>) -> String {
    let Failure { ns, kind, qpn, wqe, more, .. } = row;
    let line = json!({"unix_ns": ns, "kind": kind, "qp": qpn, "wqe": wqe, "more": more, "why": printable(&row.text), "peer": peer_reason});
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_with_time_repetitions_and_what_the_peer_knows() {
        let (kind, text) = ("remote_access".to_owned(), "QP 0x40, WQE 7: a \u{1b}[2J key".to_owned());
        let (ns, qpn, wqe, peer) = (45_296_000_007_000, Some(64), Some(7), Some(65));
        let row = Failure { ns, kind, qpn, wqe, peer, more: 2, text };
        let words = in_words(&row, Some("process 9: QP 0x41: why".to_owned()));
        let first = "12:34:56.000007  QP 0x40, WQE 7: a  [2J key (and 2 more)";
        assert_eq!(words, format!("{first}\n                 process 9: QP 0x41: why\n"));
        let wanted = json!({"unix_ns": ns, "kind": "remote_access", "qp": 64, "wqe": 7, "more": 2,
            "why": "QP 0x40, WQE 7: a  [2J key", "peer": null});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&as_json(&row, None)).unwrap(), wanted);
    }
}
