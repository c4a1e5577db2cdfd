//! The processes below one: found in `/proc`, asked to end, stopped, killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Write, stderr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a process may go on after it was told to stop.
const STOPPED_IN: Duration = Duration::from_secs(20);

/// Ends everything below this process: asks first, and kills what is left after `patience`.
pub fn end_all(patience: Duration) {
    // Orphaned grandchildren then become our children and are found. Without it only their parent is asked.
    let _ = set_child_subreaper(true);
    let mut tree = BTreeSet::new();
    let since = Instant::now();
    let mut asked = BTreeSet::new();
    // What a child starts in its last moment is found by the next look.
    while since.elapsed() < 2 * patience {
        tree.extend(descendants(std::process::id()));
        tree.retain(|process| is_alive(*process));
        if tree.is_empty() {
            return;
        }
        let too_late = since.elapsed() >= patience;
        let signal = if too_late { Signal::SIGKILL } else { Signal::SIGTERM };
        let all: Vec<u32> =
            tree.iter().copied().filter(|process| too_late || asked.insert(*process)).collect();
        send(&all, signal);
        sleep(Duration::from_millis(10));
    }
}

/// Asks the children of `ancestor` to end, once, and waits for them and all below them. It kills nothing and
/// asks no other: what apt-get runs ends whole if apt-get is asked. Whether all ended within `patience`.
pub fn end_unharmed(ancestor: u32, patience: Duration) -> bool {
    let mut tree: BTreeSet<u32> = descendants(ancestor).into_iter().collect();
    let children: Vec<u32> = tree.iter().copied().filter(|child| parent(*child) == Some(ancestor)).collect();
    // SIGINT: apt-get finishes what dpkg has begun.
    send(&children, Signal::SIGINT);
    let since = Instant::now();
    loop {
        tree.extend(descendants(ancestor));
        tree.retain(|process| is_alive(*process));
        if tree.is_empty() || since.elapsed() >= patience {
            return tree.is_empty();
        }
        sleep(Duration::from_millis(20));
    }
}

/// Stops a process and all below it, so that none can start another, and returns them. One that cannot be
/// stopped may start more: after [`STOPPED_IN`] the known ones are returned.
pub fn halted(top: u32) -> Vec<u32> {
    let mut tree = vec![top];
    let mut stopped = 0;
    let since = Instant::now();
    while stopped < tree.len() && since.elapsed() < STOPPED_IN {
        send(&tree[stopped..], Signal::SIGSTOP);
        stopped = tree.len();
        let more = descendants(top).into_iter().filter(|process| !tree.contains(process));
        tree.extend(more.collect::<Vec<_>>());
    }
    tree
}

/// Sends a signal to each process, and says which were refused.
pub fn send(processes: &[u32], signal: Signal) {
    for process in processes {
        let id = i32::try_from(*process).map_err(|_| Errno::ESRCH);
        if let Some(refusal) = refusal(*process, signal, id.and_then(|id| kill(Pid::from_raw(id), signal))) {
            let _ = writeln!(stderr(), "xtask: {refusal}");
        }
    }
}

/// What is wrong with a signal that was not delivered. A process that has ended meanwhile needs none.
fn refusal(process: u32, signal: Signal, sent: nix::Result<()>) -> Option<String> {
    let error = sent.err().filter(|error| *error != Errno::ESRCH)?;
    Some(format!("process {process} did not get {signal} and may still run: {}", error.desc()))
}

/// Whether a process runs: one that has ended and was not waited for does not.
pub fn is_alive(process: u32) -> bool {
    stat(process).is_some_and(|fields| !fields.starts_with('Z'))
}

pub fn descendants(ancestor: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> =
        processes().filter_map(|process| Some((process, parent(process)?))).collect();
    let mut found = vec![ancestor];
    let mut at = 0;
    while at < found.len() {
        let of = found[at];
        found.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(process, _)| *process));
        at += 1;
    }
    found.split_off(1)
}

/// Every process, zombies too.
pub fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub fn parent(process: u32) -> Option<u32> {
    stat(process)?.split_whitespace().nth(1)?.parse().ok()
}

/// `/proc/PID/stat` from the state on.
fn stat(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in brackets, may hold spaces and brackets.
    stat.rsplit_once(')').map(|(_, fields)| fields.trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_refused_is_said() {
        assert_eq!(refusal(7, Signal::SIGTERM, Ok(())), None);
        assert_eq!(refusal(7, Signal::SIGTERM, Err(Errno::ESRCH)), None);
        let said = refusal(7, Signal::SIGTERM, Err(Errno::EPERM)).unwrap();
        assert!(
            said.contains("process 7") && said.contains("SIGTERM") && said.contains("not permitted"),
            "{said}"
        );
    }
}
