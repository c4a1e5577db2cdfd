//! Ctrl-C, SIGTERM and a terminal's hangup: all that runs ends, a line says how to go on, exit status 130.
//!
//! A thread waits for the signal, so that it is heard wherever a command waits. The signal may come to us
//! alone: then only we signal the children. Points on disk are whole: each was synced before the next began.
//! A package manager is asked and waited for, never killed: half a package breaks the machine.

use std::io::{IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::descendants::{end_all, end_unharmed};

/// 128 + SIGINT, as shells say it.
const INTERRUPTED: i32 = 130;
/// What programs get to end by themselves; all of it ends within a second.
const PATIENCE: Duration = Duration::from_millis(300);
/// What a package manager gets; after it, it is left to end by itself.
const INSTALLING: Duration = Duration::from_secs(120);
/// A terminal's Ctrl-C goes to our children too: one of them may have ended before our own thread woke.
const SOON: Duration = Duration::from_millis(50);

static STOPPING: AtomicBool = AtomicBool::new(false);
static AT_PACKAGES: AtomicBool = AtomicBool::new(false);
static GOES_ON: Mutex<String> = Mutex::new(String::new());
static REMOVES: Mutex<Option<Removal>> = Mutex::new(None);

/// Removes what no process's end removes; an error is what is left.
type Removal = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// From now on a signal ends everything.
pub fn watch() -> Result<()> {
    let (mut heard, told) = UnixStream::pair().context("waiting for signals")?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Under nohup a run outlives its terminal.
    let is_heard = |signal: &i32| *signal != SIGHUP || !ignores(&status, SIGHUP);
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(is_heard) {
        pipe::register(signal, told.try_clone()?).context("waiting for signals")?;
    }
    std::thread::spawn(move || {
        // No byte: the pipe is broken, and no signal will ever be heard.
        if matches!(heard.read(&mut [0]), Ok(1)) {
            end();
        }
    });
    Ok(())
}

/// Whether `proc_pid_status(5)` says that a signal is ignored.
fn ignores(status: &str, signal: i32) -> bool {
    mask(status, "SigIgn:") >> (signal - 1) & 1 == 1
}

/// A mask of `proc_pid_status(5)`; 0 if the status has none.
pub fn mask(status: &str, name: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// A package manager is at work while it lives, and nothing else that this command started is.
#[must_use]
pub struct AtPackages(());

/// Called before one is started; never returns once a signal came.
pub fn at_packages() -> AtPackages {
    AT_PACKAGES.store(true, Ordering::SeqCst);
    hold();
    AtPackages(())
}

impl Drop for AtPackages {
    fn drop(&mut self) {
        // A stop in between has seen it, and nothing more is started.
        hold();
        AT_PACKAGES.store(false, Ordering::SeqCst);
    }
}

/// What a stopped run says beside that it was stopped: where it left things, and the command that goes on.
pub fn goes_on_with(words: String) {
    *GOES_ON.lock().unwrap_or_else(PoisonError::into_inner) = words;
}

/// What a stopped run does when all has ended. It must start nothing by [`crate::process`], which holds.
pub fn removes(removal: impl FnOnce() -> Result<(), String> + Send + 'static) {
    *REMOVES.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(removal));
}

/// There is nothing to remove any more, or it is to stay.
pub fn removes_nothing() {
    *REMOVES.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Never returns once a signal came. Called where a program was found ended, and before one is started, so
/// that nothing more is said or done.
pub fn hold() {
    while STOPPING.load(Ordering::SeqCst) {
        sleep(Duration::from_secs(1));
    }
}

/// The same, for a program that ended as one does that was stopped.
pub fn hold_if_soon() {
    sleep(SOON);
    hold();
}

fn end() -> ! {
    STOPPING.store(true, Ordering::SeqCst);
    let mut stderr = std::io::stderr();
    // Behind a progress bar a line of its own.
    let start = if stderr.is_terminal() { "\n" } else { "" };
    let mut goes_on = GOES_ON.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if AT_PACKAGES.load(Ordering::SeqCst) {
        let most = INSTALLING.as_secs();
        let _ =
            writeln!(stderr, "{start}xtask: stopping; the package manager ends first, for up to {most} s");
        if !end_unharmed(std::process::id(), INSTALLING) {
            goes_on.push_str("; the package manager is still at work, and was left to end by itself");
        }
    } else {
        end_all(PATIENCE);
        let removal = REMOVES.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(left)) = removal.map(|removal| removal()) {
            goes_on.push_str(&format!("; {left}"));
        }
    }
    let _ = writeln!(stderr, "{start}xtask: stopped by a signal{goes_on}");
    std::process::exit(INTERRUPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_told_from_the_others() {
        let status = "Name:\tx\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\n";
        assert_eq!([SIGHUP, SIGINT, SIGTERM].map(|signal| ignores(status, signal)), [true, false, false]);
        assert!(!ignores("", SIGHUP));
    }
}
